"""Lines for the chat, and those that come out of a pipe."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
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
        self._send, self._receive = anyio.create_memory_object_stream[str](math.inf)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        # os.read and not sys.stdin: a daemon thread that holds the stream's lock would break the interpreter's end.
        descriptor, rest = sys.stdin.fileno(), b""
        try:
            while chunk := os.read(descriptor, _CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._in_loop(self._send.send_nowait, line.decode("utf-8", "replace").rstrip("\r"))
        except OSError:
            pass  # a stdin that cannot be read any more has ended
        if rest:
            self._in_loop(self._send.send_nowait, rest.decode("utf-8", "replace"))
        self._in_loop(self._send.close)

    def _in_loop(self, function: Callable[..., object], *given: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *given)

    async def line(self) -> str | None:
        try:
            return await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._receive.close()
            return None
