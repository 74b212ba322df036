"""Where logins are kept: files for their owner only, whole or not at all, and one program at a time where it counts.

A refresh token may be good for one use (OAuth 2.1, 4.3.1), so that two programs that renew the same login at once would end it.
So who renews holds the lock of that login, and reads what is there once it has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from toolbay._lenient import as_object
from toolbay.auth.records import Login
from toolbay.config import reading, writing
from toolbay.config.models import ServerConfig
from toolbay.errors import ConfigError, LoginFailed

if TYPE_CHECKING:
    import filelock

PATIENCE = 30.0
"""Seconds to wait for another program that works on the same login: two requests of it may take that long."""
PAUSE = 0.02
"""Seconds between two looks whether the lock is free."""
LIMIT = 1024 * 1024
"""Bytes of one file; a login has a few thousand."""

_FILE = re.compile(r"([0-9a-f]{64})\.json")
_PORTS = {"http": 80, "https": 443}


class Damaged(ConfigError):
    """What is kept of a login is no record of one, or is not safe to use: `why`, a clause. It stays until another login replaces it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no record of a login that can be used ({why}): log in again with `toolbay login NAME`.")
        self.path = path
        self.why = why


class Store(Protocol):
    """Keeps logins by their keys (`key`)."""

    async def load(self, key: str) -> Login | None:
        """What is kept; None where nothing is.

        Raises:
            Damaged: what is kept is no record of a login.
            ToolbayError: it cannot be read now, as where a vault is locked: what was read before counts, and it is asked again.
        """
        ...

    async def save(self, key: str, login: Login) -> None:
        """Keep it in the place of what was there, whatever that was; to the end, though who saves is cancelled.

        Raises ConfigError where that cannot be.
        """
        ...

    async def remove(self, key: str) -> bool:
        """Forget it. True where there was something. Raises ConfigError where that cannot be."""
        ...

    def locked(self, key: str) -> AbstractAsyncContextManager[None]:
        """Within such a block nobody else is in one of the same key, in this program or another one.

        The system ends it for a program that dies. Who waits holds nobody up.

        Raises:
            LoginFailed: another one was in it for all of 30 s (retriable).
            ConfigError: there can be no lock, such as in a folder that cannot be written to.
        """
        ...

    async def keys(self) -> Sequence[str]:
        """The keys of all that is kept, of whatever server. Raises ConfigError where that cannot be known."""
        ...

    def stamp(self, key: str) -> object:
        """Something that is another value once what is kept was changed, here or elsewhere. Quick, and never raises."""
        ...


