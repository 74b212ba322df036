"""The main job, whole: a question goes through the command line or the library, real servers, a model, and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from support import servers
from support.canaries import assert_clean
from support.openai_server import OpenAIServer, Say
from toolbay import App, MemoryConversation, Message, ModelRequest, Reply, Role, ToolCall, parse
from toolbay.agent.context import validate
from toolbay.config.models import Config
from toolbay.events import CallFinished, CallStarted
from toolbay.testing import FakeModel

pytestmark = pytest.mark.anyio


def configured(**entries: servers.Entry) -> Config:
    return parse({"tools": {"mcpServers": entries}})


def toolbay(*arguments: str | Path, config: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The command line as a person runs it, with a configuration of its own."""
    file = folder / "toolbay.json"
    file.write_text(json.dumps({"tools": {"mcpServers": config}}))
    argv = [sys.executable, "-m", "toolbay", "--config", str(file), *map(str, arguments)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=110, env={**os.environ, **env}, stdin=subprocess.DEVNULL
    )
    assert_clean(done.stdout + done.stderr, "the output of a command")
    return done


def repository(folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def six(tmp_path: Path) -> dict[str, servers.Entry]:
    """Six servers: four that work, one whose command does not exist, one that never answers `initialize`."""
    return {
        "files": servers.filesystem(servers.SAMPLE),
        "memory": servers.memory(tmp_path / "memory.json"),
        "git": servers.git(repository(tmp_path / "repo")),
        "time": servers.time(),
        "dead": {"command": "there-is-no-such-server"},
        "silent": servers.raw("--hang", "initialize"),
    }


async def test_a_question_is_answered_while_a_dead_and_a_silent_server_are_not_waited_for(tmp_path: Path) -> None:
    """TRA-2: a dead or hanging server delays nobody; the silent one is still starting when the answer is there."""
    config = parse({"tools": {"mcpServers": six(tmp_path)}})
    with anyio.fail_after(60):
        async with App(config, model="offline") as app:
            await app.settle()
            turn = await app.ask("What time is it in Asia/Tokyo?")
            states = {name: status.state for name, status in app.servers.items()}
    assert "Asia/Tokyo" in turn.text
    assert states == {"files": "ready", "memory": "ready", "git": "ready", "time": "ready", "dead": "failed", "silent": "connecting"}


def test_the_command_line_answers_with_the_tools_of_those_servers_that_are_there(tmp_path: Path) -> None:
    """TRA-2, CFG-6: six servers, one dead and one silent; the answer comes from the others and both are named."""
    ran = toolbay("run", "--model", "offline", "What time is it in Asia/Tokyo?", config=six(tmp_path), folder=tmp_path, env={})
    assert ran.returncode == 0, ran.stderr
    assert "Asia/Tokyo" in ran.stdout
    assert "mcp_time_get_current_time" in ran.stderr
    assert "there-is-no-such-server" in ran.stderr
    assert "silent" in ran.stderr


QUESTION = "read page 3 of report.pdf"
FACT = "Ingrid Solheim"
"""What page 3 of the sample report says and no other page does."""


def pdf_entry() -> servers.Entry:
    return {**servers.pdf(), "cwd": str(servers.SAMPLE)}


async def test_a_page_of_a_pdf_goes_the_whole_way_with_a_scripted_model() -> None:
    """RUN-1, SCH-2, SCH-4, REN-1: message, context, model, call, argument check, server, rendering, answer; station by station."""
    wrong: dict[str, Any] = {"sources": [{"pages": [3]}, 7]}
    right: dict[str, Any] = {"sources": json.dumps([{"path": "report.pdf", "pages": [3]}])}

    def answer(request: ModelRequest) -> Reply:
        return Reply(text=f"Page 3 says: {request.messages[-1].text}")

    model = FakeModel(
        [
            Reply(calls=(ToolCall(id="1", name="mcp_pdf_read_pdf", arguments=wrong),)),
            Reply(calls=(ToolCall(id="2", name="mcp_pdf_read_pdf", arguments=right),)),
            answer,
        ]
    )
    conversation = MemoryConversation()
    with anyio.fail_after(60):
        async with App(configured(pdf=pdf_entry()), model=model) as app:
            await app.settle()
            with app.events.subscribe() as events:
                turn = await app.ask(QUESTION, conversation=conversation)
                seen = events.take_nowait()

    first, second, third = model.requests
    assert first.messages[-1] == Message(role=Role.USER, text=QUESTION)
    offered = {tool.name: tool for tool in first.tools}
    assert offered["mcp_pdf_read_pdf"].parameters["type"] == "object"

    refused = second.messages[-1]
    assert refused.is_error
    assert "sources" in refused.text

    started = [event for event in seen if isinstance(event, CallStarted)]
    finished = [event for event in seen if isinstance(event, CallFinished)]
    assert [event.server for event in started] == ["pdf", "pdf"]
    assert [event.is_error for event in finished] == [True, False]

    rendered = third.messages[-1]
    assert rendered.call_id == third.messages[-2].calls[0].id
    assert FACT in rendered.text
    assert "48,250 kroner" not in rendered.text, "only the page that was asked for"
    assert "{'" not in rendered.text

    assert FACT in turn.text
    assert turn.stopped == ""
    assert validate(conversation.messages) == []


async def test_a_page_of_a_pdf_goes_the_whole_way_with_the_offline_model() -> None:
    """RUN-5: the same walk with the built-in model, which finds the tool, fills its arguments and shows the result."""
    conversation = MemoryConversation()
    with anyio.fail_after(60):
        async with App(configured(pdf=pdf_entry(), time=servers.time()), model="offline") as app:
            await app.settle()
            turn = await app.ask(QUESTION, conversation=conversation)
    question, asked, result, answered = conversation.messages
    assert question.text == QUESTION
    (call,) = asked.calls
    assert call.name == "mcp_pdf_read_pdf"
    assert isinstance(call.arguments, dict)
    (source,) = call.arguments["sources"]
    assert source["path"] == "report.pdf"
    assert [str(page) for page in source["pages"]] == ["3"]
    assert FACT in result.text
    assert not result.is_error
    assert FACT in answered.text
    assert answered.text == turn.text
    assert "no language model" not in turn.text
    assert "no language model" in turn.note
    assert validate(conversation.messages) == []


def test_a_model_behind_an_openai_compatible_address_uses_two_tools_in_one_reply(tmp_path: Path) -> None:
    """RUN-2, RUN-5: with OPENAI_BASE_URL a turn with two calls in one reply completes, and no request breaks the API's rules."""
    arguments = json.dumps({"timezone": "Asia/Tokyo"})
    script = [
        Say(calls=[("a", "mcp_time_get_current_time", arguments), ("b", "mcp_files_read_text_file", json.dumps({"path": "notes.md"}))]),
        Say(text="It is late in Tokyo, and the lights are counted."),
    ]
    entries = {"time": servers.time(), "files": servers.filesystem(servers.SAMPLE)}
    with OpenAIServer(script) as server:
        ran = toolbay(
            "run", "--model", "openai:test-model", "How late is it, and what do the notes say?",
            config=entries, folder=tmp_path, env={"OPENAI_BASE_URL": server.base_url},
        )  # fmt: skip
        requests = server.requests
        violations = server.violations
    assert ran.returncode == 0, ran.stderr
    assert "the lights are counted" in ran.stdout
    assert violations == []
    results = [message for message in requests[-1]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == [call["id"] for call in requests[-1]["messages"][-3]["tool_calls"]]
    assert "Asia/Tokyo" in results[0]["content"]
    assert "Harbour Lights" in results[1]["content"]
