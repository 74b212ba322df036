"""The loop against a scripted model and tools that are functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import anyio.lowlevel
import pytest

from toolbay.agent.context import validate
from toolbay.agent.runner import Limits, Runner, Turn
from toolbay.errors import ModelError, ToolbayError
from toolbay.events import Event, Events, TextArrived, TurnFinished, TurnStarted
from toolbay.sessions import MemoryConversation
from toolbay.testing import FakeModel, FakeTools, Scripted
from toolbay.types import Message, ModelRequest, Reply, Role, TextDelta, ToolCall, Usage

pytestmark = pytest.mark.anyio


def call(name: str, call_id: str = "", **arguments: object) -> ToolCall:
    return ToolCall(id=call_id or f"id-{name}", name=name, arguments=arguments)


def calls(*wanted: ToolCall, text: str = "") -> Reply:
    return Reply(text=text, calls=wanted)


async def turn(script: list[Scripted], tools: FakeTools, conversation: MemoryConversation | None = None, **limits: float) -> Turn:
    with anyio.fail_after(20):
        runner = Runner(FakeModel(script), tools, events=Events(), limits=Limits(**limits))  # type: ignore[arg-type]
        return await runner.run(conversation or MemoryConversation(), "go")


async def test_a_turn_calls_tools_until_the_model_answers() -> None:
    """RUN-1: the model's calls are run, their results sent back, and its answer is the turn's."""
    model = FakeModel(
        [
            Reply(calls=(call("add", a=1, b=2),), usage=Usage(input_tokens=5, output_tokens=2)),
            lambda request: Reply(text=f"It is {request.messages[-1].text}.", usage=Usage(input_tokens=9, output_tokens=3)),
        ]
    )
    conversation = MemoryConversation()
    done = await Runner(model, FakeTools({"add": lambda a, b: str(a + b)}), events=Events()).run(conversation, "1 + 2?")
    assert (done.text, done.steps, done.stopped, done.error) == ("It is 3.", 2, "", "")
    assert done.usage == Usage(input_tokens=14, output_tokens=5)
    assert [message.role for message in done.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert tuple(conversation.messages) == done.messages
    assert [tool.name for tool in model.requests[0].tools] == ["add"]


async def test_the_next_turn_sees_the_one_before() -> None:
    """RUN-1: a conversation goes on."""
    conversation = MemoryConversation()
    model = FakeModel(["Hello.", "Still here."])
    runner = Runner(model, FakeTools({}), events=Events(), instructions=lambda: "Speak plainly.")
    await runner.run(conversation, "one")
    second = await runner.run(conversation, "two")
    assert [message.text for message in model.requests[1].messages] == ["one", "Hello.", "two"]
    assert [message.text for message in second.messages] == ["two", "Still here."]
    assert model.requests[1].instructions.endswith("Speak plainly.")


async def test_what_a_model_says_of_itself_is_no_part_of_the_answer() -> None:
    """RUN-5: it is kept with the turn, not in the conversation, and only where the model has the last word."""
    conversation = MemoryConversation()
    again = Reply(calls=(call("again"),), note="I called.")
    tools = FakeTools({"again": lambda: "more"})
    done = await turn([again, Reply(text="Done.", note="I am no model.")], tools, conversation)
    assert (done.text, done.note, conversation.messages[-1].text) == ("Done.", "I am no model.", "Done.")
    limited = await turn([again, Reply(text="Not done.", note="I am no model.")], tools, max_steps=1)
    assert (limited.text, limited.note, limited.stopped) == ("Not done.", "I am no model.", "limit")
    assert (await turn([again, again], tools, max_steps=1)).note == ""
    assert (await turn([again], tools)).note == "", "an error is nobody's answer"


async def test_at_the_limit_of_steps_the_model_is_asked_once_more_without_tools() -> None:
    """RUN-1: after `max_steps` requests there is one last answer without tools."""
    model = FakeModel([*(calls(call("again")) for _ in range(3)), "That is all I know."])
    done = await Runner(model, FakeTools({"again": lambda: "more"}), events=Events(), limits=Limits(max_steps=3)).run(
        MemoryConversation(), "go"
    )
    assert (done.text, done.stopped, done.steps) == ("That is all I know.", "limit", 4)
    assert [len(request.tools) for request in model.requests] == [1, 1, 1, 0]
    assert validate(done.messages) == []


async def test_a_model_that_calls_even_without_tools_still_ends_the_turn() -> None:
    """RUN-1: the last answer runs no calls."""
    tools = FakeTools({"again": lambda: "more"})
    done = await turn([calls(call("again"))] * 3, tools, max_steps=2)
    assert done.stopped == "limit"
    assert "limit of 2 steps" in done.text
    assert len(tools.calls) == 2
    assert validate(done.messages) == []


async def test_at_the_limit_of_time_a_running_call_is_stopped_and_the_model_has_the_last_word() -> None:
    """RUN-1: `max_seconds` holds for calls that hang."""
    tools = FakeTools({"hang": anyio.sleep_forever})
    done = await turn([calls(call("hang"), call("next")), "It hung."], tools, max_seconds=0.05)
    assert (done.text, done.stopped) == ("It hung.", "limit")
    stopped, not_run = [message for message in done.messages if message.role is Role.TOOL]
    assert "limit of 0.05 seconds" in stopped.text
    assert "may have taken effect" in stopped.text
    assert not_run.text.startswith("not run")


async def test_neighbours_that_only_read_run_side_by_side() -> None:
    """RUN-2: three reading calls are all under way before the first one ends."""
    under_way = 0
    together = anyio.Event()

    async def read(n: int) -> str:
        nonlocal under_way
        under_way += 1
        if under_way == 3:
            together.set()
        await together.wait()
        return str(n)

    done = await turn([calls(*(call("read", f"c{n}", n=n) for n in range(3))), "ok"], FakeTools({"read": read}, read_only=["read"]))
    assert [message.text for message in done.messages if message.role is Role.TOOL] == ["0", "1", "2"]


async def test_no_more_calls_run_side_by_side_than_allowed() -> None:
    """RUN-2: `parallel_calls` bounds them."""
    running = most = 0

    async def read() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return ""

    await turn([calls(*(call("read", f"c{n}") for n in range(9))), "ok"], FakeTools({"read": read}, read_only=["read"]), parallel_calls=3)
    assert most == 3


async def test_calls_that_write_run_alone_and_in_order() -> None:
    """RUN-2: a writing call waits for all before it, and all after wait for it."""
    log: list[str] = []

    def logged(name: str) -> Callable[[], object]:
        async def run() -> str:
            log.append(f"{name}+")
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            log.append(f"{name}-")
            return name

        return run

    names = ["r1", "r2", "w1", "w2", "r3"]
    tools = FakeTools({name: logged(name) for name in names}, read_only=["r1", "r2", "r3"])
    done = await turn([calls(*map(call, names)), "ok"], tools)
    assert log == ["r1+", "r2+", "r1-", "r2-", "w1+", "w1-", "w2+", "w2-", "r3+", "r3-"]
    assert [message.name for message in done.messages if message.role is Role.TOOL] == names


async def test_results_are_in_the_order_of_the_calls_whatever_ends_first() -> None:
    """RUN-2: the second call ends before the first."""
    second_done = anyio.Event()

    async def slow() -> str:
        await second_done.wait()
        return "slow"

    async def quick() -> str:
        second_done.set()
        return "quick"

    done = await turn([calls(call("slow"), call("quick")), "ok"], FakeTools({"slow": slow, "quick": quick}, read_only=["slow", "quick"]))
    assert [message.text for message in done.messages if message.role is Role.TOOL] == ["slow", "quick"]


async def test_a_call_to_an_unknown_tool_or_with_arguments_that_are_no_object_is_an_error_for_the_model() -> None:
    """RUN-3: the source's error reaches the model, and the turn goes on."""
    wrong = ToolCall(id="x", name="read", arguments="{not json")
    done = await turn([calls(call("reed"), wrong, call("read", "y", other=1)), "I see."], FakeTools({"read": lambda: "text"}))
    unknown, no_object, misfit = [message for message in done.messages if message.role is Role.TOOL]
    assert unknown.is_error
    assert "Did you mean 'read'?" in unknown.text
    assert no_object.is_error
    assert "not a JSON object" in no_object.text
    assert misfit.is_error
    assert done.text == "I see."


