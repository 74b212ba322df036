"""A person's word before a call (RUN-7): who is asked, about what, and for how long the answer holds.

An interceptor. What a server says of its tools (that they only read) counts only where the server is trusted. An answer for
good is bound to the server's launch and to the tool's definition: when one of them changes, it is asked anew. Where nobody
answers, the answer is no.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import anyio.to_thread

from toolbay._redact import trace
from toolbay._text import line, visible
from toolbay.config import writing
from toolbay.config.models import ServerConfig
from toolbay.errors import ConfigError
from toolbay.events import ApprovalAnswered, ApprovalAsked, Events, Notice
from toolbay.lock import identity
from toolbay.lock.definitions import digest
from toolbay.types import LEAVE_IT, Hints, Invocation, Json, Kind, Next, Outcome, Tool, ToolResult
from toolbay.upstream.naming import Key, wrapped

PATIENCE = 300.0
"""Seconds that a person has to answer; less than a turn may take."""
ARGUMENTS_SHOWN = 50_000
"""Characters of arguments that a person is shown; what is over is counted, and its beginning and end are shown."""
EXCERPT = 2_000
"""Characters of arguments in events, as of calls."""

_log = logging.getLogger(__name__)


class Answer(StrEnum):
    """What a person says: yes for this call, for this run of the program, for good; or no."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS = "always"
    NO = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalRequest:
    """What a person is asked. `arguments` is JSON with everything that does not show written out, and secrets hidden."""

    call_id: str
    server: str
    tool: str
    """The server's own name of it."""
    arguments: str
    reason: str


class Approver(Protocol):
    """Asks a person. One question at a time; raising, and taking longer than the patience, mean no."""

    async def ask(self, request: ApprovalRequest) -> Answer:
        """The person's answer."""
        ...


