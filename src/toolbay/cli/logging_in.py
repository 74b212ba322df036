"""`toolbay login` and `toolbay logout`: a person's login with a server, and its end."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolbay import _redact
from toolbay._text import duration
from toolbay.cli.invocation import DONE, FAILED, USAGE, CommandFailed, Invocation, invocation, sentence
from toolbay.cli.servers import known_server
from toolbay.cli.terminal import DIM, GREEN, YELLOW, one_line
from toolbay.errors import BlockedAddress, ConfigError, LoginFailed, ToolbayError

if TYPE_CHECKING:
    from toolbay.auth.flow import Page
    from toolbay.auth.logins import Logins, LoginStatus
    from toolbay.cli.terminal import Terminal
    from toolbay.config.models import Config, ServerConfig

_PATIENCE: Final = 300.0
_IMPLIED: Final = "offline_access"
"""A scope that is granted as a refresh token, and rarely named again."""


def register(program: typer.Typer) -> None:
    program.command("login", help="Log in to a server that wants it, in your browser.")(login)
    program.command("logout", help="End the login with a server: there, and here.")(logout)


def login(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server's name.")],
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser here: show the address only.")] = False,
    scopes: Annotated[str, typer.Option("--scopes", metavar="WORDS", help='What to ask for, such as "read write".')] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for you.")] = _PATIENCE,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if not 0 < timeout < float("inf"):
        raise CommandFailed("--timeout takes seconds, more than 0.", USAGE)
    invoked = invocation(context)
    person = _AtTerminal(invoked.terminal, opens=not no_browser)
    invoked.finish(lambda: _login(invoked, name, person, scopes=scopes.split(), patience=timeout, as_json=as_json))


async def _login(invoked: Invocation, name: str, person: _AtTerminal, *, scopes: list[str], patience: float, as_json: bool) -> int:
    terminal = invoked.terminal
    config = _config(invoked)
    entry = _entry(config, known_server(config, name))
    server = _asking_for(scopes, entry)
    logins = _logins(config)
    if server.auth is not None and server.auth.type == "client_credentials":
        terminal.say("(nobody is asked: `auth.type` is client_credentials, so the program logs in by itself)", DIM)
    with _masked(logins):
        await logins.login(name, server, person, patience=patience)
    _forget_lists(entry)
    status = await logins.standing(name, server)
    if as_json:
        terminal.json(_described(name, status))
        return DONE
    terminal.write(f"✓ logged in to {one_line(name)} at {one_line(_redact.url(status.issuer))}", GREEN)
    for line in _facts(status):
        terminal.write(f"    {line}")
    if missing := _missing(person.asked, status):
        terminal.warn(f"! not granted: {one_line(' '.join(missing), 400)}", YELLOW)
    terminal.say(f"(toolbay test {shlex.quote(name)} connects it; what runs already goes on by itself)", DIM)
    return DONE


def _facts(status: LoginStatus) -> Iterator[str]:
    if status.scopes:
        yield f"granted: {one_line(' '.join(status.scopes), 400)}"
    if status.renews:
        yield "it renews itself"
    elif status.ends_at is not None:
        yield f"it ends in {duration(status.ends_at - time.time())}; then log in again"


def _missing(asked: tuple[str, ...], status: LoginStatus) -> list[str]:
    return [scope for scope in asked if scope not in (*status.scopes, _IMPLIED)] if status.scopes is not None else []


def _described(name: str, status: LoginStatus) -> dict[str, Any]:
    return {
        "name": name,
        "logged_in": status.logged_in,
        "issuer": status.issuer,
        "scopes": None if status.scopes is None else list(status.scopes),
        "ends_at": status.ends_at,
        "renews": status.renews,
    }


def logout(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The server's name.", show_default=False)] = "",
    of_all: Annotated[bool, typer.Option("--all", help="The logins with all servers of the configuration.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if bool(name) == of_all:
        raise CommandFailed("Of which server? Write toolbay logout NAME, or toolbay logout --all.", USAGE)
    invoked = invocation(context)
    invoked.finish(lambda: _logout(invoked, name, as_json=as_json))


async def _logout(invoked: Invocation, name: str, *, as_json: bool) -> int:
    terminal = invoked.terminal
    config = _config(invoked)
    names = [known_server(config, name)] if name else list(config.tools.mcp_servers)
    logins = _logins(config)
    ended: list[dict[str, Any]] = []
    code = DONE
    for each in names:
        try:
            with _masked(logins):
                told = await _ended(logins, each, _entry(config, each))
        except ToolbayError as error:
            if name:
                raise
            terminal.error(sentence(error))  # the others are logged out all the same
            told, code = {"name": each, "error": sentence(error)}, FAILED
        ended.append(told)
    if as_json:
        terminal.json({"servers": ended})
        return code
    for told in ended:
        _tell_end(terminal, told, alone=bool(name))
    if not name and not any(told.get("was_logged_in") for told in ended):
        terminal.say("(there was no login)")
    return code


async def _ended(logins: Logins, name: str, server: ServerConfig) -> dict[str, Any]:
    before = await logins.standing(name, server)
    revoked = await logins.logout(name, server)
    _forget_lists(server)
    there = before.logged_in or bool(before.ended)
    return {"name": name, "was_logged_in": there, "revoked": revoked if there else None, "issuer": before.issuer}


def _tell_end(terminal: Terminal, told: dict[str, Any], *, alone: bool) -> None:
    name, issuer = one_line(told["name"]), one_line(_redact.url(told.get("issuer", "")))
    if "error" in told:
        return
    if not told["was_logged_in"]:
        if alone:
            terminal.say(f"(there was no login with {name})")
        return
    terminal.write(f"✓ logged out of {name}", GREEN)
    if not told["revoked"]:
        where = f"{issuer} has not confirmed that it ends" if issuer else "nobody can be told that it ends"
        terminal.warn(f"! the login with {name} is forgotten here, but {where}: who has its tokens may use them until they run out", YELLOW)


def _config(invoked: Invocation) -> Config:
    from toolbay.cli.running import tell_place  # noqa: PLC0415

    config = invoked.config()
    tell_place(invoked.terminal, config, named=invoked.config_path is not None)
    return config


def _entry(config: Config, name: str) -> ServerConfig:
    """The server's entry, with what every server may reach. Raises CommandFailed where it cannot be used."""
    from toolbay.config.models import InvalidServer  # noqa: PLC0415
    from toolbay.config.networks import with_network  # noqa: PLC0415

    server = with_network(config.tools.mcp_servers[name], config.tools)
    if isinstance(server, InvalidServer):
        raise CommandFailed(server.reason)
    return server


