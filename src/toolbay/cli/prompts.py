"""`toolbay prompts`: what servers offer as prompts, and one of them rendered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from toolbay.cli.invocation import DONE, FAILED, USAGE, CommandFailed, Invocation, invocation
from toolbay.cli.offers import Shelf, listed
from toolbay.cli.results import Presentation, in_one_shape
from toolbay.cli.servers import known_server
from toolbay.errors import BadCall

if TYPE_CHECKING:
    from toolbay.offerings import PromptInfo

group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


def register(program: typer.Typer) -> None:
    program.add_typer(group, name="prompts", help="List the prompts of all servers, or render one.")


@group.callback()
def list_prompts(
    context: typer.Context,
    server: Annotated[str, typer.Option("--server", metavar="NAME", help="Only the prompts of this server.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        invoked = invocation(context)
        shelf = Shelf(kind="prompt", find=lambda app: app.prompts(), columns=("prompt", "server", "arguments", "what"), row=_row)
        invoked.finish(lambda: listed(invoked, shelf, server, as_json=as_json))


def _row(prompt: PromptInfo) -> tuple[str, ...]:
    from toolbay.cli.tools import first_line  # noqa: PLC0415

    return prompt.name, prompt.server, usage(prompt), first_line(prompt.description or prompt.title)


def usage(prompt: PromptInfo) -> str:
    """`code=… [style=…]`: the arguments, those in brackets not required."""
    names = [(str(one["name"]), bool(one.get("required"))) for one in prompt.arguments]
    return " ".join(f"{name}=…" if required else f"[{name}=…]" for name, required in names)


@group.command("get", help="Render a prompt of a server: SERVER PROMPT, or SERVER.PROMPT.")
def get(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="The server, or server.prompt.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT] [KEY=VALUE]...", help="The prompt; its arguments.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The whole text on a terminal too.")] = False,
) -> None:
    invoked = invocation(context)
    how = Presentation(as_json=as_json, full=full)
    invoked.finish(lambda: in_one_shape(invoked.terminal, how, lambda: _get(invoked, [server, *(words or [])], how)))


def named(words: list[str], servers: Iterable[str]) -> tuple[str, str, list[str]]:
    """The server, the prompt, and what follows them: written `server prompt`, or as one word with a dot or a slash between.

    Raises:
        CommandFailed: no prompt is named.
    """
    first, *rest = words
    known = sorted(servers, key=len, reverse=True)
    if first not in known:
        for name in known:
            if first.startswith((f"{name}.", f"{name}/")):
                return name, first[len(name) + 1 :], rest
    if not rest:
        raise CommandFailed("Which prompt? Write toolbay prompts get SERVER PROMPT; toolbay prompts lists them.", USAGE)
    return first, rest[0], rest[1:]


async def _get(invoked: Invocation, words: list[str], how: Presentation) -> int:
    from toolbay.cli.results import give_result, no_result  # noqa: PLC0415
    from toolbay.cli.running import Opening, all_failed, given_up, opened  # noqa: PLC0415
    from toolbay.cli.tools import refuse_disabled  # noqa: PLC0415

    config = invoked.config()
    server, name, rest = named(words, config.tools.mcp_servers)
    arguments = pairs(rest)
    refuse_disabled(config, {known_server(config, server)})
    async with opened(invoked, Opening(only={server}), config) as app:
        if all_failed(app):
            return given_up(app, invoked.terminal, as_json=how.as_json, shape=no_result)
        result = await app.prompt(server, name, arguments)
        await give_result(invoked.terminal, result, config, how)
        return FAILED if result.is_error else DONE


def pairs(words: list[str]) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping.

    Raises:
        BadCall: one has no `=`.
    """
    found: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise BadCall(f'"{word}" is no argument: write KEY=VALUE.')
        found[key] = value
    return found
