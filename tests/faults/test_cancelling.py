"""Calls that are stopped, that are too many, that take too long: nothing of them is left, and nobody else pays."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from faults.harness import Allowance, Bay, case
from support.connections import raw
from support.processes import eventually
from toolbay.types import Json, Outcome, ToolResult

pytestmark = pytest.mark.anyio

LONG: Json = {"seconds": 3600}


class Journal:
    """What the server was sent."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def calls(self, tool: str) -> list[int]:
        """Ids of the calls of a tool."""
        return [message["id"] for message in self.messages if message["method"] == "tools/call" and message["params"]["name"] == tool]

    @property
    def cancelled(self) -> list[int]:
        return [message["params"]["requestId"] for message in self.messages if message["method"] == "notifications/cancelled"]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


async def test_a_call_that_is_cancelled_while_it_waits_for_its_server_is_never_sent(journal: Journal) -> None:
    """C1: before it was sent; the server hears neither of the call nor of its end."""
    entry = raw("--die-on", "note", "--slow-start", "0.6", "--journal", journal.file)
    async with case("C1", "cancelled before it is sent (server coming back)", entry) as bay:
        await bay.call("note")
        with anyio.move_on_after(0.2) as scope:
            await bay.call("echo", {"text": "stopped"})
        assert scope.cancelled_caught
        await bay.reaches("ready")
        await bay.well()
        assert len(journal.calls("echo")) == 1
        assert journal.cancelled == []


async def test_a_call_that_is_cancelled_in_the_queue_is_never_sent(journal: Journal) -> None:
    """C1: before it was sent, with the server busy; its place goes to the next."""
    entry = {**raw("--tools", "echo,slow", "--journal", journal.file), "maxConcurrent": 1}
    async with case("C1", "cancelled before it is sent (in the queue)", entry) as bay, anyio.create_task_group() as group:
        group.start_soon(bay.call, "slow", LONG)
        await eventually(lambda: journal.calls("slow"), "the first call")
        with anyio.move_on_after(0.2) as scope:
            await bay.call("echo", {"text": "stopped"})
        assert scope.cancelled_caught
        group.cancel_scope.cancel()
    assert journal.calls("echo") == []
    assert journal.cancelled == journal.calls("slow")


async def test_a_call_that_is_cancelled_after_it_was_sent_is_cancelled_on_the_server_once(journal: Journal) -> None:
    """C1: the server hears of it once, under the call's id; what it answers all the same is dropped."""
    async with case("C1", "cancelled after it is sent", raw("--tools", "echo,slow", "--journal", journal.file)) as bay:
        async with anyio.create_task_group() as group:
            group.start_soon(bay.call, "slow", LONG)
            await eventually(lambda: journal.calls("slow"), "the call")
            group.cancel_scope.cancel()
        await eventually(lambda: journal.cancelled, "the notification")
        for number in range(5):
            await bay.well(text=f"number {number}")
        assert journal.cancelled == journal.calls("slow")
        assert bay.starts() == 1


async def test_a_call_that_is_cancelled_during_progress_is_cancelled_once(journal: Journal) -> None:
    """C1: while notifications of it keep coming."""
    entry = raw("--tools", "echo,slow", "--journal", journal.file)
    async with case("C1", "cancelled during progress", entry) as bay:
        seen: list[object] = []
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await bay.call("slow", {"steps": 100_000, "seconds": 0.001}, on_progress=seen.append)

            group.start_soon(call)
            await eventually(lambda: len(seen) >= 5, "progress")
            group.cancel_scope.cancel()
        count = len(seen)
        await eventually(lambda: journal.cancelled == journal.calls("slow"), "the notification")
        await bay.well()
        assert len(seen) == count, "progress of a call that is over"


async def test_a_call_that_is_cancelled_as_its_answer_arrives_is_one_or_the_other(journal: Journal) -> None:
    """C1: at the reply; 200 calls with the end of each at another moment around it, in an order that a seed gives."""
    entry = raw("--tools", "echo,note", "--journal", journal.file)
    async with case("C1", "cancelled at the reply (200 seeded moments)", entry) as bay:
        began = anyio.current_time()
        for _ in range(20):
            await bay.well()
        typical = (anyio.current_time() - began) / 20
        moments = random.Random(4)
        ended: Counter[bool] = Counter()
        for number in range(200):
            with anyio.move_on_after(typical * moments.uniform(0.2, 1.8)) as scope:
                await bay.well("note", f"number {number}")
            ended[scope.cancelled_caught] += 1
        await bay.well()
        assert min(ended.values()) > 10, f"the moments were no test of it: {ended}"
        assert len(journal.cancelled) == len(set(journal.cancelled))
        assert bay.starts() == 1


