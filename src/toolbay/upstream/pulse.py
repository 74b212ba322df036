"""Whether a server that says nothing is still there: asked by a ping, where the configuration wants that.

Silence is judged only where nothing was expected: a server that has said nothing for the interval, and has no call under
way, must answer within the interval. Any answer will do, a refusal as well: who answers lives.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from toolbay.errors import CallError, CallTimeout, ConnectionLost
from toolbay.upstream.engine import Budget, Engine

LOOK = 30.0
"""Seconds after which it is looked whether the configuration wants pings by now."""


async def until_silent(
    engine: Engine, interval: Callable[[], float], *, busy: Callable[[], bool], heard: Callable[[], float]
) -> ConnectionLost:
    """Return once a ping was not answered, as the words for that; never while the server answers.

    `interval` is asked each time (0: no pings); `heard` is when the server last said something or ended a call.
    """
    asked = anyio.current_time()
    while True:
        seconds = interval()
        quiet = anyio.current_time() - max(heard(), asked)
        if not seconds or busy() or quiet < seconds:
            await anyio.sleep(LOOK if not seconds else seconds if busy() else max(seconds - quiet, 0.001))
            continue
        asked = anyio.current_time()
        try:
            await engine.request("ping", {}, budget=Budget(timeout=seconds, ceiling=seconds))
        except (CallTimeout, ConnectionLost):
            if heard() < asked:
                return ConnectionLost(f"it said nothing for {seconds:g} s, and did not answer a ping within {seconds:g} s more")
        except CallError:
            pass  # a server that does not know what a ping is, but says so
