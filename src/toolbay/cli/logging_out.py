"""`toolbay logout`: the end of a login, there and here; also of one whose server is not in the configuration any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay import _redact
from toolbay.cli.invocation import DONE, FAILED, USAGE, CommandFailed, Invocation, invocation, sentence
from toolbay.cli.kept_logins import entry_of, forget_lists, logins_of, masked
from toolbay.cli.servers import no_such_server
from toolbay.cli.terminal import DIM, GREEN, YELLOW, one_line
from toolbay.errors import ConfigError, ToolbayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from toolbay.auth.logins import Logins, Other
    from toolbay.cli.terminal import Terminal
    from toolbay.config.models import Config, ServerConfig


def register(program: typer.Typer) -> None:
    program.command("logout", help="End the login with a server: there, if it answers within 10 s, and here.")(logout)


def logout(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The server's name, now or at the time.", show_default=False)] = "",
    of_all: Annotated[bool, typer.Option("--all", help="All logins that are kept, also of servers that are not configured here.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if bool(name) == of_all:
        raise CommandFailed("Of which server? Write toolbay logout NAME, or toolbay logout --all.", USAGE)
    invoked = invocation(context)
    invoked.finish(lambda: _logout(invoked, name, as_json=as_json))


async def _logout(invoked: Invocation, name: str, *, as_json: bool) -> int:
    from toolbay.cli.running import tell_place  # noqa: PLC0415

    terminal, config = invoked.terminal, invoked.config()
    tell_place(terminal, config, named=invoked.config_path is not None)
    logins = logins_of(config)
    others = [other for other in await logins.others(_usable(config)) if name in ("", other.server)]
    there = config.tools.mcp_servers
    if name and name not in there and not others:
        raise ConfigError(f"{no_such_server(name, there)} No login is kept under that name either.")
    names = [each for each in there if name in ("", each)]
    work = [(each, lambda each=each: _ended(logins, each, entry_of(config, each))) for each in names]
    work += [(other.server, lambda other=other: _forgotten(logins, other, config)) for other in others]
    ended: list[dict[str, Any]] = []
    for each, end in work:
        ended.append(await _tried(terminal, logins, each, end, alone=len(work) == 1 and bool(name)))
    code = FAILED if any("error" in told for told in ended) else DONE
    if as_json:
        terminal.json({"servers": ended})
        return code
    for told in ended:
        _tell_end(terminal, told)
        if told.get("was_logged_in") and "url" not in told and _by_itself(config, told["name"]):
            terminal.say(f"(the next use of {one_line(told['name'])} logs in again, since its `auth.type` is client_credentials)", DIM)
    if not any(told.get("was_logged_in") for told in ended):
        terminal.say(f"(there was no login with {one_line(name)})" if name else "(there was no login)")
    return code


async def _tried(
    terminal: Terminal, logins: Logins, name: str, end: Callable[[], Awaitable[dict[str, Any]]], *, alone: bool
) -> dict[str, Any]:
    try:
        with masked(logins):
            return await end()
    except ToolbayError as error:
        if alone:
            raise
        terminal.error(sentence(error))  # the others are logged out all the same
        return {"name": name, "error": sentence(error)}


def _usable(config: Config) -> dict[str, ServerConfig]:
    from toolbay.config.models import ServerConfig  # noqa: PLC0415

    return {name: entry for name, entry in config.tools.mcp_servers.items() if isinstance(entry, ServerConfig)}


def _by_itself(config: Config, name: str) -> bool:
    server = _usable(config).get(name)
    return server is not None and server.auth is not None and server.auth.type == "client_credentials"


async def _ended(logins: Logins, name: str, server: ServerConfig) -> dict[str, Any]:
    before = await logins.standing(name, server)
    revoked = await logins.logout(name, server)
    forget_lists(server)
    return {"name": name, "was_logged_in": revoked is not None, "revoked": revoked, "issuer": before.issuer}


async def _forgotten(logins: Logins, other: Other, config: Config) -> dict[str, Any]:
    revoked = await logins.forget(other, ssrf_whitelist=config.tools.ssrf_whitelist)
    told = {"name": other.server, "was_logged_in": revoked is not None, "revoked": revoked, "issuer": other.issuer}
    return {**told, "url": _redact.url(other.url) if other.url else ""}


def _tell_end(terminal: Terminal, told: dict[str, Any]) -> None:
    if "error" in told or not told["was_logged_in"]:
        return
    name, issuer = one_line(told["name"]), one_line(_redact.url(told["issuer"])) if told["issuer"] else ""
    if "url" in told:
        at = one_line(told["url"])
        name = f"{name} ({at}, no server of this configuration)" if name and at else at or "a server whose login cannot be read any more"
    terminal.write(f"✓ logged out of {name}", GREEN)
    if not told["revoked"]:
        where = f"{issuer} has not confirmed that it ends" if issuer else "nobody can be told that it ends"
        terminal.warn(f"! the login with {name} is forgotten here, but {where}: who has its tokens may use them until they run out", YELLOW)
