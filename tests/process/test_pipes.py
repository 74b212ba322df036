"""The three pipes of a real server: what it writes too much of, never reads, or closes, costs a call and not the client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import anyio
import psutil
import pytest

from support import servers
from support.connections import Link, linked
from support.processes import children, eventually
from toolbay.errors import CallTimeout, ConnectionLost
from toolbay.events import ServerChanged
from toolbay.upstream import boxes
from toolbay.upstream.launch import prepare
from toolbay.upstream.lines import DEFAULT_LIMIT
from toolbay.upstream.process import STOP_PATIENCE, spawn

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="pipes are counted on POSIX")]

WILD = servers.stdio(sys.executable, "-IS", servers.SERVERS / "wild.py")
MB = 1_000_000
GROWTH = 64 * MB
"""What this process may grow by, whatever a server does."""


async def restarted(link: Link, first: int) -> None:
    await eventually(lambda: link.state == "ready" and link.pid != first, "a restart")
    assert await link.call("echo") == "echo done"


def told(link: Link) -> str:
    return " ".join(event.error for event in link.heard.events if isinstance(event, ServerChanged))


class Watermark:
    """The most memory that this process had whenever it was looked at."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.before = self.most = self.process.memory_info().rss

    def reached(self, condition: Callable[[], bool]) -> bool:
        self.most = max(self.most, self.process.memory_info().rss)
        return condition()

    @property
    def growth(self) -> int:
        return self.most - self.before


@pytest.mark.parametrize("size", [10 * MB, 30 * MB])
async def test_p9_a_line_of_many_megabytes_is_read(size: int) -> None:
    """TRA-7: below the cap a line is only long; the connection lives on."""
    async with linked(WILD) as link:
        first = link.pid
        assert len(await link.call("big", {"size": size})) == size
        assert await link.call("echo") == "echo done"
        assert link.pid == first


async def test_p9_a_line_over_the_cap_is_told_and_the_server_is_restarted() -> None:
    """TRA-7, LIF-2: the call is lost with the reason, it may have run, and the next one works."""
    async with linked(WILD) as link:
        first = link.pid
        error = await link.outcome("big", {"size": DEFAULT_LIMIT + 1})
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert "longer than 32 MB" in str(error)
        await restarted(link, first)
        assert "longer than 32 MB" in told(link)


async def test_p10_a_line_that_never_ends_is_cut_and_takes_bounded_memory() -> None:
    """TRA-7, LIF-2: cut at the cap, ended, restarted."""
    async with linked(WILD) as link:
        first, mark = link.pid, Watermark()
        async with anyio.create_task_group() as group:
            group.start_soon(link.outcome, "endless")
            await eventually(lambda: mark.reached(lambda: link.state == "ready" and link.pid != first), "a restart")
        assert mark.growth < GROWTH
        assert "longer than 32 MB" in told(link)
        await restarted(link, first)


async def test_p12_a_call_into_a_pipe_that_nobody_reads_ends_with_its_own_deadline() -> None:
    """CAL-2: the one that fills the pipe may have been read in part; those behind it were never sent."""
    async with linked(WILD) as link:
        assert await link.call("deaf") == "deaf done"
        first = await link.outcome("echo", {"text": "x" * 300_000}, patience=0.3)
        assert isinstance(first, CallTimeout)
        assert first.sent
        second = await link.outcome("echo", {"text": "small"}, patience=0.3)
        assert isinstance(second, CallTimeout)
        assert not second.sent
        assert link.state == "ready", "a server may be busy"


async def test_p12_a_server_that_reads_nothing_for_too_long_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-2: a message that was cut in the middle cannot be followed by another: the connection is made anew."""
    monkeypatch.setattr(boxes, "WRITE_TIMEOUT", 0.5)
    async with linked(WILD) as link:
        first = link.pid
        assert await link.call("deaf") == "deaf done"
        error = await link.outcome("echo", {"text": "x" * 300_000})
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert "has not read its input" in str(error)
        await restarted(link, first)


async def test_p13_binary_on_stderr_without_line_ends_is_bounded() -> None:
    """TRA-6: 20 MB that are no text; the call is answered, and what is kept is small and can be shown."""
    async with linked(WILD) as link:
        mark = Watermark()
        assert await link.call("binary", {"size": 20 * MB}) == "binary done"
        mark.reached(lambda: True)
        assert mark.growth < GROWTH
        kept = "".join(link.connection.diagnostics.stderr())
        assert 0 < len(kept) < 500_000


async def test_p13_a_closed_stderr_is_no_end() -> None:
    """TRA-6: the server lives on, and its end is told all the same."""
    async with linked(WILD) as link:
        first = link.pid
        assert await link.call("closes") == "closes done"
        assert await link.call("echo") == "echo done"
        os.kill(first, 9)
        await restarted(link, first)
        assert "SIGKILL" in told(link)


STUCK = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
os.write(1, b"ready\\n")
while True:
    os.write(2, b"e" * 65536)
    os.write(1, b"o" * 65536)
"""


async def test_p14_a_close_is_bounded_with_all_pipes_stuck() -> None:
    """LIF-1: our writes are not read, its writes fill both pipes, a child of its own does the same, and SIGTERM is ignored."""
    started = float("inf")
    with anyio.fail_after(30):
        async with (
            spawn(prepare(servers.config(servers.stdio(sys.executable, "-IS", "-c", STUCK)))) as child,
            anyio.create_task_group() as group,
        ):
            assert (await child.receive()).startswith(b"ready")
            group.start_soon(child.send, b"x" * 10 * MB)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            started = anyio.current_time()
        # Under 5 s on a machine that does nothing else.
        assert anyio.current_time() - started < STOP_PATIENCE + 2
    assert not children()
