"""Which addresses of an authorization server are used: private on the way, clear to every program, and the server's own.

Whoever can put an address into what a login is told by can have a code, a secret or a token sent there. So an address that
leaves the authorization server's domain is refused until a person has said that it is right (`auth.hosts`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

from toolbay._redact import url as shown_url
from toolbay._text import line
from toolbay.errors import BlockedAddress, LoginFailed
from toolbay.net.guard import Target, is_here
from toolbay.net.http import target

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

LONGEST = 2_000
"""Characters of an address."""
_CLEAR = re.compile(r"https?://[A-Za-z0-9._~:/?\[\]@&=+,;%-]+", re.IGNORECASE)
"""Of what RFC 3986 allows, what authorization servers use: nothing that a shell or a browser's command line may take amiss."""
_ELSEWHERE = (
    (r"accounts\.google\.com", r"(?:oauth2|openidconnect|www)\.googleapis\.com"),
    (r"sts\.windows\.net", r"login\.(?:microsoftonline\.com|windows\.net)"),
    (r"cognito-idp\.([a-z0-9-]+)\.amazonaws\.com", r"[a-z0-9-]+\.auth\.\1\.amazoncognito\.com"),
)
"""Authorization servers that are known to have addresses at another domain of the same owner, and where."""


def shown(url: str) -> str:
    """An address that strangers have named, for people: bounded, and without what may be a secret."""
    return line(shown_url(url), 200)


def secure(url: str) -> bool:
    """Whether what is sent to `url` is private on its way: https, or this machine in so many words (RFC 8252, 8.3)."""
    try:
        return private(target(url))
    except BlockedAddress:
        return False


def private(there: Target) -> bool:
    """`secure`, of an address that was taken apart."""
    return there.scheme == "https" or is_here(there)


def clear(url: str, *, what: str) -> Target:
    """Where `url` leads, if all programs agree on it and it is `secure`. Raises LoginFailed, in which `what` names it."""
    said = f"{what} is {shown(url)}, which is not used:"
    if len(url) > LONGEST or not _CLEAR.fullmatch(url):
        raise LoginFailed(f"{said} it is no plain https address")
    try:
        there = target(url)
    except BlockedAddress as error:
        raise LoginFailed(f"{said} {error.cause}") from error
    if not private(there):
        raise LoginFailed(f"{said} it does not begin with https://, so others could read what is sent there")
    return there


def same(named: str, issuer: str) -> bool:
    """Whether two names are one authorization server's: identical, but for the slash that says nothing after a bare origin."""
    bare = issuer.removesuffix("/")
    return named == issuer or ("/" not in bare.partition("://")[2] and named.removesuffix("/") == bare)


def check(url: str, *, what: str, issuer: str, hosts: Collection[str]) -> str:
    """`url`, which the authorization server `issuer` names as its `what`, if it is `clear` and at the server's own domain.

    That is: at its host, at another one under the name that its owner has registered (publicsuffix.org), at one that is
    known to be the same owner's, or at one of `hosts`, in small letters. Raises LoginFailed.
    """
    there = clear(url, what=f"the {what} of {shown(issuer)}")
    home = clear(issuer, what="the authorization server")
    if _belongs(there, home) or there.host in hosts:
        return url
    raise LoginFailed(
        f"the authorization server at {home.host} names a {what} at another domain, {there.host}, which is not used, since a login"
        f' could be stolen that way: if both are known to belong together, add `auth: {{hosts: ["{there.host}"]}}` to this server'
    )


def _belongs(there: Target, home: Target) -> bool:
    if there.host == home.host or (is_here(there) and is_here(home)):
        return True
    if there.literal is not None or home.literal is not None:
        return False
    if any((match := re.fullmatch(issuer, home.host)) and re.fullmatch(match.expand(hosts), there.host) for issuer, hosts in _ELSEWHERE):
        return True
    registered = _suffixes().privatesuffix(home.host.removesuffix("."))
    return registered is not None and registered == _suffixes().privatesuffix(there.host.removesuffix("."))


@cache
def _suffixes() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415 - reads a list of 10,000 lines

    return PublicSuffixList()
