"""A random walk over ten servers and all the faults that they can have, decided by a seed (security.md 4.3, S1).

Six of the servers are programs, four speak HTTP. Each step is a call, a burst, a stop, a kill, a spoilt answer, a reload.
What was decided is kept in `Walk.steps`, so that a walk that found something can be read, and walked again by its seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from faults.harness import Bay
from servers.raw_http import RawHttp, Step
from support.connections import raw
from support.processes import eventually
from support.servers import Entry

PROGRAMS = tuple(f"p{number}" for number in range(6))
ADDRESSES = tuple(f"h{number}" for number in range(4))
AT_ONCE = 24
"""Calls under way at any time, at the most."""
FAULTS = {
    "echo": (),
    "note": (),
    "slow": (),
    "dies": ("--die-on", "dies"),
    "early": ("--die-before", "early"),
    "cut": ("--cut", "cut=40"),
    "mute": ("--no-reply", "mute"),
    "tardy": ("--late", "tardy"),
    "halves": ("--bad-bytes", "halves"),
    "twin": ("--twice", "twin"),
    "stray": ("--other-id", 'stray="1"'),
    "large": ("--big", "large=2000000"),
    "refuses": ("--error", "refuses=-32000"),
}
"""The tools of a program, each with what goes wrong in it."""
ENTRY: Entry = {"toolTimeout": 1.0, "restart": {"firstDelay": 0.05, "maxDelay": 0.2, "maxAttempts": 10_000}}
"""Impatient, so that much happens in a short time; each server is brought back however often it dies."""
ANSWERS = (
    Step(effect=True),
    Step(kind="sse", effect=True),
    Step(kind="reset", effect=True),
    Step(kind="truncate", effect=True),
    Step(kind="sse_cut", effect=True),
    Step(kind="silence", effect=True),
    Step(kind="status", status=202, effect=True),
    Step(kind="status", status=401),
    Step(kind="status", status=429, headers={"Retry-After": "0"}),
    Step(kind="status", status=500, body=b"oops", effect=True),
    Step(kind="status", status=503, headers={"Retry-After": "9999999999"}),
    Step(kind="status", status=200, body=b"<html>Sign in</html>", headers={"Content-Type": "text/html"}, effect=True),
    Step(error={"code": -32602, "message": "no such thing"}),
)


def servers(web: dict[str, RawHttp]) -> dict[str, Entry]:
    """The ten entries. `web` are the started servers behind the addresses."""
    options = [option for given in FAULTS.values() for option in given]
    programs = {name: {**raw("--tools", ",".join(FAULTS), *options), **ENTRY} for name in PROGRAMS}
    addresses = {name: {**server.entry, **ENTRY} for name, server in web.items()}
    return {**programs, **addresses}


class Walk:
    """One walk. `bay` is the case that it runs in; `web` the servers behind the addresses, which are spoilt from here."""

    def __init__(self, seed: int, bay: Bay, web: dict[str, RawHttp]) -> None:
        self._random = random.Random(seed)
        self._bay = bay
        self._web = web
        self._under_way = 0
        self.steps: list[str] = []
        """What was decided, in order."""
        self._acts: tuple[tuple[Callable[[anyio.abc.TaskGroup], Any], int], ...] = (
            (self._call, 60),
            (self._burst, 4),
            (self._stopped_call, 12),
            (self._kill, 8),
            (self._hang_up, 6),
            (self._forget_sessions, 3),
            (self._reload, 6),
            (self._announce, 4),
        )

    async def go(self, seconds: float) -> None:
        """Walk for so long; then all servers must be there again, and do well."""
        deadline = anyio.current_time() + seconds
        acts, weights = zip(*self._acts, strict=True)
        async with anyio.create_task_group() as group:
            while anyio.current_time() < deadline:
                self._random.choices(acts, weights)[0](group)
                await anyio.sleep(self._random.expovariate(1 / 0.02))
                while self._under_way >= AT_ONCE:  # noqa: ASYNC110 - a bound, not a signal
                    await anyio.sleep(0.01)
        for server in self._web.values():
            server.steps.clear()
        await self._bay.start()
        for name in (*PROGRAMS, *ADDRESSES):
            await self._bay.reaches("ready", name)
            await eventually(lambda name=name: f"mcp_{name}_note" in self._bay.app.registry.tools, f"the tools of {name}")
            await self._bay.well("note", server=name)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _chosen(self) -> tuple[str, str]:
        """A server and one of its tools, with what will go wrong in it planned."""
        name = self._random.choice((*PROGRAMS, *ADDRESSES))
        if name in PROGRAMS:
            return name, self._random.choice(tuple(FAULTS))
        answer = self._random.choice(ANSWERS)
        self._web[name].steps["note"] = [answer, Step(effect=True)]
        return name, self._random.choice(("note", "note", "echo"))

    def _call(self, group: anyio.abc.TaskGroup) -> None:
        name, tool = self._chosen()
        self.steps.append(f"call {name} {tool}")
        group.start_soon(self._called, name, tool, None, name=f"call of {name}")

    def _burst(self, group: anyio.abc.TaskGroup) -> None:
        name, tool = self._chosen()
        self.steps.append(f"burst {name} {tool}")
        for _ in range(self._random.randint(5, 20)):
            group.start_soon(self._called, name, tool, None, name=f"call of {name}")

    def _stopped_call(self, group: anyio.abc.TaskGroup) -> None:
        name, tool = self._chosen()
        patience = self._random.choice((0.0, 0.001, 0.005, 0.05))
        self.steps.append(f"call {name} {tool}, stopped after {patience}")
        group.start_soon(self._called, name, tool, patience, name=f"call of {name}")

    async def _called(self, name: str, tool: str, patience: float | None) -> None:
        self._under_way += 1
        try:
            with anyio.move_on_after(patience):
                await self._bay.call(tool, {"text": "x", "seconds": 0.05, "steps": 4} if tool == "slow" else {"text": "x"}, server=name)
        finally:
            self._under_way -= 1

    def _kill(self, _group: anyio.abc.TaskGroup) -> None:
        name = self._random.choice(PROGRAMS)
        self.steps.append(f"kill {name}")
        status = self._bay.app.servers.get(name)
        if status is not None and status.pid is not None:
            try:
                os.kill(status.pid, signal.SIGKILL)
            except ProcessLookupError:
                return  # it died in this very moment, which is as good

    def _hang_up(self, _group: anyio.abc.TaskGroup) -> None:
        name = self._random.choice(ADDRESSES)
        self.steps.append(f"hang up {name}")
        self._web[name].hang_up()

    def _forget_sessions(self, _group: anyio.abc.TaskGroup) -> None:
        name = self._random.choice(ADDRESSES)
        self.steps.append(f"{name} forgets its sessions")
        self._web[name].valid.clear()

    def _announce(self, _group: anyio.abc.TaskGroup) -> None:
        name = self._random.choice(ADDRESSES)
        self.steps.append(f"{name} announces changes")
        for _ in range(self._random.choice((1, 100))):
            self._web[name].announce()

    def _reload(self, group: anyio.abc.TaskGroup) -> None:
        """Other timeouts for one, another environment for one, and one that is left out, or none."""
        entries = {name: dict(entry) for name, entry in self._bay.servers.items()}
        kind = self._random.choice(("timeout", "environment", "absence", "nothing"))
        name = self._random.choice(PROGRAMS if kind == "environment" else (*PROGRAMS, *ADDRESSES))
        self.steps.append(f"reload: {kind} of {name}")
        if kind == "timeout":
            entries[name]["toolTimeout"] = self._random.choice((0.5, 2.0))
        elif kind == "environment":
            entries[name]["env"] = {**entries[name]["env"], "TURN": str(self._random.random())}
        elif kind == "absence":
            del entries[name]
        group.start_soon(self._bay.reload, entries, name="reload")


def folder_of(seed: int, steps: list[str], folder: Path) -> Path:
    """Write down what a walk decided, for who looks into what it found."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"walk-{seed}.txt"
    file.write_text("\n".join(steps) + "\n", encoding="utf-8")
    return file
