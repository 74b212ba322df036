"""When a server that failed is tried again: at once, with growing delays, after a pause, or not by itself. Pure.

It guards connections and calls alike: both ask the one connection, and that asks here. Times are given, never read, so
that whole days of failures can be tried in a moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolbay.config.models import RestartPolicy

_DOUBLINGS = 30
"""An exponent is capped: 2**1000 seconds would overflow a float long before anyone waits for it."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next attempt is due in so many seconds. `paused`: the server is left alone until then, and so are its tools."""

    seconds: float
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before an attempt, and how long to pause."""

    policy: RestartPolicy

    def delay(self, failures: int, jitter: float) -> float:
        """Seconds before the attempt that follows `failures` failed ones in a row; 0 for the first.

        `jitter` in [0, 1) moves the wait by up to 20 % either way, so that many clients do not come back at once.
        """
        if failures <= 0:
            return 0.0
        wait = min(self.policy.first_delay * 2 ** min(failures - 1, _DOUBLINGS), self.policy.max_delay)
        return min(wait * (0.8 + 0.4 * jitter), self.policy.max_delay)

    def pause(self, pauses: int, jitter: float) -> float:
        """Seconds of the pause that follows `pauses` others. Jitter makes it longer only, by up to 20 %."""
        wait = min(self.policy.pause * 2 ** min(pauses, _DOUBLINGS), self.policy.max_pause)
        return wait * (1.0 + 0.2 * jitter)


class Breaker:
    """The record of one server's failures.

    It closes again only on a proof of health: once the server has been ready for the policy's `stable_after` (not once it
    was started), or when somebody asks for a start. Until then the attempt after a pause is a single one.
    """

    def __init__(self) -> None:
        self._failures: list[float] = []
        self._in_a_row = 0
        self._pauses = 0

    def reset(self) -> None:
        """Begin with a clean record."""
        self._failures.clear()
        self._in_a_row = self._pauses = 0

    def failed(self, policy: RestartPolicy, *, at: float, ready_for: float | None, jitter: float) -> Next | None:
        """Note a failure and tell what follows; None where `policy` lets nothing follow.

        `at` is a monotonic time, `ready_for` how many seconds the server had been ready, None where it had not become so.
        """
        if ready_for is not None and ready_for >= policy.stable_after:
            self.reset()
        if not policy.enabled:
            return None
        self._failures = [*(failure for failure in self._failures if failure > at - policy.window), at]
        if self._pauses or len(self._failures) >= policy.max_attempts:
            self._pauses += 1
            return Next(Backoff(policy).pause(self._pauses - 1, jitter), paused=True)
        # A server that was there a moment ago is tried again at once; one that has never been there is not.
        self._in_a_row = self._in_a_row + 1 if len(self._failures) > 1 or ready_for is None else 0
        return Next(Backoff(policy).delay(self._in_a_row, jitter))
