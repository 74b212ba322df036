"""All configured servers: one owner task each, started side by side, and one snapshot of what they offer together.

The fleet applies plans and publishes snapshots. It does not know who calls the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from toolbay.assembly import Assembly
from toolbay.berths import Berths
from toolbay.config.models import InvalidServer, ServerConfig
from toolbay.errors import ConfigError
from toolbay.events import Events
from toolbay.freshness import Freshness
from toolbay.lock import Finding, Lock, Offered, Verdicts
from toolbay.quarantine import Quarantine
from toolbay.recollections import Recalled, Recollections
from toolbay.reconcile import plan
from toolbay.registry import Registry, Snapshot
from toolbay.settling import Seen, Settling
from toolbay.types import ArtifactStore, Json, Reloaded, Subject, Tool, ToolResult
from toolbay.upstream.capabilities import get_prompt, read_resource
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import OpenEngine
from toolbay.upstream.engines import official
from toolbay.upstream.listing import Listing, masked
from toolbay.upstream.naming import stem
from toolbay.upstream.state import State

RELOAD_PATIENCE = 12.0
"""Seconds that a reload waits for the servers that it touched; those that need longer go on by themselves.

Less than whoever asks over the bus waits for an answer.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatus:
    """One server at one moment, for people. Everything that the server said is its own claim."""

    name: str
    state: str
    """As `toolbay.events.ServerChanged` explains it; `idle` before its start, `invalid` where its entry cannot be used."""
    error: str = ""
    settled: bool = False
    """Whether its last start has come to a result; where it is not ready then, `error` says why, and further attempts may follow."""
    retry_in: float | None = None
    """Seconds until it is tried again, where it is `waiting` or `paused`."""
    restarts: int = 0
    """How often it was started again, or that was tried."""
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
    remembered: bool = False
    """Whether what it offers is what it listed in the last run, since it is not up yet."""


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
        recollections: Recollections | None = None,
    ) -> None:
        """Without `recollections` nothing is known of a server before it is up."""
        self._registry = registry
        self.safe_of: Callable[[str, ServerConfig], Callable[[str], str]] = lambda _name, _config: registry.mask
        """What masks the texts of a server: as the registry does it, where nobody sets another one."""
        registry.missing = self._missing
        self._events = events
        self._artifacts = artifacts
        self._builtin = tuple(builtin)
        self._open_engine = open_engine
        self._environ = environ
        self._recollections = recollections
        self._recalled = Recalled()
        self._berths = Berths(self._made, on_change=self._publish)
        self.listed, self.authorized, self.unauthorized = self._berths.listed, self._berths.authorized, self._berths.unauthorized
        self.begun, self.anew = self._berths.begun, self._berths.anew
        self._invalid: dict[str, InvalidServer] = {}
        self._assembly = Assembly(artifacts)
        self._quarantine = Quarantine()
        self._freshness = Freshness()
        self._changed, self._applying = anyio.Event(), anyio.Lock()

    async def __aenter__(self) -> Self:
        await self._berths.__aenter__()
        self._publish("")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return await self._berths.__aexit__(kind, error, trace)

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, ServerStatus]:
        """Every configured server that is not disabled, by name, sorted."""
        known = {name: _status(connection, self._quarantine.of(connection)) for name, connection in self._berths.serving.items()}
        known |= {name: ServerStatus(name=name, state="invalid", error=entry.reason, settled=True) for name, entry in self._invalid.items()}
        return dict(sorted(known.items()))

    def listing(self, server: str) -> Listing | None:
        """What a server listed, as it came, without what is quarantined; None while it is not there."""
        connection = self._berths.serving.get(server)
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
            return self._berths.serving[server]
        except KeyError:
            if server in self._invalid:
                raise ConfigError(f"the server {server!r} cannot be used: {self._invalid[server].reason}") from None
            known = ", ".join(sorted(self._berths.serving)) or "none"
            raise ConfigError(f"there is no server named {server!r} (configured: {known})") from None

    def _missing(self, tool: str) -> str | None:
        """Why `tool` is not there, where it can only be one of a server that is not there."""
        owners = [server for server in (*self._berths.serving, *self._invalid) if tool.startswith(stem(server))]
        if not owners:
            return None
        server = max(owners, key=len)
        if server in self._invalid:
            return self._invalid[server].reason
        standing = self._berths.serving[server].standing
        if standing.state in (State.IDLE, State.CONNECTING):
            return f"{server} is still being started"
        refusal = standing.refusal(server, anyio.current_time())
        return None if standing.state is State.READY or refusal is None else str(refusal)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def settle(self, quiet: float | None = 3.0, *, warm: bool = False) -> None:
        """Return when every server is ready or has failed once; or when one is ready and no other came up for `quiet` seconds.

        A server that never answers cannot be told from a slow one, so the others are waited for only as long as servers
        come up for the first time, and ten times `quiet` in all. None waits for every one, as long as its `startupTimeout`
        allows. `warm` takes a server for ready whose lists are known from the last run, and does not wait for one that was
        waited for in vain then.
        """
        missed = [connection for name, connection in self._berths.serving.items() if warm and name in self._recalled.missed]
        wait = Settling(quiet, at=anyio.current_time(), passed_over=missed)
        while left := wait.left(_seen(self._berths.serving.values(), warm=warm), anyio.current_time()):
            with anyio.move_on_after(left):
                await self._changed.wait()
        if self._recollections is not None:
            self._recollections.miss(wait.missed)

    async def ready(self, server: str) -> ServerStatus:
        """Wait until one server is ready or has failed once, and say which.

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
        budget: int | None = None,
        lock: Lock | None = None,
        wait: bool = True,
    ) -> Reloaded:
        """Go from the servers that run to those of a configuration. One at a time; the last one asked for wins.

        Untouched servers keep their connection and their running calls. `wait`: for those that were started here, until they
        are ready or have failed, for 12 s at the most. `lock`, and `budget` (characters of a result): None leaves it as it is.
        """
        async with self._applying:
            self._quarantine.lock = lock or self.lock
            self._assembly.budget = budget or self._assembly.budget
            self._invalid = {name: entry for name, entry in servers.items() if isinstance(entry, InvalidServer)}
            new = {name: entry for name, entry in servers.items() if isinstance(entry, ServerConfig)}
            steps = plan(self._berths.configs, new, self._berths.down)
            before = frozenset(self._registry.tools)
            if self._recollections is not None:
                self._recalled = await self._recollections.recall({name: new[name] for name in (*steps.start, *steps.restart)})
            for name in (*steps.stop, *steps.restart):
                self._assembly.forget(name)
                self._freshness.forget(name)
            touched = (*steps.start, *steps.restart, *steps.retry)
            with anyio.move_on_after(RELOAD_PATIENCE):
                await self._berths.carry_out(steps, new)
                if wait:
                    await self._berths.wait_for(touched)
            status = {name: one for name, one in self.servers.items() if name in touched and name not in self._berths.changing}
            return Reloaded(
                added=steps.start,
                changed=tuple(sorted((*steps.restart, *steps.refilter))),
                removed=steps.stop,
                retried=steps.retry,
                connected=tuple(name for name in touched if name in status and status[name].state == State.READY),
                failed=tuple(name for name in touched if name in status and status[name].settled and status[name].state != State.READY),
                tools_removed=tuple(sorted(before - frozenset(self._registry.tools))),
            )

    def _made(self, name: str, config: ServerConfig) -> Connection:
        known, safe = self._recalled.known.pop(name, None), self.safe_of(name, config)
        connection = Connection(
            name,
            config,
            events=self._events,
            open_engine=self._open_engine,
            environ=self._environ,
            safe=safe,
            remembered=masked(known.listing, safe) if known else None,
        )
        if known is not None:
            connection.info = replace(known.info, instructions=safe(known.info.instructions))
        connection.prepare = partial(self._assembly.prepare, connection)
        connection.on_listing = partial(self._listed, connection)
        connection.on_change = partial(self._turned, connection)
        connection.admit = partial(self._admit, connection)
        return connection

    def _admit(self, connection: Connection, subject: Subject | None, params: Json) -> None:
        self._quarantine.admit(connection, subject)
        self._freshness.admit(connection, subject, params, self._registry.snapshot.nearest)

    def _listed(self, connection: Connection) -> None:
        self._note(connection)
        self._publish(connection.name)

    def _turned(self, connection: Connection) -> None:
        self._note(connection)
        self._wake()

    def _note(self, connection: Connection) -> None:
        if self._recollections is not None:
            self._recollections.note(connection)

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
        return tuple(
            finding for name in sorted(self._berths.serving) for finding in self._quarantine.of(self._berths.serving[name]).findings
        )

    def offered(self, server: str) -> Offered | None:
        """What a server offers now, for `Lock.accept`; None while it is not there.

        Raises:
            ConfigError: there is no such server, or its entry cannot be used.
        """
        connection = self._connection(server)
        return None if connection.remembered else self._quarantine.offered(connection)

    # -- the snapshot -------------------------------------------------------------------------------------------------

    def _publish(self, server: str) -> None:
        """Swap the registry's snapshot for what all servers offer now. `server` is the one that changed, or empty."""
        for connection in self._berths.serving.values():
            self._freshness.see(connection)
        judged = {name: self._quarantine.of(connection) for name, connection in self._berths.serving.items()}
        tools, news = self._assembly.tools(self._berths.serving, judged)
        for notice in news:
            self._events.publish(notice)
        described = {name: connection.config.description for name, connection in self._berths.serving.items()}
        self._registry.swap(Snapshot.of((*self._builtin, *tools), descriptions=described), server)
        self._wake()


def _seen(connections: Iterable[Connection], *, warm: bool) -> dict[Connection, Seen]:
    return {one: Seen(up=one.state is State.READY or (warm and one.remembered), settled=one.standing.settled) for one in connections}


def _status(connection: Connection, verdicts: Verdicts) -> ServerStatus:
    listing = connection.listing or Listing()
    ready = connection.state is State.READY
    info = connection.info
    return ServerStatus(
        name=connection.name,
        state=connection.state.value,
        error="" if ready or connection.error is None else str(connection.error),
        settled=connection.standing.settled,
        retry_in=connection.standing.retry_in,
        restarts=max(connection.standing.starts - 1, 0),
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
        remembered=connection.remembered,
    )
