"""A file replaced whole, while others read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbay.config import writing


class Held:
    """A move that the system does not allow while somebody has the file open, as on Windows: so many times."""

    def __init__(self, times: float, move: Path, to: Path) -> None:
        self.times, self._move, self._to = times, move, to
        self.tried = 0

    def __call__(self) -> None:
        self.tried += 1
        if self.tried <= self.times:
            raise PermissionError(13, "Access is denied")
        self._move.replace(self._to)


def test_a_file_that_somebody_reads_at_this_moment_is_replaced_all_the_same(tmp_path: Path) -> None:
    """CFG-8: a reader has it open for some milliseconds; where that is in the way, it is tried again."""
    (tmp_path / "new").write_text("new")
    (tmp_path / "file").write_text("old")
    move = Held(3, tmp_path / "new", tmp_path / "file")
    writing.moved(move)
    assert ((tmp_path / "file").read_text(), move.tried) == ("new", 4)


def test_a_file_that_may_not_be_replaced_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-8: then it is told, and what was there stays."""
    monkeypatch.setattr(writing, "READERS", 0.05)
    (tmp_path / "file").write_text("old")
    with pytest.raises(PermissionError):
        writing.moved(Held(float("inf"), tmp_path / "new", tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "old"
