"""What a server says with 401 and 403 in WWW-Authenticate (RFC 9110, 11.6.1; RFC 6750, 3; RFC 9728, 5.1), read as it is meant.

One header may hold several challenges, and several headers are joined with commas. Commas that are missing, values without
quotes and quotes without an end are seen in the wild and read for what they say; no text raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain

from toolbay._text import line

LONGEST = 16 * 1024
"""Characters of a header that are read."""
MOST_SCOPES = 200
LONGEST_SCOPES = 4 * 1024
"""Scopes that are kept and asked for together, and their characters: they go into an address."""
_NAMES = ("error", "error_description", "scope", "resource_metadata")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # noqa: S105 - of grammar
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"?|([^\s,"]++))', re.DOTALL)
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]++[0-9A-Za-z._~+/-]++=*+(?=[ \t]*+(?:,|$)))?")
"""With what may stand in the place of parameters (token68)."""
_SCOPE = re.compile(r"[!#-\[\]-~]{1,500}")
"""RFC 6749, 3.3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """How a server wants to be asked. A text from outside is bounded and cleaned, but for the address, which is to be judged."""

    error: str = ""
    """Why what was brought is not enough, such as invalid_token or insufficient_scope; empty where nothing was brought."""
    description: str = ""
    scopes: tuple[str, ...] | None = None
    """What a token must hold for; None where it does not say."""
    resource_metadata: str = ""
    """Where it is told how to log in (RFC 9728)."""


def bearer(header: str) -> Challenge | None:
    """The challenge in `header` that a token answers: of scheme Bearer, or any that names where it is told how to log in.

    Of several the one that says most; None where there is none.
    """
    found = [given for scheme, given in challenges(header) if scheme.lower() == "bearer" or "resource_metadata" in given]
    if not found:
        return None
    given = max(found, key=lambda given: ("resource_metadata" in given, sum(name in given for name in _NAMES)))
    return Challenge(
        error=line(given.get("error", ""), 60),
        description=line(given.get("error_description", ""), 200),
        scopes=scopes(given.get("scope", "")) or None,
        resource_metadata=given.get("resource_metadata", "").strip(),
    )


def scopes(text: str) -> tuple[str, ...]:
    """The scopes in a text (RFC 6749, 3.3), once each, in their order; what cannot be one is left out."""
    return union(filter(_SCOPE.fullmatch, text.split()))


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """The scopes of all groups, once each, in their order; no more than anybody can have a use for, and than an address may hold."""
    found = tuple(dict.fromkeys(chain.from_iterable(groups)))[:MOST_SCOPES]
    ends = accumulate(len(scope) + 1 for scope in found)
    return tuple(scope for scope, end in zip(found, ends, strict=True) if end <= LONGEST_SCOPES)


def challenges(header: str) -> list[tuple[str, Mapping[str, str]]]:
    """Schemes, and their parameters by name in small letters, neither cleaned. Of a parameter that comes twice the first counts."""
    header = header[:LONGEST]
    found: list[tuple[str, dict[str, str]]] = []
    at = 0
    while at < len(header):
        if parameter := _PARAMETER.match(header, at):
            if not found:
                found.append(("", {}))
            value = parameter[3] if parameter[2] is None else re.sub(r"\\(.)", r"\1", parameter[2], flags=re.DOTALL)
            found[-1][1].setdefault(parameter[1].lower(), value)
            at = parameter.end()
        elif scheme := _SCHEME.match(header, at):
            found.append((scheme[1], {}))
            at = scheme.end()
        else:
            at += 1
    return [(scheme, given) for scheme, given in found]
