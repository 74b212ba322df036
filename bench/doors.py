"""The two doors of a client, pipes and HTTP: what Toolbay's cost beside the raw SDK's and nanobot's, in interleaved rounds.

    python bench/doors.py [--at .cache/peers] [--python PYTHON] [--rounds 3] [PART ...]

`lines`: a result of 10 and of 30 MB in one line over stdio. `beside`: 100 calls to a healthy server while another hangs in its handshake
and the name of a third takes 3 s to resolve. `guard`: what judging and pinning addresses adds to a request, on a kept connection and on a
new one, beside the same HTTP library without it. `connections`: TCP connections and CPU a call, with answers as event streams (SSE).

Needs the scratch folder that `bench/peers.py setup` makes. Judges nothing but `connections`: 100 calls of Toolbay must use one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from peers import PACKAGES, ROOT, Place

from toolbay.net import http
from toolbay.net.guard import Policy

CLIENTS = ("sdk2", "nanobot", "toolbay")
VISIT = Path(__file__).with_name("adapters") / "visit.py"
LIMIT = 240.0
"""Seconds of one visit."""


class Doors:
    def __init__(self, place: Place, rounds: int) -> None:
        self.place = place
        self.rounds = rounds
        place.copy()
        os.environ |= {"BENCH_VENVS": str(place.at / "venvs"), "BENCH_PY": place.python}
        sys.path.insert(0, str(place.harness))
        self.bench = importlib.import_module("bench")

    def visit(self, client: str, task: str, servers: Any, count: int) -> dict[str, Any]:
        """What one process of a client reports; empty where it failed."""
        python = self.place.at / "venvs" / PACKAGES[client][0] / "bin" / "python"
        given = json.dumps({"servers": servers, "count": count})
        command = [str(python), str(VISIT), str(self.place.harness), client, task, given]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=self.bench.ENV, check=False)
        except subprocess.TimeoutExpired:
            return {}
        done = [line for line in ran.stdout.splitlines() if line.startswith("DONE ")]
        if not done:
            print(f"{client}: {(ran.stderr.strip().splitlines() or ['it said nothing'])[-1][:200]}")
        return json.loads(done[-1][5:]) if done else {}

    def turns(self) -> Iterator[str]:
        """Every client in every round, each time in another order."""
        for turn in range(self.rounds):
            yield from (*CLIENTS[turn % len(CLIENTS) :], *CLIENTS[: turn % len(CLIENTS)])

    # -- the parts ----------------------------------------------------------------------------------------------------

    def lines(self) -> bool:
        print(f"{'a line of':12}" + "".join(f"{client + ', s':>14}{'CPU s':>8}" for client in CLIENTS))
        for size in (10, 30):
            taken: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
            # The cost of the others grows with the square: once is enough.
            for client in self.turns() if size == 10 else CLIENTS:
                taken[client].append(self.visit(client, "line", self.bench.stdio_cfg(), size * 1_000_000))
            cells = (f"{told(taken[client], 'wall', '.2f'):>14}{told(taken[client], 'cpu', '.2f'):>8}" for client in CLIENTS)
            print(f"{f'{size} MB':12}" + "".join(cells))
        return True

    def beside(self) -> bool:
        print(f"{'':12}{'first answer, s':>16}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'longest stop of the loop, ms':>31}")
        with self.bench.Http(1) as good, self.bench.Http(1, ["--hang", "initialize"]) as hanging:
            servers = {"s0": good.cfg()["s0"], "hang": hanging.cfg()["s0"], "slow": {"url": "http://slow.invalid/mcp"}}
            taken: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
            for client in self.turns():
                taken[client].append(self.visit(client, "beside", servers, 100))
        for client, runs in taken.items():
            good_runs = [run for run in runs if run.get("first") is not None]
            if not good_runs:
                print(f"{client:12}{'none in 15 s':>16}")
                continue
            latencies = [sorted(run["latencies"]) for run in good_runs]
            p50, p99, most = (statistics.median(one[at] for one in latencies) * 1000 for at in (50, 98, 99))
            stop = statistics.median(run["stop"] for run in good_runs) * 1000
            print(f"{client:12}{told(good_runs, 'first', '.2f'):>16}{p50:9.1f}{p99:9.1f}{most:9.1f}{stop:31.1f}")
        return True

    def guard(self) -> bool:
        with self.bench.Http(1) as server:
            asyncio.run(guarded(f"http://localhost:{server.port}/", self.rounds * 5))
        return True

    def connections(self) -> bool:
        kept = True
        print(f"{'':20}{'connections a call':>19}{'CPU µs a call':>15}{'wall µs':>9}")
        for scheme in ("http", "https"):
            tls = ["--tls", self.bench.tls_pem()] if scheme == "https" else []
            with self.bench.Http(1, ["--response", "sse", *tls]) as server:
                taken: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
                for client in self.turns():
                    taken[client].append(self.visit(client, "steady", server.cfg(), 100))
            for client, runs in taken.items():
                cells = f"{told(runs, 'connections', '.2f'):>19}{told(runs, 'cpu', '.0f', 1e6):>15}{told(runs, 'wall', '.0f', 1e6):>9}"
                print(f"{f'{client}, {scheme}':20}{cells}")
            kept = kept and all(run.get("connections") == 0 for run in taken["toolbay"])
        if not kept:
            print("FAILED: a call of Toolbay opened a connection of its own")
        return kept


def told(runs: list[dict[str, Any]], what: str, form: str, factor: float = 1) -> str:
    values = [run[what] * factor for run in runs if what in run]
    return format(statistics.median(values), form) if values else "failed"


async def guarded(url: str, rounds: int) -> None:
    """Requests through our client and through the bare library, by turns: on one connection each, and on new ones."""
    tls = http.trust()

    def ours() -> httpx2.AsyncClient:
        return http.client(policy=Policy(("127.0.0.0/8", "::1/128")), proxy="", tls=tls)

    def bare() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(verify=tls, trust_env=False)

    makers: dict[str, Callable[[], httpx2.AsyncClient]] = {"guarded": ours, "bare": bare}
    warm: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    cold: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    async with ours() as first, bare() as second:
        for _ in range(rounds):
            for name, client in (("guarded", first), ("bare", second)):
                await client.get(url)  # where the connection was given up as idle, this opens another
                warm[name].append(await timed(client, url, 50))
            for name, make in makers.items():
                wall, cpu = 0.0, 0.0
                for _ in range(10):
                    async with make() as client:
                        one = await timed(client, url, 1)
                    wall, cpu = wall + one[0] / 10, cpu + one[1] / 10
                cold[name].append((wall, cpu))
    print(f"{'µs a request':24}{'guarded':>9}{'bare':>9}{'added':>9}{'CPU guarded':>13}{'bare':>9}{'added':>9}")
    for title, taken in (("on a kept connection", warm), ("on a new connection", cold)):
        wall, cpu = ({name: statistics.median(one[at] for one in runs) * 1e6 for name, runs in taken.items()} for at in (0, 1))
        cells = "".join(
            f"{one['guarded']:{width}.0f}{one['bare']:9.0f}{one['guarded'] - one['bare']:9.0f}" for one, width in ((wall, 9), (cpu, 13))
        )
        print(f"{title:24}{cells}")


async def timed(client: httpx2.AsyncClient, url: str, count: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        await client.get(url)
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


PARTS: dict[str, Callable[[Doors], bool]] = {
    "lines": Doors.lines,
    "beside": Doors.beside,
    "guard": Doors.guard,
    "connections": Doors.connections,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--at", type=Path, default=ROOT / ".cache" / "peers", help="the scratch folder of bench/peers.py")
    parser.add_argument("--python", default=str(Path(sys.executable).resolve()), help="the interpreter of the servers")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    doors = Doors(Place(options.at.resolve(), options.python), options.rounds)
    passed = True
    for part in options.parts or PARTS:
        print(f"\n-- {part}")
        passed = PARTS[part](doors) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
