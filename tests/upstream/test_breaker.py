"""When a server that failed is tried again: pure, over days of failures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.config.models import RestartPolicy
from toolbay.upstream.breaker import Backoff, Breaker, Next

policies = st.builds(
    RestartPolicy,
    first_delay=st.floats(0.01, 10),
    max_delay=st.floats(0.01, 1000),
    stable_after=st.floats(0.1, 1000),
    max_attempts=st.integers(1, 50),
    window=st.floats(0.1, 1000),
    pause=st.floats(0.1, 100),
    max_pause=st.floats(0.1, 1000),
)
jitters = st.floats(0, 1, exclude_max=True)
DEFAULT = RestartPolicy()


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


@given(policies, jitters)
def test_pauses_double_up_to_the_cap_and_are_never_shorter_than_they_say(policy: RestartPolicy, jitter: float) -> None:
    """LIF-2: jitter makes a pause longer only: the bound on attempts rests on it."""
    pauses = [Backoff(policy).pause(pauses, jitter) for pauses in [*range(40), 10**9]]
    assert min(policy.pause, policy.max_pause) <= pauses[0]
    assert all(before <= later for before, later in pairwise(pauses))
    assert max(pauses) <= policy.max_pause * 1.2


def schedule(
    breaker: Breaker, lives: list[tuple[float, float | None]], *, policy: RestartPolicy = DEFAULT, jitter: float = 0.5
) -> list[float]:
    """When attempts begin, where each takes so many seconds and is ready for so long (None: never becomes so)."""
    now, starts = 0.0, list[float]()
    for seconds, ready_for in lives:
        starts.append(now)
        now += seconds + (ready_for or 0.0)
        following = breaker.failed(policy, at=now, ready_for=ready_for, jitter=jitter)
        assert following is not None
        now += following.seconds
    return starts


lives = st.lists(st.tuples(st.floats(0.001, 60), st.none() | st.floats(0, 29.9)), min_size=20, max_size=60)


@given(lives, jitters)
def test_a_crash_loop_makes_at_most_six_attempts_in_three_minutes(lives: list[tuple[float, float | None]], jitter: float) -> None:
    """P17: whatever it dies of, as long as it never proves its health; in any three minutes, not only the first."""
    starts = schedule(Breaker(), lives, jitter=jitter)
    assert all(later - earlier > 180 for earlier, later in zip(starts, starts[6:], strict=False))


@pytest.mark.parametrize(
    ("ready_for", "attempts"),
    [(None, [0, 0.5, 1.5, 3.5, 7.5, 67.5, 187.5, 427.5, 907.5, 1507.5, 2107.5]), (0.0, [0, 0, 0.5, 1.5, 3.5, 63.5, 183.5, 423.5, 903.5])],
)
def test_the_schedule_of_the_default_policy(ready_for: float | None, attempts: list[float]) -> None:
    """P17, P2: at once if it had been there, then 0.5 s doubled; after the fifth failure pauses of 1, 2, 4, 8, 10 minutes."""
    breaker, now = Breaker(), 0.0
    for expected in attempts:
        assert now == pytest.approx(expected)
        following = breaker.failed(DEFAULT, at=now, ready_for=ready_for, jitter=0.0)
        assert following is not None
        now += following.seconds / (1.0 if following.paused or not following.seconds else 0.8)


def test_a_server_that_proved_its_health_starts_with_a_clean_record() -> None:
    """LIF-2: ready for `stable_after`, not only started: waits and pauses begin from the beginning."""
    breaker = Breaker()
    schedule(breaker, [(0.1, 0.0)] * 9)
    assert breaker.failed(DEFAULT, at=5_000, ready_for=29.9, jitter=0.0) == Next(600.0, paused=True)
    assert breaker.failed(DEFAULT, at=10_000, ready_for=30.0, jitter=0.0) == Next(0.0)
    assert breaker.failed(DEFAULT, at=10_001, ready_for=0.0, jitter=0.5) == Next(0.5)


def test_a_start_that_somebody_asks_for_begins_with_a_clean_record() -> None:
    """LIF-2: `reset` forgets what there was."""
    breaker = Breaker()
    schedule(breaker, [(0.1, None)] * 9)
    breaker.reset()
    assert breaker.failed(DEFAULT, at=10_000, ready_for=None, jitter=0.5) == Next(0.5)


@given(policies, st.lists(st.none() | st.floats(0, 2000), min_size=1, max_size=30), jitters)
def test_something_always_follows_unless_the_policy_is_off(policy: RestartPolicy, ready: list[float | None], jitter: float) -> None:
    """LIF-2: a server that can come back comes back, however often it failed."""
    breaker, now = Breaker(), 0.0
    for ready_for in ready:
        now += ready_for or 0.0
        following = breaker.failed(policy, at=now, ready_for=ready_for, jitter=jitter)
        assert following is not None
        assert 0 <= following.seconds <= max(policy.max_delay, policy.max_pause * 1.2)
        now += following.seconds
    off = policy.model_copy(update={"enabled": False})
    assert breaker.failed(off, at=now, ready_for=0.0, jitter=jitter) is None


@given(st.integers(1, 20))
def test_the_breaker_opens_with_the_failure_that_the_policy_names(attempts: int) -> None:
    """LIF-2: not before, not after."""
    breaker, policy = Breaker(), RestartPolicy(max_attempts=attempts)
    paused = [following.paused for at in range(attempts) if (following := breaker.failed(policy, at=at, ready_for=0.0, jitter=0.0))]
    assert paused == [False] * (attempts - 1) + [True]


def test_failures_that_are_long_past_do_not_count() -> None:
    """LIF-2: a server that fails once an hour is brought back each time."""
    breaker = Breaker()
    following = [breaker.failed(DEFAULT, at=hour * 3600.0, ready_for=10.0, jitter=0.5) for hour in range(50)]
    assert not any(one is None or one.paused for one in following)
    assert following[-1] == Next(0.0), "nor do they make its waits longer"
