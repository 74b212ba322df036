"""One timer for many deadlines: each is kept, moved and forgotten as if it had a timer of its own."""

from __future__ import annotations

import asyncio

import pytest

from support.processes import eventually
from toolbay._aio import clock
from toolbay.upstream.deadlines import Deadlines

pytestmark = pytest.mark.anyio


async def test_each_deadline_is_kept_in_its_time_and_once() -> None:
    """CAL-1: whatever the order in which they were set; none comes early."""
    deadlines, rung = Deadlines(), list[tuple[int, bool]]()
    began = clock()
    for key, after in ((1, 0.06), (2, 0.02), (3, 0.04), (4, 0.02), (5, -1.0), (6, 0.1)):
        deadlines.put(key, began + after, lambda key=key, after=after: rung.append((key, clock() - began >= after - 0.001)))
    await eventually(lambda: (6, True) in rung, "the last of them being over")
    assert rung == [(5, True), (2, True), (4, True), (3, True), (1, True), (6, True)]


async def test_a_deadline_that_was_moved_or_dropped_does_not_come_at_its_first_time() -> None:
    """CAL-1: progress puts it off, an answer ends it; it can also be moved to before."""
    deadlines, rung = Deadlines(), list[str]()
    began = clock()
    deadlines.put(1, began + 0.02, lambda: rung.append("dropped"))
    deadlines.put(2, began + 0.02, lambda: rung.append("early"))
    deadlines.put(3, began + 60, lambda: rung.append("late"))
    deadlines.drop(1)
    deadlines.drop(7)
    deadlines.put(2, began + 0.08, lambda: rung.append("put off"))
    deadlines.put(3, began + 0.04, lambda: rung.append("brought forward"))
    await eventually(lambda: len(rung) == 2, "both being over")
    assert rung == ["brought forward", "put off"]
    assert clock() - began >= 0.079


async def test_what_one_deadline_does_may_end_and_set_others() -> None:
    """CAL-1: an error of one request is often the end of others."""
    deadlines, rung = Deadlines(), list[int]()

    def first() -> None:
        rung.append(1)
        deadlines.put(3, clock() + 0.01, lambda: rung.append(3))

    deadlines.put(1, clock(), first)
    await eventually(lambda: rung == [1, 3], "the next one")


async def test_requests_that_are_answered_leave_one_timer_and_not_one_each() -> None:
    """CAL-1: that is what this is for."""
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    set_at: list[float] = []
    made = loop.call_at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", lambda at, *given, **named: set_at.append(at) or made(at, *given, **named))
        for key in range(1000):
            deadlines.put(key, clock() + 60, lambda: None)
            deadlines.drop(key)
    assert len(set_at) == 1
