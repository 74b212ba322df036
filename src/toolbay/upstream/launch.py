"""What a stdio server's command becomes on this platform: argv, environment and folder. Pure: nothing is started here.

A child gets a minimal environment plus what its entry names (TRA-5). On Windows, launchers that are batch files run
through the command interpreter (TRA-4), because CreateProcess cannot start them.
"""

from __future__ import annotations

import ntpath
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from toolbay.config.launchers import nameless
from toolbay.config.models import ServerConfig
from toolbay.errors import LaunchFailed

CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR", "SSL_CERT_FILE")
"""Where this machine keeps the certificates it trusts: no secrets, and without them nothing behind a company's proxy starts."""
POSIX_ENV = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LANGUAGE", "TMPDIR", "TZ", *CERTIFICATES)
WINDOWS_ENV = (
    *CERTIFICATES,
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "PATH",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)
BATCH_LAUNCHERS = frozenset({"npx", "npm", "pnpm", "yarn", "bunx"})
"""Commands that npm and its kin install as `.cmd` files on Windows."""
PROGRAM_SUFFIXES = (".exe", ".com")
BATCH_SUFFIXES = (".cmd", ".bat")
SHELLS = frozenset({"cmd", "powershell", "pwsh"})

SEARCHED = "PATH searched:"
"""Stands before a list that is long: where lines must be short it is left out."""

Which = Callable[[str, str], str | None]
"""`(command, PATH) -> the file it resolves to`, or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How one child is started. `shown` is the command as its owner wrote it, for messages."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    shown: str
    confinement: Literal["", "soft", "strict"] = ""
    """Which limits it is given before it runs; `strict` has its walls in `argv`."""
    memory: int = 0
    """Bytes that it and all that it starts may use together; 0: any."""
    processes: int = 0
    """How many processes it and all that it starts may be; 0: any."""


def environment(config: ServerConfig, environ: Mapping[str, str], *, windows: bool) -> dict[str, str]:
    """The child's environment: a minimal set, then `inheritEnv`, then `env` (TRA-5)."""
    names = WINDOWS_ENV if windows else POSIX_ENV
    if windows:
        folded = {name.upper(): value for name, value in environ.items()}
        child = {name: folded[name] for name in names if name in folded}
        child |= {name: folded[name.upper()] for name in config.inherit_env if name.upper() in folded}
    else:
        # A value that is a shell function definition was never meant for a program (the SDK drops these as well).
        child = {name: environ[name] for name in names if name in environ and not environ[name].startswith("()")}
        child |= {name: value for name, value in environ.items() if name.startswith("LC_")}
        child |= {name: environ[name] for name in config.inherit_env if name in environ}
    return child | dict(config.env)


def normalise_windows(command: str, args: tuple[str, ...], env: Mapping[str, str], which: Which) -> tuple[str, ...]:
    """The argv that starts `command` on Windows (TRA-4). Pure, so that it is tested on every platform."""
    name = ntpath.basename(command).lower()
    stem, suffix = ntpath.splitext(name)
    if suffix in PROGRAM_SUFFIXES or stem in SHELLS:
        return (command, *args)
    resolved = which(command, env.get("PATH", "")) or ""
    batch = suffix in BATCH_SUFFIXES or name in BATCH_LAUNCHERS or ntpath.splitext(resolved.lower())[1] in BATCH_SUFFIXES
    if not batch:
        return (command, *args)
    return (env.get("COMSPEC") or "cmd.exe", "/d", "/c", command, *args)


def _which(command: str, path: str) -> str | None:
    return shutil.which(command, path=path)


def prepare(
    config: ServerConfig, environ: Mapping[str, str] | None = None, *, windows: bool | None = None, which: Which = _which
) -> Launch:
    """Everything that is needed to start the server's command.

    Raises:
        LaunchFailed: the command is not found on the server's PATH, is not executable, is a launcher of packages that is told
            none, or its folder does not exist. The message gives the command and the PATH that was searched (TRA-8).
    """
    windows = os.name == "nt" if windows is None else windows
    env = environment(config, os.environ if environ is None else environ, windows=windows)
    cwd = config.cwd or None
    if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - a string as the operating system takes it
        raise LaunchFailed(f"its folder {cwd!r} does not exist: correct `cwd`", retriable=False)
    command = config.command
    path = env.get("PATH", "")
    if windows:
        argv = normalise_windows(command, config.args, env, which)
    else:
        resolved = which(_anchored(command, cwd), path)
        if resolved is None:
            raise LaunchFailed(_not_found(command, cwd, path), retriable=False)
        argv = (resolved, *config.args)
    if wrong := nameless(config):  # it would say nothing, or wait for a person
        raise LaunchFailed(f"its arguments {wrong}", retriable=False)
    limits = config.limits
    return Launch(argv=argv, env=env, cwd=cwd, shown=command, memory=limits.memory, processes=limits.processes)


def _anchored(command: str, cwd: str | None) -> str:
    # The child would look for a relative path from its own folder, not from ours.
    return os.path.join(cwd, command) if cwd and os.sep in command and not os.path.isabs(command) else command  # noqa: PTH117, PTH118


def _not_found(command: str, cwd: str | None, path: str) -> str:
    if os.sep in command:
        place = _anchored(command, cwd)
        if os.path.exists(place):  # noqa: PTH110
            return f"its command {command!r} is not an executable file: make it executable, or name the interpreter as the command"
        return f"its command {command!r} does not exist: correct `command`"
    searched = path or "(empty)"
    return f"its command {command!r} was not found: install it or give its full path ({SEARCHED} {searched})"
