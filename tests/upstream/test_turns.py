"""Who may call a server now: the cap, the line behind it, and what a wait costs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import servers
from support.connections import BOUND, linked, raw
from support.processes import eventually
from toolbay.errors import CallTimeout, Crowded
from toolbay.types import Json, Outcome, outcome_of
from toolbay.upstream.engine import Budget, Engine, Opening
from toolbay.upstream.memory import MemoryServer
from toolbay.upstream.turns import Turns

pytestmark = pytest.mark.anyio


async def hold(turns: Turns, end: anyio.Event, taken: list[int], number: int, *, at_once: int = 1, in_line: int = 100) -> None:
    await turns.take(at_once=at_once, in_line=in_line, deadline=anyio.current_time() + 60)
    try:
        taken.append(number)
        await end.wait()
    finally:
        turns.leave(at_once)


async def test_turns_come_in_the_order_of_asking() -> None:
    """C3: fair: nobody who came later is served before."""
    turns, taken, ends = Turns("s"), list[int](), [anyio.Event() for _ in range(20)]
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(hold, turns, ends[number], taken, number)
            await anyio.wait_all_tasks_blocked()
        assert (turns.under_way, turns.waiting) == (1, 19)
        for number in range(20):
            assert taken == list(range(number + 1))
            ends[number].set()
            await anyio.wait_all_tasks_blocked()
    assert (turns.under_way, turns.waiting) == (0, 0)


async def test_who_leaves_the_line_takes_nothing_along() -> None:
    """C2, C3: cancelled while waiting, or in the very moment of its turn: the next one gets it."""
    turns, taken, end = Turns("s"), list[int](), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(hold, turns, end, taken, 0)
        await anyio.wait_all_tasks_blocked()
        leaving = [anyio.CancelScope() for _ in range(10)]
        for scope in leaving:

            async def leave(scope: anyio.CancelScope = scope) -> None:
                with scope:
                    await hold(turns, end, taken, -1)

            group.start_soon(leave)
        await anyio.wait_all_tasks_blocked()
        for scope in leaving[:5]:
            scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert turns.waiting == 5
        end.set()
        for scope in leaving[5:]:
            scope.cancel()
    assert (turns.under_way, turns.waiting) == (0, 0)
    with anyio.fail_after(1):
        await hold(turns, end, taken, 1)
    assert taken[-1] == 1


async def test_a_full_line_refuses_at_once() -> None:
    """C3: overflow is a fast error, and nothing was sent."""
    turns, end = Turns("files"), anyio.Event()
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(hold, turns, end, [], number)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Crowded, match="files has 1 calls under way and 2 more wait") as caught:
            await hold(turns, end, [], 9, in_line=2)
        assert outcome_of(caught.value) is Outcome.NOT_EXECUTED
        end.set()


async def test_a_turn_that_does_not_come_in_time_is_a_timeout_of_what_was_not_sent() -> None:
    """CAL-1, C3: the time in line counts."""
    turns, end = Turns("files"), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(hold, turns, end, [], 0)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(CallTimeout, match="files was busy with 1 other calls") as caught:
            await turns.take(at_once=1, in_line=5, deadline=anyio.current_time() + 0.05)
        assert outcome_of(caught.value) is Outcome.NOT_EXECUTED
        assert turns.waiting == 0
        end.set()


async def test_a_cap_that_grew_lets_more_in_as_soon_as_one_leaves() -> None:
    """LIF-4: limits may change while calls run."""
    turns, taken, first, end = Turns("s"), list[int](), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(hold, turns, first, taken, 0)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 5):

            async def wide(number: int = number) -> None:
                await hold(turns, end, taken, number, at_once=3)

            group.start_soon(wide)
        await anyio.wait_all_tasks_blocked()
        assert turns.under_way == 3
        first.set()
        end.set()
    assert sorted(taken) == [0, 1, 2, 3, 4]


@given(st.lists(st.sampled_from(["come", "end", "leave"]), max_size=60), st.integers(1, 4))
async def test_never_more_than_the_cap_and_never_idle_with_a_line(steps: list[str], at_once: int) -> None:
    """C3: whatever comes, ends and leaves, in any order."""
    turns, taken = Turns("s"), list[int]()
    ends = list[anyio.Event]()
    scopes = list[anyio.CancelScope]()
    async with anyio.create_task_group() as group:
        for step in steps:
            if step == "come":
                end, scope = anyio.Event(), anyio.CancelScope()
                ends.append(end)
                scopes.append(scope)

                async def call(end: anyio.Event = end, scope: anyio.CancelScope = scope) -> None:
                    with scope:
                        await hold(turns, end, taken, len(ends), at_once=at_once)

                group.start_soon(call)
            elif step == "end" and ends:
                ends[len(taken) % len(ends)].set()
            elif scopes:
                scopes[len(taken) % len(scopes)].cancel()
            await anyio.wait_all_tasks_blocked()
            assert turns.under_way <= at_once
            assert not turns.waiting or turns.under_way == at_once
        group.cancel_scope.cancel()
    assert (turns.under_way, turns.waiting) == (0, 0)


class Noting:
    """An engine that keeps how much time each call to it was given."""

    def __init__(self, engine: Engine, given: list[Budget]) -> None:
        self._engine = engine
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def request(self, method: str, params: Json, *, budget: Budget, **more: Any) -> Json:
        if method == "tools/call":
            self._given.append(budget)
        return await self._engine.request(method, params, budget=budget, **more)


async def test_the_time_in_line_is_a_part_of_what_a_call_may_take() -> None:
    """CAL-1: a server that is busy and then silent holds nobody longer than one that is only silent."""
    server, end, given = MemoryServer(), anyio.Event(), list[Budget]()

    async def hold(_arguments: Json) -> str:
        await end.wait()
        return "held"

    @asynccontextmanager
    async def noting(opening: Opening) -> AsyncGenerator[Engine]:
        async with server.open(opening) as engine:
            yield cast("Engine", Noting(engine, given))

    server.add_tool("hold", hold)
    async with linked(servers.stdio("in-memory"), open_engine=noting, max_concurrent=1) as link, anyio.create_task_group() as group:
        group.start_soon(link.outcome, "hold")
        await eventually(lambda: given, "the first call")
        group.start_soon(link.outcome, "hold")
        await eventually(lambda: link.connection.turns.waiting, "the second call in line")
        began = anyio.current_time()
        await anyio.sleep(0.05)
        waited = anyio.current_time() - began
        end.set()
        await eventually(lambda: len(given) == 2, "the second call")
        assert given[1].first <= BOUND - waited
        assert given[1].ceiling <= 60 - waited


async def test_a_server_is_never_given_more_calls_at_once_than_it_may_have(tmp_path: Path) -> None:
    """C3: `maxConcurrent`: the others wait here, within their own time, and what had no turn never reached the server."""
    seen = tmp_path / "effects"
    async with linked(raw("--effects", seen, "--no-reply", "note"), max_concurrent=2, max_queued=3) as link:
        outcomes: list[str | Exception] = []
        async with anyio.create_task_group() as group:

            async def ask(patience: float) -> None:
                outcomes.append(await link.outcome("note", patience=patience))

            for _ in range(2):
                group.start_soon(ask, 3.0)
            await eventually(lambda: seen.exists() and seen.read_text().count("note") == 2, "two calls at the server")
            for _ in range(3):
                group.start_soon(ask, 0.3)
            await eventually(lambda: link.connection.turns.waiting == 3, "three in line")
            assert isinstance(await link.outcome("note"), Crowded)
            await eventually(lambda: len(outcomes) == 3, "those in line have had enough")
            assert all(isinstance(one, CallTimeout) and not one.sent for one in outcomes)
        assert seen.read_text().count("note") == 2
        assert [getattr(one, "sent", None) for one in outcomes[3:]] == [True, True]
        assert await link.call("echo", {"text": "on"}) == "on"
