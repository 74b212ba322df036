"""Programs on this machine: where one is that the PATH does not have, what is spelt nearly so, and what a script needs to run."""

from __future__ import annotations

import ntpath
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from toolbay._nearest import nearest
from toolbay.config.places import user_home

MOST = 20_000
"""Names that are looked through for one that is spelt nearly so."""
_HEAD = 256
_BINARIES = (b"\x7fELF", b"MZ", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe")
_SUFFIXES = (".cmd", ".exe", ".bat", ".com", ".ps1")
_HOME_PLACES = (
    ".local/bin",
    "bin",
    ".nvm/versions/node/*/bin",
    ".volta/bin",
    ".asdf/shims",
    ".local/share/mise/shims",
    ".local/share/fnm/node-versions/*/installation/bin",
    ".npm-global/bin",
    ".local/share/pnpm",
    ".bun/bin",
    ".deno/bin",
    ".pyenv/shims",
    ".pyenv/versions/*/bin",
    ".cargo/bin",
    "go/bin",
    "miniconda3/bin",
    "anaconda3/bin",
    ".docker/bin",
    ".rd/bin",
    "Library/pnpm",
    "AppData/Roaming/npm",
    "AppData/Local/Programs/Python/*",
    "AppData/Local/Programs/Python/*/Scripts",
    "scoop/shims",
)
_ENVIRONMENTS = (".local/share/pipx/venvs/*", ".local/pipx/venvs/*", ".local/share/uv/tools/*", "AppData/Roaming/uv/tools/*")
"""Where pipx and uv keep an environment for each program."""
_SYSTEM_PLACES = (
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/opt/local/bin",
    "/snap/bin",
    "/Applications/Docker.app/Contents/Resources/bin",
    "C:/Program Files/nodejs",
    "C:/Program Files/Docker/Docker/resources/bin",
)
_INSTALL = {
    **dict.fromkeys(("node", "npm", "npx"), "install Node.js, version 20 or newer, which brings node, npm and npx"),
    **dict.fromkeys(("uv", "uvx"), "install uv, which brings uvx"),
    **dict.fromkeys(("docker",), "install Docker, or a program that goes by its name such as Podman"),
    **dict.fromkeys(("bun", "bunx"), "install Bun, or use npx in the place of bunx"),
    **dict.fromkeys(("python", "python3", "py"), "install Python, or give the full path of the one that is meant"),
    "deno": "install Deno",
    "pipx": "install pipx, or use uvx in its place",
}


def usual_places(environ: Mapping[str, str], cwd: str) -> list[Path]:
    """Folders that programs are commonly in, whether or not the PATH names them; those that exist, the nearest first."""
    here, home = Path(cwd or ".").absolute(), user_home(environ)
    bins = "Scripts" if os.name == "nt" else "bin"
    near = [here / "node_modules" / ".bin", here / ".venv" / bins, here / "venv" / bins]
    if environ.get("VIRTUAL_ENV"):
        near.append(Path(environ["VIRTUAL_ENV"]) / bins)
    found = [*near, Path(sys.executable).parent]
    for pattern in _HOME_PLACES:
        # The newest version first.
        found += sorted(home.glob(pattern), reverse=True)
    found += [Path(environ[name]) for name in ("NVM_BIN", "PNPM_HOME") if environ.get(name)]
    found += [Path(place) for place in _SYSTEM_PLACES]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def elsewhere(command: str, folders: Sequence[Path]) -> Path | None:
    """The program of this name in the first of `folders` that has it; also with the endings that Windows gives its launchers."""
    for folder in folders:
        for name in (command, *(command + suffix for suffix in _SUFFIXES)):
            if _is_program(folder / name):
                return folder / name
    return None


def neighbour(command: str, path: str, folders: Sequence[Path] = ()) -> str:
    """The program on `path` (or else in `folders`) that is spelt most like `command`; empty where none is."""
    names = list(islice(_programs([*(Path(part) for part in path.split(os.pathsep) if part), *folders]), MOST))
    stem, suffix = ntpath.splitext(command)
    alike = [name for name in names if name.lower() == command.lower() or (suffix.lower() in _SUFFIXES and name == stem)]
    alike += [name for name in (f"{command}3", command.removesuffix("3")) if name != command and name in names]
    return alike[0] if alike else nearest(command, names, likeness=0.75)


def interpreter_with(module: str, environ: Mapping[str, str], cwd: str) -> Path | None:
    """The Python of an environment that has `module`: of the folder `cwd`, the active one, ours, or one that pipx or uv have made."""
    top = module.partition(".")[0]
    if not top.isidentifier():
        return None
    here, home = Path(cwd or ".").absolute(), user_home(environ)
    folders = [here / ".venv", here / "venv", *([Path(environ["VIRTUAL_ENV"])] if environ.get("VIRTUAL_ENV") else []), Path(sys.prefix)]
    for pattern in _ENVIRONMENTS:
        folders += sorted(home.glob(pattern))
    for folder in folders:
        packages = [*folder.glob("lib/python3*/site-packages"), folder / "Lib" / "site-packages"]
        pythons = [folder / "bin" / "python", folder / "Scripts" / "python.exe"]
        if any((place / top).is_dir() or (place / f"{top}.py").is_file() for place in packages):
            return next((python for python in pythons if python.is_file()), None)
    return None


def install(command: str) -> str:
    """How to get a program that is not there."""
    return _INSTALL.get(command, f"install it, or give the full path of {command} as `command`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What an executable file needs to be run. `interpreter` is the program that its first line names."""

    interpreter: str = ""
    is_script: bool = False


def needs(file: Path) -> Needs:
    """What the file's first bytes say. What cannot be read needs nothing that is known."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError:
        return Needs()
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split()
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return Needs(interpreter=words[0] if words else "", is_script=True)
    is_text = bool(head) and not head.startswith(_BINARIES) and b"\0" not in head
    return Needs(is_script=is_text)


def on(path: str, command: str) -> str:
    """Where `command` is on `path`; empty where it is not."""
    return shutil.which(command, path=path) or ""


def _programs(folders: Sequence[Path]) -> Iterator[str]:
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            yield from (entry.name for entry in os.scandir(folder) if _is_program(Path(entry.path)))


def _is_program(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)
