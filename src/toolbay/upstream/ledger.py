"""How far each request got, as facts kept by whoever touches the wire: written, failed, answered.

Nothing is ever guessed from an exception: the transport notes what it did under the request's id, and the engine reads it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
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
    withdrawn: bool = False
    """Its caller has left before it was sent: it must not be any more."""
    on_sent: Callable[[], None] | None = None
    on_fault: Callable[[], None] | None = None
    on_closed: Callable[[], None] | None = None
    """Called when its caller goes: what still waits for an answer may leave."""


CANCELLED = "notifications/cancelled"
REMEMBERED = 256
"""Requests that were never sent, of which it is known for a moment, until their cancellation has come by."""


class Ledger:
    """The requests under way on one session, by id."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        """`ids` gives ids that were never used before; one source for all sessions with a server keeps them new in each."""
        self._entries: dict[int, Entry] = {}
        self._ids = ids or itertools.count(1)
        self._never_sent: deque[int] = deque(maxlen=REMEMBERED)

    def open(self) -> Entry:
        """A new entry with an id of its own."""
        number = next(self._ids)
        entry = self._entries[number] = Entry(number)
        return entry

    def close(self, entry: Entry) -> None:
        """Its caller goes. What was not sent by now never will be."""
        self._entries.pop(entry.id, None)
        if not entry.sent:
            self._never_sent.append(entry.id)
        if entry.on_closed is not None:
            entry.on_closed()

    def may_send(self, request_id: object) -> bool:
        """Asked right before the first byte: whether its caller is still there, who would otherwise be told a lie."""
        if not isinstance(request_id, int):
            return True
        entry = self.get(request_id)
        return entry is not None and not entry.withdrawn

    def takes_back(self, message: object) -> bool:
        """Whether a message of ours cancels what was never sent: then that is not sent any more, and this needs not be either."""
        params = getattr(message, "params", None) if getattr(message, "method", "") == CANCELLED else None
        return bool(params) and self._withdraw(params.get("requestId"))

    def _withdraw(self, request_id: object) -> bool:
        if (entry := self.get(request_id)) is None:
            return request_id in self._never_sent
        entry.withdrawn = not entry.sent
        return entry.withdrawn

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

    def unsent(self, request_id: object) -> None:
        """Take `sent` back: nothing has got out, since the first write was refused as a whole, or nobody could be reached."""
        if (entry := self.get(request_id)) is not None:
            entry.sent = False

    def answered(self, request_id: object) -> bool:
        """Note that a reply came in; False where nobody waits for it: its caller has left, or there was none."""
        if (entry := self.get(request_id)) is not None:
            entry.answered = True
        return entry is not None

    def note(self, request_id: object, fault: ToolbayError) -> bool:
        """Note why there will be no answer, for when the transport gives one in its place; whether it is news to who waits."""
        entry = self.get(request_id)
        if entry is None or entry.fault is not None:
            return False
        entry.fault = fault
        return True

    def failed(self, request_id: object, fault: ToolbayError) -> None:
        """Note why there will be no answer, and wake whoever waits for it."""
        entry = self.get(request_id)
        if self.note(request_id, fault) and entry is not None and entry.on_fault is not None:
            entry.on_fault()

    def cut(self, request_id: object, fault: ToolbayError | None) -> None:
        """Note that the answer's stream broke; None: it has been taken up again."""
        if (entry := self.get(request_id)) is not None:
            entry.cut = fault
