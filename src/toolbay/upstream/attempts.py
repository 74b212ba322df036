"""How often one request is sent: at most once, and once more where that is safe, all within one deadline (CAL-1, CAL-3, CAL-4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from toolbay.errors import BadCall, Busy, CallTimeout, ConnectionFailed, ConnectionLost
from toolbay.types import Json
from toolbay.upstream.engine import Budget, Engine


async def at_most_once(
    ready: Callable[[float], Awaitable[Engine]],
    send: Callable[[Engine, Budget], Awaitable[Json]],
    left: Callable[[Engine], Awaitable[None]],
    *,
    budget: Budget,
    repeatable: bool,
    attempts: int = 2,
) -> Json:
    """The result of `send` over the engine that `ready` gives until a deadline; after a lost one, `left` waits for the next.

    What was sent is sent again only where `repeatable`. Whoever waited for the server, or lost an attempt, gets what is
    left of the budget's `timeout`; progress may still lead a running attempt up to its ceiling.

    Raises:
        Whatever `ready` and `send` raise.
    """
    started = anyio.current_time()
    deadline = started + budget.timeout
    lost: ConnectionLost | None = None
    for attempt in range(1, attempts + 1):
        last = attempt == attempts
        try:
            engine = await ready(deadline)
        except (ConnectionFailed, CallTimeout, BadCall) as error:
            # Where the call was sent before, that is what its caller must know.
            raise (lost if lost is not None and lost.sent else error) from None
        try:
            return await send(engine, _rest(budget, started))
        except Busy as busy:
            in_time = anyio.current_time() + busy.retry_after <= deadline
            if last or not in_time or (busy.ran is not False and not repeatable):
                raise
            await anyio.sleep(busy.retry_after)
        except ConnectionLost as error:
            lost = error
            if last or (lost.sent and not repeatable):
                raise
            with anyio.move_on_after(deadline - anyio.current_time()):
                await left(engine)
            if anyio.current_time() >= deadline:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _rest(budget: Budget, started: float) -> Budget:
    """What is left of a budget that began to run at `started`."""
    spent = anyio.current_time() - started
    return Budget(timeout=budget.timeout, ceiling=max(budget.ceiling - spent, 0.001), left=max(budget.timeout - spent, 0.001))
