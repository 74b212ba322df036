"""The fault matrix, HTTP: credentials, sessions and patience, what is listened to, and the transport of 2024-11-05 (H4 to H6, H15)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest

from faults.harness import FAULTY, Allowance, Bay, case
from faults.web import AT_ONCE, CROWD, ERAS, LOOPBACK, PATIENCE, Era, Form, calls, many, suffer, timed, web
from servers.raw_http import RawHttp, Step
from servers.raw_sse import RawSse
from support.processes import eventually
from toolbay.types import Outcome, ToolResult
from toolbay.upstream import streamable

pytestmark = pytest.mark.anyio

BEARER = "Bearer first-token"


@ERAS
async def test_h4_credentials_that_no_longer_hold_are_told_once_and_mended_by_a_reload(era: Era) -> None:
    """H4: 401 for a hundred callers: not executed, one state with its mend, no further request until there is another header."""
    server = RawHttp(era=era)
    server.token = "first-token"
    async with web("H4", "401 for 100 callers", server, allowance=CROWD, headers={"Authorization": BEARER}) as bay:
        await bay.well("note")
        server.token = "second-token"
        for result in await many(bay, 100, "note"):
            bay.told(result, Outcome.NOT_EXECUTED, "401", "Authorization header in `headers` is not accepted")
        await bay.reaches("needs_auth")
        assert bay.states() == ["connecting", "ready", "needs_auth"]
        assert "the Authorization header in `headers` is not accepted: correct it" in bay.error()
        denied = server.denied
        assert denied <= 105, "one for each call that was under way"
        result, took = await timed(lambda: bay.call("note"))
        assert (result.outcome, took < AT_ONCE) == (Outcome.NOT_EXECUTED, True)
        assert server.denied - denied <= 1, "nobody asks again with what does not hold (a stream's goodbye aside)"
        bay.servers[FAULTY]["headers"]["Authorization"] = "Bearer second-token"
        await bay.start()
        await bay.well("note")


@ERAS
async def test_h4_a_server_that_always_denies_is_asked_once(era: Era) -> None:
    """H4: a 401 loop is none: the state says what is missing."""
    server = RawHttp(era=era)
    server.token = "never-given"
    async with web("H4", "401 from the start", server) as bay:
        assert bay.state() == "needs_auth"
        assert "HTTP 401" in bay.error()
        assert server.denied <= 2
        await bay.call("note")
        assert server.denied <= 2


@ERAS
async def test_h4_a_scope_that_is_missing_costs_one_call(era: Era) -> None:
    """H4: 403 insufficient_scope is a word about one call; the others go on."""
    challenge = {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="notes:write"'}
    server = RawHttp(era=era)
    async with web("H4", "403 insufficient_scope", server) as bay:
        forms = {
            "a scope": Form(
                Step(kind="status", status=403, headers=challenge), Outcome.NOT_EXECUTED, "403.*wants a login with the scope notes:write"
            ),
            "no word": Form(Step(kind="status", status=403), Outcome.NOT_EXECUTED, "403, access was denied"),
        }
        await suffer(bay, server, forms)
        assert bay.states() == ["connecting", "ready"]


async def test_h5_an_ended_session_is_replaced_once_and_only_what_is_safe_is_sent_again() -> None:
    """H5: 404 on a session: one new session for all callers; what only reads (of a trusted server) goes through, the rest is told."""
    server = RawHttp()
    async with web("H5", "404: the session has ended", server, allowance=CROWD, trusted=True) as bay:
        await bay.well("note")
        server.valid.clear()
        for result in await many(bay, 20, "echo"):
            assert not result.is_error, result.text
        assert server.sessions == 2
        server.valid.clear()
        before = calls(server)
        result = await bay.call("note")
        bay.told(result, Outcome.UNKNOWN, "ended the session")
        assert calls(server) == before, "the session was refused before the call was looked at"
        await bay.reaches("ready")
        await bay.well("note")
        assert server.sessions == 3


async def test_h5_a_server_that_ends_every_session_is_not_asked_for_ever() -> None:
    """H5: one new session and one more attempt for what is safe, none for the rest."""
    server = RawHttp()
    async with web("H5", "404 again and again", server, trusted=True) as bay:
        gone = Step(kind="status", status=404)
        for tool, times in (("echo", 2), ("note", 1)):
            server.steps[tool] = [gone]
            before = calls(server)
            result = await bay.call(tool)
            bay.told(result, Outcome.UNKNOWN, "ended the session")
            assert calls(server) - before == times
            await bay.reaches("ready")
        server.steps.clear()
        await bay.well("note")


async def test_h5_a_404_without_a_session_is_a_refusal() -> None:
    """H5: 2026-07-28 has no sessions: not executed, nothing is begun anew."""
    server = RawHttp(era="modern")
    async with web("H5", "404 without a session", server) as bay:
        await suffer(bay, server, {"404": Form(Step(kind="status", status=404), Outcome.NOT_EXECUTED, "HTTP 404")})
        assert bay.states() == ["connecting", "ready"]


def later(status: int, wait: str, **more: Any) -> Step:
    return Step(kind="status", status=status, headers={"Retry-After": wait}, **more)


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@ERAS
async def test_h6_patience_is_given_within_the_deadline_and_never_for_long(era: Era) -> None:
    """H6: seconds and dates are waited for; ten years, more than a minute and garbage are told at once, with the time."""
    server = RawHttp(era=era)
    forms = {
        "ten years": Form(later(429, "315360000"), Outcome.NOT_EXECUTED, r"HTTP 429.*wait 3650 days"),
        "a date in ten years": Form(later(429, in_seconds(315360000)), Outcome.NOT_EXECUTED, r"HTTP 429.*wait 3\d\d\d days"),
        "a minute and a half": Form(later(429, "90"), Outcome.NOT_EXECUTED, r"HTTP 429.*wait 90 s"),
        "garbage": Form(later(429, "soon, I hope"), Outcome.NOT_EXECUTED, r"HTTP 429"),
        "a negative number": Form(later(429, "-5"), Outcome.NOT_EXECUTED, r"HTTP 429"),
        "no header": Form(Step(kind="status", status=429), Outcome.NOT_EXECUTED, r"HTTP 429"),
        "503": Form(later(503, "1", effect=True), Outcome.UNKNOWN, r"HTTP 503.*wait 1 s"),
        "503 in ten years": Form(later(503, "315360000", effect=True), Outcome.UNKNOWN, r"HTTP 503.*wait 3650 days"),
    }
    async with web("H6", f"Retry-After: {', '.join(forms)}", server, trusted=True, toolTimeout=120) as bay:
        await suffer(bay, server, forms)
        for tool, status, wait in (("note", 429, lambda: "1"), ("note", 429, lambda: in_seconds(2)), ("echo", 503, lambda: "1")):
            server.steps[tool] = [later(status, wait()), Step(effect=True)]
            before = server.effects[tool], calls(server)
            result, took = await timed(lambda tool=tool: bay.call(tool, {"text": "later"}))
            assert (result.is_error, result.text) == (False, "later"), result.text
            assert (server.effects[tool], calls(server)) == (before[0] + 1, before[1] + 2)
            assert 0.5 < took < 2.0 + AT_ONCE
        assert bay.states() == ["connecting", "ready"]


# -- what is listened to, and the end -----------------------------------------------------------------------------------


async def test_a_stream_to_listen_on_is_asked_for_again_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """H9: two 500s for the GET stream (protocol.md 5.3), a reset, one that ends at once: changes are heard of in the end."""
    monkeypatch.setattr(streamable, "FIRST_DELAY", 0.1)
    server = RawHttp()
    server.capabilities = {"tools": {"listChanged": True}}
    no, ends = Step(kind="status", status=500), Step(kind="raw", headers={"Content-Type": "text/event-stream"})
    server.steps["GET"] = [no, no, Step(kind="reset"), ends, Step()]
    async with web("H9", "the GET stream: 500 twice, reset, ends at once", server) as bay:
        server.steps["missed"] = [Step(effect=True)]
        await eventually(lambda: server.listeners, "somebody who listens")
        assert server.methods["GET"] == 5
        await eventually(lambda: "mcp_faulty_missed" in bay.app.registry.tools, "the tool that came while nobody could listen")
        server.steps["later"] = [Step(effect=True)]
        server.announce()
        await eventually(lambda: "mcp_faulty_later" in bay.app.registry.tools, "the tool that was announced")
        await bay.well("later")
        assert bay.states() == ["connecting", "ready"]


async def test_a_goodbye_that_is_never_answered_does_not_hold_up_the_close() -> None:
    """H10: DELETE is told and left (protocol.md 5.3); the case checks the time of the close."""
    server = RawHttp()
    server.steps["DELETE"] = [Step(kind="silence")]
    async with web("H10", "DELETE is never answered", server) as bay:
        await bay.well("note")
        server.steps["hang"] = [Step(kind="silence")]
    assert server.methods["DELETE"] == 1


@ERAS
async def test_a_close_in_the_middle_of_a_call_is_quick(era: Era) -> None:
    """H10: the caller goes, the App closes; the server is silent all the while."""
    server = RawHttp(era=era)
    async with web("H10", "closed during a silent call", server) as bay:
        await bay.well("note")
        server.steps["note"] = [Step(kind="silence", effect=True)]
        async with anyio.create_task_group() as group:
            group.start_soon(bay.call, "note")
            await eventually(lambda: calls(server) == 2, "the call")
            group.cancel_scope.cancel()


# -- the transport of 2024-11-05 ----------------------------------------------------------------------------------------


@asynccontextmanager
async def sse(row: str, fault: str, server: RawSse, *, allowance: Allowance | None = None, **entry: Any) -> AsyncGenerator[Bay]:
    """A case whose faulty server is this one."""
    async with server.running():
        told = {"type": "sse", "url": server.url + "/sse", "ssrfWhitelist": LOOPBACK, "toolTimeout": PATIENCE, **entry}
        async with case(row, f"{fault} (HTTP+SSE)", told, allowance=allowance or Allowance()) as bay:
            bay.counted = lambda _: server.effects
            yield bay


async def test_h15_messages_go_to_no_other_origin() -> None:
    """H15: the endpoint event names another origin: refused, and it sees nothing."""
    elsewhere, server = RawSse(), RawSse()
    async with elsewhere.running():
        server.endpoint = elsewhere.url + "/messages"
        async with sse("H15", "endpoint at another origin", server) as bay:
            assert bay.state() == "failed"
            assert "another origin" in bay.error()
            await bay.call("note")
            assert (server.posts, elsewhere.posts, elsewhere.opened) == ([], [], 0)


async def test_h7_a_post_of_the_old_transport_that_is_refused_is_an_error_at_once() -> None:
    """H7: POST 500, 502 and 404 cost their call, without a wait; the stream lives on."""
    server = RawSse()
    async with sse("H7", "POST 500, 429, 403", server) as bay:
        for status, outcome in ((500, Outcome.UNKNOWN), (502, Outcome.UNKNOWN), (429, Outcome.NOT_EXECUTED), (403, Outcome.NOT_EXECUTED)):
            server.status["tools/call"] = status
            result, took = await timed(lambda: bay.call("note"))
            bay.told(result, outcome, f"HTTP {status}")
            assert took < AT_ONCE
            server.status.clear()
            await bay.well("note")
        assert (server.opened, bay.states()) == (1, ["connecting", "ready"])


async def test_h9_the_end_of_the_old_transports_stream_is_told_to_the_call_and_it_is_opened_again() -> None:
    """H9: what was under way is unknown at once; the next call finds a new stream."""
    server = RawSse()
    server.events["note"] = ": nothing"
    results: list[ToolResult] = []
    async with sse("H9", "the stream ends", server) as bay:

        async def ask() -> None:
            results.append(await bay.call("note"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await eventually(lambda: server.effects["note"], "the call")
                server.cut()
        bay.told(results[0], Outcome.UNKNOWN, "ended its event stream|broke")
        server.events.clear()
        await bay.well("note")
        assert server.opened == 2


async def test_h11_events_of_the_old_transport_are_read_as_browsers_read_them() -> None:
    """H11: 2 MB in one event, many lines, a BOM, what is unknown; an answer that is none costs its call."""
    server = RawSse()
    async with sse("H11", "2 MB, many lines, unknown events, no message", server) as bay:
        answer = '{"jsonrpc": "2.0",\ndata: "id": %d,\ndata: "result": {"content": [{"type": "text", "text": "well"}]}}'
        for event in (
            f"data: {answer}",
            f"event: ping\ndata: 1\n\ndata: {{oops\n\nid\nretry: x\n\ndata: {answer}",
            f"event: message\r\ndata: {answer}\r\n",
        ):
            server.events["note"] = event
            result = await bay.call("note")
            assert (result.is_error, result.text) == (False, "well"), result.text
        server.events["note"] = "data: " + answer.replace("well", "x" * 2_000_000)
        result = await bay.call("note")
        assert not result.is_error, result.text
        server.events["note"] = 'data: {"jsonrpc": "2.0", "id": %d, "result": 5}'
        result, took = await timed(lambda: bay.call("note"))
        bay.told(result, Outcome.EXECUTED, "could not be read")
        assert took < AT_ONCE
        server.events.clear()
        await bay.well("note")
        assert server.opened == 1


async def test_h10_a_silent_stream_of_the_old_transport_costs_the_deadline_of_its_call() -> None:
    """H10: comments and nothing else; the server is told to stop, and the stream lives on."""
    server = RawSse()
    server.events["note"] = ": still here"
    async with sse("H10", "silent", server, toolTimeout=1.0) as bay:
        result, took = await timed(lambda: bay.call("note"))
        bay.told(result, Outcome.UNKNOWN, "no answer")
        assert took < 1.0 + AT_ONCE
        await eventually(lambda: "notifications/cancelled" in server.methods, "the word to stop")
        server.events.clear()
        await bay.well("note")
        assert (server.opened, bay.states()) == (1, ["connecting", "ready"])


async def test_h5_a_404_for_a_post_of_the_old_transport_opens_a_new_session() -> None:
    """H5: the session is gone with its server's memory: told, not sent again, and replaced."""
    server = RawSse()
    async with sse("H5", "404 for a POST", server) as bay:
        server.status["tools/call"] = 404
        before = len(server.posts)
        bay.told(await bay.call("note"), Outcome.UNKNOWN, "ended the session")
        assert [post["method"] for post in server.posts[before:]].count("tools/call") == 1
        server.status.clear()
        await bay.reaches("ready")
        await bay.well("note")
        assert server.opened == 2


