"""The snapshot of tools, and calls through the registry."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from toolbay import _redact
from toolbay.errors import BadCall, CallTimeout, ConnectionLost, LaunchFailed, Refused, ServerError, ToolbayError
from toolbay.events import CallFinished, CallProgressed, CallStarted, Event, Events, ToolsChanged
from toolbay.registry import Registry, Snapshot, parameters
from toolbay.types import MAY_HAVE_RUN, CallContext, Interceptor, Invocation, Json, Next, Outcome, Progress, Tool, ToolResult

pytestmark = pytest.mark.anyio

Run = Callable[[Json, CallContext], Awaitable[ToolResult]]
ANY: Json = {"type": "object", "properties": {}}


async def echo(arguments: Json, context: CallContext) -> ToolResult:
    return ToolResult(text=json.dumps(arguments, sort_keys=True))


def make(name: str = "mcp_fs_read", schema: Json | None = None, invoke: Run = echo, **more: Any) -> Tool:
    server = more.pop("server", "fs")
    schema = ANY if schema is None else schema
    return Tool(
        name=name, description=more.pop("description", ""), input_schema=schema, parameters=schema, invoke=invoke, server=server, **more
    )


class Heard(Events):
    """A fan-out that also remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Event] = []

    @property
    def heard(self) -> bool:
        return True

    def publish(self, event: Event) -> None:
        self.seen.append(event)
        super().publish(event)


def registry_of(*tools: Tool, interceptors: tuple[Interceptor, ...] = (), mask: Callable[[str], str] = str) -> tuple[Registry, list[Event]]:
    events = Heard()
    registry = Registry(events=events, interceptors=interceptors, mask=mask)
    registry.swap(Snapshot.of(tools))
    return registry, events.seen


def raising(error: BaseException) -> Run:
    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        raise error

    return invoke


CONTEXT = CallContext(call_id="c1")


def test_a_snapshot_is_sorted_and_unchangeable() -> None:
    """RUN-1: definitions are sorted, so that what a model is sent stays the same."""
    snapshot = Snapshot.of([make("b", server="y"), make("a", server="x"), make("c", server="x")])
    assert list(snapshot.tools) == ["a", "b", "c"]
    with pytest.raises(TypeError):
        snapshot.tools["d"] = make("d")  # type: ignore[index]


@pytest.mark.parametrize("order", [1, -1])
def test_no_server_takes_the_place_of_a_built_in_tool(order: int) -> None:
    """NAM-3: no two capabilities share a name, in whatever order they come."""
    twins = [make("read_artifact", server=""), make("read_artifact", server="evil")][::order]
    assert Snapshot.of(twins).tools["read_artifact"].server == ""


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("mcp_fs_raed_file", "mcp_fs_read_file"),
        ("read_file", "mcp_fs_read_file"),
        ("MCP-FS-READ-FILE", "mcp_fs_read_file"),
        ("fs.read_file", "mcp_fs_read_file"),
        ("get_curent_time", "mcp_time_get_current_time"),
        ("functions_mcp_time_get_current_time", "mcp_time_get_current_time"),
        ("launch_rocket", None),
        ("", None),
        ("时间", None),
    ],
)
def test_the_nearest_name_is_found(name: str, nearest: str | None) -> None:
    """RUN-3: with the nearest name."""
    snapshot = Snapshot.of(
        [
            make("mcp_fs_read_file", wire_name="read_file"),
            make("mcp_fs_write_file", wire_name="write_file"),
            make("mcp_time_get_current_time", wire_name="get_current_time", server="time"),
        ]
    )
    assert snapshot.nearest(name) == nearest


def test_a_snapshot_can_be_searched() -> None:
    """RUN-6: what a search finds."""
    snapshot = Snapshot.of([make("mcp_fs_read", description="Read a file"), make("mcp_mail_send", description="Send mail", server="mail")])
    assert [tool.name for tool in snapshot.search("send a mail", 1)] == ["mcp_mail_send"]


