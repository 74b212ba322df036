"""How often one request is sent: at most once, and once more where that is safe, all within one deadline (CAL-1, CAL-3, CAL-4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

import anyio

from toolbay._aio import clock
from toolbay.errors import Busy, ConnectionLost, ToolbayError
from toolbay.types import Json, Outcome, outcome_of
from toolbay.upstream.engine import Budget, Engine

ATTEMPTS = 2
LONGEST_WAIT = 60.0
"""Seconds that are waited at the most where a server asks for patience; who asks for more is told on, with the time."""


class Repeat(Enum):
    """What may be sent again."""

    UNSENT = "unsent"
    """Only what never left this process."""
    NOT_RUN = "not run"
    """And what was provably not carried out."""
    ALL = "all"
    """And what may have been carried out."""


async def at_most_once(
    ready: Callable[[float], Awaitable[Engine]],
    send: Callable[[Engine, Budget], Awaitable[Json]],
    left: Callable[[Engine], Awaitable[None]],
    *,
    budget: Budget,
    began: float,
    repeat: Repeat,
) -> Json:
    """The result of `send` over the engine that `ready` gives until a deadline; after a lost one, `left` waits for the next.

    The budget runs since `began`. Whoever waited for the server, or lost an attempt, gets what is left of its `timeout`;
    progress may still lead a running attempt up to its ceiling.

    Raises:
        Whatever `ready` and `send` raise. Where an earlier attempt may have been carried out and the last one was not, it is
        the earlier one's error, for that is what a caller must know.
    """
    deadline = began + budget.first
    may_have_run: ToolbayError | None = None
    for attempt in range(1, ATTEMPTS + 1):
        engine: Engine | None = None
        try:
            engine = await ready(deadline)
            return await send(engine, budget.after(clock() - began))
        except ToolbayError as error:
            if outcome_of(error) is not Outcome.NOT_EXECUTED:
                may_have_run = error
            patience = deadline - anyio.current_time()
            if attempt == ATTEMPTS or engine is None or not _allowed(error, repeat, patience):
                raise may_have_run or error from None
            with anyio.move_on_after(patience):
                await (anyio.sleep(error.retry_after) if isinstance(error, Busy) else left(engine))
            if anyio.current_time() >= deadline:
                raise may_have_run or error from None
    raise AssertionError("unreachable: the last attempt returns or raises")


def _allowed(error: ToolbayError, repeat: Repeat, patience: float) -> bool:
    """Whether a request that ended in `error` may be sent again within `patience`."""
    if isinstance(error, ConnectionLost):
        return not error.sent or repeat is Repeat.ALL
    if isinstance(error, Busy):
        in_time = error.retry_after <= min(patience, LONGEST_WAIT)
        return in_time and (repeat is Repeat.ALL or (repeat is Repeat.NOT_RUN and error.ran is False))
    return False
