"""`toolbay resources`: what servers offer to read, and one of them read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from toolbay.cli.invocation import DONE, FAILED, Invocation, invocation
from toolbay.cli.offers import Shelf, listed
from toolbay.cli.results import Presentation, in_one_shape
from toolbay.cli.servers import known_server

if TYPE_CHECKING:
    from toolbay.offerings import ResourceInfo

group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


def register(program: typer.Typer) -> None:
    program.add_typer(group, name="resources", help="List the resources of all servers, or read one.")


@group.callback()
def list_resources(
    context: typer.Context,
    server: Annotated[str, typer.Option("--server", metavar="NAME", help="Only the resources of this server.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        invoked = invocation(context)
        shelf = Shelf(kind="resource", find=lambda app: app.resources(), columns=("uri", "server", "type", "what"), row=_row)
        invoked.finish(lambda: listed(invoked, shelf, server, as_json=as_json))


def _row(resource: ResourceInfo) -> tuple[str, ...]:
    from toolbay.cli.tools import first_line  # noqa: PLC0415

    return resource.uri, resource.server, resource.media_type, first_line(resource.description or resource.title or resource.name)


@group.command("read", help="Read a resource of a server.")
def read(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="The server.")],
    uri: Annotated[str, typer.Argument(help="The resource's URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The whole text on a terminal too.")] = False,
) -> None:
    invoked = invocation(context)
    how = Presentation(as_json=as_json, full=full)
    invoked.finish(lambda: in_one_shape(invoked.terminal, how, lambda: _read(invoked, server, uri, how)))


async def _read(invoked: Invocation, server: str, uri: str, how: Presentation) -> int:
    from toolbay.cli.results import give_result, no_result  # noqa: PLC0415
    from toolbay.cli.running import Opening, all_failed, given_up, opened  # noqa: PLC0415
    from toolbay.cli.tools import refuse_disabled  # noqa: PLC0415

    config = invoked.config()
    refuse_disabled(config, {known_server(config, server)})
    async with opened(invoked, Opening(only={server}), config) as app:
        if all_failed(app):
            return given_up(app, invoked.terminal, as_json=how.as_json, shape=no_result)
        result = await app.resource(server, uri)
        await give_result(invoked.terminal, result, config, how)
        return FAILED if result.is_error else DONE
