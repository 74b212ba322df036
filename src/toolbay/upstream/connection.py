"""One server's owner task, and what others may ask of it.

The task in `run` is the only one that enters or leaves an engine. Callers wait for a ready engine, hand it requests, and
read the facts; the state table decides what follows from what happened.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio

from toolbay._aio import first_of
from toolbay._text import clean, excerpt, line
from toolbay.config.models import ServerConfig
from toolbay.errors import AuthRequired, CallTimeout, ConnectionFailed, ConnectionLost, ToolbayError
from toolbay.events import Events, ServerChanged, ServerLog
from toolbay.types import Json, Progress, Subject
from toolbay.upstream import listing as listings
from toolbay.upstream.attempts import at_most_once
from toolbay.upstream.engine import Budget, Diagnostics, Engine, OpenEngine, Opening, ServerInfo
from toolbay.upstream.engines import official
from toolbay.upstream.failures import explain, last_reason
from toolbay.upstream.listing import Listing, Refresh
from toolbay.upstream.state import SETTLED, Backoff, Happening, State, after

CLOSE_TIMEOUT = 5.0
"""Seconds that leaving an engine may take (I7)."""
REPEAT_DELAY = 1.0
"""Seconds before a call is sent once more on a connection that lives on (CAL-4)."""
LIST_CHANGED = frozenset({f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")})

_log = logging.getLogger("toolbay.upstream")


class Connection:
    """One configured server. Give `run` a task of its own; everything else may be called from any task of that loop."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        events: Events,
        open_engine: OpenEngine = official,
        environ: Mapping[str, str] | None = None,
        safe: Callable[[str], str] = str,
    ) -> None:
        self.name = name
        self.config = config
        """Replace it to change timeouts and filters without a reconnect; a changed connection needs a new `Connection`."""
        self.state = State.IDLE
        self.error: ToolbayError | None = None
        self.listing: Listing | None = None
        """What the server offered when it was last asked; kept while it is being brought back."""
        self.on_listing: Callable[[], None] = lambda: None
        """Called when `listing` has changed; must be quick. What it raises is logged."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `state` has changed; as above."""
        self.admit: Callable[[Subject | None], None] = lambda _subject: None
        """Asked right before a capability (None: none) is used; raises `BadCall` where that must not be, as the server is now."""
        self.info = ServerInfo()
        """What the server said of itself when it was last ready."""
        self.diagnostics = Diagnostics()
        self.seconds = 0.0
        """How long the last start took."""
        self._events = events
        self._open_engine = open_engine
        self._environ = environ
        self.safe = safe
        """Text without the secrets that there are at that moment."""
        self._engine: Engine | None = None
        self._stop = anyio.Event()
        self._again = anyio.Event()
        self._changed = anyio.Event()
        self._refresh = Refresh(name, self.safe)
        self._under_way = 0
        self._idle = anyio.Event()
        self._closed = anyio.Event()
        self._opening: anyio.CancelScope | None = None

    # -- what others may ask ------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the owner to close; `wait_closed` tells when it has. Idempotent."""
        self._stop.set()
        if self._opening is not None:
            self._opening.cancel()  # a server that hangs in its handshake is not waited for

    def start(self) -> None:
        """Ask for another attempt where the last ones failed, or at once where one is due later. Nothing happens in other states."""
        if self.state in (State.FAILED, State.NEEDS_AUTH, State.WAITING):
            # The state changes here and now, so that who asks can wait for what comes of it.
            self._to(Happening.RETRY_DUE if self.state is State.WAITING else Happening.START)
            self._again.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def wait_settled(self) -> None:
        """Return as soon as the server is ready, or has failed."""
        while self.state not in SETTLED:
            await self._changed.wait()

    async def request(
        self,
        method: str,
        params: Json,
        *,
        budget: Budget,
        subject: Subject | None = None,
        repeatable: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Json:
        """Send a request to the server's current session, waiting for one if it is being brought back.

        At most once: what was sent is sent again only where `repeatable`, and at most one more time (CAL-3). All attempts
        share one deadline, the budget's: whoever waited for the server, or lost an attempt, gets what is left of `timeout`.

        Raises:
            ConnectionFailed: the server is not there and could not be brought back.
            BadCall: `admit` said no.
            ConnectionLost, CallTimeout, ServerError, CallError: as `Engine.request`.
        """

        async def ready(deadline: float) -> Engine:
            engine = await self._ready(deadline)
            self.admit(subject)
            return engine

        async def send(engine: Engine, left: Budget) -> Json:
            self._under_way += 1
            try:
                return await engine.request(method, params, budget=left, on_progress=on_progress)
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._idle.set()

        retry = self.config.retry
        return await at_most_once(
            ready,
            send,
            self._left,
            budget=budget,
            repeatable=repeatable or retry == "always",
            attempts=1 if retry == "never" else 2,
        )

    async def _ready(self, deadline: float) -> Engine:
        patience = max(deadline - anyio.current_time(), 0.0)
        with anyio.move_on_after(patience):
            while self.state is not State.READY or self._engine is None or self._engine.died.is_set():
                if self.state in (State.FAILED, State.NEEDS_AUTH, State.CLOSED):
                    raise _unavailable(self)
                await self._changed.wait()
            return self._engine
        raise CallTimeout(f"{self.name} was not ready within {patience:.3g} s", sent=False)

    async def _left(self, engine: Engine) -> None:
        """Wait until the owner has noticed that `engine` is gone; where only the call failed, for a moment."""
        if not engine.died.is_set():
            await anyio.sleep(REPEAT_DELAY)
        while engine.died.is_set() and self._engine is engine:
            await self._changed.wait()

    # -- the owner ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the server until `stop`: connect, stay, notice the end, bring it back."""
        failures = 0
        try:
            self._to(Happening.START)
            while not self._stop.is_set():
                ready_for = await self._own()
                if self._stop.is_set():
                    break
                backoff = Backoff(self.config.restart)
                failures = 0 if backoff.is_stable(ready_for) else failures + 1
                if self.state is State.WAITING and backoff.gives_up(failures):
                    self._to(Happening.GAVE_UP)
                if self.state is State.WAITING:
                    await self._wait(backoff.delay(failures - 1, random.random()))  # noqa: S311 - jitter is no secret
                else:
                    failures, self.listing = 0, None
                    _tell(self.name, self.on_listing)
                    await self._wait(None)
        finally:
            self.listing = None
            try:
                self._to(Happening.STOP)
            finally:
                self._closed.set()

    async def _wait(self, seconds: float | None) -> None:
        """Until the next attempt is due, or somebody asks for one."""
        with anyio.move_on_after(seconds):
            await first_of(self._stop, self._again)
        self._again = anyio.Event()
        if self.state is State.WAITING and not self._stop.is_set():
            self._to(Happening.RETRY_DUE)

    async def _own(self) -> float:
        """One session from start to end; how many seconds it was ready. Sets the state that follows."""
        started = anyio.current_time()
        was_ready = 0.0
        # One scope around the session's whole life: scopes must end in the order of their beginning, and the engine's own
        # begin inside this one. Its deadline is the start's at first, then none, then the close's.
        scope = self._opening = anyio.CancelScope(deadline=started + self.config.startup_timeout)
        self.diagnostics = Diagnostics()
        failure: BaseException | None = None
        died: Engine | None = None
        denied: AuthRequired | None = None
        try:
            with scope:
                async with self._open_engine(self._opened()) as engine:
                    self.listing = await listings.read(engine, self.safe)
                    scope.deadline, self._opening = float("inf"), None
                    self._engine, self.info = engine, _masked(engine.info, self.safe)
                    self.seconds = anyio.current_time() - started
                    was_ready = anyio.current_time()
                    self._to(Happening.CONNECTED)
                    _tell(self.name, self.on_listing)
                    if (denied := await self._refresh.during(engine, self._stop, took=self._took)) is not None:
                        await self._dismiss(engine, denied)
                    died = engine
                    scope.deadline = anyio.current_time() + CLOSE_TIMEOUT
        except Exception as error:  # the seam: whatever an engine met ends here as one sentence
            failure = error
        finally:
            self._engine = self._opening = None
        if self._stop.is_set():
            return 0.0
        if was_ready:
            if denied is None:
                self._lost(died, failure)
            return anyio.current_time() - was_ready
        self._failed(failure, timed_out=scope.cancelled_caught)
        return 0.0

    def _opened(self) -> Opening:
        return Opening(
            name=self.name,
            config=self.config,
            environ=self._environ,
            on_notification=self._notified,
            diagnostics=self.diagnostics,
            safe=self.safe,
        )

    async def _dismiss(self, engine: Engine, denied: AuthRequired) -> None:
        """Let nobody in any more, and whoever is in finish."""
        self._idle = anyio.Event()
        self._failed(denied, timed_out=False)
        if self._under_way:
            await first_of(self._stop, engine.died, self._idle)

    def _took(self, listing: Listing) -> None:
        self.listing = listing
        _tell(self.name, self.on_listing)

    def _notified(self, method: str, params: Json) -> None:
        if method in LIST_CHANGED:
            self._refresh.announce()
        elif method == "notifications/message":
            self._events.publish(_said(self, params))

    def _lost(self, died: Engine | None, failure: BaseException | None) -> None:
        reason = last_reason(self.name, died.last_words() if died is not None else None, failure, self.safe)
        self.error = ConnectionLost(self.safe(f"{self.name} went away{f': {reason}' if reason else ''}"), server=self.name)
        self._to(Happening.LOST)

    def _failed(self, failure: BaseException | None, *, timed_out: bool) -> None:
        self.error = explain(self.name, self.config, failure, self.diagnostics, timed_out=timed_out, safe=self.safe)
        self._to(_follows(self.error, retrying=self.listing is not None))

    def _to(self, happening: Happening) -> None:
        before, self.state = self.state, after(self.state, happening)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        _tell(self.name, self.on_change)
        if self.state in (State.READY, State.CONNECTING):
            self.error = None if self.state is State.READY else self.error
        if self.state is not before:
            self._events.publish(_told(self))


def _said(connection: Connection, params: Json) -> ServerLog:
    """A `notifications/message` for people."""
    data = params.get("data")
    text = connection.safe(clean(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)))
    return ServerLog(server=connection.name, level=line(connection.safe(str(params.get("level", "info"))), 20), text=excerpt(text, 2_000))


