"""What goes wrong on HTTP costs one call, in plain words; the connection and its other calls live on."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from support.connections import Link, linked
from support.processes import eventually
from support.servers import free_port
from toolbay.errors import AuthRequired, ConnectionLost, HandshakeFailed, Refused, ServerError

pytestmark = pytest.mark.anyio

HTML = {"Content-Type": "text/html; charset=utf-8"}
EVENTS = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}
CLEAN: dict[str, Any] = {"retry": "never"}
"""Tests of single faults see each of them once."""


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def served(era: Any = "legacy", *, sse: bool = False, **more: Any) -> AsyncGenerator[tuple[RawHttp, Link]]:
    async with RawHttp(era=era, sse=sse) as server, linked(server.entry, **more) as link:
        assert link.state == "ready", link.connection.error
        yield server, link


def plain(text: str) -> bool:
    """A sentence for people: one line, no stack trace, no dump of a validator, no page of HTML."""
    return "\n" not in text and "Traceback" not in text and "<html" not in text and "pydantic" not in text and len(text) < 400


@pytest.mark.parametrize("sse", [False, True])
async def test_a_server_of_each_era_answers_as_json_and_as_events(era: Any, sse: bool) -> None:
    """TRA-1: both eras, both shapes of an answer."""
    async with served(era, sse=sse) as (server, link):
        assert await link.call("echo", {"text": "hello"}) == "hello"
        assert link.connection.info.protocol == ("2025-11-25" if era == "legacy" else "2026-07-28")
        assert server.effects == {"echo": 1}
        first = next(post for post in server.posts if "id" in post)["method"]
        assert first == "server/discover", "over HTTP the probe goes first"


async def test_requests_of_the_later_era_carry_its_headers(era: Any) -> None:
    """TRA-1: the version in every request; method and name as well since 2026-07-28, and no session."""
    async with served(era) as (server, link):
        await link.call("echo", {"text": "x"})
        last = server.headers[-1]
    assert last["mcp-protocol-version"] == link.connection.info.protocol
    if era == "modern":
        assert (last["mcp-method"], last["mcp-name"]) == ("tools/call", "echo")
        assert "mcp-session-id" not in last
        assert server.methods["GET"] == server.methods["DELETE"] == 0
    else:
        assert last["mcp-session-id"] == "session-1"


STATUSES = [
    (Step(kind="status", status=400, body=b"bad request, says the proxy"), ServerError, r"HTTP 400: bad request, says the proxy"),
    (Step(kind="status", status=401), AuthRequired, r"HTTP 401.*headers"),
    (Step(kind="status", status=403, body=b"not for you"), AuthRequired, r"HTTP 403, access was denied \(it says: not for you\)"),
    (Step(kind="status", status=405), ServerError, r"HTTP 405"),
    (Step(kind="status", status=413), ServerError, r"HTTP 413"),
    (Step(kind="status", status=429, headers={"Retry-After": "7"}), ServerError, r"HTTP 429 \(it asks to wait 7 s\)"),
    (Step(kind="status", status=429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), ServerError, r"HTTP 429$"),
    (Step(kind="status", status=500, body=b"<html><h1>Oops</h1></html>", headers=HTML), ServerError, r"HTTP 500$"),
    (Step(kind="status", status=502), ServerError, r"HTTP 502$"),
    (Step(kind="status", status=503, headers={"Retry-After": "1"}, body=b"x" * 100_000), ServerError, r"HTTP 503"),
    (Step(kind="status", status=307, headers={"Location": "https://elsewhere.example/mcp"}), ServerError, r"elsewhere\.example"),
    (Step(kind="status", status=200), ServerError, r"unnamed content type instead of JSON"),
    (Step(kind="status", status=200, headers=JSON), ServerError, r"JSON"),
    (Step(kind="status", status=202), ServerError, r"HTTP 202"),
    (Step(kind="status", status=204), ServerError, r"204|unnamed content type"),
    (Step(kind="status", status=200, headers=HTML, body=b"<html>Sign in</html>"), ServerError, r"with text/html instead of JSON"),
    (Step(kind="status", status=200, headers=JSON, body=b"{not json"), ServerError, r"JSON"),
    (Step(kind="status", status=200, headers=JSON, body=b'["a", 1]'), ServerError, r"JSON"),
    (Step(kind="raw", headers=EVENTS, body=b"event: message\ndata: {not json\n\n"), ServerError, r"no JSON-RPC message"),
    (
        Step(kind="status", status=200, headers=JSON, body=b'{"jsonrpc": "2.0", "id": 4711, "result": {}}'),
        ServerError,
        r"to another request",
    ),
    (Step(kind="json", status=400, error={"code": -32602, "message": "no such note"}), ServerError, r"^no such note$"),
    (Step(kind="json", error={"code": 1234, "message": "theirs"}), ServerError, r"^theirs$"),
    (Step(kind="reset", effect=True), ConnectionLost, r"broke before the answer was complete"),
    (Step(kind="truncate", effect=True), ConnectionLost, r"broke before the answer was complete"),
    (Step(kind="sse_cut", effect=True), ConnectionLost, r"ended its answer before it was complete"),
]


def case(value: Any) -> str:
    return f"{value.kind}-{value.status}" if isinstance(value, Step) else ""


@pytest.mark.parametrize(("step", "kind", "words"), STATUSES, ids=case)
async def test_a_fault_costs_one_call_and_is_told_in_plain_words(step: Step, kind: type[Exception], words: str, era: Any) -> None:
    """CAL-6, CAL-4: the status or what broke, one sentence; the next call goes through on the same session."""
    async with served(era, **CLEAN) as (server, link):
        server.steps["note"] = [step, Step()]
        error = await link.outcome("note", patience=5)
        assert isinstance(error, kind), error
        assert plain(str(error)), error
        assert re.search(words, str(error)), error
        if step.status == 401:
            return  # from here on it is the server that wants credentials, and not the call
        assert await link.call("note", {"text": "on"}) == "on"
        assert link.heard.states == ["connecting", "ready"]
        assert server.sessions == (1 if era == "legacy" else 0)
        assert server.effects["note"] == int(step.effect)


async def test_the_code_of_the_servers_own_error_is_kept() -> None:
    """CAL-6: code and message reach the caller, whatever the status was."""
    async with served() as (server, link):
        server.steps["note"] = [Step(error={"code": -32000, "message": "theirs too", "data": {"x": 1}})]
        error = await link.outcome("note")
    assert isinstance(error, ServerError)
    assert (error.code, error.data) == (-32000, {"x": 1})


@pytest.mark.parametrize(
    "step", [Step(kind="reset"), Step(kind="truncate"), Step(kind="sse_cut"), Step(kind="status", status=500)], ids=case
)
async def test_other_calls_in_flight_are_not_disturbed(step: Step, era: Any) -> None:
    """CAL-4: a fault is its own call's."""
    answers: list[str | Exception] = []
    async with served(era, **CLEAN) as (server, link):
        server.steps["slow"] = [Step(wait=True, effect=True)]
        server.steps["note"] = [step]
        async with anyio.create_task_group() as group:
            for number in range(5):

                async def ask(number: int = number) -> None:
                    answers.append(await link.outcome("slow", {"text": str(number)}))

                group.start_soon(ask)
            await eventually(lambda: server.effects["slow"] == 5, "five calls under way")
            assert isinstance(await link.outcome("note"), Exception)
            server.gate.set()
        assert sorted(answers, key=str) == ["0", "1", "2", "3", "4"]


