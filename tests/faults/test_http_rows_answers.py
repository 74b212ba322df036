"""The fault matrix, HTTP: what comes back is an error, nonsense, broken off, too slow, or too much (H7 to H11, H13)."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import anyio
import pytest

from faults.harness import SECRET, Allowance
from faults.web import AT_ONCE, ERAS, EVENTS, REPLY, Era, Form, body, calls, events, head, other, suffer, web
from servers.raw_http import RawHttp, Step, Wire
from support.processes import eventually
from support.toxics import Toxic, proxied
from toolbay.types import Outcome, ToolResult
from toolbay.upstream import streamable

pytestmark = pytest.mark.anyio

HTML = {"Content-Type": "text/html; charset=utf-8"}
JSON = {"Content-Type": "application/json"}


def status(number: int, page: bytes = b"", headers: Mapping[str, str] | None = None) -> Step:
    return Step(kind="status", status=number, body=page, headers=headers or {}, effect=True)


STATUSES = {
    "500": Form(status(500, b"it broke: " + SECRET.encode()), Outcome.UNKNOWN, r"HTTP 500: it broke"),
    "502 in HTML": Form(status(502, b"<html><h1>Bad Gateway</h1></html>", HTML), Outcome.UNKNOWN, r"HTTP 502\b"),
    "504 in HTML": Form(status(504, b"<html>" + b"x" * 200_000, HTML), Outcome.UNKNOWN, r"HTTP 504\b"),
    "HTML": Form(status(200, b"<html>Sign in</html>", HTML), Outcome.UNKNOWN, r"text/html instead of JSON"),
    "nothing": Form(status(200), Outcome.UNKNOWN, r"instead of JSON"),
    "empty JSON": Form(status(200, headers=JSON), Outcome.UNKNOWN, r"no JSON-RPC answer"),
    "no content": Form(status(204), Outcome.UNKNOWN, r"instead of JSON|HTTP 204"),
    "text": Form(status(200, b"ok", {"Content-Type": "text/plain"}), Outcome.UNKNOWN, r"text/plain instead of JSON"),
    "202": Form(status(202), Outcome.UNKNOWN, r"HTTP 202"),
    "half JSON": Form(status(200, b'{"jsonrpc": "2.0", "id"', JSON), Outcome.EXECUTED, r"cannot be read"),
    "another id": Form(
        Step(
            wire=lambda reply: [head("Content-Type: application/json", "Connection: close") + other(reply, id=4711), "close"], effect=True
        ),
        Outcome.UNKNOWN,
        r"to another request",
    ),
}


@ERAS
async def test_h7_a_status_or_a_page_in_the_place_of_an_answer_is_told_at_once(era: Era) -> None:
    """H7: 500, 502, 504, HTML, empty, wrong type, 202: the status is said, nobody waits for a timeout, nothing is sent twice."""
    server = RawHttp(era=era)
    async with web("H7", f"{len(STATUSES)} forms: {', '.join(STATUSES)}", server) as bay:
        await suffer(bay, server, STATUSES)
        assert bay.states() == ["connecting", "ready"]


BROKEN = {
    "reset before the status line": Step(kind="reset", effect=True),
    "closed before the status line": Step(wire=lambda _: ["close"], effect=True),
    "reset in the status line": Step(wire=lambda _: [b"HTTP/1.1 2", "reset"], effect=True),
    "reset after the headers": Step(wire=lambda _: [head("Content-Type: application/json", "Content-Length: 99"), "reset"], effect=True),
    "closed in the body": Step(kind="truncate", effect=True),
    "reset in a chunk": Step(
        wire=lambda reply: [
            head("Content-Type: application/json", "Transfer-Encoding: chunked") + b"fff\r\n" + reply[:20],
            "reset",
        ],
        effect=True,
    ),
    "no HTTP": Step(wire=lambda _: [b"SSH-2.0-OpenSSH_9.2\r\n", "close"], effect=True),
}


@pytest.mark.parametrize("sse", [False, True], ids=["json", "events"])
@ERAS
async def test_h8_a_connection_that_breaks_leaves_an_outcome_that_nobody_knows(era: Era, sse: bool) -> None:
    """H8: wherever the answer breaks off; a kept connection that the server closed meanwhile is no fault at all."""
    server = RawHttp(era=era, sse=sse)
    async with web("H8", f"{', '.join(BROKEN)}, stale keep-alive{', events' if sse else ''}", server) as bay:
        await suffer(bay, server, {name: Form(step, Outcome.UNKNOWN, "broke before the answer") for name, step in BROKEN.items()})
        for _ in range(5):
            server.hang_up()
            await bay.well("note")
        assert bay.states() == ["connecting", "ready"]


async def test_h8_a_request_that_the_network_swallowed_was_sent_all_the_same() -> None:
    """H8: bytes left this process, so the outcome is unknown, although the server has seen nothing."""
    server = RawHttp(era="modern")
    async with server, proxied(server.port) as proxy, web("H8", "the request is swallowed", server, url=proxy.url()) as bay:
        await bay.well("note")
        proxy.toxic = Toxic(toward="server", reset=1)
        result = await bay.call("note")
        bay.told(result, Outcome.UNKNOWN, "broke before the answer")
        proxy.toxic = Toxic()
        await bay.well("note")
        assert server.effects["note"] == 2


@ERAS
async def test_h9_a_stream_that_is_cut_is_resumed_or_its_outcome_is_unknown(era: Era) -> None:
    """H9: with an event id (2025) the answer is fetched and nothing runs twice; without one, and in 2026, it is unknown at once."""
    server = RawHttp(era=era)
    cuts = {
        "without an id": Step(kind="sse_cut", effect=True),
        "in the middle of an event": Step(wire=events(b'event: message\ndata: {"jsonrpc"'), effect=True),
        "reset": Step(wire=events(b": hello\n\n", end="reset"), effect=True),
    }
    if era == "modern":
        cuts["with an id"] = Step(wire=events(b"id: 7\nretry: 10\ndata:\n\n"), effect=True)
    async with web("H9", f"SSE cut: {', '.join(cuts)}", server) as bay:
        forms = {name: Form(step, Outcome.UNKNOWN, r"ended its answer|broke before the answer") for name, step in cuts.items()}
        await suffer(bay, server, forms)
        if era == "legacy":
            server.steps["note"] = [Step(kind="sse_cut", effect=True, event_id="e1", kept=True)]
            before = server.effects["note"], calls(server)
            await bay.well("note", "fetched")
            assert (server.effects["note"], calls(server)) == (before[0] + 1, before[1] + 1)
            server.steps["note"] = [Step(kind="sse_cut", effect=True, event_id="e2"), Step(effect=True)]
            bay.told(await bay.call("note"), Outcome.UNKNOWN, "ended its answer")
        else:
            assert server.methods["GET"] == 0, "2026 has nothing to resume from"
        assert bay.states() == ["connecting", "ready"]


@ERAS
async def test_h9_what_is_safe_is_asked_again_under_a_new_id(era: Era) -> None:
    """H9: a tool of a trusted server that only reads is sent once more after a cut, as another request."""
    server = RawHttp(era=era)
    async with web("H9", "SSE cut, the tool only reads", server, trusted=True) as bay:
        server.steps["echo"] = [Step(kind="sse_cut", effect=True), Step(effect=True)]
        await bay.well("echo", "again")
        ids = [post["id"] for post in server.posts if post.get("method") == "tools/call"]
        assert len(ids) == len(set(ids)) == 2
        server.effects["echo"] -= 1  # what only reads may run twice; the case counts effects


SLOW = {
    "silent": Step(wire=lambda _: [EVENTS, "silence"], effect=True),
    "comments": Step(wire=lambda _: [EVENTS, *([b": still here\n\n", 0.05] * 1000)], effect=True),
    "drip": Step(wire=lambda reply: [EVENTS, *(part for byte in b"data: " + reply for part in (bytes([byte]), 0.2))], effect=True),
    "drip_of_json": Step(
        wire=lambda reply: [
            head("Content-Type: application/json", f"Content-Length: {len(reply)}"),
            *(part for byte in reply for part in (bytes([byte]), 0.2)),
        ],
        effect=True,
    ),
    "no_headers": Step(kind="silence", effect=True),
}


@ERAS
async def test_h10_a_trickle_does_not_outlast_the_deadline(era: Era) -> None:
    """H10: silence, comments, drips: the call ends with its deadline, the server is told, its stream is left."""
    server = RawHttp(era=era)
    server.steps = {name: [step] for name, step in SLOW.items()}
    results: dict[str, ToolResult] = {}
    async with web("H10", f"silent or slow: {', '.join(SLOW)}", server, toolTimeout=1.0) as bay:

        async def ask(name: str) -> None:
            results[name] = await bay.call(name)

        with anyio.fail_after(1.0 + 2 * AT_ONCE):
            async with anyio.create_task_group() as group:
                for name in SLOW:
                    group.start_soon(ask, name)
        for result in results.values():
            bay.told(result, Outcome.UNKNOWN, r"no answer within 1 s|no answer in time", "told to stop")
        if era == "legacy":
            await eventually(lambda: len(server.cancelled) == len(SLOW), "the word to stop, for each")
        await eventually(lambda: server.answering <= server.listeners, "the end of the streams that were left")
        await bay.well()
        assert bay.states() == ["connecting", "ready"]


def halves(reply: bytes) -> tuple[bytes, bytes]:
    return reply[: len(reply) // 2], reply[len(reply) // 2 :]


WELL_FORMED: dict[str, Wire] = {
    "CRLF in pieces": lambda reply: [
        EVENTS,
        b"event: message\r",
        0.01,
        b"\ndata: ",
        0.01,
        reply + b"\r",
        0.01,
        b"\n\r",
        0.01,
        b"\n",
        "close",
    ],
    "CR alone": lambda reply: [EVENTS, b"event: message\rdata: " + reply + b"\r\r", 0.01, b": end\r", "close"],
    "a BOM": lambda reply: [EVENTS, b"\xef\xbb\xbfdata: " + reply + b"\n\n", "close"],
    "a BOM in pieces": lambda reply: [EVENTS, b"\xef", 0.01, b"\xbb", 0.01, b"\xbfdata: " + reply + b"\n\n", "close"],
    "many lines": lambda reply: [EVENTS, b"data: " + reply.replace(b", ", b",\ndata: ") + b"\n\n", "close"],
    "no space": lambda reply: [EVENTS, b"data:" + reply + b"\n\n", "close"],
    "unknown events and fields": lambda reply: [
        EVENTS,
        b"event: ping\ndata: {}\n\nevent: error\ndata: nothing\n\nmood: good\nretry: soon\nid: \x00\n\nevent\n\ndata: " + reply + b"\n\n",
        "close",
    ],
    "another charset": lambda reply: [
        head("Content-Type: text/event-stream; charset=utf-16", "Connection: close") + b"data: " + reply + b"\n\n",
        "close",
    ],
    "halves of characters": lambda reply: [EVENTS, b"data: ", *(part for byte in reply for part in (bytes([byte]),)), b"\n\n", "close"],
    "an answer to somebody else": lambda reply: [
        EVENTS,
        b"data: " + other(reply, id=4711, result={"content": []}) + b"\n\ndata: " + reply + b"\n\n",
        "close",
    ],
    "an event that is no JSON": lambda reply: [EVENTS, b"data: {oops\n\ndata: [1]\n\ndata: " + reply + b"\n\n", "close"],
}


@ERAS
async def test_h11_event_streams_are_read_as_browsers_read_them(era: Era) -> None:
    """H11: line ends, a BOM, data of many lines, what is unknown: per WHATWG; what is no message costs nothing but itself."""
    server = RawHttp(era=era)
    async with web("H11", f"SSE: {', '.join(WELL_FORMED)}", server) as bay:
        for name, wire in WELL_FORMED.items():
            server.steps["note"] = [Step(wire=wire, effect=True)]
            result = await bay.call("note", {"text": f"{name}: é"})
            assert (result.is_error, result.text) == (False, f"{name}: é"), f"{name}: {result.text}"


@ERAS
async def test_h11_events_that_are_no_answer_are_errors_at_once(era: Era) -> None:
    """H11: bad JSON alone, half an event, another's answer alone: unknown, without a wait."""
    server = RawHttp(era=era)
    forms = {
        "bad JSON": Form(Step(wire=events(b"data: {oops\n\n"), effect=True), Outcome.EXECUTED, r"could not be read"),
        "somebody else's": Form(
            Step(wire=lambda reply: [EVENTS, b"data: " + other(reply, id=4711) + b"\n\n", "close"], effect=True), Outcome.UNKNOWN, r"."
        ),
        "no blank line": Form(Step(wire=events(b"data: " + REPLY + b"\n"), effect=True), Outcome.UNKNOWN, r"ended its answer"),
    }
    async with web("H11", f"SSE: {', '.join(forms)}", server) as bay:
        await suffer(bay, server, forms)
        assert bay.states() == ["connecting", "ready"]


