"""From a server's address to its authorization server: RFC 9728, RFC 8414, OpenID Connect Discovery, every address judged.

What one step says is only believed where its own origin says it: the server's metadata may not come from elsewhere (attack
9), and an authorization server's must name the very server that it was looked for as (attack 8).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import urlsplit

import anyio

from toolbay._lenient import as_text
from toolbay.auth import trust
from toolbay.auth.challenges import Challenge, bearer, scopes
from toolbay.auth.records import Authority
from toolbay.auth.web import Answer, Unreachable, Web, place
from toolbay.config.models import LoginConfig, ServerConfig, TransportType
from toolbay.errors import BlockedAddress, LoginFailed
from toolbay.net.guard import within
from toolbay.net.http import target

PROTOCOL = "2025-11-25"
"""The revision that an `initialize` without a token offers; a server that wants one says so before it looks at this."""
MOST_ISSUERS, MOST_TRIED = 20, 3
MOST_METHODS = 20
ENDING = 2.0
"""Seconds that the end of a session may take that was begun only to ask."""
_METHOD = re.compile(r"[!-~]{1,100}")
_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


async def asked(web: Web, config: ServerConfig) -> Challenge | None:
    """What the server says to who comes without a token. None where it lets him in, or wants something else than a token.

    Raises:
        BlockedAddress: as `Web.get`.
        LoginFailed: as `Web.get`; or the server has trouble of its own (retriable).
    """
    answer = await _begun(web, config)
    if answer.for_later:
        raise _trouble(answer)
    said = _challenge(answer)
    if said is not None or config.type is TransportType.SSE:
        return said
    # Some let everybody begin, and look at tokens from there on.
    return _challenge(await web.peek("POST", config.url, content=_LIST, headers={**_ours(config), **_OF_POST, **_OF_LIST}))


async def _begun(web: Web, config: ServerConfig) -> Answer:
    """What the server answers to the first request that its transport makes."""
    if config.type is TransportType.SSE:
        return await web.peek("GET", config.url, headers={**_ours(config), "Accept": "text/event-stream"})
    answer = await web.peek("POST", config.url, content=_INITIALIZE, headers={**_ours(config), **_OF_POST})
    if session := answer.headers.get("mcp-session-id", ""):
        await _end(web, config, session)
    return answer


async def _end(web: Web, config: ServerConfig, session: str) -> None:
    """What was begun only to ask is not left behind, where that can be had."""
    with anyio.move_on_after(ENDING), suppress(LoginFailed, BlockedAddress):
        await web.peek("DELETE", config.url, headers={**_ours(config), "Mcp-Session-Id": session})


def _ours(config: ServerConfig) -> dict[str, str]:
    return {name: value for name, value in config.headers.items() if name.lower() != "authorization"}


def _challenge(answer: Answer) -> Challenge | None:
    header = answer.headers.get("www-authenticate", "")
    if answer.status == 401:
        return bearer(header) if header.strip() else Challenge()
    return bearer(header) if answer.status == 403 else None


async def discover(web: Web, config: ServerConfig, challenge: Challenge | None) -> Authority:
    """The authorization server of a server that answered with `challenge` (see `asked`).

    `auth.issuer` goes before what the server names. A server that names none is one of the era of 2025-03: its own origin is
    looked at, and where that says nothing, and a token is wanted, it is taken to have /authorize, /token and /register.

    Raises:
        BlockedAddress: the guard refuses an address that would have to be asked.
        LoginFailed: there is none, it cannot be reached (retriable), or something that was said must not be trusted.
    """
    login = config.auth or LoginConfig()
    home = target(config.url)
    protected = await _protected(web, config, challenge)
    named = _Named((login.issuer,), by_hand=True) if login.issuer else _Named(protected.issuers, only_first=bool(login.client_id))
    metadata = await _first(web, named) if named.issuers else await _at_origin(web, home.origin)
    if metadata is None and protected.blocked is not None:
        raise protected.blocked
    if metadata is None and challenge is None:
        raise LoginFailed(await _no_login(web, config, home.origin))
    return _authority(metadata or _of_old(home.origin), protected, login)


async def _no_login(web: Web, config: ServerConfig, origin: str) -> str:
    """Why there is none with a server that asks for none and names no authorization server."""
    if 200 <= (await _begun(web, config)).status < 300:
        return f"{origin} wants none, and takes requests without one"
    return (
        f"{origin} does not say how to log in, and did not ask for it: "
        'set `auth: {issuer: "https://..."}` on this server if its authorization server is known'
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """The authorization servers that one may be asked of, in this order."""

    issuers: tuple[str, ...]
    by_hand: bool = False
    """Whether the configuration names it, and not the server."""
    only_first: bool = False
    """Whether the others are not asked unless a person says so: what is known at one of them is not shown to another one."""

    def mend(self, at: int) -> str:
        """What may be done where the one `at` this place is not the right one."""
        if self.by_hand:
            return "correct `auth.issuer` of this server if it is another one"
        others = [issuer for issuer in self.issuers if issuer != self.issuers[at]]
        if not others:
            return "set `auth: {issuer: ...}` on this server if another one is right"
        return f'the server names {trust.shown(others[0])} as well, which `auth: {{issuer: "..."}}` on this server chooses'


@dataclass(frozen=True, kw_only=True, slots=True)
class _Protected:
    """What a server says of itself (RFC 9728, 2)."""

    resource: str
    issuers: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    blocked: BlockedAddress | None = None
    """What kept it from being asked for more."""


@dataclass(slots=True)
class _Shelf:
    """Documents at well-known addresses. What keeps one from being had counts once none of them is there."""

    web: Web
    blocked: BlockedAddress | None = field(default=None, init=False)

    async def document(self, url: str) -> dict[str, Any] | None:
        """The JSON object at `url`; None where there is none. Raises LoginFailed where nobody knows (a 5xx is no "not there")."""
        try:
            answer = await self.web.get(url, headers={"MCP-Protocol-Version": PROTOCOL})
        except BlockedAddress as error:
            self.blocked = self.blocked or error
            return None
        if answer.for_later:
            raise _trouble(answer)
        return answer.json if 200 <= answer.status < 300 else None


async def _protected(web: Web, config: ServerConfig, challenge: Challenge | None) -> _Protected:
    """What the server says of itself, at the address in its challenge, else at the well-known ones; by itself if it says nothing."""
    shelf = _Shelf(web)
    for url in _addresses_of(config, challenge):
        found = await shelf.document(url)
        if found is None or not ("resource" in found or "authorization_servers" in found):
            continue
        resource = as_text(found.get("resource")) or _canonical(config.url)
        if not _covers(resource, config.url):
            raise LoginFailed(
                f"{trust.shown(url)} is about {trust.shown(resource)}, not about {trust.shown(config.url)}: a token for it"
                " would belong to another server; correct `url`, or tell who runs the server"
            )
        issuers = tuple(item for item in _texts(found.get("authorization_servers")) or () if item)[:MOST_ISSUERS]
        wanted = _texts(found.get("scopes_supported"))
        return _Protected(resource=resource, issuers=issuers, scopes=None if wanted is None else scopes(" ".join(wanted)) or None)
    return _Protected(resource=_canonical(config.url), blocked=shelf.blocked)


def _addresses_of(config: ServerConfig, challenge: Challenge | None) -> Iterator[str]:
    """Where a server's metadata may be, the likeliest first (RFC 9728, 3.1)."""
    named = challenge.resource_metadata if challenge else ""
    if named:
        yield _own(named, config)
    parts = urlsplit(config.url)
    origin = target(config.url).origin
    query = f"?{parts.query}" if parts.query else ""
    tails = (f"{parts.path}{query}", parts.path.rstrip("/")) if parts.path.strip("/") else (query,) if query else ()
    for tail in dict.fromkeys((*tails, "")):
        if (url := f"{origin}{_RESOURCE}{tail}") != named:
            yield url


