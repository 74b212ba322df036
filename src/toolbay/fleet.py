"""All configured servers: one owner task each, started side by side, and one snapshot of what they offer together.

The fleet applies plans and publishes snapshots. It does not know who calls the tools.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from toolbay._redact import mask
from toolbay.assembly import Assembly
from toolbay.config.models import InvalidServer, ServerConfig
from toolbay.errors import ConfigError
from toolbay.events import Events
from toolbay.lock import Finding, Lock, Offered, Verdicts
from toolbay.quarantine import Quarantine
from toolbay.reconcile import plan
from toolbay.registry import Registry, Snapshot
from toolbay.types import ArtifactStore, Json, Tool, ToolResult
from toolbay.upstream.capabilities import get_prompt, read_resource
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import OpenEngine
from toolbay.upstream.engines import official
from toolbay.upstream.listing import Listing
from toolbay.upstream.state import SETTLED, State

RELOAD_PATIENCE = 15.0
"""Seconds that a reload waits for the servers that it touched; those that need longer go on by themselves."""

_log = logging.getLogger("toolbay.fleet")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatus:
    """One server at one moment, for people. Everything that the server said is its own claim."""

    name: str
    state: str
    error: str = ""
    type: str = ""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    quarantined: int = 0
    """How much of what it listed is not offered, because it is not as it was pinned."""
    protocol: str = ""
    title: str = ""
    seconds: float = 0.0
    stderr: tuple[str, ...] = ()
    pid: int | None = None
    instructions: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reloaded:
    """What a reload did, by names of servers; `tools_removed` are names of tools."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    connected: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()


