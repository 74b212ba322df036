"""One connected server: real servers over every transport, and the raw one that does the wrong thing."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from support import servers
from support.connections import Link, linked, raw, started
from support.processes import MARK, children, eventually, leftovers, marked
from toolbay.errors import CallTimeout, ConnectionFailed, ConnectionLost, HandshakeFailed, LaunchFailed, ServerError
from toolbay.events import ServerChanged, ServerLog
from toolbay.types import Json, Progress
from toolbay.upstream.attempts import Repeat
from toolbay.upstream.engine import MODERN_PROTOCOL, Budget

pytestmark = pytest.mark.anyio


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def journal(path: Path, method: str) -> list[Json]:
    """What came in for a method."""
    return [message for message in map(json.loads, lines(path)) if message.get("method") == method]


# -- transports and eras ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def over(source: Callable[[], servers.Entry | AbstractContextManager[servers.Running]], **more: Any) -> AsyncGenerator[Link]:
    """A connection to a server of `support.servers`, which listens for as long as the block lasts."""
    with ExitStack() as stack:
        made = source()
        entry = made if isinstance(made, dict) else stack.enter_context(made).entry
        async with linked(entry, **more) as link:
            assert link.state == "ready", link.connection.error
            yield link


LEGACY_SERVERS = {
    "everything-stdio": servers.everything_stdio,
    "everything-sse": lambda: servers.everything_serving("sse"),
    "everything-http": lambda: servers.everything_serving("http"),
    "sdk1-stdio": servers.sdk1,
    "sdk1-sse": lambda: servers.sdk1_serving("sse"),
    "sdk1-http": lambda: servers.sdk1_serving("http"),
    "sdk2-stdio": servers.sdk2,
    "sdk2-sse": lambda: servers.sdk2_serving("sse"),
}


@pytest.mark.parametrize("name", LEGACY_SERVERS)
async def test_servers_of_the_handshake_era_answer_over_every_transport(name: str) -> None:
    """TRA-1: stdio, SSE and streamable HTTP, with the `initialize` handshake."""
    async with over(LEGACY_SERVERS[name]) as link:
        info = link.connection.info
        assert "2024-11-05" <= info.protocol < MODERN_PROTOCOL
        assert info.name
        tool = "message" if "everything" in name else "text"
        assert "hi" in await link.call("echo", {tool: "hi"})
        assert "echo" in link.tools
        assert link.connection.listing is not None
        assert link.connection.listing.prompts
        assert link.connection.listing.resources or link.connection.listing.templates


@pytest.mark.parametrize("mode", ["stdio", "http"])
async def test_servers_of_the_later_era_answer(mode: str) -> None:
    """TRA-1: the stateless era of 2026-07-28: over HTTP it is found by itself, over a pipe it is asked for."""
    entry = (lambda: servers.sdk2_serving("http")) if mode == "http" else servers.sdk2
    more = {} if mode == "http" else {"protocol_version": MODERN_PROTOCOL}
    progress: list[Progress] = []
    async with over(entry, **more) as link:
        assert link.connection.info.protocol == MODERN_PROTOCOL
        assert link.connection.info.modern
        assert await link.call("echo", {"text": "hi"}) == "hi"
        assert await link.call("slow", {"steps": 3}, on_progress=progress.append) == "3 steps"
        assert [(step.progress, step.total) for step in progress] == [(1, 3), (2, 3), (3, 3)]
        assert progress[0].message == "step 1 of 3"


async def test_a_server_that_can_do_both_eras_over_http_may_be_held_to_the_earlier_one() -> None:
    """TRA-1: `protocolVersion: legacy`."""
    async with over(lambda: servers.sdk2_serving("http"), protocol_version="legacy") as link:
        assert not link.connection.info.modern
        assert await link.call("echo", {"text": "hi"}) == "hi"


async def test_a_pipe_is_greeted_with_initialize_first(tmp_path: Path) -> None:
    """TRA-1: the probe of the later era kills many older servers, so a pipe never sees it unasked."""
    seen = tmp_path / "journal"
    async with linked(raw("--journal", seen)):
        pass
    assert [json.loads(line)["method"] for line in lines(seen)][:3] == ["initialize", "notifications/initialized", "tools/list"]


async def test_a_server_of_the_earlier_era_cannot_be_held_to_the_later_one() -> None:
    """TRA-1: a refusal is told, with the server's code and words."""
    async with linked(raw(), protocol_version=MODERN_PROTOCOL) as link:
        assert link.state == "failed"
        assert isinstance(link.connection.error, HandshakeFailed)
        assert "refused the handshake: Method not found" in str(link.connection.error)


