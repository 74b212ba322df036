"""What both HTTP transports do with the client: a request that is followed within its origin, and the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import httpx2

from toolbay.errors import BlockedAddress
from toolbay.net import http
from toolbay.net.guard import check_redirect
from toolbay.net.reasons import unreachable

EVENT_STREAM = "text/event-stream"
EVENT_LIMIT = 32 * 1024 * 1024
"""Bytes of one event."""
INITIALIZED = "notifications/initialized"
"""It holds back what follows it: a server must not see a request before."""
TELL_PATIENCE = 10.0
"""Seconds that posting a message without an answer may take."""
UNREADABLE = "its answer is no JSON-RPC message and could not be read; the call has run"

Events: TypeAlias = AsyncGenerator[httpx2.ServerSentEvent]


class NotFollowed(BlockedAddress):
    """A redirect that the policy refused. `ran` as in `ServerError`: 307 and 308 say that the request belongs elsewhere as it is."""

    def __init__(self, cause: str, mend: str = "", *, status: int = 0) -> None:
        super().__init__(cause, mend)
        self.status = status

    @property
    def ran(self) -> bool | None:
        return False if self.status in (307, 308) else None


@asynccontextmanager
async def sent(client: httpx2.AsyncClient, method: str, url: str, **more: Any) -> AsyncGenerator[httpx2.Response]:
    """The answer to a request; redirects are followed within the origin.

    Raises:
        NotFollowed: a redirect that leads out of its origin, in a circle, or loses the message.
        BlockedAddress: the address itself is closed.
        ConnectionFailed: the address could not be reached.
    """
    here, followed = http.target(url), 0
    while True:
        request = client.build_request(method, http.parsed(url), **more)
        try:
            response = await client.send(request, stream=True)
        except httpx2.TransportError as error:
            raise unreachable(error, url) from error
        try:
            if response.next_request is None:
                yield response
                return
            url = str(response.next_request.url)
            try:
                there = http.target(url)
                check_redirect(here, there, followed=followed, same_method=response.next_request.method == method)
            except BlockedAddress as error:
                raise NotFollowed(error.cause, error.mend, status=response.status_code) from None
            here, followed = there, followed + 1
        finally:
            await response.aclose()


def kind(response: httpx2.Response) -> str:
    """The media type of an answer, without its parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def events(response: httpx2.Response, limit: int = EVENT_LIMIT) -> Events:
    """The events of a stream, read as WHATWG's HTML says: always UTF-8, with or without a BOM.

    Raises:
        httpx2.SSEError: an event is larger than `limit` bytes.
        httpx2.TransportError, httpx2.DecodingError: the stream broke.
    """
    response.encoding = "utf-8-sig"
    source: AsyncIterator[httpx2.ServerSentEvent] = aiter(httpx2.EventSource(response, max_event_size=limit))
    async for event in source:
        yield event
