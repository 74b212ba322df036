"""The client that the official conformance suite examines: a program of Toolbay's public library, such as anybody could write.

    driver.py URL        with MCP_CONFORMANCE_SCENARIO, and what it needs to know in MCP_CONFORMANCE_CONTEXT

Its last line says how it ended: `done`, or `refused` where Toolbay would not go on (why is on stderr); else it fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import toolbay

SERVER = "examined"
App = toolbay.App


async def everything(app: App) -> None:
    """Whatever the server offers is used once, with the least that its schema asks for."""
    for tool in app.registry.tools.values():
        if tool.server == SERVER and tool.kind is toolbay.Kind.TOOL:
            await called(app, tool.wire_name, least(tool.input_schema))
    for resource in app.resources():
        await app.resource(SERVER, resource.uri)
    for prompt in app.prompts():
        await app.prompt(SERVER, prompt.name)


async def told(app: App) -> None:
    """The calls that the suite wants."""
    for call in context()["toolCalls"]:
        await called(app, call["name"], call["arguments"])


async def echoed(app: App) -> None:
    """One tool's schema, as it was understood, is another's argument."""
    schema = named(app, "json_schema_2020_12_tool").input_schema
    await called(app, "json_schema_echo", {"schema": schema})


SCENARIOS: Mapping[str, Callable[[App], Awaitable[None]]] = {
    "http-custom-headers": told,
    "json-schema-2020-12-preservation": echoed,
}


def context() -> dict[str, Any]:
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def named(app: App, wire_name: str) -> toolbay.Tool:
    return next(tool for tool in app.registry.tools.values() if tool.server == SERVER and tool.wire_name == wire_name)


async def called(app: App, wire_name: str, arguments: dict[str, Any]) -> None:
    result = await app.call(named(app, wire_name).name, arguments)
    if result.is_error:
        raise RuntimeError(f"{wire_name}: {result.text}")


def least(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for what a schema requires."""
    values: Mapping[str, Any] = {"string": "a", "number": 1.5, "integer": 1, "boolean": True, "array": [], "object": {}}
    properties: Mapping[str, Any] = schema.get("properties", {})
    return {name: values.get(properties[name].get("type", "string")) for name in schema.get("required", ())}


async def main(url: str) -> None:
    entry = {"url": url, "type": "streamableHttp", "ssrfWhitelist": ["127.0.0.0/8", "::1/128"]}
    async with App(toolbay.parse({"tools": {"mcpServers": {SERVER: entry}}})) as app:
        status = await app.ready(SERVER)
        if status.state != "ready":
            raise RuntimeError(f"{status.state}: {status.error}")
        await SCENARIOS.get(os.environ["MCP_CONFORMANCE_SCENARIO"], everything)(app)
    print("done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
