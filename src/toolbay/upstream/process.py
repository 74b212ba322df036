"""A child process with three pipes: started in its own group, watched, and ended with its whole group (LIF-1).

It knows nothing of MCP: bytes out, bytes in, and how it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from toolbay.errors import LaunchFailed
from toolbay.upstream.launch import Launch
from toolbay.upstream.lines import Ring

EOF_GRACE = 2.0
"""Seconds that a server gets to leave by itself once its input ended. Most real ones need less than 0.5."""
TERM_GRACE = 2.0
"""Seconds after SIGTERM before SIGKILL."""
GROUP_GRACE = 1.0
"""Seconds that what is left of the group gets after its leader has gone."""


class Child:
    """A running child. Made by `spawn`."""

    def __init__(self, process: anyio.abc.Process, launch: Launch) -> None:
        self._process = process
        self.launch = launch
        self.stderr = Ring()
        self.exited = anyio.Event()
        """Set as soon as the process itself has ended, even where a grandchild still holds its pipes."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def send(self, data: bytes) -> None:
        """Write all of `data` to its input.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: it takes no more.
        """
        assert self._process.stdin is not None
        await self._process.stdin.send(data)

    async def receive(self) -> bytes:
        """The next bytes of its output.

        Raises:
            anyio.EndOfStream: there will be no more.
        """
        assert self._process.stdout is not None
        return await self._process.stdout.receive(256 * 1024)

    def describe_end(self) -> str:
        """How it ended, for people: the exit code or signal, and the last lines of stderr."""
        code = self.returncode
        if code is None:
            how = "closed its output"
        elif code < 0:
            how = f"was ended by {_signal_name(-code)}"
        else:
            how = f"ended with exit code {code}"
        lines = self.stderr.lines[-5:]
        return how + (f"; its last words on stderr: {' | '.join(lines)}" if lines else "; it wrote nothing to stderr")

    async def stop(self) -> None:
        """End it and its group: close its input, wait, SIGTERM, wait, SIGKILL. Bounded; never raises."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                assert self._process.stdin is not None
                # A pipe that the child does not read keeps `aclose` waiting for the flush.
                with anyio.move_on_after(0.5):
                    await self._process.stdin.aclose()
            if not await self._gone(EOF_GRACE):
                self._signal(signal.SIGTERM)
                if not await self._gone(TERM_GRACE):
                    self._signal(_KILL)
                    await self._gone(TERM_GRACE)
            await self._end_group()

    async def _gone(self, seconds: float) -> bool:
        # Watched here anew: the task that watches may be in a scope that was cancelled.
        with anyio.move_on_after(seconds):
            await self.watch()
        return self.exited.is_set()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "nt":
                self._process.terminate() if number == signal.SIGTERM else self._process.kill()
            else:
                os.killpg(self.pid, number)

    async def _end_group(self) -> None:
        """Grandchildren may outlive the leader: its group still names them, and nobody else can have its number."""
        if os.name == "nt":
            return
        for number in (signal.SIGTERM, _KILL):
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return
            with anyio.move_on_after(GROUP_GRACE):
                # The kernel tells nobody when a group becomes empty.
                while _group_lives(self.pid):  # noqa: ASYNC110
                    await anyio.sleep(0.02)

    async def watch(self) -> None:
        """Set `exited` when the process ends."""
        while self._process.returncode is None:
            await _wait_for_exit(self.pid)
            await checkpoint()
        self.exited.set()

    async def drain_stderr(self) -> None:
        """Keep its stderr flowing into the ring, so that it never blocks on a full pipe (TRA-6)."""
        assert self._process.stderr is not None
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                self.stderr.feed(await self._process.stderr.receive(64 * 1024))

    async def release(self) -> None:
        """Close our ends of its pipes."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(OSError, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                # The loop lets go of a pipe when it reads its end, which is behind whatever nobody has read.
                with anyio.move_on_after(0.5):
                    while True:
                        await self.receive()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError), anyio.move_on_after(0.5):
                        await stream.aclose()


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


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


@asynccontextmanager
async def spawn(launch: Launch) -> AsyncGenerator[Child]:
    """Start a child; whatever happens, nothing of its group is left when the block ends.

    Raises:
        LaunchFailed: the operating system would not start it.
    """
    try:
        # Its own session, so that a Ctrl-C at our terminal is ours alone and its whole group can be ended.
        process = await anyio.open_process(launch.argv, env=dict(launch.env), cwd=launch.cwd, start_new_session=os.name != "nt")
    except OSError as error:
        raise LaunchFailed(f"its command {launch.shown!r} could not be started: {error.strerror or error}", retriable=False) from error
    child = Child(process, launch)
    async with anyio.create_task_group() as group:
        group.start_soon(child.watch, name=f"watch pid {child.pid}")
        group.start_soon(child.drain_stderr, name=f"stderr of pid {child.pid}")
        try:
            yield child
        finally:
            await child.stop()
            with anyio.CancelScope(shield=True), anyio.move_on_after(0.2):
                # What it said at the very end is often the reason; the pipe still holds it.
                await _drained(child)
            group.cancel_scope.cancel()
            await child.release()


async def _drained(child: Child) -> None:
    before = -1
    while before != child.stderr.count:
        before = child.stderr.count
        await anyio.sleep(0.01)