async def test_what_a_server_logs_is_an_event() -> None:
    """CAL-8: log messages are events, while the call runs."""
    seen: list[tuple[str, str]] = []
    async with linked(raw("--log", "disk \x1b[31mfull")) as link:
        events = link.heard.events

        def look(_: Progress) -> None:
            seen.extend((event.level, event.text) for event in events if isinstance(event, ServerLog))

        await link.call("slow", {"steps": 1}, on_progress=look)
    assert seen == [("warning", "disk full")], "it was there before the call's answer"


# -- starting ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_hangs_fails_after_its_startup_timeout_and_delays_nobody() -> None:
    """TRA-2: all start side by side; the good one is ready while the other still hangs."""
    slow = started(raw("--hang", "initialize", "--stderr", "waiting for a database"), name="bad", startup_timeout=3)
    async with slow as bad, linked(raw()) as good:
        assert good.state == "ready"
        assert bad.state == "connecting"
        assert await good.call("echo", {"text": "here"}) == "here"
        await bad.reaches("waiting")
        text = str(bad.connection.error)
    assert "bad was not ready within 3 s" in text
    assert "waiting for a database" in text
    assert "startupTimeout" in text


async def test_a_server_that_hangs_while_it_lists_is_not_ready() -> None:
    """TRA-2: `startupTimeout` is from start to ready, the first listing included."""
    async with linked(raw("--hang", "tools/list"), startup_timeout=1) as link:
        assert link.state == "waiting"
        assert isinstance(link.connection.error, HandshakeFailed)


async def test_lines_that_are_no_messages_are_kept_and_dropped() -> None:
    """TRA-7: counted, kept for the doctor, and nothing else."""
    async with linked(raw("--pollute", "3", "--bad-progress")) as link:
        assert link.state == "ready"
        assert await link.call("echo", {"text": "through"}) == "through"
        assert link.connection.diagnostics.stray()[:2] == ("INFO: line 0 that is no message", "INFO: line 1 that is no message")
        assert await link.call("echo", {"text": "again"}) == "again"


async def test_pollution_that_is_why_the_handshake_failed_is_said() -> None:
    """TRA-7: in plain words."""
    code = "print('Server listening on port 3000', flush=True); import sys; sys.stdin.read()"
    async with linked(servers.stdio(sys.executable, "-IS", "-c", code), startup_timeout=2) as link:
        assert link.state == "waiting"
        text = str(link.connection.error)
    assert "'Server listening on port 3000'" in text
    assert "stdout" in text
    assert "must log to stderr" in text


async def test_a_command_that_is_not_there_fails_with_the_name_of_the_server() -> None:
    """TRA-8: the command and the PATH that was searched."""
    async with linked(servers.stdio("no-such-command-anywhere"), name="notes") as link:
        assert link.state == "failed"
        assert isinstance(link.connection.error, LaunchFailed)
        text = str(link.connection.error)
    assert text.startswith("notes could not be started: its command 'no-such-command-anywhere' was not found")
    assert os.environ["PATH"] in text
    assert link.heard.states == ["connecting", "failed", "closed"]
    assert next(event for event in link.heard.events if isinstance(event, ServerChanged) and event.state == "failed").error == text


