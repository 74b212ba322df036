"""Content blocks of a server's answer -> parts: clean text, and the bytes of files. Pure; nothing here opens an address.

A block that cannot be read becomes one line that says so, and costs nothing but itself.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from toolbay import _media
from toolbay._text import clean, line, pieces
from toolbay.types import Json

MAX_BASE64 = 64 * 1024 * 1024
"""Characters of one block's base64; more is not decoded."""
_MAX_INLINE = 16
"""How many files are taken out of text; a page full of icons is not a gallery."""
_NAME, _URI, _DESCRIPTION = 200, 500, 500
"""Bounds, in characters, of what a server says about a thing, on one line."""

_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{200,}+={0,2}")
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-")
_MARKED = bytes(ord("x") if code in _LETTERS else ord(" ") for code in range(256))
_LONG = b"x" * 200
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,\Z")
_DATA_URI_LENGTH = 120
_SPACE = b" \t\n\r\v\f"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_PIECE = 1024 * 1024


@dataclass(frozen=True)
class Blob:
    """A file in a result. `media_type` is what the server claims, `label` is whose it is, for people: a kind or a URI."""

    data: bytes = field(repr=False)
    media_type: str
    label: str


class Unreadable(ValueError):
    """Content of a block cannot be read; the message says why, as the end of a sentence."""


def decode(data: Any) -> bytes:
    """Base64 -> bytes. White space, a `data:` prefix, the URL-safe alphabet and missing padding are put up with.

    Raises:
        Unreadable: there is none, too much, or it is damaged.
    """
    if not isinstance(data, str) or not data:
        raise Unreadable("it holds no data")
    if len(data) > MAX_BASE64:
        raise Unreadable(f"its base64 has {len(data):,} characters, the limit is {MAX_BASE64:,}")
    try:
        return b"".join(_decoded(data, data.find(",") + 1 if data.startswith("data:") else 0))
    except ValueError:
        raise Unreadable("its base64 is damaged") from None


def _decoded(data: str, start: int) -> Iterator[bytes]:
    """Piece by piece, since each of them keeps all other threads waiting.

    Raises:
        ValueError: it is no base64.
    """
    rest = b""
    for at in range(start, len(data), _PIECE):
        rest += data[at : at + _PIECE].encode("ascii").translate(_STANDARD, _SPACE)
        whole = len(rest) - len(rest) % 4
        if at + _PIECE < len(data) and not rest.endswith(b"="):
            yield binascii.a2b_base64(rest[:whole], strict_mode=True)
            rest = rest[whole:]
    rest = rest.rstrip(b"=")
    yield binascii.a2b_base64(rest + b"=" * (-len(rest) % 4), strict_mode=True)


