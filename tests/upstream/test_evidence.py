"""What each piece of evidence says of a call, over every transport: its outcome, and whether it is sent again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpcore2
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCNotification

from servers.raw_http import RawHttp, Step
from servers.raw_sse import RawSse
from support.connections import Link, linked, raw
from toolbay.errors import Busy, CallError, ConnectionLost, ServerError, ToolbayError
from toolbay.net.dial import NothingTaken
from toolbay.types import Json, Outcome, outcome_of
from toolbay.upstream.faults import WORKS_FOR, Faults
from toolbay.upstream.ledger import CANCELLED, Entry, Ledger
from toolbay.upstream.statuses import REFUSED, REJECTED, in_words, retry_after

pytestmark = pytest.mark.anyio

WAYS: list[dict[str, Any]] = [{"era": era, "sse": sse} for era in ("legacy", "modern") for sse in (False, True)]
SAFE: dict[str, Any] = {"repeatable": True}


@pytest.fixture(params=WAYS, ids=lambda way: f"{way['era']}-{'events' if way['sse'] else 'json'}")
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@asynccontextmanager
async def served(way: dict[str, Any] | None = None, **more: Any) -> AsyncGenerator[tuple[RawHttp, Link]]:
    async with RawHttp(**(way or {})) as server, linked(server.entry, **more) as link:
        assert link.state == "ready", link.connection.error
        yield server, link


def calls(server: RawHttp | RawSse) -> int:
    return len([post for post in server.posts if post.get("method") == "tools/call"])


async def failed(link: Link, tool: str = "note", **more: Any) -> tuple[Outcome, ToolbayError]:
    error = await link.outcome(tool, **more)
    assert isinstance(error, ToolbayError), error
    return outcome_of(error), error


# -- refused before it was carried out --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 403, 405, 406, 413, 415, 429])
async def test_a_status_that_refuses_says_that_nothing_was_carried_out(status: int, way: dict[str, Any]) -> None:
    """CAL-3, CAL-4: by the status' definition; it is not sent again, however safe the tool."""
    async with served(way) as (server, link):
        server.steps["note"] = [Step(kind="status", status=status)]
        outcome, error = await failed(link, **SAFE)
        assert (outcome, calls(server)) == (Outcome.NOT_EXECUTED, 1)
        assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize("code", sorted(REJECTED - {-32020}))
async def test_a_code_that_refuses_says_that_nothing_was_carried_out(code: int, way: dict[str, Any]) -> None:
    """CAL-3, CAL-6: -32700, -32600 to -32602 and -32020 to -32022, by the protocol's word."""
    async with served(way) as (server, link):
        server.steps["note"] = [Step(error={"code": code, "message": "no"})]
        outcome, error = await failed(link, **SAFE)
        assert (outcome, calls(server), getattr(error, "code", 0)) == (Outcome.NOT_EXECUTED, 1, code)
        server.steps["note"] = [Step(error={"code": -32603, "message": "it broke"})]
        assert (await failed(link, **SAFE))[0] is Outcome.EXECUTED, "the server's own failure: it was at work on it"


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (400, -32000, Outcome.NOT_EXECUTED),
        (429, -32000, Outcome.NOT_EXECUTED),
        (500, -32603, Outcome.EXECUTED),
        (500, -32602, Outcome.NOT_EXECUTED),
    ],
)
async def test_an_error_in_the_protocols_form_is_judged_by_its_status_too(
    status: int, code: int, outcome: Outcome, way: dict[str, Any]
) -> None:
    """CAL-3, CAL-6: servers put a JSON-RPC error of any code into the body of a refusal; code and words are kept."""
    async with served(way) as (server, link):
        server.steps["note"] = [Step(kind="json", status=status, error={"code": code, "message": "too much of it", "data": {"a": 1}})]
        said, error = await failed(link)
        assert isinstance(error, ServerError)
        assert (said, error.code, error.data, calls(server)) == (outcome, code, {"a": 1}, 1)
        assert str(error) == "too much of it"


