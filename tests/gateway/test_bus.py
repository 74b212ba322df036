"""The bus inside a process: what is asked for, who answers, and what happens where nobody does."""

from __future__ import annotations

import anyio
import pytest

from toolbay.errors import ConfigError, ToolbayError
from toolbay.gateway.bus import INBOX, Bus, Control, LocalBus, Request
from toolbay.types import Json

pytestmark = pytest.mark.anyio


async def outcome(bus: Bus, name: str = "reload", *, within: float = 10.0, **params: object) -> Json | str:
    """The acknowledgement, or the error's text."""
    try:
        return await bus.control(Control(name=name, params=params), timeout=within)
    except ToolbayError as error:
        return f"{type(error).__name__}: {error}"


async def test_a_control_message_is_acknowledged_with_what_came_of_it() -> None:
    """LIF-5: the answer of who did it, or its refusal with the reason."""
    bus, told = LocalBus(), list[Json | str]()
    with anyio.fail_after(10), bus.inbox(["reload"]) as inbox:
        async with anyio.create_task_group() as group:

            async def ask(*, good: bool) -> None:
                told.append(await outcome(bus, good=good))

            for good in (True, False):
                group.start_soon(lambda good=good: ask(good=good))
            for _ in range(2):
                request = await anext(inbox)
                if request.control.params["good"]:
                    request.answer({"added": ["a"]})
                else:
                    request.refuse(ConfigError("line 3 is wrong"))
    assert told == [{"added": ["a"]}, "ConfigError: line 3 is wrong"]


async def test_where_nobody_answers_that_is_said_at_once() -> None:
    """LIF-5: no message waits for somebody who may never come."""
    bus = LocalBus()
    with anyio.fail_after(5):
        assert await outcome(bus) == (
            "NotAnswered: Nobody answers 'reload' here, so it was not done: the program that does it is not running."
        )


async def test_a_timeout_says_whether_it_was_begun() -> None:
    """LIF-5: 15 s by default; what was not begun by then is never begun."""
    bus = LocalBus()
    with anyio.fail_after(10), bus.inbox(["reload"]) as inbox:
        told = await outcome(bus, within=0.05, n=1)
        assert told == "NotAnswered: 'reload' was not answered within 0.05 s: it was not begun, and will not be."
        late: list[Json | str] = []
        taken: list[Request] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                late.append(await outcome(bus, within=0.05, n=2))

            group.start_soon(ask)
            taken.append(await anext(inbox))
        assert taken[0].control.params == {"n": 2}, "the one that nobody waits for is gone"
        assert late == ["NotAnswered: 'reload' was not answered within 0.05 s: it was begun and goes on."]
        taken[0].answer({})
        async with anyio.create_task_group() as group:
            group.start_soon(outcome, bus)
            (await anext(inbox)).answer({})


async def test_an_asker_who_leaves_takes_the_message_back() -> None:
    """CAL-8, LIF-5: a cancelled caller's message is not begun."""
    bus = LocalBus()
    with anyio.fail_after(10), bus.inbox(["reload"]) as inbox:
        with anyio.move_on_after(0.05):
            await bus.control(Control(name="reload", params={"n": 1}))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: outcome(bus, n=2))
            request = await anext(inbox)
            assert request.control.params == {"n": 2}
            request.answer({})


async def test_the_inbox_is_bounded() -> None:
    """GW-1: one more than fits is told so at once, and costs the others nothing."""
    bus, answers = LocalBus(), list[Json | str]()
    with anyio.fail_after(10), bus.inbox(["reload"]) as inbox:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await outcome(bus))

            for _ in range(INBOX + 1):
                group.start_soon(ask)
            for _ in range(INBOX):
                (await anext(inbox)).answer({"done": True})
    assert answers.count({"done": True}) == INBOX
    assert [text for text in answers if isinstance(text, str)] == [
        f"NotAnswered: 'reload' was not done: {INBOX} requests wait before it. Ask again later."
    ]


async def test_who_closes_the_inbox_leaves_nobody_waiting() -> None:
    """LIF-1: neither those who wait nor the one that was taken."""
    bus, told = LocalBus(), list[Json | str]()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                told.append(await outcome(bus))

            with bus.inbox(["reload"]) as inbox:
                group.start_soon(ask)
                group.start_soon(ask)
                await anext(inbox)
    assert told == ["NotAnswered: 'reload' was not answered: the program that does it is closing."] * 2
    assert "Nobody answers" in str(await outcome(bus))


async def test_a_name_has_one_inbox() -> None:
    """LIF-5: two who would both reload are a mistake that is told."""
    bus = LocalBus()
    with bus.inbox(["reload", "other"]):
        with pytest.raises(ToolbayError, match="'other' is answered by somebody else"):
            bus.inbox(["other"]).__enter__()
        with bus.inbox(["third"]):
            pass
    with bus.inbox(["other"]):
        pass