STORM = 1_000


@pytest.mark.parametrize("at_once", [100, STORM])
async def test_a_storm_of_cancellations_leaves_nothing(journal: Journal, at_once: int) -> None:
    """C2: a thousand calls, cancelled together; those that were sent are cancelled on the server, once each."""
    entry = {**raw("--tools", "echo,slow", "--journal", journal.file), "maxConcurrent": at_once}
    # A thousand calls are sent in one go, and ended in one go.
    allowance = Allowance(latency=1.5, stall=1.5)
    async with case("C2", f"1,000 calls cancelled, {at_once} at once", entry, allowance=allowance) as bay:
        async with anyio.create_task_group() as group:
            for _ in range(STORM):
                group.start_soon(bay.call, "slow", LONG)
            await eventually(lambda: len(journal.calls("slow")) == at_once, "the calls", 30)
            group.cancel_scope.cancel()
        assert bay.cut["faulty", "slow"] == STORM
        await eventually(lambda: len(journal.cancelled) == at_once, "the notifications")
        assert sorted(journal.cancelled) == sorted(journal.calls("slow"))
        await bay.well()
        assert bay.starts() == 1


async def timed(bay: Bay, finished: list[tuple[int, float, ToolResult]], number: int) -> None:
    began = anyio.current_time()
    result = await bay.call("note", {"text": f"number {number}"})
    finished.append((number, anyio.current_time() - began, result))


async def test_a_thousand_calls_to_a_serial_server_that_loses_some_are_served_in_turn(journal: Journal) -> None:
    """C3: each gets its own answer or is told; in the order of their coming; and the others do not notice."""
    entry = {
        **raw("--tools", "echo,note", "--serial", "0.001", "--drop", "100", "--journal", journal.file),
        "toolTimeout": 6,
        "maxConcurrent": 50,
    }
    finished: list[tuple[int, float, ToolResult]] = []
    # So many calls keep the loop busy all the while.
    allowance = Allowance(latency=0.5, stall=0.5)
    async with case("C3", "1,000 concurrent calls, serial, 1 % never answered", entry, allowance=allowance) as bay:
        async with anyio.create_task_group() as group:
            for number in range(1_000):
                group.start_soon(timed, bay, finished, number)
        answered = [(number, result.text) for number, _, result in finished if not result.is_error]
        assert all(text == f"number {number}" for number, text in answered)
        lost = [result for *_, result in finished if result.is_error]
        assert (len(answered), len(lost)) == (990, 10)
        assert all(result.outcome is Outcome.UNKNOWN for result in lost)
        # Nobody is passed by more of those who came later than are served at once.
        sent = [int(call["params"]["arguments"]["text"].split()[1]) for call in journal.messages if call["method"] == "tools/call"]
        assert [number for place, number in enumerate(sent) if abs(number - place) > 50] == []
        await bay.well()
        assert bay.starts() == 1


async def test_more_calls_than_may_wait_are_refused_at_once() -> None:
    """C3: the queue is bounded; who does not fit is told in a moment, not after a timeout."""
    entry = {**raw("--tools", "echo,note", "--serial", "0.05"), "maxConcurrent": 2, "maxQueued": 10}
    finished: list[tuple[int, float, ToolResult]] = []
    async with case("C3", "50 calls, 2 at once, 10 may wait", entry) as bay:
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(timed, bay, finished, number)
        refused = [(took, result) for _, took, result in finished if result.is_error]
        assert len(refused) == 38
        for took, result in refused:
            bay.told(result, Outcome.NOT_EXECUTED, "under way", "maxQueued")
            assert took < 0.5
        assert bay.effects()["note"] == 12


async def test_an_answer_that_comes_after_the_deadline_is_dropped_and_its_outcome_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """C4: the server takes a second and the call may take half of one; the answer is nobody's, and is noted in the log."""
    entry = {**raw("--tools", "echo,note", "--serial", "1"), "toolTimeouts": {"note": 0.5}}
    async with case("C4", "the answer comes 0.5 s after the deadline", entry) as bay:
        bay.told(await bay.call("note", {"text": "late"}), Outcome.UNKNOWN, "'note'")
        await eventually(lambda: bay.effects()["note"] == 1, "the effect")
        await bay.well()
        assert bay.starts() == 1
    assert caplog.text.count("faulty: an answer that nobody waits for was dropped") == 1
