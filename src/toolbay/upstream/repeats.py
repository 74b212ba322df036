"""On what terms a tool is called: how long it may take, and which calls may be sent again (CAL-3).

That is by the configuration's word, then by what a trusted server says of a tool, else none.

That a tool only reads, or that a second call changes nothing, is what its server says of itself. It is believed where the
person who wrote the configuration has said `trusted`; otherwise it is a hint for eyes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias

from toolbay.config.models import ServerConfig
from toolbay.types import Hints
from toolbay.upstream.attempts import Repeat
from toolbay.upstream.engine import Budget
from toolbay.upstream.naming import Key, called

Word: TypeAlias = Literal["safe", "always", "never"]


class Terms(NamedTuple):
    """The terms of one tool under one configuration: worked out once, for all its calls."""

    config: ServerConfig
    repeat: Repeat
    budget: Budget


def terms_of(config: ServerConfig, key: Key, hints: Hints) -> Terms:
    """On what terms the tool `key` is called."""
    return Terms(config, repeat_of(config, key, hints), budget_of(config, config.tool_timeouts.get(key.name, config.tool_timeout)))


def budget_of(config: ServerConfig, seconds: float) -> Budget:
    """`seconds` until the answer or the next progress, and no less for all of it."""
    return Budget(timeout=seconds, ceiling=max(config.max_timeout, seconds))


def repeat_of(config: ServerConfig, key: Key, hints: Hints) -> Repeat:
    """How far calls of the tool `key` may be repeated."""
    word = config.retry if isinstance(config.retry, str) else _word(config.retry, key)
    if word == "safe":
        believed = config.trusted and (hints.read_only or hints.idempotent)
        return Repeat.ALL if believed else Repeat.NOT_RUN
    return Repeat.ALL if word == "always" else Repeat.UNSENT


def _word(entries: Mapping[str, Word], key: Key) -> Word:
    """A name counts before patterns, and of several that fit the most careful one; what nothing fits is `safe`."""
    names = called(key)
    words: set[Word] = {word for entry, word in entries.items() if entry in names}
    words = words or {word for entry, word in entries.items() if any(fnmatchcase(name, entry) for name in names)}
    careful: tuple[Word, ...] = ("never", "safe", "always")
    for word in careful:
        if word in words:
            return word
    return "safe"
