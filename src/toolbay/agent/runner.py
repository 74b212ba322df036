"""The loop: ask the model, run what it calls, append, repeat until it answers or a limit is met.

The conversation is valid at every moment that somebody else can see it, or is made so before `run` ends, however it
ends: each call that a model asked for is answered exactly once, in order, even if the answer is that it was stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import anyio

from toolbay._aio import bounded
from toolbay.agent.context import build
from toolbay.errors import ModelError, ToolbayError
from toolbay.events import Events, TextArrived, TurnFinished, TurnStarted
from toolbay.sessions import UNKNOWN_OUTCOME, open_calls, unanswered
from toolbay.types import (
    CallContext,
    Message,
    Model,
    ModelRequest,
    Outcome,
    Reply,
    Role,
    TextDelta,
    Tool,
    ToolCall,
    ToolResult,
    ToolSource,
    Usage,
)

T = TypeVar("T")

_LAST_WORD_SECONDS = 60.0
_SETTLE_SECONDS = 5.0
_LAST_WORD = "This turn has met its limit. Tools are not available any more: answer now with what you know, and say what is missing."


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one turn may use; see `AgentConfig` for the units and the reasons."""

    max_steps: int = 25
    max_seconds: float = 600.0
    parallel_calls: int = 8
    history_tokens: int = 60_000


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a turn came to: the answer, or why there is none.

    `stopped` is empty, `limit` (the answer was given without tools) or `error` (`error` is the sentence that says why,
    and `text` is the same); a turn that was cancelled raises, and says `cancelled` in its `TurnFinished` event. `steps`
    counts model requests, `messages` is what the turn appended. `note` is what the model says of itself, to people: the
    built-in one that it is no language model. It is no part of the answer.
    """

    text: str
    steps: int
    stopped: str
    usage: Usage
    messages: tuple[Message, ...]
    error: str = ""
    note: str = ""


class Conversation(Protocol):
    """Where messages are kept. `toolbay.sessions` has one on disk and one in memory."""

    @property
    def id(self) -> str: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def append(self, *messages: Message) -> None:
        """Add the group as a whole or not at all.

        Raises:
            ToolbayError: it could not be kept.
        """
        ...


@dataclass(kw_only=True)
class _Desk:
    """What belongs to a conversation while turns of it run or wait.

    It is found by the conversation itself, and not by its id, which another one may have as well; holding it here keeps
    its place in memory, by which it is found, from being another's.
    """

    conversation: Conversation
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    posted: list[str] = field(default_factory=list[str])
    turns: int = 0

    def take(self) -> list[Message]:
        taken = [Message(role=Role.USER, text=text) for text in self.posted]
        self.posted.clear()
        return taken


@dataclass(kw_only=True)
class _State:
    """How far a turn has come. `arrived` is the text of a reply that is not whole yet."""

    conversation: Conversation
    desk: _Desk
    began: int
    steps: int = 0
    text: str = ""
    note: str = ""
    arrived: list[str] = field(default_factory=list[str])
    started: set[str] = field(default_factory=set[str])
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    input_tokens: int = 0
    output_tokens: int = 0


class Runner:
    """Runs turns of conversations with one model and one source of tools.

    Any number of conversations at once; turns of one conversation follow each other. `instructions` is asked before
    each model request.
    """

    def __init__(
        self,
        model: Model,
        tools: ToolSource,
        *,
        events: Events,
        limits: Limits = Limits(),
        instructions: Callable[[], str] = lambda: "",
    ) -> None:
        self._model = model
        self._tools = tools
        self._events = events
        self._limits = limits
        self._instructions = instructions
        self._desks: dict[int, _Desk] = {}

    def post(self, conversation: Conversation, text: str) -> bool:
        """Say `text` to a turn that is under way: it is taken at the turn's next step.

        False where no turn runs; it is then taken at the beginning of the next one.
        """
        desk = self._desks.setdefault(id(conversation), _Desk(conversation=conversation))
        if text.strip():
            desk.posted.append(text)
        return desk.turns > 0

    async def run(self, conversation: Conversation, text: str) -> Turn:
        """One turn: the user says `text`, the model works until it answers.

        Cancelling ends it at once: calls that run are cancelled, each call of the last reply is answered by what it came
        to or by a note that it was stopped, and the cancellation propagates.
        """
        desk = self._desks.setdefault(id(conversation), _Desk(conversation=conversation))
        desk.turns += 1
        try:
            async with desk.lock:
                return await self._turn(_State(conversation=conversation, desk=desk, began=len(conversation.messages)), text)
        finally:
            desk.turns -= 1
            if not desk.turns and not desk.posted:
                self._desks.pop(id(conversation), None)

    async def _turn(self, state: _State, text: str) -> Turn:
        session = state.conversation.id
        self._events.publish(TurnStarted(session=session, text=text))
        stopped = "error"
        try:
            stopped = await self._work(state, text)
        except ToolbayError as error:
            state.text, state.note = str(error), ""
            await self._settle(state, "not run: the turn ended with an error", "the turn ended with an error; it may have taken effect")
        except anyio.get_cancelled_exc_class():
            stopped = "cancelled"
            state.text = "".join(state.arrived)
            await bounded(_SETTLE_SECONDS, lambda: self._stop(state))
            raise
        finally:
            self._events.publish(TurnFinished(session=session, text=state.text, steps=state.steps, stopped=stopped))
        usage = Usage(input_tokens=state.input_tokens, output_tokens=state.output_tokens)
        appended = tuple(state.conversation.messages[state.began :])
        error = state.text if stopped == "error" else ""
        return Turn(text=state.text, steps=state.steps, stopped=stopped, usage=usage, messages=appended, error=error, note=state.note)

    async def _work(self, state: _State, text: str) -> str:
        """Run the turn to its end; why it stopped short, or nothing."""
        limits = self._limits
        with anyio.move_on_after(limits.max_seconds) as time:
            left = [unanswered(call, UNKNOWN_OUTCOME) for call in open_calls(state.conversation.messages)]
            said = [*state.desk.take(), *([Message(role=Role.USER, text=text)] if text.strip() else [])]
            await state.conversation.append(*left, *said)
            if await self._steps(state):
                return ""
        what = f"{limits.max_seconds:g} seconds" if time.cancelled_caught else f"{limits.max_steps} steps"
        await self._settle(
            state, f"not run: the turn met its limit of {what}", f"stopped at the turn's limit of {what}; it may have taken effect"
        )
        state.text, state.note = f"Stopped at the limit of {what} for one turn, before there was an answer.", ""
        with anyio.move_on_after(_LAST_WORD_SECONDS):
            reply = await self._ask(state, {}, _LAST_WORD)
            if reply.text.strip():
                state.text, state.note = reply.text, reply.note
        await state.conversation.append(Message(role=Role.ASSISTANT, text=state.text))
        return "limit"

    async def _steps(self, state: _State) -> bool:
        """Step until the model has answered; False where the steps are used up first."""
        was_empty = False
        while state.steps < self._limits.max_steps:
            tools = dict(self._tools.tools)
            reply = await self._ask(state, tools)
            is_empty = not reply.calls and not reply.text.strip()
            if is_empty and was_empty:
                raise ModelError(f"The model {self._model.name} answered with nothing, twice; ask again, or choose another model.")
            was_empty = is_empty
            if is_empty:
                continue
            calls = _with_own_ids(reply.calls, state.conversation.messages)
            await state.conversation.append(Message(role=Role.ASSISTANT, text=reply.text, calls=calls))
            state.arrived.clear()
            state.text, state.note = reply.text, reply.note
            await self._run_calls(state, calls, tools)
            posted = state.desk.take()
            if posted:
                await state.conversation.append(*posted)
            elif not calls:
                return True
        return False

    async def _ask(self, state: _State, tools: Mapping[str, Tool], also: str = "") -> Reply:
        """One model request, its text published as it arrives."""
        state.steps += 1
        state.arrived.clear()
        instructions = "\n\n".join(part for part in (self._instructions(), also) if part)
        request = build(instructions, state.conversation.messages, tools.values(), history_tokens=self._limits.history_tokens)
        reply = await self._receive(state, request)
        if not state.arrived:
            self._show(state, reply.text)
        state.input_tokens += reply.usage.input_tokens
        state.output_tokens += reply.usage.output_tokens
        return reply

    async def _receive(self, state: _State, request: ModelRequest) -> Reply:
        reply: Reply | None = None
        async with _closing(self._pieces(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextDelta):
                    self._show(state, piece.text)
                elif reply is None:
                    reply = piece
                else:
                    raise ModelError(f"The model {self._model.name} replied twice to one request; ask again.")
        if reply is None:
            raise ModelError(f"The model {self._model.name} ended its reply in the middle; ask again.")
        return reply

    async def _pieces(self, request: ModelRequest) -> AsyncGenerator[TextDelta | Reply]:
        """What the model streams. Whatever goes wrong in it is a `ModelError`; what its listeners raise is not its fault."""
        name, before = self._model.name, _cancellations()
        try:
            async with _closing(self._model.stream(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except ToolbayError:
            raise
        except anyio.get_cancelled_exc_class():
            if _is_cancelled(before):
                raise
            raise ModelError(f"The model {name} broke off its reply; ask again.") from None
        except Exception as error:  # a model's library may raise anything, and it must not cost the conversation
            raise ModelError(f"The model {name} failed in a way that was not foreseen ({type(error).__name__}); ask again.") from error

    def _show(self, state: _State, text: str) -> None:
        if text:
            state.arrived.append(text)
            self._events.publish(TextArrived(session=state.conversation.id, text=text))

    async def _run_calls(self, state: _State, calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> None:
        """Run a reply's calls and append what they came to, in their order (RUN-2)."""
        state.started.clear()
        state.results.clear()
        places = anyio.Semaphore(self._limits.parallel_calls)

        async def run_one(call: ToolCall) -> None:
            async with places:
                state.started.add(call.id)
                state.results[call.id] = await self._call(call)

        for group in _groups(calls, tools):
            if len(group) == 1:
                await run_one(group[0])
            else:
                async with anyio.create_task_group() as side_by_side:
                    for call in group:
                        side_by_side.start_soon(run_one, call, name=f"call {call.name}")
            await state.conversation.append(*(_answer(call, state.results[call.id]) for call in group))

    async def _call(self, call: ToolCall) -> ToolResult:
        """Call a tool. A source promises not to raise; one that breaks its word costs this call only (CAL-2)."""
        before = _cancellations()
        try:
            return await self._tools.call(call.name, call.arguments, CallContext(call_id=call.id))
        except anyio.get_cancelled_exc_class():
            if _is_cancelled(before):
                raise
            why = "it was broken off from within"
        except Exception as error:  # see above; the class says what, the text might hold a secret
            why = f"{type(error).__name__}"
        return ToolResult(text=f"The call to {call.name} failed ({why}); it may have taken effect.", is_error=True, outcome=Outcome.UNKNOWN)

    async def _stop(self, state: _State) -> None:
        await self._settle(state, "not run: cancelled", "cancelled by the user; it may have taken effect")
        if state.text.strip():
            # What the user has seen may be spoken of.
            with contextlib.suppress(ToolbayError):
                await state.conversation.append(Message(role=Role.ASSISTANT, text=state.text))

    async def _settle(self, state: _State, not_run: str, stopped: str) -> None:
        """Answer the calls that are still open: with their result where there is one, else with what is known."""
        answers: list[Message] = []
        for call in open_calls(state.conversation.messages):
            result = state.results.get(call.id)
            note = stopped if call.id in state.started else not_run
            answers.append(_answer(call, result) if result else unanswered(call, note))
        if answers:
            # A disk that refuses was reported, or will be at the next message; memory has it.
            with contextlib.suppress(ToolbayError):
                await state.conversation.append(*answers)


