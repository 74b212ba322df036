"""How a running child is held: watched, signalled with all that it has started, and ended. One way for each platform.

`Group` is the plain way of POSIX: a process group. What leaves the group (`setsid`, a double fork) leaves the hold.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


class Hold(Protocol):
    """The hold on one server and on what it has started."""

    @property
    def pid(self) -> int:
        """The server's own process."""
        ...

    @property
    def returncode(self) -> int | None:
        """The server's exit code, or the negative number of the signal that ended it; None while it runs."""
        ...

    @property
    def excess(self) -> tuple[str, int] | None:
        """The limit (`memory` in bytes, `processes`) for which it was ended, and what was used of it; None for any other end."""
        ...

    async def wait(self) -> None:
        """Return when the server itself has ended. Any number of tasks may wait."""

    def signal(self, number: int) -> None:
        """Send a signal to the server and to all that it has started, as far as the hold reaches."""

    async def end_rest(self) -> None:
        """The server has ended: ask the rest to end as well, and return when nothing is left."""

    async def close(self) -> None:
        """Let go. Bounded; never raises."""


class Group:
    """A child in a session of its own, so that a Ctrl-C at our terminal is ours alone and its whole group can be ended."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def excess(self) -> tuple[str, int] | None:
        return None

    async def wait(self) -> None:
        await exit_of(self._process)

    def signal(self, number: int) -> None:
        # The group may outlive its leader: it keeps the number, which nobody else can have meanwhile.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end_rest(self) -> None:
        self.signal(signal.SIGTERM)
        # The kernel tells nobody when a group becomes empty.
        while _group_lives(self.pid):  # noqa: ASYNC110
            await anyio.sleep(0.02)

    async def close(self) -> None:
        await checkpoint()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def exit_of(process: anyio.abc.Process) -> None:
    """Return when `process` has ended and its exit code is known, whoever else holds its pipes."""
    while process.returncode is None:
        await _wait_for_exit(process.pid)
        await checkpoint()


async def _wait_for_exit(pid: int) -> None:
    """Return when the process `pid` has ended, or after a moment where the platform cannot tell."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        await anyio.sleep(0.05)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    # The loop learns of the exit code a moment after the kernel does.
    await anyio.sleep(0.001)
