"""A server does not come up, or does not stay up: it is tried again as far as that may help, and it is said why."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import anyio
import pytest

from faults.harness import FAULTY, SECRET, Bay, case
from support.connections import raw
from support.processes import alive, eventually
from support.servers import Entry
from toolbay.events import ServerChanged
from toolbay.types import Outcome

pytestmark = pytest.mark.anyio


def gaps(bay: Bay) -> list[float]:
    """Seconds from each failure to the next attempt."""
    told = [event for event in bay.heard if isinstance(event, ServerChanged) and event.server == FAULTY]
    return [after.at - before.at for before, after in itertools.pairwise(told) if after.state == "connecting"]


def unusable(how: str, folder: Path) -> tuple[Entry, str]:
    if how == "missing":
        return {"type": "stdio", "command": "no-such-program-anywhere", "args": []}, "was not found: install it .*PATH searched"
    if how == "not executable":
        (folder / "plain").write_text("echo\n")
        return {"type": "stdio", "command": str(folder / "plain"), "args": []}, "is not an executable file"
    return {**raw(), "cwd": str(folder / "nowhere")}, "its folder .* does not exist"


@pytest.mark.parametrize("how", ["missing", "not executable", "no folder"])
async def test_what_cannot_be_started_is_tried_once(how: str, tmp_path: Path) -> None:
    """P1: told at once, with the mend; no other attempt can end better."""
    entry, why = unusable(how, tmp_path)
    async with case("P1", f"command or folder: {how}", entry) as bay:
        assert bay.states() == ["connecting", "failed"]
        assert re.search(why, bay.error()), bay.error()
        bay.told(await bay.call("echo"), Outcome.NOT_EXECUTED, why)
    assert bay.attempts() == 1


SHORT = {"firstDelay": 0.1, "maxAttempts": 5, "pause": 30}


async def test_a_server_that_exits_before_its_answer_is_tried_on_a_schedule() -> None:
    """P2: the error has the exit code and the last words, without their secrets; delays double, then it is left alone."""
    entry = {**raw("--stderr", "no database", "--stderr", "token {secret} is bad", "--exit-at-start", "3"), "restart": SHORT}
    async with case("P2", "exits before initialize with code 3", entry) as bay:
        assert re.search("exit code 3.*no database.*token .* is bad", bay.error()), bay.error()
        await bay.reaches("paused")
        assert bay.starts() == SHORT["maxAttempts"]
        waits = gaps(bay)
        assert len(waits) == 4
        for wait, planned in zip(waits, (0.1, 0.2, 0.4, 0.8), strict=True):
            assert 0.8 * planned - 0.01 <= wait <= 1.2 * planned + 0.5
        bay.told(await bay.call("echo"), Outcome.NOT_EXECUTED, "exit code 3", r"tried again in \d+ s")


async def test_one_that_has_never_been_ready_is_told_at_its_first_failure() -> None:
    """P2: who waits for a first result does not wait for the schedule."""
    async with case("P2", "exits before initialize, default schedule", raw("--exit-at-start", "3")) as bay:
        with anyio.fail_after(5):
            status = await bay.app.ready(FAULTY)
        assert (status.state, status.settled) == ("waiting", True)
        assert bay.starts() == 1


async def test_a_start_that_hangs_ends_with_all_that_it_started() -> None:
    """P3: after the start's own timeout the tree is killed, and it is tried again; the others never noticed."""
    entry = {**raw("--hang", "initialize", "--spawn-child", "--stderr", "waiting for {secret}"), "startupTimeout": 1}
    async with case("P3", "hangs in initialize", entry) as bay:
        assert re.search(r"was not ready within 1 s.*waiting for .*raise `startupTimeout`", bay.error()), bay.error()
        assert SECRET not in bay.error()
        (first, *_) = [int(line.split()[1]) for line in bay.effects() if line.startswith("child")]
        assert not alive(first)
        await eventually(lambda: bay.starts() == 2, "the second attempt")


async def test_a_hanging_start_holds_up_nobody() -> None:
    """P3: ten of them, and a healthy one beside them that is there at once."""
    entries = {f"s{number}": {**raw("--hang", "initialize"), "startupTimeout": 2} for number in range(5)}
    entries["well"] = raw()
    async with case("P3", "five hang in initialize", entries) as bay:
        ready = next(
            event.at for event in bay.heard if isinstance(event, ServerChanged) and (event.server, event.state) == ("well", "ready")
        )
        begun = next(event.at for event in bay.heard if isinstance(event, ServerChanged) and event.server == "well")
        assert ready - begun < 1.5
        await bay.well(server="well")


async def test_a_crash_loop_is_stopped_by_the_breaker() -> None:
    """P17: by default at most six starts in three minutes; then quiet, and calls are told when it is tried again."""
    async with case("P17", "ready, then exits, over and over", raw("--exit-after", "0.05")) as bay:
        await bay.reaches("paused", seconds=30)
        assert bay.starts() <= 6
        assert "exit code 3" in bay.error()
        began = anyio.current_time()
        bay.told(await bay.call("echo"), Outcome.NOT_EXECUTED, "exit code 3", r"tried again in \d+ s")
        assert anyio.current_time() - began < 1
        assert bay.app.servers[FAULTY].retry_in is not None
        assert not any(name.startswith("mcp_faulty_") for name in bay.app.registry.tools)


async def test_calls_that_kill_their_server_cannot_do_so_for_ever() -> None:
    """P17: each call is told its own fate; after the pause one attempt brings the server and its tools back."""
    entry = {**raw("--die-on", "note"), "restart": {"firstDelay": 0.05, "maxAttempts": 3, "pause": 1}}
    async with case("P17", "each call kills it", entry) as bay:
        for _ in range(3):
            bay.told(await bay.call("note"), Outcome.UNKNOWN, "exit code 7")
        await bay.reaches("paused")
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "exit code 7", "tried again in")
        assert bay.effects()["note"] == 3
        await bay.reaches("ready")
        await bay.well()
        assert bay.starts() == 4


async def test_a_person_ends_a_pause() -> None:
    """P17: a reload tries at once, with a clean record."""
    entry = {**raw("--die-on", "note"), "restart": {"firstDelay": 0.05, "maxAttempts": 1, "pause": 600}}
    async with case("P17", "paused, then reloaded", entry) as bay:
        await bay.call("note")
        await bay.reaches("paused")
        await bay.start()
        await bay.well()
        assert bay.starts() == 2
