"""So many in a row, then one at a time: whatever the other side sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.upstream.floods import Flood, Pace

steps = st.lists(st.floats(min_value=0, max_value=30), min_size=1, max_size=60)


@given(steps, st.integers(1, 5), st.floats(0.1, 10))
def test_no_stretch_of_time_holds_more_than_the_burst_and_what_came_due_in_it(waits: list[float], burst: int, every: float) -> None:
    """L1: for every beginning and every end."""
    pace, now, taken = Pace(burst, every), 0.0, list[float]()
    for wait in waits:
        now += wait
        if pace.take(now):
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) / every + 1e-3


@given(steps, st.integers(1, 5), st.floats(0.1, 10))
def test_who_waits_as_long_as_told_has_a_turn(waits: list[float], burst: int, every: float) -> None:
    """L1: and who is told to wait had none."""
    pace, now = Pace(burst, every), 0.0
    for wait in waits:
        now += wait
        told = pace.wait(now)
        assert 0 <= told <= every * (1 + 1e-9)
        if told > every * 1e-3:
            assert not pace.take(now)
        now += told
        assert pace.take(now)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    """R1: turns come with time that has passed, and no other."""
    pace = Pace(2, 1.0)
    assert [pace.take(now) for now in (5.0, 5.0, 5.0, 4.0, 4.9)] == [True, True, False, False, False]


@given(st.lists(st.floats(min_value=0, max_value=1), max_size=200))
def test_every_message_passes_or_is_counted_once(waits: list[float]) -> None:
    """L4: nothing is lost without a count."""
    flood, now, passed, counted = Flood(3, 2.0), 0.0, 0, 0
    for wait in waits:
        now += wait
        if flood.passes(now):
            passed += 1
            counted += flood.untold()
    assert passed + counted + flood.untold() == len(waits)
    assert flood.untold() == 0


@pytest.mark.parametrize("count", [3, 4])
def test_a_burst_is_let_through_whole(count: int) -> None:
    """L4: few messages are never cut."""
    flood = Flood(3, 2.0)
    assert sum(flood.passes(0.0) for _ in range(count)) == 3
