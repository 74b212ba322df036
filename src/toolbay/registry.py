"""All tools of this moment as one immutable snapshot that is swapped whole, and the one door through which they are called.

A call is found, repaired, validated, passed through the interceptors and run. Whatever goes wrong becomes an error result
that a model can mend from; only a cancellation of the caller leaves as an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import anyio

from toolbay import arguments as args
from toolbay._nearest import nearest
from toolbay._redact import trace
from toolbay._text import clean, excerpt, line
from toolbay._weight import aside, heavy
from toolbay.errors import ToolbayError
from toolbay.events import CallFinished, CallProgressed, CallStarted, Events, ToolsChanged
from toolbay.search import Index
from toolbay.types import (
    MAY_HAVE_RUN,
    CallContext,
    Interceptor,
    Invocation,
    Json,
    Kind,
    Next,
    Outcome,
    Progress,
    Tool,
    ToolResult,
    for_people,
    outcome_of,
)

log = logging.getLogger(__name__)

EXCERPT = 2_000
"""Characters of arguments and results in events."""
LOOKED_AT = 32 * EXCERPT
"""Characters that are looked through for secrets, to show an excerpt of them."""
SHOWN = 20
"""Names or parameters that an error lists at the most."""
LIGHT_SCHEMA = 20_000
"""Weight of a schema, or of arguments, up to which they are made ready and looked at without a thread."""


@dataclass(frozen=True)
class Snapshot:
    """The tools of one moment. Make it with `of`; it never changes, so a turn may keep the one that it began with."""

    tools: Mapping[str, Tool] = field(default_factory=lambda: MappingProxyType(dict[str, Tool]()))
    descriptions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict[str, str]()))

    @classmethod
    def of(cls, tools: Iterable[Tool], *, descriptions: Mapping[str, str] | None = None) -> Snapshot:
        """A snapshot of `tools`, sorted by name; `descriptions` are what the servers are for, by their names.

        Names are unique by construction. Should two be equal all the same, the one whose server comes first in the
        alphabet stays, so that no server can take the place of a built-in tool, and the other one is logged.
        """
        named: dict[str, Tool] = {}
        for tool in sorted(tools, key=lambda tool: (tool.name, tool.server, tool.wire_name)):
            kept = named.setdefault(tool.name, tool)
            if kept is not tool:
                log.warning("Left out a second tool named %s (of server %r); %r already has it.", tool.name, tool.server, kept.server)
        return cls(
            tools=MappingProxyType(named),
            descriptions=MappingProxyType(dict(descriptions or {})),
        )

    def nearest(self, name: str) -> str | None:
        """The tool that somebody probably meant by `name`, or None where nothing is near."""
        wanted = _plain(name[:200])
        if not wanted:
            return None
        plain = {_plain(known): known for known in sorted(self.tools, reverse=True)}
        if wanted in plain:
            return plain[wanted]
        own = [tool.name for tool in self.tools.values() if tool.wire_name and wanted == _plain(tool.wire_name)]
        if own:
            return own[0]
        ends = [known for known in self.tools if _plain(known).endswith("_" + wanted) or wanted.endswith("_" + _plain(known))]
        if ends:
            return min(ends, key=lambda known: (len(known), known))
        close = nearest(wanted, plain)
        if close:
            return plain[close]
        wires = {_plain(tool.wire_name): tool.name for tool in self.tools.values() if tool.wire_name}
        close = nearest(wanted, wires, likeness=0.7)
        return wires[close] if close else None

    @cached_property
    def index(self) -> Index:
        """The search index, built when it is first asked for."""
        return Index(self.tools.values(), descriptions=self.descriptions)

    def search(self, query: str, limit: int = 10) -> list[Tool]:
        """The tools that fit `query` best, best first."""
        return [tool for tool, _ in self.index.search(query, limit)]


class Registry:
    """The current snapshot, and calls against it (a `ToolSource`)."""

    def __init__(self, *, events: Events, interceptors: Sequence[Interceptor] = (), mask: Callable[[str], str] = lambda text: text) -> None:
        """`interceptors` run outermost first; `mask` takes secrets out of text that goes into events."""
        self._events = events
        self._way = _way(interceptors)
        self.mask = mask
        self._snapshot = Snapshot()
        self.missing: Callable[[str], str | None] = lambda _name: None
        """Asked about a name that no tool has: why, in words, where it is one of a server that is not there at this moment."""
        self._validators: dict[str, tuple[Tool, args.Validator | None]] = {}

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._snapshot.tools

    def swap(self, snapshot: Snapshot, server: str = "") -> None:
        """Make `snapshot` the current one; say what came, went and changed because of `server`. Running calls go on."""
        old, self._snapshot = self._snapshot, snapshot
        self._validators = {name: known for name, known in self._validators.items() if snapshot.tools.get(name) is known[0]}
        added = tuple(name for name in snapshot.tools if name not in old.tools)
        removed = tuple(name for name in old.tools if name not in snapshot.tools)
        changed = tuple(name for name, tool in snapshot.tools.items() if name in old.tools and tool != old.tools[name])
        if added or removed or changed:
            self._events.publish(ToolsChanged(server=server, added=added, removed=removed, changed=changed))

    async def call(self, name: str, arguments: Json | str, context: CallContext) -> ToolResult:
        """Find, repair, validate and run. Never raises but for cancellation: what went wrong is an error result."""
        snapshot = self._snapshot
        tool = snapshot.tools.get(name)
        report = _Report(self._events, self.mask, context, tool, name)
        try:
            if self._events.heard:
                report.started(await aside(_shown, arguments, self.mask, when=heavy(arguments)))
            result = _unknown(snapshot, name, self.missing(name)) if tool is None else await self._found(tool, arguments, context, report)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                report.finished(_stopped(tool, sent=report.sent))
                raise
            log.error("A cancellation that nobody asked for came out of %s.\n%s", name, trace(error, self.mask))  # noqa: TRY400 - masked
            result = _failed(
                f"The call of {name} was broken off on its way, though nobody stopped it.",
                Outcome.UNKNOWN,
            )
        except ToolbayError as error:
            result = _failed(str(error), outcome_of(error))
        except Exception as error:
            # The contract: whatever a tool or an interceptor raises must not end the caller's turn.
            log.error("The call of %s failed unexpectedly.\n%s", name, trace(error, self.mask))  # noqa: TRY400 - masked
            reason = line(self.mask(clean(f"{type(error).__name__}: {error}")), 300)
            result = _failed(f"The call of {name} failed in a way that was not foreseen ({reason}).", Outcome.UNKNOWN)
        report.finished(result)
        return result

    async def _found(self, tool: Tool, arguments: Json | str, context: CallContext, report: _Report) -> ToolResult:
        known = self._validators.get(tool.name)
        validator = known[1] if known is not None and known[0] is tool else await self._made_ready(tool)
        quick = not heavy(arguments, LIGHT_SCHEMA) if validator is None else validator.quick(arguments)
        repaired, problems = _judged(validator, tool, arguments) if quick else await aside(_judged, validator, tool, arguments)
        if isinstance(repaired, str) or problems:
            return _bad(tool, problems, () if isinstance(repaired, str) else tuple(repaired))
        told = CallContext(call_id=context.call_id, on_progress=report.progressed, by_hand=context.by_hand, on_sent=report.leaving)
        return await self._way(Invocation(tool=tool, arguments=repaired, context=told))

    async def _made_ready(self, tool: Tool) -> args.Validator | None:
        """Once for each tool of a snapshot. None where the schema itself is broken: then the server judges."""
        validator = await aside(_compiled, tool, when=heavy(tool.input_schema, LIGHT_SCHEMA))
        self._validators[tool.name] = (tool, validator)
        return validator


class _Report:
    """What is told of one call, from its start to its end."""

    def __init__(self, events: Events, mask: Callable[[str], str], context: CallContext, tool: Tool | None, name: str) -> None:
        self._events = events
        self._mask = mask
        self._context = context
        self._server = tool.server if tool is not None else ""
        self._name = name if tool is not None else line(name, 200)
        self._began = time.monotonic()
        self.sent = False
        """Whether anything of it may have left, or a function of this process has begun."""

    def leaving(self) -> None:
        self.sent = True
        if self._context.on_sent is not None:
            self._context.on_sent()

    def started(self, shown: str) -> None:
        self._events.publish(CallStarted(call_id=self._context.call_id, server=self._server, tool=self._name, arguments=shown))

    def progressed(self, progress: Progress) -> None:
        self._events.publish(CallProgressed(call_id=self._context.call_id, server=self._server, tool=self._name, progress=progress))
        if self._context.on_progress is not None:
            self._context.on_progress(progress)

    def finished(self, result: ToolResult) -> None:
        if not self._events.heard:
            return
        self._events.publish(
            CallFinished(
                call_id=self._context.call_id,
                server=self._server,
                tool=self._name,
                is_error=result.is_error,
                outcome=result.outcome,
                text=_brief(for_people(result.text), self._mask),
                seconds=time.monotonic() - self._began,
                size=len(result.text),
            )
        )


def _compiled(tool: Tool) -> args.Validator | None:
    try:
        return args.compile(tool.input_schema)
    except args.BadSchema as error:
        log.debug("Arguments of %s are not validated: %s", tool.name, error)
        return None


def _judged(validator: args.Validator | None, tool: Tool, arguments: Json | str) -> tuple[Json | str, tuple[str, ...]]:
    """The arguments, mended, and what is still wrong with them."""
    restored = args.restore(arguments, tool.renamed)
    if isinstance(restored, dict) and validator is not None and validator.accepts(restored):
        return restored, ()
    repaired = args.repair(validator, restored)
    if isinstance(repaired, str):
        return repaired, ("the arguments are no JSON object",)
    return repaired, args.check(validator, repaired) if validator is not None else ()


async def _invoke(invocation: Invocation) -> ToolResult:
    tool, context = invocation.tool, invocation.context
    if not tool.tells_sent and context.on_sent is not None:
        context.on_sent()
    return await tool.invoke(invocation.arguments, context)


def _way(interceptors: Sequence[Interceptor]) -> Next:
    """The interceptors, outermost first, and the tool itself at the end."""
    way: Next = _invoke
    for interceptor in reversed(interceptors):
        way = _through(interceptor, way)
    return way


def _through(interceptor: Interceptor, following: Next) -> Next:
    return lambda invocation: interceptor(invocation, following)


def _is_cancelled() -> bool:
    """Whether somebody asked the running task to stop: through an anyio scope around it, or by `Task.cancel()`.

    Both are facts that the loop keeps; a `CancelledError` by itself says nothing of where it came from.
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _stopped(tool: Tool | None, *, sent: bool) -> ToolResult:
    """A call whose caller was cancelled; what it came to nobody knows once anything of it was sent (CAL-3)."""
    if not sent:
        return _failed("The call was stopped before anything of it was sent: it was not carried out.", Outcome.NOT_EXECUTED)
    if tool is not None and tool.kind in (Kind.RESOURCE, Kind.PROMPT):
        return ToolResult(text="The reading was stopped.", is_error=True, outcome=Outcome.UNKNOWN)
    return _failed("The call was stopped while it was under way.", Outcome.UNKNOWN)