async def test_secrets_on_stderr_are_in_no_error() -> None:
    """TRA-8, OBS-2: its last lines are shown, what the configuration keeps secret is not."""
    async with linked(
        raw("--exit-at-start", "1", "--stderr", "bad token canary-tok-1234567890"), secrets=["canary-tok-1234567890"]
    ) as link:
        assert "bad token" in str(link.connection.error)
        assert "canary-tok-1234567890" not in str(link.connection.error)


async def test_a_call_to_a_server_that_failed_says_why() -> None:
    """TRA-3: at once, and for each caller anew."""
    async with linked(servers.stdio("no-such-command-anywhere")) as link:
        first, second = await link.outcome("echo"), await link.outcome("echo")
        assert isinstance(first, LaunchFailed)
        assert str(first) == str(second) == str(link.connection.error)
    assert first is not second


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_is_idempotent_and_leaves_nothing() -> None:
    """LIF-1: twice, in any order, and again when it is long closed."""
    env = marked()
    async with linked(raw(env=env)) as link:
        for _ in range(3):
            link.connection.stop()
        with anyio.fail_after(20):
            await link.connection.wait_closed()
            link.connection.stop()
            link.connection.start()
            await link.connection.wait_closed()
        assert link.heard.states == ["connecting", "ready", "closed"]
        error = await link.outcome("echo")
        assert isinstance(error, ConnectionFailed)
        assert "has been closed" in str(error)
    assert not leftovers(env[MARK])
    assert not children()


async def test_closing_ends_the_calls_that_are_under_way() -> None:
    """LIF-1: nobody waits for an answer of a server that is closed."""
    ended: list[str | Exception] = []
    async with linked(raw("--no-reply", "note")) as link, anyio.create_task_group() as group:

        async def ask() -> None:
            ended.append(await link.outcome("note"))

        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        link.connection.stop()
    assert isinstance(ended[0], ConnectionLost | ConnectionFailed)


# -- deadlines and cancellation ---------------------------------------------------------------------------------------


async def test_a_call_that_times_out_is_cancelled_on_the_server_and_a_late_answer_is_dropped(tmp_path: Path) -> None:
    """CAL-1: the server is told, the connection lives on, the late answer reaches nobody."""
    seen = tmp_path / "journal"
    async with linked(raw("--late", "note", "--journal", seen)) as link:
        error = await link.outcome("note", {"text": "late"}, patience=0.3)
        assert isinstance(error, CallTimeout)
        assert error.sent
        await eventually(lambda: journal(seen, "notifications/cancelled"), "notifications/cancelled")
        call = journal(seen, "tools/call")[0]
        assert [message["params"]["requestId"] for message in journal(seen, "notifications/cancelled")] == [call["id"]]
        # The answer of the first call is on its way now; the next ones get their own.
        assert [await link.call("echo", {"text": str(number)}) for number in range(3)] == ["0", "1", "2"]
        assert link.heard.states == ["connecting", "ready"]


async def test_progress_lets_a_call_run_past_its_timeout() -> None:
    """CAL-1: each report starts the clock anew."""
    progress: list[Progress] = []
    async with linked(raw()) as link:
        text = await link.call("slow", {"steps": 8, "seconds": 0.25}, patience=1.0, on_progress=progress.append)
        assert text == "8 steps"
        assert len(progress) == 8


async def test_progress_does_not_lead_past_the_ceiling() -> None:
    """CAL-1: up to `maxTimeout`."""
    progress: list[Progress] = []
    async with linked(raw()) as link:
        error = await link.outcome("slow", {"steps": 1000, "seconds": 0.05}, patience=1.0, ceiling=1.5, on_progress=progress.append)
        assert isinstance(error, CallTimeout)
        assert progress
        assert len(progress) < 100
        assert await link.call("echo", {"text": "on"}) == "on"


