"""The machine is short of something, its clock jumps, or our own host treats us badly: told, survived, and over when it is over."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from faults import report
from faults.harness import GONE, Allowance, case
from support.connections import raw
from support.processes import MARK, eventually, leftovers, marked, wait_until
from toolbay import App, ToolbayError, parse
from toolbay.types import Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="limits and signals of POSIX")]


@contextmanager
def descriptors_left(count: int) -> Generator[None]:
    """This process can open just so many more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, before[1]))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - it ends the loop
                break
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("count", [3, 5, 8, 11])
async def test_a_start_without_descriptors_fails_in_words_and_is_made_up_for(count: int) -> None:
    """R1: EMFILE at each stage of a start; the next attempt, once there are some, is well."""
    entry = {**raw(), "restart": {"firstDelay": 0.1, "maxAttempts": 50}}
    async with case("R1", f"EMFILE, {count} descriptors left", entry, allowance=Allowance(started_late=True)) as bay:
        with descriptors_left(count):
            async with anyio.create_task_group() as group:
                group.start_soon(bay.start)
                await eventually(lambda: "waiting" in bay.states(), "a failed start")
                group.cancel_scope.cancel()
            assert re.search("too many open files", bay.error(), re.IGNORECASE), bay.error()
        await bay.reaches("ready")
        await bay.well()


async def test_calls_go_on_without_descriptors() -> None:
    """R1: EMFILE with servers up; a call over pipes needs none."""
    async with case("R1", "EMFILE during calls", raw()) as bay:
        with descriptors_left(3):
            for number in range(20):
                await bay.well(text=f"number {number}")
        await bay.well()


@pytest.mark.parametrize("hop", [-86_400.0 * 365, 86_400.0 * 3650])
async def test_a_clock_that_jumps_changes_no_deadline(hop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: forward by ten years or back by one, at every look; waits, timeouts and delays run by another clock."""
    entry = {**raw("--tools", "echo,note,slow", "--die-on", "note"), "toolTimeout": 1}
    real, jumps = time.time, itertools.cycle((0.0, hop))
    async with case("R1", f"the clock jumps by {hop / 86_400:.0f} days", entry) as bay:
        monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
        began = anyio.current_time()
        bay.told(await bay.call("slow", {"seconds": 30}), Outcome.UNKNOWN, "1 s")
        assert 0.9 < anyio.current_time() - began < 3
        bay.told(await bay.call("note"), Outcome.UNKNOWN, "exit code 7")
        await bay.well()
        assert bay.starts() == 2
        monkeypatch.undo()


async def test_a_server_that_was_suspended_goes_on_where_it_was() -> None:
    """R1: stopped for longer than a call may take, then resumed: the call is lost, the server is not."""
    entry = {**raw(), "toolTimeout": 0.5}
    async with case("R1", "the server is suspended and resumed", entry) as bay:
        os.kill(bay.pid(), signal.SIGSTOP)
        bay.told(await bay.call("note"), Outcome.UNKNOWN, "'note'")
        os.kill(bay.pid(), signal.SIGCONT)
        await eventually(lambda: bay.effects()["note"] == 1, "the effect")
        await bay.well()
        assert bay.starts() == 1


# -- our host ---------------------------------------------------------------------------------------------------------


async def test_a_task_that_another_one_cancels_leaves_only_itself() -> None:
    """R2: with the event loop's own `Task.cancel()`, in a call and in a wait; the App and the other calls go on."""
    async with case("R2", "calls cancelled by Task.cancel()", raw("--tools", "echo,slow")) as bay:
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(bay.call("slow", {"seconds": 3600})) for _ in range(10)]
        tasks.append(asyncio.create_task(bay.app.settle(None)))
        await bay.well()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in ended[:10])
        await bay.well()
        assert bay.starts() == 1


@pytest.mark.parametrize("times", [1, 3])
async def test_the_task_of_an_app_that_is_cancelled_closes_it(times: int) -> None:
    """R2: by `Task.cancel()`, once or over and over: it ends as cancelled, and nothing is left."""
    mark, entered = marked(), asyncio.Event()

    async def host() -> None:
        async with App(parse({"mcpServers": {"s": raw(env=mark), "hanging": raw("--hang", "initialize", env=mark)}})) as app:
            await app.ready("s")
            entered.set()
            await app.call("mcp_s_slow", {"seconds": 3600})

    task = asyncio.create_task(host())
    await entered.wait()
    began = time.monotonic()
    for _ in range(times):
        task.cancel()
        with anyio.move_on_after(0.05), suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: not leftovers(mark[MARK]), f"the end of {leftovers(mark[MARK])}", GONE)
    took = time.monotonic() - began
    assert took < GONE
    report.rows.append(report.Row(row="R2", fault=f"the App's task is cancelled x{times}", outcome="nothing left", close=took))


async def test_an_app_that_is_left_in_another_task_says_so_and_is_closed() -> None:
    """R2: as fixtures of some test frameworks do; one sentence of ours, not the event loop library's, and nothing is left."""
    mark = marked()
    app = App(parse({"mcpServers": {"s": raw(env=mark)}}))

    async def enter() -> None:
        await app.__aenter__()
        await app.ready("s")

    async def leave() -> None:
        await app.__aexit__(None, None, None)

    await asyncio.create_task(enter())
    assert (await app.call("mcp_s_echo", {"text": "x"})).text == "x"
    with pytest.raises(ToolbayError, match="left in another task than the one that entered it"):
        await asyncio.create_task(leave())
    wait_until(lambda: not leftovers(mark[MARK]), f"the end of {leftovers(mark[MARK])}", GONE)
    report.rows.append(report.Row(row="R2", fault="left in another task", outcome="an error in words, nothing left"))


ABANDONED = """
import asyncio, sys
from pathlib import Path
from toolbay import App, load

async def enter():
    app = App(load(Path(sys.argv[1])))
    await app.__aenter__()
    await app.settle()
    print(*(status.state for status in app.servers.values()), flush=True)
    return app

loop = asyncio.new_event_loop()
app = loop.run_until_complete(enter())
HOW
"""
HOWS = {
    "the loop is closed": "loop.close()",
    "a scope of the caller's around the entering is gone": """
import anyio
async def misuse():
    other = App(load(Path(sys.argv[1])))
    with anyio.CancelScope():
        await other.__aenter__()
    await other.__aexit__(None, None, None)
try:
    loop.run_until_complete(misuse())
except RuntimeError as error:
    print("misuse:", error, file=sys.stderr)
""",
    "the interpreter exits": "raise SystemExit(0)",
}


@pytest.mark.parametrize("how", HOWS)
def test_an_app_that_nobody_closes_leaves_no_process(how: str, tmp_path: Path) -> None:
    """R2: the loop is closed over it, or the interpreter leaves; the servers see the end of their input all the same."""
    mark, config = marked(), tmp_path / "toolbay.json"
    config.write_text(json.dumps({"mcpServers": {"s": raw("--ignore-eof", env=mark)}}))
    program = [sys.executable, "-W", "ignore", "-c", ABANDONED.replace("HOW", HOWS[how]), str(config)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout.startswith("ready"), ended.stderr
    assert "different task" not in ended.stderr
    wait_until(lambda: not leftovers(mark[MARK]), f"the end of {leftovers(mark[MARK])}", GONE)
    report.rows.append(report.Row(row="R2", fault=how, outcome="nothing left"))
