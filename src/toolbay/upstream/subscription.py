"""A change subscription (2026-07-28): held open, and asked for again where it ends; what was missed in between is told as a gap."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable

import anyio

LISTEN = "listen-"
"""What the ids of subscriptions begin with, which no ledger has."""
DELAYS = (1.0, 5.0, 30.0)
"""Seconds before a subscription that ended is asked for again."""
STABLE = 60.0
"""Seconds after which one that ended was a good one: the next one is asked for soon."""

_log = logging.getLogger("toolbay.upstream")


class Subscription:
    """The subscription of one session."""

    def __init__(self, name: str, on_gap: Callable[[], None]) -> None:
        self._name = name
        self._on_gap = on_gap
        self._asked = 0

    async def hold(self, listen: Callable[[str], Awaitable[bool]]) -> None:
        """Keep `listen`, which is given an id of its request, running. It returns where the subscription ends: whether to go on."""
        delays = iter(DELAYS)
        for self._asked in itertools.count(1):
            began = anyio.current_time()
            if not await listen(f"{LISTEN}{self._asked}"):
                _log.warning("%s: it says that its lists may change, and lets nobody listen for that", self._name)
                return
            delays = iter(DELAYS) if anyio.current_time() - began >= STABLE else delays
            await anyio.sleep(next(delays, DELAYS[-1]))

    def acknowledged(self) -> None:
        """The server has begun to tell of changes. After the first time it may have kept some to itself before."""
        if self._asked > 1:
            self._on_gap()
