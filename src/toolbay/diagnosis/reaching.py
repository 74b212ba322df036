"""Why an address is not an MCP server that can be used: the way there step by step, and what it answers. Through the guard only.

An answer is asked for where a session failed: one request as a client's first is. Where what answers is no endpoint, the usual
neighbours of the address are asked as well, on the same origin, and what was asked is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urljoin, urlsplit, urlunsplit

import anyio
import httpx2

from toolbay._redact import url as shown_url
from toolbay.config.models import ServerConfig, TransportType
from toolbay.diagnosis.findings import Notes, Step
from toolbay.errors import BlockedAddress, ConfigError
from toolbay.net import http
from toolbay.net.addresses import AS_OF
from toolbay.net.guard import Policy, check_addresses
from toolbay.net.steps import Stage, Walk, led_to, refusal, unknown_name, walk

ANSWER_SECONDS: Final = 10.0
"""How long one answer may take."""
BODY: Final = 64 * 1024
EXPIRING: Final = timedelta(days=14)
"""A certificate that ends sooner is told of."""
_GREETING: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "toolbay", "version": "0"}},
}
_CHALLENGE = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')


@dataclass(kw_only=True, slots=True)
class Reach:
    """What is known of the way to a server."""

    walk: Walk | None = None
    answer: Answer | None = None
    tried: list[str] = field(default_factory=list[str])

    @property
    def steps(self) -> tuple[Step, ...]:
        found = [Step(name=step.stage.value, seconds=step.seconds, said=step.said) for step in (self.walk.steps if self.walk else ())]
        if self.answer is not None:
            found.append(Step(name="HTTP", seconds=self.answer.seconds, said=self.answer.said))
        return tuple(found)


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

    @property
    def said(self) -> str:
        return f"{self.status} {self.kind or 'without a content type'}" if self.status else "no answer"

    @property
    def speaks(self) -> bool:
        """Whether it looks like an MCP endpoint: JSON-RPC, an event stream, or a lock before one."""
        if self.status in (401, 403):
            return "www-authenticate" in self.headers
        return self.status == 200 and (self.kind == "text/event-stream" or (self.kind == "application/json" and '"jsonrpc"' in self.body))


async def approach(config: ServerConfig, notes: Notes) -> Reach:
    """Walk to a server's address; what is wrong with the way there goes into `notes`."""
    try:
        goal = http.target(config.url)
        policy = _policy(config)
    except (BlockedAddress, ConfigError) as error:
        notes.error("its address may not be used", str(error), "correct `url`, or the list of ranges that is named")
        return Reach()
    walked = await walk(goal, policy)
    if walked.failed is not None:
        _tell_way(config, walked, policy, notes)
    elif (certificate := walked.certificate) is not None and certificate.ends - datetime.now(UTC) < EXPIRING:
        why = f"it is good until {certificate.ends:%Y-%m-%d %H:%M} UTC"
        notes.warning(f"the certificate of {goal.host} ends soon", why, "have whoever runs the server renew it")
    return Reach(walk=walked)


def _policy(config: ServerConfig) -> Policy:
    return http.policy_for(config.url, whitelist=config.ssrf_whitelist, fake_ip=config.fake_ip)


def _tell_way(config: ServerConfig, walked: Walk, policy: Policy, notes: Notes) -> None:
    goal = http.target(config.url)
    through = f"through the proxy {shown_url(walked.proxy)} " if walked.proxy else ""
    where = shown_url(walked.proxy) if walked.proxy else goal.origin
    if walked.failed is Stage.GUARD or any(isinstance(cause, BlockedAddress) for cause in led_to(walked.failure)):
        _tell_verdict(config, walked, policy, notes)
    elif walked.failed is Stage.DNS:
        unknown = unknown_name(walked.failure)
        why = f"DNS does not know its name ({unknown.strerror})" if unknown else "DNS did not answer in time"
        mend = "check the proxy's address" if walked.proxy else "check the name in `url`, and whether a VPN is needed"
        notes.error(f"{where} was not found", why, mend)
    elif walked.failed is Stage.TCP:
        refused = any(isinstance(cause, ConnectionRefusedError) for cause in led_to(walked.failure))
        why = (
            "the connection was refused: nothing listens there"
            if refused
            else "no connection came about in time, or the network has no way"
        )
        mend = "check the proxy" if walked.proxy else "start the server, and check host and port in `url`"
        notes.error(f"{where} could not be reached {through}".rstrip(), why, mend)
    else:
        _tell_tls(goal.host, goal.port, walked, notes)


