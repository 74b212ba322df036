"""The secrets that tests give all begin with one word, and whatever comes out of a test run is searched for it (security.md, row 32).

Give a secret as `canary-<something>`. Searched after every test: what it printed, what was logged at any level, and the
files that Toolbay left in its home; and the output of every program that a helper of the tests started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PARENT = "canary-of-the-parents-environment"
"""Stands in the environment of every test, where a model's keys and a person's own would: no child and no output may have it."""

_SPELT = re.compile(r"canary-[a-z0-9]", re.IGNORECASE)


def found(text: str) -> str:
    """The surroundings of the first secret in `text`; empty where there is none."""
    match = _SPELT.search(text)
    return "" if match is None else repr(text[max(0, match.start() - 100) : match.end() + 60])


def in_files(folder: Path, *, but: Path | None = None) -> Iterable[str]:
    """One sentence for each file under `folder`, but for those under `but`, that holds a secret, in its name or its text."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if (
            path.is_file()
            and (but is None or but not in path.parents)
            and (near := found(path.name) or found(path.read_text("utf-8", "replace")))
        ):
            yield f"a secret is in the file {path}: {near}"


def assert_clean(text: str, where: str) -> str:
    """`text`, which is to hold no secret."""
    near = found(text)
    assert not near, f"a secret is in {where}: {near}"
    return text