class Remembered:
    """Answers for good: one small file of the user's, and of nobody else. Deleting it, or a line of it, takes them back."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def has(self, key: str) -> bool:
        """Whether `key` was approved. A file that cannot be read has approved nothing."""
        if self._path is None:
            return False
        try:
            return key in _approved(writing.read(self._path))
        except (ConfigError, ValueError, RecursionError):
            return False

    def add(self, key: str, server: str, tool: str) -> None:
        """
        Raises:
            ConfigError: it cannot be kept.
        """
        if self._path is None:
            raise ConfigError("There is no folder for it.")
        data = writing.read(self._path)
        try:
            approved = _approved(data)
        except (ValueError, RecursionError):
            approved = {}  # it approved nothing before, and is written anew
        approved[key] = {"server": server, "tool": tool, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        text = json.dumps({"version": 1, "approved": approved}, indent=2, sort_keys=True) + "\n"
        writing.replace(self._path, text.encode(), expected=data)


def _approved(data: bytes | None) -> Json:
    document: Any = json.loads(data) if data else {}
    known = cast("Json", document) if isinstance(document, dict) else {}
    approved = known.get("approved")
    return cast("Json", approved) if isinstance(approved, dict) else {}


async def _at_once(_server: str) -> None:
    """All that is offered is listed now."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is true at a moment: a server's configuration, the tool that a name means, what must not be shown.

    `listed` waits, no longer than a start may take, while what a server offers is only what it listed before it was started.
    """

    config_of: Callable[[str], ServerConfig | None]
    tool_of: Callable[[str], Tool | None]
    mask: Callable[[str], str] = str
    listed: Callable[[str], Awaitable[None]] = _at_once


class Approvals:
    """The interceptor. Without an `approver`, what needs approval is refused."""

    def __init__(
        self,
        surroundings: Surroundings,
        *,
        events: Events,
        approver: Approver | None = None,
        remembered: Remembered | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._surroundings = surroundings
        self._events = events
        self._approver = approver
        self._remembered = remembered or Remembered(None)
        self._patience = patience
        self._session: set[str] = set()
        self._asking = anyio.Lock()

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        if not invocation.context.by_hand:
            invocation = await self._as_it_is(invocation)
        tool = invocation.tool
        config = self._surroundings.config_of(tool.server)
        reason = needs(config, tool) if config is not None else ""
        if config is None or not reason or invocation.context.by_hand:
            return await following(invocation)
        # One question at a time; while one waits, another's answer may settle it too.
        async with self._asking:
            key = key_of(config, tool)
            if not key or (key not in self._session and not self._remembered.has(key)):
                refusal = await self._ask(invocation, key, reason)
                if refusal:
                    return ToolResult(text=refusal, is_error=True, outcome=Outcome.NOT_EXECUTED)
        return await following(invocation)

    async def _as_it_is(self, invocation: Invocation) -> Invocation:
        """The call of the tool as its server lists it now, where what that says of the tool is all that keeps a person from being asked."""
        tool = invocation.tool
        config = self._surroundings.config_of(tool.server)
        if config is None or not tool.hints.read_only or needs(config, tool) or not needs(config, replace(tool, hints=Hints())):
            return invocation
        await self._surroundings.listed(tool.server)
        now = self._surroundings.tool_of(tool.name)
        if now is None or now is tool or (now.server, now.kind, now.wire_name) != (tool.server, tool.kind, tool.wire_name):
            return invocation  # what is gone, or has another name, is refused where it is sent
        return replace(invocation, tool=now)

    async def _ask(self, invocation: Invocation, key: str, reason: str) -> str:
        """Why the call may not be made; empty where a person said yes."""
        tool, call_id = invocation.tool, invocation.context.call_id
        request = ApprovalRequest(
            call_id=call_id,
            server=tool.server,
            tool=tool.wire_name,
            arguments=self._shown(invocation.arguments),
            reason=reason,
        )
        asked = ApprovalAsked(
            call_id=call_id, server=tool.server, tool=tool.name, arguments=line(request.arguments, EXCERPT), reason=reason
        )
        self._events.publish(asked)
        answer, why = await self._answer(request)
        if answer is not Answer.NO and key != self._key_now(tool):
            answer, why = Answer.NO, "it, or how its server is launched, changed while a person was asked"
        self._events.publish(ApprovalAnswered(call_id=call_id, server=tool.server, tool=tool.name, answer=answer.value, reason=why))
        if answer is Answer.NO:
            return f"{tool.name} was not called: {why}. {LEAVE_IT}"
        if key and answer is not Answer.ONCE:
            self._session.add(key)
        if key and answer is Answer.ALWAYS:
            await self._keep(key, tool)
        return ""

    async def _answer(self, request: ApprovalRequest) -> tuple[Answer, str]:
        """The answer, and why it is no."""
        if self._approver is None:
            return Answer.NO, "it needs a person's approval, and nobody is there to give it"
        answer = Answer.NO
        why = f"it needs a person's approval, and nobody answered within {self._patience:g} s"
        with anyio.move_on_after(self._patience):
            try:
                # What comes from outside our types may be any word.
                answer = Answer(await self._approver.ask(request))
                why = "a person was asked for approval and refused"
            except Exception as error:  # a broken way of asking must cost the call, and nothing else
                _log.error("The approval of %s could not be asked for.\n%s", request.tool, trace(error, self._surroundings.mask))
                why = "it needs a person's approval, which could not be asked for"
        return answer, why

    def _key_now(self, tool: Tool) -> str | None:
        config, current = self._surroundings.config_of(tool.server), self._surroundings.tool_of(tool.name)
        return key_of(config, current) if config is not None and current is not None else None

    async def _keep(self, key: str, tool: Tool) -> None:
        try:
            await anyio.to_thread.run_sync(partial(self._remembered.add, key, tool.server, tool.wire_name))
        except ConfigError as error:
            text = f"the approval of {line(tool.wire_name, 80)} holds for this session only, because it cannot be kept: {error}"
            self._events.publish(Notice(server=tool.server, text=text))

    def _shown(self, arguments: Json) -> str:
        text = visible(self._surroundings.mask(json.dumps(arguments, ensure_ascii=False, indent=2, default=str)))
        if len(text) <= ARGUMENTS_SHOWN:
            return text
        half = ARGUMENTS_SHOWN // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def needs(config: ServerConfig, tool: Tool) -> str:
    """Why a person must be asked before a call of `tool`; empty where nobody must.

    Under `writes`, reading a resource or having a prompt filled in is no write: the protocol says so, not the server. In a
    mapping, names are the server's own or wrapped ones, or patterns; `always` wins where several fit, and what no entry
    names is not asked about.
    """
    policy = config.approval
    if not isinstance(policy, str):
        plain = wrapped(Key(tool.server, tool.kind, tool.wire_name))
        names = {tool.wire_name, tool.name, plain}
        fitting = {word for entry, word in policy.items() if any(fnmatchcase(name, entry) for name in names)}
        return "the configuration wants it for this tool" if "always" in fitting else ""
    if policy == "always":
        return "the configuration wants it for every call to this server"
    if policy == "never" or tool.kind in (Kind.RESOURCE, Kind.PROMPT) or (config.trusted and tool.hints.read_only):
        return ""
    if tool.hints.read_only:
        return "the server says that it only reads, but is not marked as trusted"
    return "it may change something"


def key_of(config: ServerConfig, tool: Tool) -> str:
    """What an answer is bound to: the server's name and launch, and all of the tool that a model or a person goes by.

    Empty where the definition is nested too deep for a digest: such a tool is asked about each time.
    """
    hints = tool.hints
    annotations = [hints.read_only, hints.destructive, hints.idempotent, hints.open_world]
    definition = [tool.wire_name, tool.kind.value, tool.title, tool.description, tool.input_schema, annotations]
    return digest([tool.server, identity(config), definition])
