"""The program as people run it: as a child with pipes, or at a pseudo-terminal with real keys."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.canaries import assert_clean

SOURCES = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 60.0
"""Seconds after which something that is waited for is taken as not coming; far more than is needed."""

_LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
_PROMPT = "\x1b[?2004h"
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What a child sees: nothing of who runs the tests but the way to the interpreter's programs."""
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LANG") if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    own = {"PATH": path, "HOME": str(folder), "TOOLBAY_HOME": str(folder / "home"), "PYTHONPATH": str(SOURCES), "PYTHONUTF8": "1"}
    return {**kept, **own, **more}


def toolbay(*arguments: str, cwd: Path, given: str | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end with pipes; what it prints holds no secret."""
    done = subprocess.run(
        [sys.executable, "-m", "toolbay", *arguments],
        cwd=cwd,
        env=environment(cwd, **(env or {})),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert_clean(done.stdout + done.stderr, f"the output of toolbay {' '.join(arguments)}")
    return done


def started(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the program with pipes, for tests that stop it."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolbay", *arguments],
        cwd=cwd,
        env=environment(cwd, **(env or {})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


class Terminal:
    """A program at a pseudo-terminal of 100 by 40, or of other `columns`. `seen` is all that it has shown, without escape sequences."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, columns: int = 100) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *command],
            cwd=cwd,
            env=environment(cwd, TERM="xterm-256color", PROMPT_TOOLKIT_NO_CPR="1", **(env or {})),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = ""
        self._read_to = 0
        self._prompts = 0

    @property
    def seen(self) -> str:
        return _ESCAPES.sub("", self.raw)

    def expect(self, text: str) -> str:
        """Wait until `text` is shown, after what was expected before; what was shown up to its end."""
        deadline = time.monotonic() + PATIENCE
        while (place := self.seen.find(text, self._read_to)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come after:\n{self.seen[self._read_to :]}"
            assert self._receive(), f"{text!r} did not come before the end of:\n{self.seen[self._read_to :]}"
        begin, self._read_to = self._read_to, place + len(text)
        return self.seen[begin : self._read_to]

    def prompted(self) -> None:
        """Wait for a prompt that came after the last keys: it asks the terminal to bracket what is pasted."""
        deadline = time.monotonic() + PATIENCE
        while self.raw.count(_PROMPT) <= self._prompts:
            assert time.monotonic() < deadline, f"no prompt after:\n{self.seen[self._read_to :]}"
            assert self._receive(), f"no prompt before the end of:\n{self.seen[self._read_to :]}"

    def type(self, keys: str) -> None:
        self._prompts = self.raw.count(_PROMPT)
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Wait for the program's end; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._receive():
            assert time.monotonic() < deadline, f"no end after:\n{self.seen[self._read_to :]}"
        return self._process.wait(PATIENCE)

    def send(self, number: int) -> None:
        """A signal from somewhere else."""
        self._process.send_signal(number)

    def hang_up(self) -> int:
        """Go away, as a window that is closed; the program's exit code."""
        os.close(self._ours)
        self._ours = -1
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE)
        if self._ours >= 0:
            os.close(self._ours)
        assert_clean(self.seen, "what a terminal showed")

    def _receive(self) -> bool:
        """Take what is there, waiting a little; False at the end."""
        if not select.select([self._ours], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)
