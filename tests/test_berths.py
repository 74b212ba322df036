"""Who serves under a name while another connection comes in its place."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import raw
from support.processes import MARK, alive, eventually, leftovers, marked
from toolbay import berths
from toolbay._redact import Secrets
from toolbay.artifacts import Artifacts
from toolbay.config.models import ServerConfig
from toolbay.events import Event, Events, ServerChanged, ToolsChanged
from toolbay.fleet import Fleet
from toolbay.registry import Registry
from toolbay.types import CallContext, Json, Outcome, Reloaded, ToolResult
from toolbay.upstream.engine import Engine, OpenEngine, Opening
from toolbay.upstream.engines import official

pytestmark = pytest.mark.anyio


class Bay:
    """A fleet, and what was heard of it."""

    def __init__(self, folder: Path, open_engine: OpenEngine = official, secrets: Secrets | None = None) -> None:
        events = Events()
        self.events, self.heard = events, list[Event]()
        self.registry = Registry(events=events, mask=(secrets or Secrets()).mask)
        artifacts = Artifacts(folder, max_bytes=10**6, max_files=9, max_age_days=1)
        self.fleet = Fleet(self.registry, events=events, artifacts=artifacts, open_engine=open_engine)

    async def apply(self, **wanted: ServerConfig) -> Reloaded:
        with anyio.fail_after(60):
            return await self.fleet.apply(wanted)

    async def call(self, name: str, arguments: Json | None = None) -> ToolResult:
        with anyio.fail_after(60):
            return await self.registry.call(name, arguments or {}, CallContext(call_id="c"))

    def states(self, server: str) -> list[str]:
        return [event.state for event in self.heard if isinstance(event, ServerChanged) and event.server == server]

    @property
    def flickers(self) -> list[ToolsChanged]:
        return [event for event in self.heard if isinstance(event, ToolsChanged) and event.removed]

    def pid(self, server: str) -> int:
        pid = self.fleet.servers[server].pid
        assert pid is not None
        return pid


@asynccontextmanager
async def bay(folder: Path, **wanted: ServerConfig) -> AsyncGenerator[Bay]:
    made = Bay(folder)
    with made.events.listen(made.heard.append):
        async with made.fleet:
            await made.apply(**wanted)
            yield made


def conf(entry: Mapping[str, Any] | None = None, **more: Any) -> ServerConfig:
    return servers.config(entry or raw(), **more)


def version(server: RawHttp, number: int, **more: Any) -> ServerConfig:
    """The same address with another header: another connection."""
    return conf(server.entry, headers={"X-Version": str(number)}, **more)


def versions(server: RawHttp, method: str) -> list[str]:
    return [headers["x-version"] for post, headers in zip(server.posts, server.headers, strict=True) if post.get("method") == method]


async def test_a_server_over_http_serves_until_the_one_in_its_place_is_ready(tmp_path: Path) -> None:
    """LIF-4: new before old; its tools never leave, and a call under way finishes on the old connection."""
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
        server.steps["note"] = [Step(wait=True, effect=True)]
        answers: list[ToolResult] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await made.call("mcp_s_note", {"text": "old"}))

            group.start_soon(ask)
            await eventually(lambda: server.effects["note"], "the call")
            done = await made.apply(s=version(server, 2))
            assert (done.changed, done.connected, done.tools_removed) == (("s",), ("s",), ())
            assert (await made.call("mcp_s_echo", {"text": "new"})).text == "new"
            assert not answers
            assert server.methods["DELETE"] == 0, "the old session is open as long as it is used"
            server.gate.set()
        assert [answer.text for answer in answers] == ["old"]
        assert versions(server, "tools/call") == ["1", "2"]
        await eventually(lambda: len(made.fleet._berths._running) == 1, "the end of the old connection")
        assert server.methods["DELETE"] == 1
        assert made.flickers == []
        assert made.states("s") == ["connecting", "ready", "connecting", "ready"], "the old one's end is no news"


async def test_while_the_new_one_comes_up_the_old_one_serves_as_the_new_filters_want(tmp_path: Path) -> None:
    """LIF-4: a tool that was switched off is off at once; a later configuration wins over one that still comes up."""
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
        server.steps["initialize"] = [Step(kind="silence")]
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: made.apply(s=version(server, 2, disabled_tools=["note"], startup_timeout=3600)))
            await eventually(lambda: "2" in versions(server, "initialize"), "the new handshake")
            assert (await made.call("mcp_s_echo", {"text": "hi"})).text == "hi"
            assert "mcp_s_note" not in made.registry.tools
            group.cancel_scope.cancel()
        server.steps["initialize"] = [Step()]
        assert (await made.apply(s=version(server, 3))).connected == ("s",)
        await made.call("mcp_s_note")
        assert versions(server, "tools/call") == ["1", "3"]
        await eventually(lambda: len(made.fleet._berths._running) == 1, "the end of the two others")


async def test_new_filters_while_the_new_one_comes_up_leave_the_old_one_the_way_that_it_was_made_with(tmp_path: Path) -> None:
    """LIF-4, LIF-6: if the old one is lost it comes back as itself, and what it lists is not kept as the other's."""
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
        server.steps["initialize"] = [Step(kind="silence")]
        with anyio.move_on_after(0.3):
            await made.apply(s=version(server, 2, startup_timeout=3600))
        with anyio.move_on_after(0.3):
            await made.apply(s=version(server, 2, startup_timeout=3600, disabled_tools=["note"]))
        assert "mcp_s_note" not in made.registry.tools
        assert made.fleet._berths.serving["s"].config.headers == {"X-Version": "1"}


