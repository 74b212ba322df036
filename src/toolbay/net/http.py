"""The only place that builds HTTP clients.

Redirects are never followed by the client itself, and nothing is read from a body before its owner asks for it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache

import httpx2

CONNECT_TIMEOUT = 10.0
"""Seconds for DNS, TCP and TLS together with each address."""

Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]


@cache
def _tls() -> ssl.SSLContext:
    # One trust store for all clients: loading it costs 50 ms and 800 kB each time.
    return httpx2.create_ssl_context()


def client(*, headers: Mapping[str, str] | None = None, wrap: Wrap | None = None) -> httpx2.AsyncClient:
    """A client for one server; enter it to use it, leave it to close its connections.

    It has no read timeout: who waits for an answer has a deadline of its own, and event streams are silent for hours.
    `wrap` puts a transport around the one that dials.
    """
    transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=True)
    return httpx2.AsyncClient(
        transport=transport if wrap is None else wrap(transport),
        headers=dict(headers or {}),
        timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None, write=60.0, pool=60.0),
        follow_redirects=False,
    )
