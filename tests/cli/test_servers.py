"""`add`, `remove`, `enable`, `disable`, `config`, `test`."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from cli.conftest import Configure
from cli.terminals import PATIENCE, started, toolbay
from servers.raw_http import RawHttp
from support import servers
from support.processes import MARK, leftovers, marked
from toolbay.config import load
from toolbay.config.models import ServerConfig

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
    assert json.loads(toolbay("config", "path", "--json", cwd=tmp_path).stdout) == {"path": place, "exists": True}
    assert place == str(tmp_path / "home" / "toolbay.yaml")
    assert "Authorization: Bearer ${TOKEN}" in Path(place).read_text()
    shown = json.loads(toolbay("config", "show", "--json", cwd=tmp_path, env={"TOKEN": "canary-token-1"}).stdout)
    assert shown["tools"]["mcpServers"]["web"]["type"] == "sse"
    assert "canary-token-1" not in json.dumps(shown)


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
    ("words", "code", "says"),
    [
        (["add", "x"], 2, "What is the server?"),
        (["add", "x", "--url", "http://a", "--", "cmd"], 2, "not both"),
        (["add", "x", "--header", "A=b", "--", "cmd"], 2, "--env"),
        (["add", "x", "--env", "A=b", "--url", "http://a"], 2, "--header"),
        (["add", "x", "--env", "canary-sk", "--", "cmd"], 2, "--env takes K=V"),
        (["add", "notes", "npx", "-y", "pkg"], 2, "Put -- before the server's command: toolbay add notes -- npx -y pkg"),
        (["add", "x", "--type", "carrier-pigeon", "--", "cmd"], 1, "streamableHttp"),
        (["remove", "tme"], 1, 'did you mean "time"?'),
        (["enable", "tme"], 1, 'did you mean "time"?'),
        (["disable", "nothing-like-it"], 1, "there are time."),
        (["test", "tme"], 1, 'did you mean "time"?'),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    words: list[str], code: int, says: str, tmp_path: Path, configure: Configure
) -> None:
    """CLI: plain errors, exit code 1, and 2 for wrong usage; a secret in the wrong place is not repeated."""
    path = configure(time={"command": "one"})
    before = path.read_bytes()
    done = toolbay(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "canary-sk" not in done.stderr
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
    configure(bad={"comand": "x", "args": 5, "toolTimeout": 0})
    lines = toolbay("config", "check", cwd=tmp_path).stdout.splitlines()
    assert len([line for line in lines if line.startswith("✗ tools.mcpServers.bad: ")]) == 3
    told = json.loads(toolbay("config", "check", "--json", cwd=tmp_path).stdout)
    assert [len(one["faults"]) for one in told["invalid"]] == [3]
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


def test_an_address_in_the_place_of_a_command_is_the_url(tmp_path: Path) -> None:
    """CLI: alone, it is no program to start; what was understood is said, without a secret in it."""
    done = toolbay("add", "board", "HTTPS://board.example/mcp?key=hush-hush-key", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(taken as its address, as after --url: " in done.stderr
    assert "hush-hush" not in done.stderr
    assert "toolbay login board logs in, if it wants that" in done.stderr
    done = toolbay("add", "sse", "--type", "sse", "http://127.0.0.1:1/sse", "--header", "X-Key: ${KEY}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("toolbay.yaml")
    board, sse = load(file, environ={"KEY": "k"}).tools.mcp_servers.values()
    assert isinstance(board, ServerConfig)
    assert isinstance(sse, ServerConfig)
    assert (board.type, board.url, board.command) == ("streamableHttp", "HTTPS://board.example/mcp?key=hush-hush-key", "")
    assert (sse.type, sse.url, sse.headers) == ("sse", "http://127.0.0.1:1/sse", {"X-Key": "k"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1/mcp", "--env", "A=B"], "--env is for servers with a command"),
        (["http://127.0.0.1/mcp", "--url", "http://127.0.0.1/mcp"], "not both"),
    ],
)
def test_an_address_in_the_place_of_a_command_is_judged_as_one(tmp_path: Path, words: list[str], said: str) -> None:
    """CLI: usage is exit code 2, and nothing is written."""
    done = toolbay("add", "board", *words, cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.rglob("toolbay.yaml"))


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
    assert done.stdout.endswith("✓ still there 0.5 s later\n")
    assert "disabled" in done.stderr
    assert "no-such-command" not in done.stderr
    told = json.loads(toolbay("test", "time", "--json", cwd=tmp_path).stdout)
    assert (told["state"], told["tools"]) == ("ready", ["convert_time", "get_current_time"])


@pytest.mark.anyio
async def test_a_test_does_not_watch_what_runs_elsewhere(tmp_path: Path, configure: Configure) -> None:
    """CLI: a server over HTTP ran before."""
    async with RawHttp() as server:
        configure(web=server.entry)
        done = await anyio.to_thread.run_sync(partial(toolbay, "test", "web", cwd=tmp_path))
    assert done.returncode == 0, done.stderr
    assert "✓ connected in " in done.stdout
    assert "still there" not in done.stdout


def test_a_test_that_fails_shows_what_the_server_said(tmp_path: Path, configure: Configure) -> None:
    """CLI, TRA-8: exit code 3, the reason, the last lines of stderr; nothing is left running."""
    mark = marked()
    configure(bad=servers.raw("--stderr", "my disk is on fire", "--exit-at-start", "7", env=mark), none={})
    done = toolbay("test", "bad", cwd=tmp_path)
    assert done.returncode == 3
    assert (done.stdout + done.stderr).count("my disk is on fire") == 1
    assert "7" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("bad: stdio ")
    assert "\n✗ not connected\n" in done.stdout
    assert json.loads(toolbay("test", "bad", "--json", cwd=tmp_path).stdout)["state"] == "failed", "it is tried once"
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


def test_what_is_meant_from_here_is_found_from_elsewhere(tmp_path: Path) -> None:
    """CLI: `./cmd` and --cwd become absolute in a file of another folder, and stay as they are in one of this folder."""
    assert toolbay("add", "a", "--cwd", "data", "--", "./bin/run", "./x", cwd=tmp_path).returncode == 0
    assert toolbay("add", "b", "--cwd", "~/data", "--", "run", cwd=tmp_path).returncode == 0
    shown = toolbay("config", "path", cwd=tmp_path).stdout.strip()
    text = Path(shown).read_text()
    assert f"command: {tmp_path / 'bin' / 'run'}\n" in text
    assert f"cwd: {tmp_path / 'data'}\n" in text
    assert "command: run\n" in text
    assert "cwd: ~/data\n" in text
    here = tmp_path / "toolbay.yaml"
    here.write_text("tools: {}\n")
    added = toolbay("add", "a", "--cwd", "data", "--", "./bin/run", cwd=tmp_path)
    assert str(here) in added.stderr
    assert "command: ./bin/run\n" in here.read_text()
    assert "cwd: data\n" in here.read_text()


def test_an_address_that_is_added_may_want_a_login(tmp_path: Path, configure: Configure) -> None:
    """CLI: it is not asked, so it is said what helps if so; not for a program, nor where there is a token."""
    configure()
    assert (
        "; toolbay login 'my board' logs in, if it wants that" in toolbay("add", "my board", "--url", "https://h/mcp", cwd=tmp_path).stderr
    )
    given = toolbay("add", "b", "--url", "https://h/mcp", "--header", "authorization: Bearer ${TOKEN:-x}", cwd=tmp_path)
    assert "toolbay test b tries it out." in given.stderr
    assert "login" not in toolbay("add", "c", "--", "npx", "-y", "pkg", cwd=tmp_path).stderr


def test_a_command_that_is_quoted_as_a_whole_is_taken_apart(tmp_path: Path, configure: Configure) -> None:
    """CLI, CFG-6: `-- "npx -y pkg"` is a command and its arguments; in a file it is a warning; a program's path may have spaces."""
    path = configure()
    done = toolbay("add", "my notes", "--", "npx -y 'a b'", cwd=tmp_path)
    assert "the command npx with 2 arguments" in done.stderr
    assert "toolbay test 'my notes' tries it out" in done.stderr
    assert json.loads(path.read_text())["tools"]["mcpServers"]["my notes"] == {"command": "npx", "args": ["-y", "a b"]}
    program = tmp_path / "my program"
    program.touch()
    assert toolbay("add", "b", "--", str(program), cwd=tmp_path).returncode == 0
    assert json.loads(path.read_text())["tools"]["mcpServers"]["b"] == {"command": str(program)}
    assert "0 warnings" in toolbay("config", "check", cwd=tmp_path).stdout
    configure(c={"command": "npx -y pkg"})
    checked = toolbay("config", "check", cwd=tmp_path).stdout
    assert "! tools.mcpServers.c.command: " in checked
    assert "arguments belong in `args`" in checked


