"""Logins as they are kept, for tests that begin after one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servers.raw_http import RawHttp
from servers.raw_oauth import RawOAuth
from support import persons
from toolbay.auth.pages import Page
from toolbay.auth.records import Authority, Client, Login, Tokens
from toolbay.auth.store import Store, key
from toolbay.config.models import ServerConfig


@dataclass(kw_only=True)
class Guarded:
    """A server, its authorization server, and where the logins with it are kept."""

    oauth: RawOAuth
    server: RawHttp
    store: Store

    def config(self, **auth: Any) -> ServerConfig:
        return ServerConfig.model_validate({**self.server.entry, **({"auth": auth} if auth else {})})


def a_login(*, access: str = "canary-access", refresh: str = "canary-refresh", **more: Any) -> Login:
    """One with tokens; `more` in the place of its other fields."""
    issuer = "https://as.example.org"
    fields: dict[str, Any] = {
        "url": "https://example.org/mcp",
        "authority": Authority(issuer=issuer, resource="https://example.org/mcp", token_endpoint=f"{issuer}/token", scopes=("read",)),
        "client": Client(id="client-1", issuer=issuer, secret="canary-secret", method="client_secret_basic", ends_at=2e9, asked_for=True),
        "tokens": Tokens(access=access, refresh=refresh, ends_at=1.5e9, scopes=("read", "write")),
        "wanted": ("admin",),
    }
    return Login(**{**fields, **more})


async def logged_in_before(
    store: Store, oauth: RawOAuth, name: str, config: ServerConfig, *scopes: str, refreshable: bool = True, ends_in: float | None = 3600.0
) -> Login:
    """Somebody has logged in to this server before; the token is good, and is said to end in so many seconds."""
    if "client-0" not in oauth.clients:
        oauth.know("client-0")
    resource = config.url
    access, refresh = oauth.give("client-0", *scopes, resource=resource, refreshable=refreshable)
    token, revoke = f"{oauth.issuer}/token", f"{oauth.issuer}/revoke"
    login = Login(
        url=config.url,
        authority=Authority(issuer=oauth.issuer, resource=resource, token_endpoint=token, revocation_endpoint=revoke),
        client=Client(id="client-0", issuer=oauth.issuer, asked_for=True),
        tokens=Tokens(access=access, refresh=refresh, ends_at=None if ends_in is None else oauth.now() + ends_in, scopes=scopes),
    )
    await store.save(key(name, config), login)
    return login


class Agreeing:
    """A person who says yes to every page, in a browser on this machine."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    async def go(self, page: Page) -> None:
        self.pages.append(page)
        await persons.visit(page.url)
