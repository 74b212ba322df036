"""The composition root: a configuration becomes a running Toolbay.

async with App(config) as app:
    await app.settle()
    result = await app.call("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import anyio

from toolbay import artifacts as artifact_files
from toolbay._nearest import nearest
from toolbay._redact import Secrets
from toolbay.agent.approvals import Approvals, Approver, Remembered, Surroundings
from toolbay.agent.chosen import ChosenModel
from toolbay.agent.instructions import composed, lacking
from toolbay.artifacts import Artifacts
from toolbay.auth.logins import Logins
from toolbay.auth.records import PATIENCE
from toolbay.auth.store import Files, Store
from toolbay.config import Config, data_home
from toolbay.config import load as load_config
from toolbay.config.models import InvalidServer, ServerConfig
from toolbay.config.networks import with_network
from toolbay.errors import ConfigError, ToolbayError
from toolbay.events import Events
from toolbay.fleet import Fleet, ServerStatus
from toolbay.gateway.bus import Bus, LocalBus
from toolbay.journal import Journal, UnfinishedCall
from toolbay.lock import Lock
from toolbay.offerings import PromptInfo, ResourceInfo, prompts_of, resources_of
from toolbay.recollections import Folder, Recollections
from toolbay.registry import Registry
from toolbay.reloading import RELOAD, Given, Reloads
from toolbay.sessions import MemoryConversation, Sessions
from toolbay.types import CallContext, Interceptor, Json, Model, Progress, Reloaded, Subject, Tool, ToolResult, ToolSource
from toolbay.upstream.engine import OpenEngine
from toolbay.upstream.engines import official, with_credentials

if TYPE_CHECKING:
    from toolbay.agent.runner import Conversation, Runner, Turn
    from toolbay.auth.logins import LoginStatus
    from toolbay.auth.pages import Person


class AppOptions(TypedDict, total=False):
    """What an `App` may be given besides its configuration, by name."""

    model: str | Model
    """The model, or its name; wins over the configuration's."""
    only: Collection[str] | None
    """Start just these servers."""
    tools: Collection[Tool]
    """Tools of your own, offered beside those of the servers; of two of one name yours counts."""
    interceptors: Collection[Interceptor]
    """What cuts across all calls, outermost first; approval comes before it."""
    approver: Approver | None
    """Asked before calls that need a person's approval (`approval` in a server's configuration); without one they are refused."""
    environ: Mapping[str, str] | None
    """In the place of `os.environ`: references, model keys, the data folder, what children inherit."""
    warm: bool
    """Whether tools are offered as their servers listed them last time until these are up; default True. It is kept in any case."""
    open_engine: OpenEngine
    """How a server is connected; `toolbay.testing.in_memory` has one for servers that are Python objects."""
    logins: Store
    """Where logins are kept; default: files that all programs of this user share. `toolbay.testing.MemoryLogins` forgets them."""
    bus: Bus
    """Where others ask this App for something; default: one inside this process."""


