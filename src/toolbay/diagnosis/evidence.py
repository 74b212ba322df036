"""What a program that did not become a server has left: its exit code, its last lines. Pure."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from toolbay._redact import argv
from toolbay.config.models import ServerConfig
from toolbay.diagnosis.findings import Notes
from toolbay.upstream import signs

SHOWN: Final = 6
"""Lines of evidence that are shown at the most."""
_SLOW_LAUNCHERS: Final = frozenset({"npx", "bunx", "uvx", "uv", "pipx", "docker", "podman"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Remains:
    """What a start that failed has left behind."""

    config: ServerConfig
    exit_code: int | None = None
    """None: it still ran."""
    stderr: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    """Lines of its output that were no messages."""
    spawned: bool = True
    """Whether its process was started at all."""
    answered: bool = False
    """Whether a message of it came in."""
    error: str = ""
    """What the start was ended with, in words."""
    exceeded: tuple[str, str] | None = None
    """The limit that it was ended for, and what helps."""
    lived: float | None = None
    """Seconds that it was ready before it ended; None where it never was."""
    having: Callable[[str], Path | None] = lambda _module: None
    """The Python of an environment on this machine that has a module."""


def judge(remains: Remains, notes: Notes) -> None:
    """Put into `notes` why a program did not become a server, with the lines that say so."""
    if remains.exceeded is not None:
        why, mend = remains.exceeded
        notes.error("it was ended, since it passed a limit of its entry", why, mend, remains.stderr[-SHOWN:])
    elif remains.lived is not None:
        _judge_a_life(remains, remains.lived, notes)
    elif (read := None if remains.answered else _read(remains)) is not None:
        lines = signs.looked_at(remains.stderr, remains.stray)
        shown = [lines[read.at], *(text for text in lines[max(read.at - 2, 0) : read.at + SHOWN] if text != lines[read.at])][:SHOWN]
        ended = f"; {_ended(remains.exit_code)}" if remains.exit_code is not None else ""
        notes.error(read.what, read.why + ended, read.mend, shown)
    else:
        _judge_plainly(remains, notes)
    tell_stray(remains.stray, notes, answered=remains.answered)


def _read(remains: Remains) -> signs.Reading | None:
    def instead(module: str) -> str:
        python = remains.having(module)
        return f"{python} has it: write that as `command`; else " if python else ""

    return signs.read(signs.looked_at(remains.stderr, remains.stray), remains.config.command, instead)


def _judge_a_life(remains: Remains, lived: float, notes: Notes) -> None:
    """It worked, and ended while it was looked at."""
    code, last = remains.exit_code, remains.stderr[-SHOWN:]
    ended = "its connection was lost" if code is None else _ended(code)
    said = "" if last else ", and it wrote nothing to stderr"
    mend = f"run it by hand and read what it says: {_line_of(remains.config)}"
    notes.error(f"it ended {lived:.1f} s after it was ready", f"{ended}{said}", mend, last)


def _judge_plainly(remains: Remains, notes: Notes) -> None:
    """No sign is known: what is certain is how it ended."""
    last = remains.stderr[-SHOWN:]
    by_hand = f"run it by hand and read what it says: {_line_of(remains.config)}"
    if not remains.spawned:
        why = remains.error.removeprefix(f"{notes.server} could not be started: ")
        notes.error("it could not be started", why, "set right what is named there, and try again")
    elif remains.answered:
        notes.error("it was reached, and did not become ready", remains.error, by_hand, last)
    elif remains.exit_code is None:
        launcher = PurePath(remains.config.command).name.removesuffix(".cmd").removesuffix(".exe")
        slow = launcher in _SLOW_LAUNCHERS
        said = "" if remains.stderr or remains.stray else ", and nothing at all"
        why = f"it runs and sent no answer within {remains.config.startup_timeout:g} s{said}"
        mend = "its first start may have to fetch a package: raise `startupTimeout`; else " if slow else ""
        notes.error("it does not answer", why, f"{mend}{by_hand}; it may wait for arguments, or be no MCP server on stdio", last)
    elif remains.exit_code == 0:
        why = f"it ended by itself, without an error ({_ended(0)}), before it answered"
        mend = "check that this command is an MCP server on stdio, and whether it wants arguments"
        notes.error("it is no server as it was started", why, f"{mend}; {by_hand}", last or remains.stray[-SHOWN:])
    else:
        said = "" if last else ", and it wrote nothing to stderr"
        notes.error("it ended before it answered", f"{_ended(remains.exit_code)}{said}", by_hand, last)


def tell_stray(stray: Sequence[str], notes: Notes, *, answered: bool) -> None:
    """Lines on stdout that are no messages: harmless here, but other clients end the session over them (TRA-7)."""
    if not stray:
        return
    count = "a line" if len(stray) == 1 else f"{len(stray)} lines"
    why = "stdout is for messages only" + ("" if answered else ", and no message came")
    notes.warning(f"it writes {count} to stdout that {'is' if len(stray) == 1 else 'are'} no message", why, _LOG_ELSEWHERE, stray[:SHOWN])


_LOG_ELSEWHERE: Final = (
    "have it log to stderr: print(..., file=sys.stderr) in Python, console.error(...) in JavaScript, or its option for that"
)


def _ended(code: int) -> str:
    if code >= 0:
        known = {126: ", which shells give where a program may not be run", 127: ", which shells give where a program is not found"}
        return f"exit code {code}{known.get(code, '')}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"it was ended by {name}" + (", perhaps since memory ran out" if name == "SIGKILL" else "")


def _line_of(config: ServerConfig) -> str:
    return shlex.join([config.command, *argv(config.args)])
