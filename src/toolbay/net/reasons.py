"""Why an address could not be reached, in words: DNS, TLS, refused, timeout, or its proxy."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx2

from toolbay._redact import url as shown_url
from toolbay._text import line
from toolbay.errors import BlockedAddress, Refused, ToolbayError


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
    """Why an address could not be reached, in words (TRA-3): DNS, TLS, refused, timeout, or its proxy."""
    where = shown_url(url)
    if isinstance(error, httpx2.ProxyError) and not any(isinstance(cause, BlockedAddress) for cause in causes(error)):
        return Refused(f"{where} could not be reached through its proxy ({line(str(error), 200)}): check HTTP_PROXY, HTTPS_PROXY, NO_PROXY")
    for cause in causes(error):
        if isinstance(cause, BlockedAddress | Refused):
            return cause  # said already, by who knows more
        if isinstance(cause, socket.gaierror):
            return Refused(f"the name in {where} is not known to DNS: check the address")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Refused(f"the certificate of {where} was not accepted ({line(cause.verify_message, 120)})", retriable=False)
        if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError):
            return Refused(f"{where} closed the connection before it was ready (during TLS, or right after it took it)")
        if isinstance(cause, ssl.SSLError):
            return Refused(f"{where} does not speak TLS as expected ({cause.reason or 'no reason given'})", retriable=False)
        if isinstance(cause, ConnectionRefusedError):
            return Refused(f"{where} refused the connection: is the server running there?")
        if isinstance(cause, (httpx2.ConnectTimeout, TimeoutError)):
            return Refused(f"{where} did not answer the connection in time: check the address and the network")
        if isinstance(cause, httpx2.UnsupportedProtocol):
            return Refused(f"{where} is no http or https address: correct `url`", retriable=False)
    if isinstance(error, httpx2.RemoteProtocolError):
        return Refused(f"{where} gave an answer that is no proper HTTP ({line(str(error), 120)})")
    return Refused(f"{where} could not be reached ({type(error).__name__})")
