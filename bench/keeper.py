"""What a keeper costs each stdio server: start, memory, and nothing more. One interleaved run of starts with and without, medians.

    python bench/keeper.py [--rounds 15]

Linux. CPU is that of the children that were waited for (the keeper; the server is `true`). Memory is the keeper's while a server runs:
RSS counts what all interpreters of the machine share, private memory does not.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from pathlib import Path

import anyio

from toolbay.upstream import keeping
from toolbay.upstream.launch import Launch
from toolbay.upstream.process import spawn


def launch(*argv: str) -> Launch:
    return Launch(argv=argv, env={"PATH": os.defpath}, cwd=None, shown=argv[0])


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def start(*, kept: bool) -> tuple[float, float]:
    """Milliseconds until a server runs, and of CPU until it has ended."""
    wall, cpu = time.perf_counter(), children_cpu()
    async with spawn(launch("/bin/true"), kept=kept) as child:
        wall = time.perf_counter() - wall
        await child.exited.wait()
    return wall * 1000, (children_cpu() - cpu) * 1000


async def memory() -> dict[str, float]:
    """MB of a keeper that watches."""
    async with spawn(launch("/bin/cat"), kept=True) as child:
        sizes = sizes_of(parent_of(child.pid))
    return {"RSS": sizes["Rss"], "PSS": sizes["Pss"], "private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def sizes_of(pid: int) -> dict[str, float]:
    rollup = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    return {words[0].rstrip(":"): int(words[1]) / 1000 for words in rollup}


async def run(rounds: int) -> int:
    if not keeping.usable():
        print("keepers cannot be used here")
        return 1
    for kept in (True, False):
        await start(kept=kept)  # fills the caches
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for kept, costs in taken.items():
            costs.append(await start(kept=kept))
    print(f"{'':16}{'start: wall ms':>16}{'CPU ms':>8}")
    for kept, costs in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*costs, strict=True))
        print(f"{'with a keeper' if kept else 'without':16}{wall:16.1f}{cpu:8.1f}")
    print("\n" + ", ".join(f"{name} {size:.1f} MB" for name, size in (await memory()).items()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    return anyio.run(run, parser.parse_args().rounds)


if __name__ == "__main__":
    sys.exit(main())
