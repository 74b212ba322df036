"""How long a beginning is waited for. Pure: times are given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolbay.settling import IN_VAIN, LONGEST, Seen, Settling

UP, STARTING, FAILED = Seen(up=True, settled=True), Seen(up=False, settled=False), Seen(up=False, settled=True)
STANDS = st.sampled_from([UP, STARTING, FAILED])


def test_one_that_comes_up_again_and_again_begins_the_quiet_time_once() -> None:
    """TRA-2: each start of a server that crashes is news of that server only."""
    wait: Settling[str] = Settling(3.0, at=0.0)
    others = {"good": UP, "hangs": STARTING}
    assert wait.left({**others, "crashes": STARTING}, 0.0) == 3.0
    assert wait.left({**others, "crashes": UP}, 1.0) == 3.0
    assert wait.left({**others, "crashes": STARTING}, 2.0) == 2.0
    assert wait.left({**others, "crashes": UP}, 3.0) == 1.0
    assert wait.left({**others, "crashes": STARTING}, 4.0) == 0.0
    assert wait.missed == {"hangs"}


def test_one_that_was_there_is_not_waited_for_again() -> None:
    """TRA-2: also where every server is waited for."""
    wait: Settling[str] = Settling(None, at=0.0)
    assert wait.left({"a": UP, "b": STARTING}, 0.0) == float("inf")
    assert wait.left({"a": STARTING, "b": FAILED}, 9.0) == 0.0
    assert wait.missed == frozenset()


def test_one_that_was_missed_is_waited_for_only_where_there_is_no_other() -> None:
    """LIF-6: a run in which nothing else can be used waits as ever."""
    wait: Settling[str] = Settling(3.0, at=0.0, passed_over=["hangs"])
    assert wait.left({"hangs": STARTING}, 0.0) == float("inf")
    assert wait.left({"hangs": STARTING, "dead": FAILED}, 1.0) == float("inf")
    assert wait.left({"hangs": STARTING, "good": UP}, 2.0) == 0.0
    assert wait.missed == frozenset()


def test_a_wait_that_was_short_says_nothing_of_who_did_not_come() -> None:
    """LIF-6: who wants to wait for no time has not waited in vain."""
    wait: Settling[str] = Settling(0.0, at=0.0)
    assert wait.left({"good": UP, "slow": STARTING}, IN_VAIN / 2) == 0.0
    assert wait.missed == frozenset()


@given(
    quiet=st.floats(0.1, 100),
    looks=st.lists(st.tuples(st.floats(0, 200), st.dictionaries(st.sampled_from("abcd"), STANDS, min_size=1)), min_size=1, max_size=40),
)
def test_the_whole_wait_is_bounded_once_one_is_there(quiet: float, looks: list[tuple[float, dict[str, Seen]]]) -> None:
    """TRA-2: whatever servers do, in whatever order: from the first that is up on, no moment lies further away than the bound."""
    wait: Settling[str] = Settling(quiet, at=0.0)
    now, first = 0.0, None
    for passed, servers in looks:
        now += passed
        is_up = any(seen.up for seen in servers.values())
        first = now if is_up and first is None else first
        left = wait.left(servers, now)
        assert left >= 0
        if is_up and first is not None:
            assert left == 0 or now + left <= first + LONGEST * quiet + 1e-6
        if not left:
            assert wait.missed <= servers.keys()
            return
