"""The life of a connection as a table, and the waits between attempts."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.config.models import RestartPolicy
from toolbay.upstream.state import SETTLED, TABLE, Backoff, Happening, IllegalHappening, State, after

LEGAL = """
    idle        start           connecting
    connecting  connected       ready
    connecting  lost            waiting
    connecting  refused         failed
    connecting  auth_required   needs_auth
    ready       lost            waiting
    ready       auth_required   needs_auth
    waiting     retry_due       connecting
    waiting     gave_up         failed
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
    """TRA-2: settled is where nothing follows without somebody asking, and ready."""
    assert set(State) - {State.IDLE, State.CONNECTING, State.WAITING} == SETTLED


policies = st.builds(
    RestartPolicy,
    first_delay=st.floats(0.01, 10),
    max_delay=st.floats(0.01, 1000),
    stable_after=st.floats(0.1, 1000),
    max_attempts=st.integers(1, 50),
)
jitters = st.floats(0, 1, exclude_max=True)


@given(policies, jitters)
def test_waits_grow_up_to_the_cap(policy: RestartPolicy, jitter: float) -> None:
    """LIF-2: backoff grows with the failures in a row and is capped, however many there are."""
    waits = [Backoff(policy).delay(failures, jitter) for failures in [*range(40), 10_000, 10**9]]
    assert waits[0] == 0, "the first attempt is at once"
    assert waits[1] > 0
    assert all(before <= later for before, later in pairwise(waits))
    assert max(waits) <= policy.max_delay
    doubled = [before for before, later in pairwise(waits[1:]) if later == pytest.approx(2 * before)]
    assert doubled or policy.first_delay * 2 > policy.max_delay * 0.8


@given(policies, jitters, st.integers(1, 1000))
def test_jitter_moves_a_wait_by_a_fifth_at_the_most(policy: RestartPolicy, jitter: float, failures: int) -> None:
    """LIF-2: many clients do not come back at once, and none waits much longer."""
    wait = min(policy.first_delay * 2 ** min(failures - 1, 30), policy.max_delay)
    assert 0.8 * wait * 0.999 <= Backoff(policy).delay(failures, jitter) <= min(1.2 * wait * 1.001, policy.max_delay)


@given(policies.filter(lambda policy: policy.first_delay * 2 < policy.max_delay))
def test_jitter_spreads_the_waits(policy: RestartPolicy) -> None:
    """LIF-2: another draw, another wait."""
    assert Backoff(policy).delay(1, 0.0) < Backoff(policy).delay(1, 0.5) < Backoff(policy).delay(1, 0.99)


@given(policies)
def test_it_gives_up_after_the_attempts_of_the_policy(policy: RestartPolicy) -> None:
    """LIF-2: not before, not after; a policy that is off gives up at once."""
    backoff = Backoff(policy)
    assert not any(backoff.gives_up(failures) for failures in range(policy.max_attempts))
    assert backoff.gives_up(policy.max_attempts)
    assert Backoff(RestartPolicy(enabled=False)).gives_up(0)


@given(policies)
def test_a_server_that_stayed_up_starts_with_a_clean_record(policy: RestartPolicy) -> None:
    """LIF-2: the wait starts from the beginning after `stable_after`."""
    backoff = Backoff(policy)
    assert backoff.is_stable(policy.stable_after)
    assert not backoff.is_stable(policy.stable_after * 0.99)
