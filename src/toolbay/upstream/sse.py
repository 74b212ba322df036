"""The HTTP+SSE transport of 2024-11-05: answers come on one event stream, and its first event says where to post.

Our own, since the SDK's loses results of more than 1 MB, and with them the session.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from toolbay._redact import url as shown_url
from toolbay.errors import BadCall, ConnectionFailed, ConnectionLost, HandshakeFailed, ServerError, ToolbayError
from toolbay.net import http
from toolbay.net.guard import within
from toolbay.upstream.faults import ERROR_BODY_LIMIT, WORKS_FOR, TooLarge, read, read_error
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.messages import encoded, meant_for
from toolbay.upstream.messages import message as message_in
from toolbay.upstream.statuses import refused_status
from toolbay.upstream.streams import EVENT_LIMIT, EVENT_STREAM, INITIALIZED, TELL_PATIENCE, UNREADABLE, Events, events, kind, sent

_log = logging.getLogger("toolbay.upstream")


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """What one session works with."""

    client: httpx2.AsyncClient
    ledger: Ledger
    on_dead: Callable[[ToolbayError], None]
    safe: Callable[[str], str]

    @asynccontextmanager
    async def open(self, url: str) -> AsyncGenerator[tuple[Any, Any]]:
        """Messages in, messages out.

        Raises:
            ConnectionFailed, BlockedAddress: nothing there, or nothing that speaks this transport.
        """
        async with sent(self.client, "GET", url, headers={"Accept": EVENT_STREAM, "Cache-Control": "no-store"}) as response:
            await self._judge(response, url)
            async with aclosing(events(response, EVENT_LIMIT)) as stream:
                endpoint = await self._endpoint(stream, response, url)
                incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()
                write, outgoing = anyio.create_memory_object_stream[SessionMessage]()
                async with incoming, messages, write, outgoing, anyio.create_task_group() as group:
                    group.start_soon(self._read, stream, incoming, url, name="sse: read")
                    group.start_soon(self._write, outgoing, endpoint, name="sse: write")
                    yield messages, write
                    group.cancel_scope.cancel()

    async def _judge(self, response: httpx2.Response, url: str) -> None:
        if response.status_code != 200:
            body = await read_error(response)
            told = refused_status(response, body.decode("utf-8", "replace"), url, self.safe)
            raise told if isinstance(told, ConnectionFailed) else HandshakeFailed(str(told))
        found = kind(response)
        if found != EVENT_STREAM:
            raise HandshakeFailed(f"{shown_url(url)} answered with {found or 'an unnamed content type'} instead of an event stream")

    async def _endpoint(self, stream: Events, response: httpx2.Response, url: str) -> str:
        """Where to post. It must be where the configuration leads: arguments and credentials go nowhere else."""
        try:
            async for event in stream:
                if event.event != "endpoint":
                    continue
                endpoint = urljoin(str(response.request.url), event.data.strip())
                if not within(http.target(url), http.target(endpoint)):
                    told = f"{shown_url(url)} wants messages to be sent to another origin, {shown_url(endpoint)}, which is not done"
                    raise HandshakeFailed(told, retriable=False)
                return endpoint
        except httpx2.RequestError as error:
            raise HandshakeFailed(f"the event stream of {shown_url(url)} broke before it began ({type(error).__name__})") from error
        raise HandshakeFailed(f"{shown_url(url)} ended its event stream before it said where to send messages")

    async def _read(self, stream: Events, incoming: MemoryObjectSendStream[SessionMessage | Exception], url: str) -> None:
        reason = ConnectionLost(f"{shown_url(url)} ended its event stream")
        async with incoming:
            try:
                async for event in stream:
                    if event.event == "message" and event.data and (found := await self._parsed(event.data)) is not None:
                        await incoming.send(SessionMessage(found))
            except httpx2.SSEError:
                # Whose answer it was stands in what was not read.
                reason = ConnectionLost(f"{shown_url(url)} sent an answer that is larger than {EVENT_LIMIT // 1024 // 1024} MB")
            except httpx2.RequestError as error:
                reason = ConnectionLost(f"the event stream of {shown_url(url)} broke ({type(error).__name__})")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # nobody reads any more
            self.on_dead(reason)

    async def _parsed(self, data: str) -> Any:
        """A message; what is none costs the call that it seems to answer."""
        found = await message_in(data)
        if found is None:
            self.ledger.failed(meant_for(data), ServerError(UNREADABLE, ran=True))
        return found

    async def _write(self, outgoing: MemoryObjectReceiveStream[SessionMessage], endpoint: str) -> None:
        async with outgoing, anyio.create_task_group() as group:
            async for item in outgoing:
                message = item.message
                if self.ledger.takes_back(message):
                    continue
                try:
                    content = encoded(message)
                except BadCall as error:
                    self.ledger.failed(getattr(message, "id", None), error)
                    continue
                if getattr(message, "method", "") == INITIALIZED:
                    await self._post(content, endpoint, None)
                else:
                    request_id = message.id if isinstance(message, JSONRPCRequest) else None
                    group.start_soon(self._post, content, endpoint, request_id, name="sse: post")

    async def _post(self, content: bytes, endpoint: str, request_id: object) -> None:
        """Send one message. What the network and the status say of it is noted beneath, by `Faults`.

        Its answer says nothing, and is waited for only a while: of a request, once its caller has gone.
        """
        with anyio.CancelScope() as scope:

            def leave() -> None:
                scope.deadline = anyio.current_time() + TELL_PATIENCE

            if (entry := self.ledger.get(request_id)) is not None:
                entry.on_closed = leave
            else:
                leave()
            await self._posted(content, endpoint, request_id)

    async def _posted(self, content: bytes, endpoint: str, request_id: object) -> None:
        headers, about = {"Content-Type": "application/json"}, {WORKS_FOR: request_id}
        try:
            async with sent(self.client, "POST", endpoint, content=content, headers=headers, extensions=about) as response:
                if response.status_code >= 300:
                    text = f"{shown_url(endpoint)} answered HTTP {response.status_code}"
                    self.ledger.failed(request_id, ServerError(text, code=response.status_code, ran=None))
                await read(response, ERROR_BODY_LIMIT)
        except (httpx2.HTTPError, TooLarge) as error:
            _log.debug("a message to %s: %s", shown_url(endpoint), error)
        except ToolbayError as error:
            self.ledger.failed(request_id, error)
