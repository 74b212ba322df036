"""Toolbay as one more client of the shared harness (`../shared/bench`): connect, list, call, close, as its workers ask for it.

A call takes the way of an agent's call: `App.call`, with everything that is between a model and a server. The option `path=raw`
calls the connection itself: what is left is the session, the ledger and the transport, without registry, arguments and rendering.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

Servers = Mapping[str, Mapping[str, Any]]


class Toolbay:
    imports = ("from toolbay import App, parse",)

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.opts = opts
        self._home = tempfile.mkdtemp(prefix="toolbay-bench-")
        self._leave = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._connections: dict[str, Any] = {}

    async def connect(self, servers: Servers) -> dict[str, Any]:
        from toolbay import App, parse  # noqa: PLC0415 - a cold start begins before this

        environ = {**os.environ, "TOOLBAY_HOME": self._home}
        # The network guard refuses loopback, where all servers of a benchmark are, unless it is told otherwise.
        config = parse({"tools": {"mcpServers": servers, "ssrfWhitelist": ["127.0.0.0/8"]}}, environ=environ)
        if self.opts.get("path") == "raw":
            return await self._connect_raw(config)
        self._app = App(config, environ=environ)
        await self._own(self._app)
        await self._app.settle()
        return _sorted_out({name: (status.state, status.error) for name, status in self._app.servers.items()})

    async def _connect_raw(self, config: Any) -> dict[str, Any]:
        from toolbay.events import Events  # noqa: PLC0415 - as above
        from toolbay.upstream.connection import Connection  # noqa: PLC0415
        from toolbay.upstream.engine import Budget  # noqa: PLC0415

        self._budget = Budget(timeout=30.0, ceiling=600.0)
        for name, server in config.tools.mcp_servers.items():
            allowed = {"ssrf_whitelist": config.tools.ssrf_whitelist}
            self._connections[name] = Connection(name, server.model_copy(update=allowed), events=Events())
        await self._own(_Running(self._connections))
        for connection in self._connections.values():
            await connection.wait_settled()
        return _sorted_out({name: (one.state.value, str(one.error or "")) for name, one in self._connections.items()})

    async def _own(self, entered: Any) -> None:
        """Enter `entered` in a task of its own, for the harness leaves in another task than it came in."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def owner() -> None:
            async with entered:
                ready.set_result(None)
                await self._leave.wait()

        self._owner = asyncio.create_task(owner())
        await asyncio.wait({ready, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if self._owner.done():
            await self._owner

    async def list_tools(self) -> list[dict[str, Any]]:
        if self._connections:
            listings = {name: connection.listing for name, connection in self._connections.items()}
            tools = [(name, tool) for name, listing in listings.items() if listing is not None for tool in listing.tools]
            return [{"name": f"{name}_{tool['name']}", "description": "", "parameters": tool["inputSchema"]} for name, tool in tools]
        offered = self._app.registry.tools.values()
        return [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in offered]

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        if self._connections:
            params = {"name": tool, "arguments": arguments}
            return await self._connections[server].request("tools/call", params, budget=self._budget)
        return await self._app.call(f"mcp_{server}_{tool}", arguments)

    def text(self, result: Any) -> str:
        """What a model is shown; of a raw result its text."""
        if self._connections:
            return "\n".join(block.get("text", f"[{block['type']}]") for block in result["content"])
        return result.text

    def is_error(self, result: Any) -> bool:
        return bool(result.get("isError")) if self._connections else result.is_error

    async def close(self) -> None:
        self._leave.set()
        if self._owner is not None:
            await self._owner
        shutil.rmtree(self._home, ignore_errors=True)


class _Running:
    """Connections with their owner tasks."""

    def __init__(self, connections: Mapping[str, Any]) -> None:
        self._connections = connections

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(connection.run()) for connection in self._connections.values()]

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.stop()
        await asyncio.gather(*self._tasks)


def _sorted_out(states: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    connected = [name for name, (state, _) in states.items() if state == "ready"]
    return {"connected": connected, "failed": {name: f"{state}: {error}" for name, (state, error) in states.items() if state != "ready"}}
