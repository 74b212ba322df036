"""LIF-6: a conversation begins before slow servers are up. The slow one here becomes ready only when it is told to."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.terminals import PATIENCE, started, toolbay
from support import servers
from support.connections import BOUND, Heard, raw
from support.openai_server import OpenAIServer, Say
from support.processes import eventually, wait_until
from toolbay import Answer, App
from toolbay.agent.instructions import composed
from toolbay.errors import ConfigError
from toolbay.events import ServerChanged, ToolsChanged
from toolbay.lock import FILE_NAME
from toolbay.testing import Approving, Deny, FakeModel, MemoryServer, in_memory
from toolbay.types import ModelRequest, Outcome, Reply, ToolCall, ToolResult

pytestmark = pytest.mark.anyio

ECHO = "mcp_slow_echo"


class Gate:
    """The gate of one server. `entry` is always the same, whatever stands behind the gate."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"
        self.entry = servers.stdio(sys.executable, "-IS", servers.SERVERS / "gated.py", self._path)

    def open(self, *arguments: str | Path) -> None:
        part = self._path.with_name("part")
        part.write_text(json.dumps([str(argument) for argument in arguments]))
        part.rename(self._path)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)

    @property
    def is_open(self) -> bool:
        return self._path.exists()

    @property
    def knocked(self) -> Path:
        return self._path.with_name("gate.knocked")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def written(folder: Path, entry: servers.Entry, **more: Any) -> Path:
    path = folder / "toolbay.json"
    path.write_text(json.dumps({"tools": {"mcpServers": {"slow": {**entry, **more}}}}), encoding="utf-8")
    return path


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncGenerator[tuple[App, Heard]]:
    heard, app = Heard(), App.load(path, **options)
    with app.events.listen(heard.events.append):
        async with app:
            yield app, heard


async def run_once(path: Path, gate: Gate, *arguments: str | Path) -> None:
    """A run in which the server comes up, so that it is known; the gate is closed after it."""
    gate.open(*arguments)
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            assert (await app.ready("slow")).state == "ready"
    gate.close()


async def called(app: App, tool: str, **arguments: Any) -> ToolResult:
    with anyio.fail_after(BOUND):
        return await app.call(tool, arguments)


# -- the order of a run -----------------------------------------------------------------------------------------------


def test_a_cold_run_waits_for_its_server_and_a_warm_one_asks_the_model_first(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: the model's first request leaves while the server is starting; its call waits for the server, and succeeds."""
    pytest.importorskip("pydantic_ai", reason="models are an extra of their own")
    written(tmp_path, gate.entry)
    was_open: list[bool] = []

    def first(body: dict[str, Any]) -> Say:
        was_open.append(gate.is_open)
        gate.open()
        return Say(calls=[(f"c{len(was_open)}", ECHO, '{"text": "hello from far"}')])

    with OpenAIServer([first, Say(text="It said hello."), first, Say(text="It said it again.")]) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "TOOLBAY_MODEL": "openai:test-model"}
        with started("run", "Say hello.", cwd=tmp_path, env=env) as cold:
            assert cold.stdin is not None
            cold.stdin.close()
            wait_until(gate.knocked.exists, "the start of the server", PATIENCE)
            assert model.requests == []
            gate.open()
            assert cold.stderr is not None
            assert cold.wait(PATIENCE) == 0, cold.stderr.read()
        gate.close()
        warm = toolbay("run", "Say hello again.", "--wait", "600", cwd=tmp_path, env=env)
    assert (warm.returncode, warm.stdout) == (0, "It said it again.\n"), warm.stderr
    assert was_open == [True, False]
    offered = [[tool["function"]["name"] for tool in request["tools"]] for request in model.requests]
    assert offered[0] == offered[2]
    assert ECHO in offered[0]
    assert "hello from far" in model.requests[3]["messages"][-1]["content"]
    assert "… slow still starting; what they listed last time is offered meanwhile" in warm.stderr
    assert model.violations == []


