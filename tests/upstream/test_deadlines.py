"""One timer for many deadlines: each is kept, moved and forgotten as if it had a timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import anyio
import pytest

from support.connections import Link, linked, raw
from support.processes import eventually
from toolbay._aio import clock
from toolbay.errors import CallTimeout, ConnectionLost, ServerError
from toolbay.types import Json
from toolbay.upstream.deadlines import Deadlines
from toolbay.upstream.engine import AT_ONCE, Engine, Opening
from toolbay.upstream.engines import official
from toolbay.upstream.sdk import Session

pytestmark = pytest.mark.anyio


@contextmanager
def noted() -> Generator[list[asyncio.TimerHandle]]:
    """The timers that deadlines set in the block."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    made = loop.call_at

    def call_at(at: float, ring: Any, *given: Any, **named: Any) -> asyncio.TimerHandle:
        timer = made(at, ring, *given, **named)
        if isinstance(getattr(ring, "__self__", None), Deadlines):
            timers.append(timer)
        return timer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", call_at)
        yield timers


async def test_each_deadline_is_kept_in_its_time_and_once() -> None:
    """CAL-1: whatever the order in which they were set; none comes early."""
    deadlines, rung = Deadlines(), list[tuple[int, bool]]()
    began = clock()
    for key, after in ((1, 0.06), (2, 0.02), (3, 0.04), (4, 0.02), (5, -1.0), (6, 0.1)):
        deadlines.put(key, began + after, lambda key=key, at=began + after: rung.append((key, clock() >= at)))
    await eventually(lambda: len(rung) >= 6, "the last of them being over")
    assert rung == [(5, True), (2, True), (4, True), (3, True), (1, True), (6, True)]


async def test_of_many_that_are_due_at_once_the_earliest_comes_first() -> None:
    """CAL-1: as they would with timers of their own, where the loop was held up."""
    deadlines, rung = Deadlines(), list[int]()
    began = clock()
    for key, before in ((1, 1.0), (2, 3.0), (3, 2.0), (4, 3.0)):
        deadlines.put(key, began - before, lambda key=key: rung.append(key))
    await eventually(lambda: len(rung) == 4, "all of them")
    assert rung == [2, 4, 3, 1]


async def test_a_deadline_that_was_moved_or_dropped_does_not_come_at_its_first_time() -> None:
    """CAL-1: progress puts it off, an answer ends it; it can also be moved to before."""
    deadlines, rung = Deadlines(), list[tuple[str, bool]]()
    began = clock()

    def put(key: int, after: float, what: str) -> None:
        deadlines.put(key, began + after, lambda: rung.append((what, clock() >= began + after)))

    put(1, 0.02, "dropped")
    put(2, 0.02, "early")
    put(3, 60, "late")
    deadlines.drop(1)
    deadlines.drop(7)
    put(2, 0.08, "put off")
    put(3, 0.04, "brought forward")
    await eventually(lambda: len(rung) == 2, "both being over")
    assert rung == [("brought forward", True), ("put off", True)]


async def test_what_one_deadline_does_may_end_and_set_others() -> None:
    """CAL-1: an error of one request is often the end of others, also of such as are due in the same moment."""
    deadlines, rung = Deadlines(), list[int]()
    now = clock()

    def first() -> None:
        rung.append(1)
        deadlines.drop(2)
        deadlines.put(3, clock() + 0.01, lambda: rung.append(30))
        deadlines.put(4, clock() + 0.02, lambda: rung.append(4))

    deadlines.put(1, now, first)
    deadlines.put(2, now, lambda: rung.append(2))
    deadlines.put(3, now, lambda: rung.append(3))
    await eventually(lambda: 4 in rung, "the last one")
    assert rung == [1, 30, 4]


