"""Calls that a crash broke off are told to the next run, once; and a journal costs nothing where it cannot be kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support import servers
from support.connections import raw
from support.processes import end_tree, wait_until
from toolbay import App, Config
from toolbay.config.models import ServerConfig, ToolsConfig
from toolbay.errors import ConnectionLost, ToolbayError
from toolbay.events import Event, Events, Notice
from toolbay.journal import LARGEST, Journal, _unfinished
from toolbay.testing import FakeModel
from toolbay.types import CallContext, Hints, Invocation, Json, Kind, Outcome, Tool, ToolResult

pytestmark = pytest.mark.anyio

RUN = """
import sys, anyio
from toolbay import App
async def main():
    async with App.load(sys.argv[1]) as app:
        await app.settle()
        await app.call("mcp_s_note", {"text": "secret words"})
anyio.run(main)
"""


def make(*, read_only: bool = False, kind: Kind = Kind.TOOL, server: str = "s", **more: Any) -> Tool:
    async def never(_arguments: Json, _context: CallContext) -> ToolResult:
        raise AssertionError("the interceptor is called directly")

    return Tool(
        name=more.pop("name", "mcp_s_note"),
        description="",
        input_schema={},
        parameters={},
        invoke=never,
        server=server,
        kind=kind,
        hints=Hints(read_only=read_only),
    )


async def calling(
    journal: Journal, tool: Tool, end: Callable[[], ToolResult] = lambda: ToolResult(text="ok"), **arguments: Any
) -> ToolResult:
    """One call through the interceptor, sent and ended."""

    async def send(invocation: Invocation) -> ToolResult:
        if invocation.context.on_sent is not None:
            invocation.context.on_sent()
        return end()

    return await journal(Invocation(tool=tool, arguments=arguments, context=CallContext(call_id="c1")), send)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def records(folder: Path) -> list[Json]:
    return [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def abandoned(folder: Path, *lines: str) -> Generator[Path]:
    """The journal of a run that is over."""
    folder.mkdir(exist_ok=True)
    path = folder / "20200101T000000-1-00000000.jsonl"
    path.write_text("\n".join(lines))
    yield path


BEGUN = json.dumps({"call": 1, "server": "files", "tool": "mcp_files_delete", "id": "c", "arguments": "0", "at": 1_700_000_000.0})


async def test_a_call_is_noted_when_it_is_sent_and_when_it_ends_without_its_arguments(tmp_path: Path) -> None:
    """CAL-3: id, server, tool, a digest, the time; then the outcome. Nothing else reaches the disk, and nobody else reads it."""
    async with Journal(tmp_path / "j", events=Events()) as journal:
        during: list[Json] = []

        def end() -> ToolResult:
            during.extend(records(tmp_path / "j"))
            return ToolResult(text="x", outcome=Outcome.UNKNOWN)

        await calling(journal, make(), end, password="hunter2")
        assert [sorted(record) for record in during] == [["arguments", "at", "call", "id", "server", "tool"]]
        assert (during[0]["server"], during[0]["tool"], during[0]["id"], len(during[0]["arguments"])) == ("s", "mcp_s_note", "c1", 64)
        assert records(tmp_path / "j")[1] == {"end": 1, "outcome": "unknown"}
        (path,) = files(tmp_path / "j")
        assert b"hunter2" not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert files(tmp_path / "j") == [], "a run that ends well leaves nothing"


@pytest.mark.parametrize(
    ("tool", "noted"),
    [
        (make(), True),
        (make(read_only=True), True),
        (make(read_only=True, server="trusted"), False),
        (make(server="trusted"), True),
        (make(kind=Kind.RESOURCE), False),
        (make(kind=Kind.PROMPT), False),
        (make(server="", kind=Kind.BUILTIN), False),
    ],
)
async def test_only_calls_that_may_have_effects_are_noted(tool: Tool, noted: bool, tmp_path: Path) -> None:
    """CAL-3: that a tool only reads is believed of trusted servers; a call that is never sent is not noted either."""
    async with Journal(tmp_path, events=Events(), config_of=_trusted) as journal:
        await calling(journal, tool)
        assert bool(files(tmp_path)) is noted

    async def refuse(_invocation: Invocation) -> ToolResult:
        raise ConnectionLost("gone", sent=False)

    async with Journal(tmp_path, events=Events()) as journal:
        with pytest.raises(ConnectionLost):
            await journal(Invocation(tool=tool, arguments={}, context=CallContext(call_id="c")), refuse)
        assert files(tmp_path) == []


@given(st.dictionaries(st.text(max_size=2), st.text() | st.integers() | st.lists(st.none() | st.text(), max_size=2), max_size=4))
@example({"b": 'quo"ted\n', "a": "\ud83d é \U0001f600", "": ""})
async def test_a_program_can_tell_a_call_by_its_arguments(arguments: Json) -> None:
    """CAL-3: the digest is of JSON with sorted keys and without spaces, as every program can write it."""
    with tempfile.TemporaryDirectory() as folder:
        async with Journal(Path(folder), events=Events()) as journal:
            await calling(journal, make(), **arguments)
            written = json.dumps(arguments, sort_keys=True, separators=(",", ":")).encode()
            assert records(Path(folder))[0]["arguments"] == hashlib.sha256(written).hexdigest()


@pytest.mark.parametrize(("arguments", "written"), [({1: "a"}, b'{"1":"a"}'), ({None: "a", "b": "c"}, None), ({"a": {"b", "c"}}, None)])
async def test_arguments_that_are_no_json_do_not_end_the_journal(arguments: Any, written: bytes | None, tmp_path: Path) -> None:
    """CAL-3: nobody has looked at the arguments that a program passes; such a call is noted, and so are those that follow."""

    async def send(invocation: Invocation) -> ToolResult:
        assert invocation.context.on_sent is not None
        invocation.context.on_sent()
        return ToolResult(text="ok")

    async with Journal(tmp_path, events=Events()) as journal:
        await journal(Invocation(tool=make(), arguments=arguments, context=CallContext(call_id="c")), send)
        await calling(journal, make(), text="next")
        first, second = [record for record in records(tmp_path) if "call" in record]
        assert first["arguments"] == (hashlib.sha256(written).hexdigest() if written is not None else "")
        assert second["call"] == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ConnectionLost("x", sent=True), "unknown"), (ToolbayError("x"), "not_executed"), (KeyboardInterrupt(), "unknown")],
)
async def test_a_call_that_raises_has_ended_too(error: BaseException, outcome: str, tmp_path: Path) -> None:
    """CAL-3: whatever ends a call in this process is no crash."""

    def end() -> ToolResult:
        raise error

    async with Journal(tmp_path, events=Events()) as journal:
        with pytest.raises(type(error)):
            await calling(journal, make(), end)
        assert records(tmp_path)[-1] == {"end": 1, "outcome": outcome}


async def test_a_journal_is_bounded_and_loses_nothing_that_is_under_way(tmp_path: Path) -> None:
    """CAL-3: past its size a new file takes over, with the calls that are still running."""
    async with Journal(tmp_path, events=Events()) as journal:

        async def hold(invocation: Invocation) -> ToolResult:
            assert invocation.context.on_sent is not None
            invocation.context.on_sent()
            (first,) = files(tmp_path)
            while files(tmp_path) == [first]:
                await calling(journal, make(name="mcp_s_many"))
            assert first.exists() is False
            return ToolResult(text="held")

        await journal(Invocation(tool=make(), arguments={}, context=CallContext(call_id="held")), hold)
        held, *rest = records(tmp_path)
        assert held["id"] == "held"
        assert rest[-1] == {"end": 1, "outcome": "executed"}
        assert sum(path.stat().st_size for path in files(tmp_path)) < LARGEST


async def test_what_an_earlier_run_left_is_told_to_people_once_and_kept_until_a_model_knows(tmp_path: Path) -> None:
    """CAL-3: people are told at the start; a run in which no model is asked leaves it for the next one."""
    heard: list[Event] = []
    events = Events()
    with abandoned(tmp_path, BEGUN) as path, events.listen(heard.append):
        async with Journal(tmp_path, events=events) as journal:
            assert [(call.server, call.tool, call.when) for call in journal.unfinished] == [
                ("files", "mcp_files_delete", "2023-11-14 22:13 UTC")
            ]
            (notice,) = heard
            assert isinstance(notice, Notice)
            assert notice.server == "files"
            assert "mcp_files_delete was under way (2023-11-14 22:13 UTC): it may have taken effect" in notice.text
        assert path.exists()
        async with Journal(tmp_path, events=events) as journal:
            assert len(heard) == 1, "people were told"
            assert "mcp_files_delete of the server 'files'" in journal.note()


async def test_nothing_is_told_twice_by_runs_side_by_side(tmp_path: Path) -> None:
    """CAL-3: who tells of a journal holds it; a living run's own is nobody else's."""
    with abandoned(tmp_path, BEGUN):
        async with Journal(tmp_path, events=Events()) as one, Journal(tmp_path, events=Events()) as other:
            assert len(one.unfinished) == 1
            assert other.unfinished == ()

            async def meanwhile(invocation: Invocation) -> ToolResult:
                assert invocation.context.on_sent is not None
                invocation.context.on_sent()
                async with Journal(tmp_path, events=Events()) as third:
                    assert third.unfinished == (), "the call is under way in a run that lives"
                return ToolResult(text="ok")

            await other(Invocation(tool=make(), arguments={}, context=CallContext(call_id="c")), meanwhile)
            assert len(files(tmp_path)) == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\xff" * 5000, b'{"call": 1, "server": 5}', b"[" * 100_000, b'{"end": 3}\n\n{"call"', b'{"call": true, "at": 1e999}'],
    ids=["empty", "binary", "wrong types", "deep", "torn", "odd numbers"],
)
async def test_a_journal_that_cannot_be_read_costs_nothing(content: bytes, tmp_path: Path) -> None:
    """CAL-3: corrupt and torn files are passed over; what can be read of one is told."""
    with abandoned(tmp_path) as path:
        path.write_bytes(content + b"\n" + BEGUN.encode() + b'\n{"call": 2, "ser')
        os.utime(path)
        (tmp_path / "folder.jsonl").mkdir()
        async with Journal(tmp_path, events=Events()) as journal:
            assert [call.tool for call in journal.unfinished] == ["mcp_files_delete"]


@pytest.mark.skipif(os.name == "nt", reason="rights of folders are another matter there")
async def test_what_others_may_have_written_is_told_to_nobody(tmp_path: Path) -> None:
    """CAL-3: its words reach a model, so they must be our own."""
    with abandoned(tmp_path / "j", BEGUN) as path:
        (tmp_path / "j").chmod(0o777)
        async with Journal(tmp_path / "j", events=Events()) as journal:
            assert journal.unfinished == ()
            assert journal.note() == ""
        (tmp_path / "j").chmod(0o755)
        async with Journal(tmp_path / "j", events=Events()) as journal:
            assert [call.server for call in journal.unfinished] == ["files"]
        assert path.exists()


@given(st.binary(max_size=300))
def test_no_content_of_a_file_breaks_its_reader(data: bytes) -> None:
    """CAL-3: it is read at the start of every run."""
    told, calls = _unfinished(data)
    assert not told or b"told" in data
    assert not calls or b"call" in data


async def test_a_journal_that_cannot_be_written_costs_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CAL-3: no call fails for it, and it is said once."""
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        async with Journal(tmp_path / "file" / "j", events=Events()) as journal:
            for _ in range(3):
                assert (await calling(journal, make())).text == "ok"
    assert len([record for record in caplog.records if record.name == "toolbay.journal"]) == 1