async def test_text_arrives_in_pieces_and_the_turn_is_announced() -> None:
    """RUN-4: the events of a turn, in order; the text of them is the answer."""
    events = Events()
    seen: list[Event] = []
    with events.listen(seen.append):
        await Runner(FakeModel(["A longer answer."]), FakeTools({}), events=events).run(MemoryConversation(id="s1"), "hi")
    assert seen[0] == TurnStarted(session="s1", text="hi")
    assert seen[-1] == TurnFinished(session="s1", text="A longer answer.", steps=1)
    pieces = [event.text for event in seen if isinstance(event, TextArrived)]
    assert len(pieces) > 1
    assert "".join(pieces) == "A longer answer."


class Whole:
    """A model that does not stream: only what its function yields."""

    name = "fake:whole"

    def __init__(self, *pieces: TextDelta | Reply | BaseException) -> None:
        self._pieces = pieces

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


async def test_a_model_that_does_not_stream_is_shown_all_the_same() -> None:
    """RUN-4: where no pieces came, the whole text is one."""
    events = Events()
    seen: list[Event] = []
    with events.listen(seen.append):
        await Runner(Whole(Reply(text="All at once.")), FakeTools({}), events=events).run(MemoryConversation(), "hi")
    assert [event.text for event in seen if isinstance(event, TextArrived)] == ["All at once."]


