"""How far each request got, as facts kept by whoever touches the wire: written, failed, answered.

Nothing is ever guessed from an exception: the transport notes what it did under the request's id, and the engine reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolbay.errors import ToolbayError


@dataclass(slots=True, eq=False)
class Entry:
    """One request under way."""

    id: int
    sent: bool = False
    """The first byte may have left this process."""
    answered: bool = False
    """A reply from the server, good or bad, came in."""
    fault: ToolbayError | None = None
    """What the transport met instead of an answer."""
    cut: ToolbayError | None = None
    """The stream that was to carry the answer broke; a resumption may still bring it."""
    on_sent: Callable[[], None] | None = None
    on_fault: Callable[[], None] | None = None


class Ledger:
    """The requests under way on one session, by id."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._last = 0

    def open(self) -> Entry:
        """A new entry with an id that was never used in this session."""
        self._last += 1
        entry = self._entries[self._last] = Entry(self._last)
        return entry

    def close(self, entry: Entry) -> None:
        self._entries.pop(entry.id, None)

    def get(self, request_id: object) -> Entry | None:
        """The entry under way with that id; ids of another type than ours match nothing (CVE-2026-25536)."""
        return self._entries.get(request_id) if isinstance(request_id, int) and not isinstance(request_id, bool) else None

    def busy(self, but: object) -> bool:
        """Whether any other request was sent and may still be answered: its connection is alive."""
        except_for = self.get(but)
        return any(
            entry.sent and not entry.answered and entry.fault is None and entry.cut is None
            for entry in self._entries.values()
            if entry is not except_for
        )

    def sent(self, request_id: object) -> None:
        if (entry := self.get(request_id)) is not None and not entry.sent:
            entry.sent = True
            if entry.on_sent is not None:
                entry.on_sent()

    def answered(self, request_id: object) -> None:
        if (entry := self.get(request_id)) is not None:
            entry.answered = True

    def failed(self, request_id: object, fault: ToolbayError) -> None:
        """Note that no answer will come, and wake whoever waits for it."""
        if (entry := self.get(request_id)) is not None and entry.fault is None:
            entry.fault = fault
            if entry.on_fault is not None:
                entry.on_fault()

    def cut(self, request_id: object, fault: ToolbayError) -> None:
        if (entry := self.get(request_id)) is not None:
            entry.cut = fault
