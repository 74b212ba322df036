"""Who we are at an authorization server: an id given by hand, an address of our own, or an id that is asked for (RFC 7591)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolbay._lenient import as_object, as_text
from toolbay._text import line
from toolbay.auth import trust
from toolbay.auth.challenges import union
from toolbay.auth.records import Authority, Client, Method
from toolbay.auth.web import Answer, Web
from toolbay.config.logins import is_visible, loopback
from toolbay.config.models import LoginConfig
from toolbay.errors import LoginFailed

NAME = "Toolbay"
"""What a person reads when asked whether this client may act for him."""
PORT = 8765
"""What is proposed to who must choose one: in no range from which systems give ports away."""
EARLIER = 30.0
"""Seconds before its end from which a secret is not relied on."""
LATEST = 1e11
"""Seconds since 1970 until which anything may be said to last."""
LONGEST_ID, LONGEST_SECRET = 2_000, 8_000
"""Characters; some are signed documents."""
_WITH_SECRET: Mapping[str, Method] = {"client_secret_basic": "client_secret_basic", "client_secret_post": "client_secret_post"}


async def client_for(
    web: Web,
    authority: Authority,
    config: LoginConfig,
    *,
    redirect_uri: str,
    scopes: Sequence[str],
    known: Client | None = None,
) -> Client:
    """The client for a login at `authority`; `known` is the one of the login before, if there was one.

    Raises:
        BlockedAddress: as `Web.get`.
        LoginFailed: there is no way to an id, none was given (retriable: not now), or a person must say first that the one that
            was given by hand belongs to this authorization server.
    """
    if config.client_id:
        return _given(authority, config, known)
    if config.client_metadata_url and authority.takes_addresses:
        return Client(id=config.client_metadata_url, issuer=authority.issuer)
    if not authority.registration_endpoint:
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} gives nobody a client id by itself: "
            f"register a client there {_by_hand(config)}"
        )
    return await _registered(web, authority, config, redirect_uri, scopes)


def usable(client: Client, authority: Authority, config: LoginConfig, *, scopes: Sequence[str], now: Callable[[], float]) -> bool:
    """Whether a client of an earlier login may serve again, for these scopes: many may ask only for what their id was asked for with."""
    if client.scopes is not None and not set(scopes) <= set(client.scopes):
        return False
    if client.issuer != authority.issuer or (client.ends_at is not None and now() >= client.ends_at - EARLIER):
        return False
    if config.client_id:
        return (client.id, client.secret) == (config.client_id, config.client_secret)
    if config.client_metadata_url and authority.takes_addresses:
        return client.id == config.client_metadata_url
    return client.asked_for


def current(client: Client, authority: Authority, config: LoginConfig) -> Client:
    """The client of a login as it is now: one that was given by hand has the secret that is configured, and shows it as it did."""
    if client.asked_for or client.id != config.client_id or client.secret == config.client_secret:
        return client
    shown = client.method if client.secret else _with_secret(authority.methods)
    return replace(client, secret=config.client_secret, method=shown if config.client_secret else "none")


def _given(authority: Authority, config: LoginConfig, known: Client | None) -> Client:
    if config.type == "client_credentials" and not config.issuer:
        # Nobody sees a page, so that whoever speaks for the server could have the secret.
        raise LoginFailed(f"`auth` has no `issuer`, so `clientSecret` is shown to nobody: {unnamed(authority)}")
    moved = known is not None and (known.id, known.asked_for) == (config.client_id, False) and known.issuer != authority.issuer
    if moved and known is not None and not config.issuer:
        raise LoginFailed(
            f"the server names another authorization server, {trust.shown(authority.issuer)}, than before, {trust.shown(known.issuer)};"
            " it is not shown `clientId` unasked: set the right one as `auth: {issuer: ...}` on this server"
        )
    method = _with_secret(authority.methods) if config.client_secret else "none"
    return Client(id=config.client_id, secret=config.client_secret, issuer=authority.issuer, method=method)


def unnamed(authority: Authority) -> str:
    """What a person may do where only the server says that a client that was given by hand belongs to `authority`: a clause."""
    issuer = trust.shown(authority.issuer)
    return f'the server names {issuer}; if that is who gave the client, set `auth: {{issuer: "{issuer}"}}` on this server'


def _with_secret(methods: Sequence[str]) -> Method:
    """How a secret is shown: the way that the authorization server names first; basic where it names none (RFC 8414, 2)."""
    return _WITH_SECRET[next((named for named in methods if named in _WITH_SECRET), "client_secret_basic")]


async def _registered(web: Web, authority: Authority, config: LoginConfig, redirect_uri: str, scopes: Sequence[str]) -> Client:
    method: Method = "none" if "none" in authority.methods or not authority.methods else _with_secret(authority.methods)
    asked: dict[str, Any] = {
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "application_type": "native",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }

    def register(metadata: Mapping[str, Any]) -> Awaitable[Answer]:
        return web.post(authority.registration_endpoint, json.dumps(metadata).encode(), kind="application/json")

    # With all that the server may want later: who asks for more than the id was asked for with is refused by many.
    may: tuple[str, ...] | None = union(scopes, authority.scopes or ()) if scopes else None
    answer = await register({**asked, "scope": " ".join(may)} if may else asked)
    if answer.status == 400 and may:
        # Some know scopes that they let no client name beforehand (RFC 7591, 3.2.2 has no word of its own for that).
        may = None
        answer = await register(asked)
    given = answer.json if answer.status in (200, 201) else None
    client_id = as_text(as_object(given).get("client_id"))
    if given is None or not client_id:
        raise _refused(authority, answer, config)
    if not _usable_as(client_id, LONGEST_ID):
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} gave a client id that is none: register one {_by_hand(config)}"
        )
    client = Client(id=client_id, issuer=authority.issuer, redirect_uri=redirect_uri, asked_for=True, scopes=may)
    return _with_what_was_given(client, given, authority, method, config)


def _with_what_was_given(client: Client, given: Mapping[str, Any], authority: Authority, asked: Method, config: LoginConfig) -> Client:
    secret = as_text(given.get("client_secret"))
    named = as_text(given.get("token_endpoint_auth_method"))
    if not named:
        named = _with_secret(()) if secret and not authority.methods else asked
    if named == "none":
        return client
    if secret and not _usable_as(secret, LONGEST_SECRET):
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} gave a client secret that is none: register one {_by_hand(config)}"
        )
    if named not in _WITH_SECRET or not secret:
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} wants clients to say who they are in a way that is not supported"
            f" ({line(named, 60)}): register a client {_by_hand(config)}"
        )
    return replace(client, secret=secret, method=_WITH_SECRET[named], ends_at=_end(given.get("client_secret_expires_at")))


def _usable_as(text: str, longest: int) -> bool:
    """Whether it may be an id or a secret (RFC 6749, appendix A.1 and A.2)."""
    return len(text) <= longest and is_visible(text)


def _by_hand(config: LoginConfig) -> str:
    """How a person gets an id: with one address for all times, as most want it."""
    port = config.callback_port or PORT
    back, key = (
        config.callback_url or loopback(port),
        f'callbackUrl: "{config.callback_url}"' if config.callback_url else f"callbackPort: {port}",
    )
    return f"by hand, which may lead back to {back}, and set `auth: {{clientId: ..., {key}}}` on this server"


def _refused(authority: Authority, answer: Answer, config: LoginConfig) -> LoginFailed:
    said = f": {answer.said}" if answer.said and answer.status >= 400 else ""
    mend = "try again later" if answer.for_later else f"register a client there {_by_hand(config)}"
    text = f"the authorization server {trust.shown(authority.issuer)} gave no client id (HTTP {answer.status}); {mend}{said}"
    return LoginFailed(text, retriable=answer.for_later)


def _end(value: object) -> float | None:
    """When a secret ends (RFC 7591, 3.2.1: 0 is never)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(min(value, LATEST))
