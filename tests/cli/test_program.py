"""The program: fast help, its own options anywhere, sentences and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Configure, Open
from cli.terminals import environment, toolbay
from support import servers
from toolbay.cli.program import hoisted

HEAVY = ("mcp", "httpx2", "prompt_toolkit", "pydantic", "pydantic_ai", "ruamel", "rich", "anyio", "toolbay.app", "toolbay.config")


def test_help_loads_nothing_that_only_commands_need(tmp_path: Path) -> None:
    """CLI: `toolbay --help` answers at once."""
    script = (
        "import sys, toolbay.cli\n"
        "code = toolbay.cli.main(['--help'])\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded: {loaded}' if loaded or code else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("run", "chat", "tools", "call", "prompts", "resources", "test", "add", "remove", "enable", "disable", "config"):
        assert f"\n  {command} " in done.stdout


def test_the_version_is_told(tmp_path: Path) -> None:
    """CLI: `--version`."""
    done = toolbay("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "toolbay", "")
    assert done.stdout.split()[1][0].isdigit()


@pytest.mark.parametrize(
    "words", [["nonsense"], ["tools", "--nonsense"], ["call"], ["--config"], ["run", "x", "--session", "a", "--continue"]]
)
def test_wrong_usage_has_its_own_exit_code(words: list[str], tmp_path: Path) -> None:
    """CLI: exit code 2 is usage, said on stderr."""
    done = toolbay(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error:" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_programs_options_may_stand_after_a_command(tmp_path: Path, configure: Configure) -> None:
    """CLI: `--config` is accepted after the command too."""
    other = configure(time={"command": "x"}).rename(tmp_path / "other.json")
    for words in (
        ["--config", str(other), "config", "path"],
        ["config", "path", "--config", str(other)],
        ["config", "path", f"--config={other}"],
    ):
        assert toolbay(*words, cwd=tmp_path).stdout.strip() == str(other)


def test_what_belongs_to_a_command_stays_there() -> None:
    """CLI: a value is never taken for an option, and nothing behind -- is touched."""
    valued = frozenset({"--args"})
    assert hoisted(["call", "x", "--model", "m", "-q"], valued) == ["--model", "m", "-q", "call", "x"]
    assert hoisted(["call", "x", "--args", "--config", "-v"], valued) == ["-v", "call", "x", "--args", "--config"]
    assert hoisted(["add", "x", "--", "cmd", "--config", "y", "-v"], valued) == ["add", "x", "--", "cmd", "--config", "y", "-v"]
    assert hoisted(["run", "--model"], valued) == ["--model", "run"]


@given(st.lists(st.sampled_from(["run", "--config", "--args", "-v", "--", "word", "--config=x", "--json", "-q"]), max_size=8))
def test_moving_options_loses_and_invents_nothing(words: list[str]) -> None:
    """CLI: the same words, those of commands in the same order."""
    moved = hoisted(words, frozenset({"--args"}))
    assert sorted(moved) == sorted(words)
    if "--" in words:
        behind = words[words.index("--") :] if "--config" not in words and "--args" not in words else []
        assert moved[len(moved) - len(behind) :] == behind


def test_an_error_is_a_sentence_and_a_traceback_is_for_those_who_ask(tmp_path: Path) -> None:
    """CLI, CFG-6: a file that does not parse is told in one line; -v -v and TOOLBAY_DEBUG say where."""
    (tmp_path / "toolbay.yaml").write_text("tools: [")
    done = toolbay("tools", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "toolbay.yaml" in done.stderr
    assert "Traceback" in toolbay("tools", "-v", "-v", cwd=tmp_path).stderr
    assert "Traceback" in toolbay("tools", cwd=tmp_path, env={"TOOLBAY_DEBUG": "1"}).stderr


@pytest.mark.parametrize("words", [["call", "canary-configured"], ["doctor", "canary-configured"], ["test", "canary-configured"]])
def test_what_went_wrong_is_told_without_the_secrets_of_the_configuration(tmp_path: Path, configure: Configure, words: list[str]) -> None:
    """SEC, OBS-2: the sentence and the traceback, whatever stands in them."""
    configure(time={**servers.time(), "env": {"API_TOKEN": "canary-configured"}})
    done = toolbay(*words, "-v", "-v", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "***" in done.stderr.partition("error: ")[2]
    assert "canary-configured" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["-q", "tools", "--json"], ["-q", "--model", "offline", "run"], ["-q", "--model", "offline", "chat"]])
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, configure: Configure, words: list[str]) -> None:
    """CLI: `| head` ends quietly, and ends a turn that nobody reads."""
    configure(time=servers.time())
    program = subprocess.Popen(
        [sys.executable, "-m", "toolbay", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdin is not None
    program.stdout.close()
    program.stdin.write("hello")
    program.stdin.close()
    said = program.stderr.read()
    program.stderr.close()
    program.wait(60)
    assert (program.returncode, said) == (0, "")


def test_colours_and_movement_are_for_terminals_that_want_them(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """CLI: progress on a terminal only; NO_COLOR and --no-color take the colours away."""
    configure(dead={"command": "no-such-command"}, time=servers.time())
    plain = toolbay("tools", "-v", cwd=tmp_path)
    assert "\x1b" not in plain.stdout + plain.stderr
    assert "starting" not in plain.stderr
    shown = at_terminal("tools")
    assert shown.end() == 3
    assert "starting dead, time" in shown.seen.replace("time, dead", "dead, time") or "starting time" in shown.seen
    assert "\x1b[31m" in shown.raw
    for colourless in (at_terminal("tools", "--no-color"), at_terminal("tools", NO_COLOR="1")):
        assert colourless.end() == 3
        assert "\x1b[31m" not in colourless.raw
        assert "\x1b[1m" not in colourless.raw
        assert "mcp_time_get_current_time" in colourless.seen


def test_quiet_leaves_data_and_errors(tmp_path: Path, configure: Configure) -> None:
    """CLI: -q."""
    path = configure(dead={"command": "no-such-command"}, time=servers.time())
    data = json.loads(path.read_text())
    data["tools"]["mcpServers"]["time"]["argz"] = 1
    path.write_text(json.dumps(data))
    loud, quiet = toolbay("tools", cwd=tmp_path), toolbay("tools", "-q", cwd=tmp_path)
    assert "argz" in loud.stderr
    assert "argz" not in quiet.stderr
    assert "no-such-command" in quiet.stderr
    assert quiet.stdout == loud.stdout
