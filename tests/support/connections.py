"""A connection with its owner task, its events kept, and its end bounded."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from support import servers
from toolbay._redact import mask
from toolbay.errors import CallError, ConnectionFailed, ConnectionLost
from toolbay.events import Event, Events, ServerChanged
from toolbay.types import Hints, Json, Kind, Progress
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import Budget, OpenEngine
from toolbay.upstream.engines import official
from toolbay.upstream.naming import Key
from toolbay.upstream.repeats import repeat_of

BOUND = 30.0
"""Seconds for anything that is no test of a bound: this machine may be slow."""


def raw(*faults: str | Path, env: Mapping[str, str] | None = None) -> servers.Entry:
    """`servers.raw` without site packages: it starts in a fraction of the time."""
    return servers.stdio(sys.executable, "-IS", servers.SERVERS / "raw_server.py", *faults, env=env)


@dataclass
class Heard:
    """All events of one fan-out."""

    events: list[Event] = field(default_factory=list[Event])

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.events if isinstance(event, ServerChanged)]


@dataclass
class Link:
    """A connection, and shorter words for what tests ask of it."""

    connection: Connection
    heard: Heard

    async def call(
        self,
        tool: str,
        arguments: Json | None = None,
        *,
        patience: float = BOUND,
        ceiling: float = 60.0,
        repeatable: bool = False,
        **more: Any,
    ) -> str:
        """The text of a result; the errors of `Connection.request`. `repeatable`: a trusted server says that it only reads."""
        params = {"name": tool, "arguments": arguments or {}}
        config = self.connection.config.model_copy(update={"trusted": repeatable})
        repeat = repeat_of(config, Key(self.connection.name, Kind.TOOL, tool), Hints(read_only=repeatable))
        budget = Budget(timeout=patience, ceiling=ceiling)
        result = await self.connection.request("tools/call", params, budget=budget, repeat=repeat, **more)
        return "\n".join(block.get("text", "") for block in result["content"])

    async def outcome(self, tool: str, arguments: Json | None = None, **more: Any) -> str | Exception:
        """The text, or the error that people would see."""
        try:
            return await self.call(tool, arguments, **more)
        except (CallError, ConnectionLost, ConnectionFailed) as error:
            return error

    @property
    def state(self) -> str:
        return self.connection.state.value

    @property
    def pid(self) -> int:
        assert self.connection.diagnostics.pid is not None
        return self.connection.diagnostics.pid

    @property
    def tools(self) -> list[str]:
        assert self.connection.listing is not None
        return [tool["name"] for tool in self.connection.listing.tools]

    async def reaches(self, state: str, seconds: float = BOUND) -> None:
        """Wait for a state without missing one that is passed quickly."""
        with anyio.fail_after(seconds):
            while self.state != state:
                await self.connection.standing.wait_change()


@asynccontextmanager
async def linked(entry: Mapping[str, Any], *, name: str = "s", open_engine: OpenEngine = official, **more: Any) -> AsyncGenerator[Link]:
    """A connection whose owner runs; settled when the block begins, closed when it ends."""
    async with started(entry, name=name, open_engine=open_engine, **more) as link:
        with anyio.fail_after(60):
            await link.connection.wait_settled()
        yield link


@asynccontextmanager
async def started(entry: Mapping[str, Any], *, name: str = "s", open_engine: OpenEngine = official, **more: Any) -> AsyncGenerator[Link]:
    """As `linked`, without waiting for the server."""
    events, heard = Events(), Heard()
    secrets = frozenset(str(value) for value in more.pop("secrets", ()))
    remembered = more.pop("remembered", None)
    connection = Connection(
        name,
        servers.config(entry, **more),
        events=events,
        open_engine=open_engine,
        safe=lambda text: mask(text, secrets),
        remembered=remembered,
    )
    with events.listen(heard.events.append):
        async with anyio.create_task_group() as group:
            group.start_soon(connection.run, name=f"owner of {name}")
            try:
                yield Link(connection, heard)
            finally:
                connection.stop()
                with anyio.CancelScope(shield=True), anyio.fail_after(BOUND):
                    await connection.wait_closed()


def into(progress: list[Progress]) -> Any:
    """An `on_progress` that keeps what it is told."""
    return progress.append
