"""What an address answers, and what it means where that is not an MCP server's answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx2

from toolbay._redact import url as shown_url
from toolbay.config.models import ServerConfig, TransportType
from toolbay.diagnosis import ways
from toolbay.diagnosis.findings import Notes
from toolbay.errors import ServerError
from toolbay.net.steps import Walk, led_to, verdict

ANSWER_SECONDS: Final = 10.0
"""How long one answer may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came back for one request. `status` is 0 where nothing did."""

    url: str
    status: int = 0
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: str = ""
    seconds: float = 0.0
    failure: BaseException | None = None
    is_page: bool = False
    """Whether the address answers a look at it with a page for people."""

    @property
    def said(self) -> str:
        return f"{self.status} {self.kind or 'without a content type'}" if self.status else "no answer"

    @property
    def speaks(self) -> bool:
        """Whether it looks like an MCP endpoint: JSON-RPC, an event stream, or a lock before one."""
        if self.status in (401, 403):
            return "www-authenticate" in self.headers
        return self.status == 200 and (self.kind == "text/event-stream" or (self.kind == "application/json" and '"jsonrpc"' in self.body))

    @property
    def is_mute(self) -> bool:
        """Whether it is a lock that does not say what opens it."""
        return self.status == 401 and not self.headers.get("www-authenticate", "").strip()

    @property
    def failing(self) -> bool:
        """Whether it is an error that says nothing about the address: of the server, or about the request. 501: it knows no POST."""
        return (self.status >= 500 and self.status != 501) or self.status in (400, 408, 409, 413, 415, 422, 429)


def tell_silence(config: ServerConfig, walked: Walk, answer: Answer, notes: Notes) -> None:
    where = shown_url(config.url)
    if (blocked := verdict(answer.failure)) is not None:
        ways.tell_closed(blocked, notes)
        return
    shown: list[str] = []
    if isinstance(answer.failure, (TimeoutError, httpx2.TimeoutException)):
        why = f"it takes connections and gave no answer within {ANSWER_SECONDS:g} s"
    elif (told := next((cause for cause in led_to(answer.failure) if isinstance(cause, ServerError)), None)) is not None:
        why = str(told)
    else:
        why, shown = "it hung up, or what it sent is no HTTP", list(filter(None, [str(answer.failure)]))
    if walked.proxy:
        why += f" (through the proxy {shown_url(walked.proxy)})"
    mend = "check that it is an HTTP server and the right port, and look into the server's own log"
    notes.error(f"{where} does not answer", why, mend, shown)


def _target(url: str, location: str) -> str:
    """Where a redirect leads; `url` itself where it does not say so properly."""
    try:
        there = urljoin(url, location)
        urlsplit(there)
    except ValueError:
        return url
    return there


def tell_redirect(config: ServerConfig, answer: Answer, notes: Notes) -> None:
    there = _target(config.url, answer.headers.get("location", ""))
    if there == config.url:
        why, mend = f"HTTP {answer.status}, and it does not say where to", "check `url` with whoever runs the server"
    elif re.search(r"/(?:login|signin|sign-in|sso|auth|oauth)\b", urlsplit(there).path):
        why, mend = (
            f"HTTP {answer.status} to {shown_url(there)}, which looks like a login",
            "put a token into `headers`; logging in at that page does not help",
        )
    else:
        why = (
            f"HTTP {answer.status} to {shown_url(there)}; what is sent to a server goes to no other origin, and no redirect loses a message"
        )
        mend = f"set `url` to {shown_url(there)}"
        if urlsplit(there).hostname != urlsplit(config.url).hostname:
            # An address in the configuration is consent, also for one inside of a network that the guard keeps closed.
            mend = f"ask whoever runs the server whether it is at {shown_url(there)} now, and do not take its own word for that"
    notes.error(f"{shown_url(config.url)} redirects", why, mend)


def tell_error(config: ServerConfig, answer: Answer, notes: Notes) -> None:
    asked = f"; it asks to wait {answer.headers['retry-after']} s" if "retry-after" in answer.headers else ""
    if answer.status in (429, 503):
        mend = "try again later"
    else:
        mend = "look into the server's own log" if answer.status >= 500 else "check `url`, `headers` and `protocolVersion`"
    shown = [answer.body] if answer.body.strip() and "html" not in answer.kind else []
    notes.error(f"{shown_url(config.url)} answers with an error", f"HTTP {answer.status}{asked}", mend, shown)


def tell_no_endpoint(
    config: ServerConfig, answer: Answer, beside: tuple[str, TransportType] | None, tried: Mapping[str, str], notes: Notes
) -> None:
    """What answers is something else. `beside` is the endpoint that was found near it, after the addresses in `tried` were asked.

    `tried` has for each how it was asked.
    """
    what = f"{shown_url(config.url)} is {'a web page, not an' if answer.is_page else 'no'} MCP endpoint"
    why = f"it answered HTTP {answer.status} with {answer.kind or 'no content type'}"
    if answer.is_page and answer.status != 200:
        why += ", and shows a page to who only looks at it"
    asked = ", ".join(f"{shown_url(url)} ({how})" for url, how in tried.items())
    if beside is None:
        usual = [urljoin(config.url, path) for path in ("/mcp", "/sse")]
        left = " or ".join(shown_url(url) for url in usual if url not in tried and url != config.url)
        mend = "ask whoever runs it for the address of its MCP endpoint" + (f"; often that is {left}" if left else "")
        notes.error(what, why, mend, [f"asked as well, through the guard, and none is one: {asked}"] if tried else [])
        return
    url, kind = beside
    kinds = f"`type` to {'sse' if kind is TransportType.SSE else 'streamableHttp'}"
    mend = f"set {kinds}" if url == config.url else f"set `url` to {shown_url(url)}" + (f" and {kinds}" if kind is not config.type else "")
    notes.error(what, why, mend, [f"asked as well, through the guard: {asked}"])
