"""What goes wrong on HTTP, as facts on the request that it belongs to.

The SDK's transport ends its whole session when one request meets a network error, and hides the status of an error answer.
`Faults` sits beneath it: it notes each failure in the ledger under the JSON-RPC id of its request and answers the SDK with
something harmless, so that a failure costs one call.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2

from toolbay._redact import url as shown_url
from toolbay._text import clean, line
from toolbay.errors import AuthRequired, BlockedAddress, Busy, ConnectionLost, Refused, ServerError, ToolbayError
from toolbay.types import Json
from toolbay.upstream.ledger import Ledger

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of one JSON answer."""
ERROR_BODY_LIMIT = 64 * 1024
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol, httpx2.ProxyError)
"""Errors of reaching a server: the request itself was not written."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what led to it, from the outside in; groups are walked through."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        pending.extend(cause for cause in (current.__cause__, current.__context__) if cause is not None)


def unreachable(error: BaseException, url: str) -> ToolbayError:
    """Why an address could not be reached, in words (TRA-3): DNS, TLS, refused, timeout."""
    where = shown_url(url)
    for cause in causes(error):
        if isinstance(cause, BlockedAddress):
            return cause
        if isinstance(cause, socket.gaierror):
            return Refused(f"the name in {where} is not known to DNS: check the address")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Refused(f"the certificate of {where} was not accepted ({line(cause.verify_message, 120)})", retriable=False)
        if isinstance(cause, ssl.SSLError):
            return Refused(f"{where} does not speak TLS as expected ({cause.reason or 'no reason given'})", retriable=False)
        if isinstance(cause, ConnectionRefusedError):
            return Refused(f"{where} refused the connection: is the server running there?")
        if isinstance(cause, (httpx2.ConnectTimeout, TimeoutError)):
            return Refused(f"{where} did not answer the connection in time: check the address and the network")
        if isinstance(cause, httpx2.UnsupportedProtocol):
            return Refused(f"{where} is no http or https address: correct `url`", retriable=False)
        if isinstance(cause, httpx2.PoolTimeout):
            return Refused(f"{where} has too many requests under way")
    return Refused(f"{where} could not be reached ({type(error).__name__})")


def refused_status(status: int, headers: httpx2.Headers, body: str, url: str, safe: Callable[[str], str]) -> ToolbayError:
    """What an HTTP error status means for a connection or a call. `safe` masks the secrets that a body says back."""
    where = shown_url(url)
    said = f": {line(safe(clean(body)), 200)}" if body.strip() and not _is_html(headers) else ""
    if status in (401, 403):
        mend = "it wants credentials: set an Authorization header in `headers`" if status == 401 else "access was denied"
        return AuthRequired(f"{where} answered HTTP {status}, {mend}{said}", retriable=False)
    if status == 404:
        return ServerError(f"{where} answered HTTP 404: there is no MCP endpoint at this address{said}", code=404, ran=False)
    if status == 405:
        text = f"{where} answered HTTP 405: it does not take this kind of MCP transport; try `type: sse`{said}"
        return ServerError(text, code=405, ran=False)
    # A request that is refused as such was not carried out (RFC 9110, 15.5); of a failing server nobody knows.
    ran = False if status < 500 else None
    wait = headers.get("retry-after", "")
    if wait.isdecimal() and len(wait) < 10:
        text = f"{where} answered HTTP {status} (it asks to wait {wait} s){said}"
        asked = Busy(text, code=status, retry_after=float(wait), ran=ran)
        return asked if status in (429, 503) else ServerError(text, code=status, ran=ran)
    return ServerError(f"{where} answered HTTP {status}{said}", code=status, ran=ran)


def _is_html(headers: httpx2.Headers) -> bool:
    return "html" in headers.get("content-type", "").lower()


def _request_id(request: httpx2.Request) -> Any:
    """The JSON-RPC id of what is being posted; None for notifications and everything else."""
    if request.method != "POST":
        return None
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return None
    return message.get("id") if isinstance(message, dict) and "method" in message else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _reply(body: bytes) -> Json | None:
    """The JSON-RPC answer in a body; None where it is none."""
    try:
        message = json.loads(body)
    except ValueError:
        return None
    is_one = isinstance(message, dict) and (isinstance(message.get("result"), dict) or isinstance(message.get("error"), dict))  # pyright: ignore[reportUnknownMemberType]
    return message if is_one else None  # pyright: ignore[reportUnknownVariableType]


class TooLarge(Exception):
    """A body is larger than its reader takes."""


async def read(response: httpx2.Response, limit: int) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is longer than `limit` bytes.
        httpx2.TransportError, httpx2.DecodingError: it did not come to its end.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > limit:
            raise TooLarge
        chunks.append(chunk)
    return b"".join(chunks)


class _WatchedStream(httpx2.AsyncByteStream):
    """An event stream that notes when it ends before its reader let go of it."""

    def __init__(self, inner: httpx2.AsyncByteStream, on_end: Callable[[BaseException | None], None]) -> None:
        self._inner = inner
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except httpx2.TransportError as error:
            self._on_end(error)
            raise
        self._on_end(None)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Faults(httpx2.AsyncBaseTransport):
    """Wraps the transport that dials. `wakes` is True where answers come on another stream (SSE): the waiter is woken then."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        ledger: Ledger,
        *,
        on_dead: Callable[[ToolbayError], None],
        wakes: bool,
        safe: Callable[[str], str] = str,
    ) -> None:
        self._inner = inner
        self._ledger = ledger
        self._on_dead = on_dead
        self._wakes = wakes
        self._safe = safe

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request_id = _request_id(request)
        if request.method != "POST":
            return await self._inner.handle_async_request(request)

        async def trace(event: str, _info: Json) -> None:
            if event.endswith("send_request_headers.started"):
                self._ledger.sent(request_id)

        request.extensions = {**request.extensions, "trace": trace}
        url = str(request.url)
        try:
            response = await self._inner.handle_async_request(request)
        except NOT_SENT as error:
            reason = unreachable(error, url)
            # Too much of our own at once says nothing about the server, nor does one refusal while it answers others.
            if not isinstance(error, httpx2.PoolTimeout) and not self._ledger.busy(request_id):
                self._on_dead(reason)
            return self._fail(request, request_id, reason)
        except httpx2.TransportError as error:
            return self._fail(request, request_id, _broken(error, url))
        return await self._judge(request, request_id, response)

    async def _judge(self, request: httpx2.Request, request_id: Any, response: httpx2.Response) -> httpx2.Response:
        url = str(request.url)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code >= 400:
            return await self._judge_error(request, request_id, response)
        if request_id is None or response.status_code in range(300, 400) or self._wakes:
            return response
        if kind == "text/event-stream":

            def ended(error: BaseException | None) -> None:
                lost = _broken(error, url) if error else ConnectionLost(f"{shown_url(url)} ended its answer before it was complete")
                self._ledger.cut(request_id, lost)

            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _WatchedStream(response.stream, ended)
            return response
        if kind != "application/json" or response.status_code == 202:
            await response.aclose()
            what = (
                "with no answer (HTTP 202)" if response.status_code == 202 else f"with {kind or 'an unnamed content type'} instead of JSON"
            )
            return self._fail(request, request_id, ServerError(f"{shown_url(url)} answered {what}", code=response.status_code, ran=None))
        try:
            body = await read(response, BODY_LIMIT)
        except TooLarge:
            text = f"the answer of {shown_url(url)} is larger than {BODY_LIMIT // 1024 // 1024} MB; the call has run"
            return self._fail(request, request_id, ServerError(text))
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            return self._fail(request, request_id, _broken(error, url))
        finally:
            await response.aclose()
        reply = _reply(body)
        if reply is None or str(reply.get("id")) not in (str(request_id), "None"):
            what = "JSON that is no JSON-RPC answer" if reply is None else "the answer to another request"
            return self._fail(
                request, request_id, ServerError(f"{shown_url(url)} answered with {what}", code=response.status_code, ran=None)
            )
        return _buffered(request, response, json.dumps({**reply, "id": request_id}).encode() if reply.get("id") != request_id else body)

    async def _judge_error(self, request: httpx2.Request, request_id: Any, response: httpx2.Response) -> httpx2.Response:
        url = str(request.url)
        try:
            body = await read(response, ERROR_BODY_LIMIT)
        except (TooLarge, httpx2.TransportError, httpx2.DecodingError):
            body = b""
        finally:
            await response.aclose()
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            gone = ConnectionLost(f"{shown_url(url)} has ended the session")
            self._on_dead(gone)
            return self._fail(request, request_id, gone)
        if request_id is not None and not self._wakes and "error" in (_reply(body) or {}):
            return _buffered(request, response, body)
        fault = refused_status(response.status_code, response.headers, body.decode("utf-8", "replace"), url, self._safe)
        return self._fail(request, request_id, fault)

    def _fail(self, request: httpx2.Request, request_id: Any, fault: ToolbayError) -> httpx2.Response:
        """Note the fault, and give the SDK an answer that ends this one request and nothing else."""
        if self._wakes or request_id is None:
            self._ledger.failed(request_id, fault)
            return httpx2.Response(202, request=request)
        entry = self._ledger.get(request_id)
        if entry is not None and entry.fault is None:
            entry.fault = fault
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": str(fault)}}
        return httpx2.Response(200, request=request, json=error)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _broken(error: BaseException, url: str) -> ToolbayError:
    """Why an answer did not come to its end. One that was refused on the way in carries the reason with it."""
    if isinstance(error.__cause__, ServerError):
        return error.__cause__
    where = shown_url(url)
    if isinstance(error, (httpx2.ReadTimeout, httpx2.WriteTimeout)):
        return ConnectionLost(f"{where} stopped sending")
    return ConnectionLost(f"the connection to {where} broke before the answer was complete ({type(error).__name__})")


def _buffered(request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
    dropped = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in dropped]
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
