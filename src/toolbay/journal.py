"""Calls under way, noted on disk right before they are sent: what a crash broke off is told to the next run, once.

One file for each run, appended to and never synced: what the system has taken survives the end of this process, and the
end of the machine is not worth a wait of milliseconds in every call. The run holds a lock on its file, so that whoever
finds a file that is not locked knows that its run is over, even where the number of its process is in use again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

import anyio.to_thread

from toolbay._text import line
from toolbay.config.models import ServerConfig
from toolbay.config.places import others_write
from toolbay.errors import ToolbayError
from toolbay.events import Event, Events, Notice, TurnFinished
from toolbay.types import CallContext, Invocation, Json, Kind, Next, Outcome, ToolResult, outcome_of

LARGEST = 1024 * 1024
"""Bytes of a journal, after which the calls that are still under way go on in a new one."""
READ_AT_MOST = 8 * LARGEST
KEPT_DAYS = 30
"""Days for which a call that was broken off is worth telling."""
FILES = 200
"""Journals of earlier runs that are looked into."""
SHOWN = 10
"""Calls that are told one by one; of more it is told how many."""
_SUFFIX = ".jsonl"
_READING = (Kind.RESOURCE, Kind.PROMPT)

_log = logging.getLogger("toolbay.journal")
_quoted = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class UnfinishedCall:
    """A call during which an earlier run ended: it may have taken effect. `at`: when it was sent, in seconds since the epoch."""

    server: str
    tool: str
    """The name that models know it by."""
    at: float
    call_id: str = ""
    arguments_sha256: str = ""
    """Of the arguments as JSON with sorted keys and without spaces: a program that has them can tell which call it was.

    Empty where they cannot be written so.
    """

    @property
    def when(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.at))


class Journal:
    """An interceptor, the innermost: it notes each call that may have effects when its first byte is about to leave.

    Reading what a trusted server calls read-only, and resources and prompts, is not noted. A journal that cannot be written
    or read costs a line in the log, and nothing else.
    """

    def __init__(self, folder: Path, *, events: Events, config_of: Callable[[str], ServerConfig | None] = lambda _server: None) -> None:
        self._folder = folder
        self._events = events
        self._config_of = config_of
        self._file: _File | None = None
        self._broken = False
        self._count = 0
        self._open: dict[int, bytes] = {}
        self._found: list[_Found] = []
        self._told = False
        self._stack = ExitStack()

    # -- what earlier runs have left ------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> tuple[UnfinishedCall, ...]:
        """The calls during which earlier runs ended, oldest first; empty once a model was told of them."""
        return tuple(sorted((call for found in self._found for call in found.calls), key=lambda call: call.at))

    async def __aenter__(self) -> Self:
        if self._folder.is_dir():
            self._found = await anyio.to_thread.run_sync(lambda: list(_left(self._folder)))
        if self._found:
            self._tell_people()
            self._stack.enter_context(self._events.listen(self._heard))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        for found in self._found:
            found.file.close()
        if self._file is not None:
            self._file.close()
            if not self._open:
                self._file.remove()
            self._file = None

    def _tell_people(self) -> None:
        new = [call for found in self._found if not found.told for call in found.calls]
        if not new or not self._events.heard:
            return
        for call in sorted(new, key=lambda call: call.at)[:SHOWN]:
            told = (
                f"an earlier run ended while {call.tool} was under way ({call.when}): it may have taken effect; check before repeating it"
            )
            self._events.publish(Notice(server=call.server, text=told, about="unfinished"))
        if len(new) > SHOWN:
            more = f"and {len(new) - SHOWN} more calls were under way when an earlier run ended"
            self._events.publish(Notice(server="", text=more, about="unfinished"))
        for found in self._found:
            with suppress(OSError):
                found.file.write(b'\n{"told":true}\n')  # what is before may be half a line

    def note(self) -> str:
        """What a model is told of them, in the first turn that comes to its end; empty afterwards."""
        calls = self.unfinished
        if not calls:
            return ""
        self._told = True
        more = f"\n- and {len(calls) - SHOWN} more" if len(calls) > SHOWN else ""
        listed = "\n".join(f"- {call.tool} of the server {call.server!r} ({call.when})" for call in calls[-SHOWN:])
        return (
            "An earlier run of this program ended while calls were under way. They may have taken effect: check with a tool "
            f"that only reads, or ask, before you repeat one.\n{listed}{more}"
        )

    def _heard(self, event: Event) -> None:
        """A turn in which the model was told and that it has answered: that is enough."""
        if self._told and isinstance(event, TurnFinished) and event.stopped != "error":
            self._stack.close()
            found, self._found = self._found, []
            for one in found:
                one.file.close()
                one.file.remove()

    # -- what is under way in this run ----------------------------------------------------------------------------------

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        tool = invocation.tool
        if self._broken or not tool.server or tool.kind in _READING or (tool.hints.read_only and self._trusts(tool.server)):
            return await following(invocation)
        context = invocation.context
        number = 0

        def sent() -> None:
            nonlocal number
            if not number:
                number = self._begin(invocation)
            if context.on_sent is not None:
                context.on_sent()

        told = CallContext(call_id=context.call_id, on_progress=context.on_progress, by_hand=context.by_hand, on_sent=sent)
        outcome = Outcome.UNKNOWN
        try:
            result = await following(Invocation(tool=tool, arguments=invocation.arguments, context=told))
            outcome = result.outcome
        except ToolbayError as error:
            outcome = outcome_of(error)
            raise
        finally:
            if number:
                self._end(number, outcome)
        return result

    def _trusts(self, server: str) -> bool:
        return (config := self._config_of(server)) is not None and config.trusted

    def _begin(self, invocation: Invocation) -> int:
        """Note that a call is about to be sent; its number, 0 where it cannot be noted."""
        try:
            self._count += 1
            tool, call_id = invocation.tool, invocation.context.call_id[:100]
            try:
                digest = hashlib.sha256(_canonical(invocation.arguments).encode()).hexdigest()
            except (TypeError, ValueError, RecursionError):
                digest = ""  # they are a program's, who can pass anything; the call is noted all the same
            record = self._open[self._count] = (
                f'{{"call":{self._count},"server":{_quoted(tool.server)},"tool":{_quoted(tool.name)},"id":{_quoted(call_id)},'
                f'"arguments":"{digest}","at":{time.time():.3f}}}\n'
            ).encode()
            self._write(record)
        except Exception as error:  # a call must not fail because it could not be noted
            self._give_up(error)
            return 0
        return self._count

    def _end(self, number: int, outcome: Outcome) -> None:
        try:
            self._open.pop(number, None)
            self._write(b'{"end":%d,"outcome":"%s"}\n' % (number, outcome.encode()))
            if self._file is not None and self._file.size > LARGEST:
                self._renew()
        except Exception as error:
            self._give_up(error)

    def _write(self, record: bytes) -> None:
        if self._broken:
            return
        if self._file is None:
            self._file = _File.new(self._folder)
        self._file.write(record)

    def _renew(self) -> None:
        """Go on in a new file with what is still under way; the old one goes only then, so that nothing is lost between."""
        old, self._file = self._file, _File.new(self._folder)
        if self._open:
            self._file.write(b"".join(self._open.values()))
        if old is not None:
            old.close()
            old.remove()

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            why = error.strerror if isinstance(error, OSError) else type(error).__name__
            _log.warning("calls under way are not noted any more, since their journal cannot be written (%s): %s", why, self._folder)
        self._broken = True


def _canonical(arguments: Json) -> str:
    """As JSON with sorted keys and without spaces."""
    for name, value in arguments.items():
        if not (isinstance(name, str) and isinstance(value, str)):  # pyright: ignore[reportUnnecessaryIsInstance] - nobody has checked
            return _encode(arguments)
    # Texts alone, as in most calls, are written in a third of the encoder's time.
    return "{" + ",".join([f"{_quoted(name)}:{_quoted(arguments[name])}" for name in sorted(arguments)]) + "}"


class _File:
    """One journal, open and locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self._descriptor = descriptor
        self._torn = False

    @classmethod
    def new(cls, folder: Path) -> _File:
        """
        Raises:
            OSError: it cannot be made, or not be locked.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}-{uuid4().hex[:8]}{_SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _EXTRA, 0o600)
        made = cls(path, descriptor)
        try:
            _lock(descriptor)
        except OSError:
            made.close()
            made.remove()
            raise
        return made

    @classmethod
    def left(cls, path: Path) -> _File | None:
        """A journal whose run is over, locked so that nobody else takes it; None where its run, or who tells of it, is there."""
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | _EXTRA)
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def write(self, record: bytes) -> None:
        """
        Raises:
            OSError: the disk did not take all of it.
        """
        data = b"\n" + record if self._torn else record
        written = os.write(self._descriptor, data)
        self.size += written
        self._torn = written != len(data)
        if self._torn:
            raise OSError("the disk is full")

    def read(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        chunks: list[bytes] = []
        left = READ_AT_MOST
        while left > 0 and (chunk := os.read(self._descriptor, min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Let go of it, and of its lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A journal of a run that is over, with calls that were under way then. `told`: people were told."""

    file: _File
    calls: tuple[UnfinishedCall, ...]
    told: bool