async def test_a_stream_that_was_cut_is_taken_up_again_where_the_server_can() -> None:
    """CAL-4: with an event id the answer is fetched; the call is not sent a second time."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="sse_cut", effect=True, event_id="e1", kept=True)]
        assert await link.call("note", {"text": "resumed"}) == "resumed"
        assert server.effects["note"] == 1


async def test_a_stream_that_cannot_be_taken_up_again_is_a_lost_connection_of_one_call() -> None:
    """CAL-3: sent, so not repeated."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="sse_cut", effect=True, event_id="gone"), Step()]
        error = await link.outcome("note")
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert server.effects["note"] == 1
        assert await link.call("note", {"text": "on"}) == "on"
        assert link.heard.states == ["connecting", "ready"]


@pytest.mark.parametrize(
    "step", [Step(kind="reset", effect=True), Step(kind="truncate", effect=True), Step(kind="sse_cut", effect=True)], ids=case
)
async def test_a_call_that_was_sent_is_repeated_only_where_it_is_safe(step: Step, era: Any) -> None:
    """CAL-3, CAL-4: a tool that only reads is tried once more; one that writes is not; `retry: always` says so."""
    async with served(era) as (server, link):
        for tool in ("echo", "note"):
            server.steps[tool] = [step, Step(effect=True)]
        assert await link.call("echo", {"text": "again"}, repeatable=True) == "again"
        error = await link.outcome("note")
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert server.effects == {"echo": 2, "note": 1}
    async with served(era, retry="always") as (server, link):
        server.steps["note"] = [step, Step(effect=True)]
        assert await link.call("note", {"text": "twice"}) == "twice"
        assert server.effects["note"] == 2


