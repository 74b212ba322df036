"""The built-in stand-in for a language model: it needs no network and no key, and says that it is none (RUN-5).

It has no memory of its own. Whatever it says or calls follows from the conversation that it is shown, so the same conversation
always goes on the same way. Where it finds no tool, it says beside that which servers are not there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import anyio.to_thread

from toolbay._text import own_words
from toolbay.agent.offline import answer
from toolbay.agent.offline.choice import Choice, choose, is_enough
from toolbay.agent.offline.draft import Filled
from toolbay.agent.offline.slots import fill
from toolbay.agent.offline.values import Param, coerced, enum_of
from toolbay.agent.offline.words import read, steps
from toolbay.search import Index
from toolbay.types import Json, Message, ModelRequest, Reply, Role, TextDelta, Tool, ToolCall

__all__ = ["OfflineModel"]

_SEARCH_TOOL = "search_tools"
_NEVER_MIND = re.compile(r"\W*(?:never ?mind|cancel|forget it|stop|no|nothing|skip it|算了|取消|不用了)\W*", re.IGNORECASE)
_HELP = re.compile(
    r"\b(?:what|which) (?:tools|can you do)\b|^\W*(?:help|hello|hi)\W*$|\blist (?:your|all|the) tools\b"
    r"|(?:什么|哪些)工具|你能做什么|^\W*你好\W*$",
    re.IGNORECASE,
)
MANY_TOOLS = 200
"""More than these are indexed in a thread: it takes about a millisecond a tool."""
_MAX_QUESTIONS = 5
_NEARLY = 0.15
"""How much worse a tool may fit that needs no question."""


@dataclass(slots=True)
class Plan:
    """What a user's message comes to."""

    calls: list[tuple[Tool, Json]] = field(default_factory=list[tuple[Tool, Json]])
    asked: tuple[Tool, Filled] | None = None
    """The first call that lacks an argument; the next message of the user may bring it."""
    unmatched: list[tuple[str, list[Tool]]] = field(default_factory=list[tuple[str, list[Tool]]])
    """Steps that no tool fits, with the nearest ones."""
    is_left: bool = False
    """The user took the request back."""
    is_help: bool = False
    """The user asks what can be done."""

    @property
    def question(self) -> str:
        return "" if self.asked is None else answer.question(self.asked[0], self.asked[1].missing[0])


class OfflineModel:
    """Picks tools by their words, fills arguments from the text, asks for what is missing, shows what comes back."""

    def __init__(self, lacking: Callable[[], Sequence[str]] = tuple) -> None:
        """`lacking`: which servers are not there now and what each needs, in a line."""
        self._lacking = lacking
        self._known: tuple[tuple[Tool, ...], Index] = ((), Index(()))

    @property
    def name(self) -> str:
        return "offline"

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        """One delta with the whole text, if there is any, then the reply. Never raises `ModelError`."""
        await anyio.lowlevel.checkpoint()
        many = len(request.tools) > MANY_TOOLS
        index = await anyio.to_thread.run_sync(self._index_of, request.tools) if many else self._index_of(request.tools)
        reply = _Turn(request, index, self._lacking).reply()
        if reply.text:
            yield TextDelta(text=reply.text)
        yield reply

    def reply(self, request: ModelRequest) -> Reply:
        """What comes next in the conversation."""
        return _Turn(request, self._index_of(request.tools), self._lacking).reply()

    def _index_of(self, tools: tuple[Tool, ...]) -> Index:
        indexed, index = self._known
        if len(tools) != len(indexed) or any(one is not other for one, other in zip(tools, indexed, strict=True)):
            index = Index(tools)
            self._known = (tools, index)  # at once: several threads may do this
        return index


