"""One client of the shared harness visits servers, in its own environment: it does one task and prints what it cost, as JSON.

    PYTHON visit.py HARNESS CLIENT TASK ARGUMENTS        (started by bench/doors.py)

`line`: one result of so many bytes. `steady`: calls one after another, and how many connections the server saw. `beside`: calls to a
healthy server while others do not answer.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

SLOW = "slow.invalid"
"""A name whose resolution takes `SLOW_SECONDS`, and finds nothing."""
SLOW_SECONDS = 3.0
PATIENCE = 15.0
"""Seconds in which the healthy server must answer for the first time."""
TEXT = "hello world " * 8
_getaddrinfo = socket.getaddrinfo


def slow_getaddrinfo(host: Any, *more: Any, **named: Any) -> Any:
    """What a program sees of a name server that does not answer: the call blocks its thread."""
    if host in (SLOW, SLOW.encode()):
        time.sleep(SLOW_SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _getaddrinfo(host, *more, **named)


async def line(client: Any, servers: Mapping[str, Any], size: int) -> dict[str, float]:
    await client.connect(servers)
    await client.list_tools()
    name = next(iter(servers))
    await client.call(name, "echo", {"text": "x"})
    wall, cpu = time.perf_counter(), time.process_time()
    result = await client.call(name, "big_text", {"size": size})
    taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    if client.is_error(result):
        raise RuntimeError(client.text(result)[:200])
    return taken


async def steady(client: Any, servers: Mapping[str, Any], count: int) -> dict[str, float]:
    await client.connect(servers)
    await client.list_tools()
    name = next(iter(servers))
    for _ in range(20):
        await client.call(name, "echo", {"text": TEXT})
    before = await connections(client, name)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        await client.call(name, "echo", {"text": TEXT})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    opened = await connections(client, name) - before
    return {"wall": wall / count, "cpu": cpu / count, "connections": opened / count}


async def connections(client: Any, name: str) -> int:
    """What the server counted until now."""
    result = await client.call(name, "info", {})
    said = client.text(result)
    return int(json.loads(said[said.index("{") : said.rindex("}") + 1])["connections"])


async def beside(client: Any, servers: Mapping[str, Any], others: Any, count: int) -> dict[str, Any]:
    """`others` is None where the client connects all servers by itself; otherwise one more client, which gets those that are ill."""
    socket.getaddrinfo = slow_getaddrinfo
    name = next(iter(servers))
    began = time.perf_counter()
    if others is None:
        connecting = [asyncio.create_task(client.connect(servers))]
    else:
        healthy = {name: servers[name]}
        ill = {other: server for other, server in servers.items() if other != name}
        connecting = [asyncio.create_task(client.connect(healthy)), asyncio.create_task(others.connect(ill))]
    longest, ticking = [0.0], None
    try:
        async with asyncio.timeout(PATIENCE):
            while not await answers(client, name):  # noqa: ASYNC110 - nothing of another client says when it is there
                await asyncio.sleep(0.01)
        first = time.perf_counter() - began
        ticking = asyncio.create_task(tick(longest))
        latencies: list[float] = []
        for _ in range(count):
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            await client.call(name, "echo", {"text": TEXT})
            latencies.append(time.perf_counter() - started)
    except TimeoutError:
        return {"first": None}
    finally:
        for task in [*connecting, *([ticking] if ticking else [])]:
            task.cancel()
    return {"first": first, "latencies": latencies, "stop": longest[0]}


async def answers(client: Any, name: str) -> bool:
    try:
        await client.list_tools()
        return TEXT in client.text(await client.call(name, "echo", {"text": TEXT}))
    except Exception:
        # A client that is not there yet says so in its own way.
        return False


async def tick(longest: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest[0], last = max(longest[0], now - last - 0.001), now


async def main() -> None:
    _, harness, name, task, given = sys.argv
    sys.path.insert(0, harness)
    load = importlib.import_module("adapters").load
    asked = json.loads(given)
    client, servers = load(name, {}), asked["servers"]
    if task == "beside":
        # The raw SDK has no way with several servers: each gets a client of its own.
        done = await beside(client, servers, load(name, {}) if name.startswith("sdk") else None, asked["count"])
    else:
        done = await (line if task == "line" else steady)(client, servers, asked["count"])
    print("DONE " + json.dumps(done), flush=True)
    if task != "beside":
        await asyncio.wait_for(client.close(), 15)


if __name__ == "__main__":
    asyncio.new_event_loop().run_until_complete(main())
    os._exit(0)  # some clients leave tasks and threads that never end
