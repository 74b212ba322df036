"""Real requests of the real library to a small server that checks each of them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ToolCallPart

from support.openai_server import OpenAIServer, Say
from toolbay.agent.providers import ProviderModel, _response, create
from toolbay.agent.runner import Limits, Runner
from toolbay.errors import ModelError
from toolbay.events import Events, TextArrived
from toolbay.sessions import MemoryConversation
from toolbay.testing import FakeTools
from toolbay.types import Message, Model, ModelRequest, Reply, Role, TextDelta, ToolCall

pytestmark = pytest.mark.anyio

KEY = "canary-a-secret-key"


class Models:
    """Makes models, and closes their connections at the end of the test."""

    def __init__(self) -> None:
        self.made: list[ProviderModel] = []

    def at(self, base_url: str, **environ: str) -> ProviderModel:
        self.made.append(create("openai:anything", environ={"OPENAI_BASE_URL": base_url, **environ}))
        return self.made[-1]


@pytest.fixture
async def models() -> AsyncGenerator[Models]:
    models = Models()
    yield models
    for model in models.made:
        await model.aclose()


async def ask(model: Model, *messages: Message) -> tuple[str, Reply]:
    """The streamed text and the whole reply."""
    request = ModelRequest(instructions="Be brief.", messages=messages or (Message(role=Role.USER, text="hi"),))
    streamed, replies = "", list[Reply]()
    with anyio.fail_after(30):
        async for piece in model.stream(request):
            if isinstance(piece, TextDelta):
                streamed += piece.text
            else:
                replies.append(piece)
    assert len(replies) == 1
    return streamed, replies[0]


async def test_a_turn_with_two_calls_in_one_reply_completes(models: Models) -> None:
    """RUN-5: `openai:anything` with OPENAI_BASE_URL; each request is one that the API would take."""
    script = [
        Say(text="Let me add.", calls=[("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", '{"a": 3, "b": 4}')]),
        lambda body: Say(text="Sums: " + " and ".join(m["content"] for m in body["messages"] if m["role"] == "tool")),
    ]
    events = Events()
    with OpenAIServer(script) as server, events.subscribe() as seen:
        runner = Runner(models.at(server.base_url), FakeTools({"add": lambda a, b: str(a + b)}), events=events, instructions=lambda: "Add.")
        with anyio.fail_after(30):
            done = await runner.run(MemoryConversation(), "1 + 2, and 3 + 4?")
    assert server.violations == []
    assert (done.text, done.stopped, done.steps) == ("Sums: 3 and 7", "", 2)
    assert (done.usage.input_tokens, done.usage.output_tokens) == (14, 6)
    pieces = [event.text for event in seen.take_nowait() if isinstance(event, TextArrived)]
    assert len(pieces) > 3
    assert "".join(pieces) == "Let me add.Sums: 3 and 7"
    first, second = server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add"]
    assert first["messages"][0]["content"].endswith("Add.")
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    "calls",
    [
        [("same", "add", "{}"), ("same", "add", "{}")],
        [("", "add", "{}"), ("", "add", "{}")],
        [("c", "no.such tool!", "{}")],
        [("c", "x" * 100, "{}")],
        [("c", "", "{}")],
        [("c", "add", '{"a": 1, "b"')],
        [("c", "add", "[1, 2]")],
        [("c", "add", "")],
        [("c", "add", '{"a": "\\ud800", "b": 1}')],
    ],
    ids=["same ids", "no ids", "bad name", "long name", "no name", "torn arguments", "no object", "no arguments", "half a surrogate"],
)
async def test_a_call_that_is_wrong_does_not_spoil_the_requests_after_it(calls: list[tuple[str, str, str]], models: Models) -> None:
    """RUN-3: the model gets an error, and what is sent from then on is still what the API takes."""
    with OpenAIServer([Say(calls=calls), Say(text="I see.")]) as server:
        with anyio.fail_after(30):
            done = await Runner(models.at(server.base_url), FakeTools({"add": lambda a, b: a + b}), events=Events()).run(
                MemoryConversation(), "go"
            )
    assert server.violations == []
    assert (done.text, done.stopped) == ("I see.", "")
    assert all(message.is_error for message in done.messages if message.role is Role.TOOL)


async def test_text_that_cannot_be_encoded_is_sent_with_a_mark_in_its_place(models: Models) -> None:
    """RUN-5: half a surrogate pair in a result or in what a user pastes does not cost the conversation."""
    with OpenAIServer([Say(calls=[("c", "read", "{}")]), Say(text="ok")]) as server:
        runner = Runner(models.at(server.base_url), FakeTools({"read": lambda: "torn \ud83d"}), events=Events())
        done = await runner.run(MemoryConversation(), "half \ud800")
    assert (done.text, done.stopped) == ("ok", "")
    assert [message["content"] for message in server.requests[1]["messages"] if message["role"] in ("user", "tool")] == ["half ?", "torn ?"]


def test_arguments_that_were_no_object_are_sent_back_as_one() -> None:
    """RUN-3: for every provider; some take objects only, and what the model wrote stays readable in it."""
    wrong = Message(role=Role.ASSISTANT, calls=(ToolCall(id="c", name="add", arguments='{"a": 1'),))
    part = _response(wrong).parts[0]
    assert isinstance(part, ToolCallPart)
    assert part.args_as_dict() == {"invalid": '{"a": 1'}


async def test_at_the_limit_the_request_has_no_tools(models: Models) -> None:
    """RUN-1: and is still one that the API takes."""
    with OpenAIServer([Say(calls=[("c", "add", "{}")]), Say(text="Enough.")]) as server:
        runner = Runner(models.at(server.base_url), FakeTools({"add": lambda: "1"}), events=Events(), limits=Limits(max_steps=1))
        done = await runner.run(MemoryConversation(), "go")
    assert server.violations == []
    assert (done.text, done.stopped) == ("Enough.", "limit")
    assert "tools" not in server.requests[1]


async def test_providers_that_insist_are_told_of_the_tools_that_a_conversation_called() -> None:
    """RUN-1: the last request without tools declares the names, and forbids their use."""
    model = create("anthropic:claude-sonnet-4-5", environ={"ANTHROPIC_API_KEY": KEY})
    assert isinstance(model, ProviderModel)
    called = Message(role=Role.ASSISTANT, calls=(ToolCall(id="c", name="add", arguments={}),))
    parameters, settings = model._parameters(ModelRequest(instructions="", messages=(called,)))
    assert [tool.name for tool in parameters.function_tools] == ["add"]
    assert settings.get("tool_choice") == "none"


async def test_parameters_reach_the_server_as_they_are(models: Models) -> None:
    """RUN-5: schemas were normalised before; nobody rewrites them on the way."""
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "default": 3, "minimum": 1}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["a"],
        "additionalProperties": {"type": "string"},
    }
    tools = FakeTools({"add": lambda: ""})
    from dataclasses import replace

    tools.offer("add", replace(tools.tools["add"], parameters=parameters, description="Adds."))
    with OpenAIServer([Say(text="ok")]) as server:
        await Runner(models.at(server.base_url), tools, events=Events()).run(MemoryConversation(), "go")
    function = server.requests[0]["tools"][0]["function"]
    assert function["parameters"] == parameters
    assert function["description"] == "Adds."
    assert not function.get("strict")


async def test_a_key_is_sent_where_there_is_one_and_none_is_needed_at_an_own_address(models: Models) -> None:
    """RUN-5: keys come from the environment."""
    with OpenAIServer([Say(text="a"), Say(text="b")]) as server:
        await ask(models.at(server.base_url, OPENAI_API_KEY=KEY))
        await ask(models.at(server.base_url))
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in server.headers[1]["authorization"]


@pytest.mark.parametrize(
    ("say", "says"),
    [
        (Say(status=401, text=f"Incorrect API key provided: {KEY}"), "set OPENAI_API_KEY"),
        (Say(status=404, text="model not found"), "check the model's name"),
        (Say(status=429, text="slow down", headers={"retry-after": "1"}), "HTTP 429.*try again in 1 seconds"),
        (Say(status=400, text=f"temperature is wrong for {KEY}."), r"temperature is wrong for \*\*\*"),
        (Say(status=503, text="overloaded"), "again in a while"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Say) else "",
)
async def test_an_error_is_one_plain_sentence_without_the_key(say: Say, says: str, models: Models) -> None:
    """RUN-5: what happened, and what to do."""
    with OpenAIServer([say, say]) as server, pytest.raises(ModelError) as caught:
        await ask(models.at(server.base_url, OPENAI_API_KEY=KEY))
    sentence = str(caught.value)
    assert re.search(says, sentence)
    assert "openai:anything" in sentence
    assert KEY not in sentence
    assert "\n" not in sentence


async def test_a_server_that_is_not_there_is_named(models: Models) -> None:
    """RUN-5: connection refused says which address, without a password in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ModelError, match=f"at http://127.0.0.1:{port}/v1 cannot be reached") as caught:
        await ask(models.at(f"http://me:hidden@127.0.0.1:{port}/v1"))
    assert "hidden" not in str(caught.value)