async def test_a_deadline_that_fails_costs_no_other() -> None:
    """CAL-1, I4: those that are due, those that are not, and those to come are kept all the same."""
    deadlines, rung, told = Deadlines(), list[int](), list[object]()
    loop, now = asyncio.get_running_loop(), clock()
    usual = loop.get_exception_handler()

    def fail() -> None:
        raise ZeroDivisionError

    loop.set_exception_handler(lambda _loop, context: told.append(context.get("exception")))
    try:
        deadlines.put(1, now - 1, fail)
        deadlines.put(2, now, lambda: rung.append(2))
        deadlines.put(3, now + 0.02, lambda: rung.append(3))
        await eventually(lambda: rung == [2, 3], "the others")
        deadlines.put(4, clock() + 0.01, lambda: rung.append(4))
        await eventually(lambda: rung == [2, 3, 4], "one that was set later")
    finally:
        loop.set_exception_handler(usual)
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_requests_that_are_answered_leave_one_timer_and_not_one_each() -> None:
    """CAL-1: that is what this is for."""
    deadlines = Deadlines()
    with noted() as timers:
        for key in range(1000):
            deadlines.put(key, clock() + 60, lambda: None)
            deadlines.drop(key)
    assert len(timers) == 1
    deadlines.end()
    assert timers[0].cancelled()


async def test_what_is_awaited_at_the_end_still_comes() -> None:
    """CAL-1: nobody waits for ever."""
    deadlines, rung = Deadlines(), list[int]()
    deadlines.put(1, clock() + 0.01, lambda: rung.append(1))
    deadlines.put(2, clock() + 0.02, lambda: rung.append(2))
    deadlines.drop(1)
    deadlines.end()
    await eventually(lambda: rung == [2], "the other one")


# -- of the requests of a session -------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(*faults: str, heard: Any = None) -> AsyncGenerator[tuple[Link, dict[int, Any]]]:
    """A connection with what its session awaits; `heard` is told of each message before it goes out."""
    awaited: dict[int, Any] = {}

    @asynccontextmanager
    async def tapped(opening: Opening) -> AsyncGenerator[Engine]:
        nonlocal awaited
        opening.diagnostics.on_message = heard
        async with official(opening) as engine:
            awaited = cast("Session", engine)._deadlines._awaited
            yield engine

    async with linked(raw(*faults), open_engine=tapped) as link:
        assert link.state == "ready", link.connection.error
        yield link, awaited


async def test_nothing_is_awaited_of_a_request_that_is_over() -> None:
    """CAL-1: after an answer, an error, a deadline and a cancellation; what is kept would be kept as long as the session."""
    async with watched("--no-reply", "note", "--error", "grow=-32000", "--tools", "echo,note,grow") as (link, awaited):
        assert awaited == {}, "the handshake is over"
        assert await link.call("echo", {"text": "on"}) == "on"
        assert awaited == {}
        assert isinstance(await link.outcome("grow"), ServerError)
        assert awaited == {}
        assert isinstance(await link.outcome("note", patience=0.05), CallTimeout)
        assert awaited == {}
        async with anyio.create_task_group() as group:
            group.start_soon(link.outcome, "note")
            await eventually(lambda: len(awaited) == 1, "a request under way")
            group.cancel_scope.cancel()
        assert awaited == {}


async def test_a_request_that_could_not_be_sent_at_once_has_its_time_from_then_on() -> None:
    """CAL-1: a pipe that is full, or a loop that is held up, takes nothing from the server's time."""
    patience, sent = 2 * AT_ONCE, list[float]()

    def hold_up(ours: bool, message: Json) -> None:
        if ours and message.get("method") == "tools/call":
            began = clock()
            while clock() < began + 2 * patience:
                pass
            sent.append(clock())

    async with watched("--no-reply", "note", heard=hold_up) as (link, _awaited):
        outcome = await link.outcome("note", patience=patience)
        assert isinstance(outcome, CallTimeout)
        assert outcome.sent
        assert clock() >= sent[0] + patience


async def test_a_session_that_is_over_leaves_no_timer() -> None:
    """I3: whether its requests were answered, or cut by its end."""
    cut = list[object]()
    with noted() as timers:
        async with watched("--no-reply", "note") as (link, awaited), anyio.create_task_group() as group:

            async def ask() -> None:
                cut.append(await link.outcome("note", patience=50))

            assert await link.call("echo", {"text": "on"}) == "on"
            for _ in range(3):
                group.start_soon(ask)
            await eventually(lambda: len(awaited) == 3, "three under way")
            link.connection.stop()
            await link.connection.wait_closed()
        assert [type(outcome) for outcome in cut] == [ConnectionLost] * 3
    assert timers
    assert all(timer.cancelled() for timer in timers)
