"""How heavy a JSON value is, and a place for heavy work beside the event loop, which everybody else waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

import anyio.to_thread
from anyio.lowlevel import RunVar

HEAVY = 256_000
"""Weight from which work on a value is done in a thread. Lighter values take a few milliseconds."""
NODE = 20
"""What one value of JSON weighs beside its characters."""
_THREADS = 4

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
_threads: RunVar[anyio.CapacityLimiter] = RunVar("_threads")


def heavy(value: Any, limit: int = HEAVY) -> bool:
    """Whether `value` has more than about `limit` characters as JSON. Looks no further than that, and needs no recursion."""
    return weigh(value, limit) > limit


def weigh(value: Any, limit: int) -> int:
    """About how many characters `value` has as JSON, and `NODE` for each value and name in it. More than `limit` is not counted out."""
    weight = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        weight += NODE
        if isinstance(item, str):
            weight += len(item)
        elif isinstance(item, dict):
            members = cast("dict[Any, Any]", item)
            weight += NODE * len(members)
            if weight <= limit:
                weight += sum(map(len, map(str, members)))
                waiting.extend(members.values())
        elif isinstance(item, list | tuple):
            items = cast("list[Any]", item)
            weight += NODE * len(items)
            if weight <= limit:
                waiting.extend(items)
        if weight > limit:
            break
    return weight


async def aside(function: Callable[[*_Args], _T], *args: *_Args, when: bool = True) -> _T:
    """Run pure work in a thread `when` it is heavy, a few at a time; light work at once, here.

    A cancelled caller waits for its end, which is bounded by what it works on.
    """
    if not when:
        return function(*args)
    try:
        threads = _threads.get()
    except LookupError:
        threads = anyio.CapacityLimiter(_THREADS)
        _threads.set(threads)
    return await anyio.to_thread.run_sync(function, *args, limiter=threads)
