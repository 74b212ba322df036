"""The only place that builds HTTP clients, and the only one that knows the HTTP library.

Every request is judged by its URL, every connection by the addresses it goes to; redirects are never followed by the client
itself, and nothing is read from a body before its owner asks for it. What the policy refuses is an `httpx2.ConnectError`
whose cause is a `BlockedAddress`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import TracebackType
from typing import Any, cast

import httpcore2
import httpx2

from toolbay.errors import BlockedAddress
from toolbay.net import logs
from toolbay.net.body import BODY_LIMIT, Body, Bounded, Door, Nothing, Source, refused
from toolbay.net.dial import Dialler, ProxyDialler, Wire
from toolbay.net.guard import DEFAULT_PORTS, MAX_REDIRECTS, Parts, Policy, Target, check_addresses, check_redirect, check_url, within
from toolbay.net.proxy import Proxies
from toolbay.net.resolve import Resolver, SystemResolver

CONNECT_TIMEOUT = 10.0
"""Seconds for DNS and TCP with all addresses of a name, and again for TLS."""
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept. Servers commonly close theirs after five; a call that meets that has an unknown outcome."""
HEADERS_LIMIT = 64 * 1024
"""Bytes of an answer's headers."""
FETCH_LIMIT = 1024 * 1024
"""Bytes of a document that `get` reads."""
REMEMBERED = 256
"""URLs that were found good and need not be taken apart again: a server has one or two."""
PUBLIC = Policy()
"""The public internet and nothing else."""
ANYWHERE = Policy(whitelist=("0.0.0.0/0", "::/0"))
"""For proxies, which people set: any address but the metadata services."""
MEND_PROXY = "set an http one in HTTP_PROXY and HTTPS_PROXY"

Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]

_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (BlockedAddress, httpx2.ConnectError),
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.ReadTimeout, httpx2.ReadTimeout),
    (httpcore2.WriteTimeout, httpx2.WriteTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.TimeoutException, httpx2.TimeoutException),
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ReadError, httpx2.ReadError),
    (httpcore2.WriteError, httpx2.WriteError),
    (httpcore2.NetworkError, httpx2.NetworkError),
    (httpcore2.ProxyError, httpx2.ProxyError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
    (httpcore2.LocalProtocolError, httpx2.LocalProtocolError),
    (httpcore2.RemoteProtocolError, httpx2.RemoteProtocolError),
    (httpcore2.ProtocolError, httpx2.ProtocolError),
)
"""Errors of the layer below and ours, the special before the general."""


def trust() -> ssl.SSLContext:
    """Which certificates are trusted: the system's, or those in SSL_CERT_FILE or SSL_CERT_DIR.

    One store for all clients, since loading it costs 50 ms and 800 kB each time.
    """
    return _store(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))


@cache
def _store(_file: str, _folder: str) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


@lru_cache(maxsize=REMEMBERED)
def target(url: str) -> Target:
    """Where `url` leads, as a client would go there. Raises BlockedAddress."""
    return check_url(url, _parse)


@lru_cache(maxsize=REMEMBERED)
def parsed(url: str) -> httpx2.URL:
    """`url` as the client takes it: each of its requests takes a text apart anew. Raises httpx2.InvalidURL."""
    return httpx2.URL(url)


def policy_for(url: str, *, whitelist: tuple[str, ...] = (), fake_ip: tuple[str, ...] = ()) -> Policy:
    """The policy of a configured server: its URL is consent for its origin (`guard.consent`). Raises BlockedAddress, ConfigError."""
    return Policy(whitelist, fake_ip, home=target(url))


def client(
    *,
    headers: Mapping[str, str] | None = None,
    wrap: Wrap | None = None,
    policy: Policy = PUBLIC,
    proxy: str | None = None,
    resolver: Resolver | None = None,
    network: httpcore2.AsyncNetworkBackend | None = None,
    tls: ssl.SSLContext | None = None,
) -> httpx2.AsyncClient:
    """A client for one server; enter it to use it, leave it to close its connections.

    It has no read timeout: who waits for an answer has a deadline of its own, and event streams are silent for hours.
    `headers` go to `policy.home` only, where there is one. `wrap` puts a transport around the one that dials. `proxy` is a
    proxy's URL for everything but this machine, "" for none, None for what the environment says. `resolver` looks names up,
    `network` opens sockets to the addresses that passed, `tls` says which certificates are trusted.
    """
    logs.shorten()
    proxies = Proxies.from_environment() if proxy is None else Proxies.everywhere(proxy)
    network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend()) if network is None else network
    transport: httpx2.AsyncBaseTransport = Guarded(policy, proxies, resolver or SystemResolver(), network, tls or trust())
    if policy.home is not None and headers:
        transport = _AtHome(transport, policy.home, headers)
    return httpx2.AsyncClient(
        transport=transport if wrap is None else wrap(transport),
        headers=dict(headers or {}),
        timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None, write=60.0, pool=None),
        follow_redirects=False,
        max_redirects=MAX_REDIRECTS,
        trust_env=False,
    )