def key(name: str, config: ServerConfig) -> str:
    """What tells one login from another: the server's name and address, and who logs in there how. 64 hexadecimal digits."""
    auth = config.auth
    parts = [name, canonical(config.url), auth.type if auth else "oauth", auth.client_id if auth else ""]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def canonical(url: str) -> str:
    """One spelling of an address that has several (RFC 3986, 6.2.2.1 and 6.2.3); what is no address stays as it is."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    if parts.scheme not in _PORTS or not host:
        return url
    shown = f"[{host}]" if ":" in host else host
    place = shown if port in (None, _PORTS[parts.scheme]) else f"{shown}:{port}"
    user, at, _ = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user}{at}{place}{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"


class Files:
    """The store of a person: a folder of its own with a file for each login, which only they can read (folder 0700, files 0600).

    Several programs may use it at once. Files that somebody else owns or may write are not read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, key: str) -> Login | None:
        return await anyio.to_thread.run_sync(self._load, self._path(key), key)

    async def save(self, key: str, login: Login) -> None:
        data = json.dumps({"key": key, **login.as_json()}, indent=1).encode()
        if len(data) > LIMIT:
            raise ConfigError(f"the login with {login.url} cannot be kept: it has {len(data)} bytes, and {LIMIT} are read again.")
        with anyio.CancelScope(shield=True):  # what was given once is not given twice
            await anyio.to_thread.run_sync(self._save, self._path(key), data)

    async def remove(self, key: str) -> bool:
        return await anyio.to_thread.run_sync(_remove, self._path(key))

    @asynccontextmanager
    async def locked(self, key: str) -> AsyncGenerator[None]:
        lock = await anyio.to_thread.run_sync(self._lock, key)
        await _acquired(lock)
        try:
            yield
        finally:
            lock.release()

    async def keys(self) -> Sequence[str]:
        return await anyio.to_thread.run_sync(self._keys)

    def stamp(self, key: str) -> object:
        try:
            found = self._path(key).lstat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _keys(self) -> list[str]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self._folder}, where logins are kept, cannot be read: {error.strerror}") from None
        return sorted(found[1] for name in names if (found := _FILE.fullmatch(name)))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _load(self, path: Path, key: str) -> Login | None:
        try:
            found = path.lstat()
            _check(path, found)
            login = _of(key, json.loads(reading.read(path, LIMIT)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Damaged(path, f"it cannot be read: {error.strerror}") from None
        except json.JSONDecodeError:
            raise Damaged(path, "it is no JSON") from None
        except (ValueError, OverflowError, RecursionError) as error:
            raise Damaged(path, "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)) from None
        if hasattr(os, "getuid") and found.st_mode & 0o077:
            with suppress(OSError):
                path.chmod(0o600)
        return login

    def _save(self, path: Path, data: bytes) -> None:
        self._prepare()
        writing.put(path, data)

    def _prepare(self) -> None:
        """The folder is there, and its owner's only. Raises ConfigError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if hasattr(os, "getuid") and self._folder.stat().st_mode & 0o077:
                self._folder.chmod(0o700)
        except OSError as error:
            text = f"{self._folder}, where logins are kept, cannot be used ({error.strerror}): check what it is and its permissions."
            raise ConfigError(text) from None

    def _lock(self, key: str) -> filelock.BaseFileLock:
        import filelock  # noqa: PLC0415  # it takes its time, and only a renewal needs it

        self._prepare()
        return filelock.FileLock(self._folder / f"{key}.lock", mode=0o600, thread_local=False)


class Memory:
    """A store that is gone with the program: for tests, and for who wants nothing on a disk."""

    def __init__(self) -> None:
        self._logins: dict[str, Login] = {}
        self._changes: dict[str, int] = {}
        self._locks: dict[str, anyio.Semaphore] = {}

    async def load(self, key: str) -> Login | None:
        return self._logins.get(key)

    async def save(self, key: str, login: Login) -> None:
        self._logins[key] = login
        self._changes[key] = self._changes.get(key, 0) + 1

    async def remove(self, key: str) -> bool:
        self._changes[key] = self._changes.get(key, 0) + 1
        return self._logins.pop(key, None) is not None

    @asynccontextmanager
    async def locked(self, key: str) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(key, anyio.Semaphore(1))
        try:
            with anyio.fail_after(PATIENCE):
                await lock.acquire()
        except TimeoutError:
            raise _busy() from None
        try:
            yield
        finally:
            lock.release()

    async def keys(self) -> Sequence[str]:
        return list(self._logins)

    def stamp(self, key: str) -> object:
        return self._changes.get(key, 0)


async def _acquired(lock: filelock.BaseFileLock) -> None:
    """Hold it. Waiting is done here, where other tasks can run meanwhile; the library's own way would need a thread for each."""
    import filelock  # noqa: PLC0415  # as in `_lock`

    deadline = anyio.current_time() + PATIENCE
    while True:
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            if anyio.current_time() >= deadline:
                raise _busy() from None
            await anyio.sleep(PAUSE)
        except OSError as error:
            raise ConfigError(f"{lock.lock_file} cannot be locked ({error.strerror}): check what it is and its permissions.") from None
        else:
            return


def _busy() -> LoginFailed:
    return LoginFailed(f"another program has been at work on the same login for {PATIENCE:g} s: try again", retriable=True)


def _check(path: Path, found: os.stat_result) -> None:
    """Raises Damaged for what is no plain file, or may be somebody else's work."""
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(path, "it is no plain file")
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise Damaged(path, "others own it or may write it")


def _of(key: str, data: object) -> Login:
    """The login in a file's JSON, if it was written under this key. Raises ValueError."""
    login = Login.from_json(data)
    if as_object(data).get("key") != key:
        raise ValueError("it is a copy of another login's")
    return login


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed ({error.strerror}): check what it is and its permissions.") from None
    return True
