"""Launchers that download a package each time: whether the entry says which version. Pure.

A package without a version is whatever its owner published last, and runs with the rights of who starts it.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from toolbay.config.models import ServerConfig, TransportType

_NPM = frozenset({"npx", "bunx"})
_PYPI = frozenset({"uvx"})
_WITH_VALUE = frozenset({"-c", "--call", "--index-url", "--python", "-p", "--with", "--registry", "--cache"})
"""Options whose value follows as a word of its own."""
_SCRIPTS = frozenset({"-c", "--call"})
"""Options that say what to run without a package."""
_EXACT = re.compile(r"v?\d+(?:\.\d+)+[\w.+-]*")


def unpinned(config: ServerConfig) -> str:
    """The package that the entry's launcher would take in any version; empty where there is none, or its version is exact.

    What is no package of a registry (a path, an address) is not judged.
    """
    package = package_of(config)
    return _loose(package, "@") if launcher_of(config) in _NPM else _loose(package, "==", "@")


def package_of(config: ServerConfig) -> str:
    """The package that the entry's launcher would fetch, with the version that it names; empty where it is no such launcher."""
    if config.type is not TransportType.STDIO:
        return ""
    launcher = launcher_of(config)
    if launcher in _NPM:
        return _package(config.args, named=("-p", "--package"))
    return _package(config.args, named=("--from",)) if launcher in _PYPI else ""


def bare_name(package: str) -> str:
    """The name of `package`, without a version."""
    return package[:1] + re.split(r"[@=<>~!\[]", package[1:], maxsplit=1)[0].strip()


def pinned(package: str, version: str = "VERSION") -> str:
    """`package` in one version."""
    return f"{bare_name(package)}@{version}"


def nameless(config: ServerConfig) -> str:
    """What is wrong with the arguments of a launcher of packages that is told none, and the mend: a clause that goes on after them.

    Empty where it is told one, or needs none.
    """
    launcher = launcher_of(config)
    if config.type is not TransportType.STDIO or launcher not in _NPM | _PYPI or _SCRIPTS.intersection(config.args):
        return ""
    if any(word.startswith(("--call=", "-c=")) for word in config.args) or package_of(config):
        return ""
    example = "[mcp-server-time]" if launcher in _PYPI else "[-y, @modelcontextprotocol/server-everything]"
    return f"name no package, so {launcher} has nothing to run: name it in `args`, as in {example}"


def launcher_of(config: ServerConfig) -> str:
    """The command's name, without its folder and the endings of Windows."""
    return PurePath(config.command).name.removesuffix(".cmd").removesuffix(".exe")


def _package(args: tuple[str, ...], *, named: tuple[str, ...]) -> str:
    """What is to be downloaded: the value of one of `named`, else the first word that is no option."""
    words = iter(args)
    for word in words:
        option, equals, value = word.partition("=")
        if option in named:
            return value if equals else next(words, "")
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(words, None)
    return ""


def _loose(package: str, *marks: str) -> str:
    if not package or package.startswith((".", "/", "~")) or "://" in package:
        return ""
    # The first character may be the @ of a scope, which is no version's.
    for mark in marks:
        name, found, version = package[1:].rpartition(mark)
        if found and name and _EXACT.fullmatch(version):
            return ""
    return package