async def get(
    client: httpx2.AsyncClient, url: str, *, headers: Mapping[str, str] | None = None, limit: int = FETCH_LIMIT
) -> httpx2.Response:
    """A document of at most `limit` bytes, read whole. Redirects are followed within the origin.

    Raises BlockedAddress for a URL or a redirect that is not followed, httpx2.TransportError for the rest.
    """
    here = target(url)
    followed = 0
    while True:
        request = client.build_request("GET", url, headers=headers)
        response = await client.send(request, stream=True)
        try:
            if response.next_request is None:
                return await _whole(response, limit)
            url = str(response.next_request.url)
            there = target(url)
            check_redirect(here, there, followed=followed)
            here, followed = there, followed + 1
        finally:
            await response.aclose()


async def post(
    client: httpx2.AsyncClient, url: str, *, content: bytes, headers: Mapping[str, str], limit: int = FETCH_LIMIT
) -> httpx2.Response:
    """The answer to a post, of at most `limit` bytes, read whole. No redirect is followed: what is posted may be a secret.

    Raises BlockedAddress for a URL that is refused, httpx2.TransportError for the rest.
    """
    target(url)
    response = await client.send(client.build_request("POST", url, content=content, headers=headers), stream=True)
    try:
        return await _whole(response, limit)
    finally:
        await response.aclose()


class Guarded(httpx2.AsyncBaseTransport):
    """HTTP/1.1 over connections that the policy lets through. A kept connection is not resolved again."""

    def __init__(
        self, policy: Policy, proxies: Proxies, resolve: Resolver, network: httpcore2.AsyncNetworkBackend, tls: ssl.SSLContext
    ) -> None:
        self._policy = policy
        self._proxies = proxies
        self._resolve = resolve
        self._network = network
        self._tls = tls
        self._pools: dict[str, httpcore2.AsyncConnectionPool] = {}
        self._doors: dict[str, Door] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        if request.url.scheme not in DEFAULT_PORTS:
            raise httpx2.UnsupportedProtocol("it is no http or https address", request=request)
        translated = _Translated(request)
        with translated:
            goal = _goal(request.url)
            proxy = self._proxies.choose(goal)
            if proxy and goal.literal is not None:
                # The proxy would dial it for us. Names are the proxy's to resolve.
                check_addresses(goal.host, [goal.host], self._policy.toward(goal.host, goal.port))
            pool = self._pool(proxy)
            door = self._doors.setdefault(goal.origin, Door())
            await door.wait()
            found = await pool.handle_async_request(_lowered(request))
        stream = cast("Source", found.stream)  # the library's type does not say that its bodies can be closed
        wire = cast("dict[str, object]", found.extensions).get("network_stream")  # pyright: ignore[reportUnknownMemberType]
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in found.headers)
        body = Body(stream, door, translated, wire=wire if isinstance(wire, Wire) else None, chunked=chunked)
        try:
            return _answer(request, goal, found, body)
        except httpx2.RemoteProtocolError:
            body.abandon()
            await body.aclose()
            raise

    async def aclose(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    def _pool(self, proxy: str) -> httpcore2.AsyncConnectionPool:
        if proxy not in self._pools:
            policy, dialler = (ANYWHERE, ProxyDialler) if proxy else (self._policy, Dialler)
            self._pools[proxy] = httpcore2.AsyncConnectionPool(
                ssl_context=self._tls,
                proxy=self._through(proxy) if proxy else None,
                max_connections=None,  # how many calls may be under way is said elsewhere; more cannot come
                max_keepalive_connections=20,
                keepalive_expiry=KEEP_ALIVE,
                network_backend=dialler(policy, self._resolve, self._network),
            )
        return self._pools[proxy]

    def _through(self, url: str) -> httpcore2.Proxy:
        try:
            proxy = httpx2.Proxy(url)
        except (ValueError, httpx2.InvalidURL):
            raise BlockedAddress("the proxy that is set has no proper URL", MEND_PROXY) from None
        if proxy.url.scheme not in ("http", "https"):
            raise BlockedAddress(f"the proxy that is set speaks {proxy.url.scheme}, which is not supported", MEND_PROXY)
        where = httpcore2.URL(scheme=proxy.url.raw_scheme, host=proxy.url.raw_host, port=proxy.url.port, target=b"/")
        return httpcore2.Proxy(where, proxy.raw_auth, ssl_context=self._tls if proxy.url.scheme == "https" else None)


class _AtHome(httpx2.AsyncBaseTransport):
    """Takes the configured headers off requests to other origins: they hold credentials."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, home: Target, headers: Mapping[str, str]) -> None:
        self._inner = inner
        self._home = home
        self._ours = {(name.lower(), value) for name, value in httpx2.Headers(dict(headers)).raw}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not within(self._home, leads_to(request.url)):
            request.headers = httpx2.Headers([item for item in request.headers.raw if (item[0].lower(), item[1]) not in self._ours])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def leads_to(url: httpx2.URL) -> Target:
    """The origin of a request that is on its way, to be compared with another one; whether it may be reached is judged elsewhere."""
    return Target(url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS.get(url.scheme, 80))


def _parts(url: httpx2.URL) -> Parts:
    return Parts(url.scheme, url.userinfo.decode("ascii"), url.raw_host.decode("ascii"), url.port)


def _goal(url: httpx2.URL) -> Target:
    """Where a request goes. Raises BlockedAddress."""
    try:
        parts = _parts(url)
    except ValueError:
        return check_url(str(url), lambda _: _parts(url))
    return _judged(str(url), parts)


@lru_cache(maxsize=REMEMBERED)
def _judged(text: str, parts: Parts) -> Target:
    """A verdict on a URL hangs on its text, on what the client's parser makes of it, and on nothing else."""
    return check_url(text, lambda _: parts)


def _parse(text: str) -> Parts:
    try:
        return _parts(httpx2.URL(text))
    except httpx2.InvalidURL as error:
        raise ValueError(str(error)) from None


class _Translated:
    """Raises errors of the layer below as those of the layer above. Written out, since each piece of a body passes through it."""

    __slots__ = ("_request",)

    def __init__(self, request: httpx2.Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            return
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error), request=self._request) from error


