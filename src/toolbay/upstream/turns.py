"""Who may call a server now: so many at once, the others in the order of their coming.

Whoever waits loses nothing but time of their own: a turn that comes too late, or to one that has left, goes to the next.
"""

from __future__ import annotations

import anyio

from toolbay._aio import clock
from toolbay.errors import CallTimeout, Crowded


class Turns:
    """The calls under way to one server, and the line of those that wait. Limits are given anew each time: they may change."""

    def __init__(self, name: str) -> None:
        self.under_way = 0
        """How many have a turn."""
        self.last = float("-inf")
        """When one last ended, on the loop's clock."""
        self._name = name
        self._line: dict[anyio.Event, None] = {}
        self._idle = anyio.Event()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def take(self, *, at_once: int, in_line: int, deadline: float) -> None:
        """A turn: now if fewer than `at_once` have one and nobody waits, else in line. Whoever has it gives it back with `leave`.

        Raises:
            Crowded: there are `in_line` others in line.
            CallTimeout: no turn came before `deadline`.
        """
        if self.under_way < at_once and not self._line:
            self.under_way += 1
        elif len(self._line) < in_line:
            await self._wait(at_once, deadline)
        else:
            raise Crowded(
                f"{self._name} has {self.under_way} calls under way and {len(self._line)} more wait: "
                "call again later, or raise `maxConcurrent` or `maxQueued`"
            )

    async def _wait(self, at_once: int, deadline: float) -> None:
        turn = anyio.Event()
        self._line[turn] = None
        patience = max(deadline - anyio.current_time(), 0.0)
        try:
            with anyio.move_on_after(patience):
                await turn.wait()
        except BaseException:
            if turn.is_set():
                self.leave(at_once)
            else:
                del self._line[turn]
            raise
        if not turn.is_set():
            del self._line[turn]
            raise CallTimeout(
                f"{self._name} was busy with {self.under_way} other calls for {patience:.3g} s: call again later, or raise `maxConcurrent`",
                sent=False,
            )

    def leave(self, at_once: int) -> None:
        """Give a turn back: the next in line get theirs."""
        self.under_way -= 1
        while self._line and self.under_way < at_once:
            turn = next(iter(self._line))
            del self._line[turn]
            self.under_way += 1
            turn.set()
        if not self.under_way:
            self.last = clock()
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when nobody has a turn."""
        while self.under_way:
            if self._idle.is_set():
                self._idle = anyio.Event()
            await self._idle.wait()