@ERAS
async def test_h11_a_large_event_comes_whole_and_one_without_end_is_cut(era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    """H11: 5 MB in one event; a line that never ends stops at the limit."""
    monkeypatch.setattr(streamable, "EVENT_LIMIT", 8 * 1024 * 1024)
    server = RawHttp(era=era, sse=True)
    async with web("H11", "SSE: an event of 5 MB, an endless one", server, allowance=Allowance(peak=256, stall=0.5, latency=0.3)) as bay:
        server.steps["note"] = [
            Step(wire=lambda reply: [EVENTS, b"data: ", reply.replace(b"padding", b"x" * 5_000_000), b"\n\n"], effect=True)
        ]
        result = await bay.call("note", {"text": "padding"})
        assert not result.is_error, result.text
        assert len(result.text) < 20_000, "the model is shown the beginning"
        server.steps["note"] = [Step(wire=lambda _: [EVENTS, b"data: ", *([b"x" * 65536] * 400)], effect=True), Step(effect=True)]
        bay.told(await bay.call("note"), Outcome.EXECUTED, "larger than 8 MB")
        await bay.well("note")


BOMB = gzip.compress(gzip.compress(b"\0" * 100_000_000))
"""Inside: 97 kB that unpack to 100 MB."""


def packed(*named: str, data: bytes = b"") -> Step:
    headers = [f"Content-Encoding: {name}" for name in named]
    return Step(
        wire=lambda reply: [
            head("Content-Type: application/json", *headers, "Connection: close") + (data or gzip.compress(reply)),
            "close",
        ],
        effect=True,
    )


ABUSE = {
    "gzip bomb": Form(packed("gzip", data=gzip.decompress(BOMB)), Outcome.EXECUTED, r"unpack to more than"),
    "bomb in events": Form(
        Step(
            wire=lambda _: [
                head("Content-Type: text/event-stream", "Content-Encoding: gzip", "Connection: close") + gzip.decompress(BOMB),
                "close",
            ],
            effect=True,
        ),
        Outcome.EXECUTED,
        r"unpack to more than",
    ),
    "br": Form(packed("br"), Outcome.EXECUTED, r"packed its answer as br"),
    "twice gzip": Form(packed("gzip", "gzip"), Outcome.EXECUTED, r"packed its answer as gzip, gzip"),
    "no gzip": Form(packed("gzip", data=b"{}" * 50), Outcome.EXECUTED, r"not the gzip it is said to be"),
    "half gzip": Form(packed("gzip", data=gzip.compress(b"x" * 5000)[:-12]), Outcome.EXECUTED, r"ends in the middle"),
    "longer than it says": Form(
        Step(wire=body("Content-Length: 30", data=lambda reply: reply, end=0.0), effect=True), Outcome.EXECUTED, r"cannot be read"
    ),
    "shorter than it says": Form(
        Step(wire=body("Content-Length: 9999", data=lambda reply: reply), effect=True), Outcome.UNKNOWN, r"broke before the answer"
    ),
    "two lengths": Form(
        Step(wire=body("Content-Length: 30", "Content-Length: 40", data=lambda reply: reply), effect=True), Outcome.UNKNOWN, r"broke before"
    ),
    "a length that is none": Form(
        Step(wire=body("Content-Length: -1", data=lambda reply: reply), effect=True), Outcome.UNKNOWN, r"broke before"
    ),
    "chunks without end": Form(
        Step(wire=body("Transfer-Encoding: chunked", data=lambda reply: b"5\r\n" + reply[:5] + b"\r\n"), effect=True),
        Outcome.UNKNOWN,
        r"broke before",
    ),
    "a chunk of no size": Form(
        Step(wire=body("Transfer-Encoding: chunked", data=lambda _: b"zz\r\n{}\r\n0\r\n\r\n"), effect=True),
        Outcome.UNKNOWN,
        r"broke before",
    ),
    "a chunk of any size": Form(
        Step(wire=body("Transfer-Encoding: chunked", data=lambda _: b"f" * 40 + b"\r\n{}"), effect=True), Outcome.UNKNOWN, r"broke before"
    ),
    "an endless chunk extension": Form(
        Step(wire=body("Transfer-Encoding: chunked", data=lambda _: b"5;" + b"a" * 500_000), effect=True), Outcome.UNKNOWN, r"broke before"
    ),
    "headers without end": Form(
        Step(wire=lambda _: [b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 500_000, "close"], effect=True), Outcome.UNKNOWN, r"broke before"
    ),
}


@ERAS
async def test_h13_packings_and_lengths_are_bounded_and_never_believed(era: Era) -> None:
    """H13: bombs, other packings, wrong lengths, abused chunks: refused at once, memory stays, the next call is not poisoned."""
    server = RawHttp(era=era)
    async with web("H13", ", ".join(ABUSE), server, allowance=Allowance(stall=0.5, latency=0.3)) as bay:
        await suffer(bay, server, ABUSE, at_most=3.0)
        assert bay.states() == ["connecting", "ready"]
