"""Bodies of answers: bounded, unpacked in small pieces, and read to their end before the connection is let go.

An answer as an event stream ends a moment after its last event. Who hangs up at the event loses the connection, and pays for a
new one with the next call.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, Self

import anyio
import anyio.lowlevel
import httpx2

from toolbay.errors import ServerError
from toolbay.net.dial import TAIL, Wire

LEFTOVER_BYTES = 64 * 1024
"""What is still read of a body that its reader has let go."""
LEFTOVER_SECONDS = 0.1
"""How long for."""
BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a body, unpacked; readers have smaller limits of their own. Event streams have none, their events do."""
PIECE = 64 * 1024
FREE = 32 * 1024 * 1024
"""Unpacked bytes from which the ratio counts: a page of the same letter packs well and is harmless."""
RATIO = 100
"""How many times its packed size a large body may have. Gzip's utmost is 1,030."""


class Source(Protocol):
    """What an HTTP library gives as a body."""

    def __aiter__(self) -> AsyncGenerator[bytes]: ...

    async def aclose(self) -> None: ...


class Door:
    """Bodies of one origin that are just being read to their end: the next request waits for them and gets their connection."""

    def __init__(self) -> None:
        self._leaving: set[anyio.Event] = set()
        self._patient = True

    async def wait(self) -> None:
        """Wait for bodies on their way out, unless this origin is known for not ending them."""
        for event in tuple(self._leaving) if self._patient else ():
            await event.wait()

    def leave(self) -> anyio.Event:
        event = anyio.Event()
        self._leaving.add(event)
        return event

    def left(self, event: anyio.Event, *, ended: bool) -> None:
        self._leaving.discard(event)
        self._patient = ended
        event.set()


class Body(httpx2.AsyncByteStream):
    """A body as it comes. No generator: it is read on after its reader has gone."""

    def __init__(self, inner: Source, door: Door, translated: AbstractContextManager[None], *, wire: Wire | None, chunked: bool) -> None:
        """`wire` is the connection that it comes on, `chunked` how its end is told there."""
        self._inner = inner
        self._wire = wire
        self._chunked = chunked
        self._ended = False
        self._last = b""
        self._parts = aiter(inner)
        self._door = door
        self._translated = translated
        self._over = self._reading = self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        self._reading = True
        try:
            with self._translated:
                self._last = await anext(self._parts)
        except BaseException as end:  # StopAsyncIteration and CancelledError as well: there is nothing more to come
            self._over = True
            self._ended = isinstance(end, StopAsyncIteration)
            raise
        finally:
            self._reading = False
        return self._last

    def abandon(self) -> None:
        """Nothing more is wanted of it: closing will close the connection."""
        self._over = True

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ended and not self._says_more():
            await self._inner.aclose()  # all has come; the library lets no cancellation in between
            return
        try:
            if not self._over and not self._reading:
                await self._read_leftover()
        finally:
            with anyio.CancelScope(shield=True):
                if not self._reading:
                    await self._parts.aclose()
                if self._ended and self._says_more() and self._wire is not None:
                    await self._wire.aclose()  # the next answer on it would begin with the rest of this one
                await self._inner.aclose()

    def _says_more(self) -> bool:
        """Whether more came than the whole body, as from servers that count their `Content-Length` in characters."""
        end = b"\r\n" if self._chunked or not self._last else self._last[-TAIL:]
        return self._wire is not None and not self._wire.last.endswith(end)

    async def _read_leftover(self) -> None:
        event = self._door.leave()
        ended = False
        try:
            with anyio.move_on_after(LEFTOVER_SECONDS):
                room = LEFTOVER_BYTES
                async for part in self:
                    room -= len(part)
                    if room < 0:
                        return
                ended = True
        except httpx2.TransportError:
            pass  # its reader has what it wanted
        finally:
            self._door.left(event, ended=ended)


class Bounded(httpx2.AsyncByteStream):
    """A body of at most `limit` bytes (None: no end), unpacked if it is packed. Raises httpx2.RemoteProtocolError from ServerError."""

    def __init__(self, inner: Body, where: str, *, limit: int | None, packed: bool) -> None:
        self._inner = inner
        self._where = where
        self._limit = limit
        self._inflater = _Inflater() if packed else None
        self._pieces: Iterator[bytes] = iter(())
        self._given = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._next() if self._inflater is None else await self._unpacked(self._inflater)
        except _BadPackingError as error:
            failure = self._refused(str(error))
            raise failure from failure.__cause__
        self._given += len(piece)
        if self._limit is not None and self._given > self._limit:
            raise self._refused(f"more than {self._limit // 2**20} MB")
        return piece

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _next(self) -> bytes:
        return await anext(self._inner)

    async def _unpacked(self, inflater: _Inflater) -> bytes:
        while (piece := next(self._pieces, None)) is None:
            try:
                packed = await anext(self._inner)
            except StopAsyncIteration:
                inflater.finish()
                raise
            self._pieces = inflater.feed(packed)
        # A few bytes unpack to many pieces: others have their turn between them.
        await anyio.lowlevel.checkpoint()
        return piece

    def _refused(self, what: str) -> httpx2.RemoteProtocolError:
        self._inner.abandon()
        return refused(f"{self._where} answered with {what}, which is not read on; the request has been carried out")


class Nothing(httpx2.AsyncByteStream):
    """No body, in the place of one that cannot be read."""

    def __init__(self, inner: Body) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        return
        yield b""

    async def aclose(self) -> None:
        await self._inner.aclose()


def refused(text: str) -> httpx2.RemoteProtocolError:
    """An answer that is against our limits; the cause says it in words that can be shown."""
    error = httpx2.RemoteProtocolError(text)
    error.__cause__ = ServerError(text)
    return error


class _BadPackingError(Exception):
    pass


class _Inflater:
    """Gzip (RFC 1952), with several members one after another, in pieces."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._fed = self._given = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._fed += len(data)
        piece = b""
        # A full piece may have left something behind inside even where all of the data is taken.
        while data or len(piece) == PIECE:
            if self._member.eof:
                if not data.startswith(b"\x1f"):
                    return  # padding, which gzip allows
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                piece = self._member.decompress(data, PIECE)
            except zlib.error:
                raise _BadPackingError("a body that is not the gzip it is said to be") from None
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self._given += len(piece)
            if self._given > FREE and self._given > RATIO * self._fed:
                raise _BadPackingError(f"{self._fed // 1000:,} kB that unpack to more than {FREE // 2**20} MB")
            if piece:
                yield piece

    def finish(self) -> None:
        if self._fed and not self._member.eof:
            raise _BadPackingError("a packed body that ends in the middle")
