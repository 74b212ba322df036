"""Files that tools return: stored under names of ours, in a private folder, within quotas, and readable again by a model.

Nothing that a server says gets into a name or path. A file is there whole or not at all.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from toolbay import _media, _text
from toolbay.types import Artifact, CallContext, Hints, Json, Kind, Tool, ToolResult

dimensions = _media.dimensions

DEFAULT_LENGTH = 8_000
MAX_LENGTH = 14_000
"""Characters of one `read`: with its heading they stay within a model's default budget for one result."""
_MAX_READ = 64 * 1024 * 1024
_MAX_MATCHES = 40
_MAX_SEARCH = 200
_BEFORE, _AFTER = 80, 220

_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}\.[a-z0-9]{1,5}")
_UNFINISHED = re.compile(rf"\.{_NAME.pattern}\.part")
_ABANDONED = 3600.0
"""Seconds after which an unfinished file belongs to a process that died."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Artifacts:
    """A folder of artifacts; an `ArtifactStore`. Several of them, in several processes, may share the folder.

    `max_bytes` and `max_files` bound what is kept: the oldest files go first, and never the one just written.
    Files in the folder that do not bear a name of ours are left alone.
    """

    def __init__(self, folder: Path, *, max_bytes: int, max_files: int, max_age_days: float) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._max_age = max_age_days * 86_400
        self._pruning = threading.Lock()

    async def save(self, data: bytes, *, media_type: str = "") -> Artifact:
        """Store `data`; its kind is read from its bytes. `media_type` is what was claimed, and is not believed.

        Raises:
            OSError: it is bigger than all that may be kept, or the disk refused it. Nothing is left behind.
        """
        del media_type
        return await anyio.to_thread.run_sync(self._save, data)

    async def read(self, name: str, *, offset: int = 0, length: int = DEFAULT_LENGTH, search: str = "") -> str:
        """A piece of the text artifact `name`, or the places in it where `search` occurs, under a heading that says how to go on.

        `offset` and `length` count characters. `search` is plain text, its case does not matter; it begins at `offset`.

        Raises:
            ValueError: there is no such artifact, or an argument makes no sense; the message is for the model.
            OSError: it is there but the disk does not give it.
        """
        return await anyio.to_thread.run_sync(lambda: self._read(name, offset, length, search))

    def _save(self, data: bytes) -> Artifact:
        if len(data) > self._max_bytes:
            raise OSError(
                errno.EFBIG, f"{_media.size(len(data))} is more than all artifacts together may take ({_media.size(self._max_bytes)})"
            )
        self._open_folder()
        kind = _media.media_type(data)
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(6)}{_media.extension(kind)}"
        path, part = self.folder / name, self.folder / f".{name}.part"
        try:
            _write(part, data)
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        with self._pruning:
            self._prune(keep=name)
        return Artifact(name=name, path=path, media_type=kind, size=len(data))

    def _open_folder(self) -> None:
        """Make sure that the folder is there, is a folder and not a link to one, and is nobody else's business."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise OSError(problem.errno, f"the artifacts folder {self.folder} cannot be made: {problem.strerror}") from problem
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, f"the artifacts folder {self.folder} is a link; name the folder itself")
        if stat.S_IMODE(found.st_mode) != 0o700:
            self.folder.chmod(0o700)

    def _prune(self, keep: str) -> None:
        """Remove what is too old, then the oldest until the quotas hold. What cannot be removed stays and is counted."""
        files = sorted(self._files(), key=lambda found: (found[0] == keep, found[1].st_mtime_ns, found[0]))
        count, total = len(files), sum(found.st_size for _, found in files)
        oldest = time.time() - self._max_age
        for name, found in files:
            if name == keep or (count <= self._max_files and total <= self._max_bytes and found.st_mtime >= oldest):
                break
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
                count, total = count - 1, total - found.st_size

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Our files in the folder. Those of a write that never ended are removed on the way."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        yield entry.name, found
                    elif _UNFINISHED.fullmatch(entry.name) and found.st_mtime < time.time() - _ABANDONED:
                        Path(entry.path).unlink(missing_ok=True)

    def _read(self, name: str, offset: int, length: int, search: str) -> str:
        data = self._load(name)
        text = _media.decoded(data)
        if text is None:
            return f"{name} is not text but {describe(data)}; it is stored at {self.folder / name}."
        if offset < 0 or length < 1:
            raise ValueError("offset must be 0 or more, and length 1 or more.")
        if offset > len(text):
            raise ValueError(f"offset {offset} is behind the end of {name}, which has {len(text)} characters.")
        if search:
            return _matches(name, text, offset, search)
        end = min(offset + min(length, MAX_LENGTH), len(text))
        onward = f"; the next piece begins at offset {end}" if end < len(text) else "; this is the end"
        return _text.clean(f"[{name}: characters {offset} to {end} of {len(text)}{onward}]\n{text[offset:end]}")

    def _load(self, name: str) -> bytes:
        """The bytes of one of our files. A name is only ever looked up in our folder, and a link is not followed."""
        shown = _text.line(name, 80)
        if not _NAME.fullmatch(name):
            raise ValueError(f'"{shown}" is not the name of an artifact; use a name from the notice of a saved result.')
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW)
        except FileNotFoundError:
            raise ValueError(f"{shown} is not there (any more): old artifacts are removed; call the tool again.") from None
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{shown} is not a file.")
            if found.st_size > _MAX_READ:
                raise ValueError(
                    f"{shown} is too big to be read here ({_media.size(found.st_size)}); it is stored at {self.folder / name}."
                )
            return file.read()


