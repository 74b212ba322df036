"""What tells a running program that its configuration may be another one: the files it was read from, and SIGHUP.

Files are looked at twice a second, in a thread: that works on every file system and through every kind of replacement, and
costs a thousandth of a processor (docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from toolbay.config import reading
from toolbay.config.places import digest

INTERVAL = 0.5
"""Seconds between two looks."""
LOOKS = 10
"""Looks after which a file that changes all the time is taken as it is."""
YOUNG = 2.0
"""Seconds in which a file may change without another time stamp: one that is younger is read again."""

Contents: TypeAlias = Mapping[Path, str]
"""Digests of files by path (`config.places.digest`); empty for what is not there or cannot be read."""


class Files:
    """Looks at files. One that did not change is read once."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[tuple[int, ...], str]] = {}

    def look(self, paths: Iterable[Path]) -> Contents:
        """What is in them now. Reads files."""
        return {path: self._look_at(path) for path in paths}

    def _look_at(self, path: Path) -> str:
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return ""
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            seen = self._seen.get(path)
            if seen is None or seen[0] != stamp or abs(time.time() - found.st_mtime) < YOUNG:
                seen = self._seen[path] = (stamp, digest(reading.read(path)))
        except (OSError, ValueError):  # the second: no file can have that name
            self._seen.pop(path, None)
            return ""
        return seen[1]

    async def differ(self, known: Callable[[], Contents]) -> None:
        """Return when files hold something else than is `known` of them, and have come to rest.

        At rest is what was the same at two looks in a row: who writes a file in pieces, or removes it before it writes the
        next one, is waited for.
        """
        before: Contents | None = None
        looks = 0
        while True:
            await anyio.sleep(INTERVAL)
            expected = known()
            if not expected:
                continue
            now = await anyio.to_thread.run_sync(self.look, tuple(expected), abandon_on_cancel=True)
            if now == expected:
                looks = 0
            elif now == before or looks >= LOOKS:
                return
            else:
                looks += 1
            before = now


@contextmanager
def hangups(heard: Callable[[], None]) -> Generator[None]:
    """Call `heard` in the event loop at each SIGHUP until the block ends; nothing where there is no such signal.

    A terminal that is closed sends SIGHUP too: then it goes to who had it before, as if nobody were here. Signals belong to
    the main thread; in another one nothing is heard.
    """
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    had_terminal = _has_terminal()

    def hand_over(number: int, frame: FrameType | None) -> None:
        if had_terminal and not _has_terminal():
            _pass_on(before, number, frame)
        else:
            loop.call_soon_threadsafe(heard)

    before: Any = signal.signal(signal.SIGHUP, hand_over)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _pass_on(before: Any, number: int, frame: FrameType | None) -> None:
    if callable(before):
        before(number, frame)
    elif before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
