"""Why an address is not an MCP server that can be used: the way there step by step, and what it answers. Through the guard only.

An answer is asked for where a session failed: one request as a client's first is. Where what answers is no endpoint, the usual
neighbours of the address are asked as well, on the same origin, and what was asked is told.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx2

from toolbay._lenient import as_object
from toolbay._redact import url as shown_url
from toolbay.auth.logins import Logins
from toolbay.config.models import ServerConfig, TransportType
from toolbay.diagnosis import answers, locks, ways
from toolbay.diagnosis.answers import ANSWER_SECONDS, Answer
from toolbay.diagnosis.findings import Notes, Step
from toolbay.errors import BlockedAddress, ConfigError, Refused
from toolbay.net import http
from toolbay.net.guard import Policy
from toolbay.net.steps import Walk, walk
from toolbay.upstream.engine import Credentials

BODY: Final = 64 * 1024
METADATA_SECONDS: Final = 3.0
"""How long it is looked for how to log in, at each place: what a refusal means is told in any case."""
_RESOURCE: Final = "/.well-known/oauth-protected-resource"
EXPIRING: Final = timedelta(days=14)
"""A certificate that ends sooner is told of."""
_GREETING: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "toolbay", "version": "0"}},
}


@dataclass(kw_only=True, slots=True)
class Reach:
    """What is known of the way to a server."""

    walk: Walk | None = None
    answer: Answer | None = None
    tried: dict[str, str] = field(default_factory=dict[str, str])
    """Addresses near it that were asked, and how."""

    @property
    def steps(self) -> tuple[Step, ...]:
        proxy = [Step(name="proxy", seconds=None, said=f"through {shown_url(self.walk.proxy)}")] if self.walk and self.walk.proxy else []
        found = [Step(name=step.stage.value, seconds=step.seconds, said=step.said) for step in (self.walk.steps if self.walk else ())]
        if self.answer is not None:
            found.append(Step(name="HTTP", seconds=self.answer.seconds, said=self.answer.said))
        return (*proxy, *found)


async def approach(config: ServerConfig, notes: Notes) -> Reach:
    """Walk to a server's address; what is wrong with the way there goes into `notes`."""
    try:
        goal = http.target(config.url)
        policy = _policy(config)
    except BlockedAddress as error:
        notes.error("its address may not be used", error.cause, error.mend or "correct `url`")
        return Reach()
    except ConfigError as error:
        notes.error("its address may not be used", str(error), "correct the list of ranges that is named")
        return Reach()
    walked = await walk(goal, policy)
    if walked.failed is not None:
        ways.tell(config, walked, policy, notes)
    elif (certificate := walked.certificate) is not None and certificate.ends - datetime.now(UTC) < EXPIRING:
        why = f"it is good until {certificate.ends:%Y-%m-%d %H:%M} UTC"
        notes.warning(f"the certificate of {goal.host} ends soon", why, "have whoever runs the server renew it")
    return Reach(walk=walked)


def _policy(config: ServerConfig) -> Policy:
    return http.policy_for(config.url, whitelist=config.ssrf_whitelist, fake_ip=config.fake_ip)


async def listen(name: str, config: ServerConfig, logins: Logins, reach: Reach, notes: Notes) -> None:
    """Ask a server, whose session failed, for one answer; what is wrong with it goes into `notes`. `startupTimeout` at the most.

    It is asked with the login that there is, as its session was.
    """
    if reach.walk is None or reach.walk.failed is not None:
        return
    with anyio.move_on_after(config.startup_timeout):
        credentials = logins.of(name, config)
        async with http.client(headers=config.headers, policy=_policy(config)) as client:
            try:
                found = await _asked_as_known(client, config, credentials)
            except Refused as refused:
                locks.tell_trouble(name, config, refused, notes)
                return
            reach.answer = answer = await _judged_by_its_looks(client, found)
            if not answer.status:
                answers.tell_silence(config, reach.walk, answer, notes)
            elif answer.status in (401, 403) and (answer.speaks or not answer.is_page):
                told_at = await _told_elsewhere(client, config) if credentials is not None and answer.is_mute else ""
                standing = await logins.standing(name, config)
                locks.tell(name, config, answer, notes, standing=standing, credentials=credentials, told_at=told_at)
            elif 300 <= answer.status < 400:
                answers.tell_redirect(config, answer, notes)
            elif answer.failing and not answer.is_page:
                answers.tell_error(config, answer, notes)
            elif not answer.speaks:
                answers.tell_no_endpoint(config, answer, await _look_beside(client, config, reach), reach.tried, notes)


async def _told_elsewhere(client: httpx2.AsyncClient, config: ServerConfig) -> str:
    """The path at which a server tells how to log in (RFC 9728, 3.1), though its refusal does not; empty where it tells nothing."""
    parts = urlsplit(config.url)
    for path in dict.fromkeys((_RESOURCE + parts.path.rstrip("/"), _RESOURCE)):
        with suppress(httpx2.HTTPError, BlockedAddress, TimeoutError, ValueError), anyio.fail_after(METADATA_SECONDS):
            found = await http.get(client, urlunsplit((parts.scheme, parts.netloc, path, "", "")), limit=BODY)
            if found.status_code == 200 and "authorization_servers" in as_object(found.json()):
                return path
    return ""


async def _asked_as_known(client: httpx2.AsyncClient, config: ServerConfig, credentials: Credentials | None) -> Answer:
    """`_asked` at a server's address, with the login that there is, as `upstream.authorized` does it. Raises Refused as that."""
    if credentials is None:
        return await _asked(client, config.url, config.type)
    async with credentials.at_work():
        used = await _carry(client, credentials)
        answer = await _asked(client, config.url, config.type)
        challenge = answer.headers.get("www-authenticate", "")
        if answer.status in (401, 403) and await credentials.renew(used, status=answer.status, challenge=challenge):
            await _carry(client, credentials)
            answer = await _asked(client, config.url, config.type)
        return answer


async def _carry(client: httpx2.AsyncClient, credentials: Credentials) -> str:
    """Have the client's requests, which all go to the server's own origin, carry the token that there is now."""
    token = await credentials.token()
    if token:
        client.headers["Authorization"] = f"Bearer {token}"
    return token


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
            await _end(client, url, response.headers.get("mcp-session-id"))
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


async def _judged_by_its_looks(client: httpx2.AsyncClient, answer: Answer) -> Answer:
    """Servers of pages have many answers to a POST: what they show to a browser says what they are."""
    if "html" not in answer.kind or not (answer.status == 200 or answer.status >= 400):
        return answer
    seen = answer if answer.status == 200 else await _asked(client, answer.url, TransportType.SSE)
    return replace(answer, is_page=seen.status == 200 and "html" in seen.kind)


async def _end(client: httpx2.AsyncClient, url: str, session: str | None) -> None:
    """What was begun only to look is ended."""
    if session:
        with suppress(httpx2.HTTPError):
            await client.request("DELETE", url, headers={"Mcp-Session-Id": session})


async def _beginning(response: httpx2.Response) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > BODY:
            break
    return body


async def _look_beside(client: httpx2.AsyncClient, config: ServerConfig, reach: Reach) -> tuple[str, TransportType] | None:
    """The first of the usual neighbours that is an endpoint."""
    for url, kind in _neighbours(config):
        how = "an event stream" if kind is TransportType.SSE else "a POST"
        reach.tried[url] = f"{reach.tried[url]} and {how}" if url in reach.tried else how
        if (await _asked(client, url, kind)).speaks:
            return url, kind
    return None


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
