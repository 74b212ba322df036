"""A file that a tool returns cannot be stored, or is not what it is said to be: its text is kept, and nothing half is left."""

from __future__ import annotations

import json
import os
import resource
import struct
import zlib
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.harness import Allowance, Bay, case
from support.connections import raw
from support.servers import Entry
from toolbay.types import Json, Outcome, ToolResult

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="limits and links of POSIX")]

WORDS = Allowance(own_words=True)
"""What is said stands beside the text of the result: it is no error of the call."""


def picture(width: int = 40, height: int = 40) -> bytes:
    """A PNG of one colour, whole."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"\0" * ((width // 8 + 2) * min(height, 100)))
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def image(data: bytes | str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "mimeType": media_type, "data": data if isinstance(data, str) else b64encode(data).decode()}


def answering(folder: Path, *blocks: dict[str, Any]) -> Entry:
    """A server whose tool `draw` gives a text and these blocks."""
    file = folder / "result.json"
    file.write_text(json.dumps({"content": [{"type": "text", "text": "a drawing"}, *blocks]}))
    return raw("--tools", "echo,draw", "--result", f"draw={file}")


def stored(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@contextmanager
def files_of_at_most(size: int) -> Generator[None]:
    """For this process no file may grow beyond `size`: what a full disk does to a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kept_its_text(bay: Bay, result: ToolResult) -> None:
    """The text is there, the file is not and it is said why; the call has run."""
    assert result.outcome is Outcome.EXECUTED
    assert "a drawing" in result.text
    assert "could not be saved" in result.text
    assert result.artifacts == ()
    assert bay.effects()["draw"] == 1


def settings(folder: Path, **more: Any) -> Json:
    return {"tools": {"artifacts": {"dir": str(folder), **more}}}


NOISE = os.urandom(400_000)


async def test_a_full_disk_costs_the_file_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    """A1: the write ends in the middle; once there is room again the next file is stored."""
    folder = tmp_path / "artifacts"
    entry = answering(tmp_path, image(picture() + NOISE))
    async with case("A1", "the disk is full in the middle of a file", entry, settings=settings(folder), allowance=WORDS) as bay:
        with files_of_at_most(100_000):
            kept_its_text(bay, await bay.call("draw"))
        assert stored(folder) == []
        again = await bay.call("draw")
        assert not again.is_error
        assert stored(folder) == [again.artifacts[0].name]


async def test_a_long_text_is_shown_in_part_though_it_cannot_be_stored(tmp_path: Path) -> None:
    """A1: the text itself would have become a file."""
    folder = tmp_path / "artifacts"
    entry = raw("--tools", "echo,long", "--big", "long=400000")
    async with case("A1", "the disk is full, a long text", entry, settings=settings(folder), allowance=WORDS) as bay:
        with files_of_at_most(100_000):
            result = await bay.call("long")
        assert result.text.startswith("xxxx")
        assert "could not be saved" in result.text
        assert result.outcome is Outcome.EXECUTED
        assert stored(folder) == []


async def test_a_file_over_the_quota_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    """A1: one file that is more than all together may be costs no file that is there."""
    folder = tmp_path / "artifacts"
    small, big = image(picture()), image(picture() + NOISE)
    entry = answering(tmp_path, small, big)
    async with case("A1", "quota", entry, settings=settings(folder, maxBytes=200_000), allowance=WORDS) as bay:
        result = await bay.call("draw")
        assert "could not be saved" in result.text
        assert [artifact.name for artifact in result.artifacts] == stored(folder)
        assert len(result.artifacts) == 1


def nowhere(how: str, tmp_path: Path) -> Path:
    folder = tmp_path / "artifacts"
    if how == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif how == "file":
        folder.write_text("here")
    elif how == "kernel":
        folder = Path("/proc/artifacts-of-toolbay")  # not even root may write there
    return folder


@pytest.mark.parametrize("how", ["link", "file", "kernel"])
async def test_a_folder_that_cannot_be_used_costs_the_file(how: str, tmp_path: Path) -> None:
    """A1: a link in its place, which is not followed; a file; a place that takes none."""
    if how == "kernel" and not Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    folder = nowhere(how, tmp_path)
    entry = answering(tmp_path, image(picture()))
    async with case("A1", f"the folder is unusable: {how}", entry, settings=settings(folder), allowance=WORDS) as bay:
        result = await bay.call("draw")
        kept_its_text(bay, result)
        assert f"the artifacts folder {folder} " in result.text
        await bay.well()
    assert stored(tmp_path / "elsewhere") == []


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_may_only_be_read_costs_the_file(tmp_path: Path) -> None:
    """A1: permissions."""
    folder = tmp_path / "closed" / "artifacts"
    folder.parent.mkdir(mode=0o500)
    entry = answering(tmp_path, image(picture()))
    async with case("A1", "the folder is read-only", entry, settings=settings(folder), allowance=WORDS) as bay:
        kept_its_text(bay, await bay.call("draw"))


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
GIGAPIXEL = picture(40_000, 40_000)


async def shown(tmp_path: Path, fault: str, block: dict[str, Any]) -> tuple[ToolResult, list[str]]:
    folder = tmp_path / "artifacts"
    async with case("A2", fault, answering(tmp_path, block), settings=settings(folder), allowance=WORDS) as bay:
        result = await bay.call("draw")
        await bay.well()
        return result, stored(folder)


async def test_bytes_that_are_no_base64_are_no_file(tmp_path: Path) -> None:
    """A2: refused, with the reason beside the text."""
    result, files = await shown(tmp_path, "base64 that is none", image("%%% not base64 %%%"))
    assert "a drawing" in result.text
    assert "base64" in result.text
    assert files == []


async def test_a_picture_that_is_none_is_stored_as_what_it_is(tmp_path: Path) -> None:
    """A2: a page of HTML that says it is a PNG; neither its name nor what the model is told makes it one."""
    result, files = await shown(tmp_path, "HTML as image/png", image(b"<!DOCTYPE html><html><script>alert(1)</script></html>"))
    assert "image" not in result.text
    assert not any(name.endswith(".png") for name in files)
    assert [artifact.media_type for artifact in result.artifacts if artifact.media_type.startswith("image/")] == []


async def test_a_drawing_that_is_a_program_is_no_picture(tmp_path: Path) -> None:
    """A2: SVG may hold scripts; it is kept as the text that it is."""
    result, files = await shown(tmp_path, "SVG with a script", image(SVG, "image/svg+xml"))
    assert not any(name.endswith(".svg") for name in files)
    assert [artifact.media_type for artifact in result.artifacts if artifact.media_type.startswith("image/")] == []


async def test_a_picture_of_gigapixels_is_not_stored(tmp_path: Path) -> None:
    """A2: a few hundred bytes that unpack to 1.6 billion pixels; who opens it later would pay."""
    result, files = await shown(tmp_path, "1.6 Gpx in a PNG", image(GIGAPIXEL))
    assert "40000x40000 pixels are more than" in result.text
    assert "a drawing" in result.text
    assert files == []
