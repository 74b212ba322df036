"""What a file is, from its bytes, and a picture's size, from its header."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay._media import UNKNOWN, decoded, dimensions, extension, media_type, size


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", zlib.crc32(b"IHDR" + header))


def jpeg(width: int, height: int) -> bytes:
    frame = b"\xff\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8" + b"\xff\xe0" + struct.pack(">H", 16) + bytes(14) + b"\xff\xc4" + struct.pack(">H", 4) + b"\0\0" + frame + bytes(20)


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", 50) + body + bytes(20)


@pytest.mark.parametrize(
    ("data", "kind", "suffix"),
    [
        (png(1, 1), "image/png", ".png"),
        (jpeg(1, 1), "image/jpeg", ".jpg"),
        (b"GIF89a" + bytes(20), "image/gif", ".gif"),
        (webp(b"VP8 ", bytes(10)), "image/webp", ".webp"),
        (b"RIFF\0\0\0\0WAVEfmt " + bytes(9), "audio/wav", ".wav"),
        (b"ID3\x03\0" + bytes(9), "audio/mpeg", ".mp3"),
        (b"\xff\xfb\x90\0" + bytes(9), "audio/mpeg", ".mp3"),
        (b"\0\0\0\x18ftypmp42" + bytes(9), "video/mp4", ".mp4"),
        (b"%PDF-1.7\n%\xe2\xe3", "application/pdf", ".pdf"),
        (b"PK\x03\x04" + bytes(40), "application/zip", ".zip"),
        (
            b"PK\x03\x04" + bytes(40) + b"PK\x01\x02 xl/workbook.xml",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            ".xlsx",
        ),
        ("grüße\n\x1b[1m".encode(), "text/plain", ".txt"),
        (b' {"a": [1]}\n', "application/json", ".json"),
        (b'{"a": ', "text/plain", ".txt"),
        (b"[" * 100_000 + b"]" * 100_000, "text/plain", ".txt"),
        (b"", "text/plain", ".txt"),
        (b"\0" * 40, UNKNOWN, ".bin"),
        (bytes(range(128, 250)), UNKNOWN, ".bin"),
    ],
)
def test_the_kind_comes_from_the_bytes(data: bytes, kind: str, suffix: str) -> None:
    """REN-2: whatever a server claims, the first bytes decide the kind, and the kind the extension."""
    assert media_type(data) == kind
    assert extension(kind) == suffix


@pytest.mark.parametrize(
    "data",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        b"<!DOCTYPE html><html><script></script></html>",
        "<html>".encode("utf-16"),
        b"#!/bin/sh\nrm -rf ~\n",
        b"MZ" + bytes(200),
        b"\x7fELF" + bytes(60),
        b"\xca\xfe\xba\xbe" + bytes(60),
    ],
)
def test_what_could_run_never_gets_an_extension_that_runs(data: bytes) -> None:
    """REN-5: SVG, HTML, scripts and programs are stored as text or as bytes without a meaning."""
    assert extension(media_type(data)) in {".txt", ".bin"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(40_000, 30_000), (40_000, 30_000)),
        (jpeg(640, 480), (640, 480)),
        (b"GIF87a" + struct.pack("<HH", 320, 200) + bytes(20), (320, 200)),
        (webp(b"VP8X", bytes(4) + (1919).to_bytes(3, "little") + (1079).to_bytes(3, "little")), (1920, 1080)),
        (webp(b"VP8L", b"\x2f" + (99 | 49 << 14).to_bytes(4, "little")), (100, 50)),
        (webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 176, 144)), (176, 144)),
        (png(5, 5)[:20], None),
        (b"\xff\xd8\xff\xe0\0\x10", None),
        (b"plain text", None),
        (b"", None),
    ],
)
def test_dimensions_come_from_the_header(data: bytes, expected: tuple[int, int] | None) -> None:
    """REN-2: width and height are read, never decoded: a bomb is only ever 24 bytes of header here."""
    assert dimensions(data) == expected


@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF1234WEBP", b"PK\x03\x04", b"{"]), st.binary(max_size=80)
)
def test_no_bytes_are_too_strange(start: bytes, rest: bytes) -> None:
    """REN-6: any bytes have some kind, a passive extension, and perhaps a size."""
    data = start + rest
    assert extension(media_type(data)).startswith(".")
    dimensions(data)
    decoded(data)


def test_sizes_are_for_people() -> None:
    """REN-2: the model sees how big a file is in a few characters."""
    assert [size(1), size(999), size(12_345), size(999_600), size(3_400_000)] == ["1 byte", "999 bytes", "12 kB", "1.0 MB", "3.4 MB"]
    assert [size(999_949_999), size(2_100_000_000)] == ["999.9 MB", "2.1 GB"]


def test_a_size_that_no_file_has_is_only_a_claim() -> None:
    """REN-6: a server may send any number as the size of a resource."""
    assert size(10**400) == size(10**18) == "more than 1000000000.0 GB"