def test_swapping_tells_what_came_went_and_changed() -> None:
    """LIF-2, LIF-3: tools leave the registry and come back; who looks on is told. The same definition again is no change."""
    registry, seen = registry_of(make("a"), make("b"), make("c"))
    registry.swap(Snapshot.of([make("a"), make("b", description="new"), make("d")]), server="fs")
    registry.swap(Snapshot.of([make("a", invoke=raising(OSError())), make("b", description="new"), make("d")]), server="fs")
    assert seen == [
        ToolsChanged(server="", added=("a", "b", "c")),
        ToolsChanged(server="fs", added=("d",), removed=("c",), changed=("b",)),
    ]
    assert list(registry.tools) == list(registry.snapshot.tools) == ["a", "b", "d"]


async def test_a_call_runs_and_is_told_of() -> None:
    """OBS-1: every call is an event with server, tool, duration, size, outcome."""

    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        assert context.on_progress is not None
        context.on_progress(Progress(progress=1, total=2))
        return ToolResult(text="done")

    heard: list[Progress] = []
    registry, seen = registry_of(make(invoke=invoke))
    result = await registry.call("mcp_fs_read", {"path": "é"}, CallContext(call_id="c9", on_progress=heard.append))
    assert result == ToolResult(text="done")
    assert heard == [Progress(progress=1, total=2)]
    started, progressed, finished = seen[1:]
    assert started == CallStarted(call_id="c9", server="fs", tool="mcp_fs_read", arguments='{"path": "é"}')
    assert progressed == CallProgressed(call_id="c9", server="fs", tool="mcp_fs_read", progress=heard[0])
    assert isinstance(finished, CallFinished)
    assert (finished.text, finished.is_error, finished.outcome, finished.size) == ("done", False, Outcome.EXECUTED, 4)


async def test_an_unknown_tool_is_an_error_with_the_nearest_name() -> None:
    """RUN-3: a tool that is unknown gives the model an error it can mend from, with the nearest name."""
    registry, seen = registry_of(make("mcp_fs_read_file"))
    result = await registry.call("mcp_fs_raed_file", {}, CONTEXT)
    assert result.text == "There is no tool named mcp_fs_raed_file. Did you mean mcp_fs_read_file?"
    assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
    assert isinstance(seen[-1], CallFinished)
    assert (await registry.call("xyz", {}, CONTEXT)).text == "There is no tool named xyz. There are: mcp_fs_read_file."
    empty, _ = registry_of()
    assert "No tools are available" in (await empty.call("xyz", {}, CONTEXT)).text


async def test_arguments_that_do_not_fit_are_never_sent() -> None:
    """RUN-3, SCH-2: the error says what does not fit and what would."""
    schema: Json = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "mode": {"enum": ["r", "w"]}, "lines": {"type": "array", "items": {"type": "integer"}}},
        "required": ["path"],
    }
    registry, _ = registry_of(make(schema=schema, invoke=raising(AssertionError("was sent"))))
    for arguments in ({"mode": "r"}, {"path": "a", "mode": "x"}, "not json at all", "[1]"):
        result = await registry.call("mcp_fs_read", arguments, CONTEXT)
        assert (result.is_error, result.outcome) == (True, Outcome.NOT_EXECUTED)
        assert result.text.startswith("mcp_fs_read was not called, because its arguments do not fit:")
        assert 'Its parameters: path (string, required), mode (one of "r", "w"), lines (array of integer).' in result.text


async def test_arguments_are_repaired_first() -> None:
    """SCH-4: a JSON string for an object, "5" for an integer."""
    registry, _ = registry_of(make(schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}))
    assert (await registry.call("mcp_fs_read", '{"n": "5"}', CONTEXT)).text == '{"n": 5}'


async def test_an_argument_that_was_renamed_for_providers_gets_its_own_name_back() -> None:
    """SCH-1, SCH-2: the server gets the key that it knows, and that is what is validated."""
    own: Json = {
        "type": "object",
        "properties": {"filter[id]": {"type": "integer"}},
        "required": ["filter[id]"],
        "additionalProperties": False,
    }
    told: Json = {"type": "object", "properties": {"filter_id": {"type": "integer"}}, "required": ["filter_id"]}
    tool = Tool(name="t", description="", input_schema=own, parameters=told, invoke=echo, renamed={"filter_id": "filter[id]"})
    registry, _ = registry_of(tool)
    assert (await registry.call("t", {"filter_id": "5"}, CONTEXT)).text == '{"filter[id]": 5}'
    assert "filter_id (integer, required)" in (await registry.call("t", {}, CONTEXT)).text