def _own(url: str, config: ServerConfig) -> str:
    """`url`, which a challenge names, if it is of the server's own origin, or a person has said that its host may be asked."""
    home = target(config.url)
    try:
        if within(home, target(url)):
            return url
    except BlockedAddress:
        pass
    there = trust.clear(url, what=f"the metadata's address that {home.origin} names")
    if config.auth is not None and there.host in config.auth.hosts:
        return url
    raise LoginFailed(
        f"{home.origin} says that {there.host} tells how to log in to it; that is not the server itself, so it is not asked: "
        f'if both are known to belong together, add `auth: {{hosts: ["{there.host}"]}}` to this server'
    )


async def _first(web: Web, named: _Named) -> Mapping[str, Any]:
    """What the first authorization server says of itself that can be reached: the choice is the client's (RFC 9728, 7.6)."""
    failures: list[LoginFailed] = []
    for at, issuer in enumerate(named.issuers[:MOST_TRIED]):
        try:
            return await _metadata(web, issuer, mend=named.mend(at))
        except Unreachable as error:
            text = f"the authorization server {trust.shown(issuer)} cannot be asked: {error}; {named.mend(at)}"
            failures.append(LoginFailed(text, retriable=error.retriable))
            if named.only_first:
                break
    raise failures[0]


async def _metadata(web: Web, issuer: str, *, mend: str = "set the right one as `auth: {issuer: ...}` on this server") -> Mapping[str, Any]:
    """What the authorization server `issuer` says of itself (RFC 8414, 3.3: under exactly this name)."""
    shown = trust.shown(issuer)
    trust.clear(issuer, what="the authorization server")
    if "?" in issuer:
        raise LoginFailed(f"the authorization server is {shown}, which is not used: such a name has no query")
    shelf, other = _Shelf(web), ""
    for url in _well_known(issuer):
        found = await shelf.document(url)
        named = as_text((found or {}).get("issuer"))
        if found is not None and trust.same(named, issuer):
            return found
        other = other or named
    if other:
        raise LoginFailed(
            f"the authorization server was looked for as {shown}, and says that it is {trust.shown(other)}, so it is not used: {mend}"
        )
    if shelf.blocked is not None:
        raise BlockedAddress(f"its authorization server, {shown}, cannot be asked, for {shelf.blocked.cause}", shelf.blocked.mend)
    raise LoginFailed(
        f"the authorization server {shown} does not say how to log in there (no OAuth metadata at its well-known addresses): {mend}"
    )


