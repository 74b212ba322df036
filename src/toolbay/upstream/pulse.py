"""Whether a server that says nothing is still there: asked by a ping, where the configuration wants that.

Silence is judged only where nothing was expected: a server that has said nothing for the interval, and has no call under
way, must answer within the interval. Any answer will do, a refusal as well: who answers lives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from toolbay.errors import AuthRequired, CallError, CallTimeout, ConnectionLost
from toolbay.upstream.engine import Budget, Diagnostics, Engine
from toolbay.upstream.turns import Turns

LOOK = 30.0
"""Seconds after which it is looked whether the configuration wants pings by now."""
T = TypeVar("T")


async def while_it_speaks(
    stay: Callable[[], Awaitable[T]], engine: Engine, turns: Turns, diagnostics: Diagnostics, interval: Callable[[], float]
) -> T | ConnectionLost | AuthRequired:
    """What `stay` comes to; or, where the server falls silent meanwhile or wants credentials, the words for that.

    `interval` is asked each time; 0: no pings.
    """
    ended: list[T | ConnectionLost | AuthRequired] = []
    async with anyio.create_task_group() as group:

        async def end_with(wait: Callable[[], Awaitable[T | ConnectionLost | AuthRequired]]) -> None:
            ended.append(await wait())
            group.cancel_scope.cancel()

        group.start_soon(end_with, stay, name="stay")
        group.start_soon(end_with, lambda: _until_silent(engine, turns, diagnostics, interval), name="pulse")
    return ended[0]


async def _until_silent(
    engine: Engine, turns: Turns, diagnostics: Diagnostics, interval: Callable[[], float]
) -> ConnectionLost | AuthRequired:
    asked = anyio.current_time()
    while True:
        seconds = interval()
        quiet = anyio.current_time() - max(diagnostics.heard(), turns.last, asked)
        if not seconds or turns.under_way or quiet < seconds:
            await anyio.sleep(LOOK if not seconds else seconds if turns.under_way else max(seconds - quiet, 0.001))
            continue
        asked = anyio.current_time()
        try:
            await engine.request("ping", {}, budget=Budget(timeout=seconds, ceiling=seconds))
        except AuthRequired as denied:
            if denied.of_all:
                return denied
        except (CallTimeout, ConnectionLost):
            if diagnostics.heard() < asked:
                return ConnectionLost(f"it said nothing for {seconds:g} s, and did not answer a ping within {seconds:g} s more")
        except CallError:
            pass  # a server that does not know what a ping is, but says so