async def test_h4_a_post_of_the_old_transport_that_is_denied_is_told_to_the_whole_server() -> None:
    """H4: 401 for a hundred callers of one stream."""
    server = RawSse()
    async with sse("H4", "401 for a POST", server, allowance=CROWD) as bay:
        server.status["tools/call"] = 401
        for result in await many(bay, 20, "note"):
            bay.told(result, Outcome.NOT_EXECUTED, "401", "Authorization header")
        await bay.reaches("needs_auth")
        assert bay.states() == ["connecting", "ready", "needs_auth"]
        server.status.clear()
        await bay.start()
        await bay.reaches("ready")
        await bay.well("note")


async def test_h12_messages_of_the_old_transport_follow_no_redirect_out_of_their_origin() -> None:
    """H12: refused at once, the other origin is named and sees nothing; the stream lives on."""
    elsewhere, server = RawSse(), RawSse()
    server.endpoint, server.redirect = "/old", "/messages"
    async with elsewhere.running(), sse("H12", "a redirect of a POST", server) as bay:
        await bay.well("note")
        server.redirect = elsewhere.url + "/messages"
        result, took = await timed(lambda: bay.call("note"))
        bay.told(result, Outcome.NOT_EXECUTED, f"redirects to {elsewhere.url}, another origin")
        assert took < AT_ONCE
        server.redirect = "/messages"
        await bay.well("note")
        assert (server.opened, elsewhere.posts, elsewhere.opened) == (1, [], 0)
