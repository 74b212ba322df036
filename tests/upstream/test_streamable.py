"""Streamable HTTP where servers are strange: what is sent, what is taken for an answer, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from net.wires import Small, always, answer
from servers.raw_http import Piece, RawHttp, Step
from support.connections import Link, linked
from support.processes import eventually
from toolbay.errors import ToolbayError
from toolbay.net import http
from toolbay.types import Outcome, outcome_of
from toolbay.upstream import streamable
from toolbay.upstream.faults import WORKS_FOR, Faults
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.streams import NotFollowed, sent

pytestmark = pytest.mark.anyio
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def served(**more: Any) -> AsyncGenerator[tuple[RawHttp, Link]]:
    async with RawHttp() as server, linked(server.entry, **more) as link:
        assert link.state == "ready", link.connection.error
        yield server, link


def calls(server: RawHttp) -> int:
    return len([post for post in server.posts if post.get("method") == "tools/call"])


async def outcome(link: Link, tool: str = "note", **more: Any) -> tuple[Outcome, str]:
    told = await link.outcome(tool, **more)
    return (outcome_of(told), str(told)) if isinstance(told, ToolbayError) else (Outcome.EXECUTED, str(told))


# -- how far a call got -----------------------------------------------------------------------------------------------


async def test_a_redirect_to_no_address_tells_nobody_that_the_call_was_not_taken() -> None:
    """CAL-3: by 302 it may have been carried out; it is not sent again."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="status", status=302, headers={"Location": "http://[half"}, effect=True)]
        assert (await outcome(link))[0] is Outcome.UNKNOWN
        assert calls(server) == 1
        assert link.heard.states == ["connecting", "ready"]


async def test_a_redirect_that_is_not_followed_has_a_cause_and_a_mend_apart() -> None:
    """TRA-3: so that who shows the one with a mend of his own does not show two."""
    async with Small(always(answer(b"", "Location: http://127.0.0.1:9/mcp", status="307 Temporary Redirect"))) as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        async with http.client(policy=http.policy_for(url), proxy="") as client:
            with pytest.raises(NotFollowed) as caught:
                async with sent(client, "POST", url, json={}):
                    raise AssertionError
    error = caught.value
    assert error.cause == f"http://127.0.0.1:{server.port} redirects to http://127.0.0.1:9, another origin, which is not followed"
    assert error.mend == "set that as `url` if it is right"
    assert (str(error), error.ran) == (f"{error.cause}: {error.mend}", False)


async def test_a_tunnel_that_breaks_has_carried_nothing() -> None:
    """CAL-3: what a proxy is asked for before the tunnel stands is no byte of the call."""
    asked: list[bytes] = []

    async def reset(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive())

    ledger, told = Ledger(), list[str]()
    entry = ledger.open()
    entry.on_sent = lambda: told.append("sent")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, reset)

        def wrap(inner: Any) -> Faults:
            return Faults(inner, ledger, on_dead=lambda _: None, wakes=False, safe=str)

        async with http.client(wrap=wrap, proxy=proxy) as client:
            message = {"jsonrpc": "2.0", "id": entry.id, "method": "tools/call"}
            await client.post("https://tools.example/mcp", json=message, extensions={WORKS_FOR: entry.id})
        group.cancel_scope.cancel()
    assert asked[0].startswith(b"CONNECT tools.example:443 ")
    assert entry.fault is not None
    assert (entry.sent, told) == (False, [])


# -- what is taken for an answer --------------------------------------------------------------------------------------


async def test_an_event_that_cannot_be_read_is_the_answer_only_where_it_ends_the_stream_in_order() -> None:
    """CAL-3: in a stream that goes on, or breaks, it may have been anything."""

    def sized(*events: bytes) -> list[Piece]:
        return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n", *events, "close"]

    async with served() as (server, link):
        forms: dict[Outcome, list[Piece]] = {
            Outcome.EXECUTED: [EVENTS, b"data: {oops\n\n", "close"],
            Outcome.UNKNOWN: sized(b"data: {oops\n\n"),
        }
        for expected, wire in forms.items():
            server.steps["note"] = [Step(wire=lambda _reply, wire=wire: wire)]
            assert (await outcome(link))[0] is expected
        other = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}\n\n'
        server.steps["note"] = [Step(wire=lambda _: [EVENTS, b"data: {oops\n\n", other, "close"])]
        assert (await outcome(link))[0] is Outcome.UNKNOWN


async def test_a_request_of_the_server_that_cannot_be_read_is_no_answer() -> None:
    """CAL-3: its id is the server's own, whatever number that is."""
    async with served() as (server, link):
        broken = b"".join(b'data: {"jsonrpc": "2.0", "id": %d, "method": 5}\n\n' % number for number in range(20))
        server.steps["note"] = [Step(wire=lambda reply: [EVENTS, broken, b"data: " + reply + b"\n\n", "close"])]
        assert await link.call("note", {"text": "here"}) == "here"


