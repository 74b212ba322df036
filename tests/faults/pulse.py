"""The measuring that runs beside a fault: a healthy server is called all the while, and the event loop's stalls are timed.

A loaded machine must not look like a fault of ours: time in which the loop's thread was ready to run and the machine was
busy with others is taken off, as far as the operating system tells it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

BEAT = 0.005
"""Seconds between two looks at the loop."""
PAUSE = 0.01
"""Seconds between two calls of the healthy server."""
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass
class Figures:
    """What was measured in one stretch of time, in seconds and MB."""

    latencies: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    """What the healthy server's calls failed with: nothing may."""
    stall: float = 0.0
    peak: float = 0.0

    @property
    def p99(self) -> float:
        """99 of 100 calls took at most so long; of fewer than 100 it is all but the slowest."""
        if not self.latencies:
            return 0.0
        ordered = sorted(self.latencies)
        return ordered[max(int(len(ordered) * 0.99) - 1, 0)]


class Pulse:
    """Measures into `figures` until its tasks are cancelled; give it new ones where another stretch begins."""

    def __init__(self, call: Callable[[], Awaitable[str]]) -> None:
        """`call` calls the healthy server once and gives what went wrong, or nothing."""
        self._call = call
        self.figures = Figures()

    async def beat(self) -> None:
        """Time the loop, and watch the memory."""
        while True:
            began, waited = time.perf_counter(), _queued()
            await anyio.sleep(BEAT)
            late = time.perf_counter() - began - BEAT - (_queued() - waited)
            figures = self.figures
            figures.stall = max(figures.stall, late)
            figures.peak = max(figures.peak, resident())

    async def call(self) -> None:
        """Call the healthy server over and over."""
        while True:
            figures, began = self.figures, time.perf_counter()
            wrong = await self._call()
            figures.latencies.append(time.perf_counter() - began)
            if wrong:
                figures.failures.append(wrong)
            await anyio.sleep(PAUSE)


def crowding() -> float:
    """How many times more this machine had to do in the last minute than it has processors for; 1 where it had less."""
    try:
        return max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
    except (AttributeError, OSError):
        return 1.0


def resident() -> float:
    """MB of memory that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6
    except OSError:
        import psutil

        return psutil.Process().memory_info().rss / 1e6


def _queued() -> float:
    """Seconds that this thread waited for a processor so far; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