class App:
    """A running Toolbay: its servers, their tools, and an agent that uses them.

    Enter it to start every server side by side; nothing is waited for. Leave it, in the same task, to close them all.
    """

    def __init__(self, config: Config, **options: Unpack[AppOptions]) -> None:
        """See `AppOptions`.

        Raises:
            ToolbayError: one of the `tools` has a name that no provider takes.
        """
        _check_options(options)
        self.config: Config = config
        self._only = options.get("only")
        self._environ = os.environ if (environ := options.get("environ")) is None else environ
        data = data_home(self._environ)
        self._secrets = Secrets(config.secrets)
        safe = self._secrets.mask
        self.events = Events(safe)
        self._model = ChosenModel(
            options.get("model", ""), environ=self._environ, safe=safe, lacking=lambda: lacking(self.servers.values())
        )
        around = Surroundings(config_of=self._config_of, tool_of=self._tool, mask=safe, listed=lambda name: self.fleet.listed(name))  # noqa: PLW0108 - made below
        remembered = Remembered(data / "approvals.json")
        approvals = Approvals(around, events=self.events, approver=options.get("approver"), remembered=remembered)
        self._journal = Journal(data / "journal", events=self.events, config_of=self._config_of)
        interceptors = (approvals, *options.get("interceptors", ()), self._journal)
        self.registry = Registry(events=self.events, interceptors=interceptors, mask=safe)
        self.artifacts = _artifacts(config, data)
        self.sessions = Sessions(data / "sessions")
        self.logins = Logins(Files(data / "logins") if (own := options.get("logins")) is None else own, secrets=self._secrets)
        engine = options.get("open_engine", official)
        self._recollections: Recollections | None = None
        if engine is official:  # servers of another engine are more than their configuration tells
            folder = Folder(data / "listings", environ=self._environ)
            self._recollections = Recollections(folder, safe=safe, offers=options.get("warm", True))
        self.fleet = Fleet(
            self.registry,
            events=self.events,
            artifacts=self.artifacts,
            builtin=(*_usable(options.get("tools", ())), *artifact_files.tools(self.artifacts)),
            environ=environ,
            open_engine=with_credentials(engine, self.logins.of),
            recollections=self._recollections,
        )
        self.fleet.safe_of = self.logins.safe_of
        self.logins.on_other = partial(_begin_anew, self._recollections, self.fleet)
        self.bus: Bus = options.get("bus") or LocalBus()
        self._reloads = Reloads(read=self._read, apply=self._apply, events=self.events, secrets=self._secrets)
        self._entered_in: int | None = None
        self._stack = AsyncExitStack()

    @classmethod
    def load(cls, path: str | Path | None = None, **options: Unpack[AppOptions]) -> Self:
        """An app of a configuration file: `path`, or the one that is found where the command line looks for it.

        Raises:
            ConfigError: the file is not there or does not parse.
        """
        return cls(load_config(None if path is None else Path(path), environ=options.get("environ")), **options)

    async def __aenter__(self) -> Self:
        self._entered_in = _entering(self._entered_in)
        await self._stack.__aenter__()
        try:
            await self._stack.enter_async_context(self._journal)
            if self._recollections is not None:
                await self._stack.enter_async_context(self._recollections)
            await self._stack.enter_async_context(self.logins)
            await self._stack.enter_async_context(self.fleet)
            self.logins.watch(self.fleet.unauthorized, self.fleet.begun, self.fleet.authorized)
            inbox = self._stack.enter_context(self.bus.inbox([RELOAD]))
            await self._stack.enter_async_context(self._reloads)
            await self._reloads.begin(self.config)
            self._reloads.answer(inbox)
            self._stack.push_async_callback(self._model.close)  # before the servers
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        with _in_one_task(self._entered_in):
            return await self._stack.__aexit__(kind, error, trace)

    def _tool(self, name: str) -> Tool | None:
        return self.registry.tools.get(name)

    def _config_of(self, server: str) -> ServerConfig | None:
        entry = self.config.tools.mcp_servers.get(server)
        return entry if isinstance(entry, ServerConfig) else None

    async def _apply(self, given: Given, wait: bool) -> Reloaded:
        config = self.config = given.config
        tools = config.tools
        chosen = {name: entry for name, entry in tools.mcp_servers.items() if self._only is None or name in self._only}
        wanted = {name: with_network(entry, tools) for name, entry in chosen.items()}
        return await self.fleet.apply(wanted, budget=tools.result_budget, lock=given.lock, wait=wait)

    # -- another configuration ----------------------------------------------------------------------------------------

    async def reload(self, config: Config | None = None) -> Reloaded:
        """Go on with another configuration: the given one, or what its file says now.

        One at a time: who asks meanwhile waits, and of those who wait the last one counts for all. It is carried out even
        if who asked is cancelled. On the bus it is the control message `reload`.

        Raises:
            ConfigError: the file does not parse, or there is none; everything stays as it was.
        """
        return await self._reloads.ask(config)

    def watch(self) -> AbstractAsyncContextManager[None]:
        """While the block runs, reload at SIGHUP, and when the configuration's files change unless `tools.reloadOnChange` is false.

        What came of it is a `ConfigReloaded` event. Enter it in the main thread: signals are heard nowhere else, and
        of several Apps by the one that was entered last.

        Raises:
            ToolbayError: the App is not running.
        """
        return self._reloads.watching()

    def _read(self) -> Config:
        """What the file says now; called in a thread."""
        if self.config.path is None and not self.config.searched:
            raise ConfigError(
                "This App was given its configuration by its program and has no file to read again: give reload() the new one."
            )
        return load_config(self.config.path, environ=self._environ)

    # -- servers and tools --------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, ServerStatus]:
        """Every server by name, as it is now."""
        return self.fleet.servers

    async def settle(self, quiet: float | None = 3.0, *, warm: bool = False) -> None:
        """Wait until every server is ready or has failed once, or one is ready and `quiet` seconds brought no news (`Fleet.settle`)."""
        await self.fleet.settle(quiet, warm=warm)

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
        return await self.registry.call(
            name, arguments, CallContext(call_id=os.urandom(16).hex(), on_progress=on_progress, by_hand=by_hand)
        )

    async def login(self, server: str, person: Person, *, patience: float = PATIENCE) -> LoginStatus:
        """Log in to a server within `patience` seconds: `person` is led to its page. Then it is tried at once, and waited for.

        Raises LoginFailed and BlockedAddress as `toolbay.auth.flow.logged_in`; ConfigError as `Logins.login`.
        """
        await self.logins.login(server, config := _usable_entry(self.config, server), person, patience=patience)
        self.fleet.authorized(server)
        await self.fleet.listed(server)
        return await self.logins.standing(server, config)

    async def logout(self, server: str) -> bool | None:
        """Forget the login with a server; whether who gave it has taken it back, None where there was none. Raises as `Logins.logout`."""
        return await self.logins.logout(server, _usable_entry(self.config, server))

    async def login_status(self, server: str) -> LoginStatus:
        """How the login with a server stands; nobody is asked. Raises ConfigError where there is no such server."""
        return await self.logins.standing(server, _usable_entry(self.config, server))

    def accept(self, servers: Collection[str], only: Subject | None = None) -> Lock:
        """Pin what these servers list now, or `only` one capability of them, in the lock file; it is offered from now on.

        Raises:
            ConfigError: one of them is not there, or the file cannot be read or written.
        """
        self.fleet.lock = self.fleet.lock.accept_all({name: self.fleet.offered(name) for name in servers}, only).save()
        return self.fleet.lock

    def prompts(self) -> list[PromptInfo]:
        """The prompts of all servers, as each listed them now or, until it is up again, in the last run."""
        found = ((name, self.fleet.listing(name)) for name in self.servers)
        return [prompt for name, listing in found if listing is not None for prompt in prompts_of(name, listing)]

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> ToolResult:
        """A server's prompt, filled in.

        Raises:
            ToolbayError: the server is not there, or will not.
        """
        return await self.fleet.prompt(server, name, dict(arguments or {}))

    def resources(self) -> list[ResourceInfo]:
        """The resources and templates of all servers, listed as the prompts are."""
        found = ((name, self.fleet.listing(name)) for name in self.servers)
        return [resource for name, listing in found if listing is not None for resource in resources_of(name, listing)]

    async def resource(self, server: str, uri: str) -> ToolResult:
        """A server's resource.

        Raises:
            ToolbayError: the server is not there, or will not.
        """
        return await self.fleet.resource(server, uri)

    @property
    def unfinished(self) -> tuple[UnfinishedCall, ...]:
        """Calls during which an earlier run ended, and which may have taken effect; empty once a model was told of them."""
        return self._journal.unfinished

    # -- the agent ----------------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The model in use, once a runner was made."""
        return self._model.name

    def use_model(self, model: str | Model) -> None:
        """Take another model from the next runner on."""
        self._model.use(model)

    async def runner(self, tools: ToolSource | None = None) -> Runner:
        """The agent's loop over this app's tools, or over `tools`, with the model that was asked for or could be found.

        Raises:
            ModelError: the model cannot be used.
        """
        from toolbay.agent.runner import Limits, Runner  # noqa: PLC0415 - those who only call tools need no agent

        model = await self._model.get(self.config.agent.model)
        limits = Limits(**self.config.agent.model_dump(include={field.name for field in fields(Limits)}))
        return Runner(model, tools or self.registry, events=self.events, limits=limits, instructions=self._instructions)

    def _instructions(self) -> str:
        return composed(self.config.agent.instructions, self.servers.values(), also=self._journal.note())

    async def ask(self, text: str, *, conversation: Conversation | None = None) -> Turn:
        """Ask the agent once. Without a `conversation` the question stands alone and is not kept.

        Raises:
            ModelError: the model cannot be used.
        """
        return await (await self.runner()).run(conversation or MemoryConversation(), text)


