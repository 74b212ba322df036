"""A program that uses Toolbay and can be killed: `python holding.py PIDS HOW...`. It holds one hostile server and says `ready`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio

from toolbay.config.models import ServerConfig, TransportType
from toolbay.upstream.launch import prepare
from toolbay.upstream.process import spawn

HOSTILE = Path(__file__).with_name("hostile.py")


async def main() -> None:
    args = ("-IS", str(HOSTILE), *sys.argv[1:], "--", "ignores")
    async with spawn(prepare(ServerConfig(type=TransportType.STDIO, command=sys.executable, args=args))) as child:
        print((await child.receive()).decode(), end="", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    # A shell starts what runs in its background with Ctrl-C ignored, and the whole test run hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    anyio.run(main)
