"""A server dies, or stops to read, in the middle of a call: what its caller is told is what happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from faults.harness import Allowance, case
from support.connections import raw
from support.processes import alive, eventually, wait_until
from toolbay.types import Outcome

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("retry", ["safe", "never"])
async def test_a_call_that_took_effect_before_the_server_died_is_not_replayed(retry: str) -> None:
    """P4: the outcome is unknown, the server comes back at once, and the effect is one."""
    async with case("P4", f"dies after the effect, retry {retry}", {**raw("--die-on", "note"), "retry": retry}) as bay:
        first = bay.pid()
        result = await bay.call("note")
        bay.told(result, Outcome.UNKNOWN, "exit code 7", "'note'")
        await bay.well()
        assert bay.pid() != first
        assert bay.effects()["note"] == 1
        assert bay.starts() == 2


async def test_many_calls_that_a_death_meets_are_told_each_and_restart_the_server_once(tmp_path: Path) -> None:
    """P4: one death restarts once, however many calls see it."""
    journal = tmp_path / "journal"
    entry = raw("--tools", "echo,note,slow", "--die-on", "note", "--journal", journal)
    async with case("P4", "dies with 20 calls under way", entry) as bay:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(bay.call, "slow", {"seconds": 30})
            await eventually(lambda: journal.read_text().count('"slow"') == 20, "the calls")
            await bay.call("note")
        assert all(result.outcome is Outcome.UNKNOWN for *_, result in bay.results)
        await bay.well()
        assert bay.starts() == 2
        assert bay.states() == ["connecting", "ready", "waiting", "connecting", "ready"]


async def test_a_call_to_a_server_that_was_dead_before_the_first_byte_is_sent_to_the_next_one() -> None:
    """P5: nothing was written, so it is sent once more, and takes effect once."""
    async with case("P5", "is dead before the request is written", raw()) as bay:
        first = bay.pid()
        os.kill(first, signal.SIGKILL)
        # Nothing of ours runs meanwhile: the call is what finds out.
        wait_until(lambda: not alive(first), "the end of the server")
        result = await bay.call("note", {"text": "once"})
        assert (result.is_error, result.text) == (False, "once"), result.text
        assert bay.effects()["note"] == 1
        assert bay.pid() != first


async def test_a_server_that_closes_its_input_has_provably_not_got_the_call() -> None:
    """P5: the pipe takes no byte; the call is tried once more, and its caller is told that it has not run."""
    async with case("P5", "closes its input", raw("--close-stdin-at", "tools/list")) as bay:
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "closed its input")
        assert not bay.effects()["note"]


async def test_a_server_that_dies_on_reading_a_request_leaves_the_outcome_open() -> None:
    """P5: the request was written and there is no way to know what became of it."""
    async with case("P5", "dies on reading the request, before any effect", raw("--die-before", "note")) as bay:
        bay.told(await bay.call("note"), Outcome.UNKNOWN, "exit code 7")
        assert not bay.effects()["note"]
        await bay.well()


@pytest.mark.parametrize("size", [1, 17, 60, -2, -1])
async def test_a_part_of_an_answer_is_no_answer(size: int) -> None:
    """P6: whatever part of its answer a server has written when it dies, the outcome is unknown; but a line without its end may count."""
    async with case("P6", f"exits after {size} bytes of the answer", raw("--cut", f"note={size}")) as bay:
        result = await bay.call("note", {"text": "all of it"})
        if size == -1 and not result.is_error:
            assert result.text == "all of it"  # only the line's end was missing
        else:
            bay.told(result, Outcome.UNKNOWN, "exit code 7")
        await bay.well()
        assert bay.effects()["note"] == 1


@pytest.mark.parametrize("what", ["initialize", "tools/list"])
async def test_half_an_answer_at_the_start_is_a_failed_start(what: str, tmp_path: Path) -> None:
    """P6: cut in the handshake or in the listing, the first time only: it comes up with the next attempt."""
    faults = raw("--cut", f"{what}=40", "--once", tmp_path / "once")
    async with case("P6", f"exits in the middle of its answer to {what}", faults) as bay:
        await bay.reaches("ready")
        await bay.well()
        assert bay.starts() == 2


async def test_half_an_answer_and_then_silence_ends_with_the_deadline() -> None:
    """P6: the rest never comes; the call ends in time and other calls of that server too."""
    async with case("P6", "stops in the middle of its answer", {**raw("--stall", "note=30"), "toolTimeout": 1}) as bay:
        bay.told(await bay.call("note"), Outcome.UNKNOWN, "1 s", "'note'")
        bay.told(await bay.call("echo"), Outcome.UNKNOWN, "1 s", "'echo'")


LARGE = "x" * 300_000


async def test_a_server_that_reads_nothing_costs_its_callers_no_more_than_their_deadline() -> None:
    """P12: a call of 300 KB is partly written: unknown. What waits behind it was not sent, and is told so."""
    entry = {**raw("--deaf-after", "tools/list"), "toolTimeout": 1}
    async with case("P12", "never reads its input (300 KB)", entry) as bay:
        began = anyio.current_time()
        bay.told(await bay.call("note", {"text": LARGE}), Outcome.UNKNOWN, "'note'")
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "'note'")
        assert anyio.current_time() - began < 4
        assert not bay.effects()["note"]


async def test_many_calls_to_a_server_that_reads_nothing_end_in_time() -> None:
    """P12: fifty at once; the first of them may have got there, the others have not."""
    entry = {**raw("--deaf-after", "tools/list"), "toolTimeout": 1}
    # Fifty times 300 KB are looked through, written as JSON, and more, while the others wait.
    async with case("P12", "never reads its input, 50 calls", entry, allowance=Allowance(latency=0.2)) as bay:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(bay.call, "note", {"text": LARGE})
        outcomes = [result.outcome for *_, result in bay.results]
        assert all(result.is_error for *_, result in bay.results)
        assert outcomes.count(Outcome.UNKNOWN) == 1, outcomes
