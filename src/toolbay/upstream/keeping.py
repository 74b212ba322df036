"""Our side of a keeper: the order that it is given, its report, and what is done where it was ended itself.

The report is lines: `pid N` once the server runs, or `error ERRNO` where it could not be run; `over WHAT USED` where it has
passed a limit (`memory` in bytes, `processes`) and is ended for it; `ended CODE`; `gone` when nothing that the server started
is left. Its end is the keeper's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from toolbay._aio import to_the_end
from toolbay.errors import LaunchFailed
from toolbay.upstream.holds import KILL, exit_of
from toolbay.upstream.launch import Launch

MARK = "TOOLBAY_CHILD"
"""The variable in a server's environment by which what is left of it is found where its keeper was killed."""
KEEPER = Path(__file__).with_name("keeper.py")
RUN = "import sys; sys.path.append(sys.argv[1]); from keeper import main; main()"
"""Imported, so that its compiled form is used: half of what a script costs is its compilation."""
START_PATIENCE = 20.0
"""Seconds in which the keeper must have started the server; it takes 0.02 on an idle machine."""
LEAVE_GRACE, TERM_GRACE, REST_GRACE = 1.0, 2.0, 1.0
"""Seconds, where we are gone: from the end of input to SIGTERM, from there to SIGKILL. The last: for what a server left behind."""
SWEEP = 1.0
"""Seconds in which what is found by its mark must have ended."""


def usable() -> bool:
    """Whether servers can be kept: on Linux, with `/proc`, from an installed package and with an interpreter."""
    if sys.platform != "linux" or not sys.executable or getattr(sys, "frozen", False):
        return False
    try:
        # A /proc of other numbers than ours would have the keeper end strangers.
        return os.readlink("/proc/self") == str(os.getpid()) and KEEPER.is_file()  # noqa: PTH115
    except OSError:
        return False


def order(launch: Launch) -> bytes:
    """What the keeper is told: see `keeper.Order`. In a file of its own, since arguments are there for everybody to read.

    Raises:
        ValueError: something in it cannot be given to any process.
    """
    fields = [str(os.getpid()), str(LEAVE_GRACE), str(TERM_GRACE), str(REST_GRACE)]
    fields += [str(launch.memory), str(launch.processes), launch.confinement]
    # The server starts in its own folder; a path that was found from ours must not be read from there.
    fields += [launch.cwd or "", os.path.abspath(launch.argv[0]), str(len(launch.argv)), *launch.argv]  # noqa: PTH100
    for name, value in launch.env.items():
        if not name or "=" in name:
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        fields.append(f"{name}={value}")
    if any("\0" in field for field in fields):
        raise ValueError("a zero character cannot be given to a program")
    return b"".join(os.fsencode(field) + b"\0" for field in fields)


class Kept:
    """A server under its keeper: the `Hold` that nothing leaves. Made by `keep`."""

    def __init__(self, keeper: anyio.abc.Process, commands: int, report: int, mark: str) -> None:
        self._keeper = keeper
        self._commands = commands
        self._report = report
        self._mark = mark
        self._unread = b""
        self._over = False
        self._gone = False
        self._pid = 0
        self._returncode: int | None = None
        self.excess: tuple[str, int] | None = None
        self.error: int | None = None
        """The number of the operating system's error that kept the server from being run."""
        os.set_blocking(report, False)
        os.set_blocking(commands, False)
        # Also where the loop is torn down before `close`: the keeper sees that nobody is there any more.
        self._let_go = weakref.finalize(self, _close, commands, report)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return self._returncode

    async def started(self) -> None:
        """Return once the keeper has run the server, or has failed to."""
        await self._until(lambda: bool(self._pid) or self.error is not None)

    async def wait(self) -> None:
        await self._until(lambda: self._returncode is not None)

    def signal(self, number: int) -> None:
        if self._over:
            return
        with contextlib.suppress(OSError):
            os.write(self._commands, b"K" if number == KILL else b"T")

    async def end_rest(self) -> None:
        self.signal(signal.SIGTERM)
        await self._until(lambda: self._gone)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if not self._gone:
                with contextlib.suppress(ProcessLookupError):
                    self._keeper.kill()
                await anyio.to_thread.run_sync(sweep, self._mark)
            with anyio.move_on_after(SWEEP):
                await exit_of(self._keeper)
            self._over = True
            self._let_go()

    async def _until(self, condition: Callable[[], bool]) -> None:
        self._read()
        while not (condition() or self._over):
            await _readable(self._report)
            self._read()

    def _read(self) -> None:
        if self._over:
            return
        try:
            data = os.read(self._report, 4096)
        except BlockingIOError:
            return
        if not data:
            self._over = True
            if self._pid and self._returncode is None:
                self._returncode = -signal.SIGKILL  # what the kernel does to a server whose keeper was ended
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self._pid = int(number)
            elif word == b"error":
                self.error = int(number)
                self._gone = True
            elif word == b"over":
                what, _, used = number.partition(b" ")
                self.excess = (what.decode(), int(used))
            elif word == b"ended":
                self._returncode = int(number)
            elif word == b"gone":
                self._gone = True


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    """Return when there is something to read, or after a moment where the process is out of descriptors."""
    try:
        # A copy for each who waits: an event loop takes one waiter a descriptor.
        mine = os.dup(descriptor)
    except OSError:
        await anyio.sleep(0.05)
        return
    try:
        await anyio.wait_readable(mine)
    finally:
        os.close(mine)


