"""How often something may happen, whatever another side sends: so many in a row, then one at a time. Pure."""

from __future__ import annotations


class Pace:
    """A bucket of `burst` turns that gains one in `every` seconds. Times are given, in seconds of any clock."""

    def __init__(self, burst: int, every: float) -> None:
        self._burst = burst
        self._every = every
        self._turns = float(burst)
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Seconds until there is a turn; 0 where there is one."""
        self._fill(now)
        return max(1.0 - self._turns, 0.0) * self._every

    def take(self, now: float) -> bool:
        """Use a turn up, if there is one."""
        # A wait that was computed may end a rounding error too early.
        if self.wait(now) > self._every * 1e-6:
            return False
        self._turns = max(self._turns - 1.0, 0.0)
        return True

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._turns = min(self._turns + passed / self._every, float(self._burst))
        self._at = now


class Flood:
    """What passes of a stream of messages, and how many did not."""

    def __init__(self, burst: int, per_second: float) -> None:
        self._pace = Pace(burst, 1.0 / per_second)
        self._untold = 0

    def passes(self, now: float) -> bool:
        """Whether a message that came now goes on; one that does not is counted."""
        if self._pace.take(now):
            return True
        self._untold += 1
        return False

    def untold(self) -> int:
        """How many were dropped since this was last asked."""
        untold, self._untold = self._untold, 0
        return untold