def _failed(text: str, outcome: Outcome) -> ToolResult:
    """An error for the model. Where nobody knows whether the call took effect, it is told what that means (CAL-3)."""
    if outcome is Outcome.UNKNOWN and MAY_HAVE_RUN not in text:
        text = f"{text.rstrip().removesuffix('.')}. {MAY_HAVE_RUN}"
    return ToolResult(text=text, is_error=True, outcome=outcome)


def _unknown(snapshot: Snapshot, name: str, missing: str | None) -> ToolResult:
    """RUN-3: why it is not there, or the nearest name, else what there is."""
    if missing is not None:
        return _failed(f"There is no tool {line(name, 64)} at this moment: {line(missing, 380).rstrip('.')}.", Outcome.NOT_EXECUTED)
    said = f"There is no tool named {line(name, 100)}."
    nearest = snapshot.nearest(name)
    if nearest is not None:
        said += f" Did you mean {nearest}?"
    elif snapshot.tools:
        some = list(snapshot.tools)[:SHOWN]
        more = len(snapshot.tools) - len(some)
        said += f" There are: {', '.join(some)}{f' and {more} more' if more else ''}."
    else:
        said += " No tools are available at this moment."
    return _failed(said, Outcome.NOT_EXECUTED)


def _bad(tool: Tool, problems: Sequence[str], given: Sequence[str] = ()) -> ToolResult:
    """RUN-3: what does not fit, and what would. A name that is `given` and not known is told too: it is often what was meant."""
    lines = [f"{tool.name} was not called, because its arguments do not fit:", *(f"- {problem}" for problem in problems)]
    properties = cast("object", tool.input_schema.get("properties"))
    if isinstance(properties, dict) and not tool.input_schema.keys() & {"additionalProperties", "patternProperties"}:
        lines += [f"- {line(name, 100)}: is no parameter of it" for name in given[:SHOWN] if name not in properties]
    lines.append(f"Its parameters: {parameters(tool.parameters if tool.renamed else tool.input_schema)}.")
    return _failed("\n".join(lines), Outcome.NOT_EXECUTED)


