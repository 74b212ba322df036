"""Bytes to lines, in linear time and bounded memory. Pure: it knows neither pipes nor MCP."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

DEFAULT_LIMIT = 32 * 1024 * 1024
"""Bytes of one line; real tool lists have lines of 1 MB, results of 10 MB are seen."""


_LOOKED_AT = 32
"""How many times its bound of a line is looked through for secrets."""


class LineTooLong(Exception):
    """A line passed the limit; the stream cannot be followed any further."""


class Lines:
    """Splits a stream at `\\n`; a trailing `\\r` is removed and blank lines are left out."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        # Pieces of the unfinished line. Joining them once per line, never searching them twice, keeps a 50 MB line linear.
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes.

        Raises:
            LineTooLong: the unfinished line passed the limit.
        """
        end = chunk.find(b"\n")
        if end < 0:
            self._keep(chunk)
            return []
        if not self._pieces and end == len(chunk) - 1 <= self._limit:  # as almost all are: one answer, read as it was written
            line = chunk[:end].removesuffix(b"\r")
            return [line] if line.strip() else []
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        lines = [b"".join(self._pieces), *rest[:-1]]
        self._pieces, self._size = [], 0
        self._keep(rest[-1])
        return [line for line in (line.removesuffix(b"\r") for line in lines) if line.strip()]

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        if self._size > self._limit:
            raise LineTooLong(f"a line is longer than {self._limit // (1024 * 1024)} MB")


class Ring:
    """The last lines of a stream, bounded by count and by size, for people to read.

    `safe` masks secrets in a line before it is cut: of a secret that was cut, a part would stay.
    """

    def __init__(self, lines: int = 200, line_bytes: int = 2_000, safe: Callable[[str], str] = str) -> None:
        self.safe = safe
        self._lines: deque[str] = deque(maxlen=lines)
        self._line_bytes = line_bytes
        self._partial = b""
        self.count = 0
        """How many lines there were in all."""

    def feed(self, chunk: bytes) -> None:
        *whole, partial = (self._partial + chunk).split(b"\n")
        for line in whole:
            self.add(line)
        # A stream without line ends must not grow; what is over the bound of a line is dropped.
        self._partial = partial[: self._line_bytes * _LOOKED_AT]

    def add(self, line: bytes) -> None:
        self.count += 1
        text = self._cut(line.rstrip(b"\r"))
        if text.strip():
            self._lines.append(text)

    @property
    def lines(self) -> tuple[str, ...]:
        partial = self._cut(self._partial).strip()
        return (*self._lines, *((partial,) if partial else ()))

    def _cut(self, line: bytes) -> str:
        if len(line) <= self._line_bytes:
            return line.decode("utf-8", "replace")
        looked_at = self.safe(line[: self._line_bytes * _LOOKED_AT].decode("utf-8", "replace"))
        return looked_at.encode("utf-8", "replace")[: self._line_bytes].decode("utf-8", "ignore")