def _tell_verdict(config: ServerConfig, walked: Walk, policy: Policy, notes: Notes) -> None:
    """Which of the addresses is closed, by which rule, and what would open it: the guard's own words say all three."""
    goal = http.target(config.url)
    known = [] if goal.literal else [f"{goal.host} is {', '.join(walked.addresses)}"]
    shown = [*known, f"the guard's tables are of {AS_OF}"]
    for address in walked.addresses:
        try:
            check_addresses(goal.host, [address], policy.toward(goal.host, goal.port))
        except BlockedAddress as error:
            rule, _, entry = str(error).partition(": ")
            notes.error("the network guard closes the way to its address", rule, entry or "correct `url`", shown)
            return
    notes.error("the network guard closes the way to its address", str(walked.failure), "correct `url`, or the proxy's address")


def _tell_tls(host: str, port: int, walked: Walk, notes: Notes) -> None:
    refused, shown = refusal(walked.failure), walked.certificate
    if refused is None:
        why = f"what answers on port {port} does not speak TLS as expected"
        notes.error(f"no secure connection to {host} came about", why, "check the port in `url`, and whether it should begin with http://")
        return
    lines: list[str] = []
    if shown is not None:
        names = f" for {', '.join(shown.names[:5])}" if shown.names else ""
        lines = [
            f"certificate of {shown.subject or '(no name)'}{names}, issued by {shown.issuer}",
            f"good until {shown.ends:%Y-%m-%d %H:%M} UTC",
        ]
    if shown is not None and shown.ends < datetime.now(UTC):
        mend = "have whoever runs the server renew it; where it is new, check this machine's clock"
    elif "match" in refused.verify_message or "not valid for" in refused.verify_message:
        mend = "write the name into `url` that the certificate is for"
    else:
        mend = "where it is a company's or your own, name its authority: SSL_CERT_FILE=/path/to/authority.pem"
    notes.error(f"the certificate of {host} was not accepted", refused.verify_message, mend, lines)


async def listen(config: ServerConfig, reach: Reach, notes: Notes) -> None:
    """Ask a server, whose session failed, for one answer; what is wrong with it goes into `notes`."""
    if reach.walk is None or reach.walk.failed is not None:
        return
    async with http.client(headers=config.headers, policy=_policy(config)) as client:
        reach.answer = answer = await _asked(client, config.url, config.type)
        if not answer.status:
            _tell_silence(config, reach.walk, answer, notes)
        elif answer.status in (401, 403):
            _tell_lock(config, answer, notes)
        elif 300 <= answer.status < 400:
            _tell_redirect(config, answer, notes)
        elif answer.status in (404, 405, 406, 410) or "html" in answer.kind or not answer.speaks:
            await _tell_no_endpoint(client, config, reach, notes)


async def _asked(client: httpx2.AsyncClient, url: str, kind: TransportType) -> Answer:
    """One request as a client's first is: a greeting, or for an event stream."""
    began = anyio.current_time()
    if kind is TransportType.SSE:
        request = client.build_request("GET", url, headers={"Accept": "text/event-stream"})
    else:
        request = client.build_request("POST", url, json=_GREETING, headers={"Accept": "application/json, text/event-stream"})
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            response = await client.send(request, stream=True)
            try:
                content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                body = b"" if content_type == "text/event-stream" else await _beginning(response)
            finally:
                await response.aclose()
            if session := response.headers.get("mcp-session-id"):
                # What was begun only to look is ended.
                await client.request("DELETE", url, headers={"Mcp-Session-Id": session})
    except (TimeoutError, httpx2.HTTPError) as error:
        return Answer(url=url, seconds=anyio.current_time() - began, failure=error)
    return Answer(
        url=url,
        status=response.status_code,
        kind=content_type,
        headers={name.lower(): value for name, value in response.headers.items()},
        body=body.decode("utf-8", "replace"),
        seconds=anyio.current_time() - began,
    )


async def _beginning(response: httpx2.Response) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > BODY:
            break
    return body


def _tell_silence(config: ServerConfig, walked: Walk, answer: Answer, notes: Notes) -> None:
    where = shown_url(config.url)
    blocked = next((cause for cause in led_to(answer.failure) if isinstance(cause, BlockedAddress)), None)
    if blocked is not None:
        notes.error("the network guard closes the way to its address", str(blocked), "correct `url`, or the proxy's address")
        return
    timed_out = isinstance(answer.failure, (TimeoutError, httpx2.TimeoutException))
    why = f"it takes connections and gave no answer within {ANSWER_SECONDS:g} s" if timed_out else "it hung up instead of answering"
    if walked.proxy:
        why += f" (through the proxy {shown_url(walked.proxy)})"
    notes.error(f"{where} does not answer", why, "check that it is an HTTP server and the right port, and look into the server's own log")


