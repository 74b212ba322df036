"""What the HTTP rows share: a server in the test's own loop with a case of the matrix around it, and answers byte by byte."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import pytest

from faults import report
from faults.harness import Allowance, Bay, case
from servers.raw_http import Piece, RawHttp, Step, Wire
from toolbay.types import Outcome, ToolResult

LOOPBACK = ["127.0.0.0/8", "::1/128"]
AT_ONCE = 1.0
"""Seconds: the contract says 50 ms; a loaded machine is slower, and every timeout here is longer."""
PATIENCE = 5.0
"""Seconds of a call, where nothing should need them."""
CROWD = Allowance(latency=0.25, stall=0.4)
"""Many connections are opened at once, with the server of them in this loop."""
Era = Literal["legacy", "modern"]
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@dataclass(frozen=True)
class Form:
    """One form of a row's fault, on one call: what the server does, what comes of it, and what the model must be told."""

    step: Step
    outcome: Outcome
    says: str


@asynccontextmanager
async def web(
    row: str,
    fault: str,
    server: RawHttp,
    *,
    url: str = "",
    allowance: Allowance = Allowance(),  # noqa: B008 - it is frozen
    **entry: Any,
) -> AsyncGenerator[Bay]:
    """A case whose faulty server is this one, started if it is not; `url` is another way to it, `entry` the rest of its configuration."""
    async with contextlib.AsyncExitStack() as stack:
        if not server.port:
            await stack.enter_async_context(server)
        told = {"type": "streamableHttp", "url": url or server.url, "ssrfWhitelist": LOOPBACK, "toolTimeout": PATIENCE, **entry}
        bay = await stack.enter_async_context(case(row, f"{fault} ({server.era})", told, allowance=allowance))
        bay.counted = lambda _: server.effects
        yield bay


async def suffer(bay: Bay, server: RawHttp, forms: Mapping[str, Form], *, at_most: float = AT_ONCE) -> None:
    """Each form once, on the same session: told as such, in time, sent once; the call after it goes well. Each has a line in the report."""
    wrong: list[str] = []
    for name, form in forms.items():
        server.steps["note"] = [form.step, Step(effect=True)]
        before, began = calls(server), time.monotonic()
        result = await bay.call("note", {"text": name})
        took, times = time.monotonic() - began, calls(server) - before
        after = await bay.call("note", {"text": "on"})
        broken: list[str] = []
        if not result.is_error or result.outcome is not form.outcome or not re.search(form.says, result.text):
            broken.append(f"{name}: {result.outcome}, {result.text}")
        if took > at_most:
            broken.append(f"{name}: it took {took:.1f} s")
        if times != 1:
            broken.append(f"{name}: it was sent {times} times")
        if after.is_error:
            broken.append(f"the call after {name}: {after.text}")
        wrong += broken
        line = report.Row(row=bay.row, fault=f"{name} ({server.era})", outcome=str(result.outcome), seconds=took, told=result.text)
        report.rows.append(replace(line, broken=tuple(broken)))
    assert not wrong, "\n".join(wrong)


async def many(bay: Bay, count: int, tool: str) -> list[ToolResult]:
    """The results of so many calls at once."""
    results: list[ToolResult] = []

    async def ask() -> None:
        results.append(await bay.call(tool, {"text": "x"}))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(ask)
    return results


def calls(server: RawHttp) -> int:
    """The calls that reached it."""
    return sum(1 for post in server.posts if post.get("method") == "tools/call")


async def timed(call: Callable[[], Any]) -> tuple[ToolResult, float]:
    began = time.monotonic()
    result = await call()
    return result, time.monotonic() - began


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode()


EVENTS = head("Content-Type: text/event-stream", "Connection: close")
"""The beginning of an event stream that ends with its connection."""


def events(*pieces: bytes | float, end: Piece = "close") -> Wire:
    """An event stream of these pieces; `REPLY` in them is the answer."""
    return lambda reply: [EVENTS, *(piece.replace(REPLY, reply) if isinstance(piece, bytes) else piece for piece in pieces), end]


REPLY = b"\x00reply\x00"


def body(*headers: str, data: Callable[[bytes], bytes], end: Piece = "close") -> Wire:
    """A JSON answer with a body of our making."""
    return lambda reply: [head("Content-Type: application/json", *headers) + data(reply), end]


def other(reply: bytes, **changes: Any) -> bytes:
    """The reply, changed."""
    return json.dumps({**json.loads(reply), **changes}).encode()
