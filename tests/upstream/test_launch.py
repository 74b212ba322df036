"""What a command, an environment and a folder become before anything is started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from support import servers
from toolbay.config.models import ServerConfig
from toolbay.errors import LaunchFailed
from toolbay.upstream.keeping import MARK
from toolbay.upstream.launch import POSIX_ENV, environment, normalise_windows, prepare
from toolbay.upstream.process import spawn


def nowhere(command: str, path: str) -> None:
    """A `which` that finds nothing."""


def entry(command: str, *args: str, **more: Any) -> ServerConfig:
    return servers.config(servers.stdio(command, *args), **more)


@pytest.mark.parametrize(
    "command", ["npx", "npm", "pnpm", "yarn", "bunx", "NPX", r"C:\node\npx", "tool.cmd", "Tool.BAT", r"C:\x y\run.cmd"]
)
def test_launchers_that_are_batch_files_run_through_the_command_interpreter(command: str) -> None:
    """TRA-4: `cmd.exe /d /c <command> ...`, with the arguments as they are."""
    assert normalise_windows(command, ("-y", "some pkg"), {}, nowhere) == ("cmd.exe", "/d", "/c", command, "-y", "some pkg")


def test_the_interpreter_that_comspec_names_is_used() -> None:
    """TRA-4: `COMSPEC` if set; an empty one counts as none."""
    assert normalise_windows("npx", (), {"COMSPEC": r"D:\cmd.exe"}, nowhere) == (r"D:\cmd.exe", "/d", "/c", "npx")
    assert normalise_windows("npx", (), {"COMSPEC": ""}, nowhere)[0] == "cmd.exe"


@pytest.mark.parametrize(
    "command",
    [
        "npx.exe",
        "NPX.EXE",
        "tool.com",
        "cmd",
        "CMD.exe",
        "powershell",
        "pwsh",
        "PwSh.exe",
        r"C:\npx\node.exe",
        "uvx",
        "python",
        "node",
        "npx2",
    ],
)
def test_programs_and_shells_are_left_alone_on_windows(command: str) -> None:
    """TRA-4: `.exe`, `.com`, `cmd`, `powershell`, `pwsh` are left alone, and so is what is no batch file."""
    assert normalise_windows(command, ("a",), {}, nowhere) == (command, "a")


def test_a_shell_is_left_alone_even_where_the_path_resolves_it_to_a_batch_file() -> None:
    """TRA-4: the exceptions come before the search."""
    assert normalise_windows("pwsh", (), {"PATH": "x"}, lambda command, path: r"x\pwsh.cmd") == ("pwsh",)
    assert normalise_windows("node.exe", (), {"PATH": "x"}, lambda command, path: r"x\node.exe.cmd") == ("node.exe",)


def test_a_command_that_the_servers_path_resolves_to_a_batch_file_runs_through_the_interpreter() -> None:
    """TRA-4: as resolved through the server's PATH, not ours."""
    asked: list[tuple[str, str]] = []

    def which(command: str, path: str) -> str:
        asked.append((command, path))
        return rf"{path}\{command}.CMD"

    assert normalise_windows("mytool", ("a",), {"PATH": r"C:\theirs"}, which) == ("cmd.exe", "/d", "/c", "mytool", "a")
    assert asked == [("mytool", r"C:\theirs")]


def test_prepare_uses_the_windows_rules_where_it_is_told_that_it_is_windows() -> None:
    """TRA-4: pure, so that it holds on every platform; COMSPEC comes from the child's own environment."""
    launch = prepare(
        entry("npx", "-y", "pkg"), {"Path": r"C:\bin", "ComSpec": r"C:\cmd.exe", "OPENAI_API_KEY": "k"}, windows=True, which=nowhere
    )
    assert launch.argv == (r"C:\cmd.exe", "/d", "/c", "npx", "-y", "pkg")
    assert dict(launch.env) == {"PATH": r"C:\bin", "COMSPEC": r"C:\cmd.exe"}
    assert launch.shown == "npx"