def _tell_lock(config: ServerConfig, answer: Answer, notes: Notes) -> None:
    challenge = answer.headers.get("www-authenticate", "")
    asked = {name.lower(): quoted or plain for name, quoted, plain in _CHALLENGE.findall(challenge)}
    scheme = challenge.split(" ", 1)[0]
    wants = f"it asks for {scheme}" if scheme else "it does not say what for"
    details = [f"{name} {asked[name]}" for name in ("realm", "scope", "error", "error_description") if asked.get(name)]
    why = f"HTTP {answer.status}, {wants}" + (f" ({', '.join(details)})" if details else "")
    given = next((name for name in config.headers if name.lower() == "authorization"), "")
    if answer.status == 403 or asked.get("error") == "insufficient_scope":
        mend = "the credentials are known and may not do this: ask for the right, or use others"
    elif given:
        mend = "the Authorization header in `headers` is not accepted: renew the token, and check that its variable is set"
    else:
        mend = "put a token into `headers`, such as Authorization: Bearer ${TOKEN}"
        mend += " (logging in through a browser is not supported yet)" if "resource_metadata" in asked else ""
    shown = [f"WWW-Authenticate: {challenge}"] if challenge else []
    notes.error(
        f"{shown_url(config.url)} wants credentials" if answer.status == 401 else f"{shown_url(config.url)} refuses access",
        why,
        mend,
        shown,
    )


def _tell_redirect(config: ServerConfig, answer: Answer, notes: Notes) -> None:
    there = urljoin(config.url, answer.headers.get("location", ""))
    if there == config.url:
        why, mend = f"HTTP {answer.status}, and it does not say where to", "check `url` with whoever runs the server"
    elif re.search(r"/(?:login|signin|sign-in|sso|auth|oauth)\b", urlsplit(there).path):
        why, mend = (
            f"HTTP {answer.status} to {shown_url(there)}, which looks like a login",
            "put a token into `headers`; a browser's login does not help",
        )
    else:
        why = (
            f"HTTP {answer.status} to {shown_url(there)}; what is sent to a server goes to no other origin, and no redirect loses a message"
        )
        mend = f"set `url` to {shown_url(there)} if that is right"
    notes.error(f"{shown_url(config.url)} redirects", why, mend)


async def _tell_no_endpoint(client: httpx2.AsyncClient, config: ServerConfig, reach: Reach, notes: Notes) -> None:
    answer = reach.answer
    assert answer is not None
    where = shown_url(config.url)
    is_page = "html" in answer.kind
    what = f"{where} is a web page, not an MCP endpoint" if is_page and answer.status == 200 else f"{where} is no MCP endpoint"
    why = f"it answered HTTP {answer.status} with {answer.kind or 'no content type'}"
    if answer.status >= 500 or answer.status in (400, 408, 409, 413, 415, 422, 429):
        asked = f"; it asks to wait {answer.headers['retry-after']} s" if "retry-after" in answer.headers else ""
        mend = "look into the server's own log" if answer.status >= 500 else "check `url`, `headers` and `protocolVersion`"
        mend = "try again later" if answer.status in (429, 503) else mend
        notes.error(
            f"{where} answers with an error", f"HTTP {answer.status}{asked}", mend, [answer.body] if answer.body and not is_page else []
        )
        return
    for url, kind in _neighbours(config):
        reach.tried.append(shown_url(url))
        if (await _asked(client, url, kind)).speaks:
            mend = f"set `url` to {shown_url(url)}" + (" and `type` to sse" if kind is TransportType.SSE else "")
            notes.error(what, why, mend, [f"also asked, through the guard: {', '.join(reach.tried)}"])
            return
    usual = " or ".join(shown_url(urljoin(config.url, place)) for place in ("/mcp", "/sse"))
    mend = f"ask whoever runs it for the address of its MCP endpoint; often that is {usual}"
    shown = [f"also asked, through the guard, and none is one: {', '.join(reach.tried)}"] if reach.tried else []
    notes.error(what, why, mend, shown)


def _neighbours(config: ServerConfig) -> list[tuple[str, TransportType]]:
    """Where an endpoint usually is that is not at the address itself: on the same origin, five at the most."""
    parts = urlsplit(config.url)
    path = parts.path.rstrip("/")
    other = TransportType.HTTP if config.type is TransportType.SSE else TransportType.SSE
    found: dict[tuple[str, TransportType], None] = {(parts.path, other): None} if parts.path.strip("/") else {}
    for base in (path, path.rsplit("/", 1)[0], ""):
        found |= {(f"{base}/mcp", TransportType.HTTP): None, (f"{base}/sse", TransportType.SSE): None}
    found.pop((parts.path, config.type), None)
    return [(urlunsplit((parts.scheme, parts.netloc, place, parts.query, "")), kind) for place, kind in list(found)[:5]]
