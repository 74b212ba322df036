"""How far a server is shut in: `soft` limits, or the walls of bubblewrap (`strict`), which let nothing through that is not named.

A server under `strict` sees the system's programs, its own package and what its entry declares, an empty home, and no
network. Where the walls cannot be had it is not started at all. What is where is looked up by `walls`; `argv` is pure.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from toolbay.config.models import ServerConfig
from toolbay.errors import LaunchFailed
from toolbay.upstream.launch import Launch

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
"""Where a system keeps its programs: readable. Some are links into /usr on most systems, and are links then."""
ETC = (
    "resolv.conf",
    "hosts",
    "nsswitch.conf",
    "gai.conf",
    "passwd",
    "group",
    "ssl",
    "ca-certificates",
    "pki",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "mime.types",
)
"""What programs need of /etc: names of hosts and users, certificates, libraries, the time zone. The rest is nobody's business."""
INSTALL = "install it (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap; Arch: pacman -S bubblewrap)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Walls:
    """What there is inside."""

    readable: frozenset[str] = frozenset()
    writable: frozenset[str] = frozenset()
    links: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Links by their place: where they lead."""
    etc: tuple[str, ...] = ()
    home: str = ""
    folder: str = "/"
    network: bool = False
    temporary: bool = False
    """Whether the environment names a folder for temporary files, which must be the one inside."""


def confined(launch: Launch, config: ServerConfig, *, find: Callable[[str], str | None] = which, platform: str = sys.platform) -> Launch:
    """The launch as its entry wants it confined.

    Raises:
        LaunchFailed: it wants walls that cannot be had, or declares a path that is none.
    """
    if config.sandbox == "none":
        return launch
    if config.sandbox == "soft":
        return dataclasses.replace(launch, confinement="soft")
    if not platform.startswith("linux"):
        raise LaunchFailed("its sandbox `strict` is bubblewrap, which there is on Linux only: choose another `sandbox`", retriable=False)
    bubblewrap = find("bwrap")
    if bubblewrap is None:
        raise LaunchFailed(f"its sandbox `strict` needs bubblewrap: {INSTALL}, or choose another `sandbox`", retriable=False)
    inside = argv(os.path.abspath(bubblewrap), walls(launch, config), launch.argv)  # noqa: PTH100
    return dataclasses.replace(launch, argv=inside, cwd=None, confinement="strict")


def argv(bubblewrap: str, inside: Walls, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line that builds the walls and runs `command` within.

    The environment is the one that bubblewrap itself is given, which is the server's: in arguments everybody could read it.
    """
    # All namespaces; ends with its keeper; no way to a terminal; no privileges even for root.
    words = ["--unshare-all", *(("--share-net",) if inside.network else ()), "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - a new one inside
    for place, target in sorted(inside.links.items()):
        words += ["--symlink", target, place]
    for name in inside.etc:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Each within what is there already: outer before inner, and what may be written over what may be read.
    mounts = [(Path(path).parts, 1, path) for path in inside.readable] + [(Path(path).parts, 2, path) for path in inside.writable]
    if inside.home:
        mounts.append((Path(inside.home).parts, 0, inside.home))
    for _, kind, path in sorted(mounts):
        words += ["--perms", "0700", "--tmpfs", path] if kind == 0 else ["--ro-bind" if kind == 1 else "--bind", path, path]
    if inside.temporary:
        words += ["--setenv", "TMPDIR", "/tmp"]  # noqa: S108 - as above
    return (bubblewrap, *words, "--chdir", inside.folder, "--", *command)


def walls(launch: Launch, config: ServerConfig) -> Walls:
    """What this server needs and declares, as it is on this machine.

    Raises:
        LaunchFailed: a declared path is relative or is not there.
    """
    home = os.path.normpath(launch.env.get("HOME") or "/")
    home = home if os.path.isabs(home) and home != "/" else ""  # noqa: PTH117
    declared = dict(_declared(text, home) for text in config.sandbox_paths)
    links = {place: os.readlink(place) for place in SYSTEM if os.path.islink(place)}  # noqa: PTH114, PTH115
    system = frozenset(place for place in SYSTEM if place not in links and os.path.isdir(place))  # noqa: PTH112
    folder = os.path.abspath(launch.cwd) if launch.cwd else home or "/"  # noqa: PTH100
    needed = set(_packages(launch, home))
    if launch.cwd and not _holds(folder, home):
        needed.add(folder)
    return Walls(
        readable=system
        | {path for path in needed if not any(_holds(place, path) for place in SYSTEM)}
        | {p for p, rw in declared.items() if not rw},
        writable=frozenset(path for path, writable in declared.items() if writable),
        links=links,
        etc=ETC,
        home=home,
        folder=folder,
        network=config.sandbox_network,
        temporary="TMPDIR" in launch.env,
    )


def _declared(text: str, home: str) -> tuple[str, bool]:
    path, _, mode = text.rpartition(":")
    if mode not in ("rw", "ro"):
        path, mode = text, "ro"
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    if not os.path.isabs(path):  # noqa: PTH117
        raise LaunchFailed(f"`sandboxPaths` names {text!r}, which is no full path: give it from / or ~/ on", retriable=False)
    if not os.path.exists(path):  # noqa: PTH110
        raise LaunchFailed(f"`sandboxPaths` names {path!r}, which does not exist: make it, or take it out", retriable=False)
    return os.path.normpath(path), mode == "rw"


def _packages(launch: Launch, home: str) -> Iterator[str]:
    """The folders, or else the single files, without which the command cannot run."""
    programs = [launch.argv[0]]
    # An interpreter's script is its first argument that is no option.
    script = next((word for word in launch.argv[1:] if not word.startswith("-")), "")
    script = os.path.join(launch.cwd or "", script)  # noqa: PTH118
    if script and os.path.isfile(script):  # noqa: PTH113
        programs.append(script)
    seen: set[str] = set()
    while programs:
        path = os.path.abspath(programs.pop())  # noqa: PTH100
        if path in seen or not os.path.isfile(path):  # noqa: PTH113
            continue
        seen.add(path)
        if os.path.islink(path):  # noqa: PTH114
            programs.append(os.path.join(os.path.dirname(path), os.readlink(path)))  # noqa: PTH115, PTH118, PTH120
        else:
            programs += _interpreter(path, launch.env.get("PATH", ""))
        package = _package(path, home)
        if os.path.isfile(os.path.join(package, "pyvenv.cfg")):  # noqa: PTH113, PTH118
            programs.append(os.path.join(package, "bin", "python"))  # noqa: PTH118 - a link to the interpreter that it was made with
        yield package


def _package(path: str, home: str) -> str:
    """The folder that belongs to the program at `path`, or the file alone: never a home, nor what holds one."""
    parts = Path(path).parts
    if "node_modules" in parts:
        return str(Path(*parts[: parts.index("node_modules") + 1]))
    for folder in Path(path).parents:
        if _holds(str(folder), home) or str(folder) in ("/", f"{home}/.local"):
            break
        signs = ("pyvenv.cfg", "lib/node_modules", "package.json", "pyproject.toml")
        if any((folder / sign).exists() for sign in signs) or next(folder.glob("lib/python3*/os.py"), None):
            return str(folder)
    return path


def _interpreter(path: str, search: str) -> list[str]:
    """What the first line of a script names."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            first = file.readline(256)
    except OSError:
        return []
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if len(words) > 1 and words[0].endswith("/env"):
        words = [found for word in words[1:] if not word.startswith("-") and "=" not in word and (found := which(word, path=search))]
    return words[:1]


def _holds(outer: str, inner: str) -> bool:
    return bool(inner) and Path(inner).is_relative_to(outer)
