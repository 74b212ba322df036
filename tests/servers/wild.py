"""A stdio server that uses its pipes as nobody should: standard library only. What a call does is the name of its tool.

big       answers with a text of `size` bytes, in one line
endless   writes a line that never ends
deaf      answers, and then reads nothing more; told on stderr
binary    writes `size` bytes to stderr that are no text and have no line ends, and answers
closes    closes stderr, and answers
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = ("big", "endless", "deaf", "binary", "closes", "echo")


def send(message_id: Any, result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message_id, "result": result}) + "\n")
    sys.stdout.flush()


def call(message_id: Any, name: str, given: dict[str, Any]) -> None:
    size = int(given.get("size", 0))
    if name == "endless":
        while True:
            os.write(1, b"x" * 65536)
    if name == "binary":
        for _ in range(size // 65536):
            os.write(2, b"\xff\x00\x1b[" * 16384)
    elif name == "closes":
        os.close(2)
    send(message_id, {"content": [{"type": "text", "text": "x" * size if name == "big" else f"{name} done"}]})
    if name == "deaf":
        os.write(2, b"deaf from now on\n")
        time.sleep(3600)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params") or {}
        if message.get("method") == "initialize":
            info = {"name": "wild", "version": "1"}
            send(message["id"], {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
        elif message.get("method") == "tools/list":
            send(message["id"], {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
        elif message.get("method") == "tools/call":
            call(message["id"], params["name"], params.get("arguments") or {})


if __name__ == "__main__":
    main()
