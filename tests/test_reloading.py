"""From one configuration to the next while everything runs: who asks, who waits, and what a bad one costs (nothing)."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.processes import eventually
from toolbay import App, Config, ConfigError, ToolbayError, load, parse, watching
from toolbay._redact import Secrets
from toolbay.events import ConfigReloaded, Event, Events
from toolbay.gateway.bus import Control, Request
from toolbay.lock import FILE_NAME
from toolbay.reloading import Given, Reloads
from toolbay.testing import MemoryServer, in_memory
from toolbay.types import CallContext, Json, Reloaded, ToolResult

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.05)


def server(**more: Any) -> Json:
    return {"command": "x", **more}


class Running:
    """An app of a file, with what was heard of its reloads. Every server is one in memory."""

    def __init__(self, folder: Path, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.file = folder / "toolbay.json"
        self.environ = {"TOOLBAY_HOME": str(folder / "home"), **(environ or {})}
        self.servers = {name: MemoryServer() for name in "abcdefg"}
        self.reloads: list[ConfigReloaded] = []

    def config(self, **servers: Json) -> Config:
        return parse({"mcpServers": servers}, path=self.file)

    def write(self, tools: Json | None = None, **servers: Json) -> None:
        self.file.write_text(json.dumps({"tools": {"mcpServers": servers, **(tools or {})}}), encoding="utf-8")

    def open(self) -> App:
        self.app = App(load(self.file, environ=self.environ), open_engine=in_memory(self.servers), environ=self.environ)
        return self.app

    def hear(self, event: Event) -> None:
        if isinstance(event, ConfigReloaded):
            self.reloads.append(event)

    @property
    def names(self) -> list[str]:
        return list(self.app.servers)

    async def reloaded(self, count: int) -> ConfigReloaded:
        await eventually(lambda: len(self.reloads) >= count, f"reload {count} in {self.reloads}")
        return self.reloads[count - 1]


@asynccontextmanager
async def running(folder: Path, *, watch: bool = False, environ: dict[str, str] | None = None, **servers: Json) -> AsyncGenerator[Running]:
    made = Running(folder, environ)
    made.write(**servers)
    app = made.open()
    with anyio.fail_after(60), app.events.listen(made.hear):
        async with app:
            await app.settle(None)
            if watch:
                async with app.watch():
                    yield made
            else:
                yield made


# -- one at a time ----------------------------------------------------------------------------------------------------


async def test_a_storm_of_reloads_ends_in_the_last_configuration_with_few_applications(tmp_path: Path) -> None:
    """LIF-5, G2: a hundred at once; each who asked is told what was done in the end."""
    done: list[Reloaded] = []
    async with running(tmp_path, a=server()) as made:
        async with anyio.create_task_group() as group:

            async def ask(number: int) -> None:
                done.append(await made.app.reload(made.config(a=server(), b=server(args=[str(number)]))))

            for number in range(100):
                group.start_soon(ask, number)
        config = made.app.config.tools.mcp_servers["b"]
        assert config == made.config(b=server(args=["99"])).tools.mcp_servers["b"]
        assert len(made.reloads) <= 2, "those who waited shared one application"
        assert len(done) == 100
        assert {one.connected for one in done} == {("b",)}


async def test_two_reloads_come_one_after_the_other(tmp_path: Path) -> None:
    """LIF-5: the second begins when the first is done, and sees what that left."""
    async with running(tmp_path, a=server()) as made:
        done: list[Reloaded] = []
        async with anyio.create_task_group() as group:

            async def ask(config: Config) -> None:
                done.append(await made.app.reload(config))

            group.start_soon(ask, made.config(b=server()))
            await eventually(lambda: "b" in made.names, "the first one under way")
            group.start_soon(ask, made.config(b=server(), c=server()))
        assert [(one.added, one.removed) for one in done] == [(("b",), ("a",)), (("c",), ())]


async def test_what_was_begun_is_carried_out_when_who_asked_is_gone(tmp_path: Path) -> None:
    """CAL-8, LIF-4: a cancelled reload leaves no half configuration."""
    async with running(tmp_path, a=server()) as made:
        async with anyio.create_task_group() as group:
            group.start_soon(made.app.reload, made.config(b=server()))
            await eventually(lambda: made.app._reloads._asked.is_set() or "b" in made.names, "the request")
            group.cancel_scope.cancel()
        assert (await made.reloaded(1)).connected == ("b",)
        assert made.names == ["b"]


async def test_leaving_the_app_in_the_middle_of_a_reload_tells_who_waits(tmp_path: Path) -> None:
    """LIF-1: a close is quick in every state, and nobody waits on."""
    made = Running(tmp_path)
    made.write(a=server())
    app = made.open()
    told: list[str] = []

    async def ask() -> None:
        try:
            await app.reload()
        except ToolbayError as error:
            told.append(str(error))

    made.file.unlink()
    os.mkfifo(made.file)
    silent = os.open(made.file, os.O_RDWR)  # reading it takes long
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group, app:
            group.start_soon(ask)
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
    os.close(silent)  # the thread that reads it goes on
    assert told == ["The configuration was not read again: this App is closing."] * 2


async def test_an_app_that_does_not_run_reloads_nothing(tmp_path: Path) -> None:
    """LIF-4: before it is entered and after it was left."""
    made = Running(tmp_path)
    made.write(a=server())
    app = made.open()

    async def refused() -> None:
        with pytest.raises(ToolbayError, match="not running"):
            await app.reload()
        with pytest.raises(ToolbayError, match="not running"):
            async with app.watch():
                pass

    await refused()
    async with app:
        pass
    await refused()


async def test_an_app_without_a_file_asks_for_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-4: a file that happens to lie in the working folder is not taken for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolbay.json").write_text("{}")
    app = App(parse({"mcpServers": {"a": server()}}), open_engine=in_memory({"a": MemoryServer()}), environ={"TOOLBAY_HOME": str(tmp_path)})
    with anyio.fail_after(20):
        async with app:
            with pytest.raises(ConfigError, match=r"given its configuration by its program.*give reload\(\) the new one"):
                await app.reload()
            assert list(app.servers) == ["a"]


# -- a bad one --------------------------------------------------------------------------------------------------------

BAD = {
    "no bytes": (b"", "is empty"),
    "half of it": (b'{"tools": {"mcpServers": {"a": {"comm', "line 1, column"),
    "no JSON": (b'{\n  "tools": {\n    "mcpServers" {}\n', "line 3, column 18"),
    "no UTF-8": (b'{"tools": "\xff"}', "line 1, column 12: expected text in UTF-8"),
    "half a character of UTF-16": ('{"tools": {}}'.encode("utf-16")[:-1], "line 1, column"),
    "no object": (b"[]", "expected an object with `tools`"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_file_that_cannot_be_read_changes_nothing_and_says_where(what: str, tmp_path: Path) -> None:
    """G1, CFG-6: the error and the event name the file and, where there is one, line and column; what was there goes on."""
    content, said = BAD[what]
    async with running(tmp_path, a=server()) as made:
        config = made.app.config
        made.file.write_bytes(content)
        with pytest.raises(ConfigError) as failed:
            await made.app.reload()
        event = await made.reloaded(1)
        assert event.error == str(failed.value)
        assert said in event.error
        assert str(made.file) in event.error
        assert event.error.endswith("What was there before goes on.")
        assert made.app.config is config
        assert made.app.servers["a"].state == "ready"


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
async def test_a_byte_order_mark_is_no_mistake(mark: str, tmp_path: Path) -> None:
    """G1: editors of other systems write one."""
    async with running(tmp_path, a=server()) as made:
        made.file.write_text(json.dumps({"mcpServers": {"a": server(), "b": server()}}), encoding=mark)
        assert await made.app.reload() == Reloaded(added=("b",), connected=("b",))


async def test_what_nobody_foresaw_is_logged_without_the_secrets_of_any_configuration_so_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC, OBS-2, G1: in applying one, and in asking for it; with its traceback, and nothing is said of it elsewhere."""
    first, second = (
        parse({"mcpServers": {"a": server(env={"API_TOKEN": f"canary-token-{number}"})}}, path=tmp_path / "toolbay.json") for number in "12"
    )

    async def apply(new: Given, wait: bool) -> Reloaded:
        if wait:
            raise ZeroDivisionError("canary-token-1 became canary-token-2")
        return Reloaded()

    reloads = Reloads(read=lambda: second, apply=apply, events=Events(), secrets=Secrets())
    with anyio.fail_after(20), caplog.at_level(logging.ERROR):
        async with reloads:
            await reloads.begin(first)
            with pytest.raises(ConfigError, match=r"could not be applied \(ZeroDivisionError\)"):
                await reloads.ask()
            reloads.answer(BrokenInbox())
            await eventually(lambda: len(_logged(caplog)) == 2, "both in the log")
    for record in _logged(caplog):
        assert "Traceback" in record.getMessage()
        assert record.exc_info is None
        assert "*** became ***" in record.getMessage()


