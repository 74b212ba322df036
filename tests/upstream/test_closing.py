"""Closing in every state, in bounded time, and leaving nothing; cancellations that stay whose they are."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import Link, raw, started
from support.processes import MARK, eventually, leftovers, marked
from toolbay.errors import CallTimeout, ConnectionFailed, ConnectionLost
from toolbay.events import Events
from toolbay.upstream.connection import Connection

pytestmark = pytest.mark.anyio

I7 = 5.0
"""Seconds that closing may take, in every state."""
SLACK = 1.5
"""Seconds for a machine that does other things at the same time."""
FLAPPING = {"first_delay": 60.0, "max_delay": 60.0}


async def spawning(_: Link) -> None:
    """In the middle of the start, wherever that is by now."""
    await anyio.lowlevel.checkpoint()


def until(state: str) -> Callable[[Link], Awaitable[None]]:
    async def reached(link: Link) -> None:
        await link.reaches(state)

    return reached


async def starting_for_long(link: Link) -> None:
    await eventually(lambda: link.connection.diagnostics.pid is not None, "a process")


async def waiting_after_a_death(link: Link) -> None:
    """The first restart is at once; after a second death so soon there is a wait."""
    for _ in range(2):
        await link.reaches("ready")
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("waiting")
    assert (link.connection.standing.retry_in or 0) > 30


async def calling(link: Link) -> None:
    await link.reaches("ready")
    await eventually(lambda: link.connection.turns.under_way == 3, "three calls under way")


async def dying(link: Link) -> None:
    """Its child is dead, and nobody has noticed yet."""
    await link.reaches("ready")
    os.kill(link.pid, signal.SIGKILL)


STDIO: dict[str, tuple[tuple[str, ...], dict[str, Any], Callable[[Link], Awaitable[None]]]] = {
    "idle": ((), {}, spawning),
    "a process that was just started": (("--slow-start", "60"), {}, starting_for_long),
    "a hanging handshake": (("--hang", "initialize"), {}, starting_for_long),
    "a hanging listing": (("--hang", "tools/list"), {}, starting_for_long),
    "ready": ((), {}, until("ready")),
    "waiting after a death": ((), {"restart": FLAPPING}, waiting_after_a_death),
    "waiting, never ready": (("--exit-at-start", "1"), {"restart": FLAPPING}, until("waiting")),
    "paused": (("--exit-at-start", "1"), {"restart": {"max_attempts": 1}}, until("paused")),
    "failed": (("--exit-at-start", "1"), {"restart": {"enabled": False}}, until("failed")),
    "calls under way": (("--no-reply", "note"), {}, calling),
    "calls in line": (("--no-reply", "note"), {"max_concurrent": 3}, calling),
    "a child that just died": ((), {}, dying),
    "a child that ignores the end of its input and SIGTERM": (("--ignore-eof", "--ignore-sigterm"), {}, until("ready")),
    "a hanging handshake of such a child": (("--hang", "initialize", "--ignore-eof", "--ignore-sigterm"), {}, starting_for_long),
}


@asynccontextmanager
async def calls(link: Link, outcomes: list[str | Exception], number: int) -> AsyncGenerator[None]:
    """So many calls while the block runs, and what became of them."""
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            outcomes.append(await link.outcome("note", patience=60))

        for _ in range(number):
            group.start_soon(ask)
        yield


@pytest.mark.parametrize("state", STDIO)
async def test_a_process_is_closed_in_time_whatever_it_is_doing(state: str) -> None:
    """LIF-1, I7, I1: twice is once; every caller gets one clear error; nothing is left."""
    faults, more, reach = STDIO[state]
    env = marked()
    outcomes: list[str | Exception] = []
    async with started(raw(*faults, env=env), name="files", **more) as link:
        async with calls(link, outcomes, 5 if "line" in state else 3):
            await reach(link)
            before = anyio.current_time()
            link.connection.stop()
            link.connection.stop()
            await link.connection.wait_closed()
            took = anyio.current_time() - before
        assert took < I7 + SLACK, took
        assert link.state == "closed"
    assert len(outcomes) == (5 if "line" in state else 3)
    assert all(one == "{}" or isinstance(one, (ConnectionFailed, ConnectionLost)) for one in outcomes), outcomes
    await eventually(lambda: not leftovers(env[MARK]), "no process of it", 2)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("state", ["handshake", "listing", "ready", "calls", "delete"])
async def test_a_server_behind_an_address_is_closed_in_time_whatever_it_is_doing(state: str, era: Any) -> None:
    """LIF-1, I7: also where it never answers the end of its session."""
    outcomes: list[str | Exception] = []
    silent = [Step(kind="silence")]
    async with RawHttp(era=era) as server:
        match state:
            case "handshake":
                server.steps["server/discover"] = server.steps["initialize"] = silent
            case "listing":
                server.steps["tools/list"] = silent
            case _:
                server.steps["DELETE"], server.steps["note"] = silent, silent
        async with started(server.entry, name="files") as link:
            async with calls(link, outcomes, 3 if state != "delete" else 0):
                if state in {"handshake", "listing"}:
                    wanted = {"handshake": {"initialize", "server/discover"}, "listing": {"tools/list"}}[state]
                    await eventually(lambda: any(post.get("method") in wanted for post in server.posts), "the request that hangs")
                else:
                    await link.reaches("ready")
                if state == "calls":
                    await eventually(lambda: sum(post.get("method") == "tools/call" for post in server.posts) == 3, "three calls")
                before = anyio.current_time()
                link.connection.stop()
                await link.connection.wait_closed()
                took = anyio.current_time() - before
            assert took < I7 + SLACK, took
    assert all(isinstance(one, (ConnectionFailed, ConnectionLost)) for one in outcomes), outcomes


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged that anybody would see."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- cancellations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [(), ("--hang", "initialize"), ("--exit-at-start", "1")])
async def test_an_owner_that_is_cancelled_from_another_task_twice_ends_and_cleans_up(
    faults: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """R2: no scope is left by another task, no cancellation is swallowed, no process stays."""
    env = marked()
    connection = Connection("s", servers.config(raw(*faults, env=env)), events=Events())
    owner = asyncio.ensure_future(connection.run())
    await eventually(lambda: connection.diagnostics.pid is not None or connection.standing.settled, "a start")
    owner.cancel()
    await anyio.lowlevel.checkpoint()
    owner.cancel()
    with anyio.fail_after(I7 + SLACK), pytest.raises(asyncio.CancelledError):
        await owner
    assert connection.state.value == "closed"
    await connection.wait_closed()
    await eventually(lambda: not leftovers(env[MARK]), "no process of it", 2)
    assert not loud(caplog)


async def test_a_caller_that_is_cancelled_from_another_task_is_the_only_one_that_ends(tmp_path: Path) -> None:
    """R2, CAL-2: its cancellation propagates; the connection and the other callers live on."""
    seen = tmp_path / "effects"
    async with started(raw("--no-reply", "note", "--effects", seen)) as link:
        calling = [asyncio.ensure_future(link.outcome("note", patience=3)) for _ in range(3)]
        await eventually(lambda: seen.exists() and seen.read_text().count("note") == 3, "three calls at the server")
        calling[0].cancel()
        calling[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling[0]
        assert await link.call("echo", {"text": "on"}) == "on"
        assert all([isinstance(await one, CallTimeout) for one in calling[1:]])
        assert link.heard.states == ["connecting", "ready"]


def test_a_loop_that_is_closed_underneath_makes_no_noise(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """R2: a program that ends without closing us: its processes end too, and nothing is written."""
    env = marked()
    loop = asyncio.new_event_loop()
    connection = Connection("s", servers.config(raw(env=env)), events=Events())

    async def begin() -> asyncio.Task[None]:
        owner = asyncio.ensure_future(connection.run())
        with anyio.fail_after(30):
            await connection.wait_settled()
        return owner

    with caplog.at_level(logging.ERROR):
        owner = loop.run_until_complete(begin())
        owner.cancel()
        loop.run_until_complete(asyncio.wait([owner]))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        del owner
        gc.collect()
    written = capfd.readouterr()
    assert "Error" not in written.err + written.out
    assert not loud(caplog)
    assert not leftovers(env[MARK])


SUDDEN = """
import asyncio, sys
from toolbay.events import Events
from toolbay.config.models import ServerConfig
from toolbay.upstream.connection import Connection

async def main():
    connection = Connection("s", ServerConfig(type="stdio", command=sys.argv[1], args=tuple(sys.argv[2:])), events=Events())
    globals()["owner"] = asyncio.ensure_future(connection.run())
    await connection.wait_settled()
    print(connection.state, flush=True)

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""


async def test_a_program_that_drops_its_loop_leaves_no_process_behind() -> None:
    """R2, P16: the loop is closed while a server is ready; nobody closed it. The program says nothing more than Python itself does."""
    env = marked()
    entry = raw()
    ran = await anyio.run_process([sys.executable, "-c", SUDDEN, entry["command"], *entry["args"]], env={**os.environ, **env}, check=False)
    assert ran.stdout.decode().strip() == "ready"
    assert "different task" not in ran.stderr.decode()
    assert "Traceback" not in ran.stderr.decode(), ran.stderr.decode()
    await eventually(lambda: not leftovers(env[MARK]), "no process of it", I7)