async def test_what_the_server_answers_is_never_repeated() -> None:
    """CAL-4: errors that the server answers are not tried again, however safe the tool."""
    async with served(retry="always") as (server, link):
        server.steps["echo"] = [Step(error={"code": -32603, "message": "no"}, effect=True), Step()]
        assert isinstance(await link.outcome("echo", repeatable=True), ServerError)
        assert server.effects["echo"] == 1


@pytest.mark.parametrize(("status", "tool", "repeatable"), [(429, "note", False), (503, "echo", True)])
async def test_a_server_that_asks_for_patience_gets_it_within_the_deadline(status: int, tool: str, repeatable: bool) -> None:
    """CAL-4: 429 and 503 honour Retry-After within the deadline; a 429 says that the call was not taken."""
    async with served() as (server, link):
        server.steps[tool] = [Step(kind="status", status=status, headers={"Retry-After": "1"}), Step(effect=True)]
        assert await link.call(tool, {"text": "later"}, repeatable=repeatable) == "later"
        assert server.effects[tool] == 1
        server.steps[tool] = [Step(kind="status", status=status, headers={"Retry-After": "3600"}), Step(effect=True)]
        error = await link.outcome(tool, patience=5, ceiling=10, repeatable=repeatable)
        assert isinstance(error, ServerError)
        assert "wait 3600 s" in str(error)
        assert server.effects[tool] == 1, "an hour is not waited, and nothing sent before its time"


async def test_a_call_that_a_failing_server_may_have_run_is_not_repeated_for_its_patience() -> None:
    """CAL-3: of a 503 nobody knows whether the call was carried out."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="status", status=503, headers={"Retry-After": "1"}, effect=True), Step(effect=True)]
        assert isinstance(await link.outcome("note"), ServerError)
        assert server.effects["note"] == 1


async def test_a_session_that_the_server_ended_is_replaced_and_the_call_not_repeated() -> None:
    """CAL-4, CAL-3: 404 on a session id reconnects first; the call that met it was refused before it ran."""
    async with served() as (server, link):
        server.valid.clear()
        error = await link.outcome("note", {"text": "x"})
        await eventually(lambda: server.sessions == 2 and link.state == "ready", "a new session")
        assert isinstance(error, ConnectionLost)
        assert server.effects["note"] == 0
        assert await link.call("note", {"text": "on"}) == "on"
        assert server.headers[-1]["mcp-session-id"] == "session-2"


async def test_a_call_that_is_safe_goes_on_in_the_new_session() -> None:
    """CAL-4, CAL-5: an ended session reconnects first, once for all callers."""
    answers: list[str] = []
    async with served() as (server, link):
        server.valid.clear()
        async with anyio.create_task_group() as group:
            for number in range(20):

                async def ask(number: int = number) -> None:
                    answers.append(await link.call("echo", {"text": str(number)}, repeatable=True))

                group.start_soon(ask)
        assert sorted(answers, key=int) == [str(number) for number in range(20)]
        assert server.sessions == 2
        assert server.effects["echo"] == 20


async def test_a_server_that_was_killed_is_told_and_comes_back(era: Any) -> None:
    """LIF-2, CAL-3: a dead address is a fact that nothing was sent; the call goes through once the server is there again."""
    async with served(era) as (server, link):
        await server.stop()
        assert isinstance(await link.outcome("note", patience=0.5), Exception)
        await link.reaches("waiting")
        assert isinstance(link.connection.error, ConnectionLost | Refused)
        assert "refused the connection" in str(link.connection.error)
        assert link.connection.listing is not None, "its tools stay while it is being brought back"
        await server.start()
        link.connection.start()
        assert await link.call("note", {"text": "back"}) == "back"
        assert server.effects["note"] == 1


async def test_a_call_that_was_not_sent_waits_for_the_server_and_goes_through() -> None:
    """CAL-3: a call that was not sent may be sent again."""
    answers: list[str | Exception] = []
    async with served() as (server, link):
        await server.stop()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await link.outcome("note", {"text": "late"}))

            group.start_soon(ask)
            await link.reaches("waiting")
            await server.start()
        assert answers == ["late"]
        assert server.effects["note"] == 1


async def test_what_is_lost_with_a_killed_server_says_that_it_was_sent(era: Any) -> None:
    """CAL-3: killed in the middle of the answer."""
    answers: list[str | Exception] = []
    async with served(era) as (server, link):
        server.steps["note"] = [Step(effect=True, wait=True), Step(effect=True)]
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await link.outcome("note"))

            group.start_soon(ask)
            await eventually(lambda: server.effects["note"] == 1, "the effect")
            await server.stop()
        assert isinstance(answers[0], ConnectionLost)
        assert answers[0].sent
        await server.start()
        assert await link.call("note", {"text": "on"}) == "on"
        assert server.effects["note"] == 2, "the lost one and the later one, and no repetition"


async def test_a_timeout_over_http_reaches_the_server_and_costs_that_call_only(era: Any) -> None:
    """CAL-1: told by a notification, or by letting go of the request's stream since 2026-07-28; the connection lives on."""
    async with served(era) as (server, link):
        server.steps["note"] = [Step(wait=True), Step()]
        error = await link.outcome("note", patience=0.3)
        assert type(error).__name__ == "CallTimeout"
        if era == "legacy":
            await eventually(lambda: server.cancelled, "notifications/cancelled")
            assert server.cancelled == [next(post["id"] for post in server.posts if post.get("method") == "tools/call")]
        server.gate.set()
        assert await link.call("note", {"text": "on"}) == "on"
        assert link.heard.states == ["connecting", "ready"]


