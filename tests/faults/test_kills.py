"""Servers are killed while they work: what was counted by them fits what the callers were told, and the others go on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from faults import report
from support.connections import raw
from support.processes import eventually
from support.servers import Entry
from toolbay import App, parse
from toolbay.config.models import Config
from toolbay.types import Outcome, ToolResult

pytestmark = pytest.mark.anyio

SEEDS = 200
SERVERS = 10
BRISK = {"firstDelay": 0.05, "maxDelay": 0.1, "maxAttempts": 10_000}
"""A server that is killed over and over is brought back each time: how it is left alone is another test's matter."""


def configured(servers: dict[str, Entry]) -> Config:
    return parse({"mcpServers": {name: {**entry, "restart": BRISK} for name, entry in servers.items()}})


async def brought_back(app: App, server: str, killed: int | None) -> int:
    """Wait until another process of the server than the `killed` one is ready; its pid."""
    await eventually(lambda: app.servers[server].pid not in (None, killed), f"{server} being back")
    pid = app.servers[server].pid
    assert pid is not None
    return pid


@dataclass
class Tally:
    """The outcomes of one seed's calls."""

    results: list[ToolResult] = field(default_factory=list[ToolResult])

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(result.outcome for result in self.results)


async def seeded(app: App, server: str, seed: int, pid: int) -> Tally:
    """Some calls of the seed's own tool, one after another in a few tasks, and a kill of the server's process in their midst."""
    rand = random.Random(seed)
    tally = Tally()
    tool = f"mcp_{server}_t{seed}"
    lanes, each = rand.randint(1, 4), rand.randint(2, 5)

    async def lane() -> None:
        for _ in range(each):
            tally.results.append(await app.call(tool, {"text": "x"}))

    async with anyio.create_task_group() as group:
        for _ in range(lanes):
            group.start_soon(lane)
        await anyio.sleep(rand.uniform(0.0, 0.006) * each)
        os.kill(pid, signal.SIGKILL)
    assert len(tally.results) == lanes * each
    return tally


async def test_effects_never_exceed_calls_when_a_server_is_killed_in_their_midst(tmp_path: Path) -> None:
    """P4, CAL-3, I2: over 200 seeds each call has at most one effect, and whatever may have had one says so."""
    of_server = {f"s{number}": [seed for seed in range(SEEDS) if seed % SERVERS == number] for number in range(SERVERS)}
    servers = {
        name: raw("--tools", ",".join(f"t{seed}" for seed in seeds), "--effects", tmp_path / name, "--serial", "0.002")
        for name, seeds in of_server.items()
    }
    tallies: dict[int, Tally] = {}
    async with App(configured(servers)) as app:
        await app.settle(None)

        async def through(name: str) -> None:
            pid = None
            for seed in of_server[name]:
                pid = await brought_back(app, name, pid)
                tallies[seed] = await seeded(app, name, seed, pid)

        for pair in range(0, SERVERS, 2):
            async with anyio.create_task_group() as group:
                for number in (pair, pair + 1):
                    group.start_soon(through, f"s{number}")
    effects = Counter(line for name in servers for line in (tmp_path / name).read_text().splitlines())
    total: Counter[Outcome] = Counter()
    for seed, tally in tallies.items():
        seen, outcomes = effects[f"t{seed}"], tally.outcomes
        assert outcomes[Outcome.EXECUTED] <= seen <= outcomes[Outcome.EXECUTED] + outcomes[Outcome.UNKNOWN], (seed, seen, outcomes)
        for result in tally.results:
            assert result.is_error is (result.outcome is not Outcome.EXECUTED), (seed, result)
            assert ("may have taken effect" in result.text) is (result.outcome is Outcome.UNKNOWN), (seed, result.text)
        total += outcomes
    assert total[Outcome.UNKNOWN] >= SEEDS / 4, f"the kills missed the calls: {total}"
    report.rows.append(
        report.Row(
            row="P4", fault=f"killed during calls, {SEEDS} seeds", outcome=", ".join(f"{name} x{n}" for name, n in sorted(total.items()))
        )
    )


@dataclass
class Times:
    """How long calls took, by server, with the moment at which each began."""

    taken: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    failed: Counter[str] = field(default_factory=Counter[str])

    def p99(self, but: dict[str, list[tuple[float, float]]]) -> float:
        """Seconds, over all calls but those that were under way in a server's own bad times."""
        times = sorted(
            took
            for server, calls in self.taken.items()
            for began, took in calls
            if not any(began <= until and began + took >= since for since, until in but.get(server, ()))
        )
        assert len(times) >= 1_000, "too few calls to tell"
        return times[int(len(times) * 0.99)]


async def hammered(app: App, seconds: float, times: Times) -> None:
    """1,000 callers over all servers, each with one call under way at any time."""
    until = time.perf_counter() + seconds

    async def caller(server: str) -> None:
        while (began := time.perf_counter()) < until:
            result = await app.call(f"mcp_{server}_echo", {"text": "x"})
            times.taken[server].append((began, time.perf_counter() - began))
            if result.is_error:
                times.failed[server] += 1
                await eventually(lambda: app.servers[server].state == "ready", f"{server} being back")

    async with anyio.create_task_group() as group:
        for number in range(1_000):
            group.start_soon(caller, f"s{number % SERVERS}")


async def test_a_thousand_calls_at_once_do_not_feel_that_another_server_is_killed_each_second() -> None:
    """I4, C3: the p99 of the others stays within twice that of the quiet run, in the same process."""
    servers = {f"s{number}": raw("--tools", "echo") for number in range(SERVERS)}
    async with App(configured(servers)) as app:
        await app.settle(None)
        await hammered(app, 1.0, Times())
        quiet, during = Times(), Times()
        await hammered(app, 5.0, quiet)
        bad: dict[str, list[tuple[float, float]]] = defaultdict(list)

        async def killing() -> None:
            for number in range(5):
                victim, since = f"s{number}", time.perf_counter()
                pid = await brought_back(app, victim, None)
                os.kill(pid, signal.SIGKILL)
                await brought_back(app, victim, pid)
                bad[victim].append((since, time.perf_counter()))
                await anyio.sleep(max(since + 1.0 - time.perf_counter(), 0))

        async with anyio.create_task_group() as group:
            group.start_soon(killing)
            group.start_soon(hammered, app, 5.5, during)
    assert not quiet.failed
    assert set(during.failed) <= set(bad), during.failed
    before, then = quiet.p99({}), during.p99(bad)
    report.rows.append(
        report.Row(
            row="C3",
            fault="1,000 callers of 10 servers, one killed each second",
            outcome=f"failed x{during.failed.total()}",
            p99=(then, before),
        )
    )
    assert then <= 2 * before, f"p99 {then * 1000:.0f} ms, quiet {before * 1000:.0f} ms"