async def test_a_listener_of_progress_that_fails_costs_nobody_the_connection() -> None:
    """CAL-8: what a caller does with progress is its own affair."""

    def fail(progress: Progress) -> None:
        raise RuntimeError("a careless listener")

    async with linked(raw()) as link:
        assert await link.call("slow", {"steps": 2}, on_progress=fail) == "2 steps"
        assert await link.call("echo", {"text": "on"}) == "on"
        assert link.heard.states == ["connecting", "ready"]


async def test_cancelling_the_caller_reaches_the_server_and_propagates(tmp_path: Path) -> None:
    """CAL-2: a user's stop."""
    seen = tmp_path / "journal"
    reached_the_end = False
    async with linked(raw("--no-reply", "note", "--journal", seen)) as link:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    nonlocal reached_the_end
                    await link.outcome("note")
                    reached_the_end = True

                group.start_soon(ask)
                await eventually(lambda: journal(seen, "tools/call"), "the call")
                scope.cancel()
        assert scope.cancelled_caught
        assert not reached_the_end
        await eventually(lambda: journal(seen, "notifications/cancelled"), "notifications/cancelled")
        assert await link.call("echo", {"text": "on"}) == "on"
        assert link.heard.states == ["connecting", "ready"]


async def test_cancelling_who_waits_for_a_server_that_starts_disturbs_nobody() -> None:
    """CAL-2: the server goes on starting."""
    async with started(raw("--slow-start", "0.5")) as link:
        with anyio.move_on_after(0.05) as scope:
            await link.outcome("echo")
        assert scope.cancelled_caught
        assert await link.call("echo", {"text": "there"}) == "there"


# -- at most once -----------------------------------------------------------------------------------------------------


async def test_a_call_that_was_sent_to_a_server_that_dies_is_not_repeated(tmp_path: Path) -> None:
    """CAL-3: it may have taken effect."""
    effects = tmp_path / "effects"
    async with linked(raw("--effects", effects, "--die-on", "note", "--die-once", tmp_path / "died")) as link:
        error = await link.outcome("note")
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert "exit code 7" in str(error)
        assert await link.call("echo", {"text": "back"}) == "back"
        assert lines(effects) == ["note", "echo"]
        assert link.heard.states == ["connecting", "ready", "waiting", "connecting", "ready"]


@pytest.mark.parametrize("how", [{"repeatable": True}, {"retry": "always"}])
async def test_a_call_that_may_be_repeated_is_sent_once_more_to_the_server_that_came_back(how: dict[str, Any], tmp_path: Path) -> None:
    """CAL-3, CAL-4: read-only or idempotent, or `retry: always`: reconnects first, then once more."""
    effects = tmp_path / "effects"
    settings = {key: value for key, value in how.items() if key == "retry"}
    more = {key: value for key, value in how.items() if key != "retry"}
    async with linked(raw("--effects", effects, "--die-on", "note", "--die-once", tmp_path / "died"), **settings) as link:
        assert await link.call("note", {"text": "done"}, **more) == "done"
        assert lines(effects) == ["note", "note"]


async def test_a_call_is_repeated_once_and_no_more(tmp_path: Path) -> None:
    """CAL-4: tried once more, even where it is safe."""
    effects = tmp_path / "effects"
    async with linked(raw("--effects", effects, "--die-on", "echo")) as link:
        error = await link.outcome("echo", repeatable=True)
        assert isinstance(error, ConnectionLost)
        assert error.sent
    assert lines(effects) == ["echo", "echo"]


async def test_nothing_is_repeated_where_that_is_forbidden(tmp_path: Path) -> None:
    """CAL-3: `retry: never`."""
    effects = tmp_path / "effects"
    async with linked(raw("--effects", effects, "--die-on", "echo", "--die-once", tmp_path / "died"), retry="never") as link:
        assert isinstance(await link.outcome("echo", repeatable=True), ConnectionLost)
    assert lines(effects) == ["echo"]


