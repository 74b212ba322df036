"""A child process with three pipes: started, watched, and ended with all that it has started itself (LIF-1).

It knows nothing of MCP: bytes out, bytes in, and how it ended. How far the hold on it reaches depends on the platform:
a keeper on Linux, a job on Windows, a process group elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from toolbay._aio import to_the_end
from toolbay._media import size
from toolbay._text import line
from toolbay.errors import LaunchFailed
from toolbay.upstream import keeping, signs
from toolbay.upstream.holds import KILL, Group, Hold
from toolbay.upstream.launch import Launch
from toolbay.upstream.lines import Ring
from toolbay.upstream.pipes import Input

EOF_GRACE = 2.0
"""Seconds that a server gets to leave by itself once its input ended. Most real ones need less than 0.5."""
TERM_GRACE = 2.0
"""Seconds after SIGTERM before SIGKILL."""
REST_GRACE = 1.0
"""Seconds that what the server has left behind gets after it has gone, ..."""
STOP_PATIENCE = 4.2
"""... and seconds after which no grace is given any more."""
KILL_GRACE = 0.5
"""Seconds that the kernel gets to end what was killed."""
TOLD = 300
"""Characters of what a child wrote that are told with its end."""
_FOR_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors of the operating system that say nothing about the command: it is short of something at this moment."""

_log = logging.getLogger("toolbay.upstream")


class Child:
    """A running child. Made by `spawn`."""

    def __init__(self, process: anyio.abc.Process, launch: Launch, hold: Hold, given: Input | None = None) -> None:
        self._process = process  # whose pipes these are; not always the server itself
        self._input = given  # None on Windows, where the loop's own pipe is used
        self._hold = hold
        self.launch = launch
        self.stderr = Ring()
        self.exited = anyio.Event()
        """Set as soon as the server itself has ended, even where a grandchild still holds its pipes."""
        self.spoke: float | None = None
        """When the first byte of its output was read, on the loop's clock."""
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._hold.pid

    @property
    def returncode(self) -> int | None:
        return self._hold.returncode

    @property
    def ended(self) -> int | None:
        """The return code of a child that ended by itself; None for one that runs, and for one that `stop` found running."""
        return None if self._stopped else self.returncode

    @property
    def takes_input(self) -> bool:
        """False where it is known to have ended: nothing that is written now is read by it, though a grandchild may hold the pipe."""
        return not self.exited.is_set() and self.returncode is None

    async def send(self, data: bytes) -> None:
        """Write all of `data` to its input.

        Raises:
            NothingTaken: it takes no more, and has taken nothing of this.
            anyio.BrokenResourceError, anyio.ClosedResourceError: it takes no more.
        """
        if self._input is not None:
            await self._input.send(data)
        elif self._process.stdin is not None:
            await self._process.stdin.send(data)

    @property
    def takes_at_once(self) -> bool:
        """Whether `send_now` can be used."""
        return self._input is not None

    def send_now(self, data: bytes) -> int:
        """Write what its input takes at this moment; how many bytes that were."""
        return self._input.send_now(data) if self._input is not None else 0

    async def receive(self) -> bytes:
        """The next bytes of its output.

        Raises:
            anyio.EndOfStream: there will be no more.
        """
        assert self._process.stdout is not None
        data = await self._process.stdout.receive(256 * 1024)
        self.spoke = anyio.current_time() if self.spoke is None else self.spoke
        return data

    @property
    def exceeded(self) -> tuple[str, str] | None:
        """By how much it passed a limit, for which it was ended here, and what helps; None where it was not."""
        return None if self._hold.excess is None else _over(self.launch, *self._hold.excess)

    def describe_end(self) -> str:
        """How it ended, for people: the exit code or signal, and the line of stderr that tells most."""
        code = self.returncode
        if self.exceeded is not None:
            return f"its program was ended: {self.exceeded[0]}; {self.exceeded[1]}"
        if code is None:
            how = "its program closed its output"
        elif code < 0:
            how = f"its program was ended by {_signal_name(-code)}"
        else:
            how = f"its program ended with exit code {code}"
        said = line(signs.telling(self.stderr.lines), TOLD)
        return how + (f"; it wrote to stderr: {said}" if said else "; it wrote nothing to stderr")

    async def stop(self) -> None:
        """End it and all that it started: close its input, wait, SIGTERM, wait, SIGKILL. Bounded; raises only what cancels it."""
        self._stopped = self._stopped or self.returncode is None
        with anyio.CancelScope(shield=True):
            try:
                await self._end()
            except BaseException:
                # Only the end of the loop itself passes a shield: no time is left to be polite.
                self._hold.signal(KILL)
                raise

    async def _end(self) -> None:
        at_last = anyio.current_time() + STOP_PATIENCE
        if not await _within(EOF_GRACE, self._leave):
            self._hold.signal(signal.SIGTERM)
            if not await _within(TERM_GRACE, self.watch):
                self._hold.signal(KILL)
                await _within(KILL_GRACE, self.watch)
        if not await _within(max(min(REST_GRACE, at_last - anyio.current_time()), 0.1), self._hold.end_rest):
            self._hold.signal(KILL)
            await _within(KILL_GRACE, self._hold.end_rest)

    async def _leave(self) -> None:
        if self._input is not None:
            self._input.close()
        elif self._process.stdin is not None:
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                # A pipe that the child does not read keeps `aclose` waiting for the flush.
                with anyio.move_on_after(0.5):
                    await self._process.stdin.aclose()
        await self.watch()

    async def watch(self) -> None:
        """Set `exited` when the server ends."""
        await self._hold.wait()
        self.exited.set()

    async def drain_stderr(self) -> None:
        """Keep its stderr flowing into the ring, so that it never blocks on a full pipe (TRA-6)."""
        assert self._process.stderr is not None
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                self.stderr.feed(await self._process.stderr.receive(64 * 1024))

    async def release(self) -> None:
        """Let go of it, and close our ends of its pipes."""
        with anyio.CancelScope(shield=True):
            await self._hold.close()
            if self._input is not None:
                self._input.close()
            with contextlib.suppress(OSError, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                # The loop lets go of a pipe when it reads its end, which is behind whatever nobody has read.
                with anyio.move_on_after(0.5):
                    while True:
                        await self.receive()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError), anyio.move_on_after(0.5):
                        await stream.aclose()


