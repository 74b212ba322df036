"""The address on this machine that a browser comes back to (RFC 8252, 7.3): one answer is taken, from whoever knows the state.

Any page in any browser here can knock at it, and so can other programs: what is not the answer to the question that was
asked is turned away, with a page that says nothing back of what was given.

What a program is told to open, everybody at this machine can read. Who opened another one's login and agreed as himself would
make this person work in his account. So the page is opened by an address here that is good once, and for this user's programs.
"""

from __future__ import annotations

import errno
import hmac
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.abc
import h11
from anyio.streams.stapled import MultiListener

from toolbay.auth.peers import is_foreign
from toolbay.config.logins import loopback
from toolbay.errors import LoginFailed

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"
_HOST_6: Final = "::1"
HEAD_LIMIT: Final = 32 * 1024
"""Bytes of a request up to its body. Codes are up to some thousand characters long."""
PATIENCE: Final = 10.0
"""Seconds that one client has, from the connection to the last byte of the answer."""
MOST: Final = 64
"""Clients at once. One more takes the place of the one that has been there longest: browsers connect in advance and stay silent."""
_FIELDS: Final = 32
_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL})
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Connection", "close"),
)
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width">
<title>Toolbay</title>
<h1>{head}</h1>
<p>{text}</p>
</html>
"""


class PortTaken(LoginFailed):
    """The port that the browser is to come back to is not free."""


class OpenedTwice(LoginFailed):
    """Somebody else may have the page of this login."""


class Callback:
    """What waits at `redirect_uri`."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._path = urlsplit(redirect_uri).path or "/"
        self._state = self._begin = self._page = ""
        self._openings = 0
        self._answer: dict[str, str] | None = None
        self._came = anyio.Event()

    def expect(self, state: str) -> None:
        """From now on the answer with this `state` is taken. To be called before the page is opened."""
        self._state = state

    def beginning(self, page: str) -> str:
        """An address here that leads to `page`, once: for who tells a program to open it. Opened again it ends the login."""
        self._begin, self._page = f"/begin?once={secrets.token_urlsafe(32)}", page
        parts = urlsplit(self.redirect_uri)
        return f"{parts.scheme}://{parts.netloc}{self._begin}"

    async def came(self) -> dict[str, str]:
        """The fields of the answer (RFC 6749, 4.1.2), once it is there; the `state` is the right one, and nothing else was judged.

        Raises OpenedTwice.
        """
        await self._came.wait()
        if self._openings > 1 or self._answer is None:
            raise OpenedTwice(
                "its page was opened twice from this machine, so that it may be another person's by now, and nothing of it was used: "
                "begin anew, and open the page by hand if that ends the same"
            )
        return self._answer

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """One client: one request, one page."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        try:
            request = await _request(connection, stream)
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            await _answer(connection, stream, status, _page(status))
            return
        if request is None:
            return
        status = self._judged(request, stream)
        page = "" if request.method == b"HEAD" else _page(status, refused="error" in (self._answer or {}))
        try:
            await _answer(connection, stream, status, page, location=self._page if status is HTTPStatus.FOUND else "")
        finally:
            if status is HTTPStatus.OK or self._openings > 1:
                self._came.set()  # not before the page is on its way: who waits for this closes everything

    def _judged(self, request: h11.Request, stream: anyio.abc.SocketStream) -> HTTPStatus:
        target = request.target.decode("ascii", "replace")
        path, _, query = target.partition("?")
        begins = bool(self._begin) and same(target, self._begin)
        if not begins and path != self._path:
            return HTTPStatus.NOT_FOUND
        if request.method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED
        found = fields(query)
        if not begins and (found is None or not self._state or not same(found.get("state", ""), self._state)):
            return HTTPStatus.BAD_REQUEST
        if is_foreign(stream):
            return HTTPStatus.FORBIDDEN
        if begins:
            self._openings += 1
            return HTTPStatus.FOUND if self._openings == 1 else HTTPStatus.CONFLICT
        if self._answer is not None:
            return HTTPStatus.GONE
        self._answer = found
        return HTTPStatus.OK


@asynccontextmanager
async def listening(address: str = "") -> AsyncGenerator[Callback]:
    """Listen on this machine at `address` (`config.logins.callback`) for as long as the block runs; empty: at any free port.

    Raises:
        PortTaken: another program has the port, or it is not ours to take.
        LoginFailed: no port can be had here.
    """
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(listener) for listener in await _listeners(address)]
        callback = Callback(address or loopback(listeners[0].extra(anyio.abc.SocketAttribute.local_port)))  # noqa: S610 - no database
        clients: dict[object, anyio.CancelScope] = {}
        failures: list[Exception] = []
        async with anyio.create_task_group() as group:
            for listener in listeners:
                group.start_soon(partial(listener.serve, partial(_client, callback, clients)), name="wait for the browser")
            try:
                yield callback
            except Exception as failure:  # carried past the group, which would wrap it
                failures.append(failure)
            finally:
                group.cancel_scope.cancel()
        for failure in failures:
            raise failure


async def _listeners(address: str) -> list[MultiListener[anyio.abc.SocketStream]]:
    """At all that the address's host may be: a browser knows `localhost` as both, and whoever has the other one would get the answer."""
    parts = urlsplit(address or loopback(0))
    hosts = {"localhost": (HOST, _HOST_6), "::1": (_HOST_6,)}.get(parts.hostname or "", (HOST,))
    found: list[MultiListener[anyio.abc.SocketStream]] = []
    for host in hosts:
        try:
            found.append(await anyio.create_tcp_listener(local_host=host, local_port=parts.port or 0))
        except OSError as error:
            if found and error.errno not in (errno.EADDRINUSE, errno.EACCES):
                continue  # a machine without IPv6
            for listener in found:
                await listener.aclose()
            text = f"nothing can listen on port {parts.port} of this machine for the browser to come back to ({error.strerror})"
            raise (PortTaken if parts.port and error.errno in _TAKEN else LoginFailed)(text, retriable=True) from None
    return found