async def test_a_call_that_was_not_sent_waits_for_the_restart_and_is_sent(tmp_path: Path) -> None:
    """CAL-3: found dead before anything was written: sent to the server that came back, once."""
    effects = tmp_path / "effects"
    async with linked(raw("--effects", effects)) as link:
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("waiting")
        assert await link.call("note", {"text": "sent"}) == "sent"
        assert lines(effects) == ["note"]


async def test_twenty_callers_that_find_the_server_dead_restart_it_once(tmp_path: Path) -> None:
    """CAL-5: once."""
    effects, answers = tmp_path / "effects", list[str]()
    async with linked(raw("--effects", effects)) as link:
        first = link.pid
        os.kill(first, signal.SIGKILL)
        async with anyio.create_task_group() as group:
            for number in range(20):

                async def ask(number: int = number) -> None:
                    answers.append(await link.call("echo", {"text": str(number)}, repeatable=True))

                group.start_soon(ask)
        assert sorted(answers, key=int) == [str(number) for number in range(20)]
        assert link.heard.states == ["connecting", "ready", "waiting", "connecting", "ready"]
        assert lines(effects) == ["echo"] * 20, "what was written to a dead server had no effect"
        assert link.pid != first


async def test_a_call_that_was_sent_and_then_finds_no_server_says_that_it_was_sent(tmp_path: Path) -> None:
    """CAL-3: the second attempt's failure must not hide the first one's effect."""
    program, effects = tmp_path / "server.py", tmp_path / "effects"
    program.write_bytes((servers.SERVERS / "raw_server.py").read_bytes())
    entry = servers.stdio(sys.executable, "-IS", program, "--effects", effects, "--die-on", "note")
    async with linked(entry, retry="always", restart={"max_attempts": 1}) as link:
        program.unlink()
        error = await link.outcome("note")
    assert isinstance(error, ConnectionLost)
    assert error.sent
    assert lines(effects) == ["note"]


@pytest.mark.parametrize("mode", ["sse", "http"])
async def test_a_server_behind_an_address_that_is_killed_comes_back(mode: Any) -> None:
    """LIF-2, CAL-5: over SSE the end of the stream says it at once; over HTTP the next call finds it."""
    port = servers.free_port()
    with ExitStack() as stack:
        running = stack.enter_context(servers.sdk2_serving(mode, port))
        async with linked(
            running.entry, protocol_version="legacy", restart={"first_delay": 0.05, "max_delay": 0.2, "max_attempts": 100}
        ) as link:
            assert await link.call("echo", {"text": "here"}) == "here"
            running.kill()
            if mode == "http":
                assert isinstance(await link.outcome("note", {"text": "x"}, patience=0.5), CallTimeout | ConnectionLost | ConnectionFailed)
            with anyio.fail_after(30):
                while link.heard.states[2:] == []:
                    await link.connection.standing.wait_change()
            assert link.heard.states[:3] == ["connecting", "ready", "waiting"]
            await anyio.to_thread.run_sync(stack.enter_context, servers.sdk2_serving(mode, port))
            assert await link.call("echo", {"text": "back"}) == "back"


async def test_a_server_that_was_given_up_stays_so_until_somebody_asks(tmp_path: Path) -> None:
    """LIF-2: its tools go when it is given up, a call says that nothing was sent, and it comes back with them."""
    async with linked(raw("--effects", tmp_path / "effects"), restart={"enabled": False}) as link:
        listings: list[bool] = []
        link.connection.on_listing = lambda: listings.append(link.connection.listing is not None)
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("failed")
        error = await link.outcome("note")
        assert isinstance(error, ConnectionFailed)
        assert "SIGKILL" in str(error)
        assert link.connection.listing is None
        link.connection.start()
        assert link.state == "connecting", "who asks can wait from now on"
        await link.connection.wait_settled()
        assert await link.call("note", {"text": "back"}) == "back"
        assert listings == [False, True]
    assert link.heard.states == ["connecting", "ready", "failed", "connecting", "ready", "closed"]
    assert lines(tmp_path / "effects") == ["note"]


