"""How a page is opened in the person's browser: by a program that takes the address as one argument, and by no shell.

Addresses of login pages come from servers. Openers hand them on to shells and to whatever program a scheme is registered
for (CVE-2025-6514), so what an address may consist of is said here once more, narrowly, right before it leaves.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from toolbay.auth.trust import secure

GRACE: Final = 3.0
"""Seconds after which an opener that still runs is taken to have worked: some live as long as the browser that they start."""
LONGEST: Final = 8000
"""Characters of an address."""
_CHARACTER: Final = r"(?:[A-Za-z0-9._~:/@+,=&-]|%[2-9A-Fa-f][0-9A-Fa-f])"
"""Of a path or a query. What shells know is not among them, quoted or not, nor are control characters in their coats."""
_PLAIN: Final = re.compile(rf"https?://[A-Za-z0-9.:\[\]-]++(?:/{_CHARACTER}*+)?(?:\?(?:{_CHARACTER}|\?)*+)?")


def fit(url: str) -> bool:
    """Whether `url` may be handed to an opener: https, or http on this machine; a host, no user, no fragment; plain characters."""
    return len(url) <= LONGEST and _PLAIN.fullmatch(url) is not None and secure(url)


async def opened(url: str) -> bool:
    """Whether the person's browser was told to show `url`; False where there is none, where it is not here, and where `url` is not fit."""
    if not fit(url):
        return False
    for words in openers(sys.platform, os.environ):
        program = shutil.which(words[0])
        if program is not None and await _worked([program, *words[1:], url]):
            return True
    return False


def openers(system: str, environ: Mapping[str, str]) -> Sequence[tuple[str, ...]]:
    """The programs that would open an address, in the order in which they are tried.

    None where the person sits at another machine, and where there are no windows: a browser in the terminal would take that over.
    """
    if system not in ("win32", "darwin"):
        display = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
        inside_windows = environ.get("WSL_DISTRO_NAME")
        return [*([("wslview",)] if inside_windows else []), *([("xdg-open",)] if display else [])]
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return []
    if system == "darwin":
        return [("/usr/bin/open",)]
    # By its whole path: programs are looked for in the working folder first.
    folder = environ.get("SystemRoot") or r"C:\Windows"
    return [(rf"{folder}\System32\rundll32.exe", "url.dll,FileProtocolHandler")]


async def _worked(argv: Sequence[str]) -> bool:
    loop, ended = asyncio.get_running_loop(), anyio.Event()
    codes: list[int] = []

    def tell(code: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(lambda: (codes.append(code), ended.set()))

    # It may live for days, and must neither keep this program from its end nor end with it.
    threading.Thread(target=_run, args=(argv, tell), name="browser", daemon=True).start()
    with anyio.move_on_after(GRACE):
        await ended.wait()
    return codes in ([], [0])


def _run(argv: Sequence[str], tell: Callable[[int], None]) -> None:
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, check=False)  # noqa: S603 - no shell; `fit`
        tell(done.returncode)
    except OSError:
        tell(-1)
