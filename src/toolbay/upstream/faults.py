"""What goes wrong on HTTP, as facts on the request that it belongs to.

`Faults` sits between the HTTP transports and the client that dials: it notes each failure in the ledger under the JSON-RPC id of its
request and answers the transport with something harmless, so that a failure costs one call.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
from pydantic_core import from_json

from toolbay._lenient import as_object, as_text
from toolbay._redact import url as shown_url
from toolbay._text import clean, line
from toolbay.errors import ConnectionLost, ServerError, ToolbayError
from toolbay.net.dial import NothingTaken
from toolbay.net.reasons import unreachable
from toolbay.types import Json
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.messages import mended
from toolbay.upstream.statuses import patience, refusal, refused_status

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of one JSON answer."""
ERROR_BODY_LIMIT = 64 * 1024
ERROR_BODY_PATIENCE = 1.0
"""Seconds for the body of an error. Its status is known by then, and says what counts."""
WORKS_FOR = "toolbay.works_for"
"""The extension of an HTTP request that holds the id of the JSON-RPC request which it posts, or whose answer it goes on with."""
REPLY = "toolbay.reply"
"""The extension of an HTTP response that holds the JSON-RPC answer to such a request, where it came as one body: it is read by then."""
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.ProxyError)
"""Errors of reaching a server: the request itself was not written."""


class _Withdrawn(Exception):
    """The caller of a request left before its first byte was written."""


def _reply(body: bytes) -> Json | None:
    """The JSON-RPC answer in a body; None where it is none."""
    try:
        message = from_json(body)
    except ValueError:
        message = mended(body)
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
    return await _joined(response.aiter_bytes(), limit)


