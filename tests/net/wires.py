"""What the network tests stand on: a resolver that follows a script, sockets that only take notes, a small HTTP server."""

# ruff: noqa: ASYNC109 - the signatures are httpcore2's
from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import httpcore2


class Script:
    """A resolver: the nth look-up of a name gets its nth answer, the last one for ever. Unknown names have none."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers: dict[str, Sequence[Sequence[str]]] = dict(answers)
        self.asked: list[str] = []

    def knows(self, host: str, *answers: Sequence[str]) -> Self:
        self.answers[host] = answers
        return self

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        del port
        turn = self.asked.count(host)
        self.asked.append(host)
        answers = self.answers.get(host, [[]])
        return answers[min(turn, len(answers) - 1)]


class Canned(httpcore2.AsyncNetworkStream):
    """A connection on which one answer lies ready."""

    def __init__(self, peer: tuple[str, int], answer: bytes) -> None:
        self.peer = peer
        self.answer = answer
        self.pieces: list[bytes] = []

    @property
    def written(self) -> bytes:
        return b"".join(self.pieces)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        part, self.answer = self.answer[:max_bytes], self.answer[max_bytes:]
        return part

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.pieces.append(buffer)

    async def aclose(self) -> None:
        pass

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return self

    def get_extra_info(self, info: str) -> Any:
        return self.peer if info == "server_addr" else None


class Recorder(httpcore2.AsyncNetworkBackend):
    """Sockets that go nowhere. It notes what is dialled, and answers from `answers` or refuses the connection."""

    def __init__(self, *answers: bytes, peer: str = "") -> None:
        self.peer = peer
        """Who really answers, if it is not who was dialled."""
        self.dialled: list[tuple[str, int]] = []
        self.streams: list[Canned] = []
        self.answers = list(answers)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((host, port))
        if not self.answers:
            raise httpcore2.ConnectError("only a recorder")
        self.streams.append(Canned((self.peer or host, port), self.answers.pop(0)))
        return self.streams[-1]

    @property
    def hosts(self) -> list[str]:
        return [host for host, _ in self.dialled]


Handler = Callable[[str, dict[str, str], bytes, asyncio.StreamWriter], Awaitable[None]]
"""(request line, headers, body, where to write the answer)."""


class Small:
    """An HTTP/1.1 server on a loopback address; `handler` writes whole answers or parts of them."""

    def __init__(self, handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.host = host
        self.tls = tls
        self.port = 0
        self.connections = 0
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.names: list[str | None] = []
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        if self.tls is not None:
            self.tls.sni_callback = lambda _socket, name, _context: self.names.append(name)
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        serving = dict(self._serving)
        for writer in serving.values():
            writer.transport.abort()
        await asyncio.gather(*(task for task in serving if task), return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving[asyncio.current_task()] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append(first)
                self.headers.append(headers)
                await self.handler(first, headers, body, writer)
                await writer.drain()
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            del self._serving[asyncio.current_task()]
            writer.close()


def answer(body: bytes = b"ok", *headers: str, status: str = "200 OK") -> bytes:
    """One whole answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")).encode() + body


def always(response: bytes) -> Handler:
    async def handler(first: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response)

    return handler


def chunk(data: bytes) -> bytes:
    """A piece of a body of unknown length; of nothing: its end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