async def test_an_error_that_names_no_request_keeps_its_status() -> None:
    """CAL-6, CAL-3: `id: null` is how many servers refuse; what a gateway says of a failing server tells nothing of the call."""
    async with served() as (server, link):
        body = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "upstream is away"}}'
        server.steps["note"] = [Step(kind="status", status=502, headers={"Content-Type": "application/json"}, body=body)]
        outcome, error = await failed(link)
        assert outcome is Outcome.UNKNOWN
        assert "HTTP 502: upstream is away" in str(error)


@pytest.mark.parametrize(("status", "outcome"), [(400, Outcome.NOT_EXECUTED), (413, Outcome.NOT_EXECUTED), (500, Outcome.UNKNOWN)])
async def test_the_earlier_transport_says_the_same_of_its_posts(status: int, outcome: Outcome) -> None:
    """CAL-3: HTTP+SSE, where the answer would have come on another stream."""
    async with RawSse().running() as server:
        entry = {"type": "sse", "url": f"{server.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}
        async with linked(entry) as link:
            server.status["tools/call"] = status
            said, error = await failed(link, **SAFE)
            assert (said, calls(server)) == (outcome, 1)
            assert f"HTTP {status}" in str(error)
            server.status["tools/call"] = 421
            assert (await failed(link))[0] is Outcome.NOT_EXECUTED
            assert calls(server) == 3, "what was not processed was sent once more"


async def test_the_earlier_transport_begins_anew_where_its_session_is_gone() -> None:
    """CAL-3, CAL-4: 404 on the address that the server named for this session: a new one, and again only what is safe."""
    async with RawSse().running() as server:
        entry = {"type": "sse", "url": f"{server.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}
        async with linked(entry, restart={"first_delay": 0.01}) as link:
            server.status["tools/call"] = 404
            outcome, error = await failed(link)
            assert (outcome, calls(server)) == (Outcome.UNKNOWN, 1)
            assert "has ended the session" in str(error)
            del server.status["tools/call"]
            assert await link.call("note", {"text": "on"}) == "on"
            assert server.opened == 2


async def test_a_redirect_that_is_not_followed_says_by_its_status_what_was_done_before() -> None:
    """CAL-3, SEC-10: 307 and 308 send the call on as it is; of others, such as 303, nobody knows."""
    async with RawSse().running() as server:
        entry = {"type": "sse", "url": f"{server.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}
        server.endpoint = "/old"
        server.redirect = "/messages"
        async with linked(entry) as link:
            assert link.state == "ready", link.connection.error
            server.redirect = "https://elsewhere.example/messages"
            outcome, error = await failed(link)
            assert outcome is Outcome.NOT_EXECUTED
            assert "elsewhere.example" in str(error)
    async with served() as (web, link):
        web.steps["note"] = [Step(kind="status", status=303, headers={"Location": "https://elsewhere.example/mcp"}, effect=True)]
        assert (await failed(link))[0] is Outcome.UNKNOWN


# -- not processed, and asked for later -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [421, 425])
async def test_what_was_not_processed_is_sent_once_more_at_once(status: int, way: dict[str, Any]) -> None:
    """CAL-3: misdirected, or too early; twice is enough. `retry: never` means it."""
    async with served(way) as (server, link):
        server.steps["note"] = [Step(kind="status", status=status), Step(effect=True)]
        assert await link.call("note", {"text": "again"}) == "again"
        assert (server.effects["note"], calls(server)) == (1, 2)
        server.steps["note"] = [Step(kind="status", status=status)]
        assert (await failed(link))[0] is Outcome.NOT_EXECUTED
        assert calls(server) == 4
    async with served(way, retry="never") as (server, link):
        server.steps["note"] = [Step(kind="status", status=status), Step(effect=True)]
        assert (await failed(link))[0] is Outcome.NOT_EXECUTED
        assert calls(server) == 1


def dated(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_server_that_is_busy_is_asked_again_when_it_says(form: str, way: dict[str, Any]) -> None:
    """CAL-4: Retry-After as a number and as a date, within the deadline."""
    async with served(way) as (server, link):
        given = "1" if form == "seconds" else dated(2)
        server.steps["note"] = [Step(kind="status", status=429, headers={"Retry-After": given}), Step(effect=True)]
        began = time.monotonic()
        assert await link.call("note", {"text": "later"}) == "later"
        assert time.monotonic() - began >= 0.9
        assert (server.effects["note"], calls(server)) == (1, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("61", "wait 61 s"),
        ("315360000", "wait 3650 days"),
        (dated(10 * 365 * 86_400), "wait 36"),
        ("soon", "HTTP 429"),
        ("-5", "HTTP 429"),
        ("1e9", "HTTP 429"),
        ("9" * 400, "HTTP 429"),
    ],
)
async def test_a_server_that_asks_for_too_long_or_for_nonsense_is_told_at_once(given: str, said: str) -> None:
    """CAL-4: over 60 s, or over the deadline, the time is told and nothing waited for; what cannot be read is no time."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="status", status=429, headers={"Retry-After": given}), Step(effect=True)]
        outcome, error = await failed(link, patience=600, ceiling=600)
        assert (outcome, calls(server)) == (Outcome.NOT_EXECUTED, 1)
        assert said in str(error)


async def test_of_a_server_that_is_down_for_a_moment_nobody_knows_what_it_took() -> None:
    """CAL-3, CAL-4: 503 with Retry-After: again only what is safe, or by the user's word."""
    busy = Step(kind="status", status=503, headers={"Retry-After": "0"}, effect=True)
    async with served() as (server, link):
        server.steps["note"] = [busy, Step(effect=True)]
        assert (await failed(link))[0] is Outcome.UNKNOWN
        assert server.effects["note"] == 1
        server.steps["note"] = [busy, Step(effect=True)]
        assert await link.call("note", {"text": "safe"}, **SAFE) == "safe"
    async with served(retry={"note": "always"}) as (server, link):
        server.steps["note"] = [busy, Step(effect=True)]
        assert await link.call("note", {"text": "wanted"}) == "wanted"


@given(st.floats(min_value=0, max_value=1e9), st.sampled_from(["", "date"]))
def test_a_date_is_read_by_the_servers_own_clock(seconds: float, with_date: str) -> None:
    """CAL-4: a clock that is wrong by hours must not make an hour of a second."""
    theirs = datetime(2031, 5, 1, tzinfo=UTC) if with_date else datetime.now(UTC)
    given_at = {"date": format_datetime(theirs, usegmt=True)} if with_date else {}
    headers = httpx2.Headers({**given_at, "retry-after": format_datetime(theirs + timedelta(seconds=seconds), usegmt=True)})
    found = retry_after(headers)
    assert found is not None
    assert abs(found - seconds) <= 5
    assert in_words(found)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_no_retry_after_breaks_its_reader(text: str) -> None:
    """CAL-4: it is a number of seconds from now, or nothing."""
    found = retry_after(httpx2.Headers({"retry-after": text}))
    assert found is None or 0 <= found < float("inf")


# -- nobody knows, and what has run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 499, 500, 502, 504])
async def test_of_a_status_that_says_nothing_of_the_call_its_outcome_is_unknown(status: int, way: dict[str, Any]) -> None:
    """CAL-3: proxies answer for servers that are still at work; at once, and without a second attempt."""
    assert status not in REFUSED
    async with served(way) as (server, link):
        server.steps["note"] = [Step(kind="status", status=status, effect=True)]
        outcome, error = await failed(link, **SAFE)
        assert (outcome, calls(server)) == (Outcome.UNKNOWN, 1)
        assert f"HTTP {status}" in str(error)


JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}


@pytest.mark.parametrize(
    "step",
    [
        Step(kind="status", headers=JSON, body=b'{"jsonrpc": "2.0", "id": 3, "result": {', effect=True),
        Step(kind="status", headers=JSON, body=b"[" * 100_000, effect=True),
        Step(kind="raw", headers=EVENTS, body=b"data: {not json\n\n", effect=True),
    ],
    ids=["half", "deep", "event"],
)
async def test_an_answer_that_cannot_be_read_says_that_the_call_has_run(step: Step, way: dict[str, Any]) -> None:
    """CAL-3: it is there, so the server has done its work; never sent again."""
    async with served(way, retry="always") as (server, link):
        server.steps["note"] = [step, Step(effect=True)]
        outcome, error = await failed(link)
        assert (outcome, calls(server)) == (Outcome.EXECUTED, 1)
        assert "the call has run" in str(error)
        assert await link.call("echo", {"text": "on"}) == "on"


async def test_a_line_that_answers_a_call_and_cannot_be_read_ends_that_call_at_once() -> None:
    """CAL-3: over stdio, where its id says which call it was."""
    code = (
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    r = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'serverInfo': {'name': 'x', 'version': '1'}}\n"
        "    if 'id' in m:\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': 5 if m['method'] == 'tools/call' else r}), flush=True)\n"
    )
    entry = {**raw(), "args": ["-IS", "-c", code]}
    async with linked(entry) as link:
        began = time.monotonic()
        outcome, error = await failed(link, patience=25)
        assert outcome is Outcome.EXECUTED
        assert "could not be read" in str(error)
        assert time.monotonic() - began < 10


async def test_a_stream_that_was_taken_up_again_may_bring_an_error() -> None:
    """CAL-6: then the server's own words are told, and not that its stream was cut."""
    async with served({"era": "legacy"}) as (server, link):
        server.steps["note"] = [Step(kind="sse_cut", effect=True, event_id="e1")]
        server.resumed["e1"] = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "it broke after all"}}
        outcome, error = await failed(link)
        assert (outcome, str(error), calls(server)) == (Outcome.EXECUTED, "it broke after all", 1)