async def _at_origin(web: Web, origin: str) -> Mapping[str, Any] | None:
    """What the origin of a server of 2025-03 says, as its own authorization server or of the one that it names; None if nothing."""
    shelf = _Shelf(web)
    for url in _well_known(origin):
        found = await shelf.document(url)
        named = as_text((found or {}).get("issuer"))
        if found is not None and named:
            return found if trust.same(named, origin) else await _metadata(web, named)
    if shelf.blocked is not None:
        raise shelf.blocked
    return None


def _of_old(origin: str) -> Mapping[str, Any]:
    """What is taken of a server that says nothing (2025-03-26, basic/authorization, 2.3.3); PKCE was a must then."""
    return {
        "issuer": origin,
        "authorization_endpoint": f"{origin}/authorize",
        "token_endpoint": f"{origin}/token",
        "registration_endpoint": f"{origin}/register",
        "code_challenge_methods_supported": ["S256"],
    }


def _well_known(issuer: str) -> Iterator[str]:
    """Where an authorization server's metadata may be, in the order of the specification (2025-11-25 on)."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    yield f"{origin}{_OAUTH}{path}"
    yield f"{origin}{_OPENID}{path}"
    if path:
        yield f"{origin}{path}{_OPENID}"


def _authority(metadata: Mapping[str, Any], protected: _Protected, login: LoginConfig) -> Authority:
    issuer = as_text(metadata.get("issuer"))
    shown = trust.shown(issuer)
    by_person = login.type == "oauth"

    def endpoint(name: str, *, needed: bool = False, used: bool = True) -> str:
        url = as_text(metadata.get(f"{name}_endpoint"))
        if needed and not url:
            raise LoginFailed(f"the authorization server {shown} names no {name} endpoint: set another one as `auth: {{issuer: ...}}`")
        return trust.check(url, what=f"{name} endpoint", issuer=issuer, hosts=login.hosts) if url and used else ""

    if by_person and "S256" not in (_texts(metadata.get("code_challenge_methods_supported")) or ()) and not login.assume_pkce:
        raise LoginFailed(
            f"the authorization server {shown} does not say that it protects a login's code (PKCE, S256), without which others could "
            "use it: if it is known to do so, set `auth: {assumePkce: true}` on this server"
        )
    return Authority(
        issuer=issuer,
        resource=protected.resource,
        token_endpoint=endpoint("token", needed=True),
        authorization_endpoint=endpoint("authorization", needed=by_person, used=by_person),
        registration_endpoint=endpoint("registration", used=by_person and not login.client_id),
        revocation_endpoint=endpoint("revocation"),
        scopes=protected.scopes,
        offline_access="offline_access" in (_texts(metadata.get("scopes_supported")) or ()),
        methods=tuple(filter(_METHOD.fullmatch, _texts(metadata.get("token_endpoint_auth_methods_supported")) or ()))[:MOST_METHODS],
        names_itself=metadata.get("authorization_response_iss_parameter_supported") is True,
        takes_addresses=metadata.get("client_id_metadata_document_supported") is True,
    )


def _canonical(url: str) -> str:
    """A server's own name as a resource, where it says none (RFC 8707, 2): its address without a query, which may hold a key."""
    return f"{target(url).origin}{urlsplit(url).path.rstrip('/')}"


