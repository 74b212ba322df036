"""The three transports, each over our own process, lines, HTTP faults and ledger.

A transport here is an async context manager that yields the pair of streams that the SDK's dispatcher wants. `Line` carries
what the pair cannot say: that the other end is gone, and why.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import anyio
import httpx2
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from toolbay._aio import clock
from toolbay.config.models import TransportType
from toolbay.errors import ConnectionLost, HandshakeFailed, ServerError, ToolbayError
from toolbay.net import http
from toolbay.types import Json
from toolbay.upstream.authorized import Authorized
from toolbay.upstream.boxes import LAST_BYTES, Inbox, Incoming, Outbox
from toolbay.upstream.engine import Opening
from toolbay.upstream.faults import Faults
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.lines import Lines, LineTooLong, Ring
from toolbay.upstream.messages import meant_for, message
from toolbay.upstream.process import Child
from toolbay.upstream.sse import Streams as Sse
from toolbay.upstream.streamable import Streams as Streamable
from toolbay.upstream.streams import UNREADABLE
from toolbay.upstream.subscription import LISTEN

Streams: TypeAlias = tuple[Any, Any]
"""What the SDK calls a transport's streams: messages in, messages out."""

NOISE_LIMIT = 1 << 20
"""Bytes of text that a child may write before its first message: banners have some hundred. What writes more is no server."""

_log = logging.getLogger("toolbay.upstream")


@dataclass(slots=True)
class Line:
    """The fact that the other end is gone, and why."""

    died: anyio.Event = field(default_factory=anyio.Event)
    reason: ToolbayError | None = None
    heard: float = float("-inf")
    """When the last message came."""

    def dead(self, reason: ToolbayError | None) -> None:
        if self.reason is None:
            self.reason = reason
        self.died.set()


class Stray:
    """What a child writes that is no message: kept, told once, and the end where it is all that it writes (TRA-7)."""

    def __init__(self, opening: Opening) -> None:
        self._ring = Ring(safe=opening.safe)
        self._on_first = opening.on_stray
        self._size = 0
        self.spoken = False
        """Whether a message came: from then on, any amount is passed over."""
        opening.diagnostics.stray = lambda: self._ring.lines

    def add(self, text: bytes) -> None:
        """Take one line.

        Raises:
            HandshakeFailed: it is too much, and no message came before it.
        """
        self._ring.add(text)
        if not self._size:
            self._on_first(text.decode("utf-8", "replace"))
        self._size += len(text)
        if not self.spoken and self._size > NOISE_LIMIT:
            raise HandshakeFailed("what it writes is no MCP but other text: check `command` and `args`", retriable=False)


class _Around:
    """A stream around another one. What passes is the business of those who are made of it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def receive(self) -> Incoming:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Watched(_Around):
    """A read stream that says when it ends, and notes which requests were answered.

    Without it nobody is told of a dead server: the SDK fails the calls with a code that servers may use as well.
    """

    def __init__(self, inner: Any, ledger: Ledger, line: Line, opening: Opening) -> None:
        super().__init__(inner)
        self._ledger = ledger
        self._line = line
        self._opening = opening

    async def receive(self) -> Incoming:
        try:
            item: Incoming = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._line.dead(None)
            raise
        self._line.heard = clock()
        if isinstance(item, SessionMessage) and isinstance(item.message, (JSONRPCResponse, JSONRPCError)):
            # The SDK takes "7" for 7, as other clients do; what it hands to a caller must count as an answer here too.
            given = item.message.id
            asked = self._ledger.answered(coerce_request_id(given) if isinstance(given, str) else given)
            if not asked and not str(given).startswith(LISTEN):
                self._opening.diagnostics.unasked += 1
                _log.debug("%s: an answer that nobody waits for was dropped: it came too late, twice, or unasked", self._opening.name)
        return item


class Overheard(_Around):
    """One of a transport's streams, with each message told to who looks for a fault."""

    def __init__(self, inner: Any, told: Callable[[bool, Json], None]) -> None:
        super().__init__(inner)
        self._told = told

    async def receive(self) -> Incoming:
        item: Incoming = await self._inner.receive()
        self._tell(item, ours=False)
        return item

    async def send(self, item: SessionMessage, /) -> None:
        self._tell(item, ours=True)
        await self._inner.send(item)

    def _tell(self, item: Incoming, *, ours: bool) -> None:
        if isinstance(item, SessionMessage):
            self._told(ours, item.message.model_dump(mode="json", by_alias=True, exclude_unset=True))


