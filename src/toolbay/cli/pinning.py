"""`toolbay lock`: pin what servers offer, look at what changed since, accept it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from toolbay.cli.invocation import DONE, FAILED, SERVER_FAILED, Invocation, invocation
from toolbay.cli.servers import no_such_server
from toolbay.cli.terminal import BOLD, DIM, GREEN, RED, one_line, plural
from toolbay.errors import ConfigError

if TYPE_CHECKING:
    from toolbay.app import App
    from toolbay.cli.terminal import Terminal
    from toolbay.lock import Finding
    from toolbay.types import Subject

UNPINNED_HINT = "(what the servers offer is not pinned: toolbay lock pins it, and a change is then shown before it is used)"


def register(program: typer.Typer) -> None:
    program.command("lock", help="Pin what the servers offer; a change is then kept from the model until you accept it.")(lock)


def lock(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="[SERVER[.TOOL]]", help="Only this server, or one tool of it.", show_default=False)] = "",
    accept: Annotated[bool, typer.Option("--accept", help="Pin what changed and what is new as it is now.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Show what is not as it was pinned; exit code 1 if anything is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: as JSON.")] = False,
) -> None:
    if accept and check:
        raise typer.BadParameter("--accept and --check exclude each other.")
    invoked = invocation(context)
    invoked.finish(lambda: _lock(invoked, what, accept=accept, check=check, as_json=as_json))


async def _lock(invoked: Invocation, what: str, *, accept: bool, check: bool, as_json: bool) -> int:
    from toolbay.cli.running import Opening, opened  # noqa: PLC0415

    terminal = invoked.terminal
    config = invoked.config()
    known = config.tools.mcp_servers
    server, item = _split(what, known) if what else ("", "")
    if item and not accept:
        raise ConfigError(f"One tool alone can only be accepted: toolbay lock --accept {what}, or toolbay lock {server} for the server.")
    async with opened(invoked, Opening(only={server} if server else None), config) as app:
        if app.fleet.lock.fault:
            terminal.error(app.fleet.lock.fault)
            return FAILED
        if check:
            code = _check(app, terminal, as_json=as_json)
        elif accept:
            code = _accept(app, terminal, server, item)
        else:
            code = _pin(app, terminal)
        missing = _missing(app)
        for name in [] if check else missing:  # who only looks was told on the way
            terminal.warn(f"! {one_line(name)} did not start, so nothing of it was pinned", RED)
        return SERVER_FAILED if missing else code


def _split(what: str, known: Iterable[str]) -> tuple[str, str]:
    """The server and the rest; the longest name of a server that fits wins.

    Raises:
        ConfigError: no server fits.
    """
    names = sorted(known, key=len, reverse=True)
    for name in names:
        if what == name:
            return name, ""
        if what.startswith((f"{name}.", f"{name}/")):
            return name, what[len(name) + 1 :]
    raise no_such_server(what, sorted(known))


def _missing(app: App) -> list[str]:
    return [name for name, status in app.servers.items() if status.state != "ready"]


def _ready(app: App) -> list[str]:
    return [name for name, status in app.servers.items() if status.state == "ready"]


def _check(app: App, terminal: Terminal, *, as_json: bool) -> int:
    findings = app.fleet.quarantine
    present = app.fleet.lock.is_present
    if as_json:
        told = [{"server": one.server, "what": one.what, "reason": one.reason, "diff": one.diff} for one in findings]
        terminal.json({"file": str(app.fleet.lock.path), "present": present, "quarantined": told})
    elif not present:
        terminal.error(f"nothing is pinned: there is no {app.fleet.lock.path}; toolbay lock makes it.")
    elif findings:
        _show(terminal, findings)
        terminal.say("toolbay lock --accept SERVER, or SERVER.TOOL, accepts what you have looked at.")
    else:
        terminal.write(f"✓ {plural(len(_ready(app)), 'server')} as pinned in {app.fleet.lock.path}", GREEN)
    return DONE if present and not findings else FAILED


def _show(terminal: Terminal, findings: Iterable[Finding]) -> None:
    styles = {"-": RED, "+": GREEN, "!": BOLD}
    for finding in findings:
        terminal.write(f"{one_line(finding.server)}: {finding.what} ({finding.reason})", BOLD)
        for line in finding.diff.splitlines():
            terminal.write(f"    {line}", styles.get(line[:1], DIM))


def _accept(app: App, terminal: Terminal, server: str, item: str) -> int:
    findings = [one for one in app.fleet.quarantine if not server or one.server == server]
    subject = _subject(app, server, item) if item else None
    if subject is not None:
        findings = [one for one in findings if one.subject == subject]
    names = [server] if server else sorted({one.server for one in findings})
    if not app.fleet.lock.is_present:
        names = [server] if server else _ready(app)
    elif not findings:
        terminal.say("Nothing waits to be accepted.")
        return DONE
    _show(terminal, findings)
    pinned = app.accept(names, subject)
    terminal.say(f"Accepted {plural(len(findings), 'definition')} of {', '.join(map(one_line, names))} in {pinned.path}.")
    return DONE


def _subject(app: App, server: str, item: str) -> Subject:
    """The capability that is meant: a tool before a resource, a template, a prompt of that name.

    Raises:
        ConfigError: the server has none.
    """
    offered = app.fleet.offered(server)
    subjects = list(offered.definitions) if offered else []
    found = next((subject for subject in subjects if subject[1] == item), None)
    if found is None:
        raise ConfigError(f'The server "{server}" lists nothing named "{item}": toolbay lock --check shows what waits.')
    return found


def _pin(app: App, terminal: Terminal) -> int:
    """Pin the servers that the file does not know. What it knows and is no longer so, a person must accept by name."""
    before = app.fleet.lock
    new = [name for name in _ready(app) if name not in before.servers and name not in before.broken]
    if new:
        pinned = app.accept(new)
        count = sum(len(_pins_of(app, name)) for name in new)
        terminal.say(f"Pinned {plural(count, 'definition')} of {', '.join(map(one_line, new))} in {pinned.path}.")
    findings = app.fleet.quarantine
    if findings:
        _show(terminal, findings)
        terminal.error("these are not as they were pinned, and stay as they are: look at them, then run toolbay lock --accept.")
        return FAILED
    if not new and _ready(app):
        terminal.say(f"Everything is as it is pinned in {before.path}.")
    return DONE


def _pins_of(app: App, server: str) -> list[Subject]:
    offered = app.fleet.offered(server)
    return list(offered.definitions) if offered else []
