"""What strangers' schemas and packed answers cost everybody else: the longest stop of the event loop, time, memory.

    python bench/schemas.py [--rounds 5] [--limit 50]

A server lists tools whose schemas are made to be expensive, and one of them is called with arguments that are as bad. A task that wakes
every millisecond sees how long the loop stood still from the start of the server to the end of the call. The best of some rounds counts,
for whatever else runs on the machine makes it only longer. A gzip bomb of 400 kB, which would be 400 MB, is fetched too.

Passes where no stop is longer than the limit in ms, and the bomb costs less than 1 s and 100 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from toolbay import App, parse
from toolbay.net import http
from toolbay.net.guard import Policy

SERVER = """
import json, sys
tools = json.load(open(sys.argv[1]))
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {"content": []}
    if asked["method"] == "initialize":
        info = {"name": "bombs", "version": "1"}
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked["method"] == "tools/list":
        result = {"tools": tools}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\\n"); sys.stdout.flush()
"""
Bomb = tuple[dict[str, Any], dict[str, Any]]
"""A schema, and the arguments of a call."""


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def nested(levels: int, leaf: Any, key: str) -> Any:
    for _ in range(levels):
        leaf = {"type": "object", "properties": {key: leaf}} if key == "properties" else {key: leaf}
    return leaf


def doubling(word: str) -> Bomb:
    """Alternatives of alternatives: each level doubles the work."""
    levels = {f"d{level}": {word: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)}
    return {**objects(x={"$ref": "#/$defs/d0"}), "$defs": {**levels, "d40": {"type": "string"}}}, {"x": 1}


BOMBS: dict[str, Bomb] = {
    "a plain schema": (objects(text={"type": "string"}), {"text": "x"}),
    "90 levels deep": (objects(x=nested(90, {"type": "string"}, "properties")), {"x": {}}),
    "150 levels of allOf": (objects(x={"allOf": [nested(150, {"type": "string"}, "not")]}), {"x": "y"}),
    "20,000 properties, 1.4 MB": (
        objects(**{f"p{number}": {"type": "string", "title": "x" * 30} for number in range(20_000)}),
        {"p1": "x"},
    ),
    "4,000 properties": (objects(**{f"p{number}": {"type": "string", "title": "x" * 10} for number in range(4_000)}), {"p1": "x"}),
    "5,000 properties, all given": (
        objects(**{f"p{number}": {"type": ["string", "null"]} for number in range(5_000)}),
        {f"p{number}": "x" for number in range(5_000)},
    ),
    "17,000 words in an enum": (objects(x={"enum": [f"word {number}" for number in range(17_000)]}), {"x": "no"}),
    "oneOf doubled 40 times": doubling("oneOf"),
    "allOf doubled 40 times": doubling("allOf"),
    "a list that leads back, deep": (
        {**objects(x={"$ref": "#/$defs/n"}), "$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}] * 8}}},
        {"x": nested(100, [], "k")},
    ),
    "1,000 alternatives, 1,000 items": (
        objects(x={"type": "array", "items": {"anyOf": [{"type": "object", "required": [f"k{number}"]} for number in range(1_000)]}}),
        {"x": [{"a": number} for number in range(1_000)]},
    ),
    "a pattern that backtracks": (objects(x={"type": "string", "pattern": "^(a+)+$"}), {"x": "a" * 50_000 + "!"}),
    "a pattern repeated 1,000 times over": (objects(x={"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"}), {"x": "a" * 20_000}),
    "240 kB of description": (objects(x={"type": "string", "description": "lorem ipsum " * 20_000}), {"x": "y"}),
    "900 kB of arguments": (objects(x={"type": "array", "items": {"type": "integer"}}), {"x": [str(number) for number in range(100_000)]}),
}


class Watch:
    """How long the loop stood still, in seconds: one task that wakes every millisecond."""

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        task = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        try:
            yield
            await asyncio.sleep(0.002)
        finally:
            task.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last - 0.001), now


async def measure(bomb: Bomb, home: Path) -> tuple[float, float, str]:
    """The longest stop, seconds in all, and what the model was told in the end."""
    schema, arguments = bomb
    tools = [{"name": "t0", "inputSchema": schema}, {"name": "t1", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    home = Path(tempfile.mkdtemp(dir=home))  # nothing is known of the server from before
    listed = home / "tools.json"
    listed.write_text(json.dumps(tools), encoding="utf-8")
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", SERVER, str(listed)]}
    environ = {"PATH": "/usr/bin:/bin", "TOOLBAY_HOME": str(home / "home")}
    watch, began = Watch(), time.perf_counter()
    async with watch.watching(), App(parse({"tools": {"mcpServers": {"bombs": server}}}, environ=environ), environ=environ) as app:
        await app.settle(None)
        offered = "mcp_bombs_t0" in app.registry.tools
        result = await app.call("mcp_bombs_t0", arguments)
    told = ("refused" if result.is_error else "called") if offered else "left out"
    return watch.longest, time.perf_counter() - began, told


async def burst() -> tuple[float, float, str]:
    """Seconds and MB that a gzip bomb costs, and the error's sentence."""
    packed = gzip.compress(bytes(4 * 2**20), 9) * 100

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
        writer.write(head.encode() + packed)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        before, began, said = memory("VmRSS"), time.perf_counter(), "it was read"
        forget_the_peak()
        async with http.client(policy=Policy(("127.0.0.1/32",)), proxy="") as client:
            try:
                await client.get(f"http://127.0.0.1:{port}/")
            except httpx2.TransportError as error:
                said = str(error)
        return time.perf_counter() - began, memory("VmHWM") - before, said


def forget_the_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def memory(name: str) -> float:
    """MB, as Linux tells them."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))


async def run(rounds: int, limit: float) -> int:
    worst = 0.0
    taken: dict[str, list[tuple[float, float, str]]] = {name: [] for name in BOMBS}
    with tempfile.TemporaryDirectory() as folder:
        *_, told = await measure(BOMBS["a plain schema"], Path(folder))  # what is loaded late is loaded now
        if told != "called":
            sys.exit("not even a plain tool could be called: nothing here can be judged")
        gc.freeze()  # as the command line does: full collections are part of what is measured
        for _ in range(rounds):
            for name, bomb in BOMBS.items():
                taken[name].append(await measure(bomb, Path(folder)))
    print(f"{'':38}{'longest stop, ms':>18}{'in all, s':>11}   the call")
    for name, results in taken.items():
        stop = min(one[0] for one in results) * 1000
        worst = max(worst, stop)
        print(f"{name:38}{stop:18.1f}{min(one[1] for one in results):11.2f}   {results[0][2]}")
    seconds, grown, said = min([await burst() for _ in range(3)])
    print(f"\na gzip bomb: {seconds:.2f} s, {grown:.0f} MB; {said}")
    passed = worst <= limit and seconds < 1 and grown < 100 and said != "it was read"
    print(f"\n{'passed' if passed else 'FAILED'}: the longest stop is {worst:.1f} ms, the limit {limit:.0f} ms")
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=50, help="ms that the event loop may stand still")
    options = parser.parse_args()
    return asyncio.run(run(options.rounds, options.limit))


if __name__ == "__main__":
    sys.exit(main())