def test_servers_that_are_added_at_the_same_moment_are_all_there(tmp_path: Path, configure: Configure) -> None:
    """CFG-8, CLI: two `add` at once do not lose each other's entry."""
    path = configure()
    running = [started("add", f"s{number}", "--", "cmd", cwd=tmp_path) for number in range(2)]
    for program in running:
        _, err = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, err
    assert sorted(json.loads(path.read_text())["tools"]["mcpServers"]) == ["s0", "s1"]


def test_of_two_files_in_one_folder_it_is_said_which_one_is_read(tmp_path: Path, configure: Configure) -> None:
    """CFG-1: silence would leave a person editing the wrong one; a file that was named is the one that is meant."""
    path = configure(a={"command": "x"})
    (tmp_path / "toolbay.yaml").write_text("tools: {}\n")
    done = toolbay("config", "check", cwd=tmp_path)
    assert "! toolbay.yaml: toolbay.yaml is read, and toolbay.json beside it not" in done.stdout
    assert "beside it" not in toolbay("config", "check", "--config", str(path), cwd=tmp_path).stdout


def test_a_tab_in_yaml_is_named(tmp_path: Path) -> None:
    """CFG-6: what YAML's own sentence leaves out is the mend."""
    (tmp_path / "toolbay.yaml").write_text("tools:\n\tmcpServers: {}\n")
    assert "indent with spaces" in toolbay("config", "check", cwd=tmp_path).stderr


