"""Names that every model provider takes, and that mean the same after every restart.

Each capability has a ladder of three candidates, made of nothing but itself: the plain name, the plain name with 8 hex
digits of its true identity, and one with 40 that no server can imitate. It takes the first that stands on nobody else's
ladder. So no two share a name, the order in which they came is of no account, and a name that means one thing never
comes to mean another when capabilities come or go (it may only cease to mean anything).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from toolbay.types import Kind

MAX_LENGTH = 64
"""Characters: the least that a provider takes (OpenAI, Anthropic, Gemini)."""

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_RUN = re.compile(r"__+")


@dataclass(frozen=True)
class Key:
    """The true identity of a capability: its server's name in the configuration, and the server's own name for it.

    `uri` tells resources of one name apart and is empty for everything else.
    """

    server: str
    kind: Kind
    name: str
    uri: str = ""


def wrapped(key: Key) -> str:
    """The name that `key` has where nothing clashes with it (NAM-1, NAM-2).

    `mcp_<server>_<tool>`, `mcp_<server>_resource_<name>` or `mcp_<server>_prompt_<name>`; a server or a name of which
    sanitising leaves nothing is told by its hash.
    """
    return _ladder(key)[0]


def stem(server: str) -> str:
    """What the names of a server's capabilities begin with, where its own name leaves anything."""
    return sanitised(f"mcp_{server}_")


def assign(keys: Iterable[Key]) -> dict[Key, str]:
    """A name for every key, no two alike (NAM-3). Each matches `^mcp_[a-zA-Z0-9_-]{1,60}$`."""
    ladders = {key: _ladder(key) for key in keys}
    claims = Counter(rung for ladder in ladders.values() for rung in ladder)
    return {key: next((rung for rung in ladder if claims[rung] == 1), ladder[-1]) for key, ladder in ladders.items()}


def called(key: Key) -> tuple[str, ...]:
    """Every name by which a configuration may mean `key`: the server's own, its URI, and all that it may be wrapped as."""
    return (key.name, *((key.uri,) if key.uri else ()), *_ladder(key))


def sanitised(text: str) -> str:
    """`text` in the characters that names may have; runs of `_` collapse."""
    return _RUN.sub("_", _OUTSIDE.sub("_", text))


@lru_cache(maxsize=65_536)  # asked for again at every change of any server
def _ladder(key: Key) -> tuple[str, ...]:
    infix = f"{key.kind.value}_" if key.kind in {Kind.RESOURCE, Kind.PROMPT} else ""
    full = sanitised(f"mcp_{key.server}_{infix}{key.name}")
    identity = json.dumps([key.server, key.kind.value, key.name, key.uri])
    digest = hashlib.sha256(identity.encode()).hexdigest()
    told = _cut(full, "_", digest[:8])
    # A plain name has no two underscores before 40 digits: runs collapse. No server can make one that equals this.
    last = _cut(full, "__", digest[:40])
    leaves_nothing = not sanitised(key.server).strip("_") or not sanitised(key.name).strip("_")
    return (told, last) if leaves_nothing else (_plain(full), told, last)


def _plain(full: str) -> str:
    if len(full) <= MAX_LENGTH:
        return full
    return f"{full[:55]}_{hashlib.sha1(full.encode(), usedforsecurity=False).hexdigest()[:8]}"


def _cut(full: str, joint: str, digits: str) -> str:
    return full[: MAX_LENGTH - len(joint) - len(digits)].rstrip("_") + joint + digits
