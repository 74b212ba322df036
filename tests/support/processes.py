"""What a test leaves behind: processes, threads, descriptors.

A server that a test starts is marked through its environment, which its children inherit: so even one that left our
process tree is found again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import psutil

MARK = "TOOLBAY_TEST_MARK"


def marked() -> dict[str, str]:
    """An `env` for a server that a test wants to find again: `leftovers(env[MARK])`."""
    return {MARK: uuid.uuid4().hex}


def leftovers(mark: str) -> list[str]:
    """Every living process on this machine that has the mark in its environment, as `pid command`."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def children() -> list[psutil.Process]:
    """All living and unreaped processes below this one, grandchildren too."""
    return psutil.Process().children(recursive=True)


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Footprint:
    """What this process holds at one moment."""

    children: frozenset[int]
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Footprint:
        return cls(
            children=frozenset(child.pid for child in children()),
            threads=threading.active_count(),
            descriptors=psutil.Process().num_fds(),
        )

    def grown(self, allowed_threads: int = 0) -> str:
        """What this process holds now and did not then, in words; empty if nothing. Worker threads of the event loop may be allowed for."""
        now = Footprint.now()
        parts: list[str] = []
        if new := now.children - self.children:
            parts.append(f"children {sorted(new)}")
        if now.threads > self.threads + allowed_threads:
            parts.append(f"threads {self.threads} -> {now.threads}: {[thread.name for thread in threading.enumerate()]}")
        if now.descriptors > self.descriptors:
            parts.append(f"descriptors {self.descriptors} -> {now.descriptors}")
        return "; ".join(parts)


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = 15.0) -> None:
    """Come back when the condition holds, looking often; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.01)


async def eventually(condition: Callable[[], object], what: str = "the condition", seconds: float = 15.0) -> None:
    """`wait_until` that lets the event loop run meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
        await anyio.sleep(0.01)


def end_tree(pid: int, seconds: float = 5.0) -> None:
    """End a process and all below it: ask, then kill."""
    try:
        root = psutil.Process(pid)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(tree, timeout=seconds)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=seconds)
