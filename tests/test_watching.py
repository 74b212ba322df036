"""What tells a running program that its configuration may be another one: files as they really change, and SIGHUP."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from cli.terminals import Terminal
from support.processes import eventually
from toolbay import watching
from toolbay.config.places import digest
from toolbay.watching import Files, hangups

pytestmark = pytest.mark.anyio

QUICK = 0.02
"""Seconds between two looks, so that a test is quick."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "INTERVAL", QUICK)


def test_a_look_gives_what_is_in_files(tmp_path: Path) -> None:
    """G1: nothing there, a folder and a pipe have no content; nobody waits for a pipe."""
    file, folder, pipe = tmp_path / "file", tmp_path / "folder", tmp_path / "pipe"
    file.write_bytes(b"one")
    folder.mkdir()
    os.mkfifo(pipe)
    missing = tmp_path / "missing"
    assert Files().look([file, folder, pipe, missing]) == {file: digest(b"one"), folder: "", pipe: "", missing: ""}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"two"),
        lambda path: (path.with_suffix(".new").write_bytes(b"two"), path.with_suffix(".new").replace(path)),
        lambda path: (path.unlink(), path.write_bytes(b"two")),
    ],
    ids=["in place", "renamed over", "removed and made anew"],
)
def test_every_kind_of_replacement_is_seen(change: Callable[[Path], object], tmp_path: Path) -> None:
    """G1: as editors and other programs write."""
    path, files = tmp_path / "file", Files()
    path.write_bytes(b"one")
    assert files.look([path]) == {path: digest(b"one")}
    change(path)
    assert files.look([path]) == {path: digest(b"two")}
    path.unlink()
    assert files.look([path]) == {path: ""}


def test_a_change_within_one_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    """G1: as many changes as fit into each tick of a coarse clock; the size is always the same."""
    path, files = tmp_path / "file", Files()
    for number in range(500):
        content = b"%03d" % number
        path.write_bytes(content)
        assert files.look([path]) == {path: digest(content)}


async def test_a_touch_is_no_change(tmp_path: Path) -> None:
    """G2: the same content again, however it was written, is nothing to act upon."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with anyio.move_on_after(QUICK * 20) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(Files().differ, lambda: {path: digest(b"one")})
            for _ in range(5):
                path.write_bytes(b"one")
                await anyio.sleep(QUICK)
    assert scope.cancelled_caught, "nothing was told"


async def test_who_writes_in_pieces_is_waited_for(tmp_path: Path) -> None:
    """G1: told once it has come to rest, not at each piece."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    seen: list[bytes] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                await Files().differ(lambda: {path: digest(b"")})
                seen.append(path.read_bytes())

            group.start_soon(wait)
            for piece in range(5):
                with path.open("ab") as file:
                    file.write(b"%d" % piece)
                await anyio.sleep(QUICK * 0.7)
    assert seen == [b"01234"]


async def test_a_file_that_never_rests_is_taken_as_it_is(tmp_path: Path) -> None:
    """G2: a storm without an end does not keep a change away for ever."""
    path = tmp_path / "file"
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def storm() -> None:
                for number in range(10**6):
                    path.write_bytes(b"%d" % number)
                    await anyio.sleep(QUICK / 2)

            group.start_soon(storm)
            await Files().differ(lambda: {path: digest(b"")})
            group.cancel_scope.cancel()


async def test_each_hangup_is_heard_until_the_block_ends() -> None:
    """LIF-5: SIGHUP asks for a reload; who had the signal before has it again."""
    heard, mine = list[int](), list[int]()
    before = signal.signal(signal.SIGHUP, lambda number, _: mine.append(number))
    try:
        with hangups(lambda: heard.append(1)):
            for number in (1, 2):
                os.kill(os.getpid(), signal.SIGHUP)
                await eventually(lambda number=number: len(heard) == number, "the signal")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: mine == [signal.SIGHUP], "the signal for whoever had it before")
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_is_heard_and_nothing_breaks() -> None:
    """LIF-5: signals belong to the main thread."""
    ended: list[bool] = []

    async def use() -> None:
        await anyio.lowlevel.checkpoint()
        with hangups(lambda: None):
            ended.append(True)

    thread = threading.Thread(target=lambda: anyio.run(use))
    thread.start()
    thread.join(10)
    assert ended == [True]


AT_A_TERMINAL = """
import os, signal, anyio
from toolbay.watching import hangups
signal.signal(signal.SIGHUP, lambda *_: os._exit(42))
async def main():
    with hangups(lambda: os._exit(7)):
        print("ready", flush=True)
        await anyio.sleep(60)
anyio.run(main)
"""


@pytest.mark.parametrize(("closed", "code"), [(True, 42), (False, 7)], ids=["the terminal is closed", "somebody asks"])
def test_a_terminal_that_goes_away_is_told_from_somebody_who_asks(closed: bool, code: int, tmp_path: Path) -> None:
    """LIF-5: both send SIGHUP; the first goes to who had it before."""
    program = Terminal([sys.executable, "-c", AT_A_TERMINAL], cwd=tmp_path)
    try:
        program.expect("ready")
        if not closed:
            program.send(signal.SIGHUP)
        assert (program.hang_up() if closed else program.end()) == code
    finally:
        program.close()