# -- what goes on under the same call -----------------------------------------------------------------------------------


async def test_headers_that_do_not_fit_are_learnt_anew_once() -> None:
    """CAL-3: -32020 says that nothing was done: the tools are read again, and the call is sent again under a new id."""
    async with served({"era": "modern"}) as (server, link):
        wrong = Step(kind="json", status=400, error={"code": -32020, "message": "Mcp-Param-Region is missing"})
        server.steps["note"] = [wrong, Step(effect=True)]
        listed = len([post for post in server.posts if post["method"] == "tools/list"])
        assert await link.call("note", {"text": "again"}) == "again"
        assert (server.effects["note"], calls(server)) == (1, 2)
        assert len([post for post in server.posts if post["method"] == "tools/list"]) == listed + 1
        ids = [post["id"] for post in server.posts if "id" in post]
        assert len(ids) == len(set(ids))
        server.steps["note"] = [wrong]
        assert (await failed(link))[0] is Outcome.NOT_EXECUTED
        assert calls(server) == 4


class Asking(RawHttp):
    """Asks for more input as often as it is told to, before it does what it is asked."""

    def __init__(self, *wishes: Json) -> None:
        super().__init__(era="modern")
        self.wishes: Iterator[Json] = iter(wishes)

    def _result(self, message_id: Any, method: str, params: Json) -> Json:
        wish = next(self.wishes, None) if method == "tools/call" else None
        if wish is None:
            return super()._result(message_id, method, params)
        return {"jsonrpc": "2.0", "id": message_id, "result": {"resultType": "input_required", **wish}}


