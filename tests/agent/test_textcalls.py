"""Calls that a model wrote as text."""

from __future__ import annotations

import json

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay.agent.runner import Runner
from toolbay.agent.textcalls import TextCalls, extracted
from toolbay.events import Events
from toolbay.sessions import MemoryConversation
from toolbay.testing import FakeModel, FakeTools

CALL = json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}})
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (CALL, ""),
        (f"  [{CALL}]\n", ""),
        (json.dumps({"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}), ""),
        (json.dumps({"name": "add", "parameters": {"a": 1, "b": 2}}), ""),
        (f"I will add.\n<tool_call>\n{CALL}\n</tool_call>", "I will add."),
        (f"<tool_call>{CALL}", ""),
        (f"Let me see:\n\n```json\n{CALL}\n```\nDone.", "Let me see:\n\n\nDone."),
    ],
)
def test_a_written_call_of_a_known_tool_is_a_call(text: str, rest: str) -> None:
    """RUN-10: fenced, tagged, or a bare object; what else was said stays."""
    left, calls = extracted(text, {"add"})
    assert (left, [(call.name, call.arguments) for call in calls]) == (rest, [("add", {"a": 1, "b": 2})])
    assert extracted(text, {"subtract"}) == (text, ())


@pytest.mark.parametrize(
    "text", ["", "add", '{"name": "add", "arguments": 5}', f'{{"config": {CALL}}}', f"The call {CALL} would do.", f"[{CALL}, 1]"]
)
def test_anything_else_is_text(text: str) -> None:
    """RUN-10: an object that is no call, or stands within a sentence, is what the model said."""
    assert extracted(text, {"add"}) == (text, ())


@settings(max_examples=100, deadline=None)
@given(st.text() | JSON_VALUES.map(json.dumps), st.sampled_from(["{}", "```json\n{}\n```", "<tool_call>{}</tool_call>"]))
def test_no_text_breaks_it(text: str, form: str) -> None:
    """RUN-10: whatever a model writes is text, or calls of known tools."""
    written = form.replace("{}", text)
    left, calls = extracted(written, {"add"})
    assert all(call.name == "add" for call in calls)
    assert calls or left == written


@pytest.mark.anyio
async def test_a_turn_runs_what_was_written() -> None:
    """RUN-10: the loop runs it like any call, and the model sees its result."""
    model = TextCalls(FakeModel([f"<tool_call>{CALL}</tool_call>", lambda request: f"It is {request.messages[-1].text}."]))
    with anyio.fail_after(20):
        done = await Runner(model, FakeTools({"add": lambda a, b: str(a + b)}), events=Events()).run(MemoryConversation(), "1 + 2?")
    assert (done.text, done.steps) == ("It is 3.", 2)
