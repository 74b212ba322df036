"""What a token endpoint is asked, and what it answers (RFC 6749, 4.1.3, 4.4, 5 and 6; RFC 7009; RFC 7636, 4.5; RFC 8707, 2.2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from toolbay._lenient import as_object, as_text
from toolbay._text import line
from toolbay.auth import challenges, trust
from toolbay.auth.records import Authority, Client, Tokens
from toolbay.auth.web import Answer, Web
from toolbay.errors import LoginFailed

LONGEST_TOKEN = 32 * 1024
"""Characters; servers commonly take 8 to 16 kB of headers."""
SHORTEST_LIFE, LONGEST_LIFE = 10, 10 * 365 * 86_400
"""Seconds that a token is taken to last at the least and at the most, whatever is said: none is renewed for each request."""
_TOKEN = re.compile(r"[!-~]+")
"""Visible ASCII: what can be told in a header (RFC 6749, appendix A.12; RFC 6750, 2.1)."""
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_FOR_LATER = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
"""Codes that say nothing of what was asked."""


class Denied(LoginFailed):
    """The token endpoint said no. `code`: why, in the words of RFC 6749, 5.2, such as invalid_grant; empty where it did not say."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What a person's yes is exchanged with. It is secret, and counts once."""

    code: str = field(repr=False)
    verifier: str = field(repr=False)
    """What the challenge was made of that the page was asked with (RFC 7636)."""
    redirect_uri: str
    """Exactly as the page was asked with."""
    asked: tuple[str, ...] = ()
    """The scopes that were asked for: those that were given, where the answer does not say."""


async def by_code(web: Web, authority: Authority, client: Client, code: Code, *, now: Callable[[], float]) -> Tokens:
    """The tokens that a person has agreed to.

    Raises:
        Denied: the authorization server says no.
        LoginFailed: it could not be reached or is busy (retriable), or its answer cannot be used.
        BlockedAddress: as `Web.get`.
    """
    fields = {
        "grant_type": "authorization_code",
        "code": code.code,
        "redirect_uri": code.redirect_uri,
        "code_verifier": code.verifier,
    }
    return await _tokens(web, authority, client, fields, scopes=code.asked or None, now=now)


async def by_refresh(web: Web, authority: Authority, client: Client, tokens: Tokens, *, now: Callable[[], float]) -> Tokens:
    """Tokens in the place of `tokens`, of which what the answer does not say is kept. Raises as `by_code`."""
    fields = {"grant_type": "refresh_token", "refresh_token": tokens.refresh}
    found = await _tokens(web, authority, client, fields, scopes=tokens.scopes, now=now)
    return found if found.refresh else replace(found, refresh=tokens.refresh)


async def by_itself(web: Web, authority: Authority, client: Client, scopes: Sequence[str], *, now: Callable[[], float]) -> Tokens:
    """Tokens for the program itself, for whom nobody is asked (RFC 6749, 4.4). Raises as `by_code`."""
    fields = {"grant_type": "client_credentials", **({"scope": " ".join(scopes)} if scopes else {})}
    return await _tokens(web, authority, client, fields, scopes=tuple(scopes) or None, now=now)


async def revoke(web: Web, authority: Authority, client: Client, tokens: Tokens) -> None:
    """The tokens are worth nothing from now on (RFC 7009): first what others can be had with, then what may live on beside it.

    Raises as `by_code`; also where the authorization server has no address for it.
    """
    if not authority.revocation_endpoint:
        raise LoginFailed(f"the authorization server {trust.shown(authority.issuer)} has no address at which a login is taken back")
    for kind, token in (("refresh_token", tokens.refresh), ("access_token", tokens.access)):
        if token:
            answer = await _ask(web, authority, client, {"token": token, "token_type_hint": kind}, at=authority.revocation_endpoint)
            # Who revokes no access tokens has ended this one with its refresh token, or lets it run out (RFC 7009, 2.1).
            if kind == "access_token" and tokens.refresh and _code(answer) == "unsupported_token_type":
                return
            _judge(authority, answer, "take the login back", secrets=(token, client.secret))


async def _tokens(
    web: Web, authority: Authority, client: Client, fields: Mapping[str, str], *, scopes: tuple[str, ...] | None, now: Callable[[], float]
) -> Tokens:
    asked_at = now()
    answer = await _ask(web, authority, client, {**fields, "resource": authority.resource}, at=authority.token_endpoint)
    secrets = (client.secret, *(fields.get(name, "") for name in ("code", "code_verifier", "refresh_token")))
    _judge(authority, answer, "give a token", secrets=secrets)
    given = as_object(answer.json)
    access, kind = as_text(given.get("access_token")), as_text(given.get("token_type")) or "bearer"
    if not _is_token(access):
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} answered without a token that can be used: tell who runs it"
        )
    if kind.lower() != "bearer":
        raise LoginFailed(
            f"the authorization server {trust.shown(authority.issuer)} gives tokens of a kind that is not supported, {line(kind, 40)}: "
            "only bearer tokens are"
        )
    life = _seconds(given.get("expires_in"))
    refresh = as_text(given.get("refresh_token"))
    return Tokens(
        access=access,
        refresh=refresh if _is_token(refresh) else "",
        ends_at=None if life is None else asked_at + life,
        scopes=_scopes(given.get("scope"), scopes),
    )


async def _ask(web: Web, authority: Authority, client: Client, fields: Mapping[str, str], *, at: str) -> Answer:
    if client.issuer != authority.issuer:
        raise LoginFailed(
            f"the client id belongs to {trust.shown(client.issuer)} and is not shown to {trust.shown(authority.issuer)}: log in once more"
        )
    if client.method == "client_secret_basic":
        return await web.form(at, fields, basic=(client.id, client.secret))
    secret = {"client_secret": client.secret} if client.method == "client_secret_post" else {}
    return await web.form(at, {**fields, "client_id": client.id, **secret})


def _judge(authority: Authority, answer: Answer, what: str, *, secrets: Iterable[str]) -> None:
    """Raise unless the answer is a yes; some say no with status 200. `secrets` were sent, and may be said back."""
    code = _code(answer)
    if 200 <= answer.status < 300 and not code:
        return
    said = f": {words}" if (code or answer.status >= 400) and (words := answer.said_without(secrets)) else ""
    text = f"the authorization server {trust.shown(authority.issuer)} did not {what} (HTTP {answer.status}){said}"
    if answer.for_later or code in _FOR_LATER:
        raise LoginFailed(text, retriable=True)
    if answer.status < 400 and not code:
        raise LoginFailed(f"{text}; it leads elsewhere, where what was sent must not go: tell who runs it")
    raise Denied(text, code=code)


def _code(answer: Answer) -> str:
    given = as_object(answer.json)
    return "" if "access_token" in given else line(as_text(given.get("error")), 60)


def _is_token(text: str) -> bool:
    return len(text) <= LONGEST_TOKEN and _TOKEN.fullmatch(text) is not None


def _seconds(value: object) -> float | None:
    """How long a token lasts; None where nobody can say. Some write the number as a text; some write 0 for "no end"."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(max(SHORTEST_LIFE, min(value, LONGEST_LIFE)))


def _scopes(value: object, asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The scopes of an answer; those that were asked for where it says none (RFC 6749, 5.1)."""
    if isinstance(value, list):
        value = " ".join(item for item in cast("list[Any]", value) if isinstance(item, str))
    return challenges.scopes(value) if isinstance(value, str) else asked
