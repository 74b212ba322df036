"""`add`, `remove`, `enable`, `disable`, `config`, `test`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Configure
from cli.terminals import toolbay
from support import servers
from support.processes import MARK, leftovers, marked

FILE = """\
# what I use
tools:
  mcpServers:
    # keep this one
    time:
      command: uvx  # not pipx
      args: [mcp-server-time]
      env: {TOKEN: hush-hush-value}
"""


def test_editing_keeps_all_that_it_does_not_change(tmp_path: Path) -> None:
    """CFG-8: comments and order stay; values with references are written as they are; nothing secret is printed."""
    path = tmp_path / "toolbay.yaml"
    path.write_text(FILE)
    added = toolbay(
        "add",
        "files",
        "--env",
        "KEY=${FILES_KEY}",
        "--env",
        "MODE=a=b",
        "--cwd",
        "/tmp",
        "--",
        "npx",
        "-y",
        "files",
        "--quiet",
        cwd=tmp_path,
    )
    assert added.returncode == 0, added.stderr
    assert str(path) in added.stderr
    assert "FILES_KEY" in added.stderr, "a variable that is not set yet is mentioned"
    text = path.read_text()
    assert text.startswith(FILE)
    assert "KEY: ${FILES_KEY}" in text
    assert "MODE: a=b" in text
    assert "- --quiet" in text
    assert toolbay("disable", "time", cwd=tmp_path).returncode == 0
    assert "disabled: true" in path.read_text()
    assert "# not pipx" in path.read_text()
    assert toolbay("enable", "time", cwd=tmp_path).returncode == 0
    assert toolbay("remove", "files", cwd=tmp_path).returncode == 0
    assert "files" not in path.read_text()
    assert "# keep this one" in path.read_text()
    shown = "".join(part.stdout + part.stderr for part in (added, toolbay("config", "show", cwd=tmp_path)))
    assert "hush-hush-value" not in shown


def test_a_server_with_an_address(tmp_path: Path) -> None:
    """CLI: `add NAME --url URL --header K=V --type sse`, also as headers are usually written; the first file is made."""
    done = toolbay(
        "add", "web", "--url", "https://mcp.example/mcp", "--type", "sse", "--header", "Authorization: Bearer ${TOKEN}", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    place = toolbay("config", "path", cwd=tmp_path).stdout.strip()
    assert place == str(tmp_path / "home" / "toolbay.yaml")
    assert "Authorization: Bearer ${TOKEN}" in Path(place).read_text()
    shown = json.loads(toolbay("config", "show", "--json", cwd=tmp_path, env={"TOKEN": "a-secret-token"}).stdout)
    assert shown["tools"]["mcpServers"]["web"]["type"] == "sse"
    assert "a-secret-token" not in json.dumps(shown)


def test_a_name_that_is_taken_needs_force(tmp_path: Path, configure: Configure) -> None:
    """CLI: `add` refuses an existing name unless --force."""
    path = configure(time={"command": "one"})
    done = toolbay("add", "time", "--", "two", cwd=tmp_path)
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert json.loads(path.read_text())["tools"]["mcpServers"]["time"]["command"] == "one"
    assert toolbay("add", "time", "--force", "--enabled-tools", "a, b*", "--", "two", cwd=tmp_path).returncode == 0
    assert json.loads(path.read_text())["tools"]["mcpServers"]["time"] == {"command": "two", "enabledTools": ["a", "b*"]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "x"], "What is the server?"),
        (["add", "x", "--url", "http://a", "--", "cmd"], "not both"),
        (["add", "x", "--header", "A=b", "--", "cmd"], "--env"),
        (["add", "x", "--env", "A=b", "--url", "http://a"], "--header"),
        (["add", "x", "--env", "sk-secret", "--", "cmd"], "--env takes K=V"),
        (["add", "x", "--type", "carrier-pigeon", "--", "cmd"], "streamableHttp"),
        (["remove", "tme"], 'did you mean "time"?'),
        (["enable", "tme"], 'did you mean "time"?'),
        (["disable", "nothing-like-it"], "there are time."),
        (["test", "tme"], 'did you mean "time"?'),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(words: list[str], says: str, tmp_path: Path, configure: Configure) -> None:
    """CLI: plain errors, exit code 1; a secret in the wrong place is not repeated."""
    path = configure(time={"command": "one"})
    before = path.read_bytes()
    done = toolbay(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "sk-secret" not in done.stderr
    assert path.read_bytes() == before


def test_a_check_names_every_fault(tmp_path: Path, configure: Configure) -> None:
    """CLI, CFG-6: `config check`: 1 where a server is invalid, 0 where there are only warnings or no file."""
    assert toolbay("config", "check", cwd=tmp_path).returncode == 0
    configure(time={"command": "x", "argz": []})
    done = toolbay("config", "check", cwd=tmp_path)
    assert done.returncode == 0
    assert "! tools.mcpServers.time.argz: " in done.stdout
    assert "`args`" in done.stdout
    configure(time={"command": "x"}, bad={})
    done = toolbay("config", "check", cwd=tmp_path)
    assert done.returncode == 1
    assert "✗ tools.mcpServers.bad: " in done.stdout
    told = json.loads(toolbay("config", "check", "--json", cwd=tmp_path).stdout)
    assert [one["server"] for one in told["invalid"]] == ["bad"]
    (tmp_path / "toolbay.json").write_text("{")
    assert toolbay("config", "check", cwd=tmp_path).returncode == 1


def test_the_place_of_the_configuration(tmp_path: Path, configure: Configure) -> None:
    """CFG-1: the working directory, TOOLBAY_CONFIG, --config; where there is none, where it would be."""
    done = toolbay("config", "path", cwd=tmp_path)
    assert done.stdout == f"{tmp_path / 'home' / 'toolbay.yaml'}\n"
    assert "no file there yet" in done.stderr
    path = configure()
    assert toolbay("config", "path", cwd=tmp_path).stdout == f"{path}\n"
    assert toolbay("config", "path", cwd=tmp_path, env={"TOOLBAY_CONFIG": "~/other.yaml"}).stdout == f"{tmp_path / 'other.yaml'}\n"
    named = toolbay("config", "path", "--config", "third.yaml", cwd=tmp_path, env={"TOOLBAY_CONFIG": "other.yaml"})
    assert named.stdout == f"{tmp_path / 'third.yaml'}\n"


def test_the_schema_and_the_yaml_form(tmp_path: Path, configure: Configure) -> None:
    """CLI: `config schema` is JSON Schema; `config show --yaml` reads like the file."""
    assert "mcpServers" in json.dumps(json.loads(toolbay("config", "schema", cwd=tmp_path).stdout))
    configure(time={"command": "x"})
    assert "    time:\n" in toolbay("config", "show", "--yaml", cwd=tmp_path).stdout


def test_a_test_tells_each_step(tmp_path: Path, configure: Configure) -> None:
    """CLI: `test NAME`: server, protocol, tools; no other server is started."""
    configure(dead={"command": "no-such-command"}, time={**servers.time(), "disabled": True})
    done = toolbay("test", "time", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "✓ connected in " in done.stdout
    assert "✓ mcp-time " in done.stdout
    assert ", MCP 20" in done.stdout
    assert "✓ 2 tools, 0 resources, 0 prompts" in done.stdout
    assert "    get_current_time\n" in done.stdout
    assert "disabled" in done.stderr
    assert "no-such-command" not in done.stderr
    told = json.loads(toolbay("test", "time", "--json", cwd=tmp_path).stdout)
    assert (told["state"], told["tools"]) == ("ready", ["convert_time", "get_current_time"])


def test_a_test_that_fails_shows_what_the_server_said(tmp_path: Path, configure: Configure) -> None:
    """CLI, TRA-8: exit code 3, the reason, the last lines of stderr; nothing is left running."""
    mark = marked()
    configure(bad=servers.raw("--stderr", "my disk is on fire", "--exit-at-start", "7", env=mark), none={})
    done = toolbay("test", "bad", cwd=tmp_path)
    assert done.returncode == 3
    assert "my disk is on fire" in done.stdout + done.stderr
    assert "7" in done.stderr
    assert "Traceback" not in done.stderr
    assert toolbay("test", "none", cwd=tmp_path).returncode == 3
    assert leftovers(mark[MARK]) == []


def test_a_file_that_was_only_found_says_that_it_is_used(tmp_path: Path, configure: Configure) -> None:
    """CFG-1, CLI: a configuration of the working folder starts programs, so it is named; one that was asked for is not."""
    path = configure(raw=servers.raw())
    assert "(using ./toolbay.json)\n" in toolbay("tools", cwd=tmp_path).stderr
    assert toolbay("tools", "-q", cwd=tmp_path).stderr == ""
    for done in (
        toolbay("tools", "--config", str(path), cwd=tmp_path),
        toolbay("tools", cwd=tmp_path, env={"TOOLBAY_CONFIG": str(path)}),
        toolbay("tools", cwd=tmp_path, env={"TOOLBAY_HOME": str(tmp_path)}),
    ):
        assert "using" not in done.stderr
