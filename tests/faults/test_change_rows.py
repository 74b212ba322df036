"""The configuration changes while everything runs: half-written files, storms, secrets that are not there."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from faults.harness import FAULTY, HEALTHY, Allowance, Bay, case
from support.connections import raw
from support.processes import eventually
from support.servers import Entry
from toolbay import ConfigError, load, watching
from toolbay.events import ConfigReloaded
from toolbay.types import Json

pytestmark = pytest.mark.anyio

LATE = Allowance(started_late=True)


@dataclass
class Filed:
    """A case whose configuration is a file that is watched."""

    bay: Bay
    path: Path
    pids: dict[str, int] = field(default_factory=dict[str, int])

    def text(self, tools: Json | None = None, **more: Entry) -> str:
        """The servers of the case, and further ones."""
        servers = {HEALTHY: self.bay._healthy, **self.bay.servers, **more}
        return json.dumps({"tools": {"mcpServers": servers, **(tools or {})}}, indent=2)

    @property
    def reloads(self) -> list[ConfigReloaded]:
        return [event for event in self.bay.heard if isinstance(event, ConfigReloaded)]

    async def after(self, count: int) -> ConfigReloaded:
        """The event of the reload that comes after so many."""
        await eventually(lambda: len(self.reloads) > count, "a reload")
        return self.reloads[count]

    def untouched(self) -> None:
        """I6, LIF-4: the servers of the case are those that were there first, and were started once."""
        assert {name: self.bay.pid(name) for name in self.pids} == self.pids
        assert {name: self.bay.starts(name) for name in self.pids} == dict.fromkeys(self.pids, 1)


@asynccontextmanager
async def filed(row: str, fault: str) -> AsyncGenerator[Filed]:
    async with case(row, fault, raw(), allowance=LATE) as bay:
        made = Filed(bay, bay.folder / "toolbay.json")
        made.path.write_text(made.text(), encoding="utf-8")
        await bay.app.reload(load(made.path))
        made.pids = {name: bay.pid(name) for name in (FAULTY, HEALTHY)}
        bay.heard[:] = [event for event in bay.heard if not isinstance(event, ConfigReloaded)]
        async with bay.app.watch():
            yield made


def over(path: Path, data: bytes) -> None:
    """Another file takes its name, as careful programs write."""
    other = path.with_name(f"{path.name}~")
    other.write_bytes(data)
    other.replace(path)


def truncated(path: Path, data: bytes) -> None:
    """Emptied, then written, as careless ones do."""
    path.write_bytes(b"")
    path.write_bytes(data)


WAYS: dict[str, Callable[[Path, bytes], Any]] = {"in place": truncated, "renamed over": over}
BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "0 bytes": (lambda _: b"", "is empty"),
    "half written": (lambda data: data[: len(data) // 2], r"line \d+, column \d+: expected"),
    "cut in its last byte": (lambda data: data[:-1], r"line \d+, column \d+: expected"),
    "invalid JSON": (lambda data: data.replace(b":", b"", 1), r"line 2, column \d+: expected"),
    "no text": (lambda data: b"\xff" + data, r"line 1, column 1: expected text in UTF-8"),
    "another language": (lambda _: b"<html><body>502 Bad Gateway</body></html>", r"line 1, column 1: expected"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_configuration_that_cannot_be_read_leaves_every_server_as_it_is(way: str) -> None:
    """G1: the last good one goes on, with the same processes; what is wrong is told once, with its place."""
    async with filed("G1", f"a configuration that cannot be read, {way}") as made:
        good = made.text().encode()
        for what, (spoil, said) in BAD.items():
            known = len(made.reloads)
            WAYS[way](made.path, spoil(good))
            event = await made.after(known)
            assert event.error, what
            assert str(made.path) in event.error
            assert re.search(said, event.error), f"{what}: {event.error}"
            assert event.error.endswith("What was there before goes on.")
            await made.bay.well()
        assert len(made.reloads) == len(BAD), "each was told once"
        made.untouched()


@pytest.mark.parametrize("way", WAYS)
async def test_a_mended_configuration_counts_however_it_was_written(way: str) -> None:
    """G1: with a byte order mark too; servers that did not change keep their processes."""
    async with filed("G1", f"broken and mended, {way}") as made:
        WAYS[way](made.path, b"{")
        assert (await made.after(0)).error
        WAYS[way](made.path, b"\xef\xbb\xbf" + made.text(new=raw()).encode())
        event = await made.after(1)
        assert (event.error, event.added, event.connected) == ("", ("new",), ("new",))
        await made.bay.well(server="new")
        made.untouched()


async def test_a_file_that_is_written_in_pieces_is_read_when_it_is_whole() -> None:
    """G1: no piece of it is taken for the whole, though YAML would allow that."""
    async with case("G1", "a YAML file that is written in pieces", raw(), allowance=LATE) as bay:
        made = Filed(bay, bay.folder / "toolbay.yaml")
        made.path.write_text(made.text(), encoding="utf-8")
        await bay.app.reload(load(made.path))
        made.pids = {name: bay.pid(name) for name in (FAULTY, HEALTHY)}
        known = len(made.reloads)
        lines = ["tools:", "  mcpServers:"]
        lines += [f"    {name}: {json.dumps(entry)}" for name, entry in {**bay.servers, HEALTHY: bay._healthy, "new": raw()}.items()]
        async with bay.app.watch():
            made.path.write_text("", encoding="utf-8")
            for line in lines:
                await anyio.sleep(watching.INTERVAL / 3)  # the writer's own pace
                with made.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            event = await made.after(known)
            assert (event.error, event.removed, event.added) == ("", (), ("new",))
        made.untouched()


async def test_a_storm_of_writes_ends_in_the_last_one_and_touches_nobody_else() -> None:
    """G2: a hundred writes, some of them half; the processes are those that were there."""
    async with filed("G2", "100 writes in a storm") as made:
        for number in range(100):
            text = made.text({"resultBudget": 1_000 + number}).encode()
            WAYS["in place" if number % 2 else "renamed over"](made.path, text[: len(text) // 2] if number % 5 == 3 else text)
            if number % 10 == 0:
                await made.bay.well()
        await eventually(lambda: made.bay.app.config.tools.result_budget == 1_099, "the last configuration")
        assert len([event for event in made.reloads if not event.error]) <= 5
        made.untouched()


async def test_reloads_from_all_sides_at_once_end_in_the_last_configuration() -> None:
    """G2: by the file, by SIGHUP, by call and by each other, while a server is being connected."""
    async with filed("G2", "reloads from all sides, in the middle of a connect") as made:
        slow = raw("--slow-start", "1")
        async with anyio.create_task_group() as group:
            over(made.path, made.text(slow=slow).encode())
            os.kill(os.getpid(), signal.SIGHUP)
            group.start_soon(made.bay.app.reload)
            await eventually(lambda: "slow" in made.bay.app.servers, "the server that connects")
            assert made.bay.app.servers["slow"].state == "connecting"
            over(made.path, made.text(slow={**slow, "args": [*slow["args"], "--tools", "last"]}).encode())
            group.start_soon(made.bay.app.reload)
            os.kill(os.getpid(), signal.SIGHUP)
            group.start_soon(made.bay.app.reload)
            await made.bay.well()
        await eventually(lambda: "mcp_slow_last" in made.bay.app.registry.tools, "the last configuration")
        assert not any(event.error for event in made.reloads)
        made.untouched()


async def test_a_hundred_reloads_cost_no_call_of_a_server_that_did_not_change() -> None:
    """G2: each is carried out, neighbours come, change and go; no call fails, and the process stays."""
    async with filed("G2", "100 reloads while calls run") as made:
        bay = made.bay
        async with anyio.create_task_group() as group:
            stopped = anyio.Event()

            async def ask(number: int) -> None:
                while not stopped.is_set():
                    await bay.well("note", f"caller {number}")
                    # One that lasts longer than a reload.
                    result = await bay.call("slow", {"steps": 2, "seconds": 0.05})
                    assert (result.is_error, result.text) == (False, "2 steps"), result.text

            for number in range(4):
                group.start_soon(ask, number)
            for number in range(100):
                # Another filter each time; in every tenth a neighbour that comes, changes, or goes.
                neighbours = {"neighbour": raw("--tools", f"t{number // 10}")} if number % 30 < 20 else {}
                neighbours["filtered"] = {**raw(), "disabledTools": [f"x{number}"]}
                made.path.write_text(made.text({"reloadOnChange": False}, **neighbours), encoding="utf-8")
                done = await bay.app.reload()
                assert "filtered" in (*done.changed, *done.added)
            stopped.set()
        assert not [result for *_, result in bay.results if result.is_error]
        assert len(bay.results) > 30, "calls ran all the time"
        assert len(made.reloads) == 100
        made.untouched()


async def test_a_secret_that_is_not_there_costs_its_own_server_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: an unset variable, an `envFile` and a keyring entry that are not there; once they are, a reload brings the server."""
    monkeypatch.delenv("FAULT_TOKEN", raising=False)
    async with filed("G3", "secrets that are not there") as made:
        bay = made.bay
        needy = {
            "variable": {**raw(), "env": {"TOKEN": "${FAULT_TOKEN}"}},
            "file": {**raw(), "envFile": "secrets.env"},
            "ring": {**raw(), "env": {"TOKEN": "${keyring:toolbay-tests/nobody-of-this-name}"}},
        }
        over(made.path, made.text(**needy).encode())
        await eventually(lambda: set(needy) <= set(bay.app.servers), "the new servers")
        assert {name: bay.state(name) for name in needy} == dict.fromkeys(needy, "invalid")
        assert "needs the environment variable FAULT_TOKEN, which is not set" in bay.error("variable")
        assert "secrets.env cannot be read" in bay.error("file")
        assert "toolbay-tests" in bay.error("ring")
        await bay.well()
        (bay.folder / "secrets.env").write_text("TOKEN=there", encoding="utf-8")
        await eventually(lambda: bay.state("file") == "ready", "the server whose file is there now")
        monkeypatch.setenv("FAULT_TOKEN", "there")
        assert (await bay.app.reload()).connected == ("variable",)
        await bay.well(server="variable")
        made.untouched()


async def test_a_reload_that_fails_by_call_raises_and_leaves_everything() -> None:
    """G1: who asked is told what the event says."""
    async with filed("G1", "a broken file, asked for by call") as made:
        over(made.path, b'{"tools": {"mcpServers": {')
        with pytest.raises(ConfigError, match=r"line 1, column 27: expected.*What was there before goes on\."):
            await made.bay.app.reload()
        await made.bay.well()
        made.untouched()
