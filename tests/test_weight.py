"""What is heavy, and where heavy work is done."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from toolbay._weight import HEAVY, aside, heavy

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


async def test_heavy_work_is_done_in_a_few_other_threads() -> None:
    """SEC-20: the loop goes on meanwhile; light work needs no thread."""
    assert await aside(threading.get_ident) != threading.get_ident()
    assert await aside(threading.get_ident, when=False) == threading.get_ident()
    together = threading.Barrier(2)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(aside, together.wait)
