"""From one configuration to the next while everything runs: one at a time, the last one counts, and a bad one changes nothing.

All ways to ask for it meet here: a call, a control message on the bus, SIGHUP, and the files themselves (LIF-5).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread

from toolbay._redact import Secrets, trace
from toolbay.config.models import Config
from toolbay.errors import ConfigError, ToolbayError
from toolbay.events import ConfigReloaded, Events
from toolbay.gateway.bus import Inbox, as_json
from toolbay.lock import FILE_NAME, Lock
from toolbay.types import Reloaded
from toolbay.watching import Contents, Files, hangups

RELOAD = "reload"
"""The control message that asks for it; its acknowledgement is a `Reloaded`."""

_log = logging.getLogger("toolbay.reloading")


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A configuration as it is to be applied: with what is pinned beside its file."""

    config: Config
    lock: Lock
    files: Contents
    """What was read for it."""


def given(config: Config, files: Files) -> Given:
    """`config` with its lock. Reads files. A lock that cannot be read is one that accepts nothing."""
    path = config.path.parent / FILE_NAME if config.path else None
    # Looked at before it is read: a change in between is seen later, never missed.
    before = files.look([path] if path else [])
    return Given(config=config, lock=Lock.load(path), files={**config.files, **before})


@dataclass(eq=False, slots=True)
class _Turn:
    """One application that somebody, or several, wait for."""

    config: Config | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Reloaded | None = None
    error: str = ""


class Reloads:
    """The one who applies configurations. An async context manager: leaving it ends its tasks.

    Of those that are asked for while one is applied, the last one counts, and all who asked are told what it did.
    """

    def __init__(
        self, *, read: Callable[[], Config], apply: Callable[[Given, bool], Awaitable[Reloaded]], events: Events, secrets: Secrets
    ) -> None:
        """`read` reads the configuration anew, in a thread; `apply` goes on with one, and waits for its servers or not.

        `secrets` learns of those of each configuration before it is applied.
        """
        self._read = read
        self._apply = apply
        self._events = events
        self._files = Files()
        self._current = Config()
        self._known: Contents = {}
        self._secrets = secrets
        self._next: _Turn | None = None
        self._now: _Turn | None = None
        self._asked = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._work, name="reloads")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._group is not None
        group, self._group = self._group, None
        group.cancel_scope.cancel()
        # No task of it raises, so it has nothing to say of what its user raised.
        await group.__aexit__(None, None, None)
        for turn in (self._now, self._next):
            if turn is not None and not turn.done.is_set():
                turn.error = "The configuration was not read again: this App is closing."
                turn.done.set()

    async def begin(self, config: Config) -> None:
        """Apply the first one, and wait for none of its servers."""
        first = await self._given(config)
        await self._apply(first, False)
        self._current, self._known = config, first.files

    async def ask(self, config: Config | None = None) -> Reloaded:
        """Go on with `config`, or with what the file says when its turn comes.

        Who asks may leave: what was begun is carried out.

        Raises:
            ConfigError: it cannot be read; everything stays as it was.
            ToolbayError: the App is not running.
        """
        self._running()
        turn = self._next = self._next or _Turn()
        turn.config = config
        self._asked.set()
        await turn.done.wait()
        if turn.result is None:
            raise ConfigError(turn.error)
        return turn.result

    def _running(self) -> anyio.abc.TaskGroup:
        if self._group is None:
            raise ToolbayError("This App is not running, so there is nothing to reload: enter it first.")
        return self._group

    async def _work(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            turn, self._next = self._next, None
            if turn is None:
                continue
            self._now = turn
            await self._take(turn)
            self._now = None
            turn.done.set()

    async def _take(self, turn: _Turn) -> None:
        started = anyio.current_time()
        # As above: before reading.
        before = await anyio.to_thread.run_sync(self._files.look, tuple(self._known), abandon_on_cancel=True)
        try:
            new = await self._given(turn.config)
            turn.result = await self._apply(new, True)
        except ToolbayError as error:
            turn.error = f"{error} What was there before goes on."
            self._known = before
        except Exception as error:
            _log.error("a configuration could not be applied\n%s", trace(error, self._secrets.mask))
            turn.error = f"The configuration could not be applied ({type(error).__name__}); the log says more."
            self._known = before
        else:
            self._current, self._known = new.config, new.files
        self._events.publish(_told(turn, self._current, anyio.current_time() - started))

    async def _given(self, config: Config | None) -> Given:
        def read() -> Given:
            new = config or self._read()
            self._secrets.add(new.secrets)
            return given(new, self._files)

        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    # -- who asks by itself -------------------------------------------------------------------------------------------

    def answer(self, inbox: Inbox) -> None:
        """Answer the requests of an inbox, one after the other, as long as this runs."""
        assert self._group is not None
        self._group.start_soon(self._guarded, partial(self._answer, inbox), name="reload: bus")

    async def _answer(self, inbox: Inbox) -> None:
        async for request in inbox:
            try:
                request.answer(as_json(await self.ask()))
            except ToolbayError as error:
                request.refuse(error)

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        """What fails in a way nobody foresaw ends itself, and not the App."""
        try:
            await task()
        except Exception as error:
            _log.error("a way to ask for a reload failed\n%s", trace(error, self._secrets.mask))

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Reload at SIGHUP, and when the files change (`tools.reloadOnChange`), until the block ends.

        What came of it is a `ConfigReloaded` event.

        Raises:
            ToolbayError: the App is not running.
        """
        group = self._running()
        scope, ended = anyio.CancelScope(), anyio.Event()
        signals = _Signals()

        async def watch() -> None:
            try:
                with scope:
                    async with anyio.create_task_group() as both:
                        both.start_soon(self._guarded, self._follow_files, name="reload: files")
                        both.start_soon(self._guarded, partial(self._follow, signals), name="reload: SIGHUP")
            finally:
                ended.set()

        with hangups(signals.heard):
            group.start_soon(watch, name="reload: watch")
            try:
                yield
            finally:
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await ended.wait()

    async def _follow_files(self) -> None:
        while True:
            await self._files.differ(self._watched)
            await self._try()

    async def _follow(self, signals: _Signals) -> None:
        while True:
            await signals.next()
            await self._try()

    def _watched(self) -> Contents:
        return self._known if self._current.tools.reload_on_change else {}

    async def _try(self) -> None:
        try:
            await self.ask()
        except ToolbayError as error:
            _log.info("%s", error)  # who watches is told by the event


class _Signals:
    """Signals as something to wait for: any number of them, until somebody waits again, is one."""

    def __init__(self) -> None:
        self._arrived = anyio.Event()

    def heard(self) -> None:
        self._arrived.set()

    async def next(self) -> None:
        await self._arrived.wait()
        self._arrived = anyio.Event()


def _told(turn: _Turn, config: Config, seconds: float) -> ConfigReloaded:
    return ConfigReloaded(path=str(config.path or ""), error=turn.error, seconds=seconds, **vars(turn.result or Reloaded()))
