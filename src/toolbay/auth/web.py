"""The requests of a login: through the network's guard, bounded in time and size, and never a secret along a redirect."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, cast
from urllib.parse import quote, urlencode

import anyio
import httpx2

from toolbay._lenient import as_object
from toolbay._redact import mask
from toolbay._redact import url as shown_url
from toolbay._text import clean, line
from toolbay.config.models import ServerConfig
from toolbay.errors import LoginFailed, ToolbayError
from toolbay.net import http
from toolbay.net.guard import check_redirect
from toolbay.net.reasons import unreachable

PATIENCE = 15.0
"""Seconds for one request, from the name's look-up to the end of its answer."""
ANSWER_LIMIT = 256 * 1024
"""Bytes of one answer; documents of authorization servers have a few thousand."""
FOR_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same may be asked again."""


class Unreachable(LoginFailed):
    """There was no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came back from `url`."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any] | None:
        """Its JSON object; None where it is none."""
        try:
            return cast("dict[str, Any]", found) if isinstance(found := json.loads(self.body), dict) else None
        except (ValueError, RecursionError):
            return None

    @property
    def for_later(self) -> bool:
        """Whether it says nothing of what was asked: another time the answer may be another one."""
        return self.status in FOR_LATER or self.status >= 500

    @property
    def said(self) -> str:
        """What it says, for people, on one line: the fields of an OAuth error (RFC 6749, 5.2), else the beginning of a text."""
        return self.said_without(())

    def said_without(self, secrets: Iterable[str]) -> str:
        """`said` where `secrets` were sent, which an answer may say back."""
        given = as_object(self.json)
        parts = [given[key] for key in ("error", "error_description") if isinstance(given.get(key), str)]
        for_machines = bool(parts) or "html" in self.headers.get("content-type", "")
        text = ": ".join(parts) if for_machines else self.body.decode("utf-8", "replace")
        # Masked before it is cut: of a secret that was cut, a part would stay.
        return line(mask(clean(text), secrets), 200)


class Web:
    """Asks for documents and tokens."""

    def __init__(self, client: httpx2.AsyncClient, *, until: float = inf) -> None:
        self._client = client
        self.until = until
        """When all of it must have come to an end, by the loop's clock."""

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        """A document; redirects are followed within the origin.

        Raises:
            BlockedAddress: the guard refuses the address, or one that it leads to.
            Unreachable: it could not be reached, or not in time (retriable).
        """
        asked = {"Accept": "application/json", **(headers or {})}
        return await self._asked(url, lambda: http.get(self._client, url, headers=asked, limit=ANSWER_LIMIT))

    async def peek(self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str]) -> Answer:
        """Status and headers of an answer, whose body may be a stream without an end. Redirects and errors are those of `get`."""
        return await self._asked(url, lambda: self._peeked(method, url, content, headers))

    async def post(self, url: str, content: bytes, *, kind: str, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a post of `content`, whose media type is `kind`; no redirect is followed. Raises as `get`."""
        told = {"Accept": "application/json", "Content-Type": kind, **(headers or {})}
        return await self._asked(url, lambda: http.post(self._client, url, content=content, headers=told, limit=ANSWER_LIMIT))

    async def form(self, url: str, fields: Mapping[str, str], *, basic: tuple[str, str] | None = None) -> Answer:
        """The answer to a form; `basic` is who asks, and a secret (RFC 6749, 2.3.1). Raises as `get`."""
        headers: dict[str, str] = {}
        if basic is not None:
            pair = ":".join(quote(part, safe="") for part in basic)
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await self.post(url, urlencode(fields).encode(), kind="application/x-www-form-urlencoded", headers=headers)

    async def _peeked(self, method: str, url: str, content: bytes, headers: Mapping[str, str]) -> httpx2.Response:
        here, followed = http.target(url), 0
        while True:
            response = await self._client.send(self._client.build_request(method, url, content=content, headers=headers), stream=True)
            await response.aclose()
            if response.next_request is None:
                return httpx2.Response(response.status_code, headers=response.headers, request=response.request)
            url = str(response.next_request.url)
            there = http.target(url)
            check_redirect(here, there, followed=followed, same_method=response.next_request.method == method)
            here, followed = there, followed + 1

    async def _asked(self, url: str, ask: Any) -> Answer:
        left = min(PATIENCE, max(self.until - anyio.current_time(), 0.0))
        try:
            with anyio.fail_after(left):
                found: httpx2.Response = await ask()
        except TimeoutError:
            raise Unreachable(f"{shown_url(place(url))} did not answer within {left:.{0 if left >= 1 else 1}f} s", retriable=True) from None
        except httpx2.TransportError as error:
            raise _failed(unreachable(error, place(url))) from error
        return Answer(url=url, status=found.status_code, headers=found.headers, body=found.content)


@asynccontextmanager
async def web(config: ServerConfig, *, until: float = inf) -> AsyncGenerator[Web]:
    """The way to a server's own origin, to the public internet, and to what its entry allows (`ssrfWhitelist`); nowhere else.

    `until`: when all of it must have come to an end, by the loop's clock.

    Raises BlockedAddress for a server whose URL is refused whatever it resolves to.
    """
    policy = http.policy_for(config.url, whitelist=config.ssrf_whitelist, fake_ip=config.fake_ip)
    async with http.client(policy=policy) as client:
        yield Web(client, until=until)


def place(url: str) -> str:
    """What is said of `url` to people: of a document at a well-known address, whose it is."""
    return url.partition("/.well-known/")[0]


def _failed(reason: ToolbayError) -> ToolbayError:
    """What the guard says stays as it is; what the network says may be another tomorrow."""
    retriable = getattr(reason, "retriable", None)
    return reason if retriable is None else Unreachable(str(reason), retriable=retriable)