def test_a_child_gets_the_minimal_set_and_nothing_of_the_models_keys() -> None:
    """TRA-5: never the whole environment of the parent, never the model's keys."""
    ours = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "OPENAI_API_KEY": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "SSH_AUTH_SOCK": "x",
        "PYTHONPATH": "p",
    }
    assert environment(entry("x"), ours, windows=False) == {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C"}


def test_env_wins_over_inherited_names_and_those_over_the_minimal_set() -> None:
    """TRA-5: a minimal environment plus `inheritEnv` plus `env`."""
    config = entry("x", env={"PATH": "/own", "A": "1"}, inherit_env=["A", "B", "ABSENT"])
    assert environment(config, {"PATH": "/bin", "A": "0", "B": "2", "C": "3"}, windows=False) == {"PATH": "/own", "A": "1", "B": "2"}


def test_names_of_the_environment_have_no_case_on_windows() -> None:
    """TRA-5: `Path` is PATH, and an inherited name is found whatever its case."""
    config = entry("x", inherit_env=["MyVar"])
    assert environment(config, {"Path": "p", "SystemRoot": "r", "MYVAR": "v", "SECRET": "s"}, windows=True) == {
        "PATH": "p",
        "SYSTEMROOT": "r",
        "MyVar": "v",
    }


def test_a_shell_function_in_the_environment_is_not_passed_on() -> None:
    """TRA-5: a value that is a function definition was never meant for a program."""
    assert environment(entry("x"), {"TERM": "() { :; }; echo", "PATH": "/bin"}, windows=False) == {"PATH": "/bin"}


@pytest.mark.anyio
@pytest.mark.skipif(os.name == "nt", reason="the names of the minimal set are POSIX ones here")
async def test_a_real_child_sees_its_own_environment_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRA-5: seen from inside a child that prints its environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-must-not-leak")
    monkeypatch.setenv("TOOLBAY_PASSED_ON", "yes")
    config = entry(
        sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))", env={"OWN": "1"}, inherit_env=["TOOLBAY_PASSED_ON"]
    )
    text = b""
    with anyio.fail_after(30):
        async with spawn(prepare(config)) as child:
            with pytest.raises(anyio.EndOfStream):
                while True:
                    text += await child.receive()
    seen = json.loads(text)
    assert (seen.pop("OWN"), seen.pop("TOOLBAY_PASSED_ON")) == ("1", "yes")
    assert seen.pop(MARK), "by which it is found again"
    odd = {name for name in seen if name not in POSIX_ENV and not name.startswith(("LC_", "__CF"))}
    assert not odd, "names that nobody gave to the child"


@pytest.mark.parametrize(
    ("words", "example"),
    [("npx -y", "[-y, @modelcontextprotocol/server-everything]"), ("uvx", "[mcp-server-time]"), ("uvx --python 3.12", "[mcp-server-time]")],
)
@pytest.mark.parametrize("windows", [False, True])
def test_a_launcher_that_is_told_no_package_is_not_started(words: str, example: str, *, windows: bool) -> None:
    """TRA-8: it would be waited for until `startupTimeout`."""
    command, *args = words.split()
    with pytest.raises(LaunchFailed) as caught:
        prepare(entry(command, *args), {"PATH": "/bin"}, windows=windows, which=lambda command, path: f"/bin/{command}")
    assert str(caught.value) == f"its arguments name no package, so {command} has nothing to run: name it in `args`, as in {example}"
    assert not caught.value.retriable


def test_a_command_that_is_not_found_is_told_with_the_path_that_was_searched() -> None:
    """TRA-8: the command and the PATH that was searched."""
    with pytest.raises(LaunchFailed, match=r"'no-such-tool' was not found.*PATH searched: /nowhere:/neither") as caught:
        prepare(entry("no-such-tool", env={"PATH": "/nowhere:/neither"}), {}, windows=False)
    assert not caught.value.retriable
    with pytest.raises(LaunchFailed, match=r"PATH searched: \(empty\)"):
        prepare(entry("no-such-tool"), {}, windows=False)


@pytest.mark.skipif(os.name == "nt", reason="files have no executable bit there")
def test_a_file_that_is_not_executable_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    """TRA-8: not executable."""
    script = tmp_path / "tool.py"
    script.touch(mode=0o600)
    with pytest.raises(LaunchFailed, match="is not an executable file: make it executable"):
        prepare(entry(str(script)), {}, windows=False)
    with pytest.raises(LaunchFailed, match="does not exist: correct `command`"):
        prepare(entry(str(tmp_path / "absent")), {}, windows=False)


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """TRA-8: `cwd` is named."""
    with pytest.raises(LaunchFailed, match=r"its folder .*absent' does not exist: correct `cwd`"):
        prepare(entry(sys.executable, cwd=str(tmp_path / "absent")), {})


@pytest.mark.skipif(os.name == "nt", reason="a script with a first line runs only on POSIX")
def test_a_relative_command_is_looked_for_in_the_servers_own_folder(tmp_path: Path) -> None:
    """TRA-8: the child would look from its own folder, and so do we."""
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o700)
    (argv0,) = prepare(entry("./tool", cwd=str(tmp_path)), {}).argv
    assert Path(argv0) == tmp_path / "tool"