def _left(folder: Path) -> Iterator[_Found]:
    """What runs that are over have left, oldest first. Journals that say nothing, any more, are removed."""
    if others_write(folder):
        _log.warning("%s can be written to by others, so what lies there is told to nobody: make it yours alone", folder)
        return
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    except OSError as error:
        _log.warning("the journals of earlier runs cannot be read (%s): %s", error.strerror, folder)
        return
    for path in paths[-FILES:]:
        file: _File | None = None
        try:
            status = path.lstat()
            age = time.time() - status.st_mtime
            # One that is empty may be another's that is not locked yet.
            if not stat.S_ISREG(status.st_mode) or (status.st_size == 0 and age < 60) or (file := _File.left(path)) is None:
                continue
            told, calls = _unfinished(file.read())
        except OSError as error:
            _log.warning("the journal of an earlier run cannot be read (%s): %s", error.strerror, path)
            if file is not None:
                file.close()
            continue
        if calls and age < KEPT_DAYS * 86_400:
            yield _Found(file=file, calls=tuple(calls), told=told)
        else:
            file.close()
            file.remove()


def _unfinished(data: bytes) -> tuple[bool, list[UnfinishedCall]]:
    """Whether people were told, and the calls that have begun and not ended. What cannot be read is passed over."""
    begun: dict[int, UnfinishedCall] = {}
    told = False
    for text in data.split(b"\n"):
        try:
            record = cast("object", json.loads(text))
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            continue
        known = cast("Json", record)
        told = told or known.get("told") is True
        number, ended = known.get("call"), known.get("end")
        if isinstance(ended, int):
            begun.pop(ended, None)
        elif isinstance(number, int) and (call := _call(known)) is not None:
            begun[number] = call
    return told, list(begun.values())


def _call(known: Json) -> UnfinishedCall | None:
    at: Any = known.get("at")
    words = [known.get(key) for key in ("server", "tool", "id", "arguments")]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11 or not all(isinstance(word, str) for word in words):
        return None
    server, tool, call_id, digest = (line(str(word), 200) for word in words)
    return UnfinishedCall(server=server, tool=tool, at=float(at), call_id=call_id, arguments_sha256=digest)


_EXTRA = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        """A byte far behind the end: what is locked cannot be read there."""
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        """The system frees it with the process, however that ends. Raises OSError where somebody else has it."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