async def _within(seconds: float, wait: Callable[[], Awaitable[None]]) -> bool:
    """Whether `wait` came back in time."""
    with anyio.move_on_after(seconds) as scope:
        await wait()
    return not scope.cancelled_caught


def _over(launch: Launch, what: str, used: int) -> tuple[str, str]:
    """What passed a limit, and what helps."""
    if what == "memory":
        limit = size(launch.memory)
        return f"it used {size(used)} of memory, and its limit is {limit}", "raise `limits.memory` if that is too little"
    counted = f"it was {used} processes, with all that it had started, and its limit is {launch.processes}"
    return counted, "raise `limits.processes` if that is too little"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _start(launch: Launch, *, kept: bool) -> tuple[anyio.abc.Process, Hold, Input | None]:
    if os.name == "nt":
        return *await _opened(launch, subprocess.PIPE, kept=kept), None
    given = Input()
    try:
        return *await _opened(launch, given.reads, kept=kept), given
    except BaseException:
        given.close()
        raise
    finally:
        given.given()


async def _opened(launch: Launch, reads: int, *, kept: bool) -> tuple[anyio.abc.Process, Hold]:
    mark = uuid.uuid4().hex
    launch = dataclasses.replace(launch, env={**launch.env, keeping.MARK: mark})
    if kept:
        return await keeping.keep(launch, mark, reads)
    if launch.confinement or launch.memory:
        _log.warning("%s runs without its limits: they need Linux and /proc", launch.shown)
    # Shielded: a start that is cut short would be killed alone, without what it has started meanwhile.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            launch.argv, stdin=reads, env=dict(launch.env), cwd=launch.cwd, start_new_session=os.name != "nt"
        )
        if sys.platform == "win32":
            from toolbay.upstream.jobs import Held  # noqa: PLC0415 - nothing elsewhere needs it

            return process, Held(process)
        return process, Group(process)
    raise AssertionError("unreachable: nobody cancels that scope")


@asynccontextmanager
async def spawn(launch: Launch, *, kept: bool | None = None) -> AsyncGenerator[Child]:
    """Start a child; whatever happens, nothing that it started is left when the block ends.

    `kept` decides whether it gets a keeper; by default where that is possible.

    Raises:
        LaunchFailed: the operating system would not start it.
    """
    try:
        process, hold, given = await _start(launch, kept=keeping.usable() if kept is None else kept)
    except OSError as error:
        text = f"its command {launch.shown!r} could not be started: {error.strerror or error}"
        raise LaunchFailed(text, retriable=error.errno in _FOR_NOW) from error
    except ValueError as error:
        raise LaunchFailed(f"its command {launch.shown!r} could not be started: {error}", retriable=False) from error
    child = Child(process, launch, hold, given)
    async with anyio.create_task_group() as group:
        group.start_soon(child.watch, name=f"watch pid {child.pid}")
        group.start_soon(child.drain_stderr, name=f"stderr of pid {child.pid}")
        try:
            yield child
        finally:
            try:
                await child.stop()
                with anyio.CancelScope(shield=True), anyio.move_on_after(0.2):
                    # What it said at the very end is often the reason; the pipe still holds it.
                    await _drained(child)
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):  # from our own cancellation: it would take the place of why we leave
                    await to_the_end(child.release)


async def _drained(child: Child) -> None:
    before = -1
    while before != child.stderr.count:
        before = child.stderr.count
        await anyio.sleep(0.01)