async def keep(launch: Launch, mark: str, stdin: int) -> tuple[anyio.abc.Process, Kept]:
    """Start a server under a keeper, with `stdin` as its input. The process that is returned is the keeper's; its pipes are the server's.

    Raises:
        OSError: what the operating system said to the server's command, or to the keeper's.
        LaunchFailed: the keeper gave no answer.
    """
    assert sys.platform == "linux"
    made: list[tuple[anyio.abc.Process, Kept]] = []
    try:
        # A start that is cut short would leave a keeper that nobody knows.
        await to_the_end(lambda: _begin(launch, mark, stdin, made.append))
        keeper, kept = made[0]
        with anyio.move_on_after(START_PATIENCE):
            await kept.started()
        if kept.pid:
            return keeper, kept
    except BaseException:
        for keeper, kept in made:
            await _undo(keeper, kept)
        raise
    await _undo(keeper, kept)
    if kept.error is not None:
        raise OSError(kept.error, os.strerror(kept.error))
    raise LaunchFailed(f"its command {launch.shown!r} could not be started: the process that was to watch over it did not start it")


async def _begin(launch: Launch, mark: str, stdin: int, made: Callable[[tuple[anyio.abc.Process, Kept]], None]) -> None:
    """Start the keeper, and hand it over."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        file = os.memfd_create("order")
        theirs.callback(os.close, file)
        with open(file, "wb", closefd=False) as order_file:  # noqa: ASYNC230 - it is memory
            order_file.write(order(launch))
        reads, commands = os.pipe()
        theirs.callback(os.close, reads)
        ours.callback(os.close, commands)
        report, writes = os.pipe()
        theirs.callback(os.close, writes)
        ours.callback(os.close, report)
        inherited = (file, reads, writes)
        argv = [sys.executable, "-I", "-S", "-c", RUN, str(KEEPER.parent), *map(str, inherited)]
        keeper = await anyio.open_process(argv, stdin=stdin, env=_PLAIN, pass_fds=inherited, start_new_session=True)
        ours.pop_all()
        made((keeper, Kept(keeper, commands, report, mark)))


async def _undo(keeper: anyio.abc.Process, kept: Kept) -> None:
    async def undo() -> None:
        kept.signal(KILL)
        with anyio.move_on_after(SWEEP):
            await kept.end_rest()
        await kept.close()
        await keeper.aclose()

    await to_the_end(undo)


_PLAIN: Mapping[str, str] = {"PATH": os.defpath}
"""The keeper's own environment. The server's is in the order: an interpreter acts on what it finds, and even changes it."""


def sweep(mark: str) -> None:
    """Kill what carries the mark, and all below it, until nothing is found any more or the time is up."""
    from toolbay.upstream.keeper import below  # noqa: PLC0415 - it can only be imported on Linux, and is rarely needed

    deadline = time.monotonic() + SWEEP
    while found := set(marked(mark)):
        for pid in found | {child for parent in found for child in below(parent)}:
            with contextlib.suppress(OSError):
                os.kill(pid, KILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def marked(mark: str) -> Iterator[int]:
    """Living processes of ours that were started with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, each used once
        if name.isdigit():
            with contextlib.suppress(OSError):
                # The environment of what has ended is empty.
                if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)
