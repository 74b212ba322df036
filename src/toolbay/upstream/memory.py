"""A second engine: a server that is a Python object, without a process, a wire or an SDK.

It keeps an engine's promises (one answer a request, budgets, progress, changes, death), so that everything above the seam
can be tested and tried in memory. Shipped through `toolbay.testing`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
import anyio.lowlevel

from toolbay.errors import CallTimeout, ConnectionLost, LaunchFailed, ServerError, ToolbayError
from toolbay.types import Json, Progress
from toolbay.upstream.engine import Budget, Engine, OpenEngine, Opening, ServerInfo

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

Report: TypeAlias = Callable[[float, float | None, str | None], None]
"""`(progress, total, message)`: what a handler that takes a second parameter is given."""
Handler: TypeAlias = Callable[..., "str | Json | Awaitable[str | Json]"]
"""`(arguments) -> text or a raw result`, with a second parameter `report` where it tells of its progress."""


@dataclass(slots=True)
class MemoryServer:
    """A server in memory. Change what it offers while it runs, and `announce` it; `die` ends its sessions."""

    instructions: str = ""
    protocol: str = "2025-11-25"
    tools: dict[str, Json] = field(default_factory=dict[str, Json])
    resources: dict[str, Json] = field(default_factory=dict[str, Json])
    prompts: dict[str, Json] = field(default_factory=dict[str, Json])
    page_size: int = 0
    """Items of one page of a list; 0: all on one."""
    refuses: ToolbayError | None = None
    """What opening a session meets, if anything."""
    calls: list[tuple[str, Json]] = field(default_factory=list[tuple[str, Json]])
    """Each tool call that reached it: (name, arguments)."""
    opened: int = 0
    """How many sessions there were."""
    _handlers: dict[str, Handler] = field(default_factory=dict[str, Handler])
    _sessions: list[_Session] = field(default_factory=list["_Session"])

    def add_tool(self, name: str, handler: Handler, *, description: str = "", schema: Json | None = None, **more: object) -> None:
        """Offer a tool; `more` are further keys of its definition, such as `annotations`."""
        self.tools[name] = {"name": name, "description": description, "inputSchema": schema or {"type": "object", "properties": {}}, **more}
        self._handlers[f"tool {name}"] = handler

    def add_resource(self, uri: str, name: str, text: str) -> None:
        """Offer a text."""
        self.resources[uri] = {"uri": uri, "name": name}

        def read(_arguments: Json) -> Json:
            return {"contents": [{"uri": uri, "text": text}]}

        self._handlers[f"resource {uri}"] = read

    def add_prompt(self, name: str, handler: Handler, *, arguments: tuple[Json, ...] = ()) -> None:
        """Offer a prompt; the text that `handler` gives becomes a user's message."""
        self.prompts[name] = {"name": name, "arguments": list(arguments)}
        self._handlers[f"prompt {name}"] = handler

    def announce(self, method: str = "notifications/tools/list_changed", params: Json | None = None) -> None:
        """Send a notification to every session."""
        for session in tuple(self._sessions):
            session.opening.on_notification(method, params or {})

    def die(self, reason: str = "it was ended") -> None:
        """End every session, as if the process had died: calls under way are lost."""
        for session in tuple(self._sessions):
            session.reason = ConnectionLost(reason)
            session.died.set()

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncGenerator[Engine]:
        """`OpenEngine` for this one server."""
        await anyio.lowlevel.checkpoint()
        self.opened += 1
        if self.refuses is not None:
            raise self.refuses
        session = _Session(self, opening)
        self._sessions.append(session)
        try:
            yield session
        finally:
            self._sessions.remove(session)
            session.died.set()

    async def answer(self, method: str, params: Json, report: Report) -> Json:
        """What the server answers to a request.

        Raises:
            ServerError: it answers with an error.
        """
        offers = {
            "tools/list": ("tools", self.tools),
            "resources/list": ("resources", self.resources),
            "resources/templates/list": ("resourceTemplates", dict[str, Json]()),
            "prompts/list": ("prompts", self.prompts),
        }
        if method in offers:
            return self._page(*offers[method], cursor=params.get("cursor"))
        kind, key = {"tools/call": ("tool", "name"), "resources/read": ("resource", "uri"), "prompts/get": ("prompt", "name")}.get(
            method, ("", "")
        )
        if not kind:
            raise ServerError(f"Method not found: {method}", code=METHOD_NOT_FOUND, ran=False)
        handler = self._handlers.get(f"{kind} {params.get(key)}")
        if handler is None:
            raise ServerError(f"Unknown {kind}: {params.get(key)}", code=INVALID_PARAMS, ran=False)
        arguments: Json = params.get("arguments") or {}
        if kind == "tool":
            self.calls.append((params["name"], arguments))
        made = handler(arguments, report) if len(inspect.signature(handler).parameters) > 1 else handler(arguments)
        result = await made if inspect.isawaitable(made) else made
        if isinstance(result, dict):
            return result
        block = {"type": "text", "text": result}
        return {"messages": [{"role": "user", "content": block}]} if kind == "prompt" else {"content": [block]}

    def _page(self, key: str, items: Mapping[str, Json], cursor: str | None) -> Json:
        every = deepcopy(list(items.values()))  # what was listed stays as it was, whatever the server changes later
        if not self.page_size:
            return {key: every}
        start = int(cursor or 0)
        end = start + self.page_size
        return {key: every[start:end], **({"nextCursor": str(end)} if end < len(every) else {})}