async def test_an_argument_may_have_any_name() -> None:
    """SCH-4: `self`, `name`, `timeout`, `arguments` and the like are plain arguments."""
    names = ["self", "name", "timeout", "arguments", "context", "tool", "cls", "$ref"]
    schema: Json = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    registry, _ = registry_of(make(schema=schema))
    given = dict.fromkeys(names, "x")
    assert json.loads((await registry.call("mcp_fs_read", given, CONTEXT)).text) == given


async def test_a_broken_schema_leaves_the_judgement_to_the_server() -> None:
    """SCH-3: a schema that does not compile costs the validation, not the tool."""
    registry, _ = registry_of(make(schema={"type": "object", "properties": {"a": {"type": "nonsense"}}}))
    assert (await registry.call("mcp_fs_read", {"a": 1}, CONTEXT)).text == '{"a": 1}'


async def test_arguments_are_checked_against_the_newest_schema() -> None:
    """LIF-3: a changed definition is validated as changed, though the name is the same."""
    narrow: Json = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    registry, _ = registry_of(make(schema=narrow))
    assert (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error
    registry.swap(Snapshot.of([make(schema=ANY)]))
    assert not (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectionLost("gone", sent=True), Outcome.UNKNOWN),
        (ConnectionLost("gone", sent=False), Outcome.NOT_EXECUTED),
        (CallTimeout("late", sent=True), Outcome.UNKNOWN),
        (CallTimeout("late", sent=False), Outcome.NOT_EXECUTED),
        (BadCall("bad"), Outcome.NOT_EXECUTED),
        (LaunchFailed("no such command"), Outcome.NOT_EXECUTED),
        (Refused("refused"), Outcome.NOT_EXECUTED),
        (ServerError("said no", code=-32000), Outcome.EXECUTED),
    ],
)
async def test_an_error_is_a_result_that_says_whether_it_took_effect(error: ToolbayError, outcome: Outcome) -> None:
    """CAL-3, CAL-6: the model reads the sentence, and what became of the call."""
    registry, _ = registry_of(make(invoke=raising(error)))
    result = await registry.call("mcp_fs_read", {}, CONTEXT)
    told = f"{error}. {MAY_HAVE_RUN}" if outcome is Outcome.UNKNOWN else str(error)
    assert (result.text, result.is_error, result.outcome) == (told, True, outcome)


async def test_an_unexpected_exception_is_a_result_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """RUN-3: whatever a tool raises must not end the turn; the trace is in the log, not in the answer."""
    registry, _ = registry_of(
        make(invoke=raising(ZeroDivisionError("canary-hunter2"))), mask=lambda text: text.replace("canary-hunter2", "***")
    )
    with caplog.at_level(logging.ERROR):
        result = await registry.call("mcp_fs_read", {}, CONTEXT)
    assert result.is_error
    assert result.outcome is Outcome.UNKNOWN
    assert "ZeroDivisionError: ***" in result.text
    assert "Traceback" not in result.text
    logged = next(record for record in caplog.records if record.levelno == logging.ERROR).getMessage()
    assert "Traceback" in logged
    assert "ZeroDivisionError: ***" in logged


async def test_interceptors_run_outermost_first_and_may_answer_themselves() -> None:
    """RUN-7: what cuts across calls sees them found and validated, and can change or refuse them."""
    order: list[str] = []

    def named(name: str) -> Interceptor:
        async def intercept(invocation: Invocation, following: Next) -> ToolResult:
            order.append(name)
            result = await following(invocation)
            order.append("/" + name)
            return result

        return intercept

    async def refuse(invocation: Invocation, following: Next) -> ToolResult:
        return ToolResult(text=f"no to {invocation.tool.name}", is_error=True, outcome=Outcome.NOT_EXECUTED)

    registry, _ = registry_of(make(invoke=raising(AssertionError())), interceptors=(named("a"), named("b"), refuse))
    assert (await registry.call("mcp_fs_read", {}, CONTEXT)).text == "no to mcp_fs_read"
    assert order == ["a", "b", "/b", "/a"]


