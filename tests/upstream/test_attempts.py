"""One request over whatever session there is: at most once, within one deadline."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from toolbay.errors import BadCall, Busy, CallTimeout, ConnectionLost, ServerError, ToolbayError
from toolbay.types import Json
from toolbay.upstream.attempts import Repeat, at_most_once
from toolbay.upstream.engine import Budget, Engine

pytestmark = pytest.mark.anyio

ENGINE = cast("Engine", object())


class Script:
    """What comes of each attempt, in order; how much time each was given is kept."""

    def __init__(self, *outcomes: Exception | Json, wait: float = 0.0) -> None:
        self.outcomes = list(outcomes)
        self.wait = wait
        self.given: list[Budget] = []
        self.deadlines: list[float] = []

    async def ready(self, deadline: float) -> Engine:
        self.deadlines.append(deadline)
        await anyio.sleep(self.wait)
        return ENGINE

    async def send(self, _engine: Engine, left: Budget) -> Json:
        self.given.append(left)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def left(self, _engine: Engine) -> None:
        await anyio.sleep(self.wait)

    async def run(self, budget: Budget, repeat: Repeat = Repeat.ALL, *, ago: float = 0.0) -> Json:
        """`ago`: how long its turn has taken."""
        return await at_most_once(self.ready, self.send, self.left, budget=budget, began=anyio.current_time() - ago, repeat=repeat)


async def test_all_attempts_and_waits_share_one_deadline() -> None:
    """CAL-1: whoever waited for the server, or lost an attempt, gets what is left of the timeout; progress starts it anew."""
    script = Script(ConnectionLost("gone"), {"ok": True}, wait=0.1)
    assert await script.run(Budget(timeout=30, ceiling=60)) == {"ok": True}
    assert script.deadlines[0] == script.deadlines[1]
    first, second = script.given
    assert first.timeout == second.timeout == 30
    assert first.first <= 30 - 0.1
    assert second.first <= 30 - 0.3
    assert second.ceiling <= 60 - 0.3


async def test_the_time_until_its_turn_came_is_the_requests_own() -> None:
    """CAL-1: both where it waits for its server, and where the server has it."""
    script = Script({"ok": True})
    now = anyio.current_time()
    assert await script.run(Budget(timeout=3_000, ceiling=6_000), ago=2_000) == {"ok": True}
    assert script.deadlines[0] < now + 1_100
    (given,) = script.given
    assert given.first <= 1_000
    assert given.ceiling <= 4_000


async def test_nothing_is_sent_again_after_the_deadline() -> None:
    """CAL-1, CAL-4: a repetition that would begin too late is none; what happened to the first attempt is told."""
    script = Script(ConnectionLost("gone"), {"too": "late"}, wait=0.06)
    with pytest.raises(ConnectionLost, match="gone"):
        await script.run(Budget(timeout=0.1, ceiling=60))
    assert len(script.given) == 1


async def test_a_server_that_is_never_ready_costs_no_more_than_the_timeout() -> None:
    """CAL-3: a call that was sent, and then waits for its server in vain, says that it was sent."""
    script = Script(ConnectionLost("gone", sent=True))

    async def ready(deadline: float) -> Engine:
        if script.given:
            raise CallTimeout("it was not ready", sent=False)
        return ENGINE

    script.ready = ready
    with pytest.raises(ConnectionLost, match="gone") as raised:
        await script.run(Budget(timeout=30, ceiling=60))
    assert raised.value.sent


async def test_what_an_earlier_attempt_may_have_done_is_not_forgotten_for_a_later_one() -> None:
    """CAL-3: 503, then refused before it left: the caller must know that the first one may have run."""
    busy = Busy("too much", code=503, retry_after=0.0, ran=None)
    for later in (ConnectionLost("gone", sent=False), CallTimeout("late", sent=False), Busy("no", code=429, retry_after=0, ran=False)):
        script = Script(busy, later)
        with pytest.raises(Busy, match="too much"):
            await script.run(Budget(timeout=30, ceiling=60))
    script = Script(busy, ServerError("it broke"))
    with pytest.raises(ServerError, match="it broke"):
        await script.run(Budget(timeout=30, ceiling=60))


@pytest.mark.parametrize(
    ("repeat", "error", "again"),
    [
        (Repeat.UNSENT, ConnectionLost("x", sent=False), True),
        (Repeat.UNSENT, ConnectionLost("x", sent=True), False),
        (Repeat.UNSENT, Busy("x", code=429, retry_after=0, ran=False), False),
        (Repeat.NOT_RUN, ConnectionLost("x", sent=True), False),
        (Repeat.NOT_RUN, Busy("x", code=429, retry_after=0, ran=False), True),
        (Repeat.NOT_RUN, Busy("x", code=503, retry_after=0, ran=None), False),
        (Repeat.ALL, Busy("x", code=503, retry_after=0, ran=None), True),
        (Repeat.ALL, Busy("x", code=503, retry_after=61, ran=None), False),
        (Repeat.ALL, ConnectionLost("x", sent=True), True),
        (Repeat.ALL, ServerError("x", code=500, ran=None), False),
        (Repeat.ALL, CallTimeout("x", sent=True), False),
        (Repeat.ALL, BadCall("x"), False),
    ],
)
async def test_each_class_repeats_what_it_says_and_nothing_twice(repeat: Repeat, error: ToolbayError, again: bool) -> None:
    """CAL-3: at most two attempts, whatever comes of the second."""
    script = Script(error, error, error)
    with pytest.raises(type(error)):
        await script.run(Budget(timeout=600, ceiling=600), repeat)
    assert len(script.given) == 1 + again
