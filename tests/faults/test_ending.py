"""Whatever a server does at its end, and whatever is done to us, nothing that it started is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from faults import report
from faults.harness import GONE, Allowance, Bay, case
from support.connections import raw
from support.processes import MARK, alive, eventually, leftovers, marked, wait_until
from toolbay import App, parse
from toolbay.types import Outcome
from toolbay.upstream import keeping

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="signals and sessions of POSIX")]

STUBBORN = ("--ignore-eof", "--ignore-sigterm")
kept = pytest.mark.skipif(not keeping.usable(), reason="what leaves its process group is held by keepers, which need Linux and /proc")


@pytest.mark.parametrize("how", [("--ignore-eof",), STUBBORN])
async def test_a_server_that_does_not_want_to_end_is_killed_in_time(how: tuple[str, ...]) -> None:
    """P14: 2 s after the end of its input SIGTERM, 2 s later SIGKILL."""
    async with case("P14", " ".join(how), raw(*how)) as bay:
        await bay.well()


async def test_ten_stubborn_servers_end_side_by_side() -> None:
    """P14: a close takes as long as the slowest server, not as all together."""
    entries = {f"s{number}": raw(*STUBBORN) for number in range(10)}
    # Ten programs are started in one turn of the loop, some 10 ms each.
    async with case("P14", "ten stubborn servers", entries, allowance=Allowance(stall=0.3)) as bay:
        for number in range(10):
            await bay.well(server=f"s{number}")


async def test_a_stubborn_server_in_its_handshake_is_killed_in_time() -> None:
    """P14: it has never answered anything."""
    entry = {**raw("--hang", "initialize", *STUBBORN), "startupTimeout": 60}
    late = Allowance(started_late=True)
    async with case("P14", "stubborn in its handshake", entry, allowance=late) as bay, anyio.create_task_group() as group:
        group.start_soon(bay.start)
        await eventually(lambda: bay.starts() == 1, "the start of the server")
        assert bay.state() == "connecting"
        group.cancel_scope.cancel()


def family(file: Path) -> dict[str, int]:
    return {how: int(pid) for how, pid in (line.split() for line in file.read_text().splitlines())} if file.exists() else {}


@contextmanager
def undone(file: Path) -> Generator[None]:
    """Whatever a test that failed has left is ended."""
    try:
        yield
    finally:
        for pid in family(file).values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@kept
@pytest.mark.parametrize("how", ["plain", "holds", "session", "twice", "cleared"])
async def test_what_a_server_started_ends_with_it(how: str, tmp_path: Path) -> None:
    """P15: a child, one that holds our pipes, a session of its own, a daemon, one with an environment of its own; all stubborn."""
    file = tmp_path / "family"
    with undone(file):
        async with case("P15", f"leaves a process behind: {how}", raw("--spawn", how, "--family", file)) as bay:
            await bay.well()
            assert alive(family(file)[how])
        assert not alive(family(file)[how])


@kept
async def test_what_a_server_started_ends_when_it_crashes(tmp_path: Path) -> None:
    """P15: a grandchild that holds the pipes hides the death of the server from nobody."""
    file = tmp_path / "family"
    hows = ("plain", "holds", "session", "twice", "cleared")
    spawned = [word for how in hows for word in ("--spawn", how)]
    with undone(file):
        async with case("P15", "crashes with all of them running", raw(*spawned, "--family", file, "--die-on", "note")) as bay:
            first = dict(family(file))
            bay.told(await bay.call("note"), Outcome.UNKNOWN, "exit code 7")
            await bay.well()
            assert bay.starts() == 2
            wait_until(lambda: not any(map(alive, first.values())), "the end of the first family")


HOST = """
import sys, anyio
from toolbay import App, load
from pathlib import Path

async def main():
    async with App(load(Path(sys.argv[1]))) as app:
        await app.settle()
        print(*(status.state for status in app.servers.values()), flush=True)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(app.call, "mcp_busy_slow", {"seconds": 60})
            if sys.argv[2] == "closing":
                await anyio.sleep(0.2)
                group.cancel_scope.cancel()
        print("closing", flush=True)

anyio.run(main)
"""


@kept
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGKILL, "calling"), (signal.SIGKILL, "closing"), (signal.SIGTERM, "calling"), (signal.SIGHUP, "closing")],
)
def test_what_we_started_does_not_outlive_us(number: signal.Signals, moment: str, tmp_path: Path) -> None:
    """P16: ended from outside with calls under way, or in the middle of a close, with a stubborn server and its daemon."""
    mark, file, config = marked(), tmp_path / "family", tmp_path / "toolbay.json"
    entries = {
        "busy": raw(env=mark),
        "stubborn": raw(*STUBBORN, "--spawn", "twice", "--family", file, env=mark),
    }
    config.write_text(json.dumps({"mcpServers": entries}))
    with undone(file):
        process = subprocess.Popen([sys.executable, "-c", HOST, str(config), moment], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().split() == ["ready", "ready"]
            if moment == "closing":
                assert process.stdout.readline() == "closing\n"
            assert len(leftovers(mark[MARK])) >= 2
            began = time.monotonic()
            process.send_signal(number)
            process.wait(10)
            wait_until(lambda: not leftovers(mark[MARK]), f"the end of {leftovers(mark[MARK])}", GONE)
            took = time.monotonic() - began
        finally:
            process.kill()
            process.communicate()
    report.rows.append(report.Row(row="P16", fault=f"{number.name} while {moment}", outcome="nothing left", seconds=took))


async def test_a_close_that_is_cancelled_still_closes() -> None:
    """P16: whoever waits for the end gives up; the servers end all the same, and soon."""
    mark = marked()
    entries = {"stubborn": raw(*STUBBORN, env=mark), "hanging": raw("--hang", "initialize", *STUBBORN, env=mark), "well": raw(env=mark)}
    began = 0.0
    with anyio.CancelScope() as scope:
        async with App(parse({"mcpServers": entries})) as app:
            await app.ready("stubborn")
            await app.ready("well")
            began = anyio.current_time()
            scope.cancel()
    took = anyio.current_time() - began
    assert took < GONE
    wait_until(lambda: not leftovers(mark[MARK]), f"the end of {leftovers(mark[MARK])}", GONE)
    report.rows.append(report.Row(row="P16", fault="cancelled in close", outcome="nothing left", seconds=took, close=took))


async def test_a_killed_keeper_leaves_nothing(tmp_path: Path) -> None:
    """P16: the program that watches over a server is ended itself: told as the server's end, and the server comes back."""
    if not keeping.usable():
        pytest.skip("keepers need Linux and /proc")
    async with case("P16", "the keeper is killed", raw()) as bay:
        first = bay.pid()
        os.kill(keeper_of(bay), signal.SIGKILL)
        wait_until(lambda: not alive(first), "the end of the server")
        await bay.well()
        assert bay.starts() == 2


def keeper_of(bay: Bay) -> int:
    import psutil

    parent = psutil.Process(bay.pid()).parent()
    assert parent is not None
    return parent.pid
