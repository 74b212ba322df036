"""An HTTP+SSE server (2024-11-05) on bare sockets that does the wrong thing it is told to, in the test's own loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from servers.raw_http import Request, Step
from support.processes import eventually
from toolbay.types import Json


class RawSse:
    """The server. Its attributes say what it does wrong and what it has seen."""

    def __init__(self) -> None:
        self.port = 0
        self.endpoint = "/messages?session=1"
        self.get: tuple[int, Mapping[str, str]] = (200, {"Content-Type": "text/event-stream"})
        self.redirect = ""
        """Where requests to /old are sent on to."""
        self.status: dict[str, int] = {}
        """The status that posts of a method are answered with, 202 otherwise."""
        self.events: dict[str, str] = {}
        """By tool: the event that comes in the place of an answer; `%d` is the id."""
        self.silent = ""
        """A method whose posts are not answered until `gate` is set."""
        self.gate = asyncio.Event()
        self.held = 0
        """Posts that wait for it, and whose client is still there."""
        self.door: Callable[[Request], Awaitable[Step | None]] | None = None
        """As of `RawHttp`."""
        self.posts: list[Json] = []
        self.effects: Counter[str] = Counter()
        """Calls that were carried out, by tool."""
        self.streams: set[asyncio.StreamWriter] = set()
        self.opened = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def methods(self) -> list[str]:
        return [post["method"] for post in self.posts]

    @property
    def url(self) -> str:
        return self.at("127.0.0.1")

    def at(self, host: str) -> str:
        """Its address under another name."""
        return f"http://{host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                refusal = self.door and await self.door(Request(method=method, target=path, headers=headers, body=body))
                if refusal is not None:
                    answer(writer, refusal.status, refusal.headers, refusal.body)
                elif path == "/old":
                    answer(writer, 307, {"Location": self.redirect})
                elif method == "GET":
                    self.stream(writer)
                else:
                    message = json.loads(body)
                    if message["method"] == self.silent:
                        await self.hold(reader)
                    await self.post(writer, message)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.streams.discard(writer)
            self._writers.discard(writer)
            writer.transport.abort()

    async def hold(self, reader: asyncio.StreamReader) -> None:
        """Until the gate opens, or the client leaves."""
        self.held += 1
        waits = [asyncio.ensure_future(self.gate.wait()), asyncio.ensure_future(reader.read(1))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.held -= 1
            for wait in waits:
                wait.cancel()

    def stream(self, writer: asyncio.StreamWriter) -> None:
        status, headers = self.get
        if status != 200 or "event-stream" not in headers.get("Content-Type", ""):
            answer(writer, status, headers)
            return
        self.opened += 1
        self.streams.add(writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
        if self.endpoint:
            writer.write(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())

    async def post(self, writer: asyncio.StreamWriter, message: Json) -> None:
        # Later than whatever was posted after it, unless the client waits.
        await asyncio.sleep(0.05 if "id" not in message else 0)
        self.posts.append(message)
        status = self.status.get(message["method"], 202)
        answer(writer, status, {}, b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}' if status >= 400 else b"Accepted")
        if "id" not in message or status >= 300:
            return
        name = (message.get("params") or {}).get("name", "")
        if message["method"] == "tools/call":
            self.effects[name] += 1
        if name in self.events:
            self.say(self.events[name].replace("%d", str(message["id"])))
            return
        info = {"name": "raw-sse", "version": "1"}
        results: dict[str, Json] = {
            "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info},
            "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "note")]},
        }
        text = str((message.get("params") or {}).get("arguments", {}).get("text", ""))
        result = results.get(message["method"], {"content": [{"type": "text", "text": text}]})
        self.say("data: " + json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def say(self, event: str) -> None:
        for stream in self.streams:
            stream.write(f"{event}\n\n".encode())

    def cut(self) -> None:
        for stream in tuple(self.streams):
            stream.transport.abort()
        self.streams.clear()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[RawSse]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await server.wait_closed()
            await eventually(lambda: not self._writers, "the end of all connections")


def answer(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
