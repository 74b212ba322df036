"""`toolbay chat`: a conversation in the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from toolbay.cli.invocation import DONE, STOPPED, Invocation, invocation

if TYPE_CHECKING:
    from toolbay.cli.dialogue import Dialogue
    from toolbay.cli.lines import Input


def register(program: typer.Typer) -> None:
    program.command("chat", help="Talk with the agent; it has the tools of all servers.")(chat)


def chat(
    context: typer.Context,
    session: Annotated[str, typer.Option("--session", metavar="ID", help="Go on with this conversation, or begin it.")] = "",
    newest: Annotated[bool, typer.Option("--continue", help="Go on with the newest conversation.")] = False,
    wait: Annotated[str, typer.Option("--wait", metavar="SECONDS|all", help="How long to wait for servers once one is ready.")] = "3",
) -> None:
    if session and newest:
        raise typer.BadParameter("--session and --continue exclude each other.")
    invoked = invocation(context)
    invoked.finish(lambda: _chat(invoked, "" if newest else session or None, wait))


async def _chat(invoked: Invocation, session: str | None, wait: str) -> int:
    from toolbay.cli.approving import AtTerminal, Nobody  # noqa: PLC0415
    from toolbay.cli.dialogue import Dialogue  # noqa: PLC0415
    from toolbay.cli.keeping import conversation_of  # noqa: PLC0415
    from toolbay.cli.running import Opening, opened, wanted_wait  # noqa: PLC0415
    from toolbay.sessions import name_of_session  # noqa: PLC0415

    if session:
        name_of_session(session)
    # The dialogue hears what is typed during a turn, and hands on what answers a question.
    asker = AtTerminal(invoked.terminal, listens=False) if invoked.terminal.interactive else None
    quiet = wanted_wait(wait)
    opening = Opening(quiet=quiet, warm=quiet is not None, chatty=True, model=True, approver=asker or Nobody(invoked.terminal))
    async with opened(invoked, opening) as app:
        dialogue = Dialogue(invoked, app, await conversation_of(app, session, invoked.terminal), await app.runner())
        dialogue.asker = asker
        _greet(dialogue)
        with app.events.listen(dialogue.reloads):
            async with app.watch():
                return await _converse(dialogue, _input(dialogue))


def _input(dialogue: Dialogue) -> Input:
    """Where lines come from. Only one of these may be made: a pipe begins to read at once."""
    from toolbay.cli.lines import Pipe  # noqa: PLC0415
    from toolbay.config import home  # noqa: PLC0415

    if not dialogue.terminal.interactive:
        return Pipe()
    from toolbay.cli.keyboard import Keyboard  # noqa: PLC0415  (prompt_toolkit is for people)

    return Keyboard(home(os.environ) / "history", dialogue.completions)


def _greet(dialogue: Dialogue) -> None:
    from toolbay.cli.slash import in_need  # noqa: PLC0415
    from toolbay.cli.terminal import BOLD, DIM, one_line, plural  # noqa: PLC0415

    app, terminal = dialogue.app, dialogue.terminal
    ready = sum(1 for status in app.servers.values() if status.state == "ready" or (status.remembered and not status.settled))
    servers = f"{ready} of {plural(len(app.servers), 'server')}" if ready != len(app.servers) else plural(ready, "server")
    terminal.say(f"toolbay: model {app.model_name}; {servers}, {plural(len(app.registry.tools), 'tool')}", BOLD)
    if terminal.interactive:
        terminal.say("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves", DIM)
        for name in in_need(app):
            terminal.say(f"/login {one_line(name)} logs in to that server here", DIM)


async def _converse(dialogue: Dialogue, lines: Input) -> int:
    from toolbay.cli.lines import Interrupted  # noqa: PLC0415

    warned = False
    while not dialogue.over:
        try:
            line = await lines.line()
        except Interrupted:
            if warned:
                return STOPPED
            warned = True
            dialogue.terminal.say("(Ctrl-C once more, or Ctrl-D, leaves)")
            continue
        warned = False
        if line is None:
            break
        await dialogue.hear(line)
    return DONE
