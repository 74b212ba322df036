"""`toolbay run`: one question, one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay._text import data_block
from toolbay.cli.invocation import DONE, FAILED, SERVER_FAILED, USAGE, CommandFailed, Invocation, invocation
from toolbay.cli.terminal import DIM, YELLOW
from toolbay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolbay.agent.runner import Turn
    from toolbay.app import App
    from toolbay.cli.keeping import KeptConversation
    from toolbay.cli.terminal import Terminal
    from toolbay.cli.views import CallsView
    from toolbay.events import CallFinished


def register(program: typer.Typer) -> None:
    program.command("run", help="Answer a question with the tools of all servers.")(run)


def run(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION]", help="The question; - or nothing reads stdin.", show_default=False)
    ] = None,
    session: Annotated[str, typer.Option("--session", metavar="ID", help="Go on with this conversation, or begin it.")] = "",
    newest: Annotated[bool, typer.Option("--continue", help="Go on with the newest conversation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer with its calls, as JSON at the end.")] = False,
    wait: Annotated[str, typer.Option("--wait", metavar="SECONDS|all", help="How long to wait for servers once one is ready.")] = "3",
    tools: Annotated[str, typer.Option("--tools", metavar="GLOB", help="Only tools whose names match (several: a,b).")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Approve every call of this run that needs approval.")] = False,
) -> None:
    if session and newest:
        raise typer.BadParameter("--session and --continue exclude each other.")
    invoked = invocation(context)
    asked = _question(words or [], invoked.terminal)
    going_on = "" if newest else session or None
    invoked.finish(lambda: _run(invoked, asked, session=going_on, as_json=as_json, wait=wait, tools=tools, yes=yes))


def _question(words: list[str], terminal: Terminal) -> str:
    """What is asked; what was piped in beside a question is what it is about."""
    from toolbay.cli.piped import arrived, rest_of_stdin  # noqa: PLC0415

    word = " ".join(words) or "-"
    if word == "-":
        if sys.stdin.isatty():
            raise CommandFailed('There is no question: write toolbay run "your question", or give it on stdin.', USAGE)
        word = rest_of_stdin()
        about = ""
    else:
        about = arrived(terminal) if word.strip() else ""
    if not word.strip():
        raise CommandFailed('The question is empty: write toolbay run "your question".', USAGE)
    if not about.strip():
        return word.strip()
    return f"{word.strip()}\n\n{data_block('stdin', about.strip())}"


async def _run(invoked: Invocation, question: str, *, session: str | None, as_json: bool, wait: str, tools: str, yes: bool) -> int:
    """`session` is an id, None for a new conversation, empty for the newest."""
    import anyio  # noqa: PLC0415

    from toolbay.agent.local import OFFLINE  # noqa: PLC0415
    from toolbay.cli.approving import approver  # noqa: PLC0415
    from toolbay.cli.keeping import conversation_of  # noqa: PLC0415
    from toolbay.cli.narrowing import NarrowedTools, Selection  # noqa: PLC0415
    from toolbay.cli.running import Opening, all_failed, failed, moving, opened, wanted_wait  # noqa: PLC0415
    from toolbay.cli.views import CallsView  # noqa: PLC0415
    from toolbay.sessions import name_of_session  # noqa: PLC0415

    terminal = invoked.terminal
    selection = Selection(tools)
    if session:
        name_of_session(session)
    config = invoked.config()
    quiet = wanted_wait(wait)
    opening = Opening(quiet=quiet, warm=quiet is not None, chatty=True, model=True, approver=approver(terminal, yes=yes))
    async with opened(invoked, opening, config) as app:
        if all_failed(app):
            raise CommandFailed("none of the servers could be started, so nothing was asked (toolbay doctor says why).", SERVER_FAILED)
        if not app.servers:
            terminal.say("! no servers are configured, so there are no tools (toolbay add NAME -- COMMAND adds one)")
        conversation = await conversation_of(app, session, terminal)
        offered = NarrowedTools(app.registry, selection)
        if selection.globs and not offered.tools:
            raise ConfigError(f'No tool matches --tools "{",".join(selection.globs)}"; toolbay tools lists what there is.')
        runner = await app.runner(offered)
        with anyio.CancelScope() as scope:
            view = CallsView(terminal, session=conversation.id, answer=not as_json, stop=scope.cancel)
            with app.events.listen(view):
                try:
                    async with moving(terminal, lambda: view.status):
                        turn = await runner.run(conversation, question)
                except anyio.get_cancelled_exc_class():
                    if as_json and not scope.cancel_called:
                        terminal.json(_report(app, view, _stopped(view), conversation.id))
                    raise
            view.check()
            terminal.end_line()
            if as_json:
                terminal.json(_report(app, view, turn, conversation.id))
            else:
                if turn.stopped != "error" and turn.text.strip() not in view.text:
                    terminal.write(turn.text)
                if turn.note:
                    terminal.say(turn.note, DIM)
            _tell_end(terminal, turn, conversation)
            return FAILED if turn.stopped else _code_of(view.calls, failed(app)) if app.model_name == OFFLINE else DONE
        raise BrokenPipeError  # only a reader who is gone cancels the scope


def _code_of(calls: Sequence[CallFinished], failed: Sequence[str]) -> int:
    """The exit code of a turn of the offline matcher: it only shows what calls came to, so without any it has answered nothing."""
    if calls:
        return FAILED if all(call.is_error for call in calls) else DONE
    return SERVER_FAILED if failed else DONE


def _tell_end(terminal: Terminal, turn: Turn, conversation: KeptConversation) -> None:
    if turn.stopped == "error":
        terminal.error(turn.error)
    elif turn.stopped:
        terminal.warn("! this turn met its limit (agent.maxSteps, agent.maxSeconds)", YELLOW)
    if conversation.is_kept and (terminal.live or terminal.verbosity > 0):
        terminal.say(f"(to go on: toolbay run --session {conversation.id} ...)", DIM)


def _stopped(view: CallsView) -> Turn:
    """The turn that a person stopped: what its calls came to is known, an answer there is none."""
    from toolbay.agent.runner import Turn  # noqa: PLC0415
    from toolbay.types import Usage  # noqa: PLC0415

    return Turn(text="", steps=view.steps, stopped="cancelled", usage=Usage(), messages=(), error="The run was stopped.")


def _report(app: App, view: CallsView, turn: Turn, session: str) -> dict[str, Any]:
    return {
        "answer": "" if turn.error else turn.text,
        "note": turn.note,
        "error": turn.error,
        "model": app.model_name,
        "session": session,
        "steps": turn.steps,
        "stopped": turn.stopped,
        "usage": {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens},
        "calls": [
            {
                "tool": call.tool,
                "server": call.server,
                "is_error": call.is_error,
                "outcome": call.outcome,
                "seconds": round(call.seconds, 3),
                "size": call.size,
                "text": call.text,
            }
            for call in view.calls
        ],
        "servers": {name: {"state": status.state, "error": status.error} for name, status in app.servers.items()},
    }
