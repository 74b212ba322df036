"""A running app for the length of a command: opened, its start shown, closed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from toolbay.agent.approvals import Approver
from toolbay.agent.local import wanted_of
from toolbay.app import App
from toolbay.cli.invocation import SERVER_FAILED, USAGE, CommandFailed, Invocation
from toolbay.cli.terminal import DIM, Terminal
from toolbay.cli.views import ServersView
from toolbay.config import home
from toolbay.config.models import Config
from toolbay.types import Json

_LONG: Final = 5.0
"""Seconds of waiting after which it is said what for."""
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a command wants its servers: which ones (None: all), how long it waits, whether each start is told."""

    only: Collection[str] | None = None
    quiet: float | None = None
    """Seconds without news after which the wait ends if a server is ready; None waits for all."""
    chatty: bool = False
    asides: bool = False
    """Whether it is told which tools are left out, and why."""
    whole: bool = False
    """Whether it is told to the end why a server failed."""
    warm: bool = False
    """Whether tools count that are known from the last run, whose servers are not up yet."""
    model: bool = False
    """Whether a model is needed: it is chosen meanwhile, and one that cannot be used ends the start at once."""
    approver: Approver | None = None
    again: bool = False
    """A second look of the same command: what was told of the configuration is not told again."""


@asynccontextmanager
async def opened(invocation: Invocation, opening: Opening, config: Config | None = None) -> AsyncGenerator[App]:
    """The app of this command, with its servers started as far as `opening` wants.

    Raises:
        ConfigError: the configuration cannot be used.
        ModelError: a model is needed, and cannot be used.
    """
    terminal = invocation.terminal
    config = config or invocation.config()
    if opening.model:
        wanted_of(invocation.model or config.agent.model, os.environ)
    if not opening.again:
        tell_place(terminal, config, named=invocation.config_path is not None)
    app = App(config, model=invocation.model, only=opening.only, approver=opening.approver, warm=opening.warm)
    view = ServersView(
        terminal,
        chatty=opening.chatty or terminal.verbosity > 0,
        asides=opening.asides or terminal.verbosity > 0,
        whole=opening.whole,
        offered=lambda server: _offered(app, server),
    )
    with app.events.listen(view):
        async with app:
            async with waiting(terminal, app):
                await _start(app, opening)
            view.unfinished(app.servers)
            # What is loaded by now stays. Looking through it for garbage again and again would stop everything for 0.1 s each time.
            gc.freeze()
            yield app


async def _start(app: App, opening: Opening) -> None:
    async with anyio.create_task_group() as group:
        if opening.model:
            group.start_soon(app.runner, name="choose the model")
        await app.settle(opening.quiet, warm=opening.warm)


def _offered(app: App, server: str) -> int:
    """How many of a server's tools are not kept back."""
    listing = app.fleet.listing(server)
    return len(listing.tools) if listing is not None else 0


def tell_place(terminal: Terminal, config: Config, *, named: bool) -> None:
    """A file that was only found in the working folder may be another's: it starts programs, and says so."""
    path = config.path
    if path is None or named or os.environ.get("TOOLBAY_CONFIG") or path.parent != Path.cwd() or path.parent == home(os.environ):
        return
    terminal.say(f"(using ./{path.name})", DIM)


def starting(app: App) -> str:
    """Which servers are being waited for; empty where none is."""
    names = [name for name, status in app.servers.items() if not status.settled]
    return f"starting {', '.join(names)}" if names else ""


def all_failed(app: App) -> bool:
    """Whether there are servers and none can be used."""
    return bool(app.servers) and all(status.settled and status.state != "ready" for status in app.servers.values())


def failed(app: App) -> list[str]:
    """The servers whose start has come to another result than that they can be used."""
    return [name for name, status in app.servers.items() if status.settled and status.state != "ready"]


def given_up(app: App, terminal: Terminal, *, as_json: bool, shape: Callable[[str], Json] = lambda text: {"error": text}) -> int:
    """The exit code where no server can be used. Why was told on the way; who wants JSON is told there, in this `shape`."""
    if as_json:
        why = "; ".join(status.error or f"{name}: {status.state}" for name, status in app.servers.items())
        terminal.json(shape(f"None of the servers could be started: {why}"))
    return SERVER_FAILED


@asynccontextmanager
async def waiting(terminal: Terminal, app: App) -> AsyncGenerator[None]:
    """Show which servers are waited for while the block runs; where nothing can move, in one line once it takes long."""
    if terminal.live:
        async with moving(terminal, lambda: starting(app)):
            yield
        return

    async def tell() -> None:
        await anyio.sleep(_LONG)
        if text := starting(app):
            terminal.say(f"({text})")

    async with anyio.create_task_group() as group:
        group.start_soon(tell, name="say who is waited for")
        try:
            yield
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def moving(terminal: Terminal, text: Callable[[], str]) -> AsyncGenerator[None]:
    """Show what `text` says, with the time it has taken, while the block runs. Only on a terminal."""
    if not terminal.live:
        yield
        return
    started = time.monotonic()

    async def move() -> None:
        frame = 0
        while True:
            frame += 1
            told = text()
            terminal.status(f"{_FRAMES[frame % len(_FRAMES)]} {told} {time.monotonic() - started:.0f} s" if told else "")
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as group:
        group.start_soon(move, name="status line")
        try:
            yield
        finally:
            group.cancel_scope.cancel()
            terminal.status("")


def wanted_wait(text: str) -> float | None:
    """`--wait`: seconds, or `all`.

    Raises:
        CommandFailed: it is neither.
    """
    if text == "all":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise CommandFailed(f'--wait takes seconds or "all", not "{text}".', USAGE)
    return seconds
