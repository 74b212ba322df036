"""The slash commands of the chat, as a table."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from toolbay import _redact
from toolbay._nearest import nearest
from toolbay.auth.records import PATIENCE
from toolbay.cli.keeping import conversation_of
from toolbay.cli.kept_logins import masked
from toolbay.cli.stopping import caught
from toolbay.cli.terminal import GREEN, RED, YELLOW, one_line, plural
from toolbay.cli.tools import NO_SERVERS, first_line
from toolbay.cli.views import standing, what_changed
from toolbay.errors import ConfigError

if TYPE_CHECKING:
    from toolbay.app import App
    from toolbay.cli.dialogue import Dialogue


@dataclass(frozen=True)
class Command:
    """`usage` is what follows the name."""

    usage: str
    help: str
    run: Callable[[Dialogue, str], Awaitable[None]]


async def _help(dialogue: Dialogue, _rest: str) -> None:
    rows = [(f"{name} {command.usage}".strip(), command.help) for name, command in COMMANDS.items()]
    rows += [(f"/{one.server}:{one.name}", first_line(one.description or one.title)) for one in dialogue.app.prompts()]
    rows.append(("@server:uri", "in a message: put the resource's content into it"))
    dialogue.terminal.table(("write", "what it does"), rows)


async def _tools(dialogue: Dialogue, rest: str) -> None:
    tools = [tool for tool in dialogue.app.registry.tools.values() if rest.lower() in tool.name.lower()]
    if tools:
        dialogue.terminal.table(
            ("tool", "server", "what"), [(tool.name, tool.server or "(built in)", first_line(tool.description)) for tool in tools]
        )
    else:
        dialogue.terminal.write("No tool." if not rest else f'No tool has "{rest}" in its name.')


async def _servers(dialogue: Dialogue, _rest: str) -> None:
    servers = dialogue.app.servers
    if not servers:
        dialogue.terminal.write(NO_SERVERS)
        return
    rows = [(name, standing(one.state, one.retry_in), str(one.tools), one.error or one.title) for name, one in servers.items()]
    dialogue.terminal.table(("server", "state", "tools", "what"), rows)


async def _login(dialogue: Dialogue, rest: str) -> None:
    from toolbay.cli.logging_in import PersonAtTerminal  # noqa: PLC0415  (who never logs in needs no browser)

    terminal = dialogue.terminal
    name = _to_log_in_to(dialogue, rest)
    if not terminal.interactive:
        raise ConfigError(f"/login needs a person at the terminal: run toolbay login {shlex.quote(name)}, and this chat goes on with that.")
    before = await dialogue.app.login_status(name)
    with anyio.CancelScope() as scope, caught((signal.SIGINT,), lambda _: scope.cancel()), masked(dialogue.app.logins):
        status = await dialogue.app.login(name, PersonAtTerminal(terminal, opens=True, patience=PATIENCE), patience=PATIENCE)
        terminal.write(f"✓ logged in to {one_line(name)} at {one_line(_redact.url(status.issuer))}", GREEN)
    if scope.cancelled_caught:
        kept = (await dialogue.app.login_status(name)).mark not in ("", before.mark)
        terminal.say("(stopped; the new login is kept)" if kept else "(stopped; the login is as it was)", YELLOW)


def _to_log_in_to(dialogue: Dialogue, name: str) -> str:
    """The server that is named, or the only one that needs a login."""
    servers = dialogue.app.servers
    if name in servers:
        return name
    waiting = in_need(dialogue.app)
    if name or len(waiting) != 1:
        near = nearest(name, servers)
        hint = f"did you mean {near}?" if near else f"write /login {waiting[0]}." if waiting else "none needs a login now."
        raise ConfigError(f'There is no server "{one_line(name, 80)}": {hint}' if name else f"Which server? {hint[0].upper()}{hint[1:]}")
    return waiting[0]


def in_need(app: App) -> list[str]:
    """The servers that need a login."""
    return [name for name, status in app.servers.items() if status.state == "needs_auth"]


async def _reload(dialogue: Dialogue, _rest: str) -> None:
    dialogue.reloads.asked = True
    try:
        done = await dialogue.app.reload()
    finally:
        dialogue.reloads.asked = False
    servers = dialogue.app.servers
    dialogue.terminal.write(f"Reloaded: {what_changed(done, servers) or 'nothing changed'}.")
    for name in done.failed:
        if name in servers and servers[name].state == "needs_auth":
            dialogue.terminal.write(f"✗ {one_line(servers[name].error)}", RED)


async def _new(dialogue: Dialogue, _rest: str) -> None:
    dialogue.conversation = await conversation_of(dialogue.app, None, dialogue.terminal)
    dialogue.terminal.write("A new conversation.")


async def _sessions(dialogue: Dialogue, _rest: str) -> None:
    known = await anyio.to_thread.run_sync(dialogue.app.sessions.list)
    if not known:
        dialogue.terminal.write("No conversation has been kept yet.")
        return
    rows = [
        (one.id, time.strftime("%Y-%m-%d %H:%M", time.localtime(one.updated)), f"{one.size / 1000:,.1f} kB", one.title) for one in known
    ]
    dialogue.terminal.table(("session", "last", "size", "begins"), rows)


async def _resume(dialogue: Dialogue, rest: str) -> None:
    if not rest:
        await _sessions(dialogue, rest)
        return
    known = {one.id: one for one in await anyio.to_thread.run_sync(dialogue.app.sessions.list)}
    if rest not in known:
        near = nearest(rest, known)
        raise ConfigError(f'There is no conversation "{rest}": {f"did you mean {near}?" if near else "/sessions lists them."}')
    dialogue.conversation = await conversation_of(dialogue.app, rest, dialogue.terminal)
    dialogue.terminal.write(f"Going on with {rest} ({plural(len(dialogue.conversation.messages), 'message')}): {known[rest].title}")


async def _export(dialogue: Dialogue, rest: str) -> None:
    if not rest:
        raise ConfigError("/export needs a file: write /export talk.md, or talk.jsonl for programs.")
    try:
        path = await anyio.to_thread.run_sync(_written, dialogue, rest)
    except OSError as error:
        raise ConfigError(f"The conversation was not written to {rest}: {error.strerror}; name another file.") from error
    dialogue.terminal.write(f"Written to {path}.")


def _written(dialogue: Dialogue, name: str) -> Path:
    path = Path(name).expanduser()
    text = dialogue.app.sessions.export(dialogue.conversation.id, "jsonl" if path.suffix in {".json", ".jsonl"} else "markdown")
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path


async def _model(dialogue: Dialogue, rest: str) -> None:
    if rest:
        dialogue.app.use_model(rest)
        dialogue.runner = await dialogue.app.runner()
        dialogue.model_name = dialogue.app.model_name
    dialogue.terminal.write(f"The model is {dialogue.model_name}.")


async def _stop(dialogue: Dialogue, _rest: str) -> None:
    dialogue.terminal.write("Nothing is under way.")


async def _quit(dialogue: Dialogue, _rest: str) -> None:
    dialogue.over = True


COMMANDS: dict[str, Command] = {
    "/help": Command("", "this list", _help),
    "/tools": Command("[WORD]", "the tools of all servers", _tools),
    "/servers": Command("", "the servers and how they are", _servers),
    "/login": Command("[SERVER]", "log in to a server that needs it, in your browser", _login),
    "/reload": Command("", "read the configuration again", _reload),
    "/new": Command("", "begin a new conversation", _new),
    "/sessions": Command("", "the conversations that were kept", _sessions),
    "/resume": Command("[ID]", "go on with one of them; alone: as /sessions", _resume),
    "/export": Command("FILE", "write this conversation to a new file, as Markdown or, by its ending, JSON lines", _export),
    "/model": Command("[SPEC]", "which model answers; with SPEC: another one", _model),
    "/stop": Command("", "end the answer that is under way (also Ctrl-C)", _stop),
    "/quit": Command("", "leave (also /exit, Ctrl-D)", _quit),
    "/exit": Command("", "as /quit", _quit),
}
