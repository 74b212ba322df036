"""Opens connections to checked addresses and to nothing else.

A name is resolved once for each new connection; what is dialled are literals that passed the policy, so a second answer of the
same name (DNS rebinding) is never asked for. TLS goes by the name, above this.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any

import anyio
import httpcore2

from toolbay._aio import bounded
from toolbay._text import line
from toolbay.errors import BlockedAddress
from toolbay.net.addresses import Address, canonical
from toolbay.net.guard import Policy, check_addresses, check_host
from toolbay.net.resolve import Resolver

CLOSE_TIMEOUT = 1.0
"""Seconds that the end of a connection may take."""
TAIL = 64
"""Bytes of what came last that a stream remembers."""
JOINED = 16 * 1024
"""Bytes of a request that leave in one piece. An idle connection takes as much at once, or nothing."""
HEAD_START = 0.25
"""Seconds that an address has for itself before the next one is tried beside it (RFC 8305, section 8)."""


class NothingTaken(httpcore2.WriteError):
    """The other end is closed, and not one byte of this request was taken."""


class Wire(httpcore2.AsyncNetworkStream):
    """A stream on which a request leaves in one piece, and which remembers how what it gave last ended.

    The layer above writes the head of a request and its body one after the other: two system calls and two packets, which
    are a fifth of what a small call costs. The end of what came shows a server that says more than its answer.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._begun = False
        self._head = b""
        self.last = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  the signature is httpcore2's
        if self._head:
            await self.write(b"", timeout)
        self._begun = False
        data = await self._inner.read(max_bytes, timeout)
        self.last = data[-TAIL:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  as above
        """What is written first after an answer waits for the next write, which comes for every request, be it of nothing.

        Raises:
            NothingTaken: it was refused before anything of it was taken.
            httpcore2.WriteError: it was refused later.
        """
        if not self._begun:
            self._head, self._begun = buffer, bool(buffer)
            return
        if self._head:
            together = len(self._head) + len(buffer) <= JOINED
            first, self._head = self._head + buffer if together else self._head, b""
            try:
                await self._inner.write(first, timeout)
            except httpcore2.WriteError as error:
                raise NothingTaken(str(error)) from error
            if together:
                return
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as above
    ) -> httpcore2.AsyncNetworkStream:
        return Wire(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class Dialler(httpcore2.AsyncNetworkBackend):
    """The network of a connection pool. `network` opens the sockets; it is given literals only."""

    def __init__(self, policy: Policy, resolve: Resolver, network: httpcore2.AsyncNetworkBackend) -> None:
        self._policy = policy
        self._resolve = resolve
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A stream to one of the host's addresses. `timeout` seconds are for the look-up and all attempts together.

        Raises BlockedAddress, httpcore2.ConnectError and httpcore2.ConnectTimeout.
        """
        del local_address, socket_options  # nobody here sets them
        try:
            with anyio.fail_after(timeout):
                answers = [host] if check_host(host) else await self._resolve(host, port)
                addresses = check_addresses(host, answers, self._policy.toward(host, port))
                return Wire(await self._first(host, addresses, port))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error
        except socket.gaierror as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  the signature is httpcore2's
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        del timeout, socket_options
        raise BlockedAddress(f"{path} is a socket file, which no server is reached through", "set an http or https `url`")

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def _first(self, host: str, addresses: Sequence[Address], port: int) -> httpcore2.AsyncNetworkStream:
        """The first connection that stands. The addresses start in order, each when the one before has failed or is slow."""
        if len(addresses) == 1:
            return await self._dial(host, addresses[0], port)
        standing: list[httpcore2.AsyncNetworkStream] = []
        failures: list[Exception] = []

        async def attempt(address: Address, failed: anyio.Event) -> None:
            try:
                stream = await self._dial(host, address, port)
            except (BlockedAddress, httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failures.append(error)
                failed.set()
                return
            if standing:
                await close(stream)
                return
            standing.append(stream)
            attempts.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as attempts:
                for address in addresses:
                    failed = anyio.Event()
                    attempts.start_soon(attempt, address, failed, name=f"dial {address}")
                    with anyio.move_on_after(HEAD_START):
                        await failed.wait()
        except BaseException:
            for stream in standing:
                await close(stream)
            raise
        if standing:
            return standing[0]
        raise next((error for error in failures if isinstance(error, BlockedAddress)), failures[-1])

    async def _dial(self, host: str, address: Address, port: int) -> httpcore2.AsyncNetworkStream:
        stream = await self._network.connect_tcp(str(address), port)
        try:
            peer = stream.get_extra_info("server_addr")
            reached = canonical(ip_address(peer[0])) if peer else None
        except OSError as error:
            # The other end hung up in the same moment.
            await close(stream)
            raise httpcore2.ConnectError(str(error)) from error
        if reached != address:
            await close(stream)
            raise BlockedAddress(f"{host} was dialled at {address}, but {reached or 'something unknown'} answered", "check the network")
        return stream


class ProxyDialler(Dialler):
    """The network of a pool whose connections all lead to a proxy: that it cannot be reached is no word about the server behind it."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """As `Dialler.connect_tcp`. Raises httpcore2.ProxyError in the place of its connection errors, in words."""
        try:
            return await super().connect_tcp(host, port, timeout, local_address, socket_options)
        except httpcore2.ConnectTimeout as error:
            raise httpcore2.ProxyError(f"the proxy {host}:{port} did not answer the connection in time") from error
        except httpcore2.ConnectError as error:
            raise httpcore2.ProxyError(f"the proxy {host}:{port} could not be reached ({_why(error)})") from error


def _why(error: BaseException) -> str:
    """The operating system's word for it."""
    while (cause := error.__cause__) is not None:
        error = cause
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return line(str(error), 100) or type(error).__name__


async def close(stream: httpcore2.AsyncNetworkStream) -> None:
    """Close it, also where the caller is cancelled; bounded."""
    await bounded(CLOSE_TIMEOUT, stream.aclose)
