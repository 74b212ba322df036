"""One server's owner task, and what others may ask of it.

The task in `run` is the only one that enters or leaves an engine. Callers wait for a ready engine, hand it requests, and
read the facts; the state table decides what follows from what happened.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import anyio

from toolbay._aio import clock, first_finished, first_of
from toolbay._redact import trace
from toolbay.config.models import ServerConfig
from toolbay.errors import AuthRequired, ToolbayError
from toolbay.events import Events, Notice, ServerChanged
from toolbay.types import Json, Progress, Subject
from toolbay.upstream import listing as listings
from toolbay.upstream.attempts import Repeat, at_most_once
from toolbay.upstream.chatter import Chatter
from toolbay.upstream.engine import Budget, Diagnostics, Engine, OpenEngine, Opening, ServerInfo
from toolbay.upstream.engines import official
from toolbay.upstream.failures import explain, pollution, went_away
from toolbay.upstream.listing import Listing, Refresh
from toolbay.upstream.pulse import while_it_speaks
from toolbay.upstream.standing import Standing
from toolbay.upstream.state import DOWN, Happening, State
from toolbay.upstream.turns import Turns

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
        remembered: Listing | None = None,
    ) -> None:
        """`remembered` is what the server listed in an earlier run: it is offered until the server has said what it lists now."""
        self.name = name
        self.config = config
        """Replace it to change timeouts and filters without a reconnect; a changed connection needs a new `Connection`."""
        self.standing = Standing(self._stands)
        self.listing = remembered
        """What the server offered when it was last asked; kept while it is being brought back, None where it is given up."""
        self.remembered = remembered is not None
        """Whether `listing` is of an earlier run, and not yet the server's own."""
        self.prepare: Callable[[Listing], Awaitable[None]] = _as_it_is
        """Awaited before a listing becomes `listing`, so that what is much work can be done beside everything else."""
        self.on_listing: Callable[[], None] = lambda: None
        """Called when `listing` has changed; must be quick. What it raises is logged."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `state` has changed; as above."""
        self.admit: Callable[[Subject | None, Json], None] = lambda _subject, _params: None
        """Whether a capability (None: none) may be used with these parameters, as the server is now; raises `BadCall` where not."""
        self.info = ServerInfo()
        """What the server said of itself when it was last ready."""
        self.diagnostics = Diagnostics()
        self.seconds = 0.0
        """How long the last start took."""
        self._events, self._open_engine, self._environ = events, open_engine, environ
        self.safe = safe
        """Text without the secrets that there are at that moment."""
        self._engine: Engine | None = None
        self._stop, self._closed, self._again = anyio.Event(), anyio.Event(), anyio.Event()
        self.chatter, self._refresh = Chatter(name, self.safe), Refresh(name, self.safe)
        self._ids, self.turns = itertools.count(1), Turns(name)
        self._strayed = _once(partial(_tell_pollution, name, events, safe), when=lambda: self._engine is not None)
        self._opening: anyio.CancelScope | None = None

    # -- what others may ask ------------------------------------------------------------------------------------------

    def stop(self, why: str = "") -> None:
        """Ask the owner to close; `wait_closed` tells when it has. Idempotent. `why` is told to calls that this cuts."""
        self.standing.parting = self.standing.parting or why
        self._stop.set()
        if self._opening is not None:
            self._opening.cancel()  # a server that hangs in its handshake is not waited for

    def start(self, why: Happening = Happening.START) -> None:
        """Ask for an attempt at once where the last one failed, with a clean record (`Standing.ask`). A server that is up goes on."""
        if self.standing.ask(why):
            self._again.set()

    @property
    def state(self) -> State:
        return self.standing.state

    @property
    def error(self) -> ToolbayError | None:
        return self.standing.error

    def retire(self) -> None:
        """Another connection has this name now: what becomes of this one is no news of that server any more."""
        self._events = Events()
        self.on_listing = self.on_change = lambda: None

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def wait_settled(self) -> None:
        """Return as soon as the server is `settled` (see `Standing`)."""
        await self.standing.wait_settled()

    async def request(
        self,
        method: str,
        params: Json,
        *,
        budget: Budget,
        admit: Callable[[], None] = lambda: None,
        repeat: Repeat = Repeat.NOT_RUN,
        on_progress: Callable[[Progress], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Json:
        """Send a request to the server's current session, waiting for one if it is being brought back.

        At most once: it is sent again only as far as `repeat` goes, and at most one more time (CAL-3). All attempts
        share one deadline, the budget's: whoever waited for the server, or lost an attempt, gets what is left of `timeout`.
        `admit` is asked right before each attempt, when the server is there and its lists are read.

        Raises:
            ConnectionFailed: the server is not there, and the next attempt to bring it back, if any, lies past the deadline.
            BadCall: `admit` said no.
            Crowded: too many calls wait for their turn (`maxQueued`); one that waited for its turn too long is a CallTimeout.
            ConnectionLost, CallTimeout, ServerError, CallError: as `Engine.request`.
        """

        async def ready(deadline: float) -> Engine:
            engine = await self._ready(deadline)
            admit()
            return engine

        async def send(engine: Engine, left: Budget) -> Json:
            try:
                return await engine.request(method, params, budget=left, on_progress=on_progress, on_sent=on_sent)
            except AuthRequired as denied:
                self._refresh.deny(denied, engine)
                raise

        turns, at_once, began = self.turns, self.config.max_concurrent, clock()
        await turns.take(at_once=at_once, in_line=self.config.max_queued, deadline=began + budget.first)
        try:
            return await at_most_once(ready, send, self._left, budget=budget, began=began, repeat=repeat)
        finally:
            turns.leave(at_once)

    async def _ready(self, deadline: float) -> Engine:
        if self.state is State.READY and self._engine is not None and not self._engine.died.is_set():
            return self._engine  # no scope, no timer: almost every call goes this way
        patience = max(deadline - anyio.current_time(), 0.0)
        with anyio.move_on_after(patience):
            while self.state is not State.READY or self._engine is None or self._engine.died.is_set():
                if (refusal := self.standing.refusal(self.name, deadline)) is not None:
                    raise refusal
                await self.standing.wait_change()
            return self._engine
        raise self.standing.in_vain(self.name, patience)

    async def _left(self, engine: Engine) -> None:
        """Wait until the owner has noticed that `engine` is gone; where only the call failed, for a moment."""
        if not engine.died.is_set():
            await anyio.sleep(REPEAT_DELAY)
        while engine.died.is_set() and self._engine is engine:
            await self.standing.wait_change()

    # -- the owner ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the server until `stop`: connect, stay, notice the end, bring it back."""
        try:
            self.standing.to(Happening.START)
            while not self._stop.is_set():
                await self._own()
                if not self._stop.is_set():
                    await self._wait()
        finally:
            try:
                self.standing.to(Happening.STOP)
            finally:
                self._closed.set()

    async def _wait(self) -> None:
        """Until the next attempt is due, or somebody asks for one."""
        with anyio.move_on_after(self.standing.retry_in):
            await first_of(self._stop, self._again)
        self._again = anyio.Event()
        if not self._stop.is_set():
            self.standing.due()

    async def _own(self) -> None:
        """One session from start to end. Sets the state that follows."""
        started = anyio.current_time()
        ready_at: float | None = None
        self.standing.starts += 1
        # One scope around the session's whole life: scopes must end in the order of their beginning, and the engine's own
        # begin inside this one. Its deadline is the start's at first, then none, then the close's.
        scope = self._opening = anyio.CancelScope(deadline=started + self.config.startup_timeout)
        self.diagnostics = Diagnostics()
        opening = Opening(
            name=self.name,
            config=self.config,
            environ=self._environ,
            on_notification=self._notified,
            on_gap=self._refresh.announce,
            on_stray=self._strayed,
            diagnostics=self.diagnostics,
            ids=self._ids,
            safe=self.safe,
        )
        failure: BaseException | None = None
        died: Engine | None = None
        ended: ToolbayError | None = None
        try:
            with scope:
                async with self._open_engine(opening) as engine:
                    listing = await listings.read(engine, self.safe)
                    await self.prepare(listing)
                    scope.deadline, self._opening = float("inf"), None
                    self._engine, self.info = engine, _masked(engine.info, self.safe)
                    ready_at = anyio.current_time()
                    self.seconds = ready_at - started
                    self.listing, self.remembered = listing, False
                    self.standing.connected()
                    self._strayed("".join(self.diagnostics.stray()[:1]))
                    _tell(self, self.on_listing)
                    stay = partial(self._refresh.during, engine, self._stop, held=lambda: self.listing, took=self._took)
                    ended = await while_it_speaks(stay, engine, self.turns, self.diagnostics, lambda: self.config.ping_interval)
                    if isinstance(ended, AuthRequired):
                        self._failed(ended, timed_out=False)  # from here on nobody comes in; whoever is in may finish
                        leaving, self.turns = self.turns, Turns(self.name)  # who comes now may wait for the next session
                        await first_finished(leaving.wait_idle, self._stop.wait, engine.died.wait)
                    died = engine
                    scope.deadline = anyio.current_time() + CLOSE_TIMEOUT
        except Exception as error:  # the seam: whatever an engine met ends here as one sentence
            failure = error
        finally:
            self._engine = self._opening = None
        if self._stop.is_set() or isinstance(ended, AuthRequired):
            return
        if ready_at is None:
            self._failed(failure, timed_out=scope.cancelled_caught)
        else:
            words = ended or (died.last_words() if died is not None else None)
            lost = went_away(self.name, words, failure, self.safe)
            self.standing.lost(lost, self.config.restart, ready_for=anyio.current_time() - ready_at)

    async def _took(self, listing: Listing) -> None:
        await self.prepare(listing)
        self.listing = listing
        _tell(self, self.on_listing)

    def _notified(self, method: str, params: Json) -> None:
        if method in LIST_CHANGED:
            self._refresh.announce()
        elif method == "notifications/message":
            for said in self.chatter.heard(params):
                self._events.publish(said)

    def _failed(self, failure: BaseException | None, *, timed_out: bool) -> None:
        error = explain(self.name, self.config, failure, self.diagnostics, timed_out=timed_out, safe=self.safe)
        self.standing.failed(error, self.config.restart)

    def _stands(self) -> None:
        """The state has changed: tools of a server that will not be there in a moment go, and whoever listens is told."""
        withdrawn = self.standing.absent and self.listing is not None
        if withdrawn:
            self.listing, self.remembered = None, False
        _tell(self, self.on_change)
        if withdrawn:
            _tell(self, self.on_listing)
        self._events.publish(_told(self))


async def _as_it_is(_listing: Listing) -> None:
    """Nothing is prepared."""


def _tell_pollution(name: str, events: Events, safe: Callable[[str], str], text: str) -> None:
    """Of a server that works; of one that does not start its error says so."""
    events.publish(Notice(server=name, text=pollution(text, safe), aside=True))


def _once(tell: Callable[[str], None], *, when: Callable[[], bool]) -> Callable[[str], None]:
    """`tell` for the first time that it is called with a text while `when` is so, and nothing from then on."""
    remaining = [tell]

    def told(text: str) -> None:
        if text and remaining and when():
            remaining.pop()(text)

    return told


def _tell(connection: Connection, listener: Callable[[], None]) -> None:
    """What others do with a change of a server costs it nothing."""
    try:
        listener()
    except Exception as error:
        _log.error("%s: a change of it could not be passed on\n%s", connection.name, trace(error, connection.safe))


def _masked(info: ServerInfo, safe: Callable[[str], str]) -> ServerInfo:
    return replace(info, name=safe(info.name), version=safe(info.version), instructions=safe(info.instructions))


def _told(connection: Connection) -> ServerChanged:
    """The state as an event for people."""
    state, listing = connection.state, connection.listing
    shown = connection.error if state in DOWN else None
    return ServerChanged(
        server=connection.name,
        state=state.value,
        error=str(shown or ""),
        tools=len(listing.tools) if listing else 0,
        seconds=connection.seconds if state is State.READY else 0.0,
        retry_in=connection.standing.retry_in,
    )
