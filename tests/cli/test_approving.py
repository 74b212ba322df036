"""Approval at the terminal: what is shown, which keys mean what, and what happens where nobody can be asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli.conftest import Configure, Open
from cli.terminals import toolbay
from support import servers
from support.openai_server import OpenAIServer, Say

pytest.importorskip("pydantic_ai", reason="models are an extra of their own")

LONG = "x" * 5_000 + " THE-END"
NOTE = ("c1", "mcp_desk_note", json.dumps({"text": "once"}))
AGAIN = ("c2", "mcp_desk_note", json.dumps({"text": "twice"}))


def desk(folder: Path) -> servers.Entry:
    entry = servers.stdio(sys.executable, "-IS", servers.SERVERS / "raw_server.py", "--effects", folder / "effects")
    return {**entry, "approval": "writes", "trusted": True}


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def model(server: OpenAIServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": server.base_url, "TOOLBAY_MODEL": "openai:test-model"}


def test_where_nobody_can_be_asked_the_answer_is_no(tmp_path: Path, configure: Configure) -> None:
    """RUN-7: with pipes nothing is called, and a sentence says how to approve; reading goes on."""
    configure(desk=desk(tmp_path))
    calls = [("c0", "mcp_desk_echo", '{"text": "hello"}'), NOTE]
    with OpenAIServer([Say(calls=calls), Say(text="I may not.")]) as server:
        done = toolbay("run", "note it", cwd=tmp_path, env=model(server))
    assert done.stdout == "I may not.\n"
    assert effects(tmp_path) == ["echo"]
    assert "toolbay run --yes" in done.stderr
    assert "`approval`" in done.stderr
    assert "refused" in server.requests[1]["messages"][-1]["content"]


def test_yes_approves_every_call_of_one_run(tmp_path: Path, configure: Configure) -> None:
    """RUN-7: `--yes`, and nothing is remembered of it."""
    configure(desk=desk(tmp_path))
    with OpenAIServer([Say(calls=[NOTE]), Say(text="Done."), Say(calls=[NOTE]), Say(text="Not done.")]) as server:
        assert toolbay("run", "--yes", "note it", cwd=tmp_path, env=model(server)).stdout == "Done.\n"
        assert toolbay("run", "note it", cwd=tmp_path, env=model(server)).stdout == "Not done.\n"
    assert effects(tmp_path) == ["note"]


def test_a_call_by_hand_is_not_asked_about(tmp_path: Path, configure: Configure) -> None:
    """RUN-7: `toolbay call` is a person's own word."""
    configure(desk=desk(tmp_path))
    assert toolbay("call", "desk.note", "text=hi", cwd=tmp_path).stdout == "hi\n"


def test_attack_15_a_person_at_a_terminal_sees_the_whole_call_and_decides(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """SEC-15, RUN-7: the exact tool, the server and 5,000 characters to their end; `n` refuses, what is no answer asks again."""
    configure(desk=desk(tmp_path))
    call = ("c1", "mcp_desk_note", json.dumps({"text": LONG}))
    with OpenAIServer([Say(calls=[call]), Say(text="I was refused.")]) as server:
        terminal = at_terminal("run", "note it", **model(server))
        terminal.expect("May note of the server desk be called? (it may change something)")
        shown = terminal.expect("n: no")
        assert "".join(shown.split()).count("x" * 5_000) == 1
        assert "THE-END" in shown
        terminal.type("maybe\n")
        terminal.expect("n: no")
        terminal.type("n\n")
        terminal.expect("I was refused.")
        assert terminal.end() == 0
    assert effects(tmp_path) == []


def test_always_is_remembered_by_the_next_run(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """RUN-7: `a` at the terminal; the next run calls without a question, even with pipes."""
    configure(desk=desk(tmp_path))
    with OpenAIServer([Say(calls=[NOTE]), Say(text="Done."), Say(calls=[NOTE]), Say(text="Done again.")]) as server:
        terminal = at_terminal("run", "note it", **model(server))
        terminal.expect("a: always")
        terminal.type("a\n")
        terminal.expect("Done.")
        assert terminal.end() == 0
        assert toolbay("run", "note it", cwd=tmp_path, env=model(server)).stdout == "Done again.\n"
    assert effects(tmp_path) == ["note", "note"]


def test_a_chat_asks_at_its_prompt_and_remembers_for_the_session(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """RUN-7: `s` holds for the chat; the answer is no message to the model."""
    configure(desk=desk(tmp_path))
    with OpenAIServer([Say(calls=[NOTE]), Say(calls=[AGAIN]), Say(text="Both noted.")]) as server:
        terminal = at_terminal("chat", **model(server))
        terminal.prompted()
        terminal.type("note it twice\r")
        terminal.expect("n: no")
        terminal.type("s\n")
        terminal.expect("Both noted.")
        terminal.prompted()
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert effects(tmp_path) == ["note", "note"]
    said = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert said == ["note it twice"]