async def test_events_show_no_secret_and_stay_small() -> None:
    """OBS-2: secrets never appear in events, not even cut in two or escaped."""
    secret = 'pa"ss\nword'
    shown = "x" * 1_995 + secret

    async def leak(arguments: Json, context: CallContext) -> ToolResult:
        return ToolResult(text=shown)

    registry, seen = registry_of(make(invoke=leak), mask=lambda text: _redact.mask(text, [secret]))
    await registry.call("mcp_fs_read", {"deep": [{"token": secret}], "long": "y" * 5_000}, CONTEXT)
    started, finished = seen[1:]
    assert isinstance(started, CallStarted)
    assert isinstance(finished, CallFinished)
    assert started.arguments.startswith('{"deep": [{"token": "***"}]')
    assert len(started.arguments) <= 2_001
    assert finished.text == "x" * 1_995 + "***"


class Watched(dict[str, Any]):
    """Arguments that remember in which threads they were looked into."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.threads: set[int] = set()

    def values(self) -> Any:
        self.threads.add(threading.get_ident())
        return super().values()


async def test_the_event_loop_does_not_wait_for_heavy_arguments() -> None:
    """SCH-3, SEC-29: judging and mending them is done in another thread; of what is only shown, little is looked at."""
    lengths: list[int] = []

    def mask(text: str) -> str:
        lengths.append(len(text))
        return text

    here = threading.get_ident()
    kinds = [{"type": "object", "properties": {f"k{i}": {"type": "integer"}}, "required": [f"k{i}"]} for i in range(12)]
    union: Json = {"type": "object", "properties": {"xs": {"type": "array", "items": {"anyOf": kinds}}}}
    registry, _ = registry_of(make(), make("union", union), mask=mask)
    light = Watched(a="x" * 100)
    assert not (await registry.call("mcp_fs_read", light, CONTEXT)).is_error
    assert light.threads == {here}
    for name, given in (("mcp_fs_read", Watched(a="x" * 300_000)), ("union", Watched(xs=[{f"k{i % 12}": "1"} for i in range(300)]))):
        lengths.clear()
        assert not (await registry.call(name, given, CONTEXT)).is_error
        assert given.threads - {here}
        assert max(lengths) <= 64_000, name


async def test_a_heavy_schema_is_made_ready_beside_the_event_loop() -> None:
    """SCH-3, SEC-29: thousands of properties, values or patterns; also where nothing comes of it."""
    here = threading.get_ident()
    values: list[Json] = [
        {"enum": [f"v{i}" for i in range(50_000)]},
        {"anyOf": [{"const": i} for i in range(5_000)]},
        {"type": "object", "properties": {f"p{i}": {"pattern": f"^(a|b){{1,200}}{i}$"} for i in range(2_000)}},
        {"$ref": "#/$defs/d0"},
    ]
    forking: Json = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 500} for level in range(40)}
    for value in values:
        schema = Watched(type="object", properties={"a": value})
        schema["$defs"] = forking | {"d40": {}}
        registry, _ = registry_of(make(schema=schema))
        assert not (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error
        assert schema.threads - {here}
    small = Watched(type="object", properties={"a": {"type": "string"}})
    registry, _ = registry_of(make(schema=small))
    assert not (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error
    assert small.threads == {here}


@pytest.mark.parametrize(
    "odd",
    [
        {"a": 10**5_000},
        {"a": "half a pair \ud83d"},
        {"half \ud83d": 1},
        {5: {"a": float("inf")}},
        "\ud83d",
        '{"a": ' + "9" * 5_000 + "}",
        '{"a": "\ud83d"}',
        "[" * 100_000,
        "x" * 2_000_000,
    ],
    ids=lambda odd: repr(odd)[:30] if isinstance(odd, str) else type(next(iter(odd))).__name__,
)
async def test_no_arguments_make_a_call_raise(odd: Any) -> None:
    """RUN-3: what nobody can send is refused, was not run, and is told in events that can be written down."""
    for name in ("mcp_fs_read", "no \ud83d such tool"):
        registry, seen = registry_of(make(schema={"type": "object", "required": ["b"]}))
        result = await registry.call(name, odd, CONTEXT)
        assert result.is_error
        assert result.outcome is Outcome.NOT_EXECUTED
        assert [type(event) for event in seen[1:]] == [CallStarted, CallFinished]
        assert len(repr(seen[1:]).encode()) < 10_000


async def test_empty_text_calls_a_tool_without_arguments() -> None:
    """SCH-4: some models send nothing at all for no arguments."""
    registry, _ = registry_of(make(), make("needs", {"type": "object", "required": ["a"]}))
    for text in ("", " \n"):
        assert (await registry.call("mcp_fs_read", text, CONTEXT)).text == "{}"
        assert "a: is required and missing" in (await registry.call("needs", text, CONTEXT)).text


async def test_arguments_that_are_no_json_do_not_break_the_registry() -> None:
    """RUN-3: never raises but for cancellation."""
    circle: dict[str, Any] = {}
    circle["self"] = circle
    registry, seen = registry_of(make())
    assert (await registry.call("mcp_fs_read", circle, CONTEXT)).is_error
    assert isinstance(seen[-1], CallFinished)
    for odd in ({"a": object()}, {"a": {1, 2}}, {"a": b"bytes"}, {"a": float("nan")}):
        assert isinstance(await registry.call("mcp_fs_read", odd, CONTEXT), ToolResult)


async def test_cancelling_the_caller_propagates() -> None:
    """CAL-2: a user's stop always propagates, whichever way it came; who looks on sees the call end."""
    running = anyio.Event()

    async def hang(arguments: Json, context: CallContext) -> ToolResult:
        running.set()
        await anyio.sleep_forever()
        raise AssertionError

    registry, seen = registry_of(make(invoke=hang))
    returned: list[ToolResult] = []

    async def call() -> None:
        returned.append(await registry.call("mcp_fs_read", {}, CONTEXT))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(call, name="caller")
            await running.wait()
            group.cancel_scope.cancel()
    assert isinstance(seen[-1], CallFinished)
    assert seen[-1].outcome is Outcome.UNKNOWN
    with anyio.move_on_after(0.01) as scope:
        await call()
    assert scope.cancelled_caught
    running = anyio.Event()
    task = asyncio.ensure_future(call())
    with anyio.fail_after(5):
        await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert returned == []


