"""Which scopes a login asks for, and what of them was granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from toolbay.auth.challenges import Challenge, union
from toolbay.auth.records import Authority, Login
from toolbay.config.models import LoginConfig

OFFLINE: Final = "offline_access"
"""The scope that brings a refresh token (OpenID Connect Core, 11)."""
_IMPLIED: Final = frozenset({OFFLINE, "openid", "profile", "email", "address", "phone"})
"""Scopes that are granted as something else: tokens of another kind, claims (OpenID Connect Core, 5.4 and 11)."""


def to_ask(auth: LoginConfig, authority: Authority, challenge: Challenge | None, kept: Login | None) -> tuple[str, ...]:
    """What the person set, and nothing that a server wants; else that, what was granted before, and what it has wanted since."""
    needed = (challenge.scopes if challenge is not None else None) or authority.scopes or ()
    before = kept if kept is not None and kept.authority.issuer == authority.issuer else None
    held = before.tokens.scopes if before is not None and before.tokens is not None else None
    found = union(auth.scopes or (*needed, *(held or ()), *(before.wanted if before is not None else ())))
    # Alone it would be in the place of what is granted to who names nothing.
    lasting = found and auth.type == "oauth" and authority.offline_access
    return (*found, OFFLINE) if lasting and OFFLINE not in found else found


def ungranted(asked: Iterable[str], granted: Iterable[str] | None) -> list[str]:
    """What was asked for and was not granted, as far as anybody can tell.

    Some grant under a longer name, such as https://graph.microsoft.com/User.Read, and what OpenID Connect names is often not
    named again.
    """
    there = None if granted is None else [scope.lower() for scope in granted]
    if there is None:
        return []
    return [scope for scope in asked if scope not in _IMPLIED and not any(_names(one, scope.lower()) for one in there)]


def _names(granted: str, asked: str) -> bool:
    return granted == asked or granted.endswith((f"/{asked}", f".{asked}", f":{asked}"))
