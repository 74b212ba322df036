"""Lines for the chat, and those that come out of a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol

import anyio

_CHUNK: Final = 65_536


class Interrupted(Exception):
    """Ctrl-C on an empty line."""


class Input(Protocol):
    async def line(self) -> str | None:
        """The next line; None at the end.

        Raises:
            Interrupted: Ctrl-C on an empty line.
        """
        ...


@contextmanager
def overheard(handle: Callable[[str], None]) -> Generator[None]:
    """Hand the lines that a person types at the terminal meanwhile to `handle`.

    Where the event loop cannot watch a terminal (Windows) they stay there and become the next line.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        # A terminal that is not in raw mode gives whole lines; nothing at all is Ctrl-D.
        for line in os.read(descriptor, _CHUNK).decode("utf-8", "replace").splitlines():
            handle(line)

    try:
        loop.add_reader(descriptor, read)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


class Pipe:
    """Lines of a stdin that is no terminal. A thread reads it: a blocked read cannot be cancelled, and must not hold us up."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[str | None](1_000_000)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        # os.read and not sys.stdin: a daemon thread that holds the stream's lock would break the interpreter's end.
        descriptor, rest = sys.stdin.fileno(), b""
        while chunk := os.read(descriptor, _CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._hand_over(line.decode("utf-8", "replace").rstrip("\r"))
        if rest:
            self._hand_over(rest.decode("utf-8", "replace"))
        self._hand_over(None)

    def _hand_over(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send.send_nowait, line)

    async def line(self) -> str | None:
        return await self._receive.receive()
