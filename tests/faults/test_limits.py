"""A server that takes all that it can get is ended before the machine is; who called it is told what it took."""

from __future__ import annotations

import re

import psutil
import pytest

from faults.harness import Allowance, case
from support.connections import raw
from toolbay.types import Outcome
from toolbay.upstream import keeping

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not keeping.usable(), reason="limits are held by keepers, which need Linux and /proc")]


async def test_a_server_that_takes_too_much_memory_is_ended_and_says_so() -> None:
    """P18: 2 GB wanted, 200 MB allowed; it comes back, and the host is alive."""
    entry = {**raw("--tools", "echo,grab", "--hog", "grab=2000"), "limits": {"memory": "200 MB"}}
    async with case("P18", "a memory hog (2 GB, limit 200 MB)", entry) as bay:
        result = await bay.call("grab")
        bay.told(result, Outcome.UNKNOWN, r"it used \d+\.\d MB of memory, and its limit is 200\.0 MB", "raise `limits.memory`")
        used = float(re.findall(r"used (\d+\.\d) MB", result.text)[0])
        assert 200 < used < 1500, "it was seen long before it had all"
        await bay.well()
        assert bay.starts() == 2


async def test_a_server_within_its_limits_is_left_alone() -> None:
    """P18: 60 MB and 20 processes, of 200 and 40 that it may have."""
    entry = {
        **raw("--tools", "echo,grab,fork", "--hog", "grab=60", "--forks", "fork=20"),
        "limits": {"memory": "200 MB", "processes": 40},
    }
    async with case("P18", "much, but within its limits", entry) as bay:
        await bay.well("grab")
        await bay.well("fork")
        await bay.well()
        assert bay.starts() == 1


async def test_memory_that_processes_share_is_counted_once() -> None:
    """P18: twenty forked processes of a server of 100 MB do not use 2 GB."""
    entry = {
        **raw("--tools", "echo,grab,fork,slow", "--hog", "grab=100", "--forks", "fork=20"),
        "limits": {"memory": "400 MB"},
    }
    async with case("P18", "100 MB shared by 20 processes (limit 400 MB)", entry) as bay:
        await bay.well("grab")
        await bay.well("fork")
        assert len(psutil.Process(bay.pid()).children(recursive=True)) == 20
        resident = sum(child.memory_info().rss for child in psutil.Process(bay.pid()).children())
        assert resident > 1_000_000_000
        # Four looks are taken meanwhile.
        assert (await bay.call("slow", {"steps": 1, "seconds": 1})).text == "1 steps"
        assert bay.starts() == 1


@pytest.mark.parametrize("limit", [100])
async def test_a_fork_bomb_is_ended_and_says_so(limit: int) -> None:
    """P18: 300 stubborn processes wanted; all are gone, and the host is alive."""
    entry = {**raw("--tools", "echo,burst", "--forks", "burst=300"), "limits": {"processes": limit}}
    # 300 processes share the two processors of a small machine with us.
    async with case("P18", f"a fork bomb (300, limit {limit})", entry, allowance=Allowance(latency=0.3, stall=0.3)) as bay:
        result = await bay.call("burst")
        bay.told(result, Outcome.UNKNOWN, rf"it was \d+ processes.*its limit is {limit}", "raise `limits.processes`")
        await bay.well()
        assert bay.starts() == 2