ROOTS: Json = {"inputRequests": {"r": {"method": "roots/list"}}, "requestState": "opaque=="}


async def test_what_a_server_asks_for_meanwhile_is_given_where_it_was_offered(tmp_path: Any) -> None:
    """CAL-3: one call in several requests, each with an id of its own; the state goes back as it came."""
    server = Asking({"requestState": "first"}, ROOTS)
    async with server, linked(server.entry, roots=[str(tmp_path)]) as link:
        assert await link.call("note", {"text": "done"}) == "done"
        first, second, third = [post for post in server.posts if post["method"] == "tools/call"]
        assert len({first["id"], second["id"], third["id"]}) == 3
        assert "requestState" not in first["params"]
        assert second["params"]["requestState"] == "first"
        assert "inputResponses" not in second["params"]
        assert third["params"]["requestState"] == "opaque=="
        assert third["params"]["inputResponses"]["r"]["roots"][0]["uri"] == tmp_path.as_uri()
        assert third["params"]["arguments"] == {"text": "done"}


async def test_what_was_not_offered_is_refused_and_nothing_is_asked_without_end() -> None:
    """CAL-3: then the call has not run; of one that asks for ever nobody knows."""
    server = Asking({"inputRequests": {"e": {"method": "elicitation/create"}}})
    async with server, linked(server.entry) as link:
        outcome, error = await failed(link)
        assert isinstance(error, CallError)
        assert outcome is Outcome.NOT_EXECUTED
        assert "elicitation/create" in str(error)
    server = Asking(*[{"requestState": "s"}] * 30)
    async with server, linked(server.entry) as link:
        assert (await failed(link))[0] is Outcome.UNKNOWN
        assert calls(server) == 11


