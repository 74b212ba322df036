"""How the first engine is opened: the child is started while the SDK is still being imported.

The SDK costs more than a second to import, so it is loaded only here, in a thread, and only once a server is connected.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import ModuleType

import anyio
import anyio.to_thread

from toolbay.config.models import ServerConfig, TransportType
from toolbay.upstream.engine import Credentials, Engine, OpenEngine, Opening
from toolbay.upstream.launch import prepare
from toolbay.upstream.process import spawn
from toolbay.upstream.sandbox import confined


async def load() -> ModuleType:
    """The SDK's engine. Who times servers loads it before they are started, for the time to be theirs."""
    return await anyio.to_thread.run_sync(importlib.import_module, "toolbay.upstream.sdk")


@asynccontextmanager
async def official(opening: Opening) -> AsyncGenerator[Engine]:
    """A session through the official SDK (`OpenEngine`).

    Raises:
        ConnectionFailed: and its kinds, while opening.
    """
    async with AsyncExitStack() as stack:
        child = None
        if opening.config.type is TransportType.STDIO:
            child = await stack.enter_async_context(spawn(confined(prepare(opening.config, opening.environ), opening.config)))
            opening.diagnostics.pid, opening.diagnostics.spawned = child.pid, anyio.current_time()
            opening.diagnostics.stderr = lambda: child.stderr.lines
            opening.diagnostics.spoke = lambda: child.spoke
            opening.diagnostics.exit_code = lambda: child.ended
            opening.diagnostics.exceeded = lambda: child.exceeded
        sdk = await load()
        yield await stack.enter_async_context(sdk.session(opening, child))


def with_credentials(open_engine: OpenEngine, of: Callable[[str, ServerConfig], Credentials | None]) -> OpenEngine:
    """`open_engine` with what `of` gives for a server's name and entry."""
    return lambda opening: open_engine(replace(opening, credentials=of(opening.name, opening.config)))
