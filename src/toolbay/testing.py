"""For tests of what is built on Toolbay: a scripted model, tools that are plain functions, servers and logins in memory.

model = FakeModel([Reply(calls=(ToolCall(id="1", name="add", arguments={"a": 1, "b": 2}),)), "It is 3."])
tools = FakeTools({"add": lambda a, b: str(a + b)})
turn = await Runner(model, tools, events=Events()).run(MemoryConversation(), "1 + 2?")
assert turn.text == "It is 3."
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import anyio.lowlevel

from toolbay._nearest import nearest
from toolbay.agent.approvals import Answer, ApprovalRequest
from toolbay.agent.context import validate
from toolbay.auth.store import Memory as MemoryLogins
from toolbay.errors import ModelError
from toolbay.types import CallContext, Hints, Json, Kind, ModelRequest, Outcome, Reply, TextDelta, Tool, ToolCall, ToolResult
from toolbay.upstream.memory import MemoryServer, in_memory

__all__ = [
    "AllowAll",
    "Approving",
    "Deny",
    "FakeModel",
    "FakeTools",
    "MemoryLogins",
    "MemoryServer",
    "Scripted",
    "ToolFunction",
    "in_memory",
]

Scripted: TypeAlias = "Reply | str | Exception | Callable[[ModelRequest], Reply | str | Awaitable[Reply | str]]"
"""What a `FakeModel` does at one request: reply, answer with a text, raise, or ask a function."""

ToolFunction: TypeAlias = Callable[..., object]
"""A fake tool, async or not: takes the arguments by name and gives a `ToolResult`, its text, or something for JSON.

What it raises is an error result.
"""

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "list": "array", "dict": "object"}


class FakeModel:
    """A model that follows a script, one entry a request, and keeps each request in `requests`.

    Like a real provider it refuses a conversation that breaks the rules (a call without its answer, an id used twice)
    with a `ModelError`. Text is streamed in pieces of `piece` characters. A request after the script's end is a
    `ModelError` too.
    """

    def __init__(self, script: Iterable[Scripted], *, name: str = "fake:model", piece: int = 4) -> None:
        self.requests: list[ModelRequest] = []
        self._script = iter(script)
        self._name = name
        self._piece = piece

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        self.requests.append(request)
        problems = validate(request.messages)
        if problems:
            raise ModelError(f"The fake model refuses the conversation: {'; '.join(problems)}.")
        await anyio.lowlevel.checkpoint()
        entry = next(self._script, None)
        if entry is None:
            raise ModelError(f"The fake model's script is over; this was request {len(self.requests)}.")
        if isinstance(entry, Exception):
            raise entry
        answer = entry if isinstance(entry, Reply | str) else entry(request)
        if inspect.isawaitable(answer):
            answer = await answer
        reply = answer if isinstance(answer, Reply) else Reply(text=answer)
        for start in range(0, len(reply.text), self._piece):
            yield TextDelta(text=reply.text[start : start + self._piece])
            await anyio.lowlevel.checkpoint()
        yield reply


class Approving:
    """An approver that gives the same answer to every request, and keeps each in `asked`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Answer:
        await anyio.lowlevel.checkpoint()
        self.asked.append(request)
        return self.answer


class AllowAll(Approving):
    """Says yes to every call, each time anew."""

    def __init__(self) -> None:
        super().__init__(Answer.ONCE)


class Deny(Approving):
    """Says no to every call."""

    def __init__(self) -> None:
        super().__init__(Answer.NO)


class FakeTools:
    """A source of tools made of functions, which keeps each call in `calls`.

    `read_only` names those that say that they only read (such calls may run side by side). A function's parameters become
    the tool's: their names, whether they are required, and simple types where they are annotated. A value may also be a
    whole `Tool`. The offer can be changed while it runs: `offer`, `withdraw`.
    """

    def __init__(self, tools: Mapping[str, ToolFunction | Tool], *, read_only: Collection[str] = ()) -> None:
        self.calls: list[ToolCall] = []
        self._tools: Mapping[str, Tool] = MappingProxyType({})
        for name, tool in tools.items():
            self.offer(name, tool, read_only=name in read_only)

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def offer(self, name: str, tool: ToolFunction | Tool, *, read_only: bool = False) -> None:
        """Add a tool, or put another one in its place."""
        added = replace(tool, name=name) if isinstance(tool, Tool) else _tool(name, tool, read_only=read_only)
        self._tools = MappingProxyType(dict(sorted({**self._tools, name: added}.items())))

    def withdraw(self, name: str) -> None:
        """Take a tool away."""
        self._tools = MappingProxyType({key: tool for key, tool in self._tools.items() if key != name})

    async def call(self, name: str, arguments: Json | str, context: CallContext) -> ToolResult:
        self.calls.append(ToolCall(id=context.call_id, name=name, arguments=arguments))
        tool = self._tools.get(name)
        if tool is None:
            near = nearest(name, self._tools)
            return _refused(f"There is no tool {name!r}." + (f" Did you mean {near!r}?" if near else ""))
        if isinstance(arguments, str):
            return _refused(f"The arguments of {name} are not a JSON object: {arguments[:200]}")
        return await tool.invoke(arguments, context)


def _refused(text: str) -> ToolResult:
    return ToolResult(text=text, is_error=True, outcome=Outcome.NOT_EXECUTED)


def _tool(name: str, function: ToolFunction, *, read_only: bool) -> Tool:
    signature = inspect.signature(function)
    schema = _schema(signature)

    async def invoke(arguments: Json, context: CallContext) -> ToolResult:
        del context
        try:
            signature.bind(**arguments)
        except TypeError as error:
            return _refused(f"The arguments of {name} do not fit: {error}.")
        try:
            outcome: object = function(**arguments)
            if inspect.isawaitable(outcome):
                outcome = await cast("Awaitable[object]", outcome)
        except Exception as error:  # a tool's own failure is a result
            return ToolResult(text=f"{type(error).__name__}: {error}", is_error=True)
        return outcome if isinstance(outcome, ToolResult) else ToolResult(text=outcome if isinstance(outcome, str) else json.dumps(outcome))

    return Tool(
        name=name,
        description=inspect.getdoc(function) or "",
        input_schema=schema,
        parameters=schema,
        invoke=invoke,
        server="fake",
        wire_name=name,
        kind=Kind.TOOL,
        hints=Hints(read_only=read_only),
    )


def _schema(signature: inspect.Signature) -> Json:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = parameter.annotation if isinstance(parameter.annotation, str) else getattr(parameter.annotation, "__name__", "")
        properties[parameter.name] = {"type": _TYPES[kind]} if kind in _TYPES else {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required}