async def test_a_cancellation_that_leaks_out_of_a_library_is_an_error_result(caplog: pytest.LogCaptureFixture) -> None:
    """CAL-2: without the caller having been cancelled it becomes an error result, and the caller goes on."""
    leaked = make(invoke=raising(asyncio.CancelledError("for canary-hunter2")))
    registry, _ = registry_of(leaked, mask=lambda text: text.replace("canary-hunter2", "***"))
    result = await registry.call("mcp_fs_read", {}, CONTEXT)
    assert (result.is_error, result.outcome) == (True, Outcome.UNKNOWN)
    assert "nobody stopped it" in result.text
    said = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert (said.exc_info, said.getMessage().splitlines()[-1]) == (None, "asyncio.exceptions.CancelledError: for ***")
    async with anyio.create_task_group() as group:
        assert not group.cancel_scope.cancel_called
        assert (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error
    await anyio.lowlevel.checkpoint()


async def test_a_stop_propagates_even_if_a_library_takes_it_back() -> None:
    """CAL-2: the cancelled scope around the caller is a fact, whatever a library did to the task's own count."""

    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            while task.cancelling():
                task.uncancel()
            raise
        raise AssertionError

    registry, _ = registry_of(make(invoke=invoke))
    returned: list[ToolResult] = []
    with anyio.fail_after(5), anyio.move_on_after(0.01):
        returned.append(await registry.call("mcp_fs_read", {}, CONTEXT))
    assert returned == []


async def test_a_library_that_cancels_its_own_scope_inside_does_not_hide_a_leak() -> None:
    """CAL-2: a library's scope that was cancelled and left says nothing of the caller."""

    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        raise asyncio.CancelledError

    registry, _ = registry_of(make(invoke=invoke))
    assert (await registry.call("mcp_fs_read", {}, CONTEXT)).is_error


def test_parameters_are_told_in_one_line() -> None:
    """RUN-3: an error it can mend from, whatever the schema looks like."""
    assert parameters({}) == "none"
    assert parameters({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "b": True}}) == "a (string or null), b (any)"
    many: Json = {"properties": {f"p{number:02}": {"type": ["string", "null"]} for number in range(30)}, "required": ["p29"]}
    assert parameters(many).startswith("p29 (string or null, required), p00 ")
    assert parameters(many).endswith(" and 10 more")