class _Turn:
    """One look at a conversation."""

    def __init__(self, request: ModelRequest, index: Index, lacking: Callable[[], Sequence[str]]) -> None:
        self.lacking = lacking
        self.messages = request.messages
        self.tools = {tool.name: tool for tool in request.tools}
        self.index = index
        self.remembered = _remembered(request.messages)

    def reply(self) -> Reply:
        at = next((at for at in range(len(self.messages) - 1, -1, -1) if self.messages[at].role is Role.USER), None)
        if at is None:
            return _said()
        after = self.messages[at + 1 :]
        rounds = [message for message in after if message.role is Role.ASSISTANT and message.calls]
        results = [message for message in after if message.role is Role.TOOL]
        plan = self.plan(at)
        if not rounds:
            found = self._look_for_tools(plan, own_words(self.messages[at].text))
            return self._calls(found or plan.calls) if found or plan.calls else _said(*self._rest(plan))
        if self.tools and {call.name for call in rounds[-1].calls} == {_SEARCH_TOOL} and plan.calls:
            return self._calls(plan.calls)
        again = self._mended(rounds, results) if self.tools else []
        if again:
            return self._calls(again)
        return _said(answer.results(_final(results), self.tools), *self._rest(plan))

    def plan(self, at: int, depth: int = 0) -> Plan:
        """What the user's message at `at` comes to: an answer to a question of ours, or a new request."""
        text = own_words(self.messages[at].text)
        before = self._question_before(at, depth)
        if before is not None and before.asked is not None:
            if _NEVER_MIND.fullmatch(text):
                return Plan(is_left=True)
            tool, filled = before.asked
            return self._completed(tool, filled, text)
        plan = Plan(is_help=bool(_HELP.search(text)))
        for step in [] if plan.is_help else steps(text):
            self._planned(step, plan)
        return plan

    def _question_before(self, at: int, depth: int) -> Plan | None:
        """The plan whose question the assistant's last message ends in, if it did ask."""
        if depth >= _MAX_QUESTIONS or at < 2:
            return None
        said = self.messages[at - 1]
        asked = next((back for back in range(at - 1, -1, -1) if self.messages[back].role is Role.USER), None)
        if asked is None or said.role is not Role.ASSISTANT or answer.ASKING not in said.text:
            return None
        plan = self.plan(asked, depth + 1)
        return plan if plan.question and plan.question in said.text else None

    def _completed(self, tool: Tool, filled: Filled, text: str) -> Plan:
        """The question's argument from the answer, and whatever else the answer happens to say."""
        param, *others = filled.missing
        value = _answered(param, text)
        if value is None:
            return Plan(asked=(tool, filled))
        arguments = {**filled.arguments, param.name: value}
        given = read(text)
        for other in list(others):
            pair = next((piece for piece in given.pieces if piece.key == other.name), None)
            if pair is not None and coerced(pair.value, other) is not None:
                arguments[other.name] = coerced(pair.value, other)
                others.remove(other)
        if others:
            return Plan(asked=(tool, Filled(arguments=arguments, missing=others)))
        return Plan(calls=[(tool, arguments)])

    def _planned(self, step: str, plan: Plan) -> None:
        choices = choose(read(step), self.index, self.remembered)
        fitting: list[Choice] = [choice for choice in choices if is_enough(choice)]
        if not fitting:
            plan.unmatched.append((step, [choice.tool for choice in choices[: answer.NEAR]]))
            return
        best = fitting[0]
        if best.filled.missing:
            best = next(
                (choice for choice in fitting if choice.filled.used and not choice.filled.missing and choice.score >= best.score - _NEARLY),
                best,
            )
        if not best.filled.missing:
            plan.calls.append((best.tool, best.filled.arguments))
        elif plan.asked is None:
            plan.asked = (best.tool, best.filled)

    def _look_for_tools(self, plan: Plan, text: str) -> list[tuple[Tool, Json]]:
        """Where many tools are kept back (RUN-6), look for one before giving up."""
        tool = self.tools.get(_SEARCH_TOOL)
        if tool is None or plan.calls or plan.asked is not None or plan.is_left or plan.is_help:
            return []
        param = next((param for param in Param.all_of(tool.input_schema) if param.required and param.kind == "string"), None)
        return [] if param is None else [(tool, {param.name: text[:500]})]

    def _rest(self, plan: Plan) -> list[str]:
        """What has to be said besides results."""
        if plan.is_left:
            return ["All right, I leave it."]
        if plan.is_help:
            return [answer.offered(list(self.tools.values())), answer.absent(self.lacking())]
        said = [answer.nothing(step, near, any_tools=bool(self.tools)) for step, near in plan.unmatched]
        return [*said, answer.absent(self.lacking()) if said else "", plan.question]

    def _calls(self, calls: Sequence[tuple[Tool, Json]]) -> Reply:
        """Calls with ids that this conversation has not seen."""
        used = sum(len(message.calls) for message in self.messages)
        return Reply(
            calls=tuple(
                ToolCall(id=f"offline_{number}", name=tool.name, arguments=arguments)
                for number, (tool, arguments) in enumerate(calls, start=used + 1)
            )
        )

    def _mended(self, rounds: Sequence[Message], results: Sequence[Message]) -> list[tuple[Tool, Json]]:
        """A relative path that a server refused is tried once more inside a folder that the server says it allows."""
        failed = {message.call_id for message in results if message.is_error}
        refused = [
            call for call in rounds[0].calls if call.id in failed and call.name in self.tools and _relative(self.tools[call.name], call)
        ]
        if not refused or len(rounds) > 2:
            return []
        teller = _teller(self.tools.values(), {self.tools[call.name].server for call in refused})
        if teller is None:
            return []
        if len(rounds) == 1:
            return [(teller, {})]
        told = next((message for message in results if message.name == teller.name and not message.is_error), None)
        folder = re.search(r"^\s*(/\S.*|[A-Za-z]:\\.*)$", told.text, re.MULTILINE) if told is not None else None
        if folder is None or {call.name for call in rounds[1].calls} != {teller.name}:
            return []
        base = folder[1].strip().rstrip("/\\")
        errors = {message.call_id: message.text for message in results}
        again: list[tuple[Tool, Json]] = []
        for call in refused:
            tool = self.tools[call.name]
            changed = {name: f"{base}/{value}".removesuffix("/.") for name, value in _relative(tool, call).items()}
            if not all(path in errors[call.id] for path in changed.values()):  # else the server has already looked there
                again.append((tool, {**_arguments(call), **changed}))
        return again