def _logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "toolbay.reloading"]


class BrokenInbox:
    """One of a program's own bus."""

    def __aiter__(self) -> BrokenInbox:
        return self

    async def __anext__(self) -> Request:
        raise ZeroDivisionError("canary-token-1 became canary-token-2")


# -- over the bus -----------------------------------------------------------------------------------------------------


async def test_the_control_message_reload_is_acknowledged_with_what_it_did(tmp_path: Path) -> None:
    """LIF-5: added, changed, removed and so on; or the error, and then nothing has changed."""
    async with running(tmp_path, a=server(), b=server()) as made:
        made.write(b=server(toolTimeout=5), c=server())
        expected = Reloaded(added=("c",), changed=("b",), removed=("a",), connected=("c",))
        assert await made.app.bus.control(Control(name="reload")) == json.loads(json.dumps(asdict(expected)))
        made.file.write_bytes(b"{")
        with pytest.raises(ConfigError, match="line 1, column 2"):
            await made.app.bus.control(Control(name="reload"))
        assert made.names == ["b", "c"]


async def test_two_control_messages_at_once_are_both_acknowledged(tmp_path: Path) -> None:
    """LIF-5: one after the other."""
    async with running(tmp_path, a=server()) as made:
        made.write(a=server(), b=server())
        told: list[Json] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                told.append(await made.app.bus.control(Control(name="reload")))

            group.start_soon(ask)
            group.start_soon(ask)
        assert [one["added"] for one in told] == [["b"], []]