def describe(data: bytes) -> str:
    """What `data` is, in a few words: `image/png, 640x480, 12 kB`."""
    pixels = dimensions(data)
    shape = f", {pixels[0]}x{pixels[1]}" if pixels else ""
    return f"{_media.media_type(data)}{shape}, {_media.size(len(data))}"


def tools(artifacts: Artifacts) -> tuple[Tool, ...]:
    """The built-in tools over `artifacts`: `read_artifact`."""
    schema: Json = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The artifact's name, as the notice of the saved result gives it."},
            "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Character to begin at."},
            "length": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LENGTH,
                "default": DEFAULT_LENGTH,
                "description": "How many characters to read.",
            },
            "search": {"type": "string", "default": "", "description": "Show only the places where this text occurs, with their offsets."},
        },
        "required": ["name"],
        "additionalProperties": False,
    }

    async def invoke(arguments: Json, _context: CallContext) -> ToolResult:
        name, offset = arguments.get("name", ""), arguments.get("offset", 0)
        length, search = arguments.get("length", DEFAULT_LENGTH), arguments.get("search", "")
        try:
            return ToolResult(text=await artifacts.read(str(name), offset=int(offset), length=int(length), search=str(search)))
        except ValueError as problem:
            return ToolResult(text=str(problem), is_error=True)
        except OSError as problem:
            return ToolResult(text=f"{_text.line(str(name), 80)} cannot be read: {problem.strerror or problem}.", is_error=True)

    return (
        Tool(
            name="read_artifact",
            title="Read a saved result",
            description="Read on in a saved result that was too long to be shown whole, or search in it.",
            input_schema=schema,
            parameters=schema,
            invoke=invoke,
            wire_name="read_artifact",
            kind=Kind.BUILTIN,
            hints=Hints(read_only=True, destructive=False, idempotent=True, open_world=False),
        ),
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file that was not there before, for its owner only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor has no path
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


def _matches(name: str, text: str, offset: int, search: str) -> str:
    """Where `search` occurs from `offset` on: one entry a place, each with its offset and what stands around it on its line."""
    folded, wanted = _fold(text), _fold(search)
    found: list[str] = []
    line, counted, at = 1, 0, folded.find(wanted, offset)
    while at >= 0 and len(found) < _MAX_MATCHES:
        line, counted = line + text.count("\n", counted, at), at
        start = max(text.rfind("\n", 0, at) + 1, at - _BEFORE)
        end = text.find("\n", at, at + _AFTER)
        end = end if end >= 0 else min(at + _AFTER, len(text))
        found.append(f"offset {at}, line {line}: {_text.line(text[start:end], _BEFORE + _AFTER)}")
        at = folded.find(wanted, max(end, at + len(wanted)))
    shown = _text.line(search, _MAX_SEARCH)
    if not found:
        behind = f" from offset {offset} on" if offset else ""
        return f'"{shown}" does not occur in {name}{behind} ({len(text)} characters).'
    onward = f"; there are more: search again with offset {at}" if at >= 0 else ""
    return f'[{name}: "{shown}" occurs at {len(found)} places{onward}]\n' + "\n".join(found)


def _fold(text: str) -> str:
    """`text` in lower case, of the same length: the dotted capital I is the one letter whose lower case is two characters."""
    return text.replace("\u0130", "i").lower()