def _said(*parts: str) -> Reply:
    """An answer, and beside it what answers."""
    return Reply(text=answer.joined(*parts), note=answer.NOTE)


def _answered(param: Param, text: str) -> Any:
    """A value for `param` out of the answer to a question for it; any text will do for a string."""
    if param.choices:
        return enum_of(param, text)
    probe = Tool(
        name="probe",
        description=param.description,
        input_schema={"type": "object", "properties": {param.name: dict(param.schema)}, "required": [param.name]},
        parameters={},
        invoke=_never,
    )
    whole = text.strip().strip("\"'`")
    if param.kind == "string" and not param.is_zone:
        request = read(text)
        is_one_piece = len(request.pieces) == 1 and not request.rest.strip(" .?!")
        return request.pieces[0].value if is_one_piece and not request.pieces[0].key else whole or None
    found = fill(probe, read(text)).arguments.get(param.name)
    if found is None:
        found = coerced(whole, param)
    return whole if found is None and param.is_zone and "/" in whole else found


async def _never(arguments: Json, context: object) -> Any:
    raise AssertionError(arguments, context)


def _remembered(messages: Sequence[Message]) -> Mapping[str, Any]:
    """The newest value of each argument of earlier calls."""
    known: dict[str, Any] = {}
    for message in messages:
        for call in message.calls:
            known.update(_arguments(call))
    return known


def _arguments(call: ToolCall) -> Json:
    return call.arguments if isinstance(call.arguments, dict) else {}


def _relative(tool: Tool, call: ToolCall) -> dict[str, str]:
    """The arguments of a call that are relative paths."""
    paths = {
        param.name for param in Param.all_of(tool.input_schema) if param.words & {"path", "source", "destination", "directory", "file"}
    }
    return {
        name: value
        for name, value in _arguments(call).items()
        if name in paths and isinstance(value, str) and not re.match(r"[/~\\]|[A-Za-z]:", value)
    }


def _teller(tools: Any, servers: set[str]) -> Tool | None:
    """A tool of the same server that lists allowed folders and needs nothing for it."""
    for tool in tools:
        said = f"{tool.wire_name or tool.name}".casefold()
        if tool.server in servers and tool.hints.read_only and "allowed" in said and re.search(r"director|folder|root|path", said):
            return None if any(param.required for param in Param.all_of(tool.input_schema)) else tool
    return None


def _final(results: Sequence[Message]) -> list[Message]:
    """Of results of the same tool after a mending only the last round counts, and the question for folders does not."""
    helpers = {message.call_id for message in results if "allowed_dir" in message.name or message.name == _SEARCH_TOOL}
    if not helpers or len(helpers) == len(results):
        return list(results)
    last = max(at for at, message in enumerate(results) if message.call_id in helpers)
    redone = {message.name for message in results[last + 1 :]}
    return [
        message
        for at, message in enumerate(results)
        if message.call_id not in helpers and not (at < last and message.is_error and message.name in redone)
    ]
