"""The start of a server as it happened: an engine like any other, overheard.

`Recording` opens what another `OpenEngine` opens and keeps the facts: each step of the start with its time, the versions that
were offered, what the process left.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from toolbay._lenient import as_object, as_text
from toolbay._text import line
from toolbay.diagnosis.findings import Step
from toolbay.types import Json
from toolbay.upstream.engine import Diagnostics, Engine, OpenEngine, Opening

MOST = 40
"""Requests of a start that are kept: a list may have many pages."""
_OURS = -32000
_VERSION = "io.modelcontextprotocol/protocolVersion"
_KEYS = {"tools/list": "tools", "resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}


@dataclass(kw_only=True, slots=True)
class _Request:
    method: str
    sent: float
    answered: float | None = None
    said: str = ""


@dataclass(kw_only=True, slots=True)
class Start:
    """The facts of one start. Times are on the loop's clock."""

    began: float
    diagnostics: Diagnostics
    offered: list[str] = field(default_factory=list[str])
    """Versions of the protocol that were offered, in order."""
    answered: bool = False
    _requests: dict[Any, _Request] = field(default_factory=dict[Any, "_Request"])

    def heard(self, ours: bool, message: Json) -> None:
        """Take a message, in the order in which they pass."""
        method, number = message.get("method"), message.get("id")
        if not ours:
            self.answered = True
        if ours and isinstance(method, str) and number is not None and len(self._requests) < MOST:
            self._requests[str(number)] = _Request(method=method, sent=anyio.current_time())
            self._offer(method, as_object(message.get("params")))
        elif not ours and method is None and (request := self._requests.get(str(number))) is not None:
            request.answered = anyio.current_time()
            request.said = _outcome(request.method, message)

    def _offer(self, method: str, params: Json) -> None:
        offered = params.get("protocolVersion") if method == "initialize" else as_object(params.get("_meta")).get(_VERSION)
        if method in ("initialize", "server/discover") and isinstance(offered, str):
            self.offered.append(offered)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The start, step by step; each with the time it took by itself, but for the process, which is timed from the start."""
        found: list[Step] = []
        if self.diagnostics.spawned is not None:
            found.append(Step(name="spawn", seconds=self.diagnostics.spawned - self.began, said=f"pid {self.diagnostics.pid}"))
            spoke = self.diagnostics.spoke()
            # What comes after it was asked is timed from there: until then there was nothing to answer.
            asked = [at for at in (request.sent for request in self._requests.values()) if spoke is not None and at <= spoke]
            seconds = None if spoke is None else spoke - min(asked, default=self.diagnostics.spawned)
            found.append(Step(name="first byte", seconds=seconds, said="" if spoke is not None else "nothing came"))
        for request in self._requests.values():
            seconds = None if request.answered is None else request.answered - request.sent
            found.append(Step(name=request.method, seconds=seconds, said=request.said or "no answer"))
        if (code := self.diagnostics.exit_code()) is not None:
            found.append(Step(name="end", seconds=None, said=f"exit code {code}" if code >= 0 else f"ended by signal {-code}"))
        return tuple(found)


class Recording:
    """An `OpenEngine` that keeps the first start of each server by its name; one that is started again counts as it first was."""

    def __init__(self, inner: OpenEngine) -> None:
        self._inner = inner
        self.starts: dict[str, Start] = {}

    @asynccontextmanager
    async def __call__(self, opening: Opening) -> AsyncGenerator[Engine]:
        if opening.name not in self.starts:
            start = self.starts[opening.name] = Start(began=anyio.current_time(), diagnostics=opening.diagnostics)
            opening.diagnostics.on_message = start.heard
        async with self._inner(opening) as engine:
            yield engine


def _outcome(method: str, message: Json) -> str:
    """What an answer said, in a few words."""
    error = as_object(message.get("error"))
    if error:
        # What the transport met in the place of an answer is no code of the server's.
        code = "" if error.get("code") == _OURS else f"error {error.get('code')}: "
        return line(f"{code}{as_text(error.get('message'))}", 160)
    result = as_object(message.get("result"))
    if method == "initialize":
        return f"agreed on {line(as_text(result.get('protocolVersion')), 40) or 'no version'}"
    if method == "server/discover":
        offered: Any = result.get("supportedVersions")
        return f"it offers {line(', '.join(map(str, offered)), 100)}" if isinstance(offered, list) else "it offers no version"  # pyright: ignore[reportUnknownArgumentType]
    items: Any = result.get(_KEYS.get(method, ""))
    return f"{len(items)} listed" if isinstance(items, list) else ""  # pyright: ignore[reportUnknownArgumentType]
