"""What a file is, told from its bytes, and how big a picture is, told from its header: nothing is ever decoded.

Whoever sends a file may claim anything; a name and a kind that depend on the claim would be theirs to choose.
"""

from __future__ import annotations

import json
import re

import puremagic

from toolbay._text import pieces

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"\x1aE\xdf\xa3", "video/webm"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_OFFICE = {
    b"word/document.xml": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    b"xl/workbook.xml": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    b"ppt/presentation.xml": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
_EXTENSIONS = {
    "application/gzip": ".gz",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "audio/flac": ".flac",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "image/bmp": ".bmp",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/tiff": ".tiff",
    "image/webp": ".webp",
    "text/plain": ".txt",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
    **dict(zip(_OFFICE.values(), (".docx", ".xlsx", ".pptx"), strict=True)),
}
"""The only extensions there are: none that a browser, a shell or a desktop would run."""

UNKNOWN = "application/octet-stream"
_MOST = 10**18
"""Bytes that no file has: a size of that many is a claim."""
_HEAD = 4096
_WORTH_PARSING = 1_000_000
"""Characters of text up to which it is parsed to see whether it is JSON; beyond, its brackets are believed."""
_SEGMENTS = 1000
"""How many segments of a JPEG are looked at for its frame header."""
_TAIL = 65_536
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers that begin a frame header (ITU T.81, table B.1): all SOFn, without DHT, JPG and DAC."""
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def media_type(data: bytes) -> str:
    """The media type of `data`. Text is `application/json` or `text/plain`: HTML and SVG are text here, not programs."""
    kind = signed(data)
    if kind == "application/zip":
        # The directory of a zip is at its end and names the members in clear.
        return next((office for member, office in _OFFICE.items() if member in data[-_TAIL:]), kind)
    if kind:
        return kind
    text = decoded(data)
    return _other_type(data[:_HEAD]) if text is None else _text_type(text)


def signed(head: bytes) -> str:
    """The media type that the first bytes of a file state beyond doubt, or nothing."""
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "video/mp4"
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), "")


def decoded(data: bytes) -> str | None:
    """The text that `data` is: UTF-8 without control characters but white space and escapes. None where it is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if any(_NOT_TEXT.search(piece) for piece in pieces(text)) else text


def extension(kind: str) -> str:
    """A passive file name extension with its dot: `.bin` for a kind that is not known here."""
    return _EXTENSIONS.get(kind, ".bin")


def dimensions(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels, as the header of a PNG, JPEG, GIF or WebP claims them; None where it does not say."""
    match media_type(data[:_HEAD]):
        case "image/png" if data[12:16] == b"IHDR" and len(data) >= 24:
            return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif" if len(data) >= 10:
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp":
            return _webp(data)
        case "image/jpeg":
            return _jpeg(data)
        case _:
            return None


def size(count: int) -> str:
    """A number of bytes for people: `812 bytes`, `12 kB`, `3.4 MB`, `2.1 GB` (powers of ten)."""
    if count >= _MOST:
        return f"more than {size(_MOST - 1)}"
    if count < 1000:
        return f"{count} byte{'' if count == 1 else 's'}"
    if count < 999_500:
        return f"{count / 1000:.0f} kB"
    return f"{count / 1_000_000:.1f} MB" if count < 999_950_000 else f"{count / 1_000_000_000:.1f} GB"


def _text_type(text: str) -> str:
    inner = text.strip()
    if (inner[:1], inner[-1:]) not in {("{", "}"), ("[", "]")}:
        return "text/plain"
    try:
        if len(inner) < _WORTH_PARSING:
            json.loads(inner)
    except (ValueError, RecursionError):
        return "text/plain"
    return "application/json"


def _other_type(head: bytes) -> str:
    try:
        kind = puremagic.from_string(head, mime=True)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # the library raises many kinds for bytes that it does not know
        return UNKNOWN
    return kind if kind in _EXTENSIONS and not kind.startswith("text/") else UNKNOWN


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        # A filler byte stands alone; a segment says its length, which is at least that of the length itself.
        at += 1 if marker == 0xFF else 2 + max(int.from_bytes(data[at + 2 : at + 4]), 2)
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case _:
            return None
