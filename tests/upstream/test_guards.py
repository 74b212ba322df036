"""What nobody foresaw costs what it concerns: a listener, one reading of a list, one message; never the connection."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

import anyio
import mcp
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import Link, linked, raw
from support.processes import eventually
from toolbay._redact import Secrets
from toolbay.errors import AuthRequired, BadCall, ConnectionLost
from toolbay.events import Event, Events, ServerChanged, ServerLog
from toolbay.types import Json
from toolbay.upstream import boxes, sdk, subscription
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import Engine, Opening
from toolbay.upstream.failures import LONGEST, TOLD
from toolbay.upstream.launch import prepare
from toolbay.upstream.ledger import CANCELLED, Ledger
from toolbay.upstream.memory import MemoryServer, Report, in_memory
from toolbay.upstream.process import Child, spawn

pytestmark = pytest.mark.anyio

ENTRY = servers.stdio("in-memory")
CANARY = "canary-unforeseen"
SECRET = "sup3rs3cr3t-token-value-0123456789"


@asynccontextmanager
async def remembered(server: MemoryServer | None = None, **more: Any) -> AsyncGenerator[tuple[MemoryServer, Link]]:
    server = server or MemoryServer()
    server.add_tool("echo", lambda given: str(given.get("text", "")))
    async with linked(ENTRY, open_engine=in_memory({"s": server}), **more) as link:
        assert link.state == "ready"
        yield server, link


def fail(*_: object) -> None:
    raise RuntimeError(f"a careless listener says {CANARY}")


def said_without_secrets(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    """Whether the log has the traceback of `what`, and no secret in it."""
    said = [record.getMessage() for record in caplog.records if what in record.getMessage()]
    assert not any(record.exc_info for record in caplog.records)
    assert CANARY not in "".join(said)
    return any("Traceback" in text and "***" in text for text in said)


# -- who listens ------------------------------------------------------------------------------------------------------


async def test_what_is_done_with_a_new_listing_cannot_end_the_session(caplog: pytest.LogCaptureFixture) -> None:
    """TRA-2, OBS-2: whoever is told may fail, and is logged without secrets; the server, its calls and its next change go on."""
    with caplog.at_level(logging.ERROR):
        async with remembered(secrets=[CANARY]) as (server, link):
            link.connection.on_listing = link.connection.on_change = fail
            for number in range(2):
                server.add_tool(f"new{number}", lambda given: "x")
                server.announce()
                await eventually(lambda number=number: f"new{number}" in link.tools, "a new listing")
            assert await link.call("echo", {"text": "on"}) == "on"
            assert link.heard.states == ["connecting", "ready"]
    assert {record.levelname for record in caplog.records if record.name.startswith("toolbay")} == {"ERROR"}
    assert said_without_secrets(caplog, "s: a change of it could not be passed on\n")


async def test_a_connection_closes_whatever_its_listeners_do() -> None:
    """LIF-1: who waits for the end is told of it."""
    events, server = Events(), MemoryServer()
    connection = Connection("s", servers.config(ENTRY), events=events, open_engine=in_memory({"s": server}), safe=Secrets({CANARY}).mask)
    connection.on_change = connection.on_listing = fail
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            def broken(event: Event) -> None:
                raise BrokenPipeError

            with events.listen(broken):
                group.start_soon(connection.run)
                await connection.wait_settled()
                connection.stop()
                await connection.wait_closed()


async def test_a_session_that_ends_in_an_unforeseen_way_says_how(caplog: pytest.LogCaptureFixture) -> None:
    """LIF-2: in the error, and in the log with its traceback."""
    server, ended = MemoryServer(), anyio.Event()

    @asynccontextmanager
    async def fragile(opening: Opening) -> AsyncGenerator[Engine]:
        async with server.open(opening) as engine, anyio.create_task_group() as group:

            async def burst() -> None:
                await ended.wait()
                raise ZeroDivisionError("in the depths")

            group.start_soon(burst)
            yield engine
            group.cancel_scope.cancel()

    async with linked(ENTRY, open_engine=fragile, restart={"enabled": False}) as link:
        with caplog.at_level(logging.ERROR):
            ended.set()
            await link.reaches("failed")
        assert "an unexpected error (ZeroDivisionError: in the depths)" in str(link.connection.error)
    assert "Traceback" in caplog.text


# -- changed lists ----------------------------------------------------------------------------------------------------


class Refusing(MemoryServer):
    """A server whose lists raise what it is told to."""

    refusal: Exception | None = None

    async def answer(self, method: str, params: Json, report: Report) -> Json:
        if self.refusal is not None and method == "tools/list":
            raise self.refusal
        return await super().answer(method, params, report)


async def test_a_changed_list_that_wants_credentials_ends_the_session_in_order() -> None:
    """LIF-3, TRA-3: nobody new is let in and told why; the call that is under way gets its answer."""
    answers: list[str | Exception] = []
    gate = anyio.Event()

    async def pay(_given: Json) -> str:
        await gate.wait()
        return "paid"

    server = Refusing()
    server.add_tool("pay", pay)
    async with remembered(server) as (_, link), anyio.create_task_group() as group:

        async def ask() -> None:
            answers.append(await link.outcome("pay"))

        group.start_soon(ask)
        await eventually(lambda: server.calls, "the call")
        server.refusal = AuthRequired("it wants credentials", retriable=False)
        server.announce()
        await link.reaches("needs_auth")
        late = await link.outcome("echo")
        assert isinstance(late, AuthRequired)
        assert "wants credentials" in str(late)
        await anyio.wait_all_tasks_blocked()
        assert not answers
        gate.set()
        await eventually(lambda: answers, "the answer")
        assert answers == ["paid"]
        server.refusal = None
        link.connection.start()
        assert await link.call("echo", {"text": "back"}) == "back"
        assert link.heard.states == ["connecting", "ready", "needs_auth", "connecting", "ready"]


@pytest.mark.parametrize("refusal", [RuntimeError(CANARY), ConnectionLost("cut")], ids=lambda refusal: type(refusal).__name__)
async def test_a_changed_list_that_cannot_be_read_costs_that_reading(refusal: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """LIF-3, OBS-2: the session goes on, and the next announcement is followed; what nobody foresaw is logged without secrets."""
    async with remembered(Refusing(), secrets=[CANARY]) as (server, link):
        assert isinstance(server, Refusing)
        server.refusal = refusal
        with caplog.at_level(logging.WARNING):
            server.announce()
            await eventually(lambda: "could not be read" in caplog.text, "a note in the log")
        assert said_without_secrets(caplog, "s: its changed lists could not be read") is isinstance(refusal, RuntimeError)
        server.refusal = None
        server.add_tool("late", lambda given: "x")
        server.announce()
        await eventually(lambda: "late" in link.tools, "a new listing")
        assert link.heard.states == ["connecting", "ready"]


# -- what cannot be sent ----------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], Any]] = {
    "stdio": lambda: nullcontext(raw()),
    "http": lambda: servers.sdk2_serving("http"),
    "sse": lambda: servers.sdk2_serving("sse"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_arguments_that_cannot_be_written_cost_their_own_call(kind: str) -> None:
    """CAL-3, CAL-6: half of a surrogate pair is refused before it is sent, whatever else is under way."""
    with KINDS[kind]() as running:
        async with linked(running if isinstance(running, dict) else running.entry) as link, anyio.create_task_group() as group:
            answers: list[str | Exception] = []
            progressed = anyio.Event()

            async def slow() -> None:
                arguments = {"steps": 5, "seconds": 0.1}
                answers.append(await link.outcome("slow", arguments, on_progress=lambda _: progressed.set()))

            group.start_soon(slow)
            with anyio.fail_after(20):
                await progressed.wait()
            for text, words in (("half a pair \ud83d", "lone surrogate"), (float("nan"), "cannot be sent as JSON")):
                error = await link.outcome("echo", {"text": text}, patience=20)
                assert isinstance(error, BadCall), error
                assert words in str(error)
            await eventually(lambda: answers, "the answer")
            assert answers == ["5 steps"]
            assert await link.call("echo", {"text": "on"}) == "on"
            assert link.heard.states == ["connecting", "ready"]


@pytest.mark.parametrize("takes", [1_000_000, 20, 0], ids=["all at once", "a part", "nothing yet"])
async def test_a_message_that_cannot_be_written_to_a_pipe_was_not_sent(takes: int) -> None:
    """CAL-3: the writer notes it under the request, and goes on with the next message; what the pipe does not take waits in order."""
    ledger, written, dead = Ledger(), bytearray(), list[object]()

    class Pipe:
        takes_at_once = takes_input = True

        def send_now(self, data: bytes) -> int:
            written.extend(data[:takes])
            return min(takes, len(data))

        async def send(self, data: bytes) -> None:
            written.extend(data)

    outbox = boxes.Outbox(cast("Child", Pipe()), ledger, dead.append)
    bad, first, second = ledger.open(), ledger.open(), ledger.open()
    for entry, text in ((bad, "\ud83d"), (first, "whole"), (second, "too")):
        await outbox.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=entry.id, method="tools/call", params={"text": text})))
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.run)
        await eventually(lambda: written.count(b"\n") == 2, "both lines")
        group.cancel_scope.cancel()
    assert isinstance(bad.fault, BadCall)
    assert (bad.sent, first.sent, second.sent) == (False, True, True)
    assert [json.loads(line)["params"]["text"] for line in written.splitlines()] == ["whole", "too"]
    assert not dead


async def test_what_nobody_waits_for_any_more_is_not_kept_for_a_child_that_does_not_read() -> None:
    """P12, I3: calls that were given up before they were sent leave nothing behind, and what was sent meanwhile keeps its order."""
    launch = prepare(servers.config(servers.stdio(sys.executable, "-IS", "-c", "import time; time.sleep(3600)")))
    ledger, dead = Ledger(), list[object]()
    async with spawn(launch) as child, anyio.create_task_group() as group:
        outbox = boxes.Outbox(child, ledger, dead.append)
        group.start_soon(outbox.run)
        entries = [ledger.open() for _ in range(60)]
        for entry in entries:
            params = {"text": "x" * 300_000}
            await outbox.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=entry.id, method="tools/call", params=params)))
        assert [entry.id for entry in entries if entry.sent] == [entries[0].id]
        for entry in entries[:-1]:
            ledger.close(entry)
            params = {"requestId": entry.id}
            await outbox.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=CANCELLED, params=params)))
        assert len(outbox._line) == 3, "the first, its cancellation, and the last"
        assert not dead
        group.cancel_scope.cancel()


async def test_whoever_waits_for_an_inbox_to_be_emptied_is_woken_at_its_end() -> None:
    """TRA-6: a flood of messages is dispatched in bounded portions; who puts more waits, and no longer than there is a taker."""
    inbox = boxes.Inbox()
    put = 0

    async def flood() -> None:
        nonlocal put
        with pytest.raises(anyio.BrokenResourceError):
            while True:
                put += 1
                await inbox.put(RuntimeError(str(put)))

    async with anyio.create_task_group() as group:
        group.start_soon(flood)
        await eventually(lambda: put >= boxes.INBOX, "a full inbox")
        assert put == boxes.INBOX
        assert [str(await inbox.receive()) for _ in range(boxes.INBOX)] == [str(number) for number in range(1, boxes.INBOX + 1)]
        assert str(await inbox.receive()) == str(boxes.INBOX + 1)
        await inbox.aclose()
    with pytest.raises(anyio.EndOfStream):
        while True:
            await inbox.receive()


async def test_an_inbox_has_one_taker() -> None:
    """I3: of two that wait one would never be woken, which is said at once; who has left is none."""
    inbox = boxes.Inbox()
    for _ in range(2):
        with anyio.move_on_after(0):
            await inbox.receive()
    async with anyio.create_task_group() as group:
        group.start_soon(inbox.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="one takes them"):
            await inbox.receive()
        await inbox.put(RuntimeError("the only one"))


CLOSES_ITS_INPUT = """
import json, os, sys, time
def reply(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
for line in iter(sys.stdin.readline, ""):
    message = json.loads(line)
    if message.get("method") == "initialize":
        info = {"name": "x", "version": "1"}
        reply(message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif message.get("method") == "tools/list":
        reply(message, {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]})
    elif message.get("method") == "tools/call":
        reply(message, {"content": [{"type": "text", "text": "done"}]})
        os.close(0)
        told = {"level": "info", "data": "closed"}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": told}), flush=True)
        time.sleep(3600)
"""


async def test_a_server_that_closes_its_input_and_lives_on_is_replaced() -> None:
    """LIF-2, CAL-3: noticed when it is next written to, told as such, and brought back; the call, of which nothing left, goes on."""
    async with linked(servers.stdio(sys.executable, "-IS", "-c", CLOSES_ITS_INPUT)) as link:
        assert await link.call("note") == "done"
        await eventually(lambda: any(isinstance(event, ServerLog) for event in link.heard.events), "the end of its input")
        assert await link.call("note") == "done"
        assert link.heard.states[:5] == ["connecting", "ready", "waiting", "connecting", "ready"]
        told = [event.error for event in link.heard.events if isinstance(event, ServerChanged) and event.state == "waiting"]
        assert "it closed its input" in told[0]


# -- one refused connection -------------------------------------------------------------------------------------------


async def test_a_refused_connection_costs_no_call_on_another_one() -> None:
    """CAL-3, CAL-4: a call that could not be sent says so; those that the server is busy with get their answers."""
    answers: list[str | Exception] = []
    async with RawHttp() as server, linked(server.entry) as link:
        server.steps["slow"] = [Step(wait=True, effect=True)]
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await link.outcome("slow", {"text": "through"}))

            group.start_soon(ask)
            await eventually(lambda: server.effects["slow"] == 1, "the call")
            assert server._server is not None
            server._server.close()  # what is connected stays so
            error = await link.outcome("note")
            assert isinstance(error, ConnectionLost)
            assert not error.sent
            assert "refused the connection" in str(error)
            assert link.state == "ready"
            server.gate.set()
        assert answers == ["through"]
        assert server.effects["note"] == 0


async def test_a_refused_connection_with_nothing_under_way_is_the_end_of_the_session() -> None:
    """LIF-2: a server that is really gone is noticed, and brought back."""
    async with RawHttp() as server, linked(server.entry, restart={"first_delay": 3600, "max_delay": 3600}) as link:
        await server.stop()
        assert isinstance(await link.outcome("note", patience=0.5), Exception)
        await link.reaches("waiting")
        await server.start()
        link.connection.start()
        assert await link.call("note", {"text": "back"}) == "back"
        assert server.effects["note"] == 1


# -- secrets and limits -----------------------------------------------------------------------------------------------

CUTS: list[Step] = [
    Step(error={"code": -1, "message": "x" * 470 + " " + SECRET}),
    Step(kind="status", status=400, body=b"x" * 180 + b" " + SECRET.encode()),
    Step(kind="status", status=403, body=b"x" * 180 + b" " + SECRET.encode()),
]


@pytest.mark.parametrize("step", CUTS, ids=lambda step: f"{step.kind}-{step.status}")
async def test_a_secret_is_masked_before_an_error_is_cut(step: Step) -> None:
    """CAL-6, OBS-2: no part of it is left at the edge of what is shown."""
    async with RawHttp() as server, linked(server.entry, secrets=[SECRET], retry="never") as link:
        server.steps["note"] = [step]
        text = str(await link.outcome("note"))
        assert "xxx" in text
        assert SECRET[:8] not in text


async def test_a_secret_is_masked_before_a_log_message_is_cut() -> None:
    """CAL-8, OBS-2: also where its end falls into what is left out."""
    async with remembered(secrets=[SECRET]) as (server, link):
        for size in (1_280, 1_300, 1_310, 1_320, 1_330):
            server.announce("notifications/message", {"level": "info", "data": "x" * size + SECRET + "y" * 2_000})
        logged = [event.text for event in link.heard.events if isinstance(event, ServerLog)]
        assert len(logged) == 5
        assert not [text for text in logged if "sup3r" in text or "56789" in text]


async def test_a_secret_on_stderr_is_masked_before_it_is_cut() -> None:
    """TRA-8, OBS-2: the last words of a server that failed."""
    for size in range(TOLD - len(SECRET) - 5, TOLD + 5, 5):
        noise = "x" * size + SECRET + "y" * 400
        async with linked(raw("--hang", "initialize", "--stderr", noise), startup_timeout=1, secrets=[SECRET]) as link:
            text = str(link.connection.error)
            assert "it wrote to stderr" in text
            assert SECRET[:6] not in text
            assert SECRET[-6:] not in text
            assert len(text) <= LONGEST


async def test_the_hosts_own_loggers_are_left_alone() -> None:
    """OBS-1: of the loggers `client` and `mcp`, only what the SDK itself writes is dropped."""
    assert sdk.__name__ in sys.modules
    for name in ("mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher"):
        logger = logging.getLogger(name)
        assert logger.level == logging.NOTSET

        def record(path: str, level: int = logging.ERROR, name: str = name) -> logging.LogRecord:
            return logging.LogRecord(name, level, path, 1, "a message was dropped", None, None)

        assert not logger.filter(record(f"{mcp.__path__[0]}/client/streamable_http.py"))
        assert logger.filter(record("/home/somebody/client/billing.py"))
    assert logging.getLogger("client").level == logging.getLogger("mcp").level == logging.NOTSET


async def test_a_subscription_that_lived_long_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-3: each one that ended well resets the wait for the next."""
    monkeypatch.setattr(subscription, "DELAYS", (0.0, 3600.0))
    monkeypatch.setattr(subscription, "STABLE", 0.0)
    async with RawHttp(era="modern") as server:
        server.capabilities = {"tools": {"listChanged": True}}
        server.steps["subscriptions/listen"] = [Step(error={"code": -32000, "message": "over"})]
        async with linked(server.entry):
            await eventually(lambda: len([post for post in server.posts if post["method"] == "subscriptions/listen"]) > 3, "four of them")