def _covers(resource: str, url: str) -> bool:
    """Whether a token for `resource` is one for the server at `url`: the same, or above it on the same origin."""
    if len(resource) > trust.LONGEST or not resource.isprintable():
        return False
    try:
        there, home = target(resource), target(url)
    except BlockedAddress:
        return False
    above, ours = urlsplit(resource), urlsplit(url)
    if (there.scheme, there.host, there.port) != (home.scheme, home.host, home.port) or above.query not in ("", ours.query):
        return False
    return f"{ours.path.rstrip('/')}/".startswith(f"{above.path.rstrip('/')}/") and ".." not in ours.path


def _trouble(answer: Answer) -> LoginFailed:
    said = f": {answer.said}" if answer.said and "?" not in answer.url else ""
    where = trust.shown(place(answer.url))
    return LoginFailed(f"{where} answered HTTP {answer.status}, so it is not known how to log in; try again later{said}", retriable=True)


def _texts(value: object) -> tuple[str, ...] | None:
    """The texts in a list, or a single one; None where there is neither."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in cast("list[object]", value) if isinstance(item, str)) if isinstance(value, list) else None


_OF_POST = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_ABOUT_US = {"name": "toolbay", "version": version("toolbay")}
_INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": _ABOUT_US},
    }
).encode()
_LATER = "2026-07-28"
_OF_LIST = {"MCP-Protocol-Version": _LATER, "Mcp-Method": "tools/list"}
_META = "io.modelcontextprotocol"
_LIST = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/list",
        "params": {"_meta": {f"{_META}/protocolVersion": _LATER, f"{_META}/clientInfo": _ABOUT_US, f"{_META}/clientCapabilities": {}}},
    }
).encode()
"""What stands alone in the later era, and in the earlier one is refused for its token before anything else is looked at."""
