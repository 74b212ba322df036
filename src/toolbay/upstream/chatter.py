"""What a server logs over the protocol, as events for people: of a flood the beginning, and how much of it was dropped."""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio

from toolbay._text import clean, excerpt, line
from toolbay.events import ServerLog
from toolbay.types import Json
from toolbay.upstream.floods import Flood

BURST, PER_SECOND = 200, 20.0
"""Messages of one server that are passed on at once, and then in a second."""


class Chatter:
    """The log messages of one server."""

    def __init__(self, name: str, safe: Callable[[str], str]) -> None:
        self._name = name
        self._safe = safe
        self._flood = Flood(BURST, PER_SECOND)
        self._full = False
        self.dropped = 0
        """How many were not passed on."""

    def heard(self, params: Json) -> list[ServerLog]:
        """What is to be told of a `notifications/message`."""
        if not self._flood.passes(anyio.current_time()):
            self.dropped += 1
            if self._full:
                return []
            self._full = True
            return [self._own(f"it logs more than {PER_SECOND:g} messages a second: the rest is counted, and dropped")]
        self._full = False
        lost = self._flood.untold()
        return [*([self._own(f"{lost:,} log messages of it were dropped")] if lost else []), self._said(params)]

    def _own(self, text: str) -> ServerLog:
        return ServerLog(server=self._name, level="warning", text=text)

    def _said(self, params: Json) -> ServerLog:
        data = params.get("data")
        text = self._safe(clean(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)))
        level = line(self._safe(str(params.get("level", "info"))), 20)
        return ServerLog(server=self._name, level=level, text=excerpt(text, 2_000))
