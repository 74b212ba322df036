"""An authorization server on bare sockets, with the metadata of the servers it protects, that does exactly the wrong thing it is told to.

It runs in the test's own loop: `async with RawOAuth() as oauth, RawHttp() as server: oauth.protect(server)`. It checks for real what a
client must do right: PKCE, redirect addresses, how clients say who they are, codes and rotated refresh tokens that count once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from servers.raw_http import Json, RawHttp, Request, Sockets, Step
from servers.raw_sse import RawSse
from support import persons

RIGHT = "right"
_PRM = "/.well-known/oauth-protected-resource"
_OAUTH = "/.well-known/oauth-authorization-server"
_OIDC = "/.well-known/openid-configuration"


@dataclass(kw_only=True)
class Known:
    """A client that is known here. `method`: how it says who it is; empty: any way that its secret allows."""

    id: str
    secret: str = ""
    method: str = ""
    redirect_uris: tuple[str, ...] = ()
    """Where it may be led to; any port of this machine (RFC 8252, 7.3). Empty: anywhere."""


@dataclass(kw_only=True)
class Grant:
    """What was allowed once, and the tokens that came of it."""

    client: str
    scopes: tuple[str, ...]
    resource: str
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the authorization was asked with."""
    refresh: str = ""
    """The refresh token that counts now."""
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class _Issued:
    grant: Grant
    scopes: tuple[str, ...]
    ends_at: float


class _No(Exception):
    """An error answer of an endpoint (RFC 6749, 5.2; RFC 7591, 3.2.2)."""

    def __init__(self, code: str, why: str = "", *, status: int = 400) -> None:
        self.step = _json({"error": code, **({"error_description": why} if why else {})}, status=status)


