"""`toolbay chat`: through a pipe, and at a pseudo-terminal with real keys."""

from __future__ import annotations

import json
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Configure, Open
from cli.terminals import PATIENCE, started, toolbay
from support import servers
from support.openai_server import OpenAIServer, Say
from support.processes import MARK, leftovers, marked, wait_until

pytest.importorskip("pydantic_ai", reason="models are an extra of their own")


def model(server: OpenAIServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": server.base_url, "TOOLBAY_MODEL": "openai:test-model"}


def users(request: dict[str, Any]) -> list[str]:
    return [message["content"] for message in request["messages"] if message["role"] == "user"]


def test_a_chat_through_a_pipe_is_one_conversation(tmp_path: Path) -> None:
    """CLI: lines from stdin; the answers alone on stdout; the conversation is kept."""
    with OpenAIServer([Say(text="one"), Say(text="two"), Say(text="three")]) as server:
        done = toolbay("chat", cwd=tmp_path, env=model(server), given="first\n\nsecond\n/new\nthird")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\nA new conversation.\nthree\n")
    assert "toolbay: model openai:test-model; 0 servers, " in done.stderr
    assert [users(request) for request in server.requests] == [["first"], ["first", "second"], ["third"]]


def test_slash_commands_tell_and_change_things(tmp_path: Path, configure: Configure) -> None:
    """CLI: /help /tools /servers /sessions /resume /model /quit; a slip gets the nearest one and costs nothing."""
    configure(sdk=servers.sdk2(), dead={"command": "no-such-command"})
    lines = ["hello", "/help", "/tools weath", "/servers", "/sessions", "/new", "/resume mine", "again", "/resume mime", "/modle"]
    lines += ["/model nobody:nothing", "/model", "/quit", "not asked"]
    with OpenAIServer([Say(text="one"), Say(text="two")]) as server:
        done = toolbay("chat", "--session", "mine", cwd=tmp_path, env=model(server), given="\n".join(lines))
    assert done.returncode == 0, done.stderr
    for shown in (
        "/resume [ID]",
        "/sdk:review",
        "mcp_sdk_weather",
        "The model is openai:test-model.",
        "Going on with mine (2 messages): hello",
    ):
        assert shown in done.stdout
    assert any(line.split()[:2] == ["dead", "failed"] for line in done.stdout.splitlines())
    assert any(line.split()[:2] == ["sdk", "ready"] for line in done.stdout.splitlines())
    assert 'error: There is no conversation "mime": did you mean mine?' in done.stderr
    assert "error: There is no command /modle: did you mean /model?" in done.stderr
    assert "nobody" in done.stderr
    assert [users(request) for request in server.requests] == [["hello"], ["hello", "again"]]


def test_a_conversation_is_exported(tmp_path: Path) -> None:
    """CLI, RUN-8: /export writes Markdown or JSON lines, and never over a file that is there."""
    lines = ["hello", "/export", "/export talk.md", "/export talk.md", "/export talk.jsonl"]
    with OpenAIServer([Say(text="Good day.")]) as server:
        done = toolbay("chat", cwd=tmp_path, env=model(server), given="\n".join(lines))
    assert done.stdout.splitlines()[1:] == ["Written to talk.md.", "Written to talk.jsonl."]
    text = (tmp_path / "talk.md").read_text(encoding="utf-8")
    assert text.index("## User") < text.index("hello") < text.index("## Assistant") < text.index("Good day.")
    assert [json.loads(line)["text"] for line in (tmp_path / "talk.jsonl").read_text(encoding="utf-8").splitlines()] == [
        "hello",
        "Good day.",
    ]
    assert "error: /export needs a file" in done.stderr
    assert "error: The conversation was not written to talk.md: File exists" in done.stderr


def test_prompts_and_resources_reach_the_model(tmp_path: Path, configure: Configure) -> None:
    """RUN-9, CAL-7: `/server:prompt words` sends the prompt; `@server:uri` puts the content into the message, or says why not."""
    configure(sdk=servers.sdk2(), raw=servers.raw("--mute-prompt"))
    lines = ["/sdk:review 1+1 Go", "what is in @sdk:notes://greeting?", "and in @sdk:notes://nothing", "/sdk:review", "/raw:mute"]
    with OpenAIServer([Say(text="reviewed"), Say(text="a greeting")]) as server:
        done = toolbay("chat", cwd=tmp_path, env=model(server), given="\n".join(lines))
    assert done.stdout == "reviewed\na greeting\n"
    assert "Please review this Go code:\n\n1+1" in users(server.requests[0])[-1]
    assert users(server.requests[1])[-1].startswith("what is in @sdk:notes://greeting?\n\nContent of @sdk:notes://greeting")
    assert "Good morning from a resource." in users(server.requests[1])[-1]
    assert "error: @sdk:notes://nothing could not be read" in done.stderr or "nothing" in done.stderr
    assert "/sdk:review needs code" in done.stderr
    assert "error: The prompt raw:mute could not be filled in, so nothing was sent" in done.stderr
    assert len(server.requests) == 2


def test_a_reload_takes_the_changed_file(tmp_path: Path, configure: Configure) -> None:
    """LIF-4, CLI: /reload says what it did; the chat sees the new tools."""
    file = configure(raw=servers.raw("--tools", "speak"))
    file.write_text(json.dumps({"tools": {**json.loads(file.read_text())["tools"], "reloadOnChange": False}}), encoding="utf-8")
    program = started("chat", cwd=tmp_path, env={"TOOLBAY_MODEL": "offline"})
    assert program.stdin is not None
    assert program.stderr is not None
    while "toolbay: model" not in program.stderr.readline():
        pass
    configure(other=servers.raw("--tools", "sing"))
    out, _err = program.communicate("/reload\n/tools sing\n/tools speak\n", timeout=PATIENCE)
    assert "Reloaded: added other; removed raw; connected other.\n" in out
    assert "mcp_other_sing" in out
    assert 'No tool has "speak" in its name.' in out


def test_a_chat_follows_its_file(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """LIF-5, G1, CLI: one line says what a reload did, or where the file breaks; SIGHUP asks for one and ends nothing."""
    file = configure(raw=servers.raw("--tools", "speak"))
    chat = at_terminal("chat", TOOLBAY_MODEL="offline")
    chat.prompted()
    configure(other=servers.raw("--tools", "sing"))
    chat.expect("(reloaded: added other; removed raw; connected other)")
    file.write_text('{"tools": {"mcpServers": {')
    chat.expect("! not reloaded: ")
    chat.expect("line 1, column 27")
    chat.expect(">")
    chat.type("/tools sing\r")
    chat.expect("mcp_other_sing")
    file.write_text(json.dumps({"tools": {"mcpServers": {"bad": {}}}, "tool": {}}))
    chat.expect("! tool: ")
    chat.expect('! Server "bad" has neither `command` nor `url`')
    chat.expect("(reloaded: removed other)")
    configure(other=servers.raw("--tools", "sing"))
    chat.expect("(reloaded: added other; connected other)")
    file.write_text(json.dumps({"tools": {"mcpServers": {}, "reloadOnChange": False}}))
    chat.expect("(reloaded: removed other)")
    configure(again=servers.raw("--tools", "hum"))
    chat.send(signal.SIGHUP)
    chat.expect("(reloaded: added again; connected again)")
    chat.expect(">")
    chat.type("/quit\r")
    assert chat.end() == 0


def test_a_terminal_that_is_closed_ends_the_chat_and_its_servers(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """LIF-1, LIF-5: that sends SIGHUP too, and nobody is there any more who could end it."""
    mark = marked()
    configure(raw=servers.raw(env=mark))
    chat = at_terminal("chat", TOOLBAY_MODEL="offline")
    chat.prompted()
    assert len(leftovers(mark[MARK])) == 1
    # 120 is what the interpreter makes of it where the last words reach nobody.
    assert chat.hang_up() in {128 + signal.SIGHUP, 120}
    wait_until(lambda: not leftovers(mark[MARK]), "the end of the server")


def test_a_turn_that_fails_ends_neither_the_chat_nor_the_conversation(tmp_path: Path) -> None:
    """CLI: what goes wrong is one sentence."""
    with OpenAIServer([Say(status=400, text="bad request"), Say(text="better")]) as server:
        done = toolbay("chat", cwd=tmp_path, env=model(server), given="first\nsecond\n")
    assert (done.returncode, done.stdout) == (0, "better\n")
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_outside_of_a_turn_leaves(tmp_path: Path) -> None:
    """CLI: exit code 130, though a read of stdin is under way."""
    program = started("chat", cwd=tmp_path, env={"TOOLBAY_MODEL": "offline"})
    assert program.stderr is not None
    while "toolbay: model" not in program.stderr.readline():
        pass
    program.send_signal(signal.SIGINT)
    program.wait(PATIENCE)
    _out, err = program.communicate()
    assert (program.returncode, err) == (130, "stopping…\n")


def test_keys_complete_commands_and_mentions_and_history_is_kept(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """CLI: Tab completes slash commands, prompts and @-mentions; the arrow key brings back what was said, in the next chat too."""
    configure(sdk=servers.sdk2())
    with OpenAIServer([Say(text="A greeting.")]) as server:
        chat = at_terminal("chat", **model(server))
        chat.prompted()
        chat.type("/mod")
        chat.expect("which model answers")
        chat.type("\t")
        chat.expect("el")
        chat.type("\r")
        chat.expect("The model is openai:test-model.")
        chat.prompted()
        chat.type("/sdk")
        chat.expect("Ask for a review")
        chat.type("\x03")
        chat.type("what is @greet\t")
        chat.expect("sdk:notes://greeting")
        chat.type(" \r")
        chat.expect("(with @sdk:notes://greeting: 1 line)")
        chat.expect("A greeting.")
        chat.prompted()
        chat.type("\x04")
        assert chat.end() == 0
    assert "Good morning" in users(server.requests[0])[-1]
    history = tmp_path / "home" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = at_terminal("chat", TOOLBAY_MODEL="offline")
    again.prompted()
    again.type("\x1b[A")
    again.expect("what is @sdk:notes://greeting")
    again.type("\x03/quit\r")
    assert again.end() == 0


def test_ctrl_c_stops_the_turn_and_keeps_the_conversation(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """RUN-4, CAL-2, CLI: the running call is cancelled on its server; the next turn knows what was said; twice at the prompt leaves."""
    journal = tmp_path / "journal"
    configure(raw=servers.raw("--journal", journal))
    slow = ("c1", "mcp_raw_slow", '{"text": "x", "steps": 2, "seconds": 600}')
    with OpenAIServer([Say(text="Wait.", calls=[slow]), Say(text="Still here.")]) as server:
        chat = at_terminal("chat", **model(server))
        chat.prompted()
        chat.type("first\r")
        chat.expect("→ mcp_raw_slow")
        chat.type("\x03")
        chat.expect("(stopped; the conversation goes on)")
        chat.prompted()
        chat.type("a slip\x03second\r")
        chat.expect("Still here.")
        chat.prompted()
        chat.type("\x03")
        chat.expect("once more")
        chat.prompted()
        chat.type("\x03")
        assert chat.end() == 130
    assert "notifications/cancelled" in journal.read_text()
    assert users(server.requests[1]) == ["first", "second"]
    assert server.violations == []


def test_what_is_typed_during_a_turn_is_taken_at_its_next_step(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """RUN-4: a message that arrives during a turn; /stop ends the turn, though the model still thinks."""
    thinking, go = threading.Event(), threading.Event()

    def think(_body: dict[str, Any]) -> Say:
        thinking.set()
        go.wait(PATIENCE)
        return Say(text="too late")

    configure(raw=servers.raw())
    slow = ("c1", "mcp_raw_slow", '{"text": "x", "steps": 1, "seconds": 5}')
    with OpenAIServer([Say(calls=[slow]), think, Say(text="Still here.")]) as server:
        chat = at_terminal("chat", **model(server))
        chat.prompted()
        chat.type("first\r")
        chat.expect("→ mcp_raw_slow")
        chat.type("and this\r/tools\r")
        chat.expect("(will be taken up at the next step)")
        chat.expect("(meanwhile only /stop is understood)")
        assert thinking.wait(PATIENCE)
        chat.type("/stop\r")
        chat.expect("(stopped; the conversation goes on)")
        go.set()
        chat.prompted()
        chat.type("second\r")
        chat.expect("Still here.")
        chat.prompted()
        chat.type("\x04")
        assert chat.end() == 0
    assert users(server.requests[1]) == ["first", "and this"]
    assert users(server.requests[2])[-1].endswith("second")
    assert server.violations == []


def test_news_appear_above_the_line_that_is_being_written(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """CLI, LIF-2: a server that dies while a person writes is told at once, and the line stays."""
    mark = tmp_path / "effects"
    configure(sdk=servers.sdk2("--effects", mark))
    with OpenAIServer([Say(calls=[("c1", "mcp_sdk_process", "{}")]), Say(text="ok"), Say(text="heard")]) as server:
        chat = at_terminal("chat", **model(server))
        chat.prompted()
        chat.type("who\r")
        chat.expect("ok")
        chat.prompted()
        chat.type("half a li")
        chat.expect("half a li")
        pid = int(str(server.requests[1]["messages"][-1]["content"]).split('"pid":')[1].split('"')[1])
        import os

        os.kill(pid, signal.SIGKILL)
        chat.expect("sdk")
        chat.expect("✓ sdk ready")
        chat.expect("half a li")
        chat.type("ne\r")
        chat.expect("heard")
        chat.prompted()
        chat.type("\x04")
        assert chat.end() == 0
    assert users(server.requests[2])[-1] == "half a line"


def test_tab_completes_what_was_typed_in_the_same_moment(tmp_path: Path, at_terminal: Open) -> None:
    """CLI: keys that come in one burst, as from a fast hand, are no less keys."""
    chat = at_terminal("chat", TOOLBAY_MODEL="offline")
    chat.prompted()
    chat.type("/mod\t\r")
    chat.expect("The model is offline.")
    chat.prompted()
    chat.type("/exit\r")
    assert chat.end() == 0


def test_resume_alone_lists_and_exit_leaves(tmp_path: Path) -> None:
    """CLI: what people try first."""
    with OpenAIServer([Say(text="one")]) as server:
        assert toolbay("run", "my first words", "--session", "mine", cwd=tmp_path, env=model(server)).returncode == 0
    done = toolbay("chat", cwd=tmp_path, env={"TOOLBAY_MODEL": "offline"}, given="/resume\n/exit\n/model\n")
    assert done.returncode == 0
    assert "my first words" in done.stdout
    assert "The model is" not in done.stdout


def test_what_the_offline_matcher_says_of_itself_is_said_once(tmp_path: Path) -> None:
    """RUN-5, CLI: on stderr, after the first answer of a chat, and not after each."""
    done = toolbay("chat", "--model", "offline", cwd=tmp_path, given="hello\nhelp\n")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 2
    assert "no language model" not in done.stdout
    assert done.stderr.count("no language model") == 1