STARTS: list[tuple[Step, type[Exception], str]] = [
    (Step(kind="status", status=401), AuthRequired, "HTTP 401"),
    (Step(kind="status", status=403), AuthRequired, "HTTP 403"),
    (Step(kind="status", status=404), HandshakeFailed, "HTTP 404.*no MCP endpoint"),
    (Step(kind="status", status=500), HandshakeFailed, "HTTP 500"),
    (Step(kind="status", status=200, headers=HTML, body=b"<html>Sign in</html>"), HandshakeFailed, "text/html instead of JSON"),
    (Step(kind="reset"), HandshakeFailed, "broke before the answer"),
]


@pytest.mark.parametrize(("step", "kind", "words"), STARTS, ids=case)
async def test_a_server_that_cannot_be_greeted_fails_in_plain_words(step: Step, kind: type[Exception], words: str) -> None:
    """TRA-3: a short, plain error."""
    async with RawHttp() as server:
        server.steps["server/discover"] = server.steps["initialize"] = [step]
        async with linked(server.entry) as link:
            assert link.state == ("needs_auth" if kind is AuthRequired else "waiting")
            assert type(link.connection.error) is kind
            assert plain(str(link.connection.error))
            assert re.search(words, str(link.connection.error)), link.connection.error


@pytest.mark.parametrize(
    ("url", "state", "words"),
    [
        ("http://127.0.0.1:{port}/mcp", "waiting", "refused the connection: is the server running there?"),
        ("http://no-such-host.invalid/mcp", "waiting", "is not known to DNS"),
        ("https://127.0.0.1:{listening}/mcp", "failed", "does not speak TLS"),
        ("ftp://127.0.0.1/mcp", "failed", "no http or https address"),
    ],
)
@pytest.mark.parametrize("kind", ["streamableHttp", "sse"])
async def test_an_address_that_cannot_be_reached_is_told_by_its_reason(url: str, state: str, words: str, kind: str) -> None:
    """TRA-3: refused, DNS, TLS: each said as such, never a stack trace."""
    async with RawHttp() as server:
        url = url.format(port=free_port(), listening=server.port)
        async with linked({"type": kind, "url": url}, name="web") as link:
            assert link.state == state
            text = str(link.connection.error)
    assert words in text
    assert text.startswith("web: ")
    assert plain(text)


async def test_a_server_that_never_answers_is_given_up_after_its_startup_timeout() -> None:
    """TRA-2, TRA-3: `startupTimeout` bounds it."""
    async with RawHttp() as server:
        server.steps["server/discover"] = [Step(kind="silence")]
        async with linked(server.entry, startup_timeout=0.5) as link:
            assert link.state == "waiting"
            assert "was not ready within 0.5 s" in str(link.connection.error)


async def test_secrets_of_the_configuration_are_in_no_error() -> None:
    """CAL-6, OBS-2: what the server says back of our headers is masked by the connection."""
    async with served(headers={"X-Key": "s3cr3t-value"}, secrets=["s3cr3t-value"], **CLEAN) as (server, link):
        server.steps["note"] = [Step(kind="status", status=400, body=b"bad key s3cr3t-value")]
        error = await link.outcome("note")
        assert "s3cr3t-value" not in link.connection.safe(str(error))
        assert server.headers[-1]["x-key"] == "s3cr3t-value"