def test_a_test_sees_a_server_that_ends_as_soon_as_it_was_ready(tmp_path: Path, configure: Configure) -> None:
    """CLI, TRA-8: it connected, and does not work all the same: exit code 3, when it ended, and how."""
    configure(brief=servers.raw("--exit-after", "0.2", "--stderr", "database is gone"))
    done = toolbay("test", "brief", cwd=tmp_path)
    assert done.returncode == 3
    assert "✓ connected in" in done.stdout
    assert re.search(r"\n✗ it ended \d\.\d s after it was ready\n", done.stdout)
    assert "exit code 3" in done.stderr
    told = json.loads(toolbay("test", "brief", "--json", cwd=tmp_path).stdout)
    assert (told["state"], told["tools"] != []) == ("failed", True)
    assert "after it was ready: brief went away: its program ended with exit code 3" in told["error"]


def test_why_nothing_starts_is_said_once(tmp_path: Path, configure: Configure) -> None:
    """CLI, TRA-7: a program that greets people and ends."""
    configure(banner=servers.stdio(sys.executable, "-IS", "-c", "print('Welcome to my weather')"))
    done = toolbay("test", "banner", cwd=tmp_path)
    assert (done.stdout + done.stderr).count("Welcome to my weather") == 1
    assert "must log to stderr; check `command`, `args` and `env` (toolbay" in done.stderr, "to its end"


def test_a_launcher_without_a_package_is_not_added(tmp_path: Path) -> None:
    """CFG-3: it would have nothing to run."""
    done = toolbay("add", "weather", "--", "npx", "-y", cwd=tmp_path)
    assert done.returncode == 1
    assert "npx is given no package to run: toolbay add weather -- npx -y PACKAGE" in done.stderr
    assert not (tmp_path / "toolbay.yaml").exists()


@pytest.mark.parametrize("words", [["test", "weather"], ["run", "--model", "offline", "hello"]])
def test_a_launcher_without_a_package_is_not_waited_for(words: list[str], tmp_path: Path, configure: Configure) -> None:
    """TRA-8, CLI: what is missing is said at once, by whoever starts it."""
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\nexec cat\n")  # it too reads what it is given, and says nothing
    npx.chmod(0o755)
    configure(weather={"command": str(npx), "args": ["-y"], "startupTimeout": 3600})
    done = toolbay(*words, cwd=tmp_path)
    assert done.returncode == 3
    assert (done.stdout + done.stderr).count("arguments that name no package, so npx has nothing to run") == 1
    checked = toolbay("config", "check", cwd=tmp_path)
    assert checked.returncode == 1
    assert '✗ tools.mcpServers.weather: Server "weather" has arguments that name no package' in checked.stdout


def test_check_names_packages_without_a_version(tmp_path: Path) -> None:
    """SEC row 16: what would run another program tomorrow is said, and is no fault of the file."""
    entries = {"loose": {"command": "npx", "args": ["-y", "@scope/server"]}, "tight": {"command": "uvx", "args": ["server==1.2.3"]}}
    (tmp_path / "toolbay.json").write_text(json.dumps({"mcpServers": entries}))
    done = toolbay("config", "check", cwd=tmp_path)
    assert done.returncode == 0
    assert "(loose: what runs is whatever version was published last: write one, as in @scope/server@VERSION)" in done.stderr
    assert "tight" not in done.stderr
    told = json.loads(toolbay("config", "check", "--json", cwd=tmp_path).stdout)
    assert told["unpinned"] == [{"server": "loose", "package": "@scope/server"}]
