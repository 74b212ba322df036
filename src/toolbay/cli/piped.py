"""What is piped into a command: as its question, or as what its question is about."""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from toolbay.cli.terminal import Terminal

_PATIENCE: Final = 3.0
"""Seconds until the first byte. Who starts us may have left a pipe open that nobody will ever write to."""
_CHUNK: Final = 65_536


def rest_of_stdin() -> str:
    return sys.stdin.read()


def arrived(terminal: Terminal) -> str:
    """All of stdin where it is a file or a pipe; empty where it is neither, or where nothing comes."""
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # there is no stdin
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    pieces: list[bytes] = []
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        # os.read and not sys.stdin: a daemon thread that holds the stream's lock would break the interpreter's end.
        try:
            while piece := os.read(descriptor, _CHUNK):
                pieces.append(piece)
                begun.set()
        except OSError:  # what cannot be read on is at its end
            pass
        ended.set()
        begun.set()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    if not begun.wait(_PATIENCE):
        terminal.say(f"(nothing came on stdin within {_PATIENCE:g} s, so the question stands alone)")
        return ""
    ended.wait()
    return b"".join(pieces).decode("utf-8", "replace")
