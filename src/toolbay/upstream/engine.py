"""The seam between a connection and what speaks the protocol: a small Protocol in our own words.

An engine is one protocol session with one server. It is opened and closed by the connection's owner task; requests come
from any task. Plain dicts and the types of this file cross the seam, and nothing of an SDK.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import anyio

from toolbay.config.models import ServerConfig
from toolbay.errors import ToolbayError
from toolbay.types import Json, Progress

MODERN_PROTOCOL = "2026-07-28"
"""The first revision without the initialize handshake."""
LONGEST_FRESH = 10 * 365 * 86_400
"""Seconds that a result may be taken as fresh at the most; a server can say any number."""


AT_ONCE = 0.01
"""Seconds within which a request that waited for nothing is on its way: deadlines stay as they were set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerInfo:
    """What a server said of itself. Display only: a server can say anything."""

    name: str = ""
    version: str = ""
    protocol: str = ""
    instructions: str = ""
    capabilities: Json = field(default_factory=dict[str, object])
    fresh_for: float | None = None
    """As `fresh_for(result)` of what it said this in."""

    @property
    def modern(self) -> bool:
        return self.protocol >= MODERN_PROTOCOL


def fresh_for(result: Json) -> float | None:
    """Seconds that the server lets a result be taken as fresh (2026-07-28: `ttlMs`); None where it does not say."""
    milliseconds: object = result.get("ttlMs")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    return min(max(0, milliseconds), LONGEST_FRESH * 1000) / 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Seconds that a request may take: `timeout` since it was sent or last made progress, `ceiling` in all."""

    timeout: float
    ceiling: float
    left: float | None = None
    """What is left of the first `timeout`, where a wait or an earlier attempt has used some of it."""

    @property
    def first(self) -> float:
        """Seconds until the first progress."""
        return min(self.timeout if self.left is None else self.left, self.ceiling)

    def after(self, seconds: float) -> Budget:
        """What is left of it once `seconds` have passed without a request on its way; a moment at the least."""
        if seconds < AT_ONCE:
            return self
        left = self.first - seconds
        return Budget(timeout=self.timeout, ceiling=max(self.ceiling - seconds, 0.001), left=max(left, 0.001))


@dataclass(kw_only=True, slots=True)
class Diagnostics:
    """What is known of a server's process and stream; filled as it happens, readable at any time."""

    pid: int | None = None
    dropped: int = 0
    """Messages about progress that were not passed on, since there were too many."""
    stderr: Callable[[], tuple[str, ...]] = tuple
    heard: Callable[[], float] = lambda: float("-inf")
    """When its last message came, on the loop's clock."""
    stray: Callable[[], tuple[str, ...]] = tuple
    """The last lines on stdout that were no protocol messages (TRA-7)."""
    unasked: int = 0
    """How many answers came that nobody waited for: after the deadline, twice, or under an id that was never given."""
    spawned: float | None = None
    """When its process had been started, on the loop's clock."""
    spoke: Callable[[], float | None] = lambda: None
    """When the first byte of its output came, on the loop's clock."""
    exit_code: Callable[[], int | None] = lambda: None
    """How its process ended by itself (negative: by which signal); None while it runs, and where it was ended here."""
    exceeded: Callable[[], tuple[str, str] | None] = lambda: None
    """By how much it passed a limit, for which it was ended here, and what helps; None where it was not."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Listed tools that the engine leaves out, since their marks for headers are invalid (2026-07-28), and why."""
    on_message: Callable[[bool, Json], None] | None = None
    """Called with each message: whether it is ours, and the message. A copy is made of each, so this is for who looks for a fault."""


class Credentials(Protocol):
    """What the requests to one server are authorised with, and how that is renewed. All its sessions, of one program, share it."""

    def at_work(self) -> AbstractAsyncContextManager[None]:
        """Renewals are carried to their end, though who wanted one has left, for as long as such a block runs, and a moment longer."""
        ...

    @property
    def whose(self) -> str:
        """Which login it is: the same through its renewals, another one once somebody has logged in anew; empty where there is none."""
        ...

    async def token(self) -> str:
        """The access token that a request should carry; empty where there is none. One that is about to end is renewed before.

        Raises:
            Refused: it had to be renewed, and who does that could not be reached or was busy; nothing is lost.
        """
        ...

    async def renew(self, refused: str, *, status: int, challenge: str) -> bool:
        """The server refused a request that carried `refused` (empty: none), with 401 or 403 and this WWW-Authenticate header.

        True where there is another token by now, with which the request may be sent once more. However many ask, it is
        renewed once.

        Raises:
            Refused: as `token`.
        """
        ...

    def mend(self, *, status: int, challenge: str) -> str:
        """Why such an answer came, as far as is known here, and what to do: a clause, after `HTTP 401, `, that names the server."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What an engine needs to open a session."""

    name: str
    config: ServerConfig
    environ: Mapping[str, str] | None = None
    on_notification: Callable[[str, Json], None] = lambda _method, _params: None
    """Called in the order of arrival; must be quick and must not raise."""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    on_gap: Callable[[], None] = lambda: None
    """Called when notifications may have been missed, for what brings them was lost and is there again; must be quick."""
    on_stray: Callable[[str], None] = lambda _line: None
    """Called with the first line of a program's output that was no message; the rest is in the diagnostics."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers of requests. A server's sessions share them: what is sent again must have a new one, in a new session too."""
    safe: Callable[[str], str] = str
    """Masks secrets. Text is passed through it before it is cut: of a secret that was cut, a part would stay."""
    credentials: Credentials | None = None
    """What requests over HTTP are authorised with, besides what stands in `config.headers`."""


class Engine(Protocol):
    """One live session."""

    @property
    def info(self) -> ServerInfo: ...

    @property
    def died(self) -> anyio.Event:
        """Set once no further request can be answered: the process ended, the stream closed, the session was dropped."""
        ...

    def last_words(self) -> ToolbayError | None:
        """Why it died, where that is known: the exit code, the last lines of stderr."""
        ...

    async def request(
        self,
        method: str,
        params: Json,
        *,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Json:
        """Send one request, once, and return the raw `result`.

        Cancelling the caller cancels the request on the server. `on_sent` is called right before the first byte may leave
        this process; it must be quick and must not raise.

        Raises:
            CallTimeout: no answer within the budget; the server was told, and a late answer is dropped.
            ServerError: the server answered with an error.
            ConnectionLost: the server went away; `sent` tells whether the request may have reached it.
        """
        ...


OpenEngine: TypeAlias = Callable[[Opening], AbstractAsyncContextManager[Engine]]
"""Opens a session: entering does the handshake (raising ConnectionFailed and its kinds), leaving closes it for good."""