def _entering(before: int | None) -> int:
    """The task that enters an App, which must leave it as well."""
    if before is not None:
        raise ToolbayError("This App was entered before, and an App runs once: make another one.")
    return anyio.get_current_task().id


@contextmanager
def _in_one_task(entered_in: int | None) -> Generator[None]:
    """Say in words of ours what the event loop's library says of scopes that are left elsewhere than they were entered."""
    try:
        yield
    except RuntimeError as misuse:
        if anyio.get_current_task().id == entered_in:
            raise
        raise ToolbayError(
            "This App was left in another task than the one that entered it; its servers are closed. "
            "Enter and leave it in one task, as `async with` does."
        ) from misuse


def _begin_anew(recollections: Recollections | None, fleet: Fleet, server: str, config: ServerConfig) -> None:
    """What a server listed was for who was logged in before."""
    if recollections is not None:
        recollections.forget(server, config)
    fleet.anew(server)


def _check_options(options: AppOptions) -> None:
    if unknown := options.keys() - AppOptions.__optional_keys__:
        raise TypeError(f"App() has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(AppOptions.__optional_keys__))}")


def _artifacts(config: Config, data: Path) -> Artifacts:
    kept = config.tools.artifacts
    return Artifacts(
        Path(kept.dir).expanduser() if kept.dir else data / "artifacts",
        max_bytes=kept.max_bytes,
        max_files=kept.max_files,
        max_age_days=kept.max_age_days,
    )


def _usable_entry(config: Config, server: str) -> ServerConfig:
    servers = config.tools.mcp_servers
    if server not in servers:
        near = nearest(server, servers)
        hint = f": did you mean {near!r}?" if near else f" (configured: {', '.join(sorted(servers)) or 'none'})"
        raise ConfigError(f"there is no server named {server!r}{hint}")
    found = with_network(servers[server], config.tools)
    if isinstance(found, InvalidServer):
        raise ConfigError(found.reason)
    return found


def _usable(tools: Collection[Tool]) -> Collection[Tool]:
    for tool in tools:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name):
            raise ToolbayError(f"A tool cannot be named {tool.name!r}: providers take 1 to 64 letters, digits, hyphens and underscores.")
    return tools
