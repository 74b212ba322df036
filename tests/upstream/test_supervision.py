"""Servers that come back, servers that keep dying, and what callers are told meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import Link, linked, raw, started
from support.processes import eventually
from toolbay.errors import CallTimeout, ConnectionFailed, ConnectionLost, HandshakeFailed, LaunchFailed
from toolbay.events import ServerChanged
from toolbay.testing import MemoryServer, in_memory
from toolbay.types import Json, Outcome, outcome_of
from toolbay.upstream.engine import Budget, Diagnostics, ServerInfo
from toolbay.upstream.listing import Listing
from toolbay.upstream.pulse import while_it_speaks
from toolbay.upstream.turns import Turns

pytestmark = pytest.mark.anyio

FAST = {"first_delay": 0.02, "max_delay": 0.1, "pause": 0.4, "max_pause": 0.8}


def count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


class Moody:
    """A server that ends at its start for as long as `broken` is there."""

    def __init__(self, folder: Path) -> None:
        self.broken = folder / "broken"
        self.starts = folder / "starts"
        program = folder / "server.py"
        program.write_text(
            f"import runpy, sys, pathlib\n"
            f"open({str(self.starts)!r}, 'a').write('start\\n')\n"
            f"pathlib.Path({str(self.broken)!r}).exists() and sys.exit('no database')\n"
            f"runpy.run_path({str(servers.SERVERS / 'raw_server.py')!r}, run_name='__main__')\n",
            encoding="utf-8",
        )
        self.entry = servers.stdio(sys.executable, "-IS", program)


def pauses(link: Link) -> list[float]:
    """How long each pause was said to be."""
    return [event.retry_in or 0.0 for event in link.heard.events if isinstance(event, ServerChanged) and event.state == "paused"]


# -- coming back ------------------------------------------------------------------------------------------------------


async def test_a_server_that_was_never_ready_is_tried_again_and_settled_meanwhile(tmp_path: Path) -> None:
    """LIF-2, TRA-2, P2: its first failure is its result, with the reason; it comes by itself once it can."""
    moody = Moody(tmp_path)
    moody.broken.touch()
    async with linked(moody.entry, restart=FAST) as link:
        assert link.connection.standing.settled
        assert link.state in {"waiting", "connecting"}
        assert isinstance(link.connection.error, LaunchFailed)
        assert "no database" in str(link.connection.error)
        assert link.connection.listing is None
        moody.broken.unlink()
        await link.reaches("ready")
        assert link.connection.error is None
        assert await link.call("echo", {"text": "here"}) == "here"


async def test_a_server_that_cannot_come_up_is_not_tried_again(tmp_path: Path) -> None:
    """P1: one attempt for a command that is not there; another would end the same."""
    async with linked(servers.stdio(tmp_path / "none"), restart=FAST) as link:
        assert link.state == "failed"
        await anyio.wait_all_tasks_blocked()
        assert link.connection.standing.starts == 1
        assert link.connection.standing.retry_in is None


async def test_a_crash_loop_becomes_quiet_and_one_attempt_is_made_after_each_pause(tmp_path: Path) -> None:
    """P17: five starts, then a pause; one attempt; a pause twice as long. A person begins anew."""
    moody = Moody(tmp_path)
    moody.broken.touch()
    async with linked(moody.entry, restart=FAST) as link:
        await link.reaches("paused")
        assert count(moody.starts) == 5
        await eventually(lambda: len(pauses(link)) == 3, "three pauses")
        assert count(moody.starts) == 7, "one attempt for each pause that is over"
        assert 0.39 <= pauses(link)[0] <= 0.48
        assert 0.79 <= pauses(link)[1] <= 0.96
        assert link.heard.states[-3:] == ["paused", "connecting", "paused"]
        link.connection.start()
        assert not link.connection.standing.settled, "whoever asks can wait for what comes of it"
        await link.connection.wait_settled()
        assert link.state != "paused", "a person's attempt is the first of a clean record"


async def test_the_tools_of_a_paused_server_go_and_come_back_with_it(tmp_path: Path) -> None:
    """LIF-2, CAL-5: calls fail at once and say when; nothing is sent; the attempt after the pause brings all back."""
    moody = Moody(tmp_path)
    async with linked(moody.entry, restart={**FAST, "pause": 30, "max_pause": 30}) as link:
        moody.broken.touch()
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("paused")
        assert link.connection.listing is None
        before = anyio.current_time()
        error = await link.outcome("note")
        assert anyio.current_time() - before < 5
        assert isinstance(error, ConnectionFailed)
        assert error.retry_after is not None
        assert 20 < error.retry_after <= 36
        assert "it is tried again in" in str(error)
        assert outcome_of(error) is Outcome.NOT_EXECUTED
        moody.broken.unlink()
        link.connection.start()
        assert await link.call("echo", {"text": "back"}) == "back"
        assert link.tools == ["echo", "note", "slow"]


async def test_a_call_does_not_wait_for_an_attempt_past_its_deadline(tmp_path: Path) -> None:
    """CAL-1, LIF-2: it fails at once, not executed, and says when; its tools stay, since the server is expected back."""
    moody = Moody(tmp_path)
    async with linked(moody.entry, restart={"first_delay": 300, "max_delay": 300}) as link:
        moody.broken.touch()
        os.kill(link.pid, signal.SIGKILL)
        await eventually(lambda: count(moody.starts) == 2 and link.state == "waiting", "the attempt at once, which fails")
        before = anyio.current_time()
        error = await link.outcome("note", patience=20)
        assert anyio.current_time() - before < 5
        assert isinstance(error, ConnectionFailed)
        assert error.retry_after is not None
        assert 200 < error.retry_after <= 300
        assert "it is tried again in" in str(error)
        assert "min" in str(error)
        assert outcome_of(error) is Outcome.NOT_EXECUTED
        assert link.connection.listing is not None


async def test_a_call_waits_for_an_attempt_within_its_deadline(tmp_path: Path) -> None:
    """CAL-3: it was not sent yet, so it is sent to the server that came back."""
    moody = Moody(tmp_path)
    answers: list[str | Exception] = []
    async with linked(moody.entry, restart={"first_delay": 0.5, "max_delay": 0.5}) as link:
        moody.broken.touch()
        os.kill(link.pid, signal.SIGKILL)
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await link.outcome("echo", {"text": "late"}))

            await eventually(lambda: count(moody.starts) == 2 and link.state == "waiting", "the attempt at once, which fails")
            group.start_soon(ask)
            moody.broken.unlink()
        assert answers == ["late"]


# -- one death, one restart -------------------------------------------------------------------------------------------


async def test_a_hundred_calls_that_see_a_process_die_start_it_once(tmp_path: Path) -> None:
    """CAL-5, P4: each is told that it may have run; one start follows, as the server counts."""
    begun, seen = tmp_path / "starts", tmp_path / "effects"
    outcomes: list[str | Exception] = []
    async with linked(raw("--starts", begun, "--effects", seen, "--no-reply", "note")) as link:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                outcomes.append(await link.outcome("note"))

            for _ in range(100):
                group.start_soon(ask)
            await eventually(lambda: count(seen) == 100, "a hundred calls at the server")
            os.kill(link.pid, signal.SIGKILL)
        assert all(isinstance(one, ConnectionLost) and one.sent for one in outcomes)
        assert await link.call("echo", {"text": "back"}) == "back"
    assert count(begun) == 2
    assert count(seen) == 101, "nothing was done twice"


async def test_a_hundred_calls_that_see_a_session_end_begin_one_new_session() -> None:
    """CAL-5, H5: over HTTP, as the server counts."""
    answers: list[str] = []
    async with RawHttp() as server, linked(server.entry) as link:
        server.valid.clear()
        async with anyio.create_task_group() as group:

            async def ask(number: int) -> None:
                answers.append(await link.call("echo", {"text": str(number)}, repeatable=True))

            for number in range(100):
                group.start_soon(ask, number)
        assert sorted(answers, key=int) == [str(number) for number in range(100)]
        assert server.sessions == 2


# -- a listing of an earlier run --------------------------------------------------------------------------------------

EARLIER = Listing(tools=({"name": "old", "inputSchema": {"type": "object"}},))


async def test_a_remembered_listing_is_offered_until_the_servers_own_is_there() -> None:
    """LIF-6: and a call waits for the server within its deadline."""
    async with started(raw("--slow-start", "0.5"), remembered=EARLIER) as link:
        assert link.tools == ["old"]
        assert link.connection.remembered
        assert await link.call("echo", {"text": "there"}) == "there"
        assert link.tools == ["echo", "note", "slow"]
        assert not link.connection.remembered


@pytest.mark.parametrize("end", ["failed", "paused"])
async def test_a_remembered_listing_goes_where_the_server_does_not_come(end: str, tmp_path: Path) -> None:
    """LIF-6: it stays while the server may come in a moment, and not longer."""
    entry = servers.stdio(tmp_path / "none") if end == "failed" else raw("--exit-at-start", "1")
    kept: list[bool] = []
    async with started(entry, remembered=EARLIER, restart=FAST) as link:
        link.connection.on_change = lambda: kept.append(link.connection.listing is not None)
        await link.reaches(end)
        assert link.connection.listing is None
        assert all(kept[:-1])
        assert isinstance(await link.outcome("old"), LaunchFailed)


# -- health -----------------------------------------------------------------------------------------------------------


async def test_a_silent_server_that_answers_pings_is_left_alone(tmp_path: Path) -> None:
    """LIF-2: asked whether it lives, again and again."""
    seen = tmp_path / "journal"
    async with linked(raw("--journal", seen), ping_interval=0.1) as link:
        await eventually(lambda: seen.read_text().count('"ping"') >= 3, "three pings")
        assert link.heard.states == ["connecting", "ready"]


async def test_a_server_that_does_not_answer_a_ping_is_lost_and_started_again(tmp_path: Path) -> None:
    """LIF-2: its process lives and its pipe is open; only a ping tells."""
    async with linked(raw("--hang", "ping", "--starts", tmp_path / "starts"), ping_interval=0.2) as link:
        await link.reaches("waiting")
        assert "did not answer a ping within 0.2 s" in str(link.connection.error)
        await eventually(lambda: count(tmp_path / "starts") == 2, "another start")


async def test_a_server_that_knows_no_ping_is_left_alone() -> None:
    """LIF-2: method not found is an answer."""
    server = MemoryServer()
    server.add_tool("echo", lambda given: str(given["text"]))
    async with linked(servers.stdio("x"), open_engine=in_memory({"s": server}), ping_interval=0.02) as link:
        assert not await pinged(link, 0.3)
        assert link.heard.states == ["connecting", "ready"]


async def pinged(link: Link, seconds: float) -> bool:
    """Whether its state changes within so many seconds."""
    with anyio.move_on_after(seconds) as scope:
        await link.connection.standing.wait_change()
    return not scope.cancelled_caught


async def test_a_server_that_is_busy_with_a_call_is_not_asked(tmp_path: Path) -> None:
    """LIF-2: one that does one thing at a time cannot answer a ping meanwhile, and must not be killed for it."""
    seen = tmp_path / "journal"
    entry = raw("--hang", "ping", "--serial", "2.5", "--journal", seen, "--starts", tmp_path / "starts")
    async with linked(entry, ping_interval=1) as link:
        assert await link.call("echo", {"text": "done"}) == "done"
        assert '"ping"' not in seen.read_text()
        assert count(tmp_path / "starts") == 1


class Deaf:
    """An engine whose server answers no ping, and says something else during the first ones."""

    def __init__(self, chatty: int) -> None:
        self.info = ServerInfo()
        self.died = anyio.Event()
        self.heard = float("-inf")
        self.pings = 0
        self._chatty = chatty

    def last_words(self) -> None:
        return None

    async def request(self, method: str, params: Json, *, budget: Budget, **_: Any) -> Json:
        assert (method, params) == ("ping", {})
        await anyio.sleep(budget.timeout)
        self.pings += 1
        if self.pings <= self._chatty:
            self.heard = anyio.current_time()
        raise CallTimeout("no answer")


async def test_whoever_says_anything_else_meanwhile_lives() -> None:
    """LIF-2: a notification is a sign of life, though the ping is not answered."""
    engine = Deaf(chatty=3)
    with anyio.fail_after(10):
        lost = await while_it_speaks(anyio.sleep_forever, engine, Turns("s"), Diagnostics(heard=lambda: engine.heard), lambda: 0.02)
    assert isinstance(lost, ConnectionLost)
    assert engine.pings == 4


async def test_a_ping_is_not_sent_where_nobody_wants_it(tmp_path: Path) -> None:
    """LIF-2: the default is none: facts are enough."""
    seen = tmp_path / "journal"
    async with linked(raw("--journal", seen)) as link:
        assert not await pinged(link, 0.3)
        assert '"ping"' not in seen.read_text()


# -- what the handshake says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "state"), [(503, "waiting"), (404, "waiting"), (401, "needs_auth")])
async def test_what_a_refused_handshake_means(status: int, state: str) -> None:
    """LIF-2: a status that may pass is tried again; one that wants credentials waits for a person."""
    async with RawHttp() as server:
        server.steps["server/discover"] = server.steps["initialize"] = [Step(kind="status", status=status)]
        async with linked(server.entry) as link:
            assert link.state == state
            assert f"HTTP {status}" in str(link.connection.error)
            if state == "waiting":
                server.steps.clear()
                assert await link.call("echo", {"text": "up"}) == "up"


async def test_a_version_that_nobody_shares_is_no_reason_to_try_again() -> None:
    """P1: the same request would get the same answer."""
    async with linked(raw(), protocol_version="2026-07-28") as link:
        assert link.state == "failed"
        assert isinstance(link.connection.error, HandshakeFailed)
        assert not link.connection.error.retriable