class Parts:
    """Collects the parts of one result, in order. `safe` masks what is cut to a length here: a piece of a secret is not found later."""

    def __init__(self, safe: Callable[[str], str] = str) -> None:
        self._safe = safe
        self.parts: list[str | Blob] = []
        self._seen: set[str] = set()
        self._inline = 0

    def finished(self) -> tuple[str | Blob, ...]:
        return tuple(self.parts) or ("(no output)",)

    def text(self, text: str) -> None:
        """Add text, cleaned. A file that is written out in it as base64 is taken out and follows as a file."""
        files: list[Blob] = []

        def take(found: re.Match[str]) -> str:
            return self._take(found, files)

        # Base64 holds no white space, after which the pieces are cut.
        cleaned = "".join(_RUN.sub(take, piece) if _may_hold_a_run(piece) else piece for piece in pieces(clean(text)))
        if cleaned.strip():
            self.parts.append(cleaned)
        self.parts += files

    def said(self, value: Any, limit: int) -> str:
        """What a server says about a thing, on one bounded line; nothing where it is no text."""
        return line(self._safe(clean(value)), limit) if isinstance(value, str) else ""

    def note(self, text: str) -> None:
        """Add a line of our own."""
        self.parts.append(f"[{clean(text)}]")

    def block(self, block: Any) -> None:
        """Add one content block (`ContentBlock` of the protocol, all versions)."""
        if not isinstance(block, dict):
            self.note("a piece of this result could not be read: it is not an object")
            return
        fields = cast("Json", block)
        kind = fields.get("type")
        try:
            match kind:
                case "text":
                    self._text_block(fields)
                case "image" | "audio":
                    self._file(fields.get("data"), fields.get("mimeType"), kind)
                case "resource":
                    self.contents(fields.get("resource"))
                case "resource_link":
                    self._link(fields)
                case str():
                    self.note(f'a piece of this result was left out: its type "{self.said(kind, 60)}" is not known here')
                case _:
                    self.note("a piece of this result was left out: it does not say its type")
        except Unreadable as problem:
            self.note(f"{_article(cast('str', kind))} in this result could not be read: {problem}")

    def contents(self, resource: Any, *, of: str = "") -> None:
        """Add the contents of a resource (`TextResourceContents`, `BlobResourceContents`).

        What was asked for, `of`, needs no heading. Bytes that are text are shown as text.

        Raises:
            Unreadable: it holds neither text nor readable base64.
        """
        if not isinstance(resource, dict):
            raise Unreadable("it is not an object")
        fields = cast("Json", resource)
        uri = self.said(fields.get("uri"), _URI)
        text = fields.get("text")
        if not isinstance(text, str):
            data = decode(fields.get("blob"))
            self._seen.add(fields["blob"])
            text = _media.decoded(data)
            if text is None:
                self.parts.append(Blob(data, self.said(fields.get("mimeType"), _NAME), uri or "resource"))
                return
        if uri and uri != self.said(of, _URI):
            kind = self.said(fields.get("mimeType"), _NAME)
            self.note(f"resource {uri}{f' ({kind})' if kind else ''}")
        self.text(text)

    def _text_block(self, block: Json) -> None:
        text = block.get("text")
        if not isinstance(text, str):
            raise Unreadable("it holds no text")
        self.text(text)

    def _file(self, data: Any, claimed: Any, label: str) -> None:
        content = decode(data)
        self._seen.add(data)
        self.parts.append(Blob(content, self.said(claimed, _NAME), label))

    def _link(self, block: Json) -> None:
        uri = self.said(block.get("uri"), _URI)
        if not uri:
            raise Unreadable("it holds no URI")
        name = self.said(block.get("title"), _NAME) or self.said(block.get("name"), _NAME)
        where = f"{name} <{uri}>" if name else f"<{uri}>"
        size = block.get("size")
        facts = [self.said(block.get("mimeType"), _NAME), _media.size(size) if isinstance(size, int) and size >= 0 else ""]
        shown = ", ".join(fact for fact in facts if fact)
        about = self.said(block.get("description"), _DESCRIPTION)
        self.note(f"resource link: {where}{f' ({shown})' if shown else ''}{f': {about}' if about else ''}")

    def _take(self, found: re.Match[str], files: list[Blob]) -> str:
        """What stands in the text instead of a long run of base64 letters: the run itself where it is no file."""
        run, text = found[0], found.string
        uri = _DATA_URI.search(text, max(0, found.start() - _DATA_URI_LENGTH), found.start())
        try:
            kind = _media.signed(decode(run[:64]))
            if not kind and not uri:
                return run
            if run in self._seen:
                return "(the file above)"
            data = decode(run)
        except Unreadable:
            return "(damaged base64, left out)" if uri else run
        claimed = kind or (uri[1] if uri else "")
        if self._inline >= _MAX_INLINE:
            return f"({claimed}, {_media.size(len(data))}, left out)"
        self._inline += 1
        self._seen.add(run)
        files.append(Blob(data, claimed, claimed.partition("/")[0]))
        return f"({claimed}: the file that follows)"


def _may_hold_a_run(text: str) -> bool:
    """What almost no text does is seen ten times faster in this way than by the search for it."""
    return len(text) >= len(_LONG) and _LONG in text.encode("ascii", "replace").translate(_MARKED)


def _article(kind: str) -> str:
    words = {"image": "an image", "audio": "a sound", "resource": "a resource", "resource_link": "a resource link"}
    return words.get(kind, "a text")