def parameters(schema: Json) -> str:
    """A schema's parameters in one line: `path (string, required), head (number)`; `none` where there are none."""
    properties = cast("object", schema.get("properties"))
    if not isinstance(properties, dict) or not properties:
        return "none"
    required = cast("object", schema.get("required"))
    wanted = set(cast("list[Any]", required)) if isinstance(required, list) else set[Any]()
    named = sorted(cast("dict[str, Any]", properties).items(), key=lambda item: item[0] not in wanted)
    told = [f"{name} ({type_of(part)}{', required' if name in wanted else ''})" for name, part in named[:SHOWN]]
    return ", ".join(told) + (f" and {len(named) - SHOWN} more" if len(named) > SHOWN else "")


def type_of(schema: object) -> str:
    """What a parameter takes, in words: `string`, `array of number`, `one of "a", "b"`; `any` where its schema says nothing."""
    if not isinstance(schema, dict):
        return "any"
    known = cast("Json", schema)
    if isinstance(known.get("enum"), list):
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False)[:40] for value in known["enum"][:SHOWN])
    for word in ("anyOf", "oneOf"):
        if isinstance(known.get(word), list):
            return " or ".join(dict.fromkeys(type_of(branch) for branch in known[word][:5]))
    kind = known.get("type", "any")
    if kind == "array" and isinstance(known.get("items"), dict):
        return f"array of {type_of(known['items'])}"
    return " or ".join(str(one) for one in cast("list[Any]", kind)) if isinstance(kind, list) else str(kind)


def _plain(name: str) -> str:
    return name.strip().casefold().replace("-", "_").replace(".", "_").replace("/", "_")


def _shown(arguments: Json | str, mask: Callable[[str], str]) -> str:
    """Arguments for events. Whatever they hold, nothing is raised: nobody has looked at them yet."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return "(arguments that are no JSON)"
    return _brief(text, mask)


def _brief(text: str, mask: Callable[[str], str]) -> str:
    """At most `EXCERPT` characters of `text`, masked before they are cut. Of a large text it is the beginning: no more is looked at."""
    if len(text) <= LOOKED_AT:
        return excerpt(mask(clean(text)), EXCERPT)
    return mask(clean(text[:LOOKED_AT]))[: EXCERPT - 1] + "…"