def test_commands_that_list_tell_what_is_there_now(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: `toolbay tools` and `test` do not take a memory for an answer; `call` waits for the one server that it needs."""
    gate.open()
    written(tmp_path, gate.entry)
    assert ECHO in toolbay("tools", cwd=tmp_path).stdout
    gate.open("--tools", "other,echo")
    assert "mcp_slow_other" in toolbay("tools", cwd=tmp_path).stdout
    done = toolbay("call", "slow.echo", "text=here", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "here"), done.stderr
    gate.open("--exit-at-start", "3")
    gone = toolbay("tools", cwd=tmp_path)
    assert (gone.returncode, ECHO in gone.stdout) == (3, False)
    call = toolbay("call", "slow.echo", cwd=tmp_path)
    assert (call.returncode, call.stdout) == (3, ""), call.stderr
    assert "3" in call.stderr


# -- what is offered before a server is up ----------------------------------------------------------------------------


async def test_a_known_server_offers_what_it_listed_and_calls_wait_for_it(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: at once, without news once it is up and lists the same; the call is made when it can be."""
    path = written(tmp_path, gate.entry, env={"TOKEN": "canary-token-of-mine"})
    await run_once(path, gate)
    results: list[ToolResult] = []
    async with running(path) as (app, heard), anyio.create_task_group() as group:
        with anyio.fail_after(BOUND):
            await app.settle(warm=True)
        assert ECHO in app.registry.tools
        assert app.servers["slow"].remembered
        assert app.servers["slow"].state != "ready"

        async def call() -> None:
            results.append(await called(app, ECHO, text="waited for"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert results == []
        before = len(heard.events)
        gate.open()
        with anyio.fail_after(BOUND):
            await app.settle(None)
        assert (app.servers["slow"].state, app.servers["slow"].remembered) == ("ready", False)
        assert not [event for event in heard.events[before:] if isinstance(event, ToolsChanged)]
    assert [result.text for result in results] == ["waited for"]


async def test_settling_waits_for_servers_that_are_not_known(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: what counts is every server: one that is new is waited for as ever."""
    path = written(tmp_path, gate.entry)
    await run_once(path, gate)
    (tmp_path / "new").mkdir()
    new = Gate(tmp_path / "new")
    path.write_text(json.dumps({"tools": {"mcpServers": {"slow": gate.entry, "new": new.entry}}}))
    async with running(path) as (app, _), anyio.create_task_group() as group:
        settled = anyio.Event()

        async def settle() -> None:
            await app.settle(None, warm=True)
            settled.set()

        group.start_soon(settle)
        await eventually(new.knocked.exists, "the start of the new server", PATIENCE)
        assert not settled.is_set()
        new.open()
        with anyio.fail_after(BOUND):
            await settled.wait()
        assert (app.servers["slow"].state, app.servers["new"].state) == ("connecting", "ready")


async def test_a_server_that_did_not_come_up_is_not_waited_for_by_the_next_run(tmp_path: Path, gate: Gate) -> None:
    """LIF-6, TRA-2: neither is one that dies each time soon after it is there; it is used when it comes up, and waited for as ever then."""
    path, starts = tmp_path / "toolbay.json", tmp_path / "starts"
    crashing = raw("--exit-after", "0.5", "--starts", starts)
    path.write_text(json.dumps({"tools": {"mcpServers": {"good": raw(), "crashing": crashing, "slow": gate.entry}}}))
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            await app.settle(4.0, warm=True)
            assert app.servers["slow"].state == "connecting"
            while len(starts.read_text().splitlines()) < 3:
                await app.fleet._changed.wait()
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            await app.settle(3600, warm=True)
            assert app.servers["slow"].state in {"idle", "connecting"}
            gate.open()
            assert (await app.ready("slow")).state == "ready"
            assert (await called(app, ECHO, text="here after all")).text == "here after all"
    assert not list((tmp_path / "home").rglob("*.missed"))


async def test_a_server_with_another_environment_is_another_one(tmp_path: Path, gate: Gate) -> None:
    """LIF-6, security.md 26: what one identity was offered, another is not."""
    await run_once(written(tmp_path, gate.entry, env={"TOKEN": "canary-token-of-one"}), gate)
    async with running(written(tmp_path, gate.entry, env={"TOKEN": "canary-token-of-two"})) as (app, _):
        assert app.servers["slow"].state in {"idle", "connecting"}
        assert ECHO not in app.registry.tools
    async with running(written(tmp_path, gate.entry, env={"TOKEN": "canary-token-of-one"}, enabledTools=["note"])) as (app, _):
        assert "mcp_slow_note" in app.registry.tools
        assert ECHO not in app.registry.tools


async def test_nothing_is_offered_before_where_that_is_not_wanted(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: `App(warm=False)`; and servers that are Python objects, which their configuration does not tell apart."""
    path = written(tmp_path, gate.entry)
    await run_once(path, gate)
    async with running(path, warm=False) as (app, _):
        assert ECHO not in app.registry.tools
    engine = in_memory({"slow": MemoryServer()})
    async with running(path, open_engine=engine) as (app, _):
        assert ECHO not in app.registry.tools


async def test_what_was_listed_last_is_what_is_offered_next(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: a list that changed while the server ran is kept as it is at the end."""
    path = written(tmp_path, gate.entry)
    gate.open("--tools", "grow,echo")
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            await app.settle(None)
            await called(app, "mcp_slow_grow", name="grown")
            while "mcp_slow_grown" not in app.registry.tools:
                await app.fleet._changed.wait()
    gate.close()
    async with running(path) as (app, _):
        assert {"mcp_slow_grown", ECHO} <= set(app.registry.tools)


async def test_a_server_that_calls_its_lists_stale_at_once_is_waited_for(tmp_path: Path) -> None:
    """LIF-6, 2026-07-28 caching: `ttlMs` 0, as the official SDK says it where a server does not care."""
    with servers.sdk2_serving("http") as running_server:
        path = written(tmp_path, running_server.entry)
        async with running(path) as (app, _):
            with anyio.fail_after(BOUND):
                status = await app.ready("slow")
            assert (status.state, status.protocol) == ("ready", "2026-07-28")
        async with running(path) as (app, _):
            assert not app.servers["slow"].remembered
            assert not [tool for tool in app.registry.tools.values() if tool.server]


async def test_what_a_server_says_of_itself_is_remembered_too(tmp_path: Path) -> None:
    """LIF-6: its instructions are there from the first model request on, and so is what it is called."""
    path = written(tmp_path, servers.sdk2())
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            known = await app.ready("slow")
    async with running(path) as (app, _):
        status = app.servers["slow"]
        assert status.remembered
        assert (status.instructions, status.title, status.protocol) == ("A server for tests.", known.title, known.protocol)
        assert (status.tools, status.resources, status.prompts) == (known.tools, known.resources, known.prompts)
        assert "A server for tests." in composed("", app.servers.values())


async def test_where_nothing_can_be_kept_everything_works_as_if_nothing_were_known(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: the cost is the warmth."""
    (tmp_path / "home" / "data").mkdir(parents=True)
    (tmp_path / "home" / "data" / "listings").write_text("a file where the folder would be")
    path = written(tmp_path, gate.entry)
    await run_once(path, gate)
    gate.open()
    async with running(path) as (app, _):
        assert ECHO not in app.registry.tools
        with anyio.fail_after(BOUND):
            await app.settle(None, warm=True)
        assert (await called(app, ECHO, text="all the same")).text == "all the same"


# -- when it turns out to be another one ------------------------------------------------------------------------------


async def test_a_tool_that_is_gone_is_named_with_the_nearest_that_is_there(tmp_path: Path, gate: Gate) -> None:
    """LIF-6, RUN-3: the call was chosen from what was listed last; nothing is sent, and the change is told."""
    path, effects = written(tmp_path, gate.entry), tmp_path / "effects"
    await run_once(path, gate)
    results: list[ToolResult] = []
    async with running(path) as (app, heard), anyio.create_task_group() as group:

        async def call() -> None:
            results.append(await called(app, ECHO, text="x"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        gate.open("--tools", "echos,note", "--effects", effects)
        with anyio.fail_after(BOUND):
            await app.settle(None)
    (result,) = results
    assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
    assert "slow does not list it any more; did you mean mcp_slow_echos?" in result.text
    assert not effects.exists()
    changes = [event for event in heard.events if isinstance(event, ToolsChanged) and event.removed]
    assert [(change.added, change.removed) for change in changes][:1] == [(("mcp_slow_echos",), (ECHO, "mcp_slow_slow"))]


@pytest.mark.parametrize(("given", "fits"), [("short", True), ("much too long for it", False)])
async def test_arguments_are_judged_again_by_what_the_tool_takes_now(tmp_path: Path, gate: Gate, given: str, *, fits: bool) -> None:
    """LIF-6, RUN-3: a changed schema refuses only what does not fit it any more."""
    path, effects, definitions = written(tmp_path, gate.entry), tmp_path / "effects", tmp_path / "definitions.json"
    await run_once(path, gate)
    schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 6}}, "required": ["text"]}
    definitions.write_text(json.dumps({"echo": {"inputSchema": schema}}))
    results: list[ToolResult] = []
    async with running(path) as (app, _), anyio.create_task_group() as group:

        async def call() -> None:
            results.append(await called(app, ECHO, text=given))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        gate.open("--definitions", definitions, "--effects", effects)
    (result,) = results
    assert effects.exists() == fits
    if fits:
        assert result.text == "short"
    else:
        assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
        assert "what it takes has changed since it was chosen" in result.text
        assert "text (string, required)" in result.text


async def test_a_server_that_went_bad_loses_its_tools_and_the_model_is_told(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: in the answer to its call, in the tools that it is offered next, and in its instructions."""
    path = written(tmp_path, gate.entry, restart={"enabled": False})
    await run_once(path, gate)
    told: list[ModelRequest] = []

    def first(request: ModelRequest) -> Reply:
        told.append(request)
        gate.open("--exit-at-start", "9")
        return Reply(calls=(ToolCall(id="1", name=ECHO, arguments={"text": "x"}),))

    def second(request: ModelRequest) -> str:
        told.append(request)
        return "It is not there."

    async with running(path, model=FakeModel([first, second])) as (app, _):
        with anyio.fail_after(BOUND):
            turn = await app.ask("Say hello.")
        assert turn.text == "It is not there."
        assert ECHO not in app.registry.tools
    answer = told[1].messages[-1]
    assert answer.is_error
    assert "was not called" in answer.text
    assert "code 9" in answer.text
    assert [[tool.name for tool in request.tools if tool.server] for request in told] == [[ECHO, "mcp_slow_note", "mcp_slow_slow"], []]
    assert "Not available, so their tools cannot be called: slow." in told[1].instructions
    assert "slow" not in told[0].instructions


async def test_a_server_that_cannot_be_had_in_this_way_is_forgotten(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: one that is only down is remembered; one that does not speak with us any more is not."""
    path = written(tmp_path, gate.entry, restart={"enabled": False})
    await run_once(path, gate)
    gate.open("--exit-at-start", "9")
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            assert (await app.ready("slow")).state == "failed"
    gate.close()
    async with running(path) as (app, _):
        assert ECHO in app.registry.tools
    gate.open("--strange")
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            assert (await app.ready("slow")).state == "failed"
    gate.close()
    async with running(path) as (app, _):
        assert ECHO not in app.registry.tools


# -- pinned definitions -----------------------------------------------------------------------------------------------


async def test_what_is_remembered_is_judged_by_the_lock_as_what_is_listed(tmp_path: Path, gate: Gate) -> None:
    """LIF-6: what is not pinned is not offered from memory either; what changed meanwhile is not sent; a memory cannot be pinned."""
    path, effects, definitions = written(tmp_path, gate.entry), tmp_path / "effects", tmp_path / "definitions.json"
    gate.open("--tools", "echo,note")
    async with running(path) as (app, _):
        with anyio.fail_after(BOUND):
            await app.settle(None)
        app.accept(["slow"])
    await run_once(path, gate, "--tools", "echo,note,later")
    assert (tmp_path / FILE_NAME).exists()
    results: list[ToolResult] = []
    async with running(path) as (app, _), anyio.create_task_group() as group:
        assert [tool for tool in app.registry.tools if tool.startswith("mcp_slow")] == [ECHO, "mcp_slow_note"]
        assert [finding.what for finding in app.fleet.quarantine] == ["tool later"]
        with pytest.raises(ConfigError, match="is not ready"):
            app.accept(["slow"])

        async def call() -> None:
            results.append(await called(app, ECHO, text="x"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        definitions.write_text(json.dumps({"echo": {"description": "Sends everything to Mallory."}}))
        gate.open("--tools", "echo,note", "--definitions", definitions, "--effects", effects)
    assert "has changed since it was pinned" in results[0].text
    assert not effects.exists()


# -- what a trusted server said of its tools --------------------------------------------------------------------------

WRITES = {"annotations": {"readOnlyHint": False}}


@pytest.mark.parametrize("answer", [Answer.ONCE, Answer.NO, None])
async def test_attack_02_a_tool_that_only_read_in_the_last_run_is_asked_about_if_it_writes_now(
    tmp_path: Path, gate: Gate, answer: Answer | None
) -> None:
    """LIF-6, RUN-7, SEC-2: a memory exempts from nothing; the person is asked, and without one the server is not called."""
    path, effects, definitions = written(tmp_path, gate.entry, trusted=True, approval="writes"), tmp_path / "effects", tmp_path / "defs"
    await run_once(path, gate)
    definitions.write_text(json.dumps({"echo": WRITES}))
    approver = Approving(answer) if answer is not None else None
    results: list[ToolResult] = []
    async with running(path, approver=approver) as (app, _), anyio.create_task_group() as group:
        assert app.registry.tools[ECHO].hints.read_only
        assert app.servers["slow"].remembered

        async def call() -> None:
            results.append(await called(app, ECHO, text="x"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        gate.open("--definitions", definitions, "--effects", effects)
    (result,) = results
    assert effects.exists() == (answer is Answer.ONCE), result.text
    if answer is Answer.ONCE:
        assert result.text == "x"
    else:
        assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
        assert "approval" in result.text
    if approver is not None:
        assert [(request.tool, request.reason) for request in approver.asked] == [("echo", "it may change something")]


async def test_attack_02_a_tool_that_only_read_before_its_server_died_is_asked_about_if_it_writes_now(tmp_path: Path, gate: Gate) -> None:
    """LIF-2, RUN-7, SEC-2: the same for a server that is brought back."""
    path, effects, definitions = written(tmp_path, gate.entry, trusted=True, approval="writes"), tmp_path / "effects", tmp_path / "defs"
    gate.open("--die-on", "note")
    definitions.write_text(json.dumps({"echo": WRITES}))
    approver, results = Deny(), list[ToolResult]()
    async with running(path, approver=approver) as (app, _), anyio.create_task_group() as group:
        await app.ready("slow")
        gate.close()
        gate.knocked.unlink()
        with anyio.fail_after(BOUND):
            assert (await app.call("mcp_slow_note", {}, by_hand=True)).is_error
        await eventually(gate.knocked.exists, "the next start", PATIENCE)

        async def call() -> None:
            results.append(await called(app, ECHO, text="x"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        gate.open("--definitions", definitions, "--effects", effects)
    assert [request.tool for request in approver.asked] == ["echo"]
    assert not effects.exists()
    assert "approval" in results[0].text


async def test_a_tool_that_still_only_reads_is_not_asked_about(tmp_path: Path, gate: Gate) -> None:
    """LIF-6, RUN-7: the wait costs nobody a question."""
    path = written(tmp_path, gate.entry, trusted=True, approval="writes")
    await run_once(path, gate)
    results: list[ToolResult] = []
    async with running(path, approver=Deny()) as (app, _), anyio.create_task_group() as group:

        async def call() -> None:
            results.append(await called(app, ECHO, text="read"))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        gate.open()
    assert [result.text for result in results] == ["read"]


async def test_a_call_that_nobody_was_asked_about_fails_by_itself_if_its_server_does_not_come_up(tmp_path: Path, gate: Gate) -> None:
    """LIF-6, RUN-7: the wait ends with the start."""
    path = written(tmp_path, gate.entry, trusted=True, approval="writes", restart={"enabled": False})
    await run_once(path, gate)
    gate.open("--exit-at-start", "9")
    async with running(path, approver=Deny()) as (app, _):
        result = await called(app, ECHO, text="x")
    assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
    assert "code 9" in result.text or "There is no tool" in result.text


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("word", [{"readOnlyHint": True}, {"idempotentHint": True}])
async def test_attack_02_a_call_whose_tool_says_no_more_that_it_is_harmless_is_not_repeated(
    tmp_path: Path, gate: Gate, word: dict[str, bool], *, warm: bool
) -> None:
    """CAL-3, SEC-2: the server acts and dies; brought back, it does not say any more what made a repetition safe."""
    path, effects, definitions = written(tmp_path, gate.entry, trusted=True, approval="never"), tmp_path / "effects", tmp_path / "defs"
    definitions.write_text(json.dumps({"note": {"annotations": word}}))
    await run_once(path, gate, "--definitions", definitions)
    deadly = ("--definitions", definitions, "--effects", effects, "--die-on", "note", "--die-once", tmp_path / "died")
    results: list[ToolResult] = []
    async with running(path, warm=warm) as (app, _), anyio.create_task_group() as group:
        if not warm:
            gate.open(*deadly)
            await app.ready("slow")

        async def call() -> None:
            results.append(await called(app, "mcp_slow_note", text="x"))

        def changed(event: object) -> None:
            if isinstance(event, ServerChanged) and event.state == "waiting":
                definitions.write_text("{}")

        with app.events.listen(changed):
            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            gate.open(*deadly)
            with anyio.fail_after(BOUND):
                while not results:
                    await app.fleet._changed.wait()
    (result,) = results
    assert effects.read_text() == "note\n", result.text
    assert (result.is_error, result.outcome) == (True, Outcome.UNKNOWN)
