"""A program that does all it can to leave something behind: standard library only, POSIX only.

    python hostile.py PIDS HOW... -- END

Each HOW starts a descendant that ignores SIGTERM and SIGHUP and sleeps; `PIDS` is a file that gets a line `HOW PID` for
each, by itself, once it is stubborn. Then the program says `ready` and ends, or does not, as END says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
with open(sys.argv[1], "a") as file: file.write(f"{sys.argv[2]} {os.getpid()}\\n")
time.sleep(3600)
"""


def argv(pids: str, how: str) -> list[str]:
    return [sys.executable, "-IS", "-c", STUBBORN, pids, how]


def twice(pids: str, how: str, env: dict[str, str]) -> None:
    """As a daemon does: fork, a session of its own, fork again, the one between ends."""
    if (between := os.fork()) != 0:
        os.waitpid(between, 0)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.execve(sys.executable, argv(pids, how), env)


def hydra(pids: str, how: str) -> None:
    """As many as there are tokens in the pipe beside `PIDS`: each takes one to fork once more, and all end with the pipe."""
    if os.fork() != 0:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with Path(pids).open("a") as file:
        file.write(f"{how} {os.getpid()}\n")
    tokens = os.open(f"{pids}.tokens", os.O_RDONLY)
    while os.read(tokens, 1):
        os.fork()
    os._exit(0)


def quiet(command: list[str], *, session: bool) -> None:
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=session)


def start(pids: str, how: str) -> None:
    if how == "plain":
        quiet(argv(pids, how), session=False)
    elif how == "holds":
        subprocess.Popen(argv(pids, how))
    elif how == "session":
        quiet(argv(pids, how), session=True)
    elif how == "twice":
        twice(pids, how, dict(os.environ))
    elif how == "cleared":
        twice(pids, how, {})
    elif how == "hydra":
        hydra(pids, how)


def main() -> None:
    split = sys.argv.index("--")
    pids, hows, (end,) = sys.argv[1], sys.argv[2:split], sys.argv[split + 1 :]
    if end == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for how in hows:
        start(pids, how)
    while True:
        if Path(pids).read_text().count("\n") == len(hows):
            break
        time.sleep(0.01)
    with Path(pids).open("a") as file:
        file.write(f"server {os.getpid()}\n")
    print("ready", flush=True)
    if end in ("stays", "ignores"):
        time.sleep(3600)
    elif end == "leaves":
        sys.stdin.read()
    elif end == "crashes":
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main()
