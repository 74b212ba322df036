"""What `import toolbay` and `toolbay --help` cost beside `import mcp`: one interleaved run of fresh processes, medians, and a verdict.

    python bench/import_cost.py [--rounds 9] [--limit 0.35]

The machine's speed falls out: every round starts each of them once, and only ratios are judged. CPU is user + system time of the process.
A bare interpreter is measured too and taken off, since every Python program pays it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

SUBJECTS = {
    "bare python": ["-c", "pass"],
    "import mcp": ["-c", "import mcp"],
    "import toolbay": ["-c", "import toolbay"],
    "toolbay --help": ["-m", "toolbay", "--help"],
}


class Cost(NamedTuple):
    cpu: float
    wall: float
    rss: float


def measure(arguments: list[str]) -> Cost:
    """One fresh process: seconds of CPU, seconds of wall clock, megabytes at its peak."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"python {' '.join(arguments)} failed with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kibibytes elsewhere
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * unit / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="at least 7")
    parser.add_argument("--limit", type=float, default=0.35, help="the largest ratio to `import mcp` that passes")
    options = parser.parse_args()
    rounds = max(options.rounds, 7)

    taken: dict[str, list[Cost]] = {name: [] for name in SUBJECTS}
    for arguments in SUBJECTS.values():
        measure(arguments)  # fills the caches of the disk and of compiled files
    for _ in range(rounds):
        for name, arguments in SUBJECTS.items():
            taken[name].append(measure(arguments))

    median = {name: Cost(*(statistics.median(column) for column in zip(*costs, strict=True))) for name, costs in taken.items()}
    floor, reference = median["bare python"], median["import mcp"]
    print(f"{rounds} rounds, medians; the ratio is to `import mcp`, both less a bare interpreter\n")
    print(f"{'':16}{'CPU s':>8}{'wall s':>8}{'RSS MB':>8}{'CPU ratio':>11}{'wall ratio':>12}")
    worst = 0.0
    for name, cost in median.items():
        line = f"{name:16}{cost.cpu:8.3f}{cost.wall:8.3f}{cost.rss:8.1f}"
        if name != "bare python":
            ratios = [(cost.cpu - floor.cpu) / (reference.cpu - floor.cpu), (cost.wall - floor.wall) / (reference.wall - floor.wall)]
            line += f"{ratios[0]:11.2f}{ratios[1]:12.2f}"
            if name != "import mcp":
                worst = max(worst, *ratios)
        print(line)
    print(f"\n{'passed' if worst <= options.limit else 'FAILED'}: the largest ratio is {worst:.2f}, the limit {options.limit:.2f}")
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