async def test_a_message_posted_during_a_turn_is_taken_at_its_next_step() -> None:
    """RUN-4: it stands behind the results of the step that was running."""
    conversation = MemoryConversation()

    def work() -> str:
        assert runner.post(conversation, "Only the first one, please.")
        return "done"

    model = FakeModel([calls(call("work")), "The first one it is."])
    runner = Runner(model, FakeTools({"work": work}), events=Events())
    done = await runner.run(conversation, "go")
    assert [message.text for message in model.requests[1].messages] == ["go", "", "done", "Only the first one, please."]
    assert done.text == "The first one it is."


async def test_a_message_posted_while_the_model_answers_is_answered_too() -> None:
    """RUN-4: no posted message is left lying."""
    conversation = MemoryConversation()

    def answer(request: ModelRequest) -> str:
        runner.post(conversation, "And then?")
        return "First."

    model = FakeModel([answer, "Then that."])
    runner = Runner(model, FakeTools({}), events=Events())
    done = await runner.run(conversation, "go")
    assert done.text == "Then that."
    assert [message.text for message in conversation.messages] == ["go", "First.", "And then?", "Then that."]


async def test_a_message_posted_to_no_turn_waits_for_the_next_one() -> None:
    """RUN-4: post says that nobody is there; nothing is lost."""
    conversation = MemoryConversation()
    runner = Runner(FakeModel(["ok"]), FakeTools({}), events=Events())
    assert not runner.post(conversation, "Mind the gap.")
    await runner.run(conversation, "go")
    assert [message.text for message in conversation.messages] == ["Mind the gap.", "go", "ok"]


async def test_turns_of_one_conversation_follow_each_other() -> None:
    """RUN-4: two at once do not mix."""
    conversation = MemoryConversation()
    runner = Runner(FakeModel([calls(call("work")), "one", "two"]), FakeTools({"work": anyio.lowlevel.checkpoint}), events=Events())
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, conversation, "first")
            group.start_soon(runner.run, conversation, "second")
    assert [message.text for message in conversation.messages if message.role is not Role.TOOL] == ["first", "", "one", "second", "two"]


async def test_two_peoples_conversations_never_meet() -> None:
    """RUN-4: what is said to one is not taken by another's turn, and none waits for another, even where their ids are equal."""
    assert MemoryConversation().id != MemoryConversation().id
    alice, bob = MemoryConversation(id="same"), MemoryConversation(id="same")
    both = anyio.Event()
    answering: list[str] = []

    async def answer(request: ModelRequest) -> str:
        answering.append(request.messages[-1].text)
        if len(answering) == 2:
            both.set()
        await both.wait()
        return "Heard."

    runner = Runner(FakeModel([answer] * 3), FakeTools({}), events=Events())
    assert not runner.post(bob, "Bob's secret")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, alice, "I am Alice")
            group.start_soon(runner.run, bob, "I am Bob")
    assert [message.text for message in alice.messages] == ["I am Alice", "Heard."]
    assert [message.text for message in bob.messages] == ["Bob's secret", "I am Bob", "Heard."]


async def test_what_a_listener_raises_is_not_laid_at_the_models_door() -> None:
    """RUN-1: a listener that breaks on the text of an answer does not make a failure of it."""
    events = Events()

    def broken(event: Event) -> None:
        if isinstance(event, TextArrived):
            raise BrokenPipeError

    with events.listen(broken):
        done = await Runner(FakeModel(["Hello."]), FakeTools({}), events=events).run(MemoryConversation(), "go")
    assert (done.text, done.error) == ("Hello.", "")


class Stopping(MemoryConversation):
    """A conversation with a point at which it can be cancelled on either side of keeping a group."""

    async def append(self, *messages: Message) -> None:
        await anyio.lowlevel.checkpoint()
        await super().append(*messages)
        await anyio.lowlevel.checkpoint()


