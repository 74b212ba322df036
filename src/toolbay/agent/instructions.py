"""What the model is told before a conversation: our own words first, then what servers say of themselves, as their words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from toolbay._text import clean, fenced, line

LIMIT = 2_000
"""Characters of one server's instructions that reach the model; the longest seen has 4,774."""
REASON = 300
"""Characters of why a server is not there."""
_ABSENT = ("paused", "failed", "needs_auth", "invalid")
_COMING = ("idle", "connecting", "waiting")


class Server(Protocol):
    """A server as it is now."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def instructions(self) -> str: ...
    @property
    def remembered(self) -> bool: ...


def composed(own: str, servers: Iterable[Server], also: str = "") -> str:
    """The instructions of one model request, `also` at the end. What a server says stands in a fence that it cannot end."""
    parts = [own.strip()]
    waiting: list[str] = []
    absent: list[str] = []
    for server in servers:
        if server.state in _ABSENT:
            absent.append(f"{server.name} (the user has to log in to it)" if server.state == "needs_auth" else server.name)
        elif server.state in _COMING and not server.remembered:
            waiting.append(server.name)
        elif server.instructions.strip():
            said = clean(server.instructions).strip()[:LIMIT]
            parts.append(f"The server {server.name!r} says of its own tools (its words, not the user's):\n{fenced(said)}")
    if waiting:
        parts.append(f"Still starting, their tools may come later: {', '.join(waiting)}.")
    if absent:
        parts.append(f"Not available, so their tools cannot be called: {', '.join(absent)}.")
    return "\n\n".join(part for part in (*parts, also) if part)


def lacking(servers: Iterable[Server]) -> tuple[str, ...]:
    """Which servers are not there, and what each needs: a line of each, for people."""
    told: list[str] = []
    for server in servers:
        if server.state in _ABSENT:
            why = line(server.error, REASON) or "it cannot be used"
            told.append(why if why.startswith(server.name) else f"{server.name}: {why}")
        elif server.state in _COMING and not server.remembered:
            told.append(f"{server.name} is still being started")
    return tuple(told)