class RawOAuth(Sockets):
    """The authorization server. What it has seen is in its attributes.

    `steps`, by endpoint: prm, metadata, authorize, register, token, revoke; by grant besides (authorization_code, refresh_token,
    client_credentials), which go before `token`. A `Step()` answers what is right; `wait` waits for `gate` before; `effect` does
    what was asked for though the answer goes wrong.
    """

    def __init__(self, *, path: str = "", port: int = 0) -> None:
        super().__init__(port=port)
        self.path = path
        """Of the issuer, without a slash at its end."""
        self.metadata: Json = {}
        """Laid over the metadata; None takes a field away."""
        self.prm: Json = {}
        """The same for the metadata of what is protected."""
        self.metadata_at: set[str] = {"oauth", "oidc", "oidc-appended"}
        """Which of the well-known addresses of the metadata are there."""
        self.prm_at: set[str] = {"path", "root"}
        """Which of the well-known addresses of the metadata of what is protected are there; or a path of your own."""
        self.challenge: str | None = None
        """The WWW-Authenticate header in the place of the right one; empty: none."""
        self.challenge_names: set[str] = {"resource_metadata"}
        """What the right one says: resource_metadata, scope."""
        self.scopes: tuple[str, ...] | None = None
        """`scopes_supported` of what is protected."""
        self.needs: dict[str, tuple[str, ...]] = {}
        """Scopes that a request must have, by tool or method of the protocol; "" for every request."""
        self.iss: str | None = RIGHT
        """The `iss` of redirects; None: none, and the metadata do not promise it."""
        self.refuses = ""
        """The error that the person's answer leads back with, such as access_denied."""
        self.state: str | None = RIGHT
        """The `state` of redirects; None: none."""
        self.registers = True
        self.cimd: dict[str, tuple[str, ...]] | None = None
        """Addresses that are clients, with their redirect addresses; None: not supported."""
        self.auth_methods: tuple[str, ...] = ("none", "client_secret_basic", "client_secret_post")
        self.secret_ends: int | None = None
        """`client_secret_expires_at` of registrations."""
        self.registered: Json = {}
        """Laid over the answers to registrations."""
        self.chosen = ""
        """The access token that is given, in the place of one that nobody knows."""
        self.answer: Json = {}
        """Laid over the answers of the token endpoint; None takes a field away."""
        self.lifetime: int | str | None = 3600
        """`expires_in`; what is no number is said, but ends nothing."""
        self.refreshable = True
        self.rotates = True
        self.grants_only: tuple[str, ...] | None = None
        """Scopes that are granted whatever is asked for; None: what is asked for."""
        self.wants_resource = True
        self.now: Callable[[], float] = time.time
        self.clients: dict[str, Known] = {}
        self.paths: Counter[str] = Counter()
        """Requests by path, with those that are answered at the doors of protected servers."""
        self.forms: list[dict[str, str]] = []
        """Of the token endpoint, in order."""
        self.authorizations: list[dict[str, str]] = []
        """Queries of the authorization endpoint, in order."""
        self.registrations: list[Json] = []
        self.revocations: list[str] = []
        """Tokens that were revoked by who has them."""
        self.codes = 0
        """Codes that were exchanged."""
        self.refreshes = 0
        """Refresh tokens that were taken."""
        self.denied: list[str] = []
        """What protected servers were brought in vain ("" for nothing), in order; 401 and 403."""
        self._grants: dict[str, Grant] = {}
        self._refreshing: dict[str, Grant] = {}
        self._issued: dict[str, _Issued] = {}
        self._count = 0

    approve = staticmethod(persons.approve)
    """The person says yes to a page: the address that it leads to."""
    visit = staticmethod(persons.visit)
    """The same, and the browser goes there."""

    @property
    def origin(self) -> str:
        return self.at("127.0.0.1")

    @property
    def issuer(self) -> str:
        return f"{self.origin}{self.path}"

    def know(self, client_id: str, secret: str = "", *, method: str = "", redirect_uris: tuple[str, ...] = ()) -> Known:
        """A client that is known without a registration."""
        self.clients[client_id] = Known(id=client_id, secret=secret, method=method, redirect_uris=redirect_uris)
        return self.clients[client_id]

    def protect(self, server: RawHttp | RawSse, *, itself: bool = False) -> None:
        """`server` takes exactly the tokens that are valid now, and tells where they are had.

        `itself`: as in the era of 2025-03 it has no such metadata, and its own origin answers as this server.
        """

        async def door(request: Request) -> Step | None:
            path = urlsplit(request.target).path
            if itself and not path.startswith("/mcp"):
                return await self._answered(request, server.at("127.0.0.1").removesuffix("/mcp"))
            if path.startswith(_PRM) or path in self.prm_at:
                self.paths[path] += 1
                return await self._stepped("prm", lambda: self._resource(path, server.url))
            return self._refusal(request, server.url, told=not itself)

        server.door = door

    def guards(self, token: str) -> bool:
        """Whether `token` is valid now."""
        found = self._issued.get(token)
        return found is not None and not found.grant.ended and self.now() < found.ends_at

    def granted(self, token: str) -> tuple[str, ...]:
        """The scopes of a token that was given once."""
        return self._issued[token].scopes

    def expire(self) -> None:
        """All access tokens end now; refresh tokens stay."""
        self._issued.clear()

    def end(self) -> None:
        """All that was granted is taken back, as its person can do."""
        for grant in (*self._refreshing.values(), *(issued.grant for issued in self._issued.values())):
            grant.ended = True

    def give(self, client_id: str = "", *scopes: str, resource: str = "", refreshable: bool = True) -> tuple[str, str]:
        """An access token and a refresh token, as if somebody had logged in before."""
        grant = Grant(client=client_id, scopes=scopes, resource=resource)
        given = self._tokens(grant, scopes, refreshable=refreshable)
        return given["access_token"], given.get("refresh_token", "")

    def _resource(self, path: str, url: str) -> Step:
        if path not in {{"root": _PRM, "path": f"{_PRM}{urlsplit(url).path}"}.get(name, name) for name in self.prm_at}:
            return Step(kind="status", status=404)
        scopes = {} if self.scopes is None else {"scopes_supported": list(self.scopes)}
        return _json(_laid({"resource": url, "authorization_servers": [self.issuer], **scopes}, self.prm))

    def _refusal(self, request: Request, url: str, *, told: bool) -> Step | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        message = json.loads(request.body) if request.method == "POST" else {}
        names = ("", message.get("method", ""), (message.get("params") or {}).get("name", ""))
        needed = tuple(dict.fromkeys(scope for name in names for scope in self.needs.get(name, ())))
        if not self.guards(token):
            error, status = ("invalid_token" if token else ""), 401
        elif set(needed) - set(self.granted(token)):
            error, status = "insufficient_scope", 403
        else:
            return None
        self.denied.append(token)
        says = {"error": error} if error else {}
        if told and "resource_metadata" in self.challenge_names:
            at = next((path for path in self.prm_at if path.startswith("/")), f"{_PRM}{urlsplit(url).path}")
            says["resource_metadata"] = url.removesuffix(urlsplit(url).path) + at
        if needed and (status == 403 or "scope" in self.challenge_names):
            says["scope"] = " ".join(needed)
        right = " ".join(["Bearer", ", ".join(f'{name}="{value}"' for name, value in says.items())]).strip()
        header = right if self.challenge is None else self.challenge
        return Step(kind="status", status=status, headers={"WWW-Authenticate": header} if header else {})

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> bool:
        return await self._send(writer, await self._answered(request, self.origin))

    async def _answered(self, request: Request, origin: str) -> Step:
        path = urlsplit(request.target).path
        self.paths[path] += 1
        known = {"oauth": f"{_OAUTH}{self.path}", "oidc": f"{_OIDC}{self.path}", "oidc-appended": f"{self.path}{_OIDC}"}
        if path in {known[name] for name in self.metadata_at}:
            return await self._stepped("metadata", lambda: _json(self._metadata(origin)))
        form = dict(parse_qsl(request.body.decode())) if request.method == "POST" else {}
        name = path.removeprefix(f"{self.path}/")
        if name == "authorize" and request.method == "GET":
            return await self._stepped(name, lambda: self._authorize(dict(parse_qsl(urlsplit(request.target).query)), origin))
        if name == "register" and request.method == "POST" and self.registers:
            return await self._stepped(name, lambda: self._register(json.loads(request.body)))
        if name == "token" and request.method == "POST":
            self.forms.append(form)
            grant = form.get("grant_type", "")
            return await self._stepped(grant if grant in self.steps else name, lambda: self._token(form, request.headers))
        if name == "revoke" and request.method == "POST":
            return await self._stepped(name, lambda: self._revoke(form, request.headers))
        return Step(kind="status", status=404)

    async def _stepped(self, name: str, right: Callable[[], Step]) -> Step:
        step = self._next(name) or Step()
        if step.wait:
            await self.gate.wait()
        as_it_should = step.kind == "json" and step.status == 200 and step.wire is None
        try:
            answer = right() if as_it_should or step.effect else step
        except _No as refused:
            answer = refused.step
        return answer if as_it_should else step

    def _metadata(self, origin: str) -> Json:
        issuer = f"{origin}{self.path}"
        found: Json = {
            "issuer": issuer,
            **{f"{what}_endpoint": f"{issuer}/{path}" for what, path in (("authorization", "authorize"), ("token", "token"))},
            "revocation_endpoint": f"{issuer}/revoke",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
        }
        if self.registers:
            found["registration_endpoint"] = f"{issuer}/register"
        if self.iss is not None:
            found["authorization_response_iss_parameter_supported"] = True
        if self.cimd is not None:
            found["client_id_metadata_document_supported"] = True
        return _laid(found, self.metadata)

    def _authorize(self, query: dict[str, str], origin: str) -> Step:
        self.authorizations.append(query)
        client, back = self._client(query.get("client_id", "")), query.get("redirect_uri", "")
        if client is None or not _leads(client.redirect_uris, back):
            raise _No("invalid_request", "no such client, or not with this redirect address")
        if query.get("response_type") != "code" or query.get("code_challenge_method") != "S256" or not query.get("code_challenge"):
            raise _No("invalid_request", "a code is given with PKCE only")
        if self.wants_resource and not query.get("resource"):
            raise _No("invalid_target", "no resource is named")
        says = {"error": self.refuses} if self.refuses else {"code": self._new("code")}
        if not self.refuses:
            scopes = tuple(query.get("scope", "").split())
            self._grants[says["code"]] = Grant(client=client.id, scopes=scopes, resource=query.get("resource", ""), form=query)
        for name, knob, right in (("state", self.state, query.get("state")), ("iss", self.iss, f"{origin}{self.path}")):
            if knob is not None and (value := right if knob == RIGHT else knob) is not None:
                says[name] = value
        return Step(kind="status", status=302, headers={"Location": f"{back}{'&' if '?' in back else '?'}{urlencode(says)}"})

    def _register(self, asked: Json) -> Step:
        self.registrations.append(asked)
        method = asked.get("token_endpoint_auth_method", "client_secret_basic")
        if method not in self.auth_methods or not asked.get("redirect_uris"):
            raise _No("invalid_client_metadata", f"{method} is not known here, or no redirect address is named")
        client = self.know(self._new("client", secret=False), method=method, redirect_uris=tuple(asked["redirect_uris"]))
        given = {**asked, "client_id": client.id, "token_endpoint_auth_method": method}
        if method != "none":
            client.secret = self._new("secret")
            given |= {"client_secret": client.secret, "client_secret_expires_at": self.secret_ends or 0}
        return _json(_laid(given, self.registered), status=201)

    def _token(self, form: dict[str, str], headers: Mapping[str, str]) -> Step:
        client, kind = self._who(form, headers), form.get("grant_type", "")
        if self.wants_resource and not form.get("resource"):
            raise _No("invalid_target", "no resource is named")
        if kind == "authorization_code":
            grant = self._grants.pop(form.get("code", ""), None)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
            if grant is None or grant.client != client.id or grant.form["redirect_uri"] != form.get("redirect_uri"):
                raise _No("invalid_grant", "no such code, or not for this client and address")
            if grant.form["code_challenge"] != challenge:
                raise _No("invalid_grant", "the verifier is wrong")
            scopes = grant.scopes
        elif kind == "refresh_token":
            grant = self._refreshing.get(form["refresh_token"])
            if grant is None or grant.client != client.id or grant.ended:
                raise _No("invalid_grant", "no such refresh token")
            if grant.refresh != form["refresh_token"]:  # it was used before: somebody has stolen it (RFC 9700, 4.14.2)
                grant.ended = True
                raise _No("invalid_grant", "the refresh token was used already")
            scopes = tuple(form.get("scope", "").split()) or grant.scopes
        elif kind == "client_credentials" and client.secret:
            scopes = tuple(form.get("scope", "").split())
            grant = Grant(client=client.id, scopes=scopes, resource=form.get("resource", ""))
        else:
            raise _No("unsupported_grant_type")
        if grant.resource != form.get("resource", ""):
            raise _No("invalid_target", "it was allowed for another resource")
        self.codes += kind == "authorization_code"
        self.refreshes += kind == "refresh_token"
        return _json(_laid(self._tokens(grant, scopes, refreshable=self.refreshable and kind != "client_credentials"), self.answer))

    def _tokens(self, grant: Grant, scopes: tuple[str, ...], *, refreshable: bool) -> Json:
        if self.grants_only is not None:
            scopes = self.grants_only
        ends_at = self.now() + int(self.lifetime or 0) if str(self.lifetime).isdigit() else float("inf")
        given: Json = {
            "access_token": self.chosen or self._new("access"),
            "token_type": "Bearer",
            "expires_in": self.lifetime,
            "scope": " ".join(scopes),
        }
        self._issued[given["access_token"]] = _Issued(grant=grant, scopes=scopes, ends_at=ends_at)
        if refreshable and (self.rotates or not grant.refresh):
            grant.refresh = given["refresh_token"] = self._new("refresh")
            self._refreshing[grant.refresh] = grant
        return {name: value for name, value in given.items() if value not in (None, "")}

    def _revoke(self, form: dict[str, str], headers: Mapping[str, str]) -> Step:
        client, token = self._who(form, headers), form.get("token", "")
        self.revocations.append(token)
        if (grant := self._refreshing.get(token)) is not None and grant.client == client.id:
            grant.ended = True
        self._issued.pop(token, None)
        return Step(kind="status")

    def _client(self, client_id: str) -> Known | None:
        if self.cimd is not None and client_id in self.cimd:
            return Known(id=client_id, method="none", redirect_uris=self.cimd[client_id])
        return self.clients.get(client_id)

    def _who(self, form: dict[str, str], headers: Mapping[str, str]) -> Known:
        kind, _, basic = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            client_id, _, secret = (unquote(part) for part in base64.b64decode(basic).decode().partition(":"))
            used = "client_secret_basic"
        else:
            client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
            used = "client_secret_post" if secret else "none"
        client = self._client(client_id)
        if client is None or client.secret != secret or used not in self.auth_methods or (client.method and client.method != used):
            raise _No("invalid_client", "no such client, or not in this way", status=401)
        return client

    def _new(self, what: str, *, secret: bool = True) -> str:
        self._count += 1
        return f"canary-{what}-{self._count}-{token_hex(16)}" if secret else f"{what}-{self._count}"


def _json(value: Json, *, status: int = 200) -> Step:
    body = json.dumps(value).encode()
    return Step(kind="status", status=status, headers={"Content-Type": "application/json", "Cache-Control": "no-store"}, body=body)


def _laid(under: Json, over: Json) -> Json:
    return {name: value for name, value in {**under, **over}.items() if value is not None}


def _leads(allowed: tuple[str, ...], back: str) -> bool:
    return bool(back) and (not allowed or any(_without_port(known) == _without_port(back) for known in allowed))


def _without_port(url: str) -> str:
    """A loopback address without its port, which may be another one each time (RFC 8252, 7.3)."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.hostname or "").geturl() if parts.hostname in ("127.0.0.1", "::1", "localhost") else url
