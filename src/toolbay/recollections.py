"""What servers listed when they were last there, so that a conversation can begin before they are up (LIF-6).

A recollection is only ever a beginning: it is offered until the server's own lists are read, which happens at every start,
and each call waits for its server and is checked again against what it lists then.

How long it counts. A server that speaks 2026-07-28 says how long its lists are fresh (`ttlMs`, specification of that
revision, server/utilities/caching): after that, and so at once where it says 0, they are not used. Of the others the
specification leaves it to the client: 30 days. `cacheScope` asks that what is "private" is used for the same authorisation
only; here everything is, since all that a connection is made with, its credentials too, is part of what it is found by,
and another login, or the end of one, is a reason to forget.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.abc
import anyio.to_thread
from pydantic_core import from_json

from toolbay._lenient import as_object, as_objects, as_text
from toolbay._redact import harmless_header, looks_secret, mask, trace
from toolbay.config import reading, writing
from toolbay.config.models import ServerConfig, TransportType
from toolbay.config.places import others_write
from toolbay.config.servers import SHORTEST_SECRET
from toolbay.errors import ConfigError, LaunchFailed
from toolbay.reconcile import CONNECTION
from toolbay.types import Json
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import ServerInfo
from toolbay.upstream.failures import may_come_back
from toolbay.upstream.launch import prepare
from toolbay.upstream.listing import Listing
from toolbay.upstream.state import State

FORMAT = 1
"""Another one is another signature: what an older Toolbay kept is not found, and goes when it is old."""
MAX_AGE = 30 * 86_400.0
"""Seconds that a recollection counts where its server does not say how long."""
RENEWED = 86_400.0
"""Seconds after which an unchanged recollection is written anew, so that it does not age while its server is in use."""
MAX_FILES = 200
MAX_BYTES = 4_000_000
"""Bytes of one recollection; a server that lists more is waited for."""
MAX_TOTAL = 64_000_000
"""Bytes of all of them; the oldest go first."""
MISSED_AGE = 86_400.0
"""Seconds for which it is known that a server was waited for in vain; then it is waited for once more."""
KEY_BYTES = 32

_MISSED = ".missed"
_NAME = re.compile(r"[0-9a-f]{64}\.(json|missed)")
_WHOSE = ("HOME", "USERPROFILE")
"""Variables that every stdio server gets, and by which many find their credentials."""
_LISTS = ("tools", "resources", "templates", "prompts")

_log = logging.getLogger("toolbay.recollections")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recollection:
    """One server as it was: what it listed, what it said of itself, and when (seconds since 1970)."""

    listing: Listing
    info: ServerInfo
    received: float

    @property
    def counts_for(self) -> float:
        """Seconds since `received` that it may be used."""
        said = [seconds for seconds in (self.listing.fresh_for, self.info.fresh_for) if seconds is not None]
        return min(MAX_AGE, *said) if said else MAX_AGE

    def counts(self, now: float) -> bool:
        """Whether it may be used. One from the future was written by another clock, so nobody knows its age."""
        return 0 <= now - self.received < self.counts_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """What is known of some servers, by name, for one connection each to take out; and which were waited for in vain the last time."""

    known: dict[str, Recollection] = field(default_factory=dict[str, Recollection])
    missed: frozenset[str] = frozenset()


class Folder:
    """The files: one for each way to reach a server, for its owner only, whole or not at all. Several programs may share it.

    A file's name is a keyed digest of what the connection is made with, so that neither a name nor a file tells a secret.
    What was written by others, or is damaged, is ignored and logged. Methods block: call them from a thread.
    """

    def __init__(self, path: Path, *, environ: Mapping[str, str] | None = None, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._environ = os.environ if environ is None else environ
        self._now = now

    def recall(self, config: ServerConfig) -> Recollection | None:
        """What is known of the server that is reached in exactly this way; None where nothing is, or it counts no more."""
        place = self._place(config)
        known = place and self._load(place)
        return known if known and known.counts(self._now()) else None

    def keep(self, config: ServerConfig, listing: Listing, info: ServerInfo, safe: Callable[[str], str] = str) -> None:
        """Remember it. Where a secret stands in it all the same, nothing is: one that `safe` finds (in a name or a URI), or one of its
        own that nobody has named as such, in a configuration that was made by a program.

        Raises:
            ConfigError: it cannot be written.
        """
        made = Recollection(listing=listing, info=info, received=self._now())
        data = _encoded(made, lambda text: mask(safe(text), _credentials(config)))
        if data is None or len(data) > MAX_BYTES or not made.counts_for:
            self.forget(config)
            return
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(config, make_key=True)
        if place is None:
            return
        place.with_suffix(_MISSED).unlink(missing_ok=True)
        if self._is_kept(place, made):
            return
        # Another program may write at this moment: it keeps what the same server lists, and either is as good.
        writing.put(place, data)
        self._prune()

    def forget(self, config: ServerConfig) -> None:
        """Nothing is known of it any more."""
        place = self._place(config)
        if place is not None:
            place.unlink(missing_ok=True)
            place.with_suffix(_MISSED).unlink(missing_ok=True)

    def miss(self, config: ServerConfig) -> None:
        """It was waited for in vain: known for a day, or until it comes up.

        Raises:
            ConfigError: it cannot be written.
        """
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(config, make_key=True)
        if place is not None:
            mark = place.with_suffix(_MISSED)
            writing.put(mark, repr(self._now()).encode())
            self._prune()

    def missed(self, config: ServerConfig) -> bool:
        """Whether the server that is reached in exactly this way was waited for in vain within the last day."""
        place = self._place(config)
        try:
            return place is not None and 0 <= self._now() - float(reading.read(place.with_suffix(_MISSED), 100)) < MISSED_AGE
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            _log.warning("what is known of a server that was waited for is ignored: %s", str(error)[:200])
            return False

    def _is_kept(self, place: Path, made: Recollection) -> bool:
        known = self._load(place) if made.counts_for == MAX_AGE else None
        return known is not None and known.info == made.info and known.listing == made.listing and made.received - known.received < RENEWED

    def _load(self, place: Path) -> Recollection | None:
        try:
            return _decoded(reading.read(place, MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, OverflowError) as error:
            _log.warning("%s holds nothing that can be used and is ignored: %s", place, str(error)[:200])
            return None

    def _place(self, config: ServerConfig, *, make_key: bool = False) -> Path | None:
        """Its file, whether or not it is there; None where the server cannot be told from others."""
        key = self._key(make=make_key)
        try:
            signed = {"format": FORMAT, **config.model_dump(mode="json", include=set(CONNECTION)), **self._surroundings(config)}
        except LaunchFailed:
            return None
        text = json.dumps(signed, sort_keys=True)
        return self._path / f"{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}.json" if key else None

    def _surroundings(self, config: ServerConfig) -> Json:
        """What a stdio server is launched with besides its entry: which program it is here, the folder, and whose variables."""
        if config.type is not TransportType.STDIO:
            return {}
        launch = prepare(config, self._environ)
        given = {name: launch.env[name] for name in (*_WHOSE, *config.inherit_env) if name in launch.env}
        return {"argv": launch.argv, "folder": str(Path(launch.cwd or ".").resolve()), "given": given}

    def _key(self, *, make: bool) -> bytes:
        """What digests are keyed with; empty where there is none, and where others may have put theirs in its place."""
        if others_write(self._path):
            _log.warning("%s can be written to by others, so nothing is kept there or taken from there: make it yours alone", self._path)
            return b""
        path = self._path / "key"
        data = writing.read(path)
        if make and (data is None or len(data) != KEY_BYTES):
            try:
                writing.replace(path, secrets.token_bytes(KEY_BYTES), expected=data)
            except ConfigError as error:
                _log.debug("another program may have made the key meanwhile: %s", error)
            data = writing.read(path)
        return data if data is not None and len(data) == KEY_BYTES else b""

    def _prune(self) -> None:
        """Let go of what is old or too much. Files that do not bear a name of ours are left alone."""
        kept = bytes_kept = 0
        files: list[tuple[os.stat_result, Path]] = []
        for path in self._path.iterdir():
            if _NAME.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another program may just have let go of it
                    files.append((path.stat(), path))
        for found, path in sorted(files, key=lambda file: file[0].st_mtime, reverse=True):
            kept, bytes_kept = kept + 1, bytes_kept + found.st_size
            if kept > MAX_FILES or bytes_kept > MAX_TOTAL or time.time() - found.st_mtime > MAX_AGE:
                path.unlink(missing_ok=True)


class Recollections:
    """A folder for connections: asked before they start, told of what becomes of them. What goes wrong costs the warmth only.

    An async context manager; leaving it writes what is left to write. Without `offers` it keeps what is listed, and knows nothing.
    """

    def __init__(self, folder: Folder, *, safe: Callable[[str], str], offers: bool = True) -> None:
        """`safe` takes the secrets out of what is logged."""
        self._safe = safe
        self._offers = offers
        self._folder = folder
        self._jobs: dict[str, Callable[[], None]] = {}
        self._due = anyio.Event()
        self._over = False
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._write, name="recollections")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        assert self._group is not None
        self._over = True
        self._due.set()
        return await self._group.__aexit__(None, None, None)

    async def recall(self, servers: Mapping[str, ServerConfig]) -> Recalled:
        """What is known of these servers."""
        return await anyio.to_thread.run_sync(self._recall, servers) if servers and self._offers else Recalled()

    def _recall(self, servers: Mapping[str, ServerConfig]) -> Recalled:
        known: dict[str, Recollection] = {}
        missed: set[str] = set()
        for name, config in servers.items():
            try:
                found = self._folder.recall(config)
                if self._folder.missed(config):
                    missed.add(name)
            except (OSError, ConfigError) as error:
                _log.warning("what %s listed last could not be read: %s", name, error)
            else:
                known |= {name: found} if found else {}
        return Recalled(known=known, missed=frozenset(missed))

    def miss(self, connections: Iterable[Connection]) -> None:
        """To be called when they were waited for in vain. Quick, as `note`."""
        for connection in connections:
            self._do(connection.name, partial(self._folder.miss, connection.config))

    def forget(self, server: str, config: ServerConfig) -> None:
        """To be called when it may be somebody else who is told what the server lists. Quick, as `note`."""
        self._do(server, partial(self._folder.forget, config))

    def note(self, connection: Connection) -> None:
        """To be called when its listing or its state has changed: what it listed itself is kept; a server that is not to be had
        in this way is forgotten. Quick: it is done later, and what is overtaken meanwhile is not done.
        """
        listing = connection.listing
        if connection.state is State.READY and listing is not None:
            self._do(connection.name, partial(self._folder.keep, connection.config, listing, connection.info, connection.safe))
        elif _is_hopeless(connection):
            self._do(connection.name, partial(self._folder.forget, connection.config))

    def _do(self, server: str, job: Callable[[], None]) -> None:
        self._jobs[server] = job
        self._due.set()

    async def _write(self) -> None:
        while True:
            while self._jobs:
                server, job = self._jobs.popitem()
                try:
                    await anyio.to_thread.run_sync(job)
                except (OSError, ConfigError) as error:
                    _log.warning("what %s lists could not be kept: %s", server, error)
                except Exception as error:
                    _log.error("what %s lists could not be kept\n%s", server, trace(error, self._safe))
            if self._over:
                return
            self._due = anyio.Event()
            await self._due.wait()


def _is_hopeless(connection: Connection) -> bool:
    """Whether trying again in the same way cannot help."""
    if connection.state is State.FAILED:
        return connection.error is not None and not may_come_back(connection.error)
    return connection.state is State.NEEDS_AUTH


def _credentials(config: ServerConfig) -> frozenset[str]:
    """What looks like one among the values that the server is given."""
    given = [value for name, value in config.env.items() if looks_secret(name)]
    given += [value for name, value in config.headers.items() if not harmless_header(name)]
    return frozenset(value for value in given if len(value) >= SHORTEST_SECRET)


def _encoded(made: Recollection, safe: Callable[[str], str]) -> bytes | None:
    """The file's bytes; None where it cannot be written down, or holds a secret."""
    listing, info = made.listing, made.info
    document = {
        "format": FORMAT,
        "received": made.received,
        "freshFor": [listing.fresh_for, info.fresh_for],
        "listing": {name: getattr(listing, name) for name in (*_LISTS, "complaints")},
        "info": {
            "name": info.name,
            "version": info.version,
            "protocol": info.protocol,
            "instructions": info.instructions,
            "capabilities": info.capabilities,
        },
    }
    try:
        text = json.dumps(document, ensure_ascii=False)
        return None if safe(text) != text else json.dumps(document).encode()
    except (ValueError, TypeError, RecursionError):
        return None


