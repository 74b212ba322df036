"""What is heavy, and where heavy work is done."""

from __future__ import annotations

import json
import threading
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay._weight import HEAVY, NODE, aside, heavy, plain, weigh

pytestmark = pytest.mark.anyio


def test_what_has_many_characters_or_many_values_is_heavy() -> None:
    """SEC-20: wherever in a value they are, and however deep."""
    deep: Any = "x" * HEAVY
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * HEAVY, ["x"] * HEAVY, {"a": {"b": list(range(HEAVY))}}, {"k" * HEAVY: 1}, dict.fromkeys(range(HEAVY)), deep):
        assert heavy(value)
    for value in (None, 1, "x" * 1000, {"a": ["b"] * 1000}):
        assert not heavy(value)
    assert heavy({"a": ["b"] * 1000}, 1000)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text('ab"\\\n\x00\x7f\ud800é') | st.binary(max_size=2)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\ud800") | st.integers(), inner) | st.tuples(inner)
)


@given(VALUES)
def test_no_value_has_more_parts_than_its_weight_has_nodes(value: Any) -> None:
    """SEC-29: so that nobody needs to count them."""
    assert _parts(value) <= weigh(value, HEAVY) // NODE


def _parts(value: Any) -> int:
    """The values in it, and their names."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_parts, value.values()))
    return 1 + (sum(map(_parts, value)) if isinstance(value, list | tuple) else 0)


@given(VALUES)
def test_what_is_plain_can_be_written_and_its_weight_bounds_its_size(value: Any) -> None:
    """SCH-3: so that nobody needs to write it to know."""
    if plain(value):
        written = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(written) <= 6 * weigh(value, HEAVY)
        assert json.dumps(json.loads(written)) == json.dumps(value)


def test_most_arguments_are_plain() -> None:
    """SCH-3: and what may not be written, or otherwise by others, is not."""
    for value in ({}, {"a": "b", "c": [1, 2.5, None, True, {"d": ""}]}, [[[["x"]]]], "x", 1 << 52):
        assert plain(value)
    for value in (
        {"é": 1},
        {"a": "\ud800"},
        {"a": float("nan")},
        {"a": float("-inf")},
        [[[[[["x"]]]]]],
        {1: 2},
        b"x",
        {1},
        1 << 53,
    ):
        assert not plain(value)


async def test_heavy_work_is_done_in_a_few_other_threads() -> None:
    """SEC-20: the loop goes on meanwhile; light work needs no thread."""
    assert await aside(threading.get_ident) != threading.get_ident()
    assert await aside(threading.get_ident, when=False) == threading.get_ident()
    together = threading.Barrier(2)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(aside, together.wait)
