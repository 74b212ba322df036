"""How long a beginning is waited for: until all have come to a result, or some are there and no other has come for a while.

What has come to a result once is not waited for again, and only the first time that a server is up begins the quiet time
anew: so one that hangs, or dies again and again, costs nobody else anything. Times are given, never read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

LONGEST = 10.0
"""How many quiet times are waited in all, once one server is there, however many come up one after the other."""
IN_VAIN = 3.0
"""Seconds of waiting after which a server that did not come up is worth remembering."""

Who = TypeVar("Who")


@dataclass(frozen=True, slots=True)
class Seen:
    """A server at one moment: whether it can be used, and whether its start has come to a result."""

    up: bool
    settled: bool


class Settling(Generic[Who]):
    """One wait for many servers."""

    def __init__(self, quiet: float | None, *, at: float, passed_over: Collection[Who] = ()) -> None:
        """`quiet`: seconds without another server after which it ends; None waits for all.

        `passed_over` are waited for only as long as there is no other.
        """
        self._quiet = float("inf") if quiet is None else quiet
        self._began = at
        self._passed_over = frozenset(passed_over)
        self._came: set[Who] = set()
        self._done: set[Who] = set()
        self._until = self._end = float("inf")
        self.missed: frozenset[Who] = frozenset()
        """Who was waited for in vain, where the wait is over and was long enough to say so."""

    def left(self, servers: Mapping[Who, Seen], at: float) -> float:
        """Seconds that may still be waited, infinite where only a change ends it; 0 when it is over."""
        for who, seen in servers.items():
            if seen.up and who not in self._came:
                self._came.add(who)
                self._until = at + self._quiet
                self._end = min(self._end, at + LONGEST * self._quiet)
            if seen.up or seen.settled:
                self._done.add(who)
        waited_for = servers.keys() - self._done
        begun = any(seen.up for seen in servers.values())
        if not waited_for or (begun and waited_for <= self._passed_over):
            return 0.0
        left = max(min(self._until, self._end) - at, 0.0) if begun else float("inf")
        if not left and at - self._began >= IN_VAIN:
            self.missed = frozenset(waited_for - self._passed_over)
        return left