BATCH: list[Scripted] = [
    calls(call("r1"), call("r2"), call("w1"), call("w2"), text="Looking."),
    calls(call("w1", "again"), call("r1", "too")),
    "Here you are.",
]


def batch_tools(log: list[str]) -> FakeTools:
    def logged(name: str) -> Callable[[], object]:
        async def run() -> str:
            log.append(name)
            for _ in range(5 if name == "r2" else 2):
                await anyio.lowlevel.checkpoint()
            return f"{name} done"

        return run

    return FakeTools({name: logged(name) for name in ("r1", "r2", "w1", "w2")}, read_only=["r1", "r2"])


def check_stopped(messages: Sequence[Message], log: list[str]) -> None:
    assert validate(messages) == []
    told = [message.text for message in messages if message.role is Role.TOOL]
    assert not any("unknown" in text for text in told)
    # What ran is never said not to have run, and what did not run is never said to have.
    assert sum(not text.startswith("not run") for text in told) == len(log)


@pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
async def test_a_turn_can_be_cancelled_at_any_moment(*, native: bool) -> None:
    """RUN-4, CAL-2: at each turn of the event loop; the conversation is valid, the cancellation propagates, a new turn runs."""
    notes: set[str] = set()
    beginnings: set[tuple[str, ...]] = set()
    for moment in range(1000):
        conversation, log = Stopping(), list[str]()
        events = Events()
        seen: list[Event] = []
        runner = Runner(FakeModel(BATCH), batch_tools(log), events=events)
        with events.listen(seen.append):
            is_done = await (run_task if native else run_scope)(runner, conversation, moment)
        check_stopped(conversation.messages, log)
        if is_done:
            break
        if seen:
            assert isinstance(seen[-1], TurnFinished)
            assert seen[-1].stopped == "cancelled"
        told = [message.text for message in conversation.messages if message.role is Role.TOOL]
        notes.update(told)
        beginnings.add(tuple(told[:3]))
        after = await Runner(FakeModel(["Fine."]), FakeTools({}), events=Events()).run(conversation, "And now?")
        assert after.text == "Fine."
    else:
        pytest.fail("the turn never ended")
    assert moment > 20
    assert {"not run: cancelled", "cancelled by the user; it may have taken effect", "r1 done"} <= notes
    # What a call came to is kept, though its neighbour was still running.
    assert ("r1 done", "cancelled by the user; it may have taken effect", "not run: cancelled") in beginnings


async def run_scope(runner: Runner, conversation: MemoryConversation, moment: int) -> bool:
    """Cancel the scope around a turn after so many rounds of the loop; whether the turn was done before."""
    is_done = False
    async with anyio.create_task_group() as group:

        async def work() -> None:
            nonlocal is_done
            await runner.run(conversation, "go")
            is_done = True

        group.start_soon(work)
        for _ in range(moment):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    return is_done


async def run_task(runner: Runner, conversation: MemoryConversation, moment: int) -> bool:
    """The same with asyncio's own cancellation."""
    task = asyncio.get_running_loop().create_task(runner.run(conversation, "go"))
    for _ in range(moment):
        await anyio.lowlevel.checkpoint()
    is_done = task.done()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    assert is_done
    return True


async def test_text_that_a_user_saw_before_stopping_stays_in_the_conversation() -> None:
    """RUN-4: the next turn may speak of it."""
    conversation = MemoryConversation()
    events = Events()
    with anyio.CancelScope() as scope, events.listen(lambda event: scope.cancel() if isinstance(event, TextArrived) else None):
        await Runner(FakeModel(["Once upon a time"]), FakeTools({}), events=events).run(conversation, "A story!")
    assert scope.cancelled_caught
    assert [message.text for message in conversation.messages] == ["A story!", "Once"]


