"""Conversations kept on disk: one append-only file a session, safe against a crash at any byte.

A line of the file is one group of messages, written and synced at once: a group is there as a whole or not at all. A
torn last line is cut off when the session is opened; calls that a crash left without an answer are answered with
"outcome unknown", so that what is loaded is always a conversation that a model can be sent.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

import anyio.to_thread

from toolbay._text import fenced
from toolbay.errors import ToolbayError
from toolbay.types import Artifact, Json, Message, Role, ToolCall

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SUFFIX = ".jsonl"
_TITLE_LENGTH = 80
UNKNOWN_OUTCOME = (
    "The program ended before this call was answered: its outcome is unknown. It may have taken effect; check before you repeat it."
)


def open_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls of the last assistant message that nothing has answered yet, in their order."""
    for answered, message in enumerate(reversed(messages)):
        if message.role is not Role.TOOL:
            return message.calls[answered:]
    return ()


def mend(messages: Iterable[Message], note: str = UNKNOWN_OUTCOME) -> list[Message]:
    """`messages` with every call answered exactly once, in order, before anything else follows.

    What was not answered is answered with `note`; answers to nothing, and messages that say nothing, are left out.
    Valid conversations come back as they are.
    """
    mended: list[Message] = []
    waiting: list[ToolCall] = []
    used: set[str] = set()

    def give_up(until: int) -> None:
        mended.extend(unanswered(call, note) for call in waiting[:until])
        del waiting[:until]

    for message in messages:
        if message.role is Role.TOOL:
            place = next((index for index, call in enumerate(waiting) if call.id == message.call_id), -1)
            if place >= 0:
                give_up(place)
                mended.append(message)
                del waiting[0]
            continue
        give_up(len(waiting))
        if message.role is Role.ASSISTANT:
            ids = [call.id for call in message.calls]
            if not (message.text or ids) or len({*ids}) != len(ids) or not used.isdisjoint(ids) or "" in ids:
                continue
            used.update(ids)
            waiting = list(message.calls)
        elif not (message.text or message.artifacts):
            continue
        mended.append(message)
    give_up(len(waiting))
    return mended


def unanswered(call: ToolCall, note: str) -> Message:
    """The error that stands for a call's answer where there is none."""
    return Message(role=Role.TOOL, text=note, call_id=call.id, name=call.name, is_error=True)


class MemoryConversation:
    """A conversation that is kept nowhere. Without an `id` it makes up one of its own."""

    def __init__(self, messages: Iterable[Message] = (), *, id: str = "") -> None:  # noqa: A002 - the Protocol's word
        self.id = id or uuid4().hex
        self._messages = list(messages)

    @property
    def messages(self) -> Sequence[Message]:
        return tuple(self._messages)

    async def append(self, *messages: Message) -> None:
        self._messages.extend(messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session in a list. `updated` is seconds since the epoch, `size` the bytes of its file, `title` the first words."""

    id: str
    title: str
    updated: float
    size: int


class Session:
    """One conversation on disk. Made by `Sessions.open`; its file begins with the first message."""

    def __init__(self, session_id: str, path: Path, messages: Sequence[Message], unsaved: Sequence[Message] = ()) -> None:
        self.id = session_id
        self.path = path
        self._messages = [*messages, *unsaved]
        self._unsaved: list[bytes] = [_encode(unsaved)] if unsaved else []
        self._writing = threading.Lock()

    @property
    def messages(self) -> Sequence[Message]:
        return tuple(self._messages)

    async def append(self, *messages: Message) -> None:
        """Add `messages` as one group, and return when it is on the disk.

        The group belongs to the conversation from the moment of the call, whatever becomes of the waiting: a caller that
        is cancelled, or is told of a full disk, has lost nothing, and the next `append` writes what is still unwritten.

        Raises:
            ToolbayError: the disk did not take it. The file is as it was.
        """
        if not messages:
            return
        self._messages.extend(messages)
        self._unsaved.append(_encode(messages))
        try:
            await anyio.to_thread.run_sync(self._save)
        except OSError as error:
            raise ToolbayError(
                f"Session {self.id} could not be written to {self.path.parent}: {error.strerror}; what was said since is only in memory."
            ) from error

    def _save(self) -> None:
        with self._writing:
            count = len(self._unsaved)
            if count:
                _append(self.path, b"".join(self._unsaved[:count]))
                del self._unsaved[:count]


def name_of_session(session_id: str) -> str:
    """`session_id`, where it can be one.

    Raises:
        ToolbayError: it cannot.
    """
    if not _ID.fullmatch(session_id):
        raise ToolbayError(
            f"{session_id[:100]!r} cannot be the name of a session: up to 100 letters, digits, dots, hyphens and underscores, "
            "the first one a letter or digit."
        )
    return session_id


class Sessions:
    """The sessions in one folder, private to its owner (0700, files 0600)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[tuple[int, int], SessionInfo]] = {}
        """What was found at a file's name, with its time and size then."""

    def open(self, id: str | None = None) -> Session:  # noqa: A002 - it is what people call it
        """The session with this id, or a new one; `None` makes up an id that sorts by time.

        Raises:
            ToolbayError: the id is not one, or the file cannot be read.
        """
        session_id = id if id is not None else f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        path = self._path(session_id)
        stored = self._load(path, repair=True)
        whole = mend(stored)
        if whole[: len(stored)] == stored:
            return Session(session_id, path, stored, whole[len(stored) :])
        return Session(session_id, path, whole)

    def list(self) -> list[SessionInfo]:
        """All sessions, the newest first. One that cannot be read is left out.

        Of a file that was not seen before, or was written to since, only the beginning is read.
        """
        found: dict[str, tuple[tuple[int, int], SessionInfo]] = {}
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                there = path.stat()
                state = (there.st_mtime_ns, there.st_size)
                known = self._known.get(path.name)
                found[path.name] = known if known is not None and known[0] == state else (state, _glance(path, there))
            except OSError:
                continue
        self._known = found
        return sorted((info for _, info in found.values()), key=lambda info: (info.updated, info.id), reverse=True)

    def latest(self) -> str | None:
        """The id of the session that was written to last."""
        infos = self.list()
        return infos[0].id if infos else None

    def export(self, id: str, form: Literal["markdown", "jsonl"] = "markdown") -> str:  # noqa: A002 - as in open
        """A session as text: Markdown for people, or one JSON object a message and line.

        Raises:
            ToolbayError: there is no such session, or it cannot be read.
        """
        path = self._path(id)
        if not path.exists():
            raise ToolbayError(f"There is no session {id!r} in {self.folder}; `list` shows those that there are.")
        messages = mend(self._load(path))
        if form == "jsonl":
            return "".join(json.dumps(_pack(message), ensure_ascii=False) + "\n" for message in messages)
        return f"# Session {id}\n\n" + "\n".join(_markdown(message) for message in messages)

    def _path(self, session_id: str) -> Path:
        return self.folder / (name_of_session(session_id) + _SUFFIX)

    def _load(self, path: Path, *, repair: bool = False) -> list[Message]:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ToolbayError(f"The session file {path} cannot be read: {error.strerror}.") from error
        end = data.rfind(b"\n") + 1
        messages = [message for line in data[:end].splitlines() for message in _decode(line) or ()]
        rest = _decode(data[end:])
        if rest is not None:
            messages.extend(rest)
        if repair and end < len(data):
            _repair(path, end, keep=rest is not None)
        return messages


