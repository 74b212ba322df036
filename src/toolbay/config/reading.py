"""A file's bytes, however strange the file is: it may be without end, or a pipe that nobody writes to. Neither holds anybody up."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

LARGEST = 16 * 1024 * 1024
"""Bytes of a file that a person, or a program for them, has written; the largest configurations seen have some thousand."""
PATIENCE = 15.0
"""Seconds that a pipe may take, such as one of a shell's `<(...)`."""
ABSENCE = 1.0
"""Seconds in which somebody must have opened a pipe to write to it."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)
_PIECE = 1 << 20


def read(path: Path, limit: int = LARGEST, patience: float = PATIENCE) -> bytes:
    """All that is in the file. It is opened without waiting for who writes to it.

    Raises:
        OSError: it is not there (FileNotFoundError), no file can have that name (EINVAL), it is a folder, has more than `limit`
            bytes (EFBIG), cannot be read, or is a pipe that nobody writes to, or that did not come to its end within `patience` seconds
            (TimeoutError).
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except ValueError:  # a zero character, or half of one
        raise OSError(errno.EINVAL, "no file can have that name", str(path)) from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise _error(errno.EISDIR, path)
        is_file = stat.S_ISREG(found.st_mode)
        if is_file and found.st_size > limit:
            raise _error(errno.EFBIG, path)
        return _pieces(path, descriptor, limit, None if is_file else time.monotonic() + patience)
    finally:
        os.close(descriptor)


def _pieces(path: Path, descriptor: int, limit: int, deadline: float | None) -> bytes:
    pieces: list[bytes] = []
    left = limit
    until = deadline if deadline is None else min(deadline, time.monotonic() + ABSENCE)
    while True:
        is_ready = until is None or _comes(descriptor, until)
        if not is_ready and until == deadline:
            raise _timeout("it is a pipe whose end did not come", path)
        until = deadline
        try:
            piece = os.read(descriptor, _PIECE)
        except BlockingIOError:
            continue  # who writes to it is slow, or somebody else reads it too
        if not piece and not is_ready:
            raise _timeout("it is a pipe that nobody writes to", path)
        if not piece:
            return b"".join(pieces)
        left -= len(piece)
        if left < 0:
            raise _error(errno.EFBIG, path)
        pieces.append(piece)


def _comes(descriptor: int, until: float) -> bool:
    """Whether by then there is something to read, or the end. Where there is no `poll`, files are the only thing that has a path."""
    if not hasattr(select, "poll"):
        return True
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    return bool(watch.poll(max(until - time.monotonic(), 0.0) * 1000))


def _timeout(why: str, path: Path) -> OSError:
    return OSError(errno.ETIMEDOUT, why, str(path))


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
