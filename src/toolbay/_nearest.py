"""The name that somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable

_LENGTH = 200
"""Characters of names that are compared: the time grows with their square."""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """That of `known` that is most like `name`, or nothing. `likeness` is how alike they must be, from 0 to 1."""
    from difflib import get_close_matches  # noqa: PLC0415  # only where something is wrong

    short = {each[:_LENGTH]: each for each in known}
    found = get_close_matches(name[:_LENGTH], short, n=1, cutoff=likeness)
    return short[found[0]] if found else ""