async def test_a_stream_is_taken_up_again_after_any_id() -> None:
    """H9: an event's id may have any characters, and goes back as UTF-8 (WHATWG)."""
    async with served() as (server, link):
        mark = "événement-7"
        wire: list[Piece] = [EVENTS, f"id: {mark}\nretry: 10\ndata:\n\n".encode(), "close"]
        server.steps["note"] = [Step(wire=lambda _: wire, kept=True, event_id=mark.encode().decode("latin-1"), effect=True)]
        assert await link.call("note", {"text": "kept"}) == "kept"
        assert server.effects["note"] == 1
        assert link.heard.states == ["connecting", "ready"]


async def test_a_session_id_that_no_header_can_hold_is_told() -> None:
    """TRA-1: the protocol wants visible ASCII."""
    async with RawHttp(session=False) as server:
        server.steps["initialize"] = [Step(headers={"Mcp-Session-Id": "séance"})]
        async with linked(server.entry) as link:
            assert "session id" in str(link.connection.error)


# -- no wait for what is known, and nothing left behind ---------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 500])
async def test_a_status_is_told_though_its_body_never_ends(status: int) -> None:
    """H7, H10: the status says it all; nobody waits for the deadline."""
    wire: list[Piece] = [b"HTTP/1.1 %d No\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nwhy" % status, "silence"]
    async with served() as (server, link):
        server.steps["note"] = [Step(wire=lambda _: wire)]
        began = time.monotonic()
        found, text = await outcome(link, patience=25)
        assert time.monotonic() - began < 5
        assert found is (Outcome.NOT_EXECUTED if status == 401 else Outcome.UNKNOWN)
        assert f"HTTP {status}" in text


async def test_more_calls_than_a_pool_of_connections_has_do_not_fail() -> None:
    """C3: how many may be under way is what `maxConcurrent` says."""
    async with served(max_concurrent=150) as (server, link):
        server.steps["note"] = [Step(wait=True, effect=True)]
        async with anyio.create_task_group() as group:
            for _ in range(150):
                group.start_soon(link.call, "note")
            await eventually(lambda: server.effects["note"] == 150, "150 calls at the server")
            server.gate.set()


async def test_headers_in_any_characters_cost_nothing() -> None:
    """TRA-1: HTTP lets a value have them (RFC 9110, 5.5), and some proxies do."""
    async with served() as (server, link):
        server.steps["note"] = [Step(headers={"X-Served-By": "Zürich"}, effect=True)]
        assert await link.call("note", {"text": "here"}) == "here"


async def test_a_message_that_is_never_answered_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: a server that takes cancellations and says nothing keeps no connection of ours."""
    monkeypatch.setattr(streamable, "TELL_PATIENCE", 0.3)
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="silence")]
        server.steps["notifications/cancelled"] = [Step(kind="silence")]
        for _ in range(5):
            assert (await outcome(link, patience=0.1))[0] is Outcome.UNKNOWN
        await eventually(lambda: server.answering <= 1, "no request but the stream to listen on")
        assert len(server.cancelled) == 5


async def test_a_session_that_is_gone_is_noticed_without_a_call() -> None:
    """LIF-2: the stream to listen on ended, and where it is asked for again there is no such session any more."""
    async with served() as (server, link):
        await eventually(lambda: server.listeners, "somebody who listens")
        server.valid.clear()
        server.hang_up()
        await eventually(lambda: server.sessions == 2, "another session")
        await link.reaches("ready")
        assert link.heard.states == ["connecting", "ready", "waiting", "connecting", "ready"]
        assert await link.call("echo", {"text": "on"}) == "on"


# -- credentials that do not hold any more ----------------------------------------------------------------------------


async def test_who_waits_for_new_credentials_does_not_hold_up_the_next_session() -> None:
    """LIF-1: calls of the old session may finish; those that wait for the next one are none of them."""
    async with served() as (server, link):
        server.steps["note"] = [Step(wait=True, effect=True)]
        async with anyio.create_task_group() as group:
            group.start_soon(link.call, "note")
            await eventually(lambda: server.effects["note"], "a call that runs")
            server.token = "another"
            assert (await outcome(link, "echo"))[0] is Outcome.NOT_EXECUTED
            await link.reaches("needs_auth")
            server.token = ""
            link.connection.start()
            group.start_soon(link.call, "echo")
            await eventually(lambda: link.connection.turns.under_way, "a call that waits")
            server.gate.set()
            with anyio.fail_after(10):
                await link.reaches("ready")


async def test_a_ping_that_is_denied_wants_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """LIF-2, `pingInterval`: what a server says to a ping it says to all."""
    async with served(ping_interval=0.2) as (server, link):
        server.token = "another"
        await link.reaches("needs_auth")
        assert link.heard.states == ["connecting", "ready", "needs_auth"]
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
