"""`toolbay add`, `remove`, `enable`, `disable`: the servers in the configuration file, edited in place."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from toolbay import _redact
from toolbay._nearest import nearest
from toolbay.cli.invocation import USAGE, CommandFailed, Invocation, invocation
from toolbay.cli.terminal import plural
from toolbay.errors import ConfigError

if TYPE_CHECKING:
    from toolbay.config.models import Config

_NEW_FILE = "toolbay.yaml"


def register(program: typer.Typer) -> None:
    program.command("add", cls=_Add, help="Add a server: toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL.")(add)
    program.command("remove", help="Remove a server from the configuration.")(remove)
    program.command("enable", help="Start this server again from now on.")(enable)
    program.command("disable", help="Keep a server in the configuration, but do not start it.")(disable)


class _Add(TyperCommand):
    """Knows why an option may be unknown: it was meant for the server's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:
            option = str(getattr(error, "option_name", ""))
            place = next((at for at, word in enumerate(given) if option and word.startswith(option)), 0)
            if "--" in given or place < 2 or any(word.startswith("-") for word in given[:2]):
                raise
            mended = shlex.join(["toolbay", "add", given[0], "--", *given[1:]])
            raise CommandFailed(f"{option} is no option of toolbay add. Put -- before the server's command: {mended}", USAGE) from None


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
    near = nearest(name, names)
    hint = f'did you mean "{near}"?' if near else (f"there are {', '.join(names)}." if names else "none are configured.")
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
    words, url = _given(invoked, command or [], url, kind)
    entry = _entry(words, url, header=header or [], env=env or [])
    if kind:
        entry["type"] = kind
    if cwd:
        entry["cwd"] = cwd
    if enabled_tools:
        entry["enabledTools"] = [part.strip() for part in enabled_tools.split(",") if part.strip()]
    path = file_to_edit(invoked)
    _anchor(entry, path.parent)
    if not force and name in _servers(path):
        remedy = f"--force replaces it, toolbay remove {shlex.quote(name)} takes it out."
        raise ConfigError(f'There is a server "{name}" in {path} already: {remedy}')
    _check(name, entry)
    from toolbay.config.edit import add_server  # noqa: PLC0415

    try:
        add_server(path, name, entry, replace=force)
    except ConfigError:  # somebody else may have written at the same moment: the second look is at what they wrote
        add_server(path, name, entry, replace=force)
    shown = shlex.quote(name)
    hint = (
        ""
        if words or any(key.lower() == "authorization" for key in entry.get("headers", {}))
        else f"; toolbay login {shown} logs in, if it wants that"
    )
    invoked.terminal.say(f'Added "{name}" to {path}. toolbay test {shown} tries it out{hint}.')
    _tell_missing(invoked, path, name)


def _given(invoked: Invocation, command: list[str], url: str, kind: str) -> tuple[list[str], str]:
    """The command and the URL; an address alone in the place of a command is the URL, and that is said."""
    if url or len(command) != 1 or kind == "stdio" or not re.match(r"https?://", command[0], re.IGNORECASE):
        return _words(invoked, command), url
    invoked.terminal.say(f"(taken as its address, as after --url: {_redact.url(command[0])})")
    return [], command[0]


def _words(invoked: Invocation, command: list[str]) -> list[str]:
    """`command`; one that was quoted as a whole is taken apart, and that is said."""
    if len(command) != 1 or len(command[0].split()) < 2 or Path(command[0]).exists():
        return command
    try:
        words = shlex.split(command[0])
    except ValueError:  # a lone quote: it is what it is
        return command
    invoked.terminal.say(f"(taken as the command {words[0]} with {plural(len(words) - 1, 'argument')})")
    return words


def _anchor(entry: dict[str, Any], folder: Path) -> None:
    """What is meant from the working folder says so, where the file that will hold it is in another one."""
    if folder.resolve() == Path.cwd():
        return
    command, cwd = str(entry.get("command", "")), str(entry.get("cwd", ""))
    if Path(command).name != command and _is_relative(command):
        entry["command"] = os.path.abspath(command)  # noqa: PTH100  (links stay as they were written)
    if _is_relative(cwd):
        entry["cwd"] = os.path.abspath(cwd)  # noqa: PTH100


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith(("~", "${")) and not Path(path).is_absolute()


def _tell_missing(invoked: Invocation, path: Path, name: str) -> None:
    """A reference to a variable that is not set yet is no fault of the entry, but good to know."""
    from toolbay.config import InvalidServer, load  # noqa: PLC0415

    found = load(path).tools.mcp_servers.get(name)
    if isinstance(found, InvalidServer):
        invoked.terminal.say(f"! {found.reason}")


def _entry(command: Sequence[str], url: str, *, header: Sequence[str], env: Sequence[str]) -> dict[str, Any]:
    if bool(command) == bool(url):
        raise CommandFailed(
            "A server has a command or a URL, not both: toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL."
            if command
            else "What is the server? Write toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL.",
            USAGE,
        )
    entry: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {"url": url}
    if not entry.get("args", True):
        del entry["args"]
    if header and command:
        raise CommandFailed("--header is for servers with a URL; a command takes --env.", USAGE)
    if env and url:
        raise CommandFailed("--env is for servers with a command; a URL takes --header.", USAGE)
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
            raise CommandFailed(
                f"{option} takes K=V, such as {option} TOKEN='${{TOKEN}}'; one that was given has no name and = in it.", USAGE
            )
        found[key.strip()] = value.strip() if option == "--header" else value
    return found


def _check(name: str, entry: dict[str, Any]) -> None:
    """Refuse what the loader would call invalid, references aside: those may be set later."""
    from toolbay.config import parse  # noqa: PLC0415
    from toolbay.config.launchers import nameless  # noqa: PLC0415
    from toolbay.config.models import InvalidServer, ServerConfig, TransportType  # noqa: PLC0415

    given = ServerConfig(type=TransportType.STDIO, command=entry.get("command", ""), args=tuple(entry.get("args", ())))
    if nameless(given):
        again = shlex.join(["toolbay", "add", name, "--", given.command, *given.args])
        raise ConfigError(f"{given.command} is given no package to run: {again} PACKAGE")
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
    import anyio  # noqa: PLC0415 - `toolbay --help` needs none

    from toolbay.cli.kept_logins import is_kept  # noqa: PLC0415
    from toolbay.config import load  # noqa: PLC0415
    from toolbay.config.edit import remove_server  # noqa: PLC0415

    invoked = invocation(context)
    path = file_to_edit(invoked)
    known = load(path) if path.exists() else None
    remove_server(path, _named(path, name))
    invoked.terminal.say(f'Removed "{name}" from {path}.')
    if known is not None and anyio.run(is_kept, known, name):
        invoked.terminal.warn(f"! the login with it is still kept: toolbay logout {shlex.quote(name)} ends it")


def enable(context: typer.Context, name: Annotated[str, typer.Argument(help="The server's name.")]) -> None:
    _switch(invocation(context), name, enabled=True)


def disable(context: typer.Context, name: Annotated[str, typer.Argument(help="The server's name.")]) -> None:
    _switch(invocation(context), name, enabled=False)


def _switch(invoked: Invocation, name: str, *, enabled: bool) -> None:
    from toolbay.config.edit import set_enabled  # noqa: PLC0415

    path = file_to_edit(invoked)
    set_enabled(path, _named(path, name), enabled)
    invoked.terminal.say(f'{"Enabled" if enabled else "Disabled"} "{name}" in {path}.')
