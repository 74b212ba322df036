"""The life of a connection as a table, and how long it waits between attempts. Pure.

Rule: whatever changes a connection's state goes through `after`. An event that the table does not know in a state is a
mistake of ours and raises, changing nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from toolbay.config.models import RestartPolicy


class State(StrEnum):
    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    NEEDS_AUTH = "needs_auth"
    CLOSED = "closed"


class Happening(StrEnum):
    START = "start"
    CONNECTED = "connected"
    LOST = "lost"
    REFUSED = "refused"
    AUTH_REQUIRED = "auth_required"
    AUTHORIZED = "authorized"
    RETRY_DUE = "retry_due"
    GAVE_UP = "gave_up"
    STOP = "stop"


TABLE: dict[tuple[State, Happening], State] = {
    (State.IDLE, Happening.START): State.CONNECTING,
    (State.CONNECTING, Happening.CONNECTED): State.READY,
    (State.CONNECTING, Happening.LOST): State.WAITING,
    (State.CONNECTING, Happening.REFUSED): State.FAILED,
    (State.CONNECTING, Happening.AUTH_REQUIRED): State.NEEDS_AUTH,
    (State.READY, Happening.LOST): State.WAITING,
    (State.READY, Happening.AUTH_REQUIRED): State.NEEDS_AUTH,
    (State.WAITING, Happening.RETRY_DUE): State.CONNECTING,
    (State.WAITING, Happening.GAVE_UP): State.FAILED,
    (State.FAILED, Happening.START): State.CONNECTING,
    (State.NEEDS_AUTH, Happening.AUTHORIZED): State.CONNECTING,
    (State.NEEDS_AUTH, Happening.START): State.CONNECTING,
    **{(state, Happening.STOP): State.CLOSED for state in State},
}

SETTLED = frozenset({State.READY, State.FAILED, State.NEEDS_AUTH, State.CLOSED})
"""States in which nobody needs to wait any longer for a first result."""


class IllegalHappening(Exception):
    """The table knows no such event in that state."""


def after(state: State, happening: Happening) -> State:
    """The state that follows.

    Raises:
        IllegalHappening: nothing follows; the caller's state is unchanged.
    """
    try:
        return TABLE[state, happening]
    except KeyError:
        raise IllegalHappening(f"a connection that is {state} knows no {happening!r}") from None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt to bring a server back."""

    policy: RestartPolicy

    def delay(self, failures: int, jitter: float) -> float:
        """Seconds before the attempt that follows `failures` failed ones in a row; 0 for the first.

        `jitter` in [0, 1) moves the wait by up to 20 % either way, so that many clients do not come back at once.
        """
        if failures <= 0:
            return 0.0
        # The exponent is capped: 2**1000 seconds would overflow a float long before anyone waits for it.
        wait = min(self.policy.first_delay * 2 ** min(failures - 1, 30), self.policy.max_delay)
        return min(wait * (0.8 + 0.4 * jitter), self.policy.max_delay)

    def gives_up(self, failures: int) -> bool:
        """Whether `failures` failed attempts in a row are enough."""
        return not self.policy.enabled or failures >= self.policy.max_attempts

    def is_stable(self, seconds_ready: float) -> bool:
        """Whether a server that was ready for so long starts again with a clean record."""
        return seconds_ready >= self.policy.stable_after