def _answer(call: ToolCall, result: ToolResult) -> Message:
    return Message(role=Role.TOOL, text=result.text, call_id=call.id, name=call.name, is_error=result.is_error, artifacts=result.artifacts)


def _groups(calls: Iterable[ToolCall], tools: Mapping[str, Tool]) -> Iterator[list[ToolCall]]:
    """Neighbours that only read together, every other call alone."""

    def reads(call: ToolCall) -> bool:
        return call.name in tools and tools[call.name].hints.read_only

    for is_reading, neighbours in itertools.groupby(calls, reads):
        if is_reading:
            yield list(neighbours)
        else:
            yield from ([call] for call in neighbours)


def _with_own_ids(calls: Sequence[ToolCall], messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls with ids that no other call of the conversation has: models repeat them, or leave them out."""
    used = {call.id for message in messages for call in message.calls}
    own: list[ToolCall] = []
    for call in calls:
        call_id = call.id
        if not call_id or call_id in used:
            call_id = next(new for number in itertools.count(1) if (new := f"{call.id or 'call'}_{number}") not in used)
        used.add(call_id)
        own.append(ToolCall(id=call_id, name=call.name, arguments=call.arguments))
    return tuple(own)


@contextlib.asynccontextmanager
async def _closing(pieces: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T]]:
    """Close a generator where it is left, in the task that ran it; other iterators have nothing to close."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await cast("AsyncGenerator[T]", pieces).aclose()


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _is_cancelled(before: int) -> bool:
    """Whether a cancellation that was caught is meant for us, and did not leak out of a library (CAL-2)."""
    return anyio.current_effective_deadline() == -math.inf or _cancellations() > before
