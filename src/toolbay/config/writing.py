"""A file replaced whole or not at all, and only while it is still what was read."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolbay.config import reading
from toolbay.errors import ConfigError

_PATIENCE = 5.0
"""Seconds to wait for another program that is writing in the same folder; a write takes milliseconds."""
READERS = 1.0
"""Seconds to wait for another program that has the file open to read it, where that is in the way."""
_PAUSE = 0.02
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}


def read(path: Path) -> bytes | None:
    """The file's bytes, or None where there is none.

    Raises:
        ConfigError: it is there but cannot be read.
    """
    try:
        return reading.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): check what it is and its permissions.") from None


def replace(path: Path, data: bytes, *, expected: bytes | None, mode: int = 0o600) -> None:
    """Write `data` in place of `expected` (what was read before, None for no file).

    The file that a link names is written, with the mode it has; a new file gets `mode`, and so is for its owner only where
    nothing else is asked for. Whoever reads meanwhile sees the old file or the new one.

    Raises:
        ConfigError: the file has changed since it was read, or cannot be written. The file is as it was.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if read(target) != expected:
                raise ConfigError(f"{path} was changed by someone else meanwhile; nothing was written: look at it and try again.")
            _swap(target, data, stat.S_IMODE(target.stat().st_mode) if target.exists() else mode)
    except OSError as error:
        raise _unwritten(path, error) from None


def put(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` under this very name, with this mode, whatever is there: a link is replaced, not followed. Whole or not at all.

    Raises:
        ConfigError: it cannot be written; what was there is as it was.
    """
    try:
        with _locked(path):
            _swap(path, data, mode)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({error.strerror}); it is as it was: check its permissions and the disk.")


def _swap(target: Path, data: bytes, mode: int) -> None:
    prefix, suffix = f".{target.name}.", ".tmp"
    for left in target.parent.glob(f"{prefix}*{suffix}"):  # of a writer that was killed; nobody else writes now
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            Path(name).chmod(mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        moved(lambda: Path(name).replace(target))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def moved(move: Callable[[], object]) -> None:
    """Do `move`, which puts a file in the place of another one. Raises what it raised last.

    Windows does not let a file be replaced that somebody has open: who reads it is waited for, `READERS` seconds at the most.
    """
    deadline = time.monotonic() + READERS
    while True:
        try:
            move()
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _sync_folder(folder: Path) -> None:
    """The rename itself must survive a power cut. Some systems cannot sync folders; there it is as good as it gets."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


if sys.platform == "win32":
    import msvcrt

    @contextmanager
    def _locked(target: Path) -> Generator[None]:
        """Folders cannot be locked here; a file beside the target is."""
        with (target.parent / f".{target.name}.lock").open("a+b") as file:
            _insist(lambda: msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1), target)
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    @contextmanager
    def _locked(target: Path) -> Generator[None]:
        """The folder is locked, so that no lock file stays behind; the system frees it even of a killed process."""
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            _insist(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), target)
            yield
        finally:
            os.close(handle)


def _insist(lock: Callable[[], object], target: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            lock()
        except OSError as error:
            if error.errno not in _BUSY:
                return  # a file system without locks: reading again right before the rename is all there is
            if time.monotonic() >= deadline:
                raise ConfigError(f"{target} is being written by another program; nothing was written: try again.") from None
            time.sleep(_PAUSE)
        else:
            return
