"""A server writes what is no message, or too much of it: what can be followed is followed, and the rest costs one call."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import pytest

from faults.harness import SECRET, Allowance, Bay, case
from support.connections import raw
from toolbay.events import Notice
from toolbay.types import Outcome

pytestmark = pytest.mark.anyio


def notices(bay: Bay) -> list[str]:
    return [event.text for event in bay.heard if isinstance(event, Notice) and event.server == "faulty"]


async def test_lines_that_are_no_messages_are_passed_over_and_told_once() -> None:
    """P7: before and between the answers; calls go on, and a person is told once, with a line as an example."""
    async with case("P7", "text on stdout before every answer", raw("--pollute", "3", "--greet", "400")) as bay:
        for number in range(20):
            await bay.well(text=f"call {number}")
        (told,) = [text for text in notices(bay) if "stdout" in text]
        assert "A line of a server that talks too much" in told


async def test_an_output_that_is_nothing_but_text_is_no_mcp() -> None:
    """P7: 3 MB of it before a first message; the start fails at once, not with its timeout, and says what was read."""
    async with case("P7", "3 MB of text and no message", raw("--greet", "3000000", "--hang", "initialize")) as bay:
        assert bay.state() == "failed"
        assert re.search("is no MCP but other text", bay.error()), bay.error()
        assert "A line of a server that talks too much" in bay.error()
        assert bay.starts() == 1


async def test_bytes_that_are_no_utf8_cost_no_more_than_themselves() -> None:
    """P8: they are replaced in the result that they belong to, and the next call is well."""
    async with case("P8", "invalid UTF-8 in an answer", raw("--bad-bytes", "note")) as bay:
        result = await bay.call("note", {"text": "before ?! after"})
        assert not result.is_error
        assert re.fullmatch("before \ufffd{1,2} after", result.text), result.text
        await bay.well()
        assert bay.starts() == 1


async def test_a_result_of_10_mb_is_well() -> None:
    """P9: within the cap; the model is shown the beginning and the rest is a file."""
    # The line, the text in it and the message are three copies for a moment, on a heap that keeps a part.
    entry = raw("--tools", "echo,note", "--big", "note=10000000")
    async with case("P9", "a line of 10 MB", entry, allowance=Allowance(peak=200, stall=0.4, latency=0.4)) as bay:
        result = await bay.call("note")
        assert not result.is_error
        assert len(result.text) < 20_000
        assert [artifact.size for artifact in result.artifacts] == [10_000_000]
        await bay.well()
        assert bay.starts() == 1


async def test_a_result_of_64_mb_is_one_clear_error() -> None:
    """P9: over the cap of a line; the next call is well."""
    entry = raw("--tools", "echo,note", "--big", "note=64000000")
    async with case("P9", "a line of 64 MB", entry, allowance=Allowance(peak=130)) as bay:
        result = await bay.call("note")
        bay.told(result, result.outcome, r"a line is longer than \d+ MB")
        assert result.outcome is not Outcome.NOT_EXECUTED
        assert bay.effects()["note"] == 1
        await bay.well()


@pytest.mark.parametrize("what", ["note", "tools/list", "initialize"])
async def test_a_line_without_an_end_is_cut_at_the_cap(what: str, tmp_path: Path) -> None:
    """P10: the server is ended and started anew; the memory is bounded."""
    entry = raw("--endless", what, "--once", tmp_path / "once")
    async with case("P10", f"an endless line as the answer to {what}", entry, allowance=Allowance(peak=130)) as bay:
        if what == "note":
            bay.told(await bay.call("note"), Outcome.UNKNOWN, r"a line is longer than \d+ MB")
        await bay.reaches("ready")
        await bay.well()
        assert bay.starts() == 2


async def test_an_answer_to_nothing_is_dropped() -> None:
    """P11: under ids that were never given, of other types, and of calls long over; each call gets its own answer."""
    ids = ["999999", '"999999"', "null", "-1", "1", "1.5", "true", '{"a": 1}']
    tools = [f"t{number}" for number in range(len(ids))]
    faults = [word for tool, given in zip(tools, ids, strict=True) for word in ("--other-id", f"{tool}={given}")]
    async with case("P11", "answers under other ids first", raw("--tools", ",".join(["echo", *tools]), *faults)) as bay:
        for tool in tools:
            await bay.well(tool, f"of {tool}")
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(bay.well, tools[number % len(tools)], f"number {number}")
        assert bay.starts() == 1


async def test_the_first_of_two_answers_counts() -> None:
    """P11: the second one is dropped, and does not become the answer of the next call."""
    async with case("P11", "answers twice", raw("--twice", "note")) as bay:
        for number in range(10):
            await bay.well("note", f"number {number}")
        await bay.well()


async def test_ids_as_text_are_answers_and_no_id_is_used_twice(tmp_path: Path) -> None:
    """P11: a server that says "7" for 7 means 7; across a restart ids are new."""
    journal = tmp_path / "journal"
    async with case("P11", "string ids", raw("--string-ids", "--journal", journal, "--die-on", "note")) as bay:
        await bay.well()
        await bay.call("note")
        await bay.well()
    messages = [json.loads(line) for line in journal.read_text().splitlines()]
    ids = [message["id"] for message in messages if "id" in message and "method" in message]
    assert len(ids) == len(set(ids)) > 6, ids


async def test_an_answer_after_the_deadline_is_dropped() -> None:
    """P11: it comes when the call is over, and the next call gets its own."""
    async with case("P11", "a late reply", {**raw("--late", "note"), "toolTimeout": 0.5}) as bay:
        bay.told(await bay.call("note", {"text": "late"}), Outcome.UNKNOWN, "'note'")
        for number in range(5):
            await bay.well(text=f"number {number}")
        assert bay.starts() == 1


@pytest.mark.parametrize("how", [(), ("--binary-stderr",)], ids=["lines", "binary"])
async def test_a_flood_on_stderr_blocks_nobody(how: tuple[str, ...]) -> None:
    """P13: 20 MB in a call; what is kept of it is bounded."""
    async with case("P13", f"20 MB on stderr {' '.join(how)}", raw("--flood-stderr", "20000000", *how)) as bay:
        with anyio.fail_after(30):
            await bay.well()
        kept = bay.app.servers["faulty"].stderr
        assert sum(map(len, kept)) < 1_000_000
        assert bay.starts() == 1


async def test_a_server_that_closes_its_stderr_goes_on() -> None:
    """P13: it is no sign of an end."""
    async with case("P13", "stderr closed", raw("--close-stderr")) as bay:
        await bay.well()
        await bay.well("note", "x")
        assert bay.starts() == 1


async def test_secrets_on_stderr_reach_nobody() -> None:
    """P13: the last words of a server that died are told without the secrets in them."""
    async with case("P13", "a secret on stderr", raw("--stderr", "token {secret} is bad", "--die-on", "note")) as bay:
        result = await bay.call("note")
        bay.told(result, Outcome.UNKNOWN, "token .* is bad")
        assert SECRET not in "".join(bay.app.servers["faulty"].stderr)
