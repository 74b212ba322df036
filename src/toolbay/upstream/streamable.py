"""Streamable HTTP, in both eras: each message is a post, its answer JSON or events; before 2026-07-28 also sessions, and a
stream to listen on.

Our own, since the SDK's gives up listening after two failures, keeps the streams of calls that nobody waits for any more, takes
the answer to another request for this one's, and closes as slowly as its server lets it. What the network and the status say
of a post is noted beneath, by `Faults`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import anyio.abc
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbay._redact import url as shown_url
from toolbay.errors import BadCall, BlockedAddress, HandshakeFailed, ServerError, ToolbayError
from toolbay.upstream.faults import ERROR_BODY_LIMIT, REPLY, WORKS_FOR, TooLarge, read, session_over
from toolbay.upstream.ledger import CANCELLED, Ledger
from toolbay.upstream.messages import as_message, encoded, meant_for
from toolbay.upstream.messages import message as message_in
from toolbay.upstream.streams import EVENT_LIMIT, EVENT_STREAM, INITIALIZED, TELL_PATIENCE, UNREADABLE, events, kind, sent

SESSION_ID = "mcp-session-id"
LAST_EVENT_ID = "last-event-id"
ACCEPTED = f"application/json, {EVENT_STREAM}"
RESUMPTIONS = 3
"""Attempts in a row to take up a stream again that brought nothing new."""
FIRST_DELAY, LAST_DELAY, LEAST_DELAY = 1.0, 60.0, 0.1
"""Seconds before a stream that ended is asked for again, doubling where it brings nothing; a server may name others from 0.1 on."""
GOODBYE = 2.0
"""Seconds that telling a server of a session's end may take."""
STABLE = 10.0
"""Seconds after which a stream that ended was a good one, though nothing came on it."""
FOR_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same may be asked again."""

_log = logging.getLogger("toolbay.upstream")
_Incoming: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
_Deliver: TypeAlias = Callable[[JSONRPCResponse | JSONRPCError], Awaitable[None]]


@dataclass(slots=True)
class _Position:
    """How far an event stream was read, and how it may be taken up again."""

    last_id: str = ""
    retry: float | None = None
    """Seconds that the server asked to wait before."""
    barren: int = 0
    """Attempts in a row that brought nothing."""
    unreadable: bool = False
    """The last of its events was no message that can be read: if the stream ends with it in good order, it was the answer."""

    def see(self, event: httpx2.ServerSentEvent) -> None:
        self.last_id = event.id or self.last_id
        self.retry = self.retry if event.retry is None else min(event.retry, LAST_DELAY * 1000) / 1000  # it may be any number
        self.barren = 0
        self.unreadable = False

    @property
    def delay(self) -> float:
        doubled = FIRST_DELAY * 2 ** min(max(self.barren - 1, 0), 10)
        asked = FIRST_DELAY if self.retry is None else max(self.retry, LEAST_DELAY)
        return min(max(asked, doubled if self.barren > 1 else 0.0), LAST_DELAY)


@dataclass(kw_only=True, slots=True)
class Streams:
    """What one session works with."""

    client: httpx2.AsyncClient
    url: str
    ledger: Ledger
    gone: Callable[[], bool]
    """Whether the session is known to be over, so that nothing needs to be said to the server."""
    on_gone: Callable[[ToolbayError], None]
    """Called when the server says that there is no such session any more."""
    on_gap: Callable[[], None]
    """Called when the stream to listen on is there again, after it was lost with what was said meanwhile."""
    _session: str = ""
    _protocol: str = ""
    """The version that messages without a header of their own go under."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Any, Any]]:
        """Messages in, messages out. Nothing is sent before the first message."""
        incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()
        write, outgoing = anyio.create_memory_object_stream[SessionMessage]()
        try:
            async with incoming, messages, write, outgoing, anyio.create_task_group() as group:
                group.start_soon(self._write, outgoing, incoming, group, name="http: write")
                yield messages, write
                group.cancel_scope.cancel()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Tell the server that its session is over; whether it hears that is its own affair."""
        if not self._session or self.gone():
            return
        with anyio.move_on_after(GOODBYE):
            try:
                async with sent(self.client, "DELETE", self.url, headers=self._headers()) as response:
                    await read(response, ERROR_BODY_LIMIT)
            except (ToolbayError, httpx2.HTTPError, TooLarge) as error:
                _log.debug("the end of a session, told to %s: %s", shown_url(self.url), error)

    # -- what is sent -------------------------------------------------------------------------------------------------

    async def _write(self, outgoing: MemoryObjectReceiveStream[SessionMessage], incoming: _Incoming, group: anyio.abc.TaskGroup) -> None:
        async with outgoing:
            async for item in outgoing:
                message = item.message
                headers = self._stamped(item)
                try:
                    content = encoded(message)
                except BadCall as error:
                    self.ledger.failed(getattr(message, "id", None), error)
                    continue
                if isinstance(message, JSONRPCRequest):
                    group.start_soon(self._request, message, content, headers, incoming, name="http: request")
                    continue
                method = getattr(message, "method", "")
                if method == CANCELLED and self._protocol in MODERN_PROTOCOL_VERSIONS:
                    continue  # its stream is left as soon as its caller is gone, and that says it
                if self.ledger.takes_back(message):
                    continue
                if method != INITIALIZED:
                    group.start_soon(self._tell, content, headers, name="http: tell")
                    continue
                await self._tell(content, headers)
                if self._session:
                    group.start_soon(self._listen, incoming, name="http: listen")

    def _stamped(self, item: SessionMessage) -> dict[str, str]:
        """The headers of one message; the version in them holds for what follows without one."""
        message, metadata = item.message, item.metadata
        own = (metadata.headers if isinstance(metadata, ClientMessageMetadata) else None) or {}
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._session = self._protocol = ""  # what a probe was stamped with is no version yet
        self._protocol = own.get(MCP_PROTOCOL_VERSION_HEADER, self._protocol)
        return {**self._headers(), "Content-Type": "application/json", **own}

    def _headers(self, accept: str = ACCEPTED) -> dict[str, str]:
        known = {SESSION_ID: self._session, MCP_PROTOCOL_VERSION_HEADER: self._protocol}
        return {"Accept": accept, **{name: value for name, value in known.items() if value}}

    async def _tell(self, content: bytes, headers: dict[str, str]) -> None:
        """Post what has no answer."""
        try:
            with anyio.move_on_after(TELL_PATIENCE):
                async with sent(self.client, "POST", self.url, content=content, headers=headers) as response:
                    await read(response, ERROR_BODY_LIMIT)
        except (ToolbayError, httpx2.HTTPError, TooLarge) as error:
            _log.debug("a message to %s: %s", shown_url(self.url), error)

    async def _request(self, message: JSONRPCRequest, content: bytes, headers: dict[str, str], incoming: _Incoming) -> None:
        """Post a request and give its answer back: the server's, or an error where there will be none; why, stands in the ledger."""
        entry = self.ledger.get(message.id)

        async def deliver(answer: JSONRPCResponse | JSONRPCError) -> None:
            if entry is not None:
                entry.on_closed = None  # from here on the stream is only read to its end
            answer.id = message.id
            await incoming.send(SessionMessage(answer))

        with anyio.CancelScope() as scope:
            if entry is not None:
                entry.on_closed = scope.cancel
            try:
                if not await self._exchange(message, content, headers, (deliver, incoming)):
                    error = ErrorData(code=CONNECTION_CLOSED, message="there was no answer")
                    await deliver(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # nobody reads any more

    async def _exchange(self, message: JSONRPCRequest, content: bytes, headers: dict[str, str], to: tuple[_Deliver, _Incoming]) -> bool:
        """Whether an answer was delivered."""
        position = _Position()
        about = {WORKS_FOR: message.id}
        try:
            async with sent(self.client, "POST", self.url, content=content, headers=headers, extensions=about) as response:
                if message.method == "initialize":
                    self._session = self._session_of(response)
                if kind(response) == EVENT_STREAM:
                    done = await self._follow(response, message, position, to)
                else:
                    await to[0](self._whole(response))
                    done = True
            while not done and await self._may_resume(position):
                done = await self._resume(message, position, to)
            if not done and position.unreadable:
                raise ServerError(UNREADABLE, ran=True)
        except ToolbayError as error:
            self.ledger.note(message.id, error)
            return False
        return done

    def _session_of(self, response: httpx2.Response) -> str:
        """The id of the session that a server has begun, if it has. Raises HandshakeFailed where it cannot be said back."""
        session: str = response.headers.get(SESSION_ID, "")
        if not session.isascii():
            raise HandshakeFailed(f"{shown_url(self.url)} gave a session id that is no ASCII, as the protocol wants it", retriable=False)
        return session

    def _whole(self, response: httpx2.Response) -> JSONRPCResponse | JSONRPCError:
        """The answer in a body. Raises ServerError."""
        if response.status_code >= 300:
            raise ServerError(f"{shown_url(self.url)} answered HTTP {response.status_code}", code=response.status_code, ran=None)
        found = as_message(response.extensions.get(REPLY))
        if not isinstance(found, JSONRPCResponse | JSONRPCError):
            raise ServerError(UNREADABLE, ran=True)
        return found

    # -- event streams ------------------------------------------------------------------------------------------------

    async def _follow(
        self, response: httpx2.Response, message: JSONRPCRequest, position: _Position, to: tuple[_Deliver, _Incoming]
    ) -> bool:
        """Read until the answer, and deliver it. False: the stream ended or broke before. Raises ServerError."""
        deliver, incoming = to
        try:
            async with aclosing(events(response, EVENT_LIMIT)) as stream:
                async for event in stream:
                    position.see(event)
                    found = await self._message(event, message.id, position)
                    if isinstance(found, JSONRPCResponse | JSONRPCError):
                        await deliver(found)
                        return True
                    if found is not None:
                        await incoming.send(SessionMessage(found))
        except httpx2.SSEError:
            text = (
                f"the answer of {shown_url(self.url)} is larger than {EVENT_LIMIT // 1024 // 1024} MB and was not taken; the call has run"
            )
            raise ServerError(text, ran=True) from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            position.unreadable = False
            _log.debug("an event stream of %s: %s", shown_url(self.url), error)
        return False

    async def _message(self, event: httpx2.ServerSentEvent, request_id: object, position: _Position) -> Any:
        """The message in an event; None for what is none, or the answer to somebody else. Raises ServerError."""
        if event.event != "message" or not event.data:
            return None
        found = await message_in(event.data)
        if found is None:
            position.unreadable = True
            if str(meant_for(event.data)) == str(request_id):
                raise ServerError(UNREADABLE, ran=True)
            return None
        if isinstance(found, JSONRPCResponse | JSONRPCError) and str(found.id) not in (str(request_id), "None"):
            _log.debug("%s answered a request that nobody made on this stream", shown_url(self.url))
            return None
        return found

    async def _may_resume(self, position: _Position) -> bool:
        """Wait until a stream may be asked for again, if it may at all: 2026-07-28 knows no such thing."""
        if not position.last_id or position.barren >= RESUMPTIONS or self._protocol in MODERN_PROTOCOL_VERSIONS:
            return False
        position.barren += 1
        await anyio.sleep(position.delay)
        return True

    async def _resume(self, message: JSONRPCRequest, position: _Position, to: tuple[_Deliver, _Incoming]) -> bool:
        headers = {**self._headers(EVENT_STREAM), LAST_EVENT_ID: position.last_id.encode()}
        try:
            async with sent(self.client, "GET", self.url, headers=headers, extensions={WORKS_FOR: message.id}) as response:
                if response.status_code == 200 and kind(response) == EVENT_STREAM:
                    return await self._follow(response, message, position, to)
                if response.status_code < 500 and response.status_code not in FOR_LATER:
                    position.last_id = ""
        except ServerError:
            raise
        except ToolbayError as error:
            _log.debug("an event stream of %s: %s", shown_url(self.url), error)
        return False

    async def _listen(self, incoming: _Incoming) -> None:
        """Follow what the server says of itself, for as long as the session lasts; a server that has no such stream says so once."""
        position = _Position()
        heard_before = False
        while self._session:
            headers = self._headers(EVENT_STREAM) | ({LAST_EVENT_ID: position.last_id.encode()} if position.last_id else {})
            began = anyio.current_time()
            position.barren += 1
            try:
                async with sent(self.client, "GET", self.url, headers=headers) as response:
                    status = response.status_code
                    if status == 404 and heard_before:
                        self.on_gone(session_over(self.url))
                    if status < 500 and status not in FOR_LATER and (status != 200 or kind(response) != EVENT_STREAM):
                        return
                    if status == 200:
                        # From an event that has an id the server goes on by itself.
                        if (heard_before or position.barren > 1) and not position.last_id:
                            self.on_gap()
                        heard_before = True
                        await self._hear(response, position, incoming)
            except BlockedAddress:
                return
            except (ToolbayError, httpx2.HTTPError) as error:
                _log.debug("the stream of %s: %s", shown_url(self.url), error)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            if anyio.current_time() - began >= STABLE:
                position.barren = 0
            await anyio.sleep(position.delay)

    async def _hear(self, response: httpx2.Response, position: _Position, incoming: _Incoming) -> None:
        async with aclosing(events(response, EVENT_LIMIT)) as stream:
            async for event in stream:
                position.see(event)
                found = await message_in(event.data) if event.event == "message" else None
                # An answer has no business here: whoever asked for it listens elsewhere.
                if found is not None and not isinstance(found, JSONRPCResponse | JSONRPCError):
                    await incoming.send(SessionMessage(found))
