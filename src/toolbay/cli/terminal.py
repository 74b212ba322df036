"""Where words go: data and answers to stdout, everything about the way there to stderr.

All text that may come from a server is cleaned here, once, and never read as markup. What moves (the status line) and what
is coloured exists on a terminal only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from toolbay._text import clean

DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
BOLD: Final = "1"

_NARROWEST: Final = 20
"""Columns that are left for a cut text, however wide the others are."""
_ERASE_LINE: Final = "\r\x1b[2K"


class Terminal:
    """The two streams of a command. They are looked up at each write, so that a prompt may stand in for them."""

    def __init__(self, *, color: bool = True, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        """-1 quiet, 0 normal, 1 and 2 say more."""
        self._color = color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._status = ""
        self._mid_line = False

    @property
    def live(self) -> bool:
        """Whether a person watches stderr: only then does anything move."""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and self.verbosity >= 0

    @property
    def interactive(self) -> bool:
        """Whether a person sits at both ends."""
        return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def styled(self, text: str, style: str, stream: TextIO) -> str:
        if not style or not self._color or not stream.isatty():
            return text
        return f"\x1b[{style}m{text}\x1b[0m"

    def stream(self, piece: str) -> None:
        """A piece of an answer to stdout, at once."""
        text = clean(piece)
        if text:
            self._hide_status()
            sys.stdout.write(text)
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line of the answer, unless one has just begun."""
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._mid_line = False

    def write(self, text: str, style: str = "") -> None:
        """Whole lines of data to stdout."""
        self.end_line()
        self._hide_status()
        sys.stdout.write(self.styled(clean(text).rstrip("\n"), style, sys.stdout) + "\n")
        sys.stdout.flush()

    def json(self, value: Any) -> None:
        """A JSON document to stdout, readable, with everything escaped that a terminal might obey."""
        self._hide_status()
        sys.stdout.write(dumped(value, indent=2) + "\n")
        sys.stdout.flush()

    def say(self, text: str, style: str = "") -> None:
        """A line about the way, to stderr; nothing where quiet was asked for."""
        if self.verbosity >= 0:
            self.warn(text, style)

    def warn(self, text: str, style: str = "") -> None:
        """A line to stderr that even quiet does not hide."""
        if sys.stdout.isatty():
            self.end_line()
        status = self._hide_status()
        sys.stderr.write(self.styled(clean(text), style, sys.stderr) + "\n")
        sys.stderr.flush()
        if status:
            self.status(status)

    def error(self, text: str) -> None:
        self.warn(f"{self.styled('error:', RED, sys.stderr)} {clean(text)}" if self._paints(sys.stderr) else f"error: {text}")

    def status(self, text: str) -> None:
        """Show `text` as the line that moves; empty takes it away. Only on a terminal."""
        if not self.live or self._mid_line:
            return
        if not text:
            self._hide_status()
            return
        width = shutil.get_terminal_size().columns - 1
        self._status = text
        sys.stderr.write(_ERASE_LINE + self.styled(one_line(text, width), DIM, sys.stderr))
        sys.stderr.flush()

    def _hide_status(self) -> str:
        hidden, self._status = self._status, ""
        if hidden:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
        return hidden

    def _paints(self, stream: TextIO) -> bool:
        return self._color and stream.isatty()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, cut: bool = False) -> None:
        """Rows under bold heads on stdout: wrapped to a terminal's width, or whole lines where nobody watches.

        `cut`: on a terminal the last column is cut where a row would become more than one line.
        """
        from rich.console import Console  # noqa: PLC0415  (a tenth of a second, for tables only)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        watched = sys.stdout.isatty()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if self._paints(sys.stdout) else "")
        for name in columns:
            table.add_column(name, overflow="fold", no_wrap=not watched)
        console = Console(no_color=not self._color, width=None if watched else 100_000, soft_wrap=False, highlight=False)
        lines_of_cells = [[Text(one_line(cell)) for cell in row] for row in rows]
        if cut and watched:
            heads = [Text(name) for name in columns]
            taken = sum(2 + max(row[at].cell_len for row in [heads, *lines_of_cells]) for at in range(len(columns) - 1))
            for row in lines_of_cells:
                row[-1].truncate(max(console.width - taken, _NARROWEST), overflow="ellipsis")
        for row in lines_of_cells:
            table.add_row(*row)
        with console.capture() as captured:
            console.print(table)
        lines = captured.get().splitlines()
        self._hide_status()
        sys.stdout.write("".join(f"{line if self._paints(sys.stdout) else line.rstrip()}\n" for line in lines))
        sys.stdout.flush()


def one_line(text: str, width: int = 0) -> str:
    """`text` cleaned, on one line, cut with an ellipsis where it is longer than `width` characters (0: never)."""
    line = " ".join(clean(text).split())
    return line if not width or len(line) <= width else line[: max(width - 1, 0)] + "…"


def dumped(value: Any, *, indent: int | None = None) -> str:
    """JSON in which letters stay letters, and only what cannot be printed is escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def plural(count: int, word: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
