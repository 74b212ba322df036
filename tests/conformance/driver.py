"""The client that the official conformance suite examines: a program of Toolbay's public library, such as anybody could write.

    driver.py URL        with MCP_CONFORMANCE_SCENARIO, and what it needs to know in MCP_CONFORMANCE_CONTEXT

Its last line says how it ended: `done`, or `refused` where a login would not go on (why is on stderr); else it fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import toolbay
from toolbay import App
from toolbay.auth.discovery import asked, discover
from toolbay.auth.web import web
from toolbay.config.models import ServerConfig

SERVER = "examined"
LOGINS = 3
"""How often the person is asked to log in, at most."""


class Failed(Exception):
    """The program cannot do what it is for."""


class Program:
    """An App with one server, and the person in front of it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.logins = 0

    async def connect(self) -> None:
        """The server is ready, after a login if it wants one."""
        while (status := await self.app.ready(SERVER)).state != "ready":
            if status.state != "needs_auth":
                raise Failed(f"{status.state}: {status.error}")
            await self.log_in(status.error)

    async def log_in(self, why: str) -> None:
        if self.logins == LOGINS:
            raise toolbay.LoginFailed(f"{LOGINS} logins were not enough: {why}")
        self.logins += 1
        await self.app.login(SERVER, Browser())

    async def call(self, wire_name: str, arguments: dict[str, Any]) -> None:
        """A tool is called, again after a login where the server then wants one that allows more."""
        while (result := await self.app.call(self.named(wire_name).name, arguments)).is_error:
            if self.app.servers[SERVER].state == "needs_auth":
                await self.connect()
            elif (await self.standing()).wanted:
                await self.log_in(result.text)
            else:
                raise Failed(f"{wire_name}: {result.text}")

    async def standing(self) -> toolbay.LoginStatus:
        entry = self.app.config.tools.mcp_servers[SERVER]
        assert isinstance(entry, toolbay.ServerConfig)
        return await self.app.logins.standing(SERVER, entry)

    def named(self, wire_name: str) -> toolbay.Tool:
        return next(tool for tool in self.app.registry.tools.values() if tool.server == SERVER and tool.wire_name == wire_name)


class Browser:
    """A person who agrees to everything, at once."""

    async def go(self, page: toolbay.Page) -> None:
        def follow() -> None:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(page.url, timeout=30) as answer:
                answer.read()

        await asyncio.to_thread(follow)


async def everything(program: Program) -> None:
    """Whatever the server offers is used once, with the least that its schema asks for."""
    app = program.app
    for tool in app.registry.tools.values():
        if tool.server == SERVER and tool.kind is toolbay.Kind.TOOL:
            await program.call(tool.wire_name, least(tool.input_schema))
    for resource in app.resources():
        await app.resource(SERVER, resource.uri)
    for prompt in app.prompts():
        await app.prompt(SERVER, prompt.name)


async def told(program: Program) -> None:
    """The calls that the suite wants."""
    for call in context()["toolCalls"]:
        await program.call(call["name"], call["arguments"])


async def echoed(program: Program) -> None:
    """One tool's schema, as it was understood, is another's argument."""
    await program.call("json_schema_echo", {"schema": program.named("json_schema_2020_12_tool").input_schema})


SCENARIOS: Mapping[str, Callable[[Program], Awaitable[None]]] = {
    "http-custom-headers": told,
    "json-schema-2020-12-preservation": echoed,
}


def context() -> dict[str, Any]:
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def login(scenario: str) -> dict[str, Any]:
    """What a person would write under `auth`, knowing what the suite tells of this scenario."""
    known = context()
    given = {ours: known[theirs] for ours, theirs in (("clientId", "client_id"), ("clientSecret", "client_secret")) if theirs in known}
    if scenario.startswith("auth/client-credentials"):
        given["type"] = "client_credentials"
    elif "clientId" in given:
        given["callbackPort"] = free_port()
    if scenario == "auth/basic-cimd":
        given["clientMetadataUrl"] = "https://conformance-test.local/client-metadata.json"
    return {"auth": given} if given else {}


def free_port() -> int:
    """A port that nobody listens on just now, for a client that was registered without one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def named(entry: Mapping[str, Any]) -> str:
    """The authorization server that a person is told of and confirms, before a program shows it a secret."""
    config = toolbay.parse({"tools": {"mcpServers": {SERVER: entry}}}).tools.mcp_servers[SERVER]
    assert isinstance(config, ServerConfig)
    async with web(config) as way:
        return (await discover(way, config, await asked(way, config))).issuer


def least(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for what a schema requires."""
    values: Mapping[str, Any] = {"string": "a", "number": 1.5, "integer": 1, "boolean": True, "array": [], "object": {}}
    properties: Mapping[str, Any] = schema.get("properties", {})
    return {name: values.get(properties[name].get("type", "string")) for name in schema.get("required", ())}


async def main(url: str, scenario: str) -> str:
    entry: dict[str, Any] = {"url": url, "type": "streamableHttp", "ssrfWhitelist": ["127.0.0.0/8", "::1/128"], **login(scenario)}
    if entry.get("auth", {}).get("type") == "client_credentials":
        entry["auth"]["issuer"] = await named(entry)
    config = toolbay.parse({"tools": {"mcpServers": {SERVER: entry}}})
    if config.problems:
        raise Failed("; ".join(map(str, config.problems)))
    async with App(config) as app:
        program = Program(app)
        try:
            await program.connect()
            await SCENARIOS.get(scenario, everything)(program)
        except toolbay.LoginFailed as refused:
            print(refused, file=sys.stderr)
            return "refused"
    return "done"


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], os.environ["MCP_CONFORMANCE_SCENARIO"])))