def _decoded(data: bytes) -> Recollection:
    """
    Raises:
        ValueError, OverflowError: these are not the bytes of a recollection.
    """
    if len(data) > MAX_BYTES:
        raise ValueError("it is too large")
    document = as_object(from_json(data))  # which ends at 200 levels
    listed, said, fresh = as_object(document.get("listing")), as_object(document.get("info")), document.get("freshFor")
    received, complaints = document.get("received"), listed.get("complaints")
    if document.get("format") != FORMAT or not isinstance(received, int | float) or not isinstance(fresh, list) or len(fresh) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError("it is of another format")
    texts = {name: said.get(name) for name in ("name", "version", "protocol", "instructions")}
    capabilities = said.get("capabilities")
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(capabilities, dict) or not isinstance(complaints, list):
        raise ValueError("it does not say what it must")
    lists = {name: _items(listed.get(name)) for name in _LISTS}
    seconds = [_seconds(value) for value in cast("list[Any]", fresh)]
    return Recollection(
        listing=Listing(**lists, complaints=tuple(str(text) for text in cast("list[Any]", complaints)), fresh_for=seconds[0]),
        info=ServerInfo(**cast("dict[str, str]", texts), capabilities=cast("Json", capabilities), fresh_for=seconds[1]),
        received=float(received),
    )


def _items(value: Any) -> tuple[Json, ...]:
    """
    Raises:
        ValueError: they are no items with names.
    """
    items = as_objects(value)
    if not isinstance(value, list) or len(items) != len(value) or not all(as_text(item.get("name")) for item in items):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError("its lists are none")
    return tuple(items)


def _seconds(value: Any) -> float | None:
    """
    Raises:
        ValueError: it is no number.
    """
    if value is not None and not isinstance(value, int | float):
        raise ValueError("it does not say how long it counts")
    return value
