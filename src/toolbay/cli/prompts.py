"""`toolbay prompts`: what servers offer as prompts, and one of them rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from toolbay.cli.invocation import DONE, FAILED, SERVER_FAILED, Invocation, invocation
from toolbay.cli.offers import Shelf, listed
from toolbay.cli.servers import known_server
from toolbay.errors import BadCall

if TYPE_CHECKING:
    from toolbay.app import PromptInfo

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


@group.command("get", help="Render a prompt of a server.")
def get(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="The server.")],
    name: Annotated[str, typer.Argument(help="The prompt.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    invoked = invocation(context)
    invoked.finish(lambda: _get(invoked, server, name, pairs(words or []), as_json=as_json))


async def _get(invoked: Invocation, server: str, name: str, arguments: dict[str, str], *, as_json: bool) -> int:
    from toolbay.cli.running import Opening, all_failed, opened  # noqa: PLC0415
    from toolbay.cli.tools import give_result  # noqa: PLC0415

    config = invoked.config()
    async with opened(invoked, Opening(only={known_server(config, server)}), config) as app:
        if all_failed(app):
            return SERVER_FAILED
        result = await app.prompt(server, name, arguments)
        give_result(invoked.terminal, result, as_json=as_json)
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
