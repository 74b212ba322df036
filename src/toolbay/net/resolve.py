"""From names to addresses, off the event loop."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import anyio
import anyio.to_thread

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> addresses in the order in which they should be tried. Raises socket.gaierror."""

LOOKUPS = 8
"""Look-ups that one resolver has under way; each holds a thread."""


class SystemResolver:
    """Asks the operating system, in threads of its own: the event loop's pool has few, and one slow name would take them all.

    A look-up that nobody waits for any more is left to end by itself, for it cannot be broken off.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return await anyio.to_thread.run_sync(_look_up, host, port, abandon_on_cancel=True, limiter=self._limiter)


def _look_up(host: str, port: int) -> list[str]:
    # As bytes: a str would go through IDNA 2003 once more, which knows other names.
    answers = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    found: dict[str, None] = {}
    for family, _, _, _, address in answers:
        if family == socket.AF_INET:
            found[str(address[0])] = None
        elif family == socket.AF_INET6:
            scope = address[3] if len(address) == 4 else 0
            found[f"{address[0]}%{scope}" if scope else str(address[0])] = None
    return list(found)