async def test_a_killed_run_is_told_to_the_next_ones_people_and_model_and_then_to_nobody(tmp_path: Path) -> None:
    """CAL-3: SIGKILL in the middle of a call that has taken effect; the next run's model and (quiet) command line are told, once."""
    effects, config = tmp_path / "effects", tmp_path / "toolbay.json"
    entry = raw("--effects", effects, "--no-reply", "note")
    config.write_text(json.dumps({"mcpServers": {"s": entry}}))
    environ = {**os.environ, "TOOLBAY_HOME": str(tmp_path / "home")}
    process = subprocess.Popen([sys.executable, "-c", RUN, str(config)], env=environ)
    try:
        wait_until(lambda: effects.exists() and effects.read_text() == "note\n", "the effect", 60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        end_tree(process.pid)
        process.wait()
    (left,) = files(tmp_path / "home" / "data" / "journal")
    assert b"secret words" not in left.read_bytes()

    command = [sys.executable, "-m", "toolbay", "--config", str(config), "tools"]
    looked = subprocess.run([*command, "-q"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "s: an earlier run ended while mcp_s_note was under way" in looked.stderr
    again = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "earlier run" not in again.stderr, "people were told"

    model = FakeModel(["I will look first.", "Nothing new."])
    options = {"model": model, "environ": environ}
    async with App(_config(entry), **options) as app:  # type: ignore[arg-type]
        await app.settle()
        assert [call.tool for call in app.unfinished] == ["mcp_s_note"]
        await app.ask("go on")
        assert app.unfinished == ()
        await app.ask("and now?")
    first, second = (request.instructions for request in model.requests)
    assert "An earlier run of this program ended while calls were under way" in first
    assert "- mcp_s_note of the server 's' (20" in first
    assert "earlier run" not in second
    assert files(tmp_path / "home" / "data" / "journal") == []
    async with App(_config(entry), **options) as app:  # type: ignore[arg-type]
        assert app.unfinished == ()
    assert effects.read_text() == "note\n", "nothing was repeated"


def _trusted(server: str) -> ServerConfig:
    return ServerConfig.model_validate({"type": "stdio", "command": "x", "trusted": server == "trusted"})


def _config(entry: servers.Entry) -> Config:
    return Config(tools=ToolsConfig(mcp_servers={"s": ServerConfig.model_validate(entry)}))