@asynccontextmanager
async def connect(opening: Opening, child: Child | None, ledger: Ledger, line: Line) -> AsyncGenerator[Streams]:
    """The streams of the server's transport. For stdio the child is already running and is not ended here."""
    config = opening.config
    opening.diagnostics.heard = lambda: line.heard
    if child is not None:
        opened = _over_pipes(child, opening, ledger, line)
    elif config.type is TransportType.SSE:
        opened = _over_sse(opening, ledger, line)
    else:
        opened = _over_http(opening, ledger, line)
    async with opened as (read, write):
        watched = Watched(read, ledger, line, opening)
        notes = opening.diagnostics.on_message
        yield (watched, write) if notes is None else (Overheard(watched, notes), Overheard(write, notes))


@asynccontextmanager
async def _over_http(opening: Opening, ledger: Ledger, line: Line) -> AsyncGenerator[Streams]:
    async with (
        _client(opening, ledger, line, wakes=False) as client,
        Streamable(
            client=client, url=opening.config.url, ledger=ledger, gone=line.died.is_set, on_gone=line.dead, on_gap=opening.on_gap
        ).open() as streams,
    ):
        yield streams


@asynccontextmanager
async def _over_sse(opening: Opening, ledger: Ledger, line: Line) -> AsyncGenerator[Streams]:
    async with (
        _client(opening, ledger, line, wakes=True) as client,
        Sse(client=client, ledger=ledger, on_dead=line.dead, safe=opening.safe).open(opening.config.url) as streams,
    ):
        yield streams


@asynccontextmanager
async def _client(opening: Opening, ledger: Ledger, line: Line, *, wakes: bool) -> AsyncGenerator[httpx2.AsyncClient]:
    """The client of one session; `wakes` as of `Faults`. Raises BlockedAddress for a URL that is refused whatever it resolves to."""
    config, credentials = opening.config, opening.credentials
    policy = http.policy_for(config.url, whitelist=config.ssrf_whitelist, fake_ip=config.fake_ip)

    def wrap(inner: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
        if credentials is not None:
            inner = Authorized(inner, credentials, home=http.target(config.url), ledger=ledger)
        return Faults(inner, ledger, on_dead=line.dead, wakes=wakes, safe=opening.safe)

    async with AsyncExitStack() as stack:
        if credentials is not None:
            await stack.enter_async_context(credentials.at_work())
        yield await stack.enter_async_context(http.client(headers=config.headers, wrap=wrap, policy=policy))


@asynccontextmanager
async def _over_pipes(child: Child, opening: Opening, ledger: Ledger, line: Line) -> AsyncGenerator[Streams]:
    child.stderr.safe = opening.safe
    stray = Stray(opening)
    inbox, outbox = Inbox(), Outbox(child, ledger, line.dead)
    async with anyio.create_task_group() as group:
        group.start_soon(_read_lines, child, inbox, stray, ledger, line, name=f"{opening.name}: read")
        group.start_soon(outbox.run, name=f"{opening.name}: write")
        yield inbox, outbox
        group.cancel_scope.cancel()


async def _read_lines(child: Child, inbox: Inbox, stray: Stray, ledger: Ledger, line: Line) -> None:
    lines = Lines()
    reason: ToolbayError | None = None
    try:
        async with anyio.create_task_group() as group:

            async def end_with_child() -> None:
                await child.exited.wait()
                await anyio.sleep(LAST_BYTES)
                group.cancel_scope.cancel()

            group.start_soon(end_with_child, name="end with the child")
            try:
                while True:
                    for text in lines.feed(await child.receive()):
                        if (found := await message(text)) is None:
                            stray.add(text)
                            ledger.failed(meant_for(text), ServerError(UNREADABLE, ran=True))
                        else:
                            stray.spoken = True
                            await inbox.put(SessionMessage(found))
            except HandshakeFailed as error:
                reason = error
            except LineTooLong as error:
                reason = ConnectionLost(f"its output cannot be followed: {error}")
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                pass
            with anyio.move_on_after(0.2):
                # The exit code is known a moment after the output ended; messages are better for it.
                await child.exited.wait()
            group.cancel_scope.cancel()
    finally:
        inbox.end()
        line.dead(reason or ConnectionLost(child.describe_end()))