async def test_what_nobody_hears_is_not_made() -> None:
    """OBS-2: an event costs something only while somebody takes it; who comes during a call hears of its end."""
    looked_through: list[str] = []

    def mask(text: str) -> str:
        looked_through.append(text)
        return text

    events = Events()
    registry = Registry(events=events, mask=mask)
    registry.swap(Snapshot.of([make()]))
    assert not (await registry.call("mcp_fs_read", {"a": 1}, CallContext(call_id="1"))).is_error
    assert not looked_through
    with events.subscribe() as heard:
        await registry.call("mcp_fs_read", {"a": 1}, CallContext(call_id="2"))
        assert [type(event) for event in heard.take_nowait()] == [CallStarted, CallFinished]
    assert looked_through
    assert not events.heard


async def test_a_tool_that_changes_is_judged_by_its_new_schema() -> None:
    """RUN-3: the validator that is kept for a tool goes with the tool."""
    one = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    registry, _ = registry_of(make(schema=one))
    assert not (await registry.call("mcp_fs_read", {"n": 1}, CallContext(call_id="1"))).is_error
    registry.swap(Snapshot.of([make(schema={**one, "required": ["n", "m"]})]))
    assert "was not called" in (await registry.call("mcp_fs_read", {"n": 1}, CallContext(call_id="2"))).text


@pytest.mark.parametrize("sent", [False, True])
async def test_a_stopped_call_that_was_not_sent_was_not_carried_out_and_one_that_was_may_have_been(sent: bool) -> None:
    """CAL-3: the fact is whether a byte may have left, for a call that waits for approval or for its server too."""
    waiting = anyio.Event()

    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        if sent:
            assert context.on_sent is not None
            context.on_sent()
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    registry, seen = registry_of(make(invoke=invoke, tells_sent=True))
    told: list[str] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            context = CallContext(call_id="c1", on_sent=lambda: told.append("sent"))
            group.start_soon(registry.call, "mcp_fs_read", {}, context, name="caller")
            await waiting.wait()
            group.cancel_scope.cancel()
    ended = seen[-1]
    assert isinstance(ended, CallFinished)
    assert ended.outcome is (Outcome.UNKNOWN if sent else Outcome.NOT_EXECUTED)
    assert ("It may have taken effect" in ended.text, "was not carried out" in ended.text) == (sent, not sent)
    assert told == (["sent"] if sent else [])


async def test_a_stop_before_a_function_of_this_process_began_is_a_call_that_was_not_carried_out() -> None:
    """CAL-3, RUN-7: as while a person is asked."""
    asking = anyio.Event()

    async def ask(invocation: Invocation, following: Next) -> ToolResult:
        asking.set()
        await anyio.sleep_forever()
        return await following(invocation)

    registry, seen = registry_of(make(), interceptors=(ask,))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(registry.call, "mcp_fs_read", {}, CONTEXT, name="caller")
            await asking.wait()
            group.cancel_scope.cancel()
    ended = seen[-1]
    assert isinstance(ended, CallFinished)
    assert ended.outcome is Outcome.NOT_EXECUTED


async def test_events_are_for_people_and_results_for_models() -> None:
    """CAL-3: what a model must not do is told to the model; a person reads what happened."""
    registry, seen = registry_of(make(invoke=raising(ConnectionLost("lost", sent=True))))
    result = await registry.call("mcp_fs_read", {}, CONTEXT)
    assert MAY_HAVE_RUN in result.text
    ended = seen[-1]
    assert isinstance(ended, CallFinished)
    assert ended.text == "lost. It may have taken effect: check before you repeat it."
