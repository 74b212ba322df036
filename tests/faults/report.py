"""What each case of the fault matrix came to: a table for people, and one line of it for the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".reports" / "faults.md"
HEAD = (
    "| row | fault | outcome | seconds | what the model was told | starts | p99 ms (quiet) | stall ms (quiet) | memory MB (peak) "
    "| close s | held |\n|---|---|---|---:|---|---:|---:|---:|---:|---:|---|\n"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case. `outcome` counts the outcomes of its calls; `broken` says which invariants did not hold."""

    row: str
    fault: str
    outcome: str = ""
    seconds: float = 0.0
    told: str = ""
    starts: int = 0
    p99: tuple[float, float] = (0.0, 0.0)
    """Seconds: the healthy server's calls during the case, and before it."""
    stall: tuple[float, float] = (0.0, 0.0)
    """Seconds that the event loop was held up at the longest: during the case, and before it."""
    memory: tuple[float, float] = (0.0, 0.0)
    """MB: what stayed, and the most that there was meanwhile."""
    close: float = 0.0
    broken: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The row of the table."""
        measured = self.p99[1] > 0  # else the case is of a program of its own
        told = self.told.replace("|", "\\|").replace("\n", " ")
        cells = (
            self.row,
            self.fault.replace("|", "\\|"),
            self.outcome,
            f"{self.seconds:.2f}",
            told if len(told) <= 500 else told[:499] + "…",
            str(self.starts) if measured else "",
            f"{self.p99[0] * 1000:.1f} ({self.p99[1] * 1000:.1f})" if measured else "",
            f"{self.stall[0] * 1000:.1f} ({self.stall[1] * 1000:.1f})" if measured else "",
            f"{self.memory[0]:.1f} ({self.memory[1]:.1f})" if measured else "",
            f"{self.close:.2f}" if measured or self.close else "",
            "yes" if not self.broken else "NO: " + "; ".join(self.broken).replace("|", "\\|").replace("\n", " "),
        )
        return f"| {' | '.join(cells)} |\n"


rows: list[Row] = []
"""All cases of this session, in the order in which they ended."""


def order(row: Row) -> tuple[str, int, str]:
    """Sorts by the letter of a row, then by its number."""
    letter, number = row.row[:1], row.row[1:]
    return letter, int(number) if number.isdigit() else 0, row.fault


def write(found: list[Row], file: Path = FILE) -> None:
    """Write the table."""
    file.parent.mkdir(exist_ok=True)
    body = "".join(row.line for row in sorted(found, key=order))
    file.write_text(f"# The fault matrix\n\nWritten by the last run of tests/faults.\n\n{HEAD}{body}", encoding="utf-8")


def summary(found: list[Row]) -> list[str]:
    """A few lines: how many cases of which rows, and each that did not hold."""
    if not found:
        return []
    broken = [row for row in found if row.broken]
    names = list(dict.fromkeys(row.row for row in sorted(found, key=order)))
    lines = [f"{len(found)} cases of {len(names)} rows, {len(broken)} not held: {' '.join(names)}"]
    lines += [f"{row.row} {row.fault}: {'; '.join(row.broken)}" for row in broken]
    return lines