async def _joined(body: AsyncIterable[bytes], limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > limit:
            raise TooLarge
        chunks.append(chunk)
    return b"".join(chunks)


async def read_error(response: httpx2.Response) -> bytes:
    """What there is of the body of an error, for a moment; empty where it is too large, or breaks."""
    try:
        with anyio.move_on_after(ERROR_BODY_PATIENCE):
            return await read(response, ERROR_BODY_LIMIT)
    except (TooLarge, httpx2.TransportError, httpx2.DecodingError):
        pass
    return b""


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
        if request.method != "POST":
            return self._taken_up(request, await self._inner.handle_async_request(request))
        request_id = request.extensions.get(WORKS_FOR)

        async def trace(event: str, info: Json) -> None:
            if event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
                if not self._ledger.may_send(request_id):
                    raise _Withdrawn
                self._ledger.sent(request_id)
            elif isinstance(info.get("exception"), NothingTaken):
                self._ledger.unsent(request_id)

        request.extensions = {**request.extensions, "trace": trace}
        url = str(request.url)
        try:
            response = await self._inner.handle_async_request(request)
        except NOT_SENT as error:
            self._ledger.unsent(request_id)
            reason = unreachable(error, url)
            # One refusal says nothing of a server that answers others meanwhile.
            if not self._ledger.busy(request_id):
                self._on_dead(reason)
            return self._fail(request, request_id, reason)
        except httpx2.TransportError as error:
            return self._fail(request, request_id, _broken(error, url))
        except _Withdrawn:
            return self._fail(request, request_id, ConnectionLost("it was taken back before it was sent", sent=False))
        return await self._judge(request, request_id, response)

    async def _judge(self, request: httpx2.Request, request_id: Any, response: httpx2.Response) -> httpx2.Response:
        url = str(request.url)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code >= 400:
            return await self._judge_error(request, request_id, response)
        if request_id is None or response.status_code in range(300, 400) or self._wakes:
            return response
        if kind == "text/event-stream":
            return self._watched(response, request_id, url)
        if kind != "application/json" or response.status_code == 202:
            await response.aclose()
            what = (
                "with no answer (HTTP 202)" if response.status_code == 202 else f"with {kind or 'an unnamed content type'} instead of JSON"
            )
            return self._fail(request, request_id, ServerError(f"{shown_url(url)} answered {what}", code=response.status_code, ran=None))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        try:
            body = await _joined(response.stream, BODY_LIMIT)  # unpacked by who dials
        except TooLarge:
            text = f"the answer of {shown_url(url)} is larger than {BODY_LIMIT // 1024 // 1024} MB and was not taken; the call has run"
            return self._fail(request, request_id, ServerError(text, code=response.status_code, ran=True))
        except httpx2.TransportError as error:
            return self._fail(request, request_id, _broken(error, url))
        finally:
            await response.aclose()
        reply = _reply(body)
        if reply is None or str(reply.get("id")) not in (str(request_id), "None"):
            return self._fail(request, request_id, _no_answer(body, reply, response.status_code, shown_url(url)))
        response.extensions[REPLY] = {**reply, "id": request_id}
        return response

    def _watched(self, response: httpx2.Response, request_id: Any, url: str) -> httpx2.Response:
        """The response, whose stream notes where it ends before the answer of that request came."""

        def ended(error: BaseException | None) -> None:
            lost = _broken(error, url) if error else ConnectionLost(f"{shown_url(url)} ended its answer before it was complete")
            self._ledger.cut(request_id, lost)

        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _WatchedStream(response.stream, ended)
        return response

    def _taken_up(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """A stream that goes on after an event id carries the answer of the request whose stream was cut (2025-11-25)."""
        request_id = request.extensions.get(WORKS_FOR)
        if request_id is None or response.status_code != 200:
            return response
        self._ledger.cut(request_id, None)
        return self._watched(response, request_id, str(request.url))

    async def _judge_error(self, request: httpx2.Request, request_id: Any, response: httpx2.Response) -> httpx2.Response:
        url = str(request.url)
        try:
            body = await read_error(response)
        finally:
            await response.aclose()
        if response.status_code == 404 and (self._wakes or "mcp-session-id" in request.headers):
            gone = session_over(url)
            self._on_dead(gone)
            return self._fail(request, request_id, gone)
        return self._fail(request, request_id, self._refusal(response, body, request_id, url))

    def _refusal(self, response: httpx2.Response, body: bytes, request_id: Any, url: str) -> ToolbayError:
        """What an error status says, and the JSON-RPC error in its body, if there is one."""
        status, headers = response.status_code, response.headers
        reply = _reply(body) or {}
        error = as_object(reply.get("error"))
        if not error:
            return refused_status(response, body.decode("utf-8", "replace"), url, self._safe)
        code, said = error.get("code"), as_text(error.get("message"))
        if status in (401, 403):
            return refused_status(response, said, url, self._safe)
        answered = reply.get("id") == request_id
        text = line(self._safe(clean(said)), 300) + patience(headers)
        if not answered or not text:
            text = f"{shown_url(url)} answered HTTP {status}: {text}".removesuffix(": ")
        code = code if isinstance(code, int) else 0
        return refusal(status, headers, text, code=code, data=error.get("data"), answered=answered)

    def _fail(self, request: httpx2.Request, request_id: Any, fault: ToolbayError) -> httpx2.Response:
        """Note the fault, and give an answer that ends this one request and nothing else."""
        if self._wakes or request_id is None:
            self._ledger.failed(request_id, fault)
            return httpx2.Response(202, request=request)
        self._ledger.note(request_id, fault)
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": str(fault)}}
        return httpx2.Response(200, request=request, extensions={REPLY: error})

    async def aclose(self) -> None:
        await self._inner.aclose()


def session_over(url: str) -> ConnectionLost:
    """What a server says by 404 to who names a session."""
    return ConnectionLost(f"{shown_url(url)} has ended the session")


def _no_answer(body: bytes, reply: Json | None, status: int, where: str) -> ServerError:
    """What came in the place of an answer. One that is there and cannot be read was given by a server that has done its work."""
    if reply is not None:
        return ServerError(f"{where} answered with the answer to another request", code=status, ran=None)
    if body.strip() and not _is_json(body):
        return ServerError(f"{where} gave an answer that cannot be read (it is no JSON); the call has run", code=status, ran=True)
    return ServerError(f"{where} answered with JSON that is no JSON-RPC answer (HTTP {status})", code=status, ran=None)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _broken(error: BaseException, url: str) -> ToolbayError:
    """Why an answer did not come to its end. One that was refused on the way in carries the reason with it."""
    if isinstance(error.__cause__, ServerError):
        return error.__cause__
    where = shown_url(url)
    if isinstance(error, (httpx2.ReadTimeout, httpx2.WriteTimeout)):
        return ConnectionLost(f"{where} stopped sending")
    why = "it was reset" if isinstance(error, httpx2.NetworkError) else "it ended too early, or what came is no HTTP"
    return ConnectionLost(f"the connection to {where} broke before the answer was complete ({why})")
