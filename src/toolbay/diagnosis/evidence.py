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
from toolbay.diagnosis.signs import SIGNS

SHOWN: Final = 6
"""Lines of evidence that are shown at the most."""
LINES: Final = 100
LOOKED_AT: Final = 500
"""Last lines, and characters of each, that are looked through for signs."""
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
    having: Callable[[str], Path | None] = lambda _module: None
    """The Python of an environment on this machine that has a module."""


def judge(remains: Remains, notes: Notes) -> None:
    """Put into `notes` why a program did not become a server, with the lines that say so."""
    config = remains.config
    # Patterns take time with the square of a line, and a server may write any.
    lines = [text[:LOOKED_AT] for text in (*remains.stderr[-LINES:], *remains.stray[-LINES:])]
    fields = {"command": config.command, "program": PurePath(config.command).name.capitalize()}
    for sign in () if remains.answered else SIGNS:
        found = sign.read(lines)
        if found is None:
            continue
        match, at = found
        groups = {**{name: value or "" for name, value in match.groupdict().items()}, **fields}
        python = remains.having(groups.get("module", ""))
        groups["instead"] = f"{python} has it: write that as `command`; else " if python else ""
        shown = [lines[at], *(text for text in lines[max(at - 2, 0) : at + SHOWN] if text != lines[at])][:SHOWN]
        ended = f"; {_ended(remains.exit_code)}" if remains.exit_code is not None else ""
        notes.error(sign.what.format(**groups), sign.why.format(**groups) + ended, sign.mend.format(**groups), shown)
        break
    else:
        _judge_plainly(remains, notes)
    tell_stray(remains.stray, notes, answered=remains.answered)


def _judge_plainly(remains: Remains, notes: Notes) -> None:
    """No sign is known: what is certain is how it ended."""
    last = remains.stderr[-SHOWN:]
    by_hand = f"run it by hand and read what it says: {_line_of(remains.config)}"
    if not remains.spawned:
        notes.error("it could not be started", remains.error, "mend what is named, and try again")
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
