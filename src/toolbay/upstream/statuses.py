"""What an HTTP error status says of a request: whether it may have been carried out, and when it may be sent again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx2

from toolbay._lenient import as_object, as_text
from toolbay._redact import url as shown_url
from toolbay._text import clean, line
from toolbay.auth.challenges import bearer
from toolbay.auth.trust import secure
from toolbay.errors import AuthRequired, Busy, ServerError, ToolbayError

REFUSED = frozenset({400, 401, 403, 404, 405, 406, 407, 410, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429, 431})
"""Statuses that say, by their definition, that a request was refused before it was carried out (RFC 9110, 15.5; RFC 6585; RFC 8470).

Of others nobody knows: proxies answer 408, 499 or 5xx to requests that their server is still at work on.
"""
NOT_PROCESSED = frozenset({421, 425})
"""The request came to the wrong place, or too early: it may be sent again at once."""
REJECTED = frozenset({-32700, -32600, -32601, -32602, -32020, -32021, -32022})
"""JSON-RPC codes that say, by contract, that a request was refused before anything was done."""
ASKS_FOR_PATIENCE = frozenset({*NOT_PROCESSED, 429, 503})
MEND = "toolbay.mend"
"""The extension of an HTTP response that says why it was denied, and what to do: a clause, where more is known than its headers tell."""


def refused_status(response: httpx2.Response, body: str, url: str, safe: Callable[[str], str]) -> ToolbayError:
    """What an HTTP error status means for a connection or a call. `safe` masks the secrets that a body says back."""
    status, headers = response.status_code, response.headers
    where = shown_url(url)
    told = line(safe(_told(response, clean(body))), 200)
    said = f": {told}" if told else ""
    if status in (401, 403):
        # What is known of a login names the server by its command; and what to do comes before what others said.
        known = response.extensions.get(MEND)
        text = f"HTTP {status}, {known}" if known else f"{where} answered HTTP {status}, {_denial(response, url)}"
        return AuthRequired(f"{text} (it says: {told})" if told else text, code=status)
    if status == 404:
        return ServerError(f"{where} answered HTTP 404: there is no MCP endpoint at this address{said}", code=404, ran=False)
    if status == 405:
        text = f"{where} answered HTTP 405: it does not take this kind of MCP transport; try `type: sse`{said}"
        return ServerError(text, code=405, ran=False)
    return refusal(status, headers, f"{where} answered HTTP {status}{patience(headers)}{said}", code=status)


def refusal(status: int, headers: httpx2.Headers, text: str, *, code: int, data: object = None, answered: bool = False) -> ServerError:
    """The error of a request that got this status, in the words of `text`. `answered`: it is the server's own answer to it."""
    ran = False if status in REFUSED or code in REJECTED else True if answered else None
    wait = retry_after(headers)
    if status in NOT_PROCESSED and wait is None:
        wait = 0.0
    if wait is not None and status in ASKS_FOR_PATIENCE:
        return Busy(text, code=code, data=data, retry_after=wait, ran=ran and None)
    return ServerError(text, code=code, data=data, ran=ran)


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds that a server asks to wait (RFC 9110, 10.2.3): as a number or as a date; None where it says nothing that can be read."""
    given = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", given):
        return float(given)
    until = _date(given)
    if until is None:
        return None
    # By the server's own clock, where it says what that shows.
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max((until - now).total_seconds(), 0.0)


def patience(headers: httpx2.Headers) -> str:
    """How long a server asks to wait, in parentheses; nothing where it does not."""
    wait = retry_after(headers)
    return "" if not wait else f" (it asks to wait {in_words(wait)})"


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def in_words(seconds: float) -> str:
    """A time to wait, for people: `7 s`, `5 h`, `3650 days`."""
    if seconds < 2 * 3600:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 3600)} h" if seconds < 2 * 86_400 else f"{math.ceil(seconds / 86_400)} days"


def _denial(response: httpx2.Response, url: str) -> str:
    """Why it was denied where no login is used, as far as the challenge tells (RFC 6750, 3), and what to do."""
    header = response.headers.get("www-authenticate", "")
    challenge = bearer(header)
    if response.status_code == 403:
        lacking = challenge.scopes if challenge is not None else None
        return f"the credentials lack the scope {line(' '.join(lacking), 100)}" if lacking else "access was denied"
    if "authorization" in response.request.headers:
        return "the Authorization header in `headers` is not accepted: correct it, and check that its variable is set"
    if challenge is not None and not secure(url):
        return "it wants a login, which is not sent where others could read it on the way: set a `url` that begins with https://"
    header_alone = "it wants credentials: set an Authorization header in `headers`"
    if (header.strip() and challenge is None) or not secure(url):
        return header_alone
    return f"{header_alone}, or take `auth: none` out of its entry and log in"


def _told(response: httpx2.Response, body: str) -> str:
    """What a body says besides status and challenge; of an OAuth error (RFC 6749, 5.2) what is meant for people, or its code."""
    if "html" in response.headers.get("content-type", "").lower():
        return ""
    try:
        given = as_object(json.loads(body))
    except (ValueError, RecursionError):
        given = {}
    told = (as_text(given.get("error_description")) or as_text(given.get("error")) or body).strip()
    phrases = [one.phrase.casefold() for one in HTTPStatus if one == response.status_code]
    return "" if told.casefold() in phrases or told in response.headers.get("www-authenticate", "") else told