def _tell(name: str, listener: Callable[[], None]) -> None:
    """What others do with a change of a server costs it nothing."""
    try:
        listener()
    except Exception:
        _log.exception("%s: a change of it could not be passed on", name)


def _follows(error: ToolbayError, *, retrying: bool) -> Happening:
    """What a start that failed means for a server that was ready once (`retrying`) or never."""
    if isinstance(error, AuthRequired):
        return Happening.AUTH_REQUIRED
    return Happening.LOST if retrying and getattr(error, "retriable", True) else Happening.REFUSED


def _masked(info: ServerInfo, safe: Callable[[str], str]) -> ServerInfo:
    return replace(info, name=safe(info.name), version=safe(info.version), instructions=safe(info.instructions))


def _told(connection: Connection) -> ServerChanged:
    """The state as an event for people."""
    state, listing = connection.state, connection.listing
    shown = connection.error if state in (State.FAILED, State.WAITING, State.NEEDS_AUTH) else None
    return ServerChanged(
        server=connection.name,
        state=state.value,
        error=str(shown or ""),
        tools=len(listing.tools) if listing else 0,
        seconds=connection.seconds if state is State.READY else 0.0,
    )


def _unavailable(connection: Connection) -> ToolbayError:
    """Why nothing can be called. An error of its own for each caller: one that is raised again keeps all its callers' frames."""
    name, error = connection.name, connection.error
    if connection.state is State.CLOSED:
        return ConnectionFailed(f"{name} has been closed", server=name)
    if isinstance(error, ConnectionFailed):
        return type(error)(str(error), server=name, retriable=error.retriable)
    # A server that was lost and given up: what was lost with it was another call, nothing of this one was sent.
    return ConnectionFailed(str(error) if error else f"{name} is not connected", server=name)
