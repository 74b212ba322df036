"""Lines that come out of a pipe."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import anyio
import pytest

from toolbay.cli.lines import Pipe

pytestmark = pytest.mark.anyio


class Standing(io.StringIO):
    """A stand-in for stdin with a descriptor of its own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


async def test_the_end_is_told_each_time_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI: every line, also one without an end; then None, however often somebody asks."""
    reading, writing = os.pipe()
    os.write(writing, "one\r\n\nlast ä".encode())
    os.close(writing)
    monkeypatch.setattr(sys, "stdin", Standing(reading))
    try:
        with anyio.fail_after(20):
            pipe = Pipe()
            assert [await pipe.line() for _ in range(5)] == ["one", "", "last ä", None, None]
    finally:
        os.close(reading)


async def test_a_stdin_that_cannot_be_read_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CLI: an error in the place of the end leaves nobody waiting."""
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(sys, "stdin", Standing(folder))
    try:
        with anyio.fail_after(20):
            assert await Pipe().line() is None
    finally:
        os.close(folder)
