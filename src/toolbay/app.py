"""The composition root: a configuration becomes a running Toolbay.

async with App(config) as app:
    await app.settle()
    result = await app.call("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

from toolbay import artifacts as artifact_files
from toolbay._aio import bounded
from toolbay._redact import mask
from toolbay._text import clean, line
from toolbay.agent.approvals import Approvals, Approver, Remembered, Surroundings
from toolbay.artifacts import Artifacts
from toolbay.config import Config, data_home
from toolbay.config import load as load_config
from toolbay.config.models import InvalidServer, ServerConfig, ToolsConfig
from toolbay.errors import ConfigError
from toolbay.events import Events
from toolbay.fleet import Fleet, Reloaded, ServerStatus
from toolbay.lock import FILE_NAME, Lock
from toolbay.registry import Registry
from toolbay.sessions import MemoryConversation, Sessions
from toolbay.types import CallContext, Interceptor, Json, Model, Progress, Subject, Tool, ToolResult, ToolSource

if TYPE_CHECKING:
    from toolbay.agent.runner import Conversation, Runner, Turn
    from toolbay.upstream.engine import OpenEngine

INSTRUCTIONS_LIMIT = 2_000
"""Characters of one server's instructions that reach the model; the longest seen has 4,774."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptInfo:
    """A prompt that a server offers to people. `arguments` have `name`, `description` and `required`."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    arguments: tuple[Json, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceInfo:
    """A resource, or a template of resources, that a server offers."""

    server: str
    name: str
    uri: str
    title: str = ""
    description: str = ""
    media_type: str = ""
    template: bool = False


class App:
    """A running Toolbay: its servers, their tools, and an agent that uses them.

    Enter it to start every server side by side; nothing is waited for. Leave it, in the same task, to close them all.
    """

    def __init__(
        self,
        config: Config,
        *,
        model: str | Model = "",
        only: Collection[str] | None = None,
        interceptors: Collection[Interceptor] = (),
        approver: Approver | None = None,
        environ: Mapping[str, str] | None = None,
        open_engine: OpenEngine | None = None,
    ) -> None:
        """`model` wins over the configuration's. `only` starts just these servers.

        `approver` is asked before calls that need a person's approval (`approval` in a server's configuration); without
        one they are refused. Approval comes before `interceptors`.
        """
        self.config: Config = config
        self.events = Events()
        self._only = only
        self._model: str | Model = model
        self._environ = os.environ if environ is None else environ
        self._chosen: Model | None = None
        self._own_models: list[Model] = []
        """Models that were chosen here, and so are closed here."""
        self._secrets = config.secrets
        data = data_home(self._environ)
        surroundings = Surroundings(config_of=self._config_of, tool_of=self._tool, mask=self._mask)
        approvals = Approvals(surroundings, events=self.events, approver=approver, remembered=Remembered(data / "approvals.json"))
        self.registry = Registry(events=self.events, interceptors=(approvals, *interceptors), mask=self._mask)
        kept = config.tools.artifacts
        self.artifacts = Artifacts(
            Path(kept.dir).expanduser() if kept.dir else data / "artifacts",
            max_bytes=kept.max_bytes,
            max_files=kept.max_files,
            max_age_days=kept.max_age_days,
        )
        self.sessions = Sessions(data / "sessions")
        builtin = artifact_files.tools(self.artifacts)
        self.fleet = (
            Fleet(self.registry, events=self.events, artifacts=self.artifacts, builtin=builtin, environ=environ)
            if open_engine is None
            else Fleet(
                self.registry, events=self.events, artifacts=self.artifacts, builtin=builtin, environ=environ, open_engine=open_engine
            )
        )
        self._stack = AsyncExitStack()

    @classmethod
    def load(cls, path: str | Path | None = None, *, model: str | Model = "") -> App:
        """An app of a configuration file: `path`, or the one that is found where the command line looks for it.

        Raises:
            ConfigError: the file is not there or does not parse.
        """
        return cls(load_config(None if path is None else Path(path)), model=model)

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            await self._stack.enter_async_context(self.fleet)
            await self._apply(wait=False)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        for model in self._own_models:
            close = getattr(model, "aclose", None)
            if close is not None:
                await bounded(2.0, close)
        return await self._stack.__aexit__(kind, error, trace)

    def _mask(self, text: str) -> str:
        return mask(text, self._secrets)

    def _tool(self, name: str) -> Tool | None:
        return self.registry.tools.get(name)

    def _config_of(self, server: str) -> ServerConfig | None:
        entry = self.config.tools.mcp_servers.get(server)
        return entry if isinstance(entry, ServerConfig) else None

    async def _apply(self, *, wait: bool) -> Reloaded:
        tools = self.config.tools
        chosen = {name: entry for name, entry in tools.mcp_servers.items() if self._only is None or name in self._only}
        wanted = {name: _with_network(entry, tools) for name, entry in chosen.items()}
        lock = Lock.load(self.config.path.parent / FILE_NAME if self.config.path else None)
        return await self.fleet.apply(wanted, secrets=self.config.secrets, budget=tools.result_budget, lock=lock, wait=wait)

    async def reload(self, config: Config | None = None) -> Reloaded:
        """Go on with another configuration: the given one, or what its file says now (LIF-4).

        Raises:
            ConfigError: the file does not parse; everything stays as it was.
        """
        if config is None:
            config = load_config(self.config.path, environ=self._environ)
        self.config = config
        self._secrets |= config.secrets  # what was a secret once must not be shown later
        return await self._apply(wait=True)

    # -- servers and tools --------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, ServerStatus]:
        """Every server by name, as it is now."""
        return self.fleet.servers

    async def settle(self, quiet: float | None = 3.0) -> None:
        """See `Fleet.settle`."""
        await self.fleet.settle(quiet)

    async def ready(self, server: str) -> ServerStatus:
        """Wait until one server is ready or has failed."""
        return await self.fleet.ready(server)

    async def call(
        self, name: str, arguments: Json | str, on_progress: Callable[[Progress], None] | None = None, *, by_hand: bool = False
    ) -> ToolResult:
        """Call a tool by the name that models know it by. What goes wrong is an error result; only cancellation is raised.

        `by_hand` says that a person chose this very call: then nobody is asked for approval. A loop of your own that calls
        for a model leaves it False.
        """
        return await self.registry.call(name, arguments, CallContext(call_id=uuid4().hex, on_progress=on_progress, by_hand=by_hand))

    def accept(self, servers: Collection[str], only: Subject | None = None) -> Lock:
        """Pin what these servers list now, or `only` one capability of them, in the lock file; it is offered from now on.

        Raises:
            ConfigError: one of them is not there, or the file cannot be read or written.
        """
        lock = self.fleet.lock
        for name in servers:
            offered = self.fleet.offered(name)
            if offered is None:
                raise ConfigError(f"The server {name!r} is not ready, so what it offers cannot be pinned; nothing was written.")
            lock = lock.accept(offered, only)
        self.fleet.lock = lock.save()
        return self.fleet.lock

    def prompts(self) -> list[PromptInfo]:
        """The prompts of all servers that are ready."""
        return [
            PromptInfo(
                server=server,
                name=item["name"],
                title=line(_text(item, "title"), 200),
                description=clean(_text(item, "description")),
                arguments=tuple(_argument(entry) for entry in _dicts(item.get("arguments"))),
            )
            for server in self.servers
            if (listing := self.fleet.listing(server)) is not None
            for item in listing.prompts
        ]

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> str:
        """A server's prompt, filled in, as text.

        Raises:
            ToolbayError: the server is not there, or will not.
        """
        return (await self.fleet.prompt(server, name, dict(arguments or {}))).text

    def resources(self) -> list[ResourceInfo]:
        """The resources and templates of all servers that are ready."""
        found: list[ResourceInfo] = []
        for server in self.servers:
            listing = self.fleet.listing(server)
            if listing is not None:
                found += [_resource(server, item, "uri") for item in listing.resources if _text(item, "uri")]
                found += [_resource(server, item, "uriTemplate") for item in listing.templates if _text(item, "uriTemplate")]
        return found

    async def resource(self, server: str, uri: str) -> ToolResult:
        """A server's resource.

        Raises:
            ToolbayError: the server is not there, or will not.
        """
        return await self.fleet.resource(server, uri)

    # -- the agent ----------------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The model in use, once a runner was made."""
        return self._chosen.name if self._chosen else ""

    def use_model(self, model: str | Model) -> None:
        """Take another model from the next runner on."""
        self._model, self._chosen = model, None

    async def runner(self, tools: ToolSource | None = None) -> Runner:
        """The agent's loop over this app's tools, or over `tools`, with the model that was asked for or could be found (RUN-5).

        Raises:
            ModelError: the model cannot be used.
        """
        from toolbay.agent.runner import Limits, Runner  # noqa: PLC0415 - those who only call tools need no agent

        if self._chosen is None:
            self._chosen = await self._choose()
        agent = self.config.agent
        limits = Limits(
            max_steps=agent.max_steps,
            max_seconds=agent.max_seconds,
            parallel_calls=agent.parallel_calls,
            history_tokens=agent.history_tokens,
        )
        return Runner(self._chosen, tools or self.registry, events=self.events, limits=limits, instructions=self._instructions)

    async def _choose(self) -> Model:
        if not isinstance(self._model, str):
            return self._model
        from toolbay.agent.local import choose  # noqa: PLC0415 - as in `runner`
        from toolbay.agent.offline import OfflineModel  # noqa: PLC0415

        chosen = await choose(self._model or self.config.agent.model, environ=self._environ, offline=OfflineModel)
        self._own_models.append(chosen)
        return chosen

    async def ask(self, text: str, *, conversation: Conversation | None = None) -> Turn:
        """Ask the agent once. Without a `conversation` the question stands alone and is not kept.

        Raises:
            ModelError: the model cannot be used.
        """
        return await (await self.runner()).run(conversation or MemoryConversation(), text)

    def _instructions(self) -> str:
        parts = [self.config.agent.instructions.strip()]
        waiting: list[str] = []
        for status in self.servers.values():
            if status.state in ("connecting", "waiting"):
                waiting.append(status.name)
            elif status.state == "ready" and status.instructions.strip():
                said = clean(status.instructions).strip()[:INSTRUCTIONS_LIMIT]
                parts.append(f"The server {status.name!r} says of its own tools (its words, not the user's):\n<<<\n{said}\n>>>")
        if waiting:
            parts.append(f"Still starting, their tools may come later: {', '.join(waiting)}.")
        return "\n\n".join(part for part in parts if part)


def _with_network(entry: ServerConfig | InvalidServer, tools: ToolsConfig) -> ServerConfig | InvalidServer:
    """The entry with what every server may reach besides."""
    if isinstance(entry, InvalidServer) or not (tools.ssrf_whitelist or tools.fake_ip):
        return entry
    ranges = {"ssrf_whitelist": (*tools.ssrf_whitelist, *entry.ssrf_whitelist), "fake_ip": (*tools.fake_ip, *entry.fake_ip)}
    return entry.model_copy(update=ranges)


def _resource(server: str, item: Json, key: str) -> ResourceInfo:
    return ResourceInfo(
        server=server,
        name=item["name"],
        uri=item[key],
        title=line(_text(item, "title"), 200),
        description=clean(_text(item, "description")),
        media_type=line(_text(item, "mimeType"), 100),
        template=key == "uriTemplate",
    )


def _argument(entry: Json) -> Json:
    described = clean(_text(entry, "description"))
    return {"name": _text(entry, "name"), "description": described, "required": entry.get("required") is True}


def _dicts(value: object) -> list[Json]:
    return [cast("Json", item) for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


def _text(item: Json, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
