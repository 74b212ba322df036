"""Run a command's work so that Ctrl-C and a request to end close everything first, and say so in the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import anyio

from toolbay.cli.invocation import DONE

_ENDINGS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PATIENCE: Final = 3


@contextmanager
def caught(signals: tuple[int, ...], handle: Callable[[int], None]) -> Generator[None]:
    """Call `handle` in the event loop when one of `signals` arrives, until the block ends.

    By `signal.signal` rather than the loop's own handlers: those do not exist on Windows.
    """
    loop = asyncio.get_running_loop()

    def hand_over(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(handle, number)

    before: dict[int, Any] = {number: signal.signal(number, hand_over) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def perform(job: Callable[[], Awaitable[int | None]], on_stop: Callable[[], None] = lambda: None) -> int:
    """Run `job` in an event loop and return its exit code (none is 0), or 128 + the signal that stopped it.

    The first signal cancels the job, which then closes its servers, and calls `on_stop`; whoever has no patience for that is
    let out at once after the third.
    """

    async def watched() -> int:
        received: list[int] = []
        with anyio.CancelScope() as scope:

            def stop(number: int) -> None:
                received.append(number)
                scope.cancel()
                if len(received) == 1:
                    on_stop()
                if len(received) >= _PATIENCE:
                    os._exit(128 + number)

            # Who started us with nohup wants us to live on.
            endings = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
            with caught((signal.SIGINT, *endings), stop):
                return await job() or DONE
        return 128 + received[0] if received else DONE

    return anyio.run(watched, backend="asyncio")