async def _client(callback: Callback, clients: dict[object, anyio.CancelScope], stream: anyio.abc.SocketStream) -> None:
    """No client can fall this, or hold up another."""
    if len(clients) >= MOST:
        clients.pop(next(iter(clients))).cancel()
    async with stream:
        with anyio.move_on_after(PATIENCE) as scope, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, h11.ProtocolError):
            clients[stream] = scope
            try:
                await callback.serve(stream)
            finally:
                clients.pop(stream, None)


def fields(query: str) -> dict[str, str] | None:
    """The fields of a query; None where one stands twice, which none may (RFC 6749, 3.1), or where there are far too many."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS)
    except ValueError:
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def same(one: str, other: str) -> bool:
    """Whether two secrets are the same, found out in a time that tells nothing of them."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


async def _request(connection: h11.Connection, stream: anyio.abc.SocketStream) -> h11.Request | None:
    """The request's head; None where the client leaves before its end. A body is not looked at."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        try:
            connection.receive_data(await stream.receive())
        except anyio.EndOfStream:
            connection.receive_data(b"")
    return event if isinstance(event, h11.Request) else None


async def _answer(connection: h11.Connection, stream: anyio.abc.SocketStream, status: HTTPStatus, page: str, *, location: str = "") -> None:
    body = page.encode()
    headers = [*_HEADERS, ("Content-Length", str(len(body))), *([("Location", location)] if location else [])]
    pieces = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
    await stream.send(b"".join(connection.send(piece) or b"" for piece in pieces))
    await stream.send_eof()


def _page(status: HTTPStatus, *, refused: bool = False) -> str:
    if status is HTTPStatus.OK and refused:
        return _PAGE.format(head="Nothing was granted", text="You can close this page. Toolbay says the rest where you began.")
    if status is HTTPStatus.OK:
        return _PAGE.format(head="That was your part", text="You can close this page. Toolbay says the rest where you began.")
    if status is HTTPStatus.FOUND:
        return _PAGE.format(head="To the page of the login", text="Your browser goes there by itself.")
    if status is HTTPStatus.CONFLICT:
        return _PAGE.format(
            head="This login was opened already",
            text="It has ended, since that may have been somebody else. Begin it anew where you began.",
        )
    if status is HTTPStatus.FORBIDDEN:
        text = "If you have begun it: open the address that is shown there, and paste there the one that your browser ends at."
        return _PAGE.format(head="This login is another user's", text=text)
    if status is HTTPStatus.GONE:
        return _PAGE.format(head="This login has come back already", text="You can close this page.")
    return _PAGE.format(head="This is no answer that Toolbay waits for", text="Go on with the page that the newest login has opened.")