async def test_asking_for_a_start_where_it_is_ready_changes_nothing_later() -> None:
    """LIF-2: a request that was none is not kept for later."""
    async with linked(raw(), restart={"enabled": False}) as link:
        link.connection.start()
        assert link.state == "ready"
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("failed")
        await anyio.wait_all_tasks_blocked()
        assert link.state == "failed"


# -- what the server says ---------------------------------------------------------------------------------------------


async def test_an_error_of_the_server_keeps_its_code_and_words() -> None:
    """CAL-6: also where the code is one that the SDK uses for a closed connection."""
    async with linked(raw("--error", "note=-32000", "--error", "echo=1234")) as link:
        for tool, code in (("note", -32000), ("echo", 1234)):
            error = await link.outcome(tool, repeatable=True)
            assert isinstance(error, ServerError), error
            assert error.code == code
            assert str(error) == f"{tool} is refused, as told"
        assert link.heard.states == ["connecting", "ready"]


async def test_an_error_with_its_id_as_text_is_the_servers_answer() -> None:
    """CAL-6, P11: other clients take "7" for 7, so servers do it; an error so answered is no lost connection."""
    async with linked(raw("--string-ids", "--error", "note=1234")) as link:
        assert await link.call("echo", {"text": "here"}) == "here"
        error = await link.outcome("note")
        assert isinstance(error, ServerError), error
        assert error.code == 1234


async def test_failures_of_resources_and_prompts_are_failures() -> None:
    """CAL-7: an unknown resource and a prompt without its arguments raise."""
    async with over(servers.sdk2) as link:
        budget = Budget(timeout=20, ceiling=20)
        with pytest.raises(ServerError):
            await link.connection.request("resources/read", {"uri": "notes://nothing"}, budget=budget, repeat=Repeat.ALL)
        with pytest.raises(ServerError):
            await link.connection.request("prompts/get", {"name": "review", "arguments": {}}, budget=budget, repeat=Repeat.ALL)
        assert await link.call("echo", {"text": "on"}) == "on"


async def test_one_owner_task_enters_and_leaves_every_engine() -> None:
    """LIF-1: the task that opened a session closes it, also after a restart and with fifty callers."""
    tasks: list[tuple[str, int]] = []
    from toolbay.upstream.engines import official

    @asynccontextmanager
    async def noted(opening: Any) -> AsyncGenerator[Any]:
        tasks.append(("in", anyio.get_current_task().id))
        try:
            async with official(opening) as engine:
                yield engine
        finally:
            tasks.append(("out", anyio.get_current_task().id))

    async with linked(raw(), open_engine=noted) as link:
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(link.call, "echo", {"text": str(number)})
        os.kill(link.pid, signal.SIGKILL)
        assert await link.call("echo", {"text": "x"}, repeatable=True) == "x"
    assert [step for step, _ in tasks] == ["in", "out", "in", "out"]
    assert len({task for _, task in tasks}) == 1


async def test_servers_side_by_side_do_not_disturb_each_other() -> None:
    """TRA-2: one dies, one fails, the others answer."""
    async with AsyncExitStack() as stack:
        good = [await stack.enter_async_context(started(raw(), name=f"good{number}")) for number in range(3)]
        bad = await stack.enter_async_context(started(raw("--exit-at-start", "1"), name="bad"))
        dies = await stack.enter_async_context(started(raw("--die-on", "note"), name="dies"))
        assert isinstance(await dies.outcome("note"), ConnectionLost)
        await bad.reaches("waiting")
        assert [await link.call("echo", {"text": "on"}) for link in good] == ["on"] * 3
        assert all(link.heard.states == ["connecting", "ready"] for link in good)
