"""What can be said of a stdio server's command before anything is started: whether it is there, can be run, and with what.

The program of a version (`node --version`) is all that is ever run here.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import anyio
import anyio.to_thread

from toolbay._lenient import as_object
from toolbay._nearest import nearest
from toolbay.config import reading
from toolbay.config.launchers import bare_name, package_of
from toolbay.config.models import ServerConfig
from toolbay.config.places import user_home
from toolbay.diagnosis import programs, versions
from toolbay.diagnosis.findings import Notes
from toolbay.errors import LaunchFailed
from toolbay.upstream.launch import environment, prepare
from toolbay.upstream.process import spawn
from toolbay.upstream.sandbox import confined

VERSION_SECONDS: Final = 10.0
"""How long a program may take to say its version."""
PACKAGE_BYTES: Final = 1_000_000
_NODE: Final = frozenset({"node", "npx"})
_CONTAINERS: Final = frozenset({"docker", "podman", "nerdctl"})
_SHOWN_PATH: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """What is looked at, and where it is told."""

    config: ServerConfig
    environ: Mapping[str, str]
    child: Mapping[str, str]
    notes: Notes

    @property
    def path(self) -> str:
        """The PATH that the child gets."""
        return self.child.get("PATH", "")

    @property
    def places(self) -> list[Path]:
        return programs.usual_places(self.environ, self.config.cwd)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """A Node.js, and what the package wants that it is to run (`engines`)."""

    program: str
    package: str
    place: Path
    wanted: str


async def examine(config: ServerConfig, environ: Mapping[str, str], notes: Notes) -> None:
    """Put into `notes` what is wrong with the command of a stdio server."""
    look = _Look(config=config, environ=environ, child=environment(config, environ, windows=os.name == "nt"), notes=notes)
    # Folders of programs may be many and slow, and the event loop has starts to time.
    try:
        node = await anyio.to_thread.run_sync(_look_around, look)
    except OSError:
        return  # what the system cannot even look at, such as a name that is too long, ends the start as well, which says why
    if node is not None:
        await _look_at_version(look, node)


def _look_around(look: _Look) -> _Node | None:
    """All that the file system tells. What is left to ask is how old a Node.js is."""
    cwd = look.config.cwd
    if cwd and not Path(cwd).is_dir():
        kind = "is a file" if Path(cwd).exists() else "does not exist"
        look.notes.error(f"its folder {cwd} cannot be entered", f"it {kind}", _mend_folder(cwd))
        return None
    file = _program(look)
    if file is None:
        return None
    _look_at(look, file)
    _look_at_arguments(look)
    return None if look.notes.failed else _node(look, file)


def _mend_folder(cwd: str) -> str:
    folder = Path(cwd)
    near = nearest(folder.name, [each.name for each in folder.parent.iterdir() if each.is_dir()]) if folder.parent.is_dir() else ""
    return f"correct `cwd`; there is {folder.parent / near}" if near else "correct `cwd`, or make the folder"


def _program(look: _Look) -> Path | None:
    """The file that will be run; None where there is none, which is told."""
    command, cwd = look.config.command, look.config.cwd
    if os.sep in command or (os.altsep and os.altsep in command):
        file = Path(cwd or ".") / command
        if not file.exists():
            _tell_no_file(look, file)
        elif file.is_dir():
            look.notes.error(f"its command {command} cannot be run", "it is a folder", "name the program in it as `command`")
        elif not os.access(file, os.X_OK):
            interpreter = _interpreter_for(file)
            mend = f"run chmod +x {shlex.quote(str(file))}"
            if interpreter:
                mend += f", or write `command: {interpreter}` with the file as the first of `args`"
            look.notes.error(f"its command {command} cannot be run", "the file is not executable", mend)
        else:
            return file
        return None
    found = programs.on(look.path, command)
    if found:
        return Path(found)
    _tell_not_found(look)
    return None


def _tell_no_file(look: _Look, file: Path) -> None:
    near = ""
    if file.parent.is_dir():
        near = nearest(file.name, [each.name for each in file.parent.iterdir()])
    mend = f"correct `command`; there is {file.parent / near}" if near else "correct `command`"
    if not Path(look.config.command).is_absolute() and not look.config.cwd:
        mend += ", write its full path, or set `cwd`"
    look.notes.error(f"its command {look.config.command} was not found", f"there is no file {file}", mend)


def _tell_not_found(look: _Look) -> None:
    command = look.config.command
    what, why = f"its command {command} was not found", f"no folder of the server's PATH has it ({_shown(look.path)})"
    own = programs.on(look.environ.get("PATH", ""), command)
    if own:
        mend = f"`env` of this entry replaces PATH, and yours has {own}: remove PATH from `env`, or write {own} as `command`"
        look.notes.error(what, why, mend)
        return
    places = look.places
    found = programs.elsewhere(command, places)
    if found is not None:
        mend = f"it is at {found}: write that as `command`, or add {found.parent} to your PATH"
        look.notes.error(what, why, mend)
        return
    words = command.split()
    if len(words) > 1:
        look.notes.error(what, "`command` holds arguments too", f"write `command: {words[0]}`, and {json.dumps(words[1:])} as `args`")
        return
    near = programs.neighbour(command, look.path)
    if near:
        look.notes.error(what, why, f"did you mean {near}? else {programs.install(command)}")
        return
    near = programs.neighbour(command, "", places)
    place = programs.elsewhere(near, places) if near else None
    mend = f"did you mean {place}? else {programs.install(command)}" if place else programs.install(command)
    look.notes.error(what, why, mend)


def _shown(path: str) -> str:
    return "it is empty" if not path else path if len(path) <= _SHOWN_PATH else f"{path[:_SHOWN_PATH]}…"


def _interpreter_for(file: Path) -> str:
    return {".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "sh", ".ts": "npx"}.get(file.suffix, "")


def _look_at(look: _Look, file: Path) -> None:
    """Whether the file can be run as it is: scripts name their interpreter."""
    if os.name == "nt":
        return
    needed = programs.needs(file)
    if needed.is_script and not needed.interpreter:
        interpreter = _interpreter_for(file) or "its interpreter"
        mend = f"write `command: {interpreter}` with {file} as the first of `args`, or begin the file with #!/usr/bin/env {interpreter}"
        look.notes.error(f"its command {look.config.command} cannot be run", "it is a script whose first line names no interpreter", mend)
        return
    interpreter = needed.interpreter
    if not interpreter or programs.on(look.path, interpreter):
        return
    name = PurePath(interpreter).name
    found = programs.elsewhere(name, look.places)
    near = programs.neighbour(name, look.path)
    mend = f"it is at {found}: add {found.parent} to your PATH" if found else programs.install(name)
    if not found and near:
        mend += f"; there is {near}, which the first line of {file} may name instead"
    why = f"{file} is a script for {interpreter}, which is not there"
    look.notes.error(f"its command {look.config.command} cannot be run", why, mend)


def _look_at_arguments(look: _Look) -> None:
    """Mistakes in arguments that make a program run and the server not."""
    config, name = look.config, PurePath(look.config.command).name.removesuffix(".exe").removesuffix(".cmd")
    if name in _CONTAINERS and "run" in config.args:
        after = config.args[config.args.index("run") + 1 :]
        if not any(word in ("--interactive", "--interactive=true") or _has_flag(word, "i") for word in after):
            why = f"without -i, {name} run closes its input at once, and a server ends with its input"
            look.notes.error("its container gets no input", why, "add -i behind run in `args`")
        if any(word == "--tty" or _has_flag(word, "t") for word in after):
            why = "a terminal mixes stderr into stdout and changes line ends, which no protocol survives"
            look.notes.warning("its container gets a terminal", why, "remove -t from `args`")


def _has_flag(word: str, flag: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and "=" not in word and flag in word[1:] and len(word) <= 4


def _node(look: _Look, file: Path) -> _Node | None:
    """The Node.js that a package will run on, where both are known."""
    name = PurePath(look.config.command).name.removesuffix(".exe").removesuffix(".cmd")
    if name not in _NODE:
        return None
    node = str(file) if name == "node" else programs.on(look.path, "node")
    place, package = next(_packages(look, name), (Path(), dict[str, Any]()))
    wanted = as_object(package.get("engines")).get("node")
    if not node or not isinstance(wanted, str):
        return None
    return _Node(program=node, package=str(package.get("name") or place), place=place, wanted=wanted)


async def _look_at_version(look: _Look, node: _Node) -> None:
    version = await _said_version(look, node.program)
    if version and not versions.satisfies(version, node.wanted):
        why = f"{node.program} is {version}, and the package {node.package} wants {node.wanted} ({node.place})"
        mend = f"install a Node.js that is {node.wanted}, or name one as `command` by its full path"
        look.notes.error("its Node.js does not fit", why, mend)


def _packages(look: _Look, launcher: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The package's description, where it lies on this machine: that of a script, or that of what npx has fetched before."""
    config = look.config
    if launcher == "node":
        script = next((word for word in config.args if not word.startswith("-")), "")
        folders = list((Path(config.cwd or ".") / script).parents) if script else []
    else:
        package = package_of(config)
        name = bare_name(package)
        cache = user_home(look.environ) / ".npm" / "_npx"
        roots = [Path(config.cwd or "."), *(cache.glob("*") if cache.is_dir() else ())]
        folders = [root / "node_modules" / name for root in roots] if name else []
    for folder in folders:
        file = folder / "package.json"
        try:
            yield file, as_object(json.loads(reading.read(file, PACKAGE_BYTES)))
        except (OSError, ValueError, RecursionError):
            continue


async def _said_version(look: _Look, program: str) -> str:
    """The first line that it says. It is started as the server would be: behind the same walls, and with nothing left of it."""
    config = look.config.model_copy(update={"command": program, "args": ("--version",)})
    said = b""
    with anyio.move_on_after(VERSION_SECONDS):
        try:
            async with spawn(confined(prepare(config, look.environ), config)) as child:
                with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                    while b"\n" not in said and len(said) <= versions.LONGEST:
                        said += await child.receive()
        except LaunchFailed:
            return ""
    return said.partition(b"\n")[0].decode("utf-8", "replace").strip()