class Fleet:
    """The connections. An async context manager: leaving it closes every server, in bounded time (LIF-1)."""

    def __init__(
        self,
        registry: Registry,
        *,
        events: Events,
        artifacts: ArtifactStore,
        builtin: Iterable[Tool] = (),
        open_engine: OpenEngine = official,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._registry = registry
        self._events = events
        self._artifacts = artifacts
        self._builtin = tuple(builtin)
        self._open_engine = open_engine
        self._environ = environ
        self._connections: dict[str, Connection] = {}
        self._invalid: dict[str, InvalidServer] = {}
        self._assembly = Assembly(artifacts)
        self._quarantine = Quarantine()
        self._secrets: frozenset[str] = frozenset()
        self._changed = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None
        self._applying = anyio.Lock()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._publish("")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        assert self._group is not None
        connections = list(self._connections.values())
        for connection in connections:
            connection.stop()
        try:
            # A cancelled owner closes its server as well, shielded and bounded; waiting here keeps one way out.
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.wait_closed()
        except BaseException as cut:
            # A second Ctrl-C passes every shield. Whoever leaves, leaves the group: it waits for all owners, however often it is cut.
            await self._group.__aexit__(type(cut), cut, cut.__traceback__)
            raise
        # No owner raises, so the group has nothing to say of what its user raised: who is told of it, would wrap it.
        await self._group.__aexit__(None, None, None)
        return None

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, ServerStatus]:
        """Every configured server that is not disabled, by name, sorted."""
        known = {name: _status(connection, self._quarantine.of(connection)) for name, connection in self._connections.items()}
        known |= {name: ServerStatus(name=name, state="invalid", error=entry.reason) for name, entry in self._invalid.items()}
        return dict(sorted(known.items()))

    def listing(self, server: str) -> Listing | None:
        """What a server listed, as it came, without what is quarantined; None while it is not there."""
        connection = self._connections.get(server)
        return self._quarantine.listing(connection) if connection else None

    async def prompt(self, server: str, name: str, arguments: Json) -> ToolResult:
        """One of a server's prompts, filled in.

        Raises:
            ConfigError: there is no such server. Others as `upstream.capabilities.get_prompt`.
        """
        return await get_prompt(self._connection(server), name, arguments, self._artifacts, self._assembly.budget)

    async def resource(self, server: str, uri: str) -> ToolResult:
        """One of a server's resources.

        Raises:
            ConfigError: there is no such server. Others as `upstream.capabilities.read_resource`.
        """
        return await read_resource(self._connection(server), uri, self._artifacts, self._assembly.budget)

    def _connection(self, server: str) -> Connection:
        try:
            return self._connections[server]
        except KeyError:
            if server in self._invalid:
                raise ConfigError(f"the server {server!r} cannot be used: {self._invalid[server].reason}") from None
            known = ", ".join(sorted(self._connections)) or "none"
            raise ConfigError(f"there is no server named {server!r} (configured: {known})") from None

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def settle(self, quiet: float | None = 3.0) -> None:
        """Return when every server is ready or has failed; or when one is ready and nothing changed for `quiet` seconds.

        A server that never answers cannot be told from a slow one, so the others are waited for only as long as servers
        keep coming up. None waits for every one, as long as its `startupTimeout` allows.
        """
        while any(connection.state not in SETTLED for connection in self._connections.values()):
            patience = quiet if any(connection.state is State.READY for connection in self._connections.values()) else None
            with anyio.move_on_after(patience) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                return

    async def ready(self, server: str) -> ServerStatus:
        """Wait until one server is ready or has failed, and say which.

        Raises:
            ConfigError: there is no such server, or its entry cannot be used.
        """
        connection = self._connection(server)
        await connection.wait_settled()
        return _status(connection, self._quarantine.of(connection))

    # -- change -------------------------------------------------------------------------------------------------------

    async def apply(
        self,
        servers: Mapping[str, ServerConfig | InvalidServer],
        *,
        secrets: frozenset[str] = frozenset(),
        budget: int = 16_000,
        lock: Lock | None = None,
        wait: bool = True,
    ) -> Reloaded:
        """Go from the servers that run to those of a configuration (LIF-4). One at a time; the last one asked for wins.

        Untouched servers keep their connection and their running calls. `wait` waits for the servers that were started
        here until they are ready or have failed, for 15 s at the most. `lock` (None: as before) judges what they offer.
        """
        async with self._applying:
            self._quarantine.lock = lock or self.lock
            self._assembly.budget = budget
            self._secrets |= secrets  # what was a secret once must not be shown later
            self._invalid = {name: entry for name, entry in servers.items() if isinstance(entry, InvalidServer)}
            new = {name: entry for name, entry in servers.items() if isinstance(entry, ServerConfig)}
            old = {name: connection.config for name, connection in self._connections.items()}
            failed = frozenset(
                name for name, connection in self._connections.items() if connection.state in (State.FAILED, State.NEEDS_AUTH)
            )
            steps = plan(old, new, failed)
            before = frozenset(self._registry.tools)
            await self._close(*steps.stop, *steps.restart)
            for name in (*steps.refilter, *steps.retry):
                self._connections[name].config = new[name]
            for name in (*steps.start, *steps.restart):
                self._open(name, new[name])
            for name in steps.retry:
                self._connections[name].start()
            self._publish("")
            touched = (*steps.start, *steps.restart, *steps.retry)
            if wait:
                await self._wait_for(touched)
            status = self.servers
            return Reloaded(
                added=steps.start,
                changed=tuple(sorted((*steps.restart, *steps.refilter))),
                removed=steps.stop,
                retried=steps.retry,
                connected=tuple(name for name in touched if status[name].state == State.READY),
                failed=tuple(name for name in touched if status[name].state in (State.FAILED, State.NEEDS_AUTH)),
                tools_removed=tuple(sorted(before - frozenset(self._registry.tools))),
            )

    async def _wait_for(self, names: Iterable[str]) -> None:
        with anyio.move_on_after(RELOAD_PATIENCE):
            for name in names:
                await self._connections[name].wait_settled()

    async def _close(self, *names: str) -> None:
        leaving = [self._connections.pop(name) for name in names]
        for connection in leaving:
            connection.on_listing = lambda: None
            self._assembly.forget(connection.name)
            connection.stop()
        for connection in leaving:
            await connection.wait_closed()

    def _open(self, name: str, config: ServerConfig) -> None:
        assert self._group is not None, "enter the fleet first"
        connection = Connection(name, config, events=self._events, open_engine=self._open_engine, environ=self._environ, safe=self._safe)
        connection.on_listing = lambda: self._publish(name)
        connection.on_change = self._wake
        connection.admit = partial(self._quarantine.admit, connection)
        self._connections[name] = connection
        self._group.start_soon(self._guard, connection, name=f"owner of {name}")

    async def _guard(self, connection: Connection) -> None:
        """An owner that fails in a way nobody foresaw costs its own server only."""
        try:
            await connection.run()
        except Exception:
            _log.exception("the owner of %s failed", connection.name)
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # -- what is pinned -----------------------------------------------------------------------------------------------

    @property
    def lock(self) -> Lock:
        """The pinned definitions; setting another lock judges everything anew, at once."""
        return self._quarantine.lock

    @lock.setter
    def lock(self, lock: Lock) -> None:
        self._quarantine.lock = lock
        self._publish("")

    @property
    def quarantine(self) -> tuple[Finding, ...]:
        """Everything that is not as it was pinned, and so not offered, by server."""
        return tuple(finding for name in sorted(self._connections) for finding in self._quarantine.of(self._connections[name]).findings)

    def offered(self, server: str) -> Offered | None:
        """What a server offers now, for `Lock.accept`; None while it is not there.

        Raises:
            ConfigError: there is no such server, or its entry cannot be used.
        """
        return self._quarantine.offered(self._connection(server))

    # -- the snapshot -------------------------------------------------------------------------------------------------

    def _publish(self, server: str) -> None:
        """Swap the registry's snapshot for what all servers offer now. `server` is the one that changed, or empty."""
        judged = {name: self._quarantine.of(connection) for name, connection in self._connections.items()}
        tools, news = self._assembly.tools(self._connections, judged)
        for notice in news:
            self._events.publish(notice)
        described = {name: connection.config.description for name, connection in self._connections.items()}
        self._registry.swap(Snapshot.of((*self._builtin, *tools), descriptions=described), server)

    def _safe(self, text: str) -> str:
        return mask(text, self._secrets)


def _status(connection: Connection, verdicts: Verdicts) -> ServerStatus:
    listing = connection.listing or Listing()
    ready = connection.state is State.READY
    info = connection.info
    return ServerStatus(
        name=connection.name,
        state=connection.state.value,
        error="" if ready or connection.error is None else str(connection.error),
        type=connection.config.type.value,
        tools=len(listing.tools),
        resources=len(listing.resources) + len(listing.templates),
        prompts=len(listing.prompts),
        quarantined=len(verdicts.findings),
        protocol=info.protocol,
        title=f"{info.name} {info.version}".strip(),
        seconds=connection.seconds if ready else 0.0,
        stderr=tuple(connection.safe(text) for text in connection.diagnostics.stderr()),
        pid=connection.diagnostics.pid if ready else None,
        instructions=info.instructions if verdicts.instructions and connection.listing else "",
        description=connection.config.description,
    )
