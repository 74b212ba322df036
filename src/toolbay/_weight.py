"""How heavy a JSON value is, and a place for heavy work beside the event loop, which everybody else waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, TypeVarTuple

import anyio.to_thread
from anyio.lowlevel import RunVar

HEAVY = 256_000
"""Weight from which work on a value is done in a thread. Lighter values take a few milliseconds."""
NODE = 20
"""What one value of JSON weighs beside its characters."""
_THREADS = 4
# With types that leave what is in them `Any`: a cast would be a call for each.
_OBJECT: type[Any] = dict
_LISTS: tuple[type[Any], ...] = (list, tuple)
_CONTAINERS, _NUMBERS = (dict, list, tuple), (int, float)
_WIDE = 1 << 53
"""Whole numbers up to here are written as they are by everybody."""

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
_threads: RunVar[anyio.CapacityLimiter] = RunVar("_threads")


def heavy(value: Any, limit: int = HEAVY) -> bool:
    """Whether `value` has more than about `limit` characters as JSON. Looks no further than that, and needs no recursion."""
    return weigh(value, limit) > limit


def weigh(value: Any, limit: int) -> int:
    """About how many characters `value` has as JSON, and `NODE` for each value and name in it. More than `limit` is not counted out."""
    weight = NODE
    waiting = [value]
    while waiting and weight <= limit:
        item = waiting.pop()
        if isinstance(item, str):
            weight += len(item)
        elif isinstance(item, _OBJECT):
            weight += 2 * NODE * len(item)
            if weight <= limit:
                weight += sum(map(len, map(str, item))) + _shallow(item.values(), waiting)
        elif isinstance(item, _LISTS):
            weight += 2 * NODE * len(item)
            if weight <= limit:
                weight += _shallow(item, waiting)
    return weight


def _shallow(values: Iterable[Any], containers: list[Any]) -> int:
    """The characters of the texts among `values`; what holds others is put to `containers`."""
    characters = 0
    for value in values:
        if isinstance(value, str):  # most of all, which need no round of their own
            characters += len(value)
        elif isinstance(value, _CONTAINERS):
            containers.append(value)
    return characters


def plain(value: Any, levels: int = 5) -> bool:
    """Whether it holds nothing but ASCII text, numbers up to 2^53, booleans and null, in so many `levels`: JSON that can be written.

    As most arguments do, which is seen in a third of the time that writing them takes. `levels` bounds the recursion; few arguments
    have more than five.
    """
    parts: Iterable[Any] = (value,)
    if isinstance(value, _OBJECT):
        for name in value:
            if not (isinstance(name, str) and name.isascii()):
                return False
        parts = value.values()
    elif isinstance(value, _LISTS):
        parts = value
    for part in parts:
        if isinstance(part, str):
            if not part.isascii():
                return False
        elif isinstance(part, _CONTAINERS):
            if levels <= 1 or not plain(part, levels - 1):
                return False
        elif part is not None and not (isinstance(part, _NUMBERS) and -_WIDE < part < _WIDE):
            return False
    return True


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