class _Session:
    """The `Engine` of one session with a `MemoryServer`."""

    def __init__(self, server: MemoryServer, opening: Opening) -> None:
        self.opening = opening
        self.reason: ToolbayError | None = None
        self._server = server
        self._died = anyio.Event()

    @property
    def info(self) -> ServerInfo:
        server = self._server
        offered = {"tools": server.tools, "resources": server.resources, "prompts": server.prompts}
        return ServerInfo(
            name=self.opening.name,
            version="0",
            protocol=server.protocol,
            instructions=server.instructions,
            capabilities={kind: {"listChanged": True} for kind, items in offered.items() if items or kind == "tools"},
        )

    @property
    def died(self) -> anyio.Event:
        return self._died

    def last_words(self) -> ToolbayError | None:
        return self.reason

    async def request(
        self,
        method: str,
        params: Json,
        *,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Json:
        """See `Engine.request`."""
        if self._died.is_set():
            raise ConnectionLost(str(self.reason or "the session was closed"), sent=False)
        if on_sent is not None:
            on_sent()
        started = anyio.current_time()
        scope = anyio.CancelScope(deadline=started + budget.first)

        def report(progress: float, total: float | None, message: str | None) -> None:
            scope.deadline = min(anyio.current_time() + budget.timeout, started + budget.ceiling)
            if on_progress is not None:
                on_progress(Progress(progress=progress, total=total, message=message))

        async def end_with_session() -> None:
            await self._died.wait()
            scope.cancel()

        result: Json | None = None
        failure: Exception | None = None
        with scope:
            async with anyio.create_task_group() as group:
                group.start_soon(end_with_session, name="end with the session")
                try:
                    result = await self._server.answer(method, params, report)
                except Exception as error:  # carried past the group, which would wrap it
                    failure = error
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if result is not None:
            return result
        if self._died.is_set():
            raise ConnectionLost(str(self.reason or "the session was closed"), sent=True)
        raise CallTimeout("it gave no answer in time", sent=True)


def in_memory(servers: Mapping[str, MemoryServer]) -> OpenEngine:
    """An `OpenEngine` that finds each server by its name in the configuration."""

    def open_engine(opening: Opening) -> AbstractAsyncContextManager[Engine]:
        server = servers.get(opening.name)
        if server is None:
            raise LaunchFailed(f"there is no server in memory named {opening.name!r}", retriable=False)
        return server.open(opening)

    return open_engine
