"""The matrix is whole, and the harness sees what it is there to see: each invariant is broken once on purpose."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import harness, report
from faults.harness import FAULTY, Bay, case
from support.connections import raw
from support.processes import MARK
from toolbay.types import Outcome, ToolResult

TESTS = Path(__file__).resolve().parents[1]
CONTRACT = TESTS.parents[1] / "shared" / "design" / "security.md"
NOT_YET: dict[str, str] = {}
"""Rows without a test, each with its reason. It may only shrink: a row that a test names must go."""


def named_rows() -> set[str]:
    """What stands before the colon in the docstrings of all tests."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found |= set(re.findall(r"\b[PHCLAGRS]\d{1,2}\b", (ast.get_docstring(node) or "").partition(":")[0]))
    return found


def test_every_row_of_the_matrix_has_a_test_that_names_it() -> None:
    """STRUCTURE: the rows of security.md 4.3, but for those that are listed with their reason."""
    if not CONTRACT.is_file():
        pytest.skip("the design notes (../shared/design/security.md) are not there")
    table = CONTRACT.read_text(encoding="utf-8").partition("### 4.3")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| ([PHCLAGRS]\d{1,2}) \|", table, re.MULTILINE))
    assert len(rows) > 40, "the matrix is no longer read as it is written"
    named = named_rows()
    assert sorted(rows - named) == sorted(NOT_YET)
    assert sorted(row for row in named if row not in rows) == []


# -- the harness itself -----------------------------------------------------------------------------------------------

MINE = "note"


def leave_a_process(bay: Bay) -> Iterator[None]:
    env = {**os.environ, MARK: bay.mark}
    process = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE, env=env)
    yield
    process.communicate(b"\n", timeout=10)


def act_once_more(bay: Bay) -> Iterator[None]:
    with (bay.folder / f"{FAULTY}.effects").open("a") as file:
        file.write(f"{MINE}\n")
    yield


def forget_an_effect(bay: Bay) -> Iterator[None]:
    (bay.folder / f"{FAULTY}.effects").write_text("")
    yield


def keep_memory(_bay: Bay) -> Iterator[None]:
    kept = bytearray(os.urandom(1)) * 100_000_000
    yield
    kept.clear()


def keep_a_descriptor(_bay: Bay) -> Iterator[None]:
    reading, writing = os.pipe()
    yield
    os.close(reading)
    os.close(writing)


def keep_a_task(_bay: Bay) -> Iterator[None]:
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    yield
    task.cancel()


def stop_the_loop(_bay: Bay) -> Iterator[None]:
    until = time.thread_time() + 1.5
    while time.thread_time() < until:
        pass
    yield


def say(text: str, outcome: Outcome = Outcome.NOT_EXECUTED) -> Callable[[Bay], Iterator[None]]:
    def told(bay: Bay) -> Iterator[None]:
        server, tool, call_id, _ = bay.results.pop()
        bay.results.append((server, tool, call_id, ToolResult(text=text, is_error=True, outcome=outcome)))
        yield

    return told


def log_an_error(_bay: Bay) -> Iterator[None]:
    logging.getLogger("toolbay.faults").error("nobody foresaw this")
    yield


def lose_an_event(bay: Bay) -> Iterator[None]:
    bay.heard.clear()
    yield


BREACHES: list[tuple[Callable[[Bay], Iterator[None]], str]] = [
    (leave_a_process, "I1 a process is left"),
    (act_once_more, f"I2 {FAULTY} {MINE} took effect 2 times"),
    (forget_an_effect, f"I2 {FAULTY} {MINE} took effect 0 times"),
    (keep_memory, "I3 1.. MB of memory stayed"),
    (keep_a_descriptor, "I3 descriptors"),
    (keep_a_task, "I3 tasks are left: .*forgotten"),
    (stop_the_loop, "I4 the loop stood still for"),
    (say(f"{FAULTY} failed: " + "x" * 600), "I5 an error of 6.. characters"),
    (say("something failed"), "I5 an error that names neither"),
    (say(f"{FAULTY} failed", Outcome.UNKNOWN), "I5 the outcome is unknown"),
    (say(f"{FAULTY} failed: it may have run"), "I5 the outcome is not_executed"),
    (say(f"{FAULTY} failed: {harness.SECRET}"), "I5 a secret"),
    (say(f"{FAULTY} failed"), "I6 a call of .* came to not_executed, and the events say executed"),
    (log_an_error, "I6 the log has an error of toolbay.faults"),
    (lose_an_event, "I6 nothing was told of faulty"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("breach", "seen"), BREACHES, ids=[seen[:30] for _, seen in BREACHES])
async def test_the_harness_sees_a_broken_invariant(
    monkeypatch: pytest.MonkeyPatch, breach: Callable[[Bay], Iterator[None]], seen: str
) -> None:
    """STRUCTURE: a check that cannot fail is none."""
    monkeypatch.setattr(harness, "QUIET", 0.1)
    monkeypatch.setattr(harness, "GONE", 1.0)
    undo: Iterator[Any] = iter(())
    try:
        with pytest.raises(AssertionError, match=seen):
            async with case("S1", "none", raw()) as bay:
                await bay.well(MINE)
                undo = breach(bay)
                next(undo)
    finally:
        next(undo, None)
        assert report.rows.pop().fault == "none"


@pytest.mark.anyio
async def test_the_harness_sees_a_slow_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """STRUCTURE: the bound of a close is held."""
    monkeypatch.setattr(harness, "QUIET", 0.1)
    monkeypatch.setattr(harness, "GONE", 0.001)
    with pytest.raises(AssertionError, match="I7 the close took"):
        async with case("S1", "none", raw()):
            pass
    report.rows.pop()
