"""One long line over stdio: our transport beside the SDK's own (`mcp.client.stdio`), in one interleaved run, medians and ratios.

    python bench/lines.py [--sizes 1,10,30] [--rounds 3] [--seconds 120] [--limit 0.3]

A server answers a request with one line of so many MB; taken is the time from the request to the parsed message, wall clock and CPU
time of this process. Both transports yield the same kind of streams, so that one piece of code measures both. The SDK's time grows
with the square of the length: a size whose turn would pass the time that is left is measured for ours alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from toolbay.config.models import ServerConfig, TransportType
from toolbay.upstream.engine import Opening
from toolbay.upstream.launch import prepare
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.process import spawn
from toolbay.upstream.transports import Line, connect

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    size = asked["params"]["size"]
    answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [{"type": "text", "text": "x" * size}]}})
    sys.stdout.write(answer + "\\n"); sys.stdout.flush()
"""
ARGUMENTS = ("-I", "-S", "-c", SERVER)


class Cost(NamedTuple):
    wall: float
    cpu: float


@asynccontextmanager
async def ours() -> AsyncGenerator[tuple[Any, Any, Ledger | None]]:
    config = ServerConfig(type=TransportType.STDIO, command=sys.executable, args=ARGUMENTS)
    ledger = Ledger()
    async with spawn(prepare(config)) as child, connect(Opening(name="bench", config=config), child, ledger, Line()) as (read, write):
        yield read, write, ledger


@asynccontextmanager
async def theirs() -> AsyncGenerator[tuple[Any, Any, Ledger | None]]:
    async with stdio_client(StdioServerParameters(command=sys.executable, args=list(ARGUMENTS))) as (read, write):
        yield read, write, None


Transport = Callable[[], AbstractAsyncContextManager[tuple[Any, Any, Ledger | None]]]


async def measure(transport: Transport, size: int) -> Cost:
    """One fresh server and one answer of `size` bytes, after a small one that has the server started."""
    async with transport() as (read, write, ledger):
        taken = Cost(0, 0)
        for asked in (10, size):
            number = ledger.open().id if ledger is not None else asked
            wall, cpu = time.perf_counter(), time.process_time()
            await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call", params={"size": asked})))
            answer = await read.receive()
            taken = Cost(time.perf_counter() - wall, time.process_time() - cpu)
            assert isinstance(answer.message, JSONRPCResponse)
            assert len(answer.message.result["content"][0]["text"]) == asked
    return taken


async def compare(size: int, rounds: int, until: float) -> tuple[list[Cost], list[Cost]]:
    mine: list[Cost] = []
    other: list[Cost] = []
    for _ in range(rounds):
        mine.append(await measure(ours, size))
        expected = max((cost.wall for cost in other), default=(size / 10_000_000) ** 2 * 2.5)
        if time.monotonic() + expected < until:
            other.append(await measure(theirs, size))
    return mine, other


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


async def run(options: argparse.Namespace) -> int:
    until = time.monotonic() + options.seconds
    worst = 0.0
    print(f"{'MB':>4}  {'ours: wall s':>12} {'CPU s':>7}   {'SDK: wall s':>12} {'CPU s':>7}   {'wall ratio':>10} {'CPU ratio':>10}")
    for size in (int(part) for part in options.sizes.split(",")):
        mine, other = await compare(size * 1_000_000, options.rounds, until)
        here = median(mine)
        line = f"{size:4}  {here.wall:12.3f} {here.cpu:7.3f}"
        if other:
            there = median(other)
            worst = max(worst, here.wall / there.wall if size >= 10 else 0)
            line += f"   {there.wall:12.3f} {there.cpu:7.3f}   {here.wall / there.wall:10.3f} {here.cpu / there.cpu:10.3f}"
        print(line + f"   ({len(mine)} and {len(other)} rounds)")
    verdict = "passed" if worst <= options.limit else "FAILED"
    print(f"\n{verdict}: from 10 MB on the largest ratio is {worst:.3f}, the limit {options.limit:.2f}")
    return 0 if worst <= options.limit else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,10,30", help="MB, with commas; up to 32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="when no turn of the SDK is begun any more")
    parser.add_argument("--limit", type=float, default=0.3, help="the largest ratio to the SDK that passes, from 10 MB on")
    return anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
