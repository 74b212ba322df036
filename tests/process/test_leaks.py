"""Connecting and closing, many times over, leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os

import anyio
import pytest

from servers.raw_http import RawHttp
from support import servers
from support.connections import linked, raw
from support.processes import Footprint, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="descriptors are counted on POSIX")]

CYCLES = 200


async def once(entry: servers.Entry) -> None:
    async with linked(entry) as link:
        assert link.state == "ready", link.connection.error
        assert await link.call("echo", {"text": "x"}) == "x"


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_after_two_hundred_cycles_no_child_task_thread_or_descriptor_is_left() -> None:
    """LIF-1: over stdio and HTTP, three at a time; what is there after a few is all that there ever is."""
    async with RawHttp() as legacy, RawHttp(era="modern") as modern:
        entries = [raw(), legacy.entry, modern.entry, raw()]
        for entry in entries:
            await once(entry)
        await eventually(lambda: legacy.open == modern.open == 0, "the end of all connections")
        gc.collect()
        before, tasks_before = Footprint.now(), tasks()
        gate = anyio.CapacityLimiter(3)
        async with anyio.create_task_group() as group:

            async def cycle(number: int) -> None:
                async with gate:
                    await once(entries[number % len(entries)])

            for number in range(CYCLES):
                group.start_soon(cycle, number)
        # The servers' ends of the connections close a moment after ours; one worker thread a caller may stay for the next.
        await eventually(lambda: legacy.open == modern.open == 0, "the end of all connections")
        with contextlib.suppress(AssertionError):
            await eventually(lambda: not before.grown(allowed_threads=2))
        assert before.grown(allowed_threads=2) == ""
        assert tasks() == tasks_before
        assert legacy.sessions == CYCLES // 4 + 1


async def test_servers_that_fail_leave_nothing_either() -> None:
    """LIF-1: refused, ended at once, hanging, not there: twenty times each."""
    async with RawHttp() as web:
        bad = [
            raw("--exit-at-start", "1"),
            raw("--hang", "initialize"),
            servers.stdio("no-such-command"),
            {"type": "streamableHttp", "url": f"http://127.0.0.1:{servers.free_port()}/mcp"},
            {"type": "sse", "url": web.url},
        ]
        hanging = (bad[1], bad[4])

        async def fail(entry: servers.Entry) -> None:
            async with linked(entry, startup_timeout=0.3 if entry in hanging else 10) as link:
                assert link.connection.standing.settled
                assert link.state != "ready"

        for entry in bad:
            await fail(entry)
        gc.collect()
        before, tasks_before = Footprint.now(), tasks()
        for _ in range(20):
            async with anyio.create_task_group() as group:
                for entry in bad:
                    group.start_soon(fail, entry)
        await eventually(lambda: web.open == 0, "the end of all connections")
        await eventually(lambda: not before.grown(allowed_threads=3), "nothing left")
        assert tasks() == tasks_before


async def test_a_server_that_is_killed_and_restarted_leaves_nothing() -> None:
    """LIF-1, LIF-2: thirty restarts of one connection."""
    async with linked(raw(), restart={"max_attempts": 1000, "first_delay": 0.001, "max_delay": 0.001}) as link:
        await anyio.wait_all_tasks_blocked()
        before, tasks_before = Footprint.now(), len(asyncio.all_tasks())
        for _ in range(30):
            first = link.pid
            os.kill(first, 9)
            await eventually(lambda first=first: link.state == "ready" and link.pid != first, "a restart")
        await eventually(lambda: len(asyncio.all_tasks()) == tasks_before, "as many tasks as before")
        now = Footprint.now()
        assert (len(now.children), now.descriptors) == (len(before.children), before.descriptors)
