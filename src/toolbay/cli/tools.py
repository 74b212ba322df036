"""`toolbay tools` and `toolbay call`: what there is, and one call by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from toolbay.cli.invocation import DONE, FAILED, SERVER_FAILED, CommandFailed, Invocation, invocation
from toolbay.cli.pinning import UNPINNED_HINT
from toolbay.cli.results import Presentation, in_one_shape
from toolbay.cli.servers import known_server
from toolbay.cli.terminal import DIM
from toolbay.errors import BadCall

if TYPE_CHECKING:
    from toolbay.app import App
    from toolbay.config.models import Config
    from toolbay.registry import Snapshot
    from toolbay.types import Hints, Json, Subject, Tool

_GLOB = "*?["
SHOWN = 20
"""Tools that are shown at the most for words that no name holds."""
QUIET = 3.0
"""Seconds without another server after which a tool is looked for among those that are up."""
WHOLE = frozenset({"launch", "unpinned", "unreadable"})
"""Reasons for which nothing of a server is offered, so that it can only be accepted as a whole."""
NO_SERVERS = "No servers are configured yet. Add one: toolbay add time -- uvx mcp-server-time"


def register(program: typer.Typer) -> None:
    program.command("tools", help="List the tools of all servers, a line each.")(tools)
    program.command("call", help="Call one tool by hand.")(call)


def tools(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(help="A server, a word or glob that the name contains, or what the tool is for.", show_default=False)
    ] = "",
    server: Annotated[str, typer.Option("--server", metavar="NAME", help="Only the tools of this server.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Whole descriptions and parameters.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    invoked = invocation(context)
    invoked.finish(lambda: _tools(invoked, pattern, server, full=full, as_json=as_json))


async def _tools(invoked: Invocation, pattern: str, server: str, *, full: bool, as_json: bool) -> int:
    from toolbay.cli.running import Opening, all_failed, failed, given_up, opened  # noqa: PLC0415

    config = invoked.config()
    if pattern in config.tools.mcp_servers and not server:
        pattern, server = "", pattern
    only = {known_server(config, server)} if server else None
    refuse_disabled(config, only or ())
    async with opened(invoked, Opening(only=only, asides=True), config) as app:
        terminal = invoked.terminal
        if as_json and all_failed(app):
            return given_up(app, terminal, as_json=True)
        offered = [tool for tool in app.registry.tools.values() if not server or tool.server == server]
        found = [tool for tool in offered if _matches(tool, pattern)] or about(app.registry.snapshot, offered, pattern)
        if as_json:
            terminal.json([_described(tool) for tool in found])
        elif not config.tools.mcp_servers:
            terminal.say(NO_SERVERS)
        elif not found:
            terminal.say(f'No tool matches "{pattern}".' if pattern else "No server offers a tool.")
        elif full:
            for tool in found:
                terminal.write(_whole(tool))
        else:
            rows = [(tool.name, tool.server or "(built in)", _mark(tool.hints), first_line(tool.description)) for tool in found]
            terminal.table(("tool", "server", "r/o", "what"), rows, cut=True)
        if config.tools.mcp_servers and found and not as_json and not app.fleet.lock.is_present:
            terminal.say(UNPINNED_HINT, DIM)
        return SERVER_FAILED if failed(app) else DONE


def _matches(tool: Tool, pattern: str) -> bool:
    if not pattern:
        return True
    names = (tool.name.lower(), tool.wire_name.lower(), f"{tool.server}.{tool.wire_name}".lower())
    wanted = pattern.lower()
    glob = any(sign in wanted for sign in _GLOB)
    return any(fnmatchcase(name, wanted) if glob else wanted in name for name in names)


def about(snapshot: Snapshot, offered: Collection[Tool], words: str) -> list[Tool]:
    """Of `offered` the tools that fit `words` best, best first; none for a pattern."""
    if not words or any(sign in words for sign in _GLOB):
        return []
    names = {tool.name for tool in offered}
    return [tool for tool in snapshot.search(words, SHOWN) if tool.name in names]


def _mark(hints: Hints) -> str:
    return "r/o" if hints.read_only else ""


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _described(tool: Tool) -> dict[str, Any]:
    hints = tool.hints
    return {
        "name": tool.name,
        "server": tool.server,
        "wire_name": tool.wire_name,
        "kind": tool.kind,
        "title": tool.title,
        "description": tool.description,
        "parameters": tool.input_schema,
        "hints": {
            "read_only": hints.read_only,
            "destructive": hints.destructive,
            "idempotent": hints.idempotent,
            "open_world": hints.open_world,
        },
    }


def _whole(tool: Tool) -> str:
    from toolbay.cli.terminal import one_line  # noqa: PLC0415
    from toolbay.registry import type_of  # noqa: PLC0415

    # A server's schema may hold anything anywhere.
    given, wanted = tool.input_schema.get("properties"), tool.input_schema.get("required")
    properties = cast("Mapping[str, Any]", given if isinstance(given, dict) else {})
    required = cast("list[Any]", wanted if isinstance(wanted, list) else [])
    lines = [f"{tool.name}  ({tool.server or 'built in'}{', r/o' if tool.hints.read_only else ''})"]
    lines += [f"  {line}" for line in tool.description.splitlines()]
    for name, schema in properties.items():
        described = cast("Mapping[str, Any]", schema if isinstance(schema, dict) else {})
        said = described.get("description")
        text = f"    {one_line(name)}: {one_line(type_of(cast('object', schema)))}{' (required)' if name in required else ''}"
        lines.append(f"{text}  {one_line(said) if isinstance(said, str) else ''}".rstrip())
    return "\n".join(lines) + "\n"


def call(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    tool: Annotated[str, typer.Argument(help="The tool: its name, or server.tool.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments; KEY:=JSON is JSON.", show_default=False)
    ] = None,
    arguments: Annotated[str, typer.Option("--args", metavar="JSON", help="The arguments as a JSON object.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The whole result on a terminal too; files and pipes always get it.")] = False,
) -> None:
    invoked = invocation(context)
    how = Presentation(as_json=as_json, full=full)
    invoked.finish(lambda: in_one_shape(invoked.terminal, how, lambda: _call(invoked, tool, words or [], arguments, how)))


async def _call(invoked: Invocation, name: str, words: list[str], text: str, how: Presentation) -> int:
    from toolbay.cli.call_arguments import parsed  # noqa: PLC0415
    from toolbay.cli.results import no_result  # noqa: PLC0415
    from toolbay.cli.running import Opening, all_failed, given_up, opened  # noqa: PLC0415

    config = invoked.config()
    servers = set(config.tools.mcp_servers)
    if not servers:
        invoked.terminal.say(NO_SERVERS)
    likely = likely_servers(name, servers)
    refuse_disabled(config, likely)
    # `server.tool` says which server it is; in a wrapped name it may be another than it seems.
    certain = bool(likely) and not name.startswith("mcp_")
    looks = [likely] if certain else [likely, None] if likely and likely != servers else [None]
    for only in looks:
        quiet = QUIET if only is None else None
        async with opened(invoked, Opening(only=only, warm=True, again=only is not looks[0], quiet=quiet), config) as app:
            tool = await _there(invoked, app, name, patient=not _other_server(name, servers))
            if tool is not None:
                return await _called(invoked, app, tool, parsed(words, text, tool.input_schema), how)
            if all_failed(app):
                return given_up(app, invoked.terminal, as_json=how.as_json, shape=no_result)
            if only is None or certain:
                raise _no_tool(app, name, likely)
    return FAILED


async def _there(invoked: Invocation, app: App, name: str, *, patient: bool) -> Tool | None:
    """The tool that is meant, as its server lists it now. What one that is not up yet listed last says only whom to wait for.

    `patient`: servers that are still starting are waited for, where no other has it.
    """
    from toolbay.cli.running import all_failed, waiting  # noqa: PLC0415

    tool = chosen(name, app.registry.tools.values())
    if tool is None and patient:
        async with waiting(invoked.terminal, app):
            await app.settle(None)
        tool = chosen(name, app.registry.tools.values())
    while tool is not None and tool.server and app.servers[tool.server].remembered:
        async with waiting(invoked.terminal, app):
            status = await app.ready(tool.server)
        if status.state != "ready" and not all_failed(app):
            raise CommandFailed(f"{name} cannot be called: {status.error}", SERVER_FAILED)
        tool = chosen(name, app.registry.tools.values()) if status.state == "ready" else None
    return tool


def refuse_disabled(config: Config, names: Collection[str]) -> None:
    """
    Raises:
        CommandFailed: there are `names`, and all of these servers are disabled.
    """
    servers = config.tools.mcp_servers
    if names and all(getattr(servers[name], "disabled", False) for name in names):
        raise CommandFailed(" ".join(f"{name} is disabled: toolbay enable {shlex.quote(name)}" for name in sorted(names)))


def _other_server(name: str, servers: Iterable[str]) -> str:
    """The server that `server.tool` names, where there is none of that name; empty where none is named."""
    server, separator, _ = re.sub("/", ".", name).partition(".")
    return server if separator and not likely_servers(name, servers) else ""


def _no_tool(app: App, name: str, likely: Collection[str]) -> CommandFailed:
    """Why a tool is not there: its server is not, it is kept back, or there is none of that name."""
    absent = {server: status for server in sorted(likely) if (status := app.servers.get(server)) and status.state != "ready"}
    if absent:
        told = "; ".join(
            f"{server} {'is still starting' if not status.error else 'is not there'}, so {name} cannot be called yet"
            for server, status in absent.items()
        )
        return CommandFailed(told, SERVER_FAILED)
    for kept_back in app.fleet.quarantine:
        if kept_back.subject is not None and _is_named(name, kept_back.server, kept_back.subject):
            one, server = shlex.quote(f"{kept_back.server}.{kept_back.subject[1]}"), shlex.quote(kept_back.server)
            accepts = f"--accept {server if kept_back.reason in WHOLE else one}"
            return CommandFailed(
                f"{name} is there, but kept back, since it is not as it was pinned ({kept_back.reason}): "
                f"toolbay lock --check {server} shows it, toolbay lock {accepts} accepts it."
            )
    other, names = _other_server(name, app.servers), ", ".join(app.servers)
    said = f"There is no tool {name}{f', and no server {other} (there are {names})' if other else ''}"
    near = app.registry.snapshot.nearest(name)
    said += f": did you mean {_as_typed(name, app.registry.tools[near])}?" if near else "; toolbay tools lists what there is."
    unknown = [server for server, status in app.servers.items() if status.state != "ready" and not status.remembered]
    return CommandFailed(said + (f" What these would offer is not known, since they are not up: {', '.join(unknown)}." if unknown else ""))


def _is_named(name: str, server: str, subject: Subject) -> bool:
    """Whether a tool that is kept back is what `name` means, in any form that `call` takes."""
    kind, tool = subject
    return kind == "tools" and name in {tool, f"{server}.{tool}", f"{server}/{tool}", _safe(f"mcp_{server}_{tool}")}


def _as_typed(name: str, tool: Tool) -> str:
    """A tool in the form that was typed: wrapped, or with the server before it."""
    if not tool.server or name.startswith("mcp_"):
        return tool.name
    return f"{tool.server}{'/' if '/' in name else '.'}{tool.wire_name}"


async def _called(invoked: Invocation, app: App, tool: Tool, arguments: Json, how: Presentation) -> int:
    import anyio  # noqa: PLC0415

    from toolbay.cli.results import give_result, no_result  # noqa: PLC0415
    from toolbay.cli.running import moving  # noqa: PLC0415
    from toolbay.cli.views import CallsView  # noqa: PLC0415

    terminal = invoked.terminal
    view = CallsView(terminal, calls=terminal.verbosity > 0)
    with app.events.listen(view):
        try:
            async with moving(terminal, lambda: view.status):
                result = await app.call(tool.name, arguments, by_hand=True)
        except anyio.get_cancelled_exc_class():
            for stopped in view.calls:
                told = f"{tool.name}: {stopped.text}"
                terminal.error(told)
                if how.as_json:
                    terminal.json(no_result(told, stopped.outcome))
            raise
    await give_result(terminal, result, app.config, how)
    return FAILED if result.is_error else DONE


def likely_servers(name: str, servers: Iterable[str]) -> set[str]:
    """The servers that a tool of this name can be of, as far as the name tells; empty where it does not."""
    return {server for server in servers if name.startswith((f"{server}.", f"{server}/", _safe(f"mcp_{server}_")))}


def _safe(name: str) -> str:
    """As in wrapped names (NAM-1)."""
    return re.sub("_+", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name))


def chosen(name: str, tools: Iterable[Tool]) -> Tool | None:
    """The tool that is meant by a wrapped name, `server.tool`, `server/tool`, or a raw name that only one server has.

    Raises:
        BadCall: several servers have a tool of that name.
    """
    known = list(tools)
    for tool in known:
        if name in {tool.name, f"{tool.server}.{tool.wire_name}", f"{tool.server}/{tool.wire_name}"}:
            return tool
    raw = [tool for tool in known if tool.wire_name == name]
    if len(raw) > 1:
        raise BadCall(f"Several servers have a tool {name}: write {' or '.join(f'{tool.server}.{name}' for tool in raw)}.")
    return raw[0] if raw else None
