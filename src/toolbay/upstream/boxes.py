"""What came from a child, and what goes to it, as the two streams that the SDK's dispatcher wants.

A message is handed on at once by whoever has it; a task is woken only where something has to wait: each waking costs as much as
writing and reading a small message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self, TypeAlias

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from toolbay.errors import BadCall, ConnectionLost, ToolbayError
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.messages import encoded
from toolbay.upstream.pipes import NothingTaken
from toolbay.upstream.process import Child

Incoming: TypeAlias = SessionMessage | Exception

WRITE_TIMEOUT = 60.0
"""Seconds that a child may leave its input unread before it counts as stuck."""
OUTBOX = 1024
"""Messages that wait for a child to read them, so that a caller's cancellation never waits for a full pipe."""
INBOX = 64
"""Messages that are dispatched in one go, while everything else waits."""
LAST_BYTES = 0.5
"""Seconds in which a dead child's output is still read; a grandchild may hold the pipe open for ever."""


class Inbox:
    """Messages that came, in their order. One task puts them in, one takes them."""

    def __init__(self) -> None:
        self._messages: deque[Incoming] = deque()
        self._waits: asyncio.Future[None] | None = None
        """Of who takes them, while there are none: a bare future, for an event costs more than all the rest here."""
        self._taken = anyio.Event()
        self._over = False

    async def put(self, message: Incoming) -> None:
        """Add one; where many lie here already, wait until all are taken.

        Raises:
            anyio.BrokenResourceError: nobody takes them any more.
        """
        if self._over:
            raise anyio.BrokenResourceError
        self._messages.append(message)
        self._wake()
        if len(self._messages) >= INBOX:
            self._taken = anyio.Event()
            await self._taken.wait()

    def end(self) -> None:
        """No more will come, or nobody takes more."""
        self._over = True
        self._wake()
        self._taken.set()

    def _wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def receive(self) -> Incoming:
        """The next one.

        Raises:
            anyio.EndOfStream: there will be no more.
        """
        while not self._messages:
            if self._over:
                raise anyio.EndOfStream
            self._taken.set()
            assert self._waits is None or self._waits.done(), "one takes them: of two that wait, one would never be woken"
            self._waits = asyncio.get_running_loop().create_future()
            await self._waits
        return self._messages.popleft()

    async def aclose(self) -> None:
        self.end()


class Outbox:
    """Messages for a child. Who sends one writes it, as far as the pipe takes it; what is left waits in line, for `run`."""

    def __init__(self, child: Child, ledger: Ledger, dead: Callable[[ToolbayError], None]) -> None:
        """`dead` is told why the child takes no more."""
        self._child = child
        self._ledger = ledger
        self._dead = dead
        self._line: deque[SessionMessage | bytes] = deque()
        self._more = anyio.Event()
        self._room = anyio.Event()
        self._closed = False

    async def send(self, message: SessionMessage, /) -> None:
        """Write it, or put it in line.

        Raises:
            anyio.BrokenResourceError: nothing more is written; this is not either.
        """
        if self._ledger.takes_back(message.message):
            self._forget()
            return
        while len(self._line) >= OUTBOX and not self._closed:
            if self._room.is_set():
                self._room = anyio.Event()
            await self._room.wait()
        if self._closed:
            raise anyio.BrokenResourceError
        left = message if self._line else self._write_now(message)
        if left is not None:
            self._line.append(left)
            self._more.set()

    def _forget(self) -> None:
        """Let go of what is not sent any more, but for the first, which is being written: arguments can be large."""
        rest = list(self._line)[1:]
        for _ in rest:
            self._line.pop()
        self._line.extend(item for item in rest if isinstance(item, bytes) or self._ledger.may_send(_request_id(item)))
        self._room.set()

    async def run(self) -> None:
        """Write what waits in line, until the child takes no more: what is not sent by then is lost unsent."""
        try:
            while True:
                while not self._line:
                    self._more = anyio.Event()
                    await self._more.wait()
                if not await self._write(self._line[0]):
                    return
                self._line.popleft()
                self._room.set()
        finally:
            await self.aclose()

    def _write_now(self, message: SessionMessage) -> SessionMessage | bytes | None:
        """What is left to be written of a message; None where nothing is."""
        if not (self._child.takes_at_once and self._child.takes_input):
            return message
        data = self._encoded(message)
        if data is None:
            return None
        request_id = _request_id(message)
        self._ledger.sent(request_id)
        taken = self._child.send_now(data)
        if not taken:
            self._ledger.unsent(request_id)
            return message
        return data[taken:] or None

    async def _write(self, waiting: SessionMessage | bytes) -> bool:
        """Whether the child may take more."""
        data = waiting if isinstance(waiting, bytes) else self._encoded(waiting)
        if data is None:
            return True
        request_id = None if isinstance(waiting, bytes) else _request_id(waiting)
        if not self._child.takes_input:
            await self._end_of_input()
            return False
        self._ledger.sent(request_id)
        with anyio.move_on_after(WRITE_TIMEOUT) as scope:
            try:
                await self._child.send(data)
            except NothingTaken:
                self._ledger.unsent(request_id)
                await self._end_of_input()
                return False
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await self._end_of_input()
                return False
        if scope.cancelled_caught:
            self._dead(ConnectionLost(f"it has not read its input for {WRITE_TIMEOUT:.0f} s"))
        return not scope.cancelled_caught

    def _encoded(self, item: SessionMessage) -> bytes | None:
        """The line to be written; None where nothing is to be sent."""
        message, request_id = item.message, _request_id(item)
        if not self._ledger.may_send(request_id):
            return None  # its caller has left, and was told that it was not sent
        try:
            return encoded(message) + b"\n"
        except BadCall as error:
            self._ledger.failed(request_id, error)
            return None

    async def _end_of_input(self) -> None:
        """A child takes no more. Where it has ended, that says more about it, and its last output is still to be read."""
        with anyio.move_on_after(LAST_BYTES):
            await self._child.exited.wait()
        if not self._child.exited.is_set():
            self._dead(ConnectionLost("it closed its input"))

    async def aclose(self) -> None:
        self._closed = True
        self._room.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _request_id(item: SessionMessage) -> int | str | None:
    return item.message.id if isinstance(item.message, JSONRPCRequest) else None
