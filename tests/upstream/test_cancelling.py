"""A user's stop over HTTP: it reaches the server once, as its era wants it, wherever the call is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest

from servers.raw_http import Piece, RawHttp, Step, Wire
from servers.raw_sse import RawSse
from support.connections import Link, linked
from support.processes import eventually
from toolbay.types import Progress

pytestmark = pytest.mark.anyio

Era = Literal["legacy", "modern"]


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@asynccontextmanager
async def served(era: Era) -> AsyncGenerator[tuple[RawHttp, Link]]:
    async with RawHttp(era=era) as server, linked(server.entry) as link:
        assert link.state == "ready", link.connection.error
        yield server, link


def calls(server: RawHttp) -> list[Any]:
    return [post["id"] for post in server.posts if post.get("method") == "tools/call"]


async def told(server: RawHttp, era: Era, before: int) -> None:
    """The server has learnt that the one call is of no interest any more: by one notification, or by the end of its stream."""
    if era == "legacy":
        await eventually(lambda: server.cancelled, "notifications/cancelled")
    await eventually(lambda: server.open <= before, "the end of the stream")


def silent(_payload: bytes) -> Iterable[Piece]:
    yield "silence"


def begun(_payload: bytes) -> Iterable[Piece]:
    """A stream of events on which nothing comes."""
    yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: soon\n\n"
    yield "silence"


@pytest.mark.parametrize("wire", [silent, begun])
async def test_a_call_that_is_stopped_after_it_was_sent_is_stopped_on_the_server_once(era: Era, wire: Wire) -> None:
    """CAL-2: a notification (2025), the end of the request's stream and no notification (2026); the connection lives on."""
    async with served(era) as (server, link):
        server.steps["note"] = [Step(wire=wire)]
        before = server.open
        async with anyio.create_task_group() as group:
            group.start_soon(link.call, "note")
            await eventually(lambda: calls(server), "the call")
            group.cancel_scope.cancel()
        await told(server, era, before)
        assert await link.call("echo", {"text": "on"}) == "on"
        assert server.cancelled == (calls(server)[:1] if era == "legacy" else [])
        assert link.heard.states == ["connecting", "ready"]


def progressing(payload: bytes) -> Iterable[Piece]:
    """Progress, as an event, and then nothing more."""
    token = json.loads(payload)["id"]
    event = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
    yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + f"data: {json.dumps(event)}\n\n".encode()
    yield "silence"


async def test_a_call_that_is_stopped_while_it_makes_progress_is_stopped_once(era: Era) -> None:
    """CAL-2: from within what its caller is told of the progress, too."""
    async with served(era) as (server, link):
        server.steps["note"] = [Step(wire=progressing)]
        heard: list[Progress] = []
        before = server.open
        async with anyio.create_task_group() as group:

            def stop(progress: Progress) -> None:
                heard.append(progress)
                group.cancel_scope.cancel()

            async def call() -> None:
                await link.call("note", on_progress=stop)

            group.start_soon(call)
        assert len(heard) == 1
        await told(server, era, before)
        assert await link.call("echo", {"text": "on"}) == "on"
        assert server.cancelled == (calls(server)[:1] if era == "legacy" else [])


async def test_a_call_that_is_stopped_as_its_answer_arrives_is_one_or_the_other(era: Era) -> None:
    """CAL-2: answered or stopped, never both and never neither; at most one notification each, and none after an answer."""
    ends: Counter[str] = Counter()
    async with served(era) as (server, link):
        for hesitation in range(24):
            server.gate.clear()
            server.steps["note"] = [Step(wait=True, effect=True)]
            sent = len(calls(server))
            answers: list[str] = []
            async with anyio.create_task_group() as group:

                async def call(answers: list[str] = answers) -> None:
                    answers.append(await link.call("note", {"text": "x"}))

                group.start_soon(call)
                await eventually(lambda sent=sent: len(calls(server)) > sent, "the call")
                server.gate.set()
                for _ in range(hesitation):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            ends["answered" if answers else "stopped"] += 1
            # Whatever is still on its way is there before what comes after it.
            assert await link.call("echo", {"text": "on"}) == "on"
        assert sum(ends.values()) == 24
        assert ends["stopped"], "at first there was no time for an answer"
        if era == "legacy":
            await eventually(lambda: len(server.cancelled) == ends["stopped"], "one notification for each that was stopped")
        assert max(Counter(server.cancelled).values(), default=0) <= 1
        assert len(server.cancelled) == (ends["stopped"] if era == "legacy" else 0)
        assert server.effects["note"] == 24


async def test_a_call_that_is_stopped_before_it_was_sent_is_never_seen(era: Era) -> None:
    """CAL-2: neither the call nor a cancellation reaches the server."""
    async with served(era) as (server, link):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await link.call("note")
        assert await link.call("echo", {"text": "on"}) == "on"
        assert len(calls(server)) == 1
        assert server.cancelled == []


async def test_the_earlier_transport_tells_of_a_stop_by_a_post() -> None:
    """CAL-2: HTTP+SSE, where the stream belongs to all calls; a late answer is dropped."""
    async with RawSse().running() as server:
        entry = {"type": "sse", "url": f"{server.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}
        async with linked(entry) as link:
            server.events["note"] = ": nothing yet"
            async with anyio.create_task_group() as group:
                group.start_soon(link.call, "note")
                await eventually(lambda: server.effects["note"], "the call")
                group.cancel_scope.cancel()
            sent = next(post["id"] for post in server.posts if post["method"] == "tools/call")
            await eventually(lambda: "notifications/cancelled" in server.methods, "the cancellation")
            server.say("data: " + json.dumps({"jsonrpc": "2.0", "id": sent, "result": {"content": []}}))
            assert await link.call("echo", {"text": "on"}) == "on"
            cancelled = [post["params"]["requestId"] for post in server.posts if post["method"] == "notifications/cancelled"]
            assert cancelled == [sent]
