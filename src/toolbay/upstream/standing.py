"""How one server stands: its state, why, when it is tried again; and whoever waits for a change of that is woken.

The table says what may follow, the breaker what does; this is where both are asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from toolbay._text import line
from toolbay.config.models import RestartPolicy
from toolbay.errors import AuthRequired, CallTimeout, ConnectionFailed, ToolbayError
from toolbay.upstream.breaker import Breaker
from toolbay.upstream.failures import may_come_back, unavailable
from toolbay.upstream.state import ABSENT, DOWN, SETTLED, TABLE, Happening, State, after


class Standing:
    """Facts for anybody; only a connection's owner changes them, or `ask`."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called after each change, when everything here is as it is then."""
        self.state = State.IDLE
        self.error: ToolbayError | None = None
        """Why it is not there; kept while the next attempt runs."""
        self.parting = ""
        """Why it is being closed, or was, where calls should know: a clause."""
        self.starts = 0
        """How often it was started, or that was tried."""
        self._on_change = on_change
        self._changed = anyio.Event()
        self._breaker = Breaker()
        self._retry_at: float | None = None
        self._tried = False

    @property
    def absent(self) -> bool:
        """Whether it is not there and will not be in a moment."""
        return self.state in ABSENT

    @property
    def retry_in(self) -> float | None:
        """Seconds until the next attempt, where one is due by itself."""
        return None if self._retry_at is None else max(self._retry_at - anyio.current_time(), 0.0)

    @property
    def settled(self) -> bool:
        """Whether the last start, or the last loss, has come to a result: it is ready, or an attempt has failed since.

        Further attempts may follow by themselves; nobody who wants a first result needs to wait for them.
        """
        return self._tried or self.state in SETTLED

    def refusal(self, name: str, deadline: float) -> ToolbayError | None:
        """Why a call with this deadline need not wait for the server `name`; None where it may be there in time."""
        if not self.absent and (self._retry_at is None or self._retry_at <= deadline):
            return None
        if self.state is State.CLOSED and self.parting:
            return ConnectionFailed(self.parting, server=name)
        return unavailable(name, self.error, closed=self.state is State.CLOSED, retry_after=self.retry_in)

    def in_vain(self, name: str, patience: float) -> CallTimeout:
        """What a call is told that has waited so many seconds for the server `name`."""
        why = f" ({line(str(self.error), 250)})" if self.error is not None else ""
        return CallTimeout(f"{name} was not ready within {patience:.3g} s{why}", sent=False)

    async def wait_change(self) -> None:
        await self._changed.wait()

    async def wait_settled(self) -> None:
        while not self.settled:
            await self.wait_change()

    # -- what happens -------------------------------------------------------------------------------------------------

    def ask(self, why: Happening = Happening.START) -> bool:
        """Somebody wants an attempt now: it begins with a clean record, here, so that who asks can wait for what comes of it.

        `why` may also be that it is AUTHORIZED by now. False where nothing has failed, or not for want of that: then nothing follows.
        """
        if self.state not in DOWN or (self.state, why) not in TABLE:
            return False
        self._breaker.reset()
        self._tried = False
        self.to(why)
        return True

    def due(self) -> None:
        """The wait for the next attempt is over."""
        if self.state in (State.WAITING, State.PAUSED):
            self.to(Happening.RETRY_DUE)

    def connected(self) -> None:
        self._tried = False
        self.error = None
        self.to(Happening.CONNECTED)

    def lost(self, error: ToolbayError, policy: RestartPolicy, *, ready_for: float) -> None:
        """It was ready for so many seconds, and went away."""
        self.error = error
        self.to(self._following(policy, ready_for))

    def failed(self, error: ToolbayError, policy: RestartPolicy) -> None:
        """It did not become ready, or wants credentials by now."""
        self.error = error
        self._tried = True
        if isinstance(error, AuthRequired):
            self.to(Happening.AUTH_REQUIRED)
        else:
            self.to(self._following(policy, None) if may_come_back(error) else Happening.GAVE_UP)

    def to(self, happening: Happening) -> None:
        self.state = after(self.state, happening)
        if self.state not in (State.WAITING, State.PAUSED):
            self._retry_at = None
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        self._on_change()

    def _following(self, policy: RestartPolicy, ready_for: float | None) -> Happening:
        now = anyio.current_time()
        jitter = random.random()  # noqa: S311 - jitter is no secret
        following = self._breaker.failed(policy, at=now, ready_for=ready_for, jitter=jitter)
        if following is None:
            return Happening.GAVE_UP
        self._retry_at = now + following.seconds
        return Happening.TRIPPED if following.paused else Happening.LOST