async def test_a_stream_that_breaks_off_is_an_error_or_what_had_arrived_and_never_a_hang(models: Models) -> None:
    """RUN-1: the conversation goes on either way."""
    with OpenAIServer([Say(text="A long answer in many pieces", break_off=True)]) as server:
        with anyio.fail_after(30):
            done = await Runner(models.at(server.base_url), FakeTools({}), events=Events()).run(MemoryConversation(), "go")
    assert done.stopped == "error" or "A long answer".startswith(done.text)


@pytest.mark.parametrize(
    ("spec", "environ", "says"),
    [
        ("gpt-5", {}, "provider:model"),
        (":gpt-5", {}, "provider:model"),
        ("openai:", {}, "provider:model"),
        ("nobody:gpt-5", {}, "anthropic:claude"),
        ("openai:gpt-5", {}, "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-4-5", {}, "ANTHROPIC_API_KEY"),
        ("google:gemini-2.5-pro", {}, "GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("openai:x", {"OPENAI_BASE_URL": "localhost"}, "no address"),
    ],
)
def test_a_model_that_cannot_be_made_says_what_is_missing(spec: str, environ: dict[str, str], says: str) -> None:
    """RUN-5: a malformed name, an unknown provider, a key that is not there."""
    with pytest.raises(ModelError, match=says):
        create(spec, environ=environ)


@pytest.mark.parametrize(
    ("spec", "environ"),
    [
        ("openai:gpt-5-mini", {"OPENAI_API_KEY": KEY}),
        ("anthropic:claude-sonnet-4-5", {"ANTHROPIC_API_KEY": KEY}),
        ("google:gemini-2.5-pro", {"GEMINI_API_KEY": KEY}),
        ("openrouter:meta/llama", {"OPENROUTER_API_KEY": KEY}),
        ("ollama:llama3.2", {}),
    ],
)
def test_models_of_many_providers_are_made_from_the_given_environment(spec: str, environ: dict[str, str]) -> None:
    """RUN-5: any model through `provider:model`."""
    assert create(spec, environ=environ).name == spec


async def test_what_a_model_must_get_back_unchanged_is_sent_back(models: Models) -> None:
    """RUN-5: a reply with calls is repeated with its reasoning where the server sent some."""
    with OpenAIServer([Say(reasoning="Add them.", calls=[("c", "add", '{"b": 1, "a": 2}')]), Say(text="done")]) as server:
        await Runner(models.at(server.base_url), FakeTools({"add": lambda a, b: a + b}), events=Events()).run(MemoryConversation(), "go")
    assert server.requests[1]["messages"][2]["reasoning_content"] == "Add them."


def test_the_library_is_not_loaded_before_a_model_is_made() -> None:
    """RUN-5: and without it the sentence names the extra."""
    program = (
        "import sys, toolbay.agent.providers as p, toolbay.agent.local, toolbay.agent.runner\n"
        "assert 'pydantic_ai' not in sys.modules and 'httpx2' not in sys.modules\n"
        "sys.modules['pydantic_ai.exceptions'] = None\n"
        "try: p.create('openai:x', environ={'OPENAI_API_KEY': 'k'})\n"
        "except p.ModelError as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert "install toolbay[models]" in ran.stdout


def test_the_checking_server_finds_what_is_wrong() -> None:
    """RUN-5: the judge is judged: each broken rule is a violation."""
    from support.openai_server import check

    def call(call_id: str, arguments: str = "{}", name: str = "add") -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    user = {"role": "user", "content": "hi"}

    def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": "m", "messages": [user, *messages], **more}

    def answer(call_id: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": "x"}

    def says(*calls: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": list(calls)}

    assert check(json.loads(json.dumps(body(says(call("a"), call("b")), answer("a"), answer("b"))))) == []
    for bad in (
        body(says(call("a"))),
        body(says(call("a"), call("b")), answer("b"), answer("a")),
        body(says(call("a")), user, answer("a")),
        body(says(call("a"), call("a")), answer("a"), answer("a")),
        body(says(call("a", "nonsense")), answer("a")),
        body(says(call("a", name="a.b")), answer("a")),
        body(answer("a")),
        body({"role": "robot", "content": "x"}),
        body(tools=[]),
        body(tools=[{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]),
    ):
        assert check(bad) != [], bad