# -- by itself --------------------------------------------------------------------------------------------------------


async def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    """LIF-5, G1: in place and renamed over; a bad one is told once, and the next good one counts."""
    async with running(tmp_path, watch=True, a=server()) as made:
        made.write(a=server(), b=server())
        assert (await made.reloaded(1)).connected == ("b",)
        made.file.write_bytes(b'{"tools": ')
        assert "line 1, column 11" in (await made.reloaded(2)).error
        with anyio.move_on_after(0.5):
            await made.reloaded(3)
        assert len(made.reloads) == 2, "not again and again"
        other = tmp_path / "toolbay.json.new"
        other.write_text(json.dumps({"mcpServers": {"c": server()}}))
        other.replace(made.file)
        assert (await made.reloaded(3)).removed == ("a", "b")
        assert made.names == ["c"]
        made.file.unlink()
        assert "does not exist" in (await made.reloaded(4)).error
        assert made.names == ["c"]
        made.write(d=server())
        assert (await made.reloaded(5)).connected == ("d",)
        assert len(made.reloads) == 5


async def test_a_file_that_is_made_only_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-1, LIF-5: who begins without a configuration adds the first server while the program runs."""
    made = Running(tmp_path)
    monkeypatch.chdir(tmp_path)
    app = made.app = App(load(environ=made.environ), open_engine=in_memory(made.servers), environ=made.environ)
    with anyio.fail_after(30), app.events.listen(made.hear):
        async with app, app.watch():
            assert (await app.reload(), made.names) == (Reloaded(), [])
            made.write(a=server())
            assert (await made.reloaded(2)).added == ("a",)
            made.write(b=server())
            assert (await made.reloaded(3)).removed == ("a",)


async def test_the_files_that_belong_to_it_are_followed_too(tmp_path: Path) -> None:
    """LIF-5: an `envFile`, also one that was missing, and the lock."""
    one, two = tmp_path / "one.env", tmp_path / "two.env"
    one.write_text("KEY=first")
    async with running(tmp_path, watch=True, a=server(envFile="one.env"), b=server(envFile="two.env"), c=server()) as made:
        assert made.app.servers["b"].state == "invalid"
        two.write_text("KEY=there")
        assert (await made.reloaded(1)).added == ("b",)
        one.write_text("KEY=second")
        assert (await made.reloaded(2)).changed == ("a",)
        (tmp_path / FILE_NAME).write_text("no lock")
        assert (await made.reloaded(3)).changed == ()
        assert made.app.servers["c"].state == "ready"


async def test_a_change_between_reading_and_watching_is_not_missed(tmp_path: Path) -> None:
    """LIF-5: what counts is what was read, not what was there when the watch began."""
    async with running(tmp_path, a=server()) as made:
        made.write(b=server())
        async with made.app.watch():
            assert (await made.reloaded(1)).added == ("b",)


async def test_who_does_not_want_it_is_left_alone_until_they_ask(tmp_path: Path) -> None:
    """LIF-5: `tools.reloadOnChange: false`; SIGHUP is heard all the same, and what it brings holds at once."""
    made = Running(tmp_path)
    made.write({"reloadOnChange": False}, a=server())
    app = made.open()
    with anyio.fail_after(30), app.events.listen(made.hear):
        async with app, app.watch():
            made.write(b=server())
            with anyio.move_on_after(0.5):
                await made.reloaded(1)
            assert made.reloads == []
            os.kill(os.getpid(), signal.SIGHUP)
            assert (await made.reloaded(1)).added == ("b",)
            made.write(c=server())
            assert (await made.reloaded(2)).added == ("c",)


async def test_nothing_is_watched_after_the_block(tmp_path: Path) -> None:
    """LIF-5: every task has an owner and an end; who had the signal before has it again."""
    before = signal.getsignal(signal.SIGHUP)
    async with running(tmp_path, a=server()) as made:
        async with made.app.watch():
            assert signal.getsignal(signal.SIGHUP) is not before
        assert signal.getsignal(signal.SIGHUP) is before
        made.write(b=server())
        with anyio.move_on_after(0.5):
            await made.reloaded(1)
        assert made.reloads == []
        async with made.app.watch():
            await made.reloaded(1)


async def test_an_error_in_the_block_is_the_callers_own(tmp_path: Path) -> None:
    """LIF-5: it is not wrapped, and ends the watch."""
    async with running(tmp_path, a=server()) as made:
        with pytest.raises(ZeroDivisionError):
            async with made.app.watch():
                raise ZeroDivisionError


# -- while calls run --------------------------------------------------------------------------------------------------


async def test_a_call_under_way_notices_nothing_of_a_reload_beside_it(tmp_path: Path) -> None:
    """LIF-4: an untouched server keeps its connection and its running calls."""
    gate = anyio.Event()
    made = Running(tmp_path)

    async def wait(_arguments: Json) -> str:
        await gate.wait()
        return "done"

    made.servers["a"].add_tool("wait", wait)
    made.write(a=server(), b=server())
    app = made.open()
    answers: list[ToolResult] = []
    with anyio.fail_after(30):
        async with app, anyio.create_task_group() as group:
            await app.settle(None)

            async def ask() -> None:
                answers.append(await app.registry.call("mcp_a_wait", {}, CallContext(call_id="1")))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            made.write(a=server(disabledTools=["wait"]), c=server())
            await app.reload()
            assert not answers
            gate.set()
    assert [answer.text for answer in answers] == ["done"]
