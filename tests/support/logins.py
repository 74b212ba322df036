"""Logins as they are kept, for tests that begin after one."""

from __future__ import annotations

from typing import Any

from toolbay.auth.records import Authority, Client, Login, Tokens


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
