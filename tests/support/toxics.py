"""A TCP proxy that spoils what passes through it: late, in crumbs, cut, reset, or swallowed. Each connection has an owner and an end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

Side = Literal["client", "server"]
PIECE = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Toxic:
    """What happens to the bytes of one direction. Counts begin, on each connection, when the toxic is set."""

    toward: Side = "client"
    latency: float = 0.0
    """Seconds before each piece."""
    slice: int = 0
    """Bytes of a piece at the most; 0: as they came. With `latency` it is a slow drip."""
    cut: int | None = None
    """After so many bytes the connection is closed, in good order."""
    reset: int | None = None
    """After so many bytes the connection is reset."""
    blackhole: bool = False
    """Everything is taken and nothing passed on."""

    @property
    def end(self) -> int | None:
        return self.cut if self.reset is None else self.reset


class Proxy:
    """A listening port on the loopback, and what it does to whatever goes through: `toxic` counts from the next byte on."""

    def __init__(self, host: str, target: int, toxic: Toxic) -> None:
        self.toxic = toxic
        self.port = 0
        self.connections = 0
        self.status = 0
        """If it is set, whoever connects must speak to it as to an HTTP proxy, and gets this status for CONNECT."""
        self.asked: list[str] = []
        """First lines of what was asked of it as an HTTP proxy."""
        self.target = (host, target)
        """Where it goes on to; connections that are there stay."""
        self._open: set[asyncio.StreamWriter] = set()

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}/mcp"

    def reset(self) -> None:
        """Reset all connections, now."""
        for writer in tuple(self._open):
            reset(writer)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.status and not await self._opened(reader, writer):
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection(*self.target)
        except OSError:
            reset(writer)
            return
        self._open |= {writer, back}
        try:
            async with anyio.create_task_group() as group:

                async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, toward: Side) -> None:
                    with contextlib.suppress(OSError):
                        if await self._pump(source, sink, toward):
                            sink.write_eof()
                            return
                    group.cancel_scope.cancel()

                group.start_soon(pump, reader, back, "server")
                group.start_soon(pump, there, writer, "client")
        finally:
            self._open -= {writer, back}
            writer.close()
            back.close()

    async def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        self.asked.append(head.split(b"\r\n")[0].decode())
        status = self.status if head.startswith(b"CONNECT") else 405
        length = "" if status == 200 else "Content-Length: 0\r\n"
        writer.write(f"HTTP/1.1 {status} Said\r\n{length}\r\n".encode())
        return status == 200

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, toward: Side) -> bool:
        """Pass everything on; False where a toxic has ended the connection."""
        counted, passed = self.toxic, 0
        while rest := await source.read(PIECE):
            while rest:
                toxic = self.toxic
                if toxic is not counted:
                    counted, passed = toxic, 0
                if toxic.toward != toward:
                    sink.write(rest)
                    await sink.drain()
                    break
                piece = rest[: toxic.slice or None]
                piece = piece if toxic.end is None else piece[: max(toxic.end - passed, 0)]
                await anyio.sleep(toxic.latency)
                if not toxic.blackhole:
                    sink.write(piece)
                    await sink.drain()
                passed += len(piece)
                if toxic.end is not None and passed >= toxic.end:
                    if toxic.reset is not None:
                        reset(sink)
                    return False
                rest = rest[len(piece) :]
        return True


@asynccontextmanager
async def proxied(target: int, toxic: Toxic | None = None, *, host: str = "127.0.0.1") -> AsyncGenerator[Proxy]:
    """A proxy in front of a port of this machine, until the block ends."""
    proxy = Proxy(host, target, toxic or Toxic())
    async with anyio.create_task_group() as group:

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            group.start_soon(proxy.carry, reader, writer, name="proxied")

        listener = await asyncio.start_server(accepted, "127.0.0.1", 0)
        proxy.port = listener.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            listener.close()
            group.cancel_scope.cancel()


@contextmanager
def swallowing(host: str = "127.0.0.1", port: int = 0) -> Generator[int]:
    """A port that never completes a connection: its queue is full, so that new ones are dropped as by a firewall (Linux)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket(family))
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: the other end gets an error at once, and what it had not read yet is lost."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