# -- what never left -----------------------------------------------------------------------------------------------------


def lowered(request: httpx2.Request) -> httpcore2.Request:
    """The request as the library's trace tells of it."""
    return httpcore2.Request(request.method, str(request.url))


def posted(entry: Entry) -> httpx2.Request:
    """A call as a transport posts it."""
    message = {"jsonrpc": "2.0", "id": entry.id, "method": "tools/call"}
    return httpx2.Request("POST", "http://127.0.0.1:1/mcp", json=message, extensions={WORKS_FOR: entry.id})


def cancellation(entry: Entry) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=CANCELLED, params={"requestId": entry.id})


class Slow(httpx2.AsyncBaseTransport):
    """Takes its time until it would write the first byte; then it answers."""

    def __init__(self) -> None:
        self.connected = anyio.Event()
        self.written: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self.connected.wait()
        await request.extensions["trace"]("http11.send_request_headers.started", {"request": lowered(request)})
        self.written.append(request.content)
        return httpx2.Response(200, request=request, json={"jsonrpc": "2.0", "id": 1, "result": {}})


async def test_a_request_whose_caller_has_left_is_not_sent_any_more() -> None:
    """CAL-1, CAL-2: he was told that it was not sent; so the cancellation is not sent either."""
    slow, ledger = Slow(), Ledger()
    faults = Faults(slow, ledger, on_dead=lambda _reason: None, wakes=False)

    async def post(entry: Entry) -> None:
        await faults.handle_async_request(posted(entry))

    one, other = ledger.open(), ledger.open()
    async with anyio.create_task_group() as group:
        for entry in (one, other):
            group.start_soon(post, entry)
        await anyio.wait_all_tasks_blocked()
        ledger.close(one)
        assert ledger.takes_back(cancellation(one))
        slow.connected.set()
    assert [b"tools/call" in content for content in slow.written] == [True], "the other's alone"
    assert other.sent
    assert not one.sent


async def test_a_first_write_that_is_refused_as_a_whole_has_sent_nothing() -> None:
    """CAL-3: a fact of the socket; what breaks after that is unknown."""

    class Refusing(httpx2.AsyncBaseTransport):
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            trace = request.extensions["trace"]
            await trace("http11.send_request_headers.started", {"request": lowered(request)})
            await trace("http11.send_request_body.failed", {"exception": self.error})
            raise httpx2.ReadError("broken")

    for error, sent in ((NothingTaken(), False), (httpcore2.WriteError(), True), (httpcore2.WriteTimeout(), True)):
        ledger = Ledger()
        entry = ledger.open()
        faults = Faults(Refusing(error), ledger, on_dead=lambda _reason: None, wakes=False)
        await faults.handle_async_request(posted(entry))
        assert isinstance(entry.fault, ConnectionLost)
        assert entry.sent is sent


async def test_busy_is_an_error_of_the_server_with_its_time() -> None:
    """CAL-4: who calls by himself finds the time as a number."""
    async with served() as (server, link):
        server.steps["note"] = [Step(kind="status", status=503, headers={"Retry-After": "3600"})]
        _, error = await failed(link)
        assert isinstance(error, Busy)
        assert (error.retry_after, error.ran) == (3600.0, None)
