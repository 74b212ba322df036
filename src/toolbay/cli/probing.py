"""`toolbay test`: one server, step by step."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbay import _redact
from toolbay.cli.invocation import DONE, SERVER_FAILED, Invocation, invocation
from toolbay.cli.servers import known_server
from toolbay.cli.terminal import DIM, GREEN, RED, one_line, plural

if TYPE_CHECKING:
    from toolbay.app import App
    from toolbay.events import Event
    from toolbay.fleet import ServerStatus

_STDERR_LINES = 20
STAY = 0.5
"""Seconds for which a program that is ready is watched: some end as soon as they are. What is reached over HTTP runs already."""


def register(program: typer.Typer) -> None:
    program.command("test", help="Connect one server and tell what comes of it.")(probe)


def probe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    invoked = invocation(context)
    invoked.finish(lambda: _probe(invoked, name, as_json=as_json))


async def _probe(invoked: Invocation, name: str, *, as_json: bool) -> int:
    from toolbay.cli.running import Opening, opened  # noqa: PLC0415
    from toolbay.config.models import InvalidServer, RestartPolicy, TransportType  # noqa: PLC0415

    terminal = invoked.terminal
    config = invoked.config()
    server = config.tools.mcp_servers[known_server(config, name)]
    if isinstance(server, InvalidServer):
        terminal.error(server.reason)
        if as_json:
            terminal.json({"name": name, "state": "invalid", "error": server.reason})
        return SERVER_FAILED
    if server.disabled:
        terminal.say(f'"{name}" is disabled; it is started for this test only.')
    once = server.model_copy(update={"disabled": False, "restart": RestartPolicy(enabled=False)})
    tried = config.tools.model_copy(update={"mcp_servers": {name: once}})
    config = config.model_copy(update={"tools": tried})
    if not as_json:
        terminal.write(f"{name}: {server.type} {one_line(_redact.url(server.url) if server.url else server.command)}")
    async with opened(invoked, Opening(only={name}, asides=True, whole=True), config) as app:
        status = app.servers[name]
        tools = [tool.wire_name for tool in app.registry.tools.values() if tool.server == name and tool.kind == "tool"]
        quarantine = app.fleet.quarantine
        if status.state != "ready":
            if not as_json:
                _tell_failure(invoked, status, "not connected")
        else:
            if not as_json:
                _tell(invoked, status, tools)
                for finding in quarantine:
                    hint = f"{finding.reason}; toolbay lock --check {shlex.quote(name)} shows it"
                    terminal.write(f"✗ not offered: {finding.what} ({hint})", RED)
            watched = server.type is TransportType.STDIO
            lived = await _stayed(app, name) if watched else None
            status = app.servers[name]
            if lived is None and watched and not as_json:
                terminal.write(f"✓ still there {STAY:g} s later", GREEN)
            elif lived is not None:
                told = f"it ended {lived:.1f} s after it was ready"
                status = replace(status, error=f"{told}: {status.error}")
                if not as_json:
                    _tell_failure(invoked, status, told)
        if as_json:
            terminal.json({**_described(name, status, tools), "quarantined": [one.what for one in quarantine]})
        return DONE if status.state == "ready" else SERVER_FAILED


async def _stayed(app: App, name: str) -> float | None:
    """Watch it for a while. Seconds until it ended; None where it stays."""
    import anyio  # noqa: PLC0415 - `toolbay --help` needs none

    from toolbay.events import ServerChanged  # noqa: PLC0415

    began, ended = anyio.current_time(), anyio.Event()

    def look(event: Event) -> None:
        if isinstance(event, ServerChanged) and event.server == name and event.state != "ready":
            ended.set()

    with app.events.listen(look), anyio.move_on_after(STAY):
        if app.servers[name].state == "ready":
            await ended.wait()
    return anyio.current_time() - began if app.servers[name].state != "ready" else None


def _described(name: str, status: ServerStatus, tools: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "state": status.state,
        "error": status.error,
        "type": status.type,
        "server": status.title,
        "protocol": status.protocol,
        "seconds": round(status.seconds, 3),
        "tools": tools,
        "resources": status.resources,
        "prompts": status.prompts,
        "stderr": list(status.stderr),
    }


def _tell(invoked: Invocation, status: ServerStatus, tools: list[str]) -> None:
    terminal = invoked.terminal
    terminal.write(f"✓ connected in {status.seconds:.1f} s", GREEN)
    terminal.write(f"✓ {one_line(status.title) or 'a server without a name'}, MCP {one_line(status.protocol)}", GREEN)
    offered = [plural(len(tools), "tool"), plural(status.resources, "resource"), plural(status.prompts, "prompt")]
    terminal.write(f"✓ {', '.join(offered)}", GREEN)
    for tool in tools:
        terminal.write(f"    {one_line(tool)}")


def _tell_failure(invoked: Invocation, status: ServerStatus, headline: str) -> None:
    terminal = invoked.terminal
    terminal.write(f"✗ {headline}", RED)
    # The error has ended in the very last lines already.
    lines = [line for line in list(status.stderr)[-_STDERR_LINES:] if one_line(line) not in one_line(status.error)]
    if lines:
        terminal.write("what else it said on stderr:")
    for line in lines:
        terminal.write(f"    {one_line(line)}", DIM)
