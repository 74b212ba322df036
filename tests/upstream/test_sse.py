"""The transport of 2024-11-05: one event stream for all answers, and posts beside it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.raw_sse import RawSse
from support import servers
from support.connections import Link, linked
from support.processes import eventually
from support.servers import free_port
from toolbay.errors import AuthRequired, CallTimeout, ConnectionLost, HandshakeFailed, ServerError
from toolbay.upstream import sse

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(server: RawSse | None = None, path: str = "/sse", **more: Any) -> AsyncGenerator[tuple[RawSse, Link]]:
    async with (server or RawSse()).running() as running:
        entry = {"type": "sse", "url": running.url + path, "ssrfWhitelist": ["127.0.0.0/8"]}
        async with linked(entry, restart={"first_delay": 0.01, "max_delay": 0.05, "max_attempts": 100}, **more) as link:
            yield running, link


async def test_a_large_result_comes_whole() -> None:
    """TRA-1, REN-4: a tool that has run must not lose its result, nor its session, for its size."""
    with servers.sdk2_serving("sse") as running:
        async with linked(running.entry) as link:
            assert len(await link.call("big_text", {"characters": 2_000_000})) == 2_000_000
            assert link.heard.states == ["connecting", "ready"]


async def test_what_is_over_the_limit_ends_the_session_with_its_reason_and_a_new_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """CAL-3, LIF-2: whose answer it was cannot be told any more."""
    monkeypatch.setattr(sse, "EVENT_LIMIT", 50_000)
    async with served() as (server, link):
        error = await link.outcome("note", {"text": "x" * 60_000})
        assert isinstance(error, ConnectionLost)
        assert "sent an answer that is larger than" in str(error)
        assert await link.call("note", {"text": "on"}) == "on"
        assert server.opened == 2


async def test_a_request_does_not_overtake_the_notification_before_it() -> None:
    """TRA-1: a server sees `initialized` before it is asked for its lists."""
    async with served() as (server, link):
        assert await link.call("echo", {"text": "hi"}) == "hi"
        assert server.methods == ["initialize", "notifications/initialized", "tools/list", "tools/call"]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{port}/messages", "http://localhost:{own}/messages", "//127.0.0.1:{port}/x"])
async def test_messages_go_to_no_other_origin(endpoint: str) -> None:
    """SEC-10: an endpoint elsewhere is refused, and nothing is dialled: arguments and credentials were meant for this one."""
    elsewhere = RawSse()
    async with elsewhere.running():
        server = RawSse()
        server.port = free_port()
        server.endpoint = endpoint.format(port=elsewhere.port, own=server.port)
        async with served(server) as (_, link):
            assert link.state == "failed"
            assert isinstance(link.connection.error, HandshakeFailed)
            assert "to another origin" in str(link.connection.error)
        assert server.posts == elsewhere.posts == []
        assert not elsewhere.opened


@pytest.mark.parametrize(
    ("get", "kind", "words"),
    [
        ((401, {}), AuthRequired, "HTTP 401"),
        ((500, {}), HandshakeFailed, "HTTP 500"),
        ((404, {}), HandshakeFailed, "HTTP 404"),
        ((200, {"Content-Type": "text/html"}), HandshakeFailed, "text/html instead of an event stream"),
    ],
)
async def test_a_stream_that_cannot_be_opened_is_told_in_plain_words(get: Any, kind: type[Exception], words: str) -> None:
    """TRA-3: the status, or what came instead."""
    server = RawSse()
    server.get = get
    async with served(server) as (_, link):
        assert isinstance(link.connection.error, kind)
        assert words in str(link.connection.error)


async def test_redirects_are_followed_within_the_origin_only() -> None:
    """SEC-10: of the stream as of messages."""
    server = RawSse()
    server.redirect = "/sse"
    async with served(server, "/old") as (_, link):
        assert await link.call("echo", {"text": "hi"}) == "hi"
    elsewhere = RawSse()
    async with elsewhere.running():
        server = RawSse()
        server.redirect = elsewhere.url + "/sse"
        async with served(server, "/old") as (_, link):
            assert link.state == "failed"
            assert "another origin" in str(link.connection.error)
        server = RawSse()
        async with served(server) as (_, link):
            server.redirect = elsewhere.url + "/messages"
            server.endpoint = "/old"
            server.cut()
            await eventually(lambda: link.heard.states[2:], "the end")
            await link.reaches("failed")
            assert "another origin" in str(link.connection.error)
        assert not elsewhere.opened
        assert not elsewhere.posts


async def test_a_post_that_is_refused_costs_its_own_call() -> None:
    """CAL-4, CAL-6: the status is told, and the stream lives on."""
    async with served() as (server, link):
        server.status["tools/call"] = 503
        error = await link.outcome("note")
        assert isinstance(error, ServerError)
        assert "HTTP 503" in str(error)
        server.status["tools/call"] = 304
        assert "HTTP 304" in str(await link.outcome("note"))
        del server.status["tools/call"]
        assert await link.call("note", {"text": "on"}) == "on"
        assert server.opened == 1


@pytest.mark.parametrize("event", ['data: {"jsonrpc": "2.0", "id": %d, "result": 5}', 'event: message\ndata: {"id": %d}'])
async def test_an_answer_that_is_no_message_costs_its_own_call(event: str) -> None:
    """CAL-4: at once, without waiting for the timeout; what belongs to no call is passed over."""
    async with served() as (server, link):
        server.events["note"] = f"event: odd\ndata: 1\n\ndata: {{not json\n\ndata: []\n\n{event}"
        error = await link.outcome("note")
        assert isinstance(error, ServerError)
        assert error.ran is True
        assert "the call has run" in str(error)
        assert await link.call("echo", {"text": "on"}) == "on"
        assert server.opened == 1


async def test_a_stream_that_ends_is_a_server_that_went_away() -> None:
    """LIF-2: noticed at once, told as such, and opened again."""
    async with served() as (server, link):
        server.cut()
        await eventually(lambda: link.heard.states[2:3] == ["waiting"], "the end")
        assert await link.call("echo", {"text": "back"}) == "back"
        assert server.opened == 2


async def test_a_message_that_is_never_answered_holds_up_no_call_and_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: only `initialized` must be there before what follows it."""
    monkeypatch.setattr(sse, "TELL_PATIENCE", 2.0)
    async with served() as (server, link):
        server.events["note"] = "event: odd\ndata: 1"
        server.silent = "notifications/cancelled"
        assert isinstance(await link.outcome("note", patience=0.2), CallTimeout)
        await eventually(lambda: server.held, "the cancellation")
        began = time.monotonic()
        assert await link.call("echo", {"text": "on"}) == "on"
        assert time.monotonic() - began < 1.5
        await eventually(lambda: not server.held, "the end of waiting for its answer")


async def test_a_post_is_not_waited_for_once_its_caller_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: its answer would say nothing to anybody."""
    monkeypatch.setattr(sse, "TELL_PATIENCE", 0.2)
    async with served() as (server, link):
        server.silent = "tools/call"
        assert isinstance(await link.outcome("note", patience=0.5), CallTimeout)
        await eventually(lambda: not server.held, "the end of the post")
        server.silent = ""
        assert await link.call("echo", {"text": "on"}) == "on"
