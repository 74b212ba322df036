"""Who serves under which name: one running connection a name, and how another one comes in its place.

A program that changed has ended before its successor starts: two of it might want the same port, lock or profile. A server
over HTTP has no such things, so its old connection serves until the new one has settled, and then finishes what is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from toolbay._aio import first_finished
from toolbay._redact import trace
from toolbay.config.models import ServerConfig, TransportType
from toolbay.reconcile import Plan, refiltered
from toolbay.upstream.connection import Connection
from toolbay.upstream.state import DOWN, Happening, State

DRAIN = 30.0
"""Seconds in which calls on a connection that was replaced or removed may finish."""
BEGUN = frozenset({State.READY, State.CONNECTING, State.WAITING})
"""States of a server that has something of a session, or is about to have it again by itself."""

_log = logging.getLogger("toolbay.fleet")


class Berths:
    """An async context manager: leaving it closes every connection, in bounded time (LIF-1)."""

    def __init__(self, make: Callable[[str, ServerConfig], Connection], *, on_change: Callable[[str], None]) -> None:
        """`make` gives a connection that nobody runs yet. `on_change` hears the name whose connection is another one now."""
        self.serving: dict[str, Connection] = {}
        """The connection of each name. Only this class changes it."""
        self._make = make
        self._on_change = on_change
        self._coming: dict[str, Connection] = {}
        self._running: set[Connection] = set()
        self._finishing: set[Connection] = set()
        """Removed ones whose calls have not ended yet."""
        self._taken_over = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        assert self._group is not None
        running = tuple(self._running)
        for connection in running:
            connection.stop()
        try:
            # A cancelled owner closes its server as well, shielded and bounded; waiting here keeps one way out.
            with anyio.CancelScope(shield=True):
                for connection in running:
                    await connection.wait_closed()
            self._group.cancel_scope.cancel()  # what is left waits for calls on connections that are closed now
        except BaseException as cut:
            # A second Ctrl-C passes every shield. Whoever leaves, leaves the group: it waits for all owners, however often it is cut.
            await self._group.__aexit__(type(cut), cut, cut.__traceback__)
            raise
        # No owner raises, so the group has nothing to say of what its user raised: who is told of it, would wrap it.
        await self._group.__aexit__(None, None, None)
        return None

    # -- what is wanted -----------------------------------------------------------------------------------------------

    @property
    def configs(self) -> dict[str, ServerConfig]:
        """What each name was last given; a server whose owner is gone was given nothing."""
        newest = {**self.serving, **self._coming}
        return {name: connection.config for name, connection in newest.items() if connection.state is not State.CLOSED}

    @property
    def down(self) -> frozenset[str]:
        """Names whose server is not up and is not being connected at this moment."""
        return frozenset(name for name, connection in {**self.serving, **self._coming}.items() if connection.state in DOWN)

    @property
    def changing(self) -> frozenset[str]:
        """Names under which an old connection still serves."""
        return frozenset(self._coming)

    async def carry_out(self, steps: Plan, wanted: Mapping[str, ServerConfig]) -> None:
        """Do what a plan says, and return when what was to end has ended.

        What starts is started first, filters and timeouts hold at once, and nobody waits for another one's end.
        """
        for name in [name for name, connection in self.serving.items() if connection.state is State.CLOSED]:
            del self.serving[name]
        for name in (*steps.refilter, *steps.retry):
            for connection in self._all_of(name):
                connection.config = refiltered(connection.config, wanted[name])
        for name in steps.start:
            self._open(name, wanted[name])
        for name in steps.retry:
            self._newest(name).start()
        leaving = [left for name in steps.stop for left in self._remove(name, disabled=name in wanted)]
        for name in steps.restart:
            leaving += self._replace(name, wanted[name])
        self._on_change("")
        for connection in leaving:
            await connection.wait_closed()

    async def wait_for(self, names: Iterable[str]) -> None:
        """Return when each of these servers has come to a first result, and serves under its name."""
        for name in names:
            await self._newest(name).wait_settled()
            while name in self._coming:
                await self._taken_over.wait()

    async def listed(self, name: str) -> None:
        """Wait while what a server offers is not what it lists now: until it is ready or has failed, or its `startupTimeout` is over."""
        connection = self.serving.get(name)
        if connection is not None:
            with anyio.move_on_after(connection.config.startup_timeout):
                await connection.wait_settled()

    def unauthorized(self) -> dict[str, ServerConfig]:
        """The servers that a login may help: those that want one, and those that another attempt as it is would not."""
        every = [*self._coming.items(), *self.serving.items()]
        return {name: connection.config for name, connection in every if connection.state in (State.NEEDS_AUTH, State.FAILED)}

    def begun(self) -> dict[str, ServerConfig]:
        """The servers that are up, or being brought up: they know, or are about to learn, what there is for who is logged in."""
        every = [*self._coming.items(), *self.serving.items()]
        return {name: connection.config for name, connection in every if connection.state in BEGUN}

    def anew(self, name: str) -> None:
        """Somebody else is logged in from now on, or nobody: another session takes the place of what was begun before.

        Calls under way may finish on the old one, which belongs to who was logged in then. Until the new one has listed what there is,
        nothing is offered.
        """
        old = self.serving.get(name)
        if old is None or old.state not in BEGUN:
            return
        config = self._newest(name).config
        if (given_up := self._coming.pop(name, None)) is not None:
            given_up.retire()
            given_up.stop()
            self._announce()
        old.retire()
        why = f"the login with {name} has ended, or is another one by now"
        if old.state is State.READY:
            self._let_finish(old, why)
        else:
            old.stop(why)
        self._open(name, config)
        self._on_change(name)

    def authorized(self, name: str) -> None:
        """There is a login for this server: where it is down it is asked again at once."""
        for connection in self._all_of(name):
            connection.start(Happening.AUTHORIZED if connection.state is State.NEEDS_AUTH else Happening.START)

    def _newest(self, name: str) -> Connection:
        return self._coming.get(name) or self.serving[name]

    def _all_of(self, name: str) -> list[Connection]:
        return [held[name] for held in (self.serving, self._coming) if name in held]

    # -- coming and going ---------------------------------------------------------------------------------------------

    def _leave(self, name: str, why: str) -> list[Connection]:
        """Ask all of this name to close."""
        leaving = [held.pop(name) for held in (self._coming, self.serving) if name in held]
        for connection in leaving:
            connection.on_listing = lambda: None
            connection.stop(why)
        return leaving

    def _remove(self, name: str, *, disabled: bool) -> list[Connection]:
        """Nobody wants this name any more. Gives those whose end must be waited for: not one whose calls may finish first."""
        why = f"{name} was disabled in the configuration" if disabled else f"{name} has no usable entry in the configuration any more"
        serving = self.serving.get(name)
        if serving is None or serving.state is not State.READY or not serving.turns.under_way:
            return self._leave(name, why)
        del self.serving[name]
        serving.on_listing = lambda: None
        self._let_finish(serving, why)
        return self._leave(name, why)

    def _let_finish(self, connection: Connection, why: str) -> None:
        self._finishing.add(connection)
        assert self._group is not None
        self._group.start_soon(self._finish, connection, why, name=f"last calls of {connection.name}")

    async def _finish(self, connection: Connection, why: str) -> None:
        """Close a connection once its calls have ended, which may take so long only, or once its server has gone away.

        One that is refused meanwhile (`needs_auth`) lets those finish that are in, and takes other turns for who comes.
        """
        turns = connection.turns

        async def gone() -> None:
            while connection.state in (State.READY, State.NEEDS_AUTH):
                await connection.standing.wait_change()

        with anyio.move_on_after(DRAIN) as patience:
            await first_finished(turns.wait_idle, gone)
        connection.stop(f"{why}, and the call did not end within {DRAIN:g} s" if patience.cancelled_caught else why)
        self._finishing.discard(connection)

    def _replace(self, name: str, config: ServerConfig) -> list[Connection]:
        """Put another connection in the place of this name's; gives those whose end must be waited for."""
        old = self.serving[name]
        if config.type is TransportType.STDIO or old.state is not State.READY:
            leaving = self._leave(name, f"{name} was changed in the configuration")
            self._open(name, config, after=old)
            return leaving
        given_up = self._coming.pop(name, None)
        if given_up is not None:
            given_up.retire()
            given_up.stop()
        old.config = refiltered(old.config, config)
        assert self._group is not None
        coming = self._coming[name] = self._run(name, config)
        self._group.start_soon(self._take_over, name, coming, name=f"next of {name}")
        return []

    def _open(self, name: str, config: ServerConfig, *, after: Connection | None = None) -> None:
        """`after`: whose end comes first. That holds for a program of this name whose last calls are under way, too."""
        for finishing in [one for one in self._finishing if one.name == name and config.type is TransportType.STDIO]:
            finishing.stop(f"{name} was changed in the configuration")
            after = after or finishing
        self.serving[name] = self._run(name, config, after=after)

    def _run(self, name: str, config: ServerConfig, *, after: Connection | None = None) -> Connection:
        assert self._group is not None, "enter the fleet first"
        connection = self._make(name, config)
        self._running.add(connection)
        self._group.start_soon(self._own, connection, after, name=f"owner of {name}")
        return connection

    async def _own(self, connection: Connection, after: Connection | None) -> None:
        """Run a connection once `after` has closed. An owner that fails in a way nobody foresaw costs its own server only."""
        try:
            if after is not None:
                await after.wait_closed()
        except BaseException:
            connection.stop()
            raise
        finally:
            # Also where it was stopped before it began: whoever waits for its end is told.
            try:
                await connection.run()
            except Exception as error:
                _log.error("the owner of %s failed\n%s", connection.name, trace(error, connection.safe))
                self._on_change(connection.name)
            finally:
                self._running.discard(connection)

    async def _take_over(self, name: str, coming: Connection) -> None:
        await coming.wait_settled()
        if self._coming.get(name) is not coming:
            return  # another one was wanted meanwhile
        del self._coming[name]
        old, self.serving[name] = self.serving[name], coming
        old.retire()
        self._announce()
        self._on_change(name)
        with anyio.move_on_after(DRAIN):
            await old.turns.wait_idle()
        old.stop(f"{name} was changed in the configuration, and the call did not end within {DRAIN:g} s")

    def _announce(self) -> None:
        """Who waits for another connection to serve may look again."""
        taken_over, self._taken_over = self._taken_over, anyio.Event()
        taken_over.set()
