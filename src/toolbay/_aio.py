"""Concurrency without domain words: wait for the first of several, run to the end whatever comes, bound a clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio


def clock() -> float:
    """The running loop's clock, which is `anyio.current_time()` in a tenth of its time: calls ask for it ten times."""
    return asyncio.get_running_loop().time()


async def first_of(*events: anyio.Event) -> None:
    """Return as soon as one of `events` is set."""
    if not any(event.is_set() for event in events):
        await first_finished(*(event.wait for event in events))


async def first_finished(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return as soon as one of `waits` does; the others are cancelled."""
    async with anyio.create_task_group() as group:

        async def run(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(run, wait, name="first_finished")


async def to_the_end(work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` to its end, however often the caller is cancelled meanwhile, and by whatever means; then its cancellation goes on.

    A shield alone holds scopes off, but not who cancels the task itself: so the work has a task of its own.
    """
    failures: list[Exception] = []

    async def run() -> None:
        try:
            with anyio.CancelScope(shield=True):
                await work()
        except Exception as failure:  # carried past the group, which would wrap it
            failures.append(failure)

    async with anyio.create_task_group() as group:
        group.start_soon(run, name="to the end")
    for failure in failures:
        raise failure


async def bounded(seconds: float, clean_up: Callable[[], Awaitable[object]]) -> bool:
    """Run `clean_up` to its end even while cancelled, but for `seconds` at the most. True where it ended in time."""
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + seconds) as scope:
        await clean_up()
    return not scope.cancelled_caught
