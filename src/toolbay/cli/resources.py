"""`toolbay resources`: what servers offer to read, and one of them read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay.cli.invocation import DONE, FAILED, SERVER_FAILED, Invocation, invocation
from toolbay.cli.servers import known_server

if TYPE_CHECKING:
    from toolbay.app import ResourceInfo

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
        invoked.finish(lambda: _list(invoked, server, as_json=as_json))


async def _list(invoked: Invocation, server: str, *, as_json: bool) -> int:
    from toolbay.cli.running import Opening, all_failed, opened  # noqa: PLC0415
    from toolbay.cli.tools import NO_SERVERS, first_line  # noqa: PLC0415

    config = invoked.config()
    only = {known_server(config, server)} if server else None
    terminal = invoked.terminal
    async with opened(invoked, Opening(only=only), config) as app:
        found = app.resources()
        if as_json:
            terminal.json([_described(resource) for resource in found])
        elif not config.tools.mcp_servers:
            terminal.say(NO_SERVERS)
        elif not found:
            terminal.say("No server offers a resource.")
        else:
            rows = [(one.uri, one.server, one.media_type, first_line(one.description or one.title or one.name)) for one in found]
            terminal.table(("uri", "server", "type", "what"), rows)
        return SERVER_FAILED if all_failed(app) else DONE


def _described(resource: ResourceInfo) -> dict[str, Any]:
    return {
        "uri": resource.uri,
        "server": resource.server,
        "name": resource.name,
        "title": resource.title,
        "description": resource.description,
        "media_type": resource.media_type,
        "template": resource.template,
    }


@group.command("read", help="Read a resource of a server.")
def read(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="The server.")],
    uri: Annotated[str, typer.Argument(help="The resource's URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    invoked = invocation(context)
    invoked.finish(lambda: _read(invoked, server, uri, as_json=as_json))


async def _read(invoked: Invocation, server: str, uri: str, *, as_json: bool) -> int:
    from toolbay.cli.running import Opening, all_failed, opened  # noqa: PLC0415
    from toolbay.cli.tools import give_result  # noqa: PLC0415

    config = invoked.config()
    async with opened(invoked, Opening(only={known_server(config, server)}), config) as app:
        if all_failed(app):
            return SERVER_FAILED
        result = await app.resource(server, uri)
        give_result(invoked.terminal, result, as_json=as_json)
        return FAILED if result.is_error else DONE
