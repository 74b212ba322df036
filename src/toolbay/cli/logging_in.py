"""`toolbay login`: a person's login with a server."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay import _redact
from toolbay._text import duration
from toolbay.auth.records import PATIENCE
from toolbay.cli.invocation import DONE, FAILED, USAGE, CommandFailed, Invocation, invocation
from toolbay.cli.kept_logins import entry_of, forget_lists, logins_of, masked
from toolbay.cli.servers import known_server
from toolbay.cli.terminal import DIM, GREEN, YELLOW, one_line

if TYPE_CHECKING:
    from toolbay.auth.logins import LoginStatus
    from toolbay.auth.pages import Page
    from toolbay.cli.terminal import Terminal
    from toolbay.config.models import Config, ServerConfig


def register(program: typer.Typer) -> None:
    program.command("login", help="Log in to a server that wants it, in your browser.")(login)


def login(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server's name.")],
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser here: show the address only.")] = False,
    scopes: Annotated[str, typer.Option("--scopes", metavar="WORDS", help='Ask for "read write" instead of what was held.')] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long it may take, with your part of it.")] = PATIENCE,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if not 0 < timeout < float("inf"):
        raise CommandFailed("--timeout takes seconds, more than 0.", USAGE)
    invoked = invocation(context)
    person = PersonAtTerminal(invoked.terminal, opens=not no_browser, patience=timeout)
    if "," in scopes:
        invoked.terminal.say("(scopes are written with spaces between them; the commas are taken for that)", DIM)
    named = scopes.replace(",", " ").split()
    invoked.finish(lambda: _login(invoked, name, person, scopes=named, patience=timeout, as_json=as_json))


async def _login(invoked: Invocation, name: str, person: PersonAtTerminal, *, scopes: list[str], patience: float, as_json: bool) -> int:
    from toolbay.auth.scopes import ungranted  # noqa: PLC0415

    terminal = invoked.terminal
    config = _config(invoked)
    entry = entry_of(config, known_server(config, name))
    server = _asking_for(scopes, entry)
    logins = logins_of(config)
    before = await logins.standing(name, server)
    _tell_before(terminal, before, name, server)
    with masked(logins):
        await logins.login(name, server, person, patience=patience)
    forget_lists(entry)
    status = await logins.standing(name, server)
    missing = ungranted(dict.fromkeys((*scopes, *person.asked)), status.scopes)
    code = FAILED if set(missing) & set(scopes) else DONE
    if as_json:
        terminal.json({**_described(name, status), "not_granted": missing})
        return code
    terminal.write(f"✓ logged in to {one_line(name)} at {one_line(_redact.url(status.issuer))}", GREEN)
    for line in _facts(status):
        terminal.write(f"    {line}")
    if missing:
        kept = "the new login has replaced the one before" if before.logged_in else "the login is kept with the rest"
        terminal.warn(f"! not granted: {one_line(' '.join(missing), 400)} ({kept})", YELLOW)
    terminal.say(f"(toolbay test {shlex.quote(name)} connects it; what runs already goes on by itself)", DIM)
    return code


def _tell_before(terminal: Terminal, before: LoginStatus, name: str, server: ServerConfig) -> None:
    if server.auth is not None and server.auth.type == "client_credentials":
        terminal.say("(nobody is asked: `auth.type` is client_credentials, so the program logs in by itself)", DIM)
        return
    if before.logged_in:
        issuer = one_line(_redact.url(before.issuer))
        terminal.say(f"(you are logged in to {one_line(name)} at {issuer} already; the login that you make now takes its place)", DIM)


def _facts(status: LoginStatus) -> Iterator[str]:
    if status.scopes:
        yield f"granted: {one_line(' '.join(status.scopes), 400)}"
    if status.renews:
        yield "it renews itself"
    elif status.ends_at is not None:
        yield f"it ends in {duration(status.ends_at - time.time())}; then log in again"


def _described(name: str, status: LoginStatus) -> dict[str, Any]:
    return {
        "name": name,
        "logged_in": status.logged_in,
        "issuer": status.issuer,
        "scopes": None if status.scopes is None else list(status.scopes),
        "ends_at": status.ends_at,
        "renews": status.renews,
    }


def _config(invoked: Invocation) -> Config:
    from toolbay.cli.running import tell_place  # noqa: PLC0415

    config = invoked.config()
    tell_place(invoked.terminal, config, named=invoked.config_path is not None)
    return config


def _asking_for(scopes: list[str], server: ServerConfig) -> ServerConfig:
    from toolbay.config.models import LoginConfig  # noqa: PLC0415

    if not scopes:
        return server
    return server.model_copy(update={"auth": (server.auth or LoginConfig()).model_copy(update={"scopes": tuple(scopes)})})


class PersonAtTerminal:
    """Shows the page to the person at the terminal, in a browser if there is one, and takes the address that it ended at."""

    def __init__(self, terminal: Terminal, *, opens: bool, patience: float) -> None:
        self._terminal = terminal
        self._opens = opens
        self._patience = patience
        self._page: Page | None = None
        self._began = time.monotonic()

    @property
    def asked(self) -> tuple[str, ...]:
        """The scopes that were asked for."""
        return self._page.scopes if self._page is not None else ()

    async def go(self, page: Page) -> None:
        from toolbay.auth.browser import fit, opened  # noqa: PLC0415

        self._page = page
        whose = "" if page.host == page.authority else f", for {page.authority}"
        self._terminal.warn(f"To log in to {one_line(page.server)}, agree on this page at {page.host}{whose}:\n\n  {page.url}\n")
        if page.scopes:
            self._terminal.say(f"It asks you for: {one_line(' '.join(page.scopes), 400)}")
        shown = self._opens and fit(page.url) and await opened(page.begin)
        self._terminal.say("Your browser was told to show it." if shown else "Open it in a browser.")
        if self._reads:
            where = "Where that browser is at another machine, it ends at an address that it cannot show"
            stop = " Ctrl-C gives up." if _at_keyboard() else ""
            self._terminal.say(f"{where} ({page.redirect_uri}?...): paste that address here.{stop}")
        elif not shown:
            self._terminal.say("It must be a browser at this machine: nobody can paste an address here (--no-browser reads it from stdin).")

    async def pasted(self) -> str:
        import anyio  # noqa: PLC0415

        from toolbay.cli.running import moving  # noqa: PLC0415

        page = self._page
        assert page is not None
        if _at_keyboard():
            from toolbay.cli.pasting import Pasted  # noqa: PLC0415

            found = await Pasted(self._waiting, page.fault).text()
        else:
            found = await self._from_stdin(page) if self._reads else None
        if found is not None:
            return found
        if self._reads:
            self._terminal.warn(
                "! nobody can paste an address here any more: only a browser at this machine can end this login now", YELLOW
            )
        async with moving(self._terminal, lambda: f"waiting for the browser, {self._patience:g} s at most:"):
            await anyio.sleep_forever()
        return ""

    def _waiting(self) -> str:
        taken = time.monotonic() - self._began
        return f"waiting for the browser {taken:.0f} of {self._patience:g} s; or paste its last address"

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
