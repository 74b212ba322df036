"""The life of a connection as a table. Pure.

Rule: whatever changes a connection's state goes through `after`. An event that the table does not know in a state is a
mistake of ours and raises, changing nothing.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    """It failed; the next attempt is due soon."""
    PAUSED = "paused"
    """It failed so often that it is left alone for a while."""
    FAILED = "failed"
    """Another attempt would end the same, or none is wanted: it is made when somebody asks."""
    NEEDS_AUTH = "needs_auth"
    CLOSED = "closed"


class Happening(StrEnum):
    START = "start"
    CONNECTED = "connected"
    LOST = "lost"
    TRIPPED = "tripped"
    GAVE_UP = "gave_up"
    AUTH_REQUIRED = "auth_required"
    AUTHORIZED = "authorized"
    RETRY_DUE = "retry_due"
    STOP = "stop"


DOWN = frozenset({State.WAITING, State.PAUSED, State.FAILED, State.NEEDS_AUTH})
"""States of a server that is wanted, and could not be brought up or went away: `error` says why, and who asks starts it at once."""

TABLE: dict[tuple[State, Happening], State] = {
    (State.IDLE, Happening.START): State.CONNECTING,
    (State.CONNECTING, Happening.CONNECTED): State.READY,
    **{(state, Happening.LOST): State.WAITING for state in (State.CONNECTING, State.READY)},
    **{(state, Happening.TRIPPED): State.PAUSED for state in (State.CONNECTING, State.READY)},
    **{(state, Happening.GAVE_UP): State.FAILED for state in (State.CONNECTING, State.READY)},
    **{(state, Happening.AUTH_REQUIRED): State.NEEDS_AUTH for state in (State.CONNECTING, State.READY)},
    **{(state, Happening.RETRY_DUE): State.CONNECTING for state in (State.WAITING, State.PAUSED)},
    **{(state, Happening.START): State.CONNECTING for state in DOWN},
    (State.NEEDS_AUTH, Happening.AUTHORIZED): State.CONNECTING,
    **{(state, Happening.STOP): State.CLOSED for state in State},
}

ABSENT = frozenset({State.PAUSED, State.FAILED, State.NEEDS_AUTH, State.CLOSED})
"""States in which a server is not there and will not be in a moment: it offers nothing, and calls fail at once."""

SETTLED = ABSENT | {State.READY}
"""States in which nobody needs to wait any longer for a first result. See also `Standing.settled`."""


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