@pytest.mark.parametrize("leak", [asyncio.CancelledError(), RuntimeError("secret-in-text")])
async def test_what_leaks_out_of_a_call_costs_that_call_only(leak: BaseException) -> None:
    """CAL-2: a cancellation that nobody asked for, or any exception, becomes an error result."""

    class Leaking(FakeTools):
        async def call(self, *args: object) -> object:  # type: ignore[override]
            await anyio.lowlevel.checkpoint()
            raise leak

    tools = Leaking({"read": lambda: ""}, read_only=["read"])
    done = await turn([calls(call("read", "a"), call("read", "b"), call("other")), "Oh."], tools)
    assert done.text == "Oh."
    told = [message for message in done.messages if message.role is Role.TOOL]
    assert [message.is_error for message in told] == [True, True, True]
    assert not any("secret" in message.text for message in told)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([ModelError("No key: set SOME_KEY.")], "No key: set SOME_KEY."),
        ([TextDelta(text="Hal"), ModelError("It went away.")], "It went away."),
        ([TextDelta(text="Hal")], "ended its reply in the middle"),
        ([Reply(text="a"), Reply(text="b")], "replied twice"),
        ([ValueError("secret")], "ValueError"),
        ([asyncio.CancelledError()], "broke off"),
        ([Reply()], "answered with nothing"),
    ],
)
async def test_a_model_that_fails_ends_the_turn_and_leaves_nothing_half(pieces: list[TextDelta | Reply | BaseException], says: str) -> None:
    """RUN-1: the turn says why in one sentence; the conversation holds what the user said and can go on."""
    conversation = MemoryConversation()
    with anyio.fail_after(20):
        done = await Runner(Whole(*pieces), FakeTools({}), events=Events()).run(conversation, "go")
    assert done.stopped == "error"
    assert says in done.error
    assert done.text == done.error
    assert "secret" not in done.text
    assert [message.text for message in conversation.messages] == ["go"]


async def test_a_model_that_fails_after_calls_leaves_their_results() -> None:
    """RUN-1: what was done is kept."""
    done = await turn([calls(call("work")), ModelError("Gone.")], FakeTools({"work": lambda: "worked"}))
    assert (done.stopped, done.text, done.steps) == ("error", "Gone.", 2)
    assert done.messages[-1].text == "worked"
    assert validate(done.messages) == []


async def test_a_conversation_that_cannot_be_kept_ends_the_turn_with_the_reason() -> None:
    """RUN-8: a full disk is a sentence, not a crash, and no call is left without an answer."""

    class Full(MemoryConversation):
        async def append(self, *messages: Message) -> None:
            await super().append(*messages)
            if messages[0].calls:
                raise ToolbayError("The disk is full.")

    conversation = Full()
    done = await turn([calls(call("work"))], FakeTools({"work": lambda: "worked"}), conversation)
    assert (done.stopped, done.text) == ("error", "The disk is full.")
    assert validate(conversation.messages) == []
    assert conversation.messages[-1].text.startswith("not run")


async def test_ids_that_are_empty_or_used_twice_are_made_unique() -> None:
    """RUN-1: within a reply and across the conversation."""
    tools = FakeTools({"read": lambda: "x"}, read_only=["read"])
    twice = [ToolCall(id=i, name="read", arguments={}) for i in ("", "", "a", "a")]
    conversation = MemoryConversation()
    done = await turn([calls(*twice), calls(*twice), "ok"], tools, conversation)
    assert validate(conversation.messages) == []
    assert len({item.id for message in done.messages for item in message.calls}) == 8
    assert conversation.messages[1].calls[2].id == "a"


async def test_two_hundred_calls_in_one_reply_are_all_answered() -> None:
    """RUN-2: many calls are only many."""
    many = [ToolCall(id="same", name="read", arguments={"n": n}) for n in range(200)]
    done = await turn([calls(*many), "ok"], FakeTools({"read": lambda n: n}, read_only=["read"]))
    assert [message.text for message in done.messages if message.role is Role.TOOL] == [str(n) for n in range(200)]


async def test_an_empty_reply_is_asked_for_once_more() -> None:
    """RUN-1: models sometimes say nothing; nothing is not kept."""
    done = await turn([Reply(text="  "), "Sorry, here I am."], FakeTools({}))
    assert done.text == "Sorry, here I am."
    assert len(done.messages) == 2


async def test_tools_that_come_up_during_a_turn_are_offered_at_the_next_step_sorted() -> None:
    """RUN-1: the definitions of a step are the snapshot of its beginning."""

    def start() -> str:
        tools.offer("a_new_one", lambda: "new")
        return "started"

    tools = FakeTools({"start": start})
    model = FakeModel([calls(call("start")), "ok"])
    await Runner(model, tools, events=Events()).run(MemoryConversation(), "go")
    assert [[tool.name for tool in request.tools] for request in model.requests] == [["start"], ["a_new_one", "start"]]


async def test_a_conversation_that_was_left_open_is_closed_first() -> None:
    """RUN-8: calls that nobody answered are told to have an unknown outcome before the turn begins."""
    conversation = MemoryConversation([Message(role=Role.USER, text="go"), Message(role=Role.ASSISTANT, calls=(call("work"),))])
    done = await turn(["I will check."], FakeTools({}), conversation)
    assert "outcome is unknown" in done.messages[0].text
    assert validate(conversation.messages) == []
