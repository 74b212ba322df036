"""The life of a connection as a table."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from toolbay.upstream.state import SETTLED, TABLE, Happening, IllegalHappening, State, after

LEGAL = """
    idle        start           connecting
    connecting  connected       ready
    connecting  lost            waiting
    connecting  tripped         paused
    connecting  gave_up         failed
    connecting  auth_required   needs_auth
    ready       lost            waiting
    ready       tripped         paused
    ready       gave_up         failed
    ready       auth_required   needs_auth
    waiting     retry_due       connecting
    waiting     start           connecting
    paused      retry_due       connecting
    paused      start           connecting
    failed      start           connecting
    needs_auth  authorized      connecting
    needs_auth  start           connecting
"""
"""The table once more, in words: a change of the one is a decision about the other."""


def expected() -> dict[tuple[str, str], str]:
    rows = [line.split() for line in LEGAL.strip().splitlines()]
    return {(state, happening): following for state, happening, following in rows} | {(state.value, "stop"): "closed" for state in State}


@pytest.mark.parametrize(("state", "happening"), list(product(State, Happening)))
def test_every_pair_of_state_and_happening_leads_where_the_table_says_or_raises(state: State, happening: Happening) -> None:
    """LIF-2: exhaustive; what the table does not know raises."""
    following = expected().get((state.value, happening.value))
    if following is None:
        with pytest.raises(IllegalHappening, match=f"{state.value} knows no"):
            after(state, happening)
    else:
        assert after(state, happening).value == following


def test_every_state_can_be_stopped() -> None:
    """LIF-1: closing is possible at any time, and again after it."""
    assert {after(state, Happening.STOP) for state in State} == {State.CLOSED}


def test_every_state_is_reached_and_a_closed_connection_stays_closed() -> None:
    """LIF-2: no state is there in vain; nothing leads out of the end."""
    reached, new = set[State](), {State.IDLE}
    while new:
        reached |= new
        new = {following for (state, _), following in TABLE.items() if state in reached} - reached
    assert reached == set(State)
    assert {following for (state, _), following in TABLE.items() if state is State.CLOSED} == {State.CLOSED}


def test_every_state_leads_back_to_ready_but_the_end() -> None:
    """LIF-2: a server that failed can come back."""
    good, new = set[State](), {State.READY}
    while new:
        good |= new
        new = {state for (state, _), following in TABLE.items() if following in good} - good
    assert good == set(State) - {State.CLOSED}


def test_who_waits_for_a_first_result_waits_in_no_settled_state() -> None:
    """TRA-2: settled is where nothing follows soon, and ready."""
    assert set(State) - {State.IDLE, State.CONNECTING, State.WAITING} == SETTLED


def test_the_diagram_in_the_papers_is_the_table() -> None:
    """LIF-2: docs/architecture.md shows each way from one state to another, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    arrow = re.compile(r"^ {4}([A-Z_, ]+?) +(\w+) +→ ([A-Z_]+)$", re.MULTILINE)
    shown = {
        (state.strip().lower(), happening): following.lower()
        for states, happening, following in arrow.findall(page)
        for state in (State if states == "ANY" else states.split(","))
    }
    assert shown == {(state.value, happening.value): following.value for (state, happening), following in TABLE.items()}
