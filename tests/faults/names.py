"""Names that the operating system looks up as a test says: unknown, slow, at one address and then at another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

TLD = ".test"
"""Other names are looked up as ever."""


class Names:
    """In the place of `socket.getaddrinfo`, which is called in threads."""

    def __init__(self, look_up: Any) -> None:
        self.of: dict[str, list[str]] = {}
        """The addresses of each name, in the order in which they are given; a name that is not here is not known."""
        self.answers = threading.Event()
        """Look-ups wait until it is set."""
        self.answers.set()
        self.asked: Counter[str] = Counter()
        self._look_up = look_up

    def __call__(self, host: Any, port: Any, *args: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(TLD):
            return self._look_up(host, port, *args, **more)
        self.asked[name] += 1
        self.answers.wait(30)
        if name not in self.of:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.of[name]
        ]


@contextlib.contextmanager
def scripted(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    names = Names(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", names)
    try:
        yield names
    finally:
        names.answers.set()
