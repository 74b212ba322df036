"""How a keeper counts what a server uses: the tree as the kernel lists it, and memory with shared pages in parts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import servers
from support.processes import wait_until
from toolbay.upstream import keeping
from toolbay.upstream.keeper import below, descendants, memory_of, own_memory, tasks_of_machine
from toolbay.upstream.launch import prepare
from toolbay.upstream.process import spawn

pytestmark = pytest.mark.skipif(not keeping.usable(), reason="keepers need Linux and /proc")

FAMILY = """
import os, sys, threading
kept = bytearray(b"x") * 50_000_000
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pass
threading.Thread(target=lambda: [os.fork() == 0 and sys.stdin.read(), sys.stdin.read()], daemon=True).start()
print("here", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-IS", "-W", "ignore", "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == b"here\n"
    # Those that threads have forked say nothing.
    wait_until(lambda: len(below(process.pid)) == 5, "the family")
    yield process
    process.communicate(timeout=10)


def test_the_kernels_lists_give_the_same_tree_as_a_look_at_all_processes(family: subprocess.Popen[bytes]) -> None:
    """P18, SEC-34: children of threads, of sessions of their own, and of children."""
    assert descendants(family.pid) == below(family.pid)


def test_memory_that_is_shared_counts_in_parts(family: subprocess.Popen[bytes]) -> None:
    """P18: six processes with the same 50 MB use little more than one; only a sum that is too much is made exact."""
    everybody = {family.pid, *below(family.pid)}
    quick = memory_of(everybody, 10**12)
    exact = memory_of(everybody, 1)
    assert quick > 6 * 50_000_000
    assert 50_000_000 < exact < 120_000_000


def test_what_has_ended_counts_for_nothing() -> None:
    """P18: between the look at the tree and the look at its memory."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert own_memory(process.pid) == 0
    assert memory_of({process.pid}, 0) == 0
    assert descendants(process.pid) == set()


def test_more_threads_on_the_machine_are_seen_in_one_read(family: subprocess.Popen[bytes]) -> None:
    """P18: what decides whether a keeper looks closely."""
    assert family.poll() is None
    assert tasks_of_machine() >= sum(1 for _ in Path(f"/proc/{os.getpid()}/task").iterdir())


@pytest.mark.anyio
async def test_a_limit_of_memory_that_nobody_holds_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """P18, SEC-34: without a keeper; the default of processes is nothing that anybody asked for."""
    for limits, told in (({"memory": "1g"}, True), ({}, False)):
        caplog.clear()
        made = servers.config(servers.stdio(sys.executable, "-IS", "-c", ""), limits=limits)
        async with spawn(prepare(made), kept=False) as child:
            await child.exited.wait()
        assert ("runs without its limits" in caplog.text) is told
