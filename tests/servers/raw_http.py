"""A streamable HTTP server on bare sockets that does exactly the wrong thing it is told to, request by request.

It runs in the test's own loop, so that a test can script it and look into it: `async with RawHttp() as server`. It speaks
the legacy era (initialize, sessions) or the one of 2026-07-28 (server/discover); tools/call runs a `Step` of `server.steps`
for its tool, in order, the last one for ever; without any it answers the tool's arguments.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from support.toxics import reset

Json = dict[str, Any]
Piece: TypeAlias = bytes | float | Literal["close", "reset", "silence"]
"""Bytes that are sent, seconds that pass, or how it ends; after the last piece the connection is kept."""
Wire: TypeAlias = Callable[[bytes], Iterable[Piece]]
"""An answer byte by byte, made of the JSON-RPC reply that would have been right."""
MODERN = "2026-07-28"
LEGACY = "2025-11-25"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One answer. `effect`: the call takes effect before the answer goes wrong."""

    kind: Literal["json", "sse", "status", "raw", "reset", "truncate", "sse_cut", "silence"] = "json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    effect: bool = False
    event_id: str = ""
    """sse_cut: the id of an event before the cut, from which a client may go on."""
    error: Json | None = None
    """A JSON-RPC error in place of the result."""
    wait: bool = False
    """Wait for `server.gate` before answering."""
    wire: Wire | None = None
    """Everything after the request, in the place of what `kind` says."""
    kept: bool = False
    """sse_cut: the answer can be had after `event_id`, as it should be."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request as it came. `headers` by their names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Sockets:
    """An HTTP server whose answers are `Step`s; what it answers is its subclass's."""

    def __init__(self, *, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.host = host
        self.tls = tls
        self.methods: Counter[str] = Counter()
        self.connections = 0
        self.open = 0
        self.answering = 0
        """Requests that are not answered to the end, GET streams among them."""
        self.handshake = b""
        """What a plain server says to who comes with TLS."""
        self.sse = False
        """Whether plain answers come as an event stream."""
        self.steps: dict[str, list[Step]] = {}
        """By what is asked: see the subclass. They come in order, the last one for ever."""
        self.gate = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}

    def at(self, host: str) -> str:
        """Its origin under another name."""
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"

    def hang_up(self) -> None:
        """Close all connections, as servers do with those that were idle for long."""
        for writer in tuple(self._writers):
            writer.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a killed process: the port and all connections are gone at once."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers[writer] = reader
        self.connections += 1
        self.open += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            pass  # this server is being stopped; the stream protocol would report a cancelled task as a mistake
        finally:
            self.open -= 1
            self._writers.pop(writer, None)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readexactly(1)
        if first == b"\x16":  # a TLS handshake
            if self.handshake:
                return await self._play(writer, [self.handshake, "close"])
            return await self._send(writer, Step(kind="status", status=400, headers={"Connection": "close"}))
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.methods[method] += 1
        self.answering += 1
        try:
            return await self._respond(reader, writer, Request(method=method, target=target, headers=headers, body=body))
        finally:
            self.answering -= 1

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> bool:
        """Answer it; whether the connection is kept."""
        raise NotImplementedError

    def _next(self, key: str) -> Step | None:
        planned = self.steps.get(key, [])
        return (planned.pop(0) if len(planned) > 1 else planned[0]) if planned else None

    async def _send(
        self, writer: asyncio.StreamWriter, step: Step, reply: Json | None = None, extra: Mapping[str, str] | None = None
    ) -> bool:
        payload = json.dumps(reply or {}).encode()
        headers = {**(extra or {}), **step.headers}
        if step.wire is not None:
            return await self._play(writer, step.wire(payload))
        if step.kind in ("silence", "reset"):
            return await self._play(writer, [step.kind])
        if step.kind == "sse" or (step.kind == "json" and self.sse and step.status == 200):
            return await self._events(writer, reply or {}, headers)
        if step.kind == "sse_cut":
            self._start(writer, 200, {"Content-Type": "text/event-stream", "Connection": "close", **headers})
            writer.write(f"id: {step.event_id}\nretry: 10\ndata:\n\n".encode() if step.event_id else b": a comment\n\n")
            await writer.drain()
            return False
        if step.kind == "truncate":
            self._start(writer, 200, {"Content-Type": "application/json", "Content-Length": str(len(payload) + 100), **headers})
            writer.write(payload[: len(payload) // 2])
            await writer.drain()
            return False
        if step.kind == "json":
            headers = {"Content-Type": "application/json", **headers}
        body = payload if step.kind == "json" else step.body
        self._start(writer, step.status, {"Content-Length": str(len(body)), **headers})
        writer.write(body)
        await writer.drain()
        return True

    async def _play(self, writer: asyncio.StreamWriter, pieces: Iterable[Piece]) -> bool:
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            elif isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                if piece == "silence":
                    await self._writers[writer].read()  # until the client leaves
                elif piece == "reset":
                    reset(writer)
                else:
                    writer.close()
                return False
        return True

    async def _events(self, writer: asyncio.StreamWriter, reply: Json, headers: Mapping[str, str] | None = None) -> bool:
        self._start(writer, 200, {"Content-Type": "text/event-stream", "Connection": "close", **(headers or {})})
        writer.write(f"event: message\ndata: {json.dumps(reply)}\n\n".encode())
        await writer.drain()
        return False

    def _start(self, writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


class RawHttp(Sockets):
    """The server. What it has seen is in its attributes. `steps`: by tool; by method of the protocol, or of HTTP (GET, DELETE), for
    everything else."""

    def __init__(
        self,
        *,
        era: Literal["legacy", "modern"] = "legacy",
        sse: bool = False,
        session: bool = True,
        port: int = 0,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port=port, host=host, tls=tls)
        self.era = era
        self.sse = sse
        self.session = session
        self.token = ""
        """The bearer token that every request must bring, if there is one."""
        self.denied = 0
        """Requests without it."""
        self.door: Callable[[Request], Awaitable[Step | None]] | None = None
        """Who answers a request before all else, if it is not let through (None): see `RawOAuth.protect`."""
        self.effects: Counter[str] = Counter()
        self.posts: list[Json] = []
        self.headers: list[Mapping[str, str]] = []
        self.sessions = 0
        self.valid: set[str] = set()
        self.resumed: dict[str, Json] = {}
        """Answers that a client gets when it resumes after an event id."""
        self.capabilities: Json = {"tools": {}}
        self._listening: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return self.at("127.0.0.1")

    def at(self, host: str) -> str:
        """Its address under another name."""
        return f"{super().at(host)}/mcp"

    @property
    def listeners(self) -> int:
        """GET streams that are open."""
        return len(self._listening)

    def announce(self, method: str = "notifications/tools/list_changed") -> None:
        """A notification to all who listen."""
        for writer in self._listening:
            writer.write(f"data: {json.dumps({'jsonrpc': '2.0', 'method': method})}\n\n".encode())

    @property
    def entry(self) -> Json:
        return {"type": "streamableHttp", "url": self.url, "ssrfWhitelist": ["127.0.0.0/8"]}

    @property
    def cancelled(self) -> list[Any]:
        return [post["params"]["requestId"] for post in self.posts if post.get("method") == "notifications/cancelled"]

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> bool:
        method, headers = request.method, request.headers
        if self.door is not None and (refusal := await self.door(request)) is not None:
            return await self._send(writer, refusal)
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            self.denied += 1
            challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return await self._send(writer, Step(kind="status", status=401, headers=challenge))
        given = headers.get("mcp-session-id")
        if given is not None and given not in self.valid:
            return await self._send(writer, Step(kind="status", status=404, body=b"no such session"))
        if method == "GET":
            return await self._stream(reader, writer, headers)
        if method != "POST":
            if method == "DELETE":
                self.valid.discard(given or "")
            return await self._send(writer, self._next(method) or Step(kind="status", status=200))
        message = json.loads(request.body)
        self.posts.append(message)
        self.headers.append(headers)
        if "id" not in message or "method" not in message:
            return await self._send(writer, Step(kind="status", status=202))
        return await self._answer(writer, message)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str]) -> bool:
        last = headers.get("last-event-id", "")
        if last in self.resumed:
            return await self._events(writer, self.resumed[last])
        planned = self._next("GET")
        if planned is not None and planned.kind != "json":
            return await self._send(writer, planned)
        if last or not self.session:
            return await self._send(writer, Step(kind="status", status=405))
        self._start(writer, 200, {"Content-Type": "text/event-stream", "Connection": "close"})
        await writer.drain()
        self._listening.add(writer)
        try:
            await reader.read()  # until the client leaves
        finally:
            self._listening.discard(writer)
        return False

    async def _answer(self, writer: asyncio.StreamWriter, message: Json) -> bool:
        method, params = message["method"], message.get("params") or {}
        key = params.get("name", "") if method == "tools/call" else method
        step = self._next(key) or Step(effect=method == "tools/call")
        if step.effect:
            self.effects[key] += 1
        if step.wait:
            await self.gate.wait()
        reply = self._result(message["id"], method, params)
        if step.kept:
            self.resumed[step.event_id] = reply
        if step.error is not None:
            reply = {"jsonrpc": "2.0", "id": message["id"], "error": step.error}
        extra: dict[str, str] = {}
        if method == "initialize" and self.session:
            self.sessions += 1
            extra["Mcp-Session-Id"] = f"session-{self.sessions}"
            self.valid.add(extra["Mcp-Session-Id"])
        return await self._send(writer, step, reply, extra)

    def _result(self, message_id: Any, method: str, params: Json) -> Json:
        info = {"name": "raw-http", "version": "1"}
        known = self.capabilities
        if method == "initialize" and self.era == "legacy":
            result: Json = {"protocolVersion": LEGACY, "capabilities": known, "serverInfo": info}
        elif method == "server/discover" and self.era == "modern":
            meta = {"io.modelcontextprotocol/serverInfo": info}
            result = {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": known, "_meta": meta}
        elif method == "tools/list":
            names = sorted({"echo", "note", *(name for name in self.steps if "/" not in name and not name.isupper())})
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name == "echo"}} for name in names]
            result = {"resultType": "complete", "tools": tools}
        elif method == "tools/call":
            text = str(params.get("arguments", {}).get("text", ""))
            result = {"resultType": "complete", "content": [{"type": "text", "text": text}]}
        else:
            return {"jsonrpc": "2.0", "id": message_id, "error": {"code": -32601, "message": f"{method} is not known here"}}
        return {"jsonrpc": "2.0", "id": message_id, "result": result}
