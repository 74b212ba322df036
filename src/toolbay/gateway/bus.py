"""The bus: how others ask a running Toolbay to do something, and are told what came of it.

A control message has a name and gets one acknowledgement. Whoever answers takes the messages one after the other from a
bounded inbox, in a task of its own: the bus runs nothing. `LocalBus` is the one inside a process.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.lowlevel

from toolbay.errors import NotAnswered, ToolbayError
from toolbay.types import Json

PATIENCE = 15.0
"""Seconds that an acknowledgement may take."""
INBOX = 100
"""Control messages that may wait for whoever answers them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """What is asked for: a name such as `reload`, and what belongs to it, as JSON."""

    name: str
    params: Json = field(default_factory=dict[str, object])


class Request(Protocol):
    """A control message that was taken from the inbox: answer it once, whatever comes of it."""

    @property
    def control(self) -> Control: ...

    def answer(self, result: Json) -> None:
        """It was done; `result` says what came of it."""
        ...

    def refuse(self, error: ToolbayError) -> None:
        """It was not done; the error says why, to who asked."""
        ...


class Inbox(Protocol):
    """Where control messages wait; an async iterator of requests, oldest first."""

    def __aiter__(self) -> Inbox: ...
    async def __anext__(self) -> Request: ...


class Bus(Protocol):
    """What a Toolbay needs of a bus."""

    async def control(self, request: Control, timeout: float = PATIENCE) -> Json:  # noqa: ASYNC109 - the wait is the contract
        """Ask for something and return what came of it.

        Raises:
            NotAnswered: nobody answers such messages here, too many wait, or no answer came within `timeout` seconds.
            ToolbayError: it was refused; why is said by who refused it.
        """
        ...

    def inbox(self, names: Collection[str]) -> AbstractContextManager[Inbox]:
        """Answer the control messages of these names until the block ends; what is left unanswered then is refused.

        Raises:
            ToolbayError: somebody else answers one of them.
        """
        ...


class LocalBus:
    """The bus inside one process and one event loop."""

    def __init__(self) -> None:
        self._inboxes: dict[str, LocalInbox] = {}

    async def control(self, request: Control, timeout: float = PATIENCE) -> Json:  # noqa: ASYNC109
        """See `Bus.control`."""
        inbox = self._inboxes.get(request.name)
        if inbox is None:
            raise NotAnswered(f"Nobody answers {request.name!r} here, so it was not done: the program that does it is not running.")
        waiting = _Waiting(request)
        inbox.put(waiting)
        try:
            with anyio.move_on_after(timeout):
                await waiting.done.wait()
        finally:
            withdrawn = inbox.withdraw(waiting)
        if waiting.error is not None:
            raise waiting.error
        if waiting.result is None:
            went = "it was not begun, and will not be" if withdrawn else "it was begun and goes on"
            raise NotAnswered(f"{request.name!r} was not answered within {timeout:g} s: {went}.")
        return waiting.result

    @contextmanager
    def inbox(self, names: Collection[str]) -> Generator[LocalInbox]:
        """See `Bus.inbox`."""
        for name in names:
            if name in self._inboxes:
                raise ToolbayError(f"{name!r} is answered by somebody else on this bus: give each App a bus of its own.")
        inbox = LocalInbox()
        self._inboxes.update(dict.fromkeys(names, inbox))
        try:
            yield inbox
        finally:
            for name in names:
                del self._inboxes[name]
            inbox.close()


class LocalInbox:
    """A bounded queue of requests in memory."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._taken: set[_Waiting] = set()
        self._arrived = anyio.Event()

    def put(self, waiting: _Waiting) -> None:
        """Queue a request.

        Raises:
            NotAnswered: too many wait.
        """
        if len(self._waiting) >= INBOX:
            raise NotAnswered(f"{waiting.control.name!r} was not done: {INBOX} requests wait before it. Ask again later.")
        self._waiting.append(waiting)
        self._arrived.set()

    def withdraw(self, waiting: _Waiting) -> bool:
        """Take back a request; False where it was taken before."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            return True
        return False

    def close(self) -> None:
        """Refuse all that nobody answered."""
        for waiting in (*self._waiting, *self._taken):
            if not waiting.done.is_set():
                waiting.refuse(NotAnswered(f"{waiting.control.name!r} was not answered: the program that does it is closing."))
        self._waiting.clear()
        self._taken.clear()

    def __aiter__(self) -> LocalInbox:
        return self

    async def __anext__(self) -> Request:
        self._taken = {waiting for waiting in self._taken if not waiting.done.is_set()}
        while not self._waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        await anyio.lowlevel.checkpoint()
        taken = self._waiting.popleft()
        self._taken.add(taken)
        return taken


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request of this process."""

    control: Control
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Json | None = None
    error: ToolbayError | None = None

    def answer(self, result: Json) -> None:
        self.result = result
        self.done.set()

    def refuse(self, error: ToolbayError) -> None:
        self.error = error
        self.done.set()


def as_json(value: object) -> Json:
    """A frozen value of ours as an acknowledgement: what it is after a way between processes, with lists for tuples."""
    assert dataclasses.is_dataclass(value)
    assert not isinstance(value, type)
    return json.loads(json.dumps(dataclasses.asdict(value)))