async def test_a_new_one_that_cannot_be_reached_takes_the_place_all_the_same(tmp_path: Path) -> None:
    """LIF-4, I6: what is shown is what the configuration says, not what was there before it."""
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
        nowhere = conf({**server.entry, "url": f"http://127.0.0.1:{servers.free_port()}/mcp"}, restart={"enabled": False})
        assert (await made.apply(s=nowhere)).failed == ("s",)
        assert made.fleet.servers["s"].state == "failed"
        assert "mcp_s_echo" not in made.registry.tools
        await eventually(lambda: server.methods["DELETE"] == 1, "the end of the old session")


async def test_a_call_that_does_not_end_keeps_the_old_connection_for_so_long_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-1, LIF-4, CAL-3: then it is told what is known of it."""
    monkeypatch.setattr(berths, "DRAIN", 0.2)
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1, tool_timeout=3600, max_timeout=3600)) as made:
        server.steps["note"] = [Step(kind="silence", effect=True)]
        answers: list[ToolResult] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await made.call("mcp_s_note"))

            group.start_soon(ask)
            await eventually(lambda: server.effects["note"], "the call")
            await made.apply(s=version(server, 2))
        assert [(answer.is_error, answer.outcome) for answer in answers] == [(True, Outcome.UNKNOWN)]
        assert server.effects["note"] == 1
        assert (await made.call("mcp_s_echo", {"text": "new"})).text == "new"


async def test_removing_a_server_closes_whoever_comes_in_its_place_too(tmp_path: Path) -> None:
    """LIF-1, LIF-4."""
    async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
        server.steps["initialize"] = [Step(kind="silence")]
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: made.apply(s=version(server, 2, startup_timeout=3600)))
            await eventually(lambda: "2" in versions(server, "initialize"), "the new handshake")
            group.cancel_scope.cancel()
        assert (await made.apply()).removed == ("s",)
        assert (made.fleet.servers, list(made.registry.tools)) == ({}, [])
        assert not made.fleet._berths._running


class Unspeakable(Exception):
    """What an engine may raise that is not ours: even its text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError("it was given canary-berth")


@asynccontextmanager
async def broken(opening: Opening) -> AsyncGenerator[Engine]:
    raise Unspeakable
    yield


