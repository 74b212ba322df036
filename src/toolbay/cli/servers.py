"""`toolbay add`, `remove`, `enable`, `disable`: the servers in the configuration file, edited in place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay.cli.invocation import Invocation, invocation
from toolbay.errors import ConfigError

if TYPE_CHECKING:
    from toolbay.config.models import Config

_NEW_FILE = "toolbay.yaml"


def register(program: typer.Typer) -> None:
    program.command("add", help="Add a server: toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL.")(add)
    program.command("remove", help="Remove a server from the configuration.")(remove)
    program.command("enable", help="Start this server again from now on.")(enable)
    program.command("disable", help="Keep a server in the configuration, but do not start it.")(disable)


def known_server(config: Config, name: str) -> str:
    """`name`, if there is such a server.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    known = config.tools.mcp_servers
    if name in known:
        return name
    raise no_such_server(name, known)


def no_such_server(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that no server has: the nearest, or those that there are."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    hint = f'did you mean "{near[0]}"?' if near else (f"there are {', '.join(names)}." if names else "none are configured.")
    return ConfigError(f'There is no server "{name}": {hint}')


def file_to_edit(invoked: Invocation) -> Path:
    """The configuration file in use, or the one that would be made."""
    from toolbay.config import find, home  # noqa: PLC0415
    from toolbay.config.places import expanded  # noqa: PLC0415

    named = str(invoked.config_path or os.environ.get("TOOLBAY_CONFIG", ""))
    if named:
        return Path.cwd() / expanded(named, os.environ)
    return find(Path.cwd(), os.environ) or home(os.environ) / _NEW_FILE


def add(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server's name.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARGS...]", help="stdio: its command.", show_default=False)
    ] = None,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="HTTP: its address.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", metavar="K=V", help="HTTP: a header (repeat).")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="stdio: an environment variable (repeat).")] = None,
    kind: Annotated[str, typer.Option("--type", metavar="TYPE", help="stdio, sse or http; usually inferred.")] = "",
    cwd: Annotated[str, typer.Option("--cwd", metavar="FOLDER", help="stdio: the folder it runs in.")] = "",
    enabled_tools: Annotated[str, typer.Option("--enabled-tools", metavar="A,B", help="Only these tools (names or globs).")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a server of this name.")] = False,
) -> None:
    invoked = invocation(context)
    entry = _entry(command or [], url, header=header or [], env=env or [])
    if kind:
        entry["type"] = kind
    if cwd:
        entry["cwd"] = cwd
    if enabled_tools:
        entry["enabledTools"] = [part.strip() for part in enabled_tools.split(",") if part.strip()]
    path = file_to_edit(invoked)
    if not force and name in _servers(path):
        raise ConfigError(f'There is a server "{name}" in {path} already: --force replaces it, toolbay remove {name} takes it out.')
    _check(name, entry)
    from toolbay.config.edit import add_server  # noqa: PLC0415

    add_server(path, name, entry, replace=force)
    invoked.terminal.say(f'Added "{name}" to {path}. toolbay test {name} tries it out.')
    _tell_missing(invoked, path, name)


def _tell_missing(invoked: Invocation, path: Path, name: str) -> None:
    """A reference to a variable that is not set yet is no fault of the entry, but good to know."""
    from toolbay.config import InvalidServer, load  # noqa: PLC0415

    found = load(path).tools.mcp_servers.get(name)
    if isinstance(found, InvalidServer):
        invoked.terminal.say(f"! {found.reason}")


def _entry(command: Sequence[str], url: str, *, header: Sequence[str], env: Sequence[str]) -> dict[str, Any]:
    if bool(command) == bool(url):
        raise ConfigError(
            "A server has a command or a URL, not both: toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL."
            if command
            else "What is the server? Write toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL."
        )
    entry: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {"url": url}
    if not entry.get("args", True):
        del entry["args"]
    if header and command:
        raise ConfigError("--header is for servers with a URL; a command takes --env.")
    if env and url:
        raise ConfigError("--env is for servers with a command; a URL takes --header.")
    if env:
        entry["env"] = _pairs(env, "--env")
    if header:
        entry["headers"] = _pairs(header, "--header")
    return entry


def _pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """`K=V` words; `K: V`, as headers are usually written, is understood too."""
    found: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if (not separator or ":" in key) and option == "--header":
            key, separator, value = word.partition(":")
        if not separator or not key.strip():
            # The word itself may be a secret in the wrong place.
            raise ConfigError(f"{option} takes K=V, and one that was given has no name before a =.")
        found[key.strip()] = value.strip() if option == "--header" else value
    return found


def _check(name: str, entry: dict[str, Any]) -> None:
    """Refuse what the loader would call invalid, references aside: those may be set later."""
    from toolbay.config import parse  # noqa: PLC0415
    from toolbay.config.models import InvalidServer  # noqa: PLC0415

    bare = {key: value for key, value in entry.items() if key not in {"env", "headers"}}
    found = parse({"tools": {"mcpServers": {name: bare}}}, environ=os.environ).tools.mcp_servers.get(name)
    if isinstance(found, InvalidServer) and "${" not in str(bare):
        raise ConfigError(found.reason)


def _servers(path: Path) -> Sequence[str]:
    from toolbay.config import load  # noqa: PLC0415

    return list(load(path).tools.mcp_servers) if path.exists() else []


def _named(path: Path, name: str) -> str:
    known = _servers(path)
    if name not in known:
        raise no_such_server(name, known)
    return name


def remove(context: typer.Context, name: Annotated[str, typer.Argument(help="The server's name.")]) -> None:
    from toolbay.config.edit import remove_server  # noqa: PLC0415

    invoked = invocation(context)
    path = file_to_edit(invoked)
    remove_server(path, _named(path, name))
    invoked.terminal.say(f'Removed "{name}" from {path}.')


def enable(context: typer.Context, name: Annotated[str, typer.Argument(help="The server's name.")]) -> None:
    _switch(invocation(context), name, enabled=True)


def disable(context: typer.Context, name: Annotated[str, typer.Argument(help="The server's name.")]) -> None:
    _switch(invocation(context), name, enabled=False)


def _switch(invoked: Invocation, name: str, *, enabled: bool) -> None:
    from toolbay.config.edit import set_enabled  # noqa: PLC0415

    path = file_to_edit(invoked)
    set_enabled(path, _named(path, name), enabled)
    invoked.terminal.say(f'{"Enabled" if enabled else "Disabled"} "{name}" in {path}.')
