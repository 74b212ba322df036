"""One timer for the deadlines of all requests: almost none is reached, and a timer of its own is a thirtieth of what a call costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from toolbay._aio import clock


class Deadlines:
    """What is to happen when, on the loop's clock, unless it is dropped before."""

    def __init__(self) -> None:
        self._awaited: dict[int, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings = math.inf

    def put(self, key: int, at: float, reached: Callable[[], None]) -> None:
        """Call `reached` at that time, in place of what `key` stood for. It must be quick.

        Of several that are due, the earlier is called first.
        """
        self._awaited[key] = (at, reached)
        if at < self._rings:
            self._wind(at)

    def drop(self, key: int) -> None:
        """Nothing is to happen for it. The timer stays as it is: for many that are dropped it rings once in vain."""
        self._awaited.pop(key, None)

    def end(self) -> None:
        """Let go of the timer where nothing is awaited. What is awaited still comes."""
        self._wind(self._next())

    def _wind(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = at
        self._timer = asyncio.get_running_loop().call_at(at, self._ring) if at < math.inf else None

    def _ring(self) -> None:
        now = clock()
        due = sorted((entry[0], key, entry) for key, entry in self._awaited.items() if entry[0] <= now)
        try:
            for _, key, entry in due:
                if self._awaited.get(key) is entry:  # one before may have ended or moved it
                    self.drop(key)
                    entry[1]()
        finally:
            self._wind(self._next())  # whatever became of these, the others come

    def _next(self) -> float:
        return min((at for at, _ in self._awaited.values()), default=math.inf)