async def test_an_owner_that_fails_unforeseen_is_logged_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SEC, OBS-2, LIF-2: with its traceback; it costs its own server only."""
    made = Bay(tmp_path, broken, Secrets({"canary-berth"}))
    with anyio.fail_after(20), caplog.at_level(logging.ERROR, "toolbay.fleet"):
        async with made.fleet:
            await made.apply(s=conf())
            await eventually(lambda: "the owner of s failed" in caplog.text, "the log")
    said = next(record for record in caplog.records if record.name == "toolbay.fleet")
    assert "the owner of s failed" in said.getMessage()
    assert "Traceback" in said.getMessage()
    assert "ZeroDivisionError: it was given ***" in said.getMessage()
    assert said.exc_info is None


async def test_leaving_in_the_middle_of_a_change_closes_everything(tmp_path: Path) -> None:
    """LIF-1, I7: the old one, the one that comes, and the one that still finishes a call."""
    with anyio.fail_after(30):
        async with RawHttp() as server, bay(tmp_path, s=version(server, 1)) as made:
            server.steps["note"] = [Step(kind="silence", effect=True)]
            with anyio.move_on_after(0.3):
                await made.call("mcp_s_note")
            await made.apply(s=version(server, 2))
            server.steps["initialize"] = [Step(kind="silence")]
            with anyio.move_on_after(0.3):
                await made.apply(s=version(server, 3, startup_timeout=3600))
    assert not made.fleet._berths._running


def holding(port: int, *arguments: str | Path, env: Mapping[str, str] | None = None) -> servers.Entry:
    """A program that needs a port for itself."""
    script = servers.SERVERS / "raw_server.py"
    code = f"import runpy, socket, sys; held = socket.create_server(('127.0.0.1', {port})); sys.argv[0] = {str(script)!r}; "
    return servers.stdio(sys.executable, "-IS", "-c", f"{code}runpy.run_path({str(script)!r}, run_name='__main__')", *arguments, env=env)


async def test_a_program_has_ended_before_another_one_comes_in_its_place(tmp_path: Path) -> None:
    """LIF-4: two of it may want the same port, lock or profile."""
    port = servers.free_port()
    async with bay(tmp_path, s=conf(holding(port))) as made:
        old = made.pid("s")
        assert (await made.apply(s=conf(holding(port, "--tools", "sing")))).connected == ("s",)
        assert not alive(old)
        assert list(made.registry.tools) == ["mcp_s_sing"]
        assert made.states("s") == ["connecting", "ready", "closed", "connecting", "ready"]


async def test_a_program_that_ends_slowly_holds_up_nobody_else(tmp_path: Path) -> None:
    """LIF-4: new servers are started before old ones are stopped, and filters hold at once."""
    slow = raw("--ignore-eof", "--ignore-sigterm")
    async with bay(tmp_path, gone=conf(slow), moved=conf(slow), kept=conf()) as made:
        gone, moved = made.pid("gone"), made.pid("moved")
        async with anyio.create_task_group() as group:
            wanted = {"moved": conf(raw("--tools", "sing")), "kept": conf(disabled_tools=["note"]), "new": conf()}
            group.start_soon(lambda: made.apply(**wanted))
            await eventually(lambda: "mcp_new_echo" in made.registry.tools, "the new one")
            assert alive(gone)
            assert alive(moved)
            assert "mcp_kept_note" not in made.registry.tools
            assert not any(name.startswith("mcp_gone") for name in made.registry.tools)
        assert (await made.call("mcp_moved_sing", {"text": "la"})).text == "la"
        assert not alive(gone)


async def test_a_reload_in_the_middle_of_a_start_and_of_an_end_leads_to_what_was_wanted_last(tmp_path: Path) -> None:
    """G2, LIF-1: hanging in its handshake, ending slowly, never begun: one process is left, of the last configuration."""
    env = marked()
    hanging = conf(raw("--hang", "initialize", env=env), startup_timeout=3600)
    async with bay(tmp_path, s=conf(raw("--ignore-eof", env=env))) as made:
        for wanted in (hanging, conf(raw("--tools", "never", env=env)), hanging):
            with anyio.move_on_after(0.1):
                await made.fleet.apply({"s": wanted})
        await made.apply(s=conf(raw("--tools", "last", env=env)))
        assert list(made.registry.tools) == ["mcp_s_last"]
        await eventually(lambda: len(leftovers(env[MARK])) == 1, "the end of the others")
    assert not leftovers(env[MARK])


@pytest.mark.parametrize("disabled", [False, True])
async def test_a_call_to_a_server_that_is_removed_may_finish(tmp_path: Path, *, disabled: bool) -> None:
    """LIF-4: its tools are gone at once, the reload does not wait, and the server ends after its last call."""
    env = marked()
    entry = raw("--serial", "2", "--effects", tmp_path / "effects", env=env)
    async with bay(tmp_path, s=conf(entry)) as made:
        answers: list[ToolResult] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await made.call("mcp_s_echo", {"text": "still"}))

            group.start_soon(ask)
            await eventually(lambda: made.fleet._berths.serving["s"].turns.under_way, "the call")
            done = await made.apply(s=conf(entry, disabled=True)) if disabled else await made.apply()
            assert (done.removed, list(made.registry.tools)) == (("s",), [])
            assert not answers
        assert [answer.text for answer in answers] == ["still"]
        await eventually(lambda: not made.fleet._berths._running, "the end of the server")
        assert not leftovers(env[MARK])


async def test_a_call_that_is_cut_by_a_reload_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-4, CAL-3: after its time, when the server was removed or disabled; at once, when its program was changed, or came again."""
    monkeypatch.setattr(berths, "DRAIN", 0.2)
    port = servers.free_port()
    entry = conf(holding(port, "--no-reply", "note", "--effects", tmp_path / "effects"), tool_timeout=3600, max_timeout=3600)
    off = entry.model_copy(update={"disabled": True})
    other = conf(holding(port))
    answers: list[ToolResult] = []

    async def cut_by(made: Bay, *wanted: Mapping[str, ServerConfig]) -> None:
        await made.apply(s=entry)
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await made.call("mcp_s_note"))

            before = len(answers)
            group.start_soon(ask)
            await eventually((tmp_path / "effects").exists, "the call")
            (tmp_path / "effects").unlink()
            for servers_wanted in wanted:
                assert len(answers) == before
                await made.apply(**servers_wanted)

    async with bay(tmp_path) as made:
        await cut_by(made, {})
        await cut_by(made, {"s": off})
        await cut_by(made, {"s": other})
        monkeypatch.setattr(berths, "DRAIN", 3600)
        await cut_by(made, {}, {"s": other})
        assert (await made.call("mcp_s_echo", {"text": "here"})).text == "here"
    assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}
    reasons = [
        "s has no usable entry in the configuration any more, and the call did not end within 0.2 s",
        "s was disabled in the configuration, and the call did not end within 0.2 s",
        "s was changed in the configuration",
        "s was changed in the configuration",
    ]
    told = [answer.text.partition("called: ")[2].partition(". ")[0] for answer in answers]
    assert told == reasons
