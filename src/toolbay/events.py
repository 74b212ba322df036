"""What happens in a Toolbay, as frozen values, and a bounded fan-out that never blocks who publishes.

The classes of this module are public: `App.events.listen` and `App.events.subscribe` hand them out.

A subscriber that is slow loses its oldest events and is told how many (`Subscription.dropped`); nobody else notices.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio
import anyio.lowlevel

from toolbay._redact import trace
from toolbay.types import Outcome, Progress, Reloaded

_log = logging.getLogger("toolbay.events")

About: TypeAlias = Literal["", "definition", "selection", "pin", "unfinished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """`at` is seconds since the epoch."""

    at: float = field(default_factory=time.time, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerChanged(Event):
    """A server's state is another one; `error` says why, for people.

    - `connecting`: it is being started, or asked to begin a session.
    - `ready`: its tools can be called.
    - `waiting`: it went away or did not come up, and is tried again in a moment (`retry_in`); its tools stay, calls wait for it.
    - `paused`: it failed too often and is left alone until `retry_in` is over, then tried once more; its tools are gone meanwhile.
    - `failed`: another attempt would end the same; a reload, or `App.reload`, tries it again.
    - `needs_auth`: it wants credentials, or others than it was given.
    - `closed`: it was removed, changed or disabled, or the App was left.
    """

    server: str
    state: str
    error: str = ""
    tools: int = 0
    seconds: float = 0.0
    retry_in: float | None = None
    """`waiting`, `paused`: seconds from `at` until the next attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLog(Event):
    """A log message that a server sent over the protocol (`notifications/message`)."""

    server: str
    level: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsChanged(Event):
    """The registry's snapshot changed: names that came, went, or mean something else now."""

    server: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConfigReloaded(Event, Reloaded):
    """The configuration was read again and applied, or, with an `error`, was not: then what was there before goes on.

    Names of servers, and in `tools_removed` of tools. `path` is the file, empty where there is none.
    """

    path: str
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice(Event):
    """Something a person should know once: an allow-list entry that matches nothing, a schema that cannot be used.

    `aside`: it is of interest to who looks at the tools of a server, and to nobody who only uses them.
    """

    server: str
    text: str
    aside: bool = False
    about: About = ""
    """A definition that a server lists, an entry of an allow-list that names nothing, what is not as it was pinned, a call that an
    earlier run left unfinished, or else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallStarted(Event):
    call_id: str
    server: str
    tool: str
    arguments: str
    """The arguments as JSON, secrets masked, bounded: for people, not for machines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallProgressed(Event):
    call_id: str
    server: str
    tool: str
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalAsked(Event):
    """A call waits for a person's word. `arguments` as in `CallStarted`; who answers is shown them in full."""

    call_id: str
    server: str
    tool: str
    arguments: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalAnswered(Event):
    """`answer` is `once`, `session`, `always` or `no`; `reason` says why it is no."""

    call_id: str
    server: str
    tool: str
    answer: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFinished(Event):
    call_id: str
    server: str
    tool: str
    is_error: bool
    outcome: Outcome
    text: str
    """The result's beginning, bounded: for people."""
    seconds: float
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnStarted(Event):
    session: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TextArrived(Event):
    """A piece of the model's answer."""

    session: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnFinished(Event):
    session: str
    text: str
    steps: int
    stopped: str = ""
    """Why it ended without an answer: `cancelled`, `limit`, `error`; empty where it answered."""


class Subscription:
    """A bounded mailbox: an async iterator of events, oldest first."""

    def __init__(self, size: int) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._arrived = anyio.Event()
        self.dropped = 0
        """How many events were lost because nobody took them in time."""

    def put(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._arrived.set()

    def take_nowait(self) -> list[Event]:
        """All that is there now, without waiting."""
        taken = list(self._events)
        self._events.clear()
        return taken

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        await anyio.lowlevel.checkpoint()
        return self._events.popleft()


class Events:
    """The fan-out. `publish` is synchronous and never waits; call it from the event loop's thread."""

    def __init__(self, safe: Callable[[str], str] = str) -> None:
        """`safe` takes the secrets out of what is logged where a listener fails; without it there are none to take out."""
        self._safe = safe
        self._subscriptions: set[Subscription] = set()
        self._listeners: set[Callable[[Event], None]] = set()

    @property
    def heard(self) -> bool:
        """Whether anybody takes what is published now: an event that costs something to make need not be made otherwise."""
        return bool(self._subscriptions or self._listeners)

    def publish(self, event: Event) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.put(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # what somebody does with an event is no affair of who publishes it
                _log.error("a listener failed on %s\n%s", type(event).__name__, trace(error, self._safe))

    @contextmanager
    def subscribe(self, size: int = 1000) -> Generator[Subscription]:
        """Receive all that is published from now until the block ends; the newest `size` are kept."""
        subscription = Subscription(size)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    @contextmanager
    def listen(self, listener: Callable[[Event], None]) -> Generator[None]:
        """Call `listener` with each event at once, in the publisher's stack: it must be quick. What it raises is logged."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
