"""Ranges of versions as npm's packages write them (`engines`), as far as it takes to say that a version is too old or too new. Pure."""

from __future__ import annotations

import re
from typing import TypeAlias

LONGEST = 500
"""Characters of what can be a version, or a range of some."""

Version: TypeAlias = tuple[int, int, int]

_VERSION = re.compile(r"v?(\d+)(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?(?:[-+][\w.+-]*)?\Z")
_SPACED = re.compile(r"([<>=^~]+)\s+")


def parsed(text: str) -> Version | None:
    """The version in `text`; what it leaves open is 0. None for what is none."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    numbers = [int(part) if part and part.isdecimal() else 0 for part in match.groups()]
    return numbers[0], numbers[1], numbers[2]


def satisfies(version: str, wanted: str) -> bool:
    """Whether `version` is in the range `wanted`. True where one of them is not understood: nothing is known against it."""
    have = parsed(version) if max(len(version), len(wanted)) <= LONGEST else None
    if have is None:
        return True
    return any(all(_fits(have, word) for word in _words(part)) for part in wanted.split("||"))


def _words(part: str) -> list[str]:
    words = _SPACED.sub(r"\1", part.strip()).split()
    if len(words) == 3 and words[1] == "-":
        return [f">={words[0]}", f"<={words[2]}"]
    return words


def _fits(have: Version, word: str) -> bool:
    sign = word[: len(word) - len(word.lstrip("<>=^~"))]
    version = word[len(sign) :]
    floor = parsed(version)
    if floor is None:
        return True
    given = 1 + len([part for part in version.split("-")[0].split(".")[1:] if part.isdecimal()])
    if sign in (">", ">=", "<", "<="):
        # Of ">20" and "<=20" a whole version is meant.
        whole = have[:given], floor[:given]
        return {">": whole[0] > whole[1], ">=": have >= floor, "<": have < floor, "<=": whole[0] <= whole[1]}[sign]
    if sign == "^":
        kept = 1 if floor[0] else 2
        return have >= floor and have[:kept] == floor[:kept]
    if sign == "~":
        return have >= floor and have[: min(given, 2)] == floor[: min(given, 2)]
    return have[:given] == floor[:given]