def _forget_lists(server: ServerConfig) -> None:
    """What the server listed to who was logged in before is no beginning for who is now."""
    from toolbay.config import data_home  # noqa: PLC0415
    from toolbay.recollections import Folder  # noqa: PLC0415

    with suppress(OSError, ConfigError):  # then it is offered until the server is up, as after any change at its side
        Folder(data_home(os.environ) / "listings").forget(server)


def _asking_for(scopes: list[str], server: ServerConfig) -> ServerConfig:
    from toolbay.config.models import LoginConfig  # noqa: PLC0415

    if not scopes:
        return server
    return server.model_copy(update={"auth": (server.auth or LoginConfig()).model_copy(update={"scopes": tuple(scopes)})})


def _logins(config: Config) -> Logins:
    """The logins that every program of this person shares."""
    from toolbay.auth.logins import Logins  # noqa: PLC0415
    from toolbay.auth.store import Files  # noqa: PLC0415
    from toolbay.config import data_home  # noqa: PLC0415

    return Logins(Files(data_home(os.environ) / "logins"), secrets=_redact.Secrets(config.secrets))


@contextmanager
def _masked(logins: Logins) -> Generator[None]:
    """What others say of a login may say secrets of the configuration back."""
    try:
        yield
    except (LoginFailed, BlockedAddress) as error:
        raise CommandFailed(logins.secrets.mask(str(error))) from error


class _AtTerminal:
    """Shows the page to the person at the terminal, in a browser if there is one, and takes the address that it ended at."""

    def __init__(self, terminal: Terminal, *, opens: bool) -> None:
        self._terminal = terminal
        self._opens = opens
        self._page: Page | None = None
        self._began = 0.0

    @property
    def asked(self) -> tuple[str, ...]:
        """The scopes that were asked for."""
        return self._page.scopes if self._page is not None else ()

    async def go(self, page: Page) -> None:
        from toolbay.auth.browser import opened  # noqa: PLC0415

        self._page, self._began = page, time.monotonic()
        whose = "" if page.host == page.issuer else f", for {page.issuer}"
        self._terminal.warn(f"To log in to {one_line(page.server)}, agree on this page at {page.host}{whose}:\n\n  {page.url}\n")
        if page.scopes:
            self._terminal.say(f"It asks you for: {one_line(' '.join(page.scopes), 400)}")
        shown = self._opens and await opened(page.url)
        self._terminal.say("Your browser was told to show it." if shown else "Open it in a browser.")
        if self._reads:
            where = "Where that browser is at another machine, it ends at an address that it cannot show"
            self._terminal.say(f"{where} ({page.redirect_uri}?...): paste that address here.")

    async def pasted(self) -> str:
        import anyio  # noqa: PLC0415

        from toolbay.cli.running import moving  # noqa: PLC0415

        page = self._page
        assert page is not None
        if _at_keyboard():
            from toolbay.cli.pasting import Pasted  # noqa: PLC0415

            waiting = "waiting for the browser {:.0f} s; or paste its last address"
            found = await Pasted(lambda: waiting.format(time.monotonic() - self._began), page.fault).text()
        else:
            found = await self._from_stdin(page) if self._reads else None
        if found is not None:
            return found
        async with moving(self._terminal, lambda: "waiting for the browser"):
            await anyio.sleep_forever()
        return ""

    @property
    def _reads(self) -> bool:
        """A stdin that is no keyboard may be meant for others, unless it is said that there is no browser here."""
        return _at_keyboard() or not self._opens

    async def _from_stdin(self, page: Page) -> str | None:
        from toolbay.cli.lines import Pipe  # noqa: PLC0415

        lines = Pipe()
        while (line := await lines.line()) is not None:
            if line.strip():
                if not (fault := page.fault(line)):
                    return line
                self._terminal.warn(f"! {fault}", YELLOW)
        return None


def _at_keyboard() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