def _lowered(request: httpx2.Request) -> httpcore2.Request:
    """The request for the layer below. What it says of packings is ours to say: others are not unpacked."""
    url = request.url
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"accept-encoding"]
    return httpcore2.Request(
        method=request.method,
        url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=[*headers, (b"Accept-Encoding", b"gzip, identity")],
        content=request.stream,
        extensions=request.extensions,
    )


def _answer(request: httpx2.Request, goal: Target, found: httpcore2.Response, body: Body) -> httpx2.Response:
    """The answer with its body bounded and unpacked. Raises httpx2.RemoteProtocolError from ServerError."""
    if sum(len(name) + len(value) for name, value in found.headers) > HEADERS_LIMIT:
        raise refused(f"{goal.origin} answered with more than {HEADERS_LIMIT // 1024} kB of headers")
    headers = httpx2.Headers(found.headers)
    named = [name.strip().lower() for name in headers.get_list("content-encoding", split_commas=True)]
    packings = [name for name in named if name not in ("", "identity")]
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    stream: httpx2.AsyncByteStream
    if packings in ([], ["gzip"], ["x-gzip"]):
        limit = None if kind == "text/event-stream" else BODY_LIMIT
        stream = Bounded(body, goal.origin, limit=limit, packed=bool(packings))
    elif found.status >= 400:
        stream = Nothing(body)  # the status says enough
    else:
        shown = ", ".join(packings)[:60]
        raise refused(f"{goal.origin} packed its answer as {shown}, which was not asked for; the request has been carried out")
    if named:
        dropped = ("content-encoding", "content-length")
        headers = httpx2.Headers([item for item in headers.raw if item[0].decode("latin-1").lower() not in dropped])
    extensions = cast("dict[str, Any]", found.extensions)  # pyright: ignore[reportUnknownMemberType]
    return httpx2.Response(found.status, headers=headers, stream=stream, extensions=extensions, request=request)


async def _whole(response: httpx2.Response, limit: int) -> httpx2.Response:
    size = 0
    parts: list[bytes] = []
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise refused(f"{response.request.url.host} answered with more than {limit // 1024} kB")
    return httpx2.Response(response.status_code, headers=response.headers, content=b"".join(parts), request=response.request)