def _glance(path: Path, there: os.stat_result) -> SessionInfo:
    """What a list tells of a session, from as little of its file as holds the first words of its user."""
    said = ""
    with path.open("rb") as file:
        for line in file:
            said = next((message.text for message in _decode(line) or () if message.role is Role.USER), "")
            if said:
                break
    title = " ".join(said[: 20 * _TITLE_LENGTH].split())
    title = title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1] + "…"
    return SessionInfo(id=path.name.removesuffix(_SUFFIX), title=title, updated=there.st_mtime, size=there.st_size)


def _append(path: Path, data: bytes) -> None:
    """Add `data` to the file at once and sync it; a failure leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if is_new and os.name == "posix":
        # The file's own sync does not cover its name in the folder.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _repair(path: Path, end: int, *, keep: bool) -> None:
    """Cut a torn last line off, or, where it is only the line's end that is missing, add that."""
    try:
        if keep:
            _append(path, b"\n")
        else:
            os.truncate(path, end)
    except OSError as error:
        raise ToolbayError(f"The session file {path} ends in a torn line that cannot be repaired: {error.strerror}.") from error


def _encode(messages: Sequence[Message]) -> bytes:
    record = {"at": round(time.time(), 3), "messages": [_pack(message) for message in messages]}
    # A model may write half a surrogate pair; it must not cost the session.
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _decode(line: bytes) -> list[Message] | None:
    """A line's messages; None where it holds none that can be read, which costs that line only."""
    try:
        record = json.loads(line.decode("utf-8", "surrogatepass"))
        return [_unpack(item) for item in record["messages"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _pack(message: Message) -> Json:
    packed: Json = {"role": message.role.value, "text": message.text}
    if message.calls:
        packed["calls"] = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls]
    if message.role is Role.TOOL:
        packed |= {"call_id": message.call_id, "name": message.name, "is_error": message.is_error}
    if message.artifacts:
        packed["artifacts"] = [
            {"name": item.name, "path": str(item.path), "media_type": item.media_type, "size": item.size} for item in message.artifacts
        ]
    return packed


def _unpack(packed: Mapping[str, Any]) -> Message:
    def items(key: str) -> Sequence[Mapping[str, Any]]:
        return cast("Sequence[Mapping[str, Any]]", packed.get(key, ()))

    return Message(
        role=Role(packed["role"]),
        text=str(packed["text"]),
        calls=tuple(ToolCall(id=str(call["id"]), name=str(call["name"]), arguments=call["arguments"]) for call in items("calls")),
        call_id=str(packed.get("call_id", "")),
        name=str(packed.get("name", "")),
        is_error=bool(packed.get("is_error", False)),
        artifacts=tuple(
            Artifact(name=item["name"], path=Path(item["path"]), media_type=item["media_type"], size=item["size"])
            for item in items("artifacts")
        ),
    )


def _markdown(message: Message) -> str:
    if message.role is Role.TOOL:
        verdict = "failed" if message.is_error else "answered"
        files = "".join(f"\n- `{item.path}` ({item.media_type}, {item.size} bytes)" for item in message.artifacts)
        return f"**{message.name}** {verdict}:\n\n{fenced(message.text, 'text')}\n{files}\n"
    parts = [f"## {'User' if message.role is Role.USER else 'Assistant'}\n", message.text + "\n" if message.text else ""]
    for call in message.calls:
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False, indent=2)
        parts.append(f"Calls **{call.name}**:\n\n{fenced(arguments, 'json')}\n")
    return "\n".join(part for part in parts if part)
