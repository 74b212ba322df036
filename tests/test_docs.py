"""What the documents show is what runs: every example is a file, and the files do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from cli.terminals import toolbay
from servers.raw_http import RawHttp
from servers.raw_oauth import RawOAuth
from support import servers
from support.processes import eventually
from toolbay import App, Outcome, ServerConfig, load, parse
from toolbay.events import ServerChanged
from toolbay.upstream.state import State

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
SHOWN = re.compile(r"<!-- (?P<file>docs/examples/\S+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_an_example_on_a_page_is_the_file_that_it_names(page: Path) -> None:
    """Code on a page drifts from the code that runs unless they are the same."""
    for shown in SHOWN.finditer(page.read_text()):
        assert shown["text"] == (ROOT / shown["file"]).read_text()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_a_link_on_a_page_leads_somewhere(page: Path) -> None:
    """Every relative link names a file of the tree."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_a_decision_is_known_by_its_number() -> None:
    """STRUCTURE: pages and code refer to decisions by number, so each has one of its own, without a gap."""
    pages = sorted(page.name for page in (ROOT / "docs" / "decisions").iterdir())
    assert [page.partition("-")[0] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]


def test_the_example_configuration_is_read_without_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-2: what the README shows is a valid configuration."""
    monkeypatch.setenv("TRACKER_TOKEN", "a-token-of-the-test")
    config = load(EXAMPLES / "toolbay.yaml")
    assert config.problems == ()
    assert sorted(config.tools.mcp_servers) == ["files", "time", "tracker"]
    assert all(isinstance(entry, ServerConfig) for entry in config.tools.mcp_servers.values())


def test_the_example_of_logins_is_read_without_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-2: each way to log in that the README shows is one."""
    monkeypatch.setenv("REPORTS_SECRET", "canary-secret-of-the-test")
    config = load(EXAMPLES / "logins.yaml")
    assert config.problems == ()
    kinds = {name: entry.auth and entry.auth.type for name, entry in config.tools.mcp_servers.items() if isinstance(entry, ServerConfig)}
    assert kinds == {"board": None, "wiki": "oauth", "reports": "client_credentials", "public": "none"}


def test_the_examination_that_the_readme_shows_is_what_comes_of_it(tmp_path: Path) -> None:
    """TRA-3, TRA-8: `toolbay doctor` on two servers that fail; times, process ids and the interpreter's place are each machine's own."""
    shutil.copy(EXAMPLES / "broken.yaml", tmp_path / "toolbay.yaml")
    done = toolbay("doctor", cwd=tmp_path)
    assert done.returncode == 3
    shown = (EXAMPLES / "doctor.txt").read_text()
    own = re.compile(r"\b\d\.\d\d s|pid \d+|\| \S*python3\S*: ")
    assert own.sub("", done.stdout) == own.sub("", shown)


@pytest.mark.anyio
async def test_the_library_example_calls_a_tool_and_asks_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RUN-1: the ten lines of the README, against a real server and the offline model."""
    file = tmp_path / "toolbay.json"
    file.write_text(json.dumps({"agent": {"model": "offline"}, "tools": {"mcpServers": {"time": servers.time()}}}))
    await example("library").main(str(file))
    printed = capsys.readouterr().out
    assert "mcp_time_get_current_time" in printed
    assert printed.count("Asia/Tokyo") >= 2
    assert "False" in printed


@pytest.mark.anyio
async def test_the_watching_example_tells_states_and_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LIB: one server that works, and one that does not; each change is told when it happens, and how each stands at the end."""
    file = tmp_path / "toolbay.json"
    absent = {"command": "no-such-command"}
    file.write_text(json.dumps({"tools": {"mcpServers": {"time": servers.time(), "absent": absent}}}))
    await example("watching").main(str(file))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("time")] == [
        "time is connecting",
        "time is ready",
        "time: ready, 2 tools",
        "time is closed",
    ]
    assert "absent is connecting" in lines
    assert any(line.startswith("absent is failed absent could not be started: ") for line in lines)
    assert "absent: failed, 0 tools" in lines
    assert any(re.fullmatch(r"mcp_time_get_current_time took \d\.\d s: executed", line) for line in lines)


@pytest.mark.anyio
async def test_the_logging_in_example_leads_a_person_to_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LIB, H4: a server that wants a login, whose person agrees to the page that is printed; one that cannot be had is told before."""
    async with RawOAuth() as oauth, RawHttp() as server, RawOAuth() as closed, RawHttp() as other:
        oauth.protect(server)
        closed.protect(other)
        closed.registers = False
        file = tmp_path / "toolbay.json"
        file.write_text(json.dumps({"tools": {"mcpServers": {"a": other.entry, "board": server.entry}}}))
        printed: list[str] = []

        def page() -> re.Match[str] | None:
            printed.append(capsys.readouterr().out)
            return re.search(r"To use board, log in at 127\.0\.0\.1:\d+: (\S+)\n", "".join(printed))

        async with anyio.create_task_group() as group:
            group.start_soon(example("logging_in").main, str(file))
            await eventually(page, "the page", 30)
            found = page()
            assert found is not None
            await RawOAuth.visit(found[1])
    printed.append(capsys.readouterr().out)
    lines = "".join(printed).splitlines()
    assert 'no login with "a"' in lines[0]
    assert lines[2:] == [f"board: logged in at {oauth.issuer}, renews itself: True", "a: needs_auth, 0 tools", "board: ready, 2 tools"]


@pytest.mark.anyio
async def test_the_pasting_example_takes_the_address_that_the_browser_ended_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIB, H4: what is no such address is told, and asked for again; what goes wrong is one sentence."""
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        file = tmp_path / "toolbay.json"
        file.write_text(json.dumps({"tools": {"mcpServers": {"board": server.entry}}}))
        loop, typed, printed = asyncio.get_running_loop(), ["nonsense"], [""]

        def keyboard(prompt: str) -> str:
            printed[0] += capsys.readouterr().out
            if typed:
                return typed.pop()
            page = re.search(r"To use board, log in at 127\.0\.0\.1:\d+: (\S+)\n", printed[0])
            assert page is not None, prompt
            return f"<{asyncio.run_coroutine_threadsafe(RawOAuth.approve(page[1]), loop).result()}>"

        monkeypatch.setattr("builtins.input", keyboard)
        await example("pasting").main("board", str(file))
        printed[0] += capsys.readouterr().out
        assert "that is not where the browser ended" in printed[0]
        assert printed[0].endswith(f"board: logged in at {oauth.issuer}\n")

        def ended(prompt: str) -> str:
            raise EOFError(prompt)

        def told() -> re.Match[str] | None:
            printed[0] += capsys.readouterr().out
            return re.search(r"To use board, log in at \S+ (\S+)\nNobody can paste an address here: .*\n", printed[0])

        monkeypatch.setattr("builtins.input", ended)
        async with anyio.create_task_group() as group:
            group.start_soon(example("pasting").main, "board", str(file))
            await eventually(told, "that nobody can paste", 30)
            page = told()
            assert page is not None
            await RawOAuth.visit(page[1])
        assert capsys.readouterr().out == f"board: logged in at {oauth.issuer}\n"
        await example("pasting").main("nobody", str(file))
        assert "nobody" in capsys.readouterr().out


def test_each_state_of_a_server_is_explained() -> None:
    """LIB: who listens to changes reads there what each word means."""
    explained = re.findall(r"^ *- `(\w+)`: ", ServerChanged.__doc__ or "", re.MULTILINE)
    assert {state.value for state in State} - {"idle"} == set(explained)


@pytest.mark.anyio
async def test_the_loop_example_gives_definitions_and_runs_a_call() -> None:
    """SCH-1, CAL-7: definitions as OpenAI takes them; a call with the model's own text; what is wrong comes back as text."""
    loop = example("your_own_loop")
    async with App(parse({"tools": {"mcpServers": {"time": servers.time()}}})) as app:
        await app.settle()
        names = [made["function"]["name"] for made in await loop.definitions(app)]
        assert "mcp_time_convert_time" in names
        assert "Asia/Tokyo" in await loop.run(app, "mcp_time_get_current_time", '{"timezone": "Asia/Tokyo"}')
        assert "timezone" in await loop.run(app, "mcp_time_get_current_time", "{}")
        refused = await app.call("mcp_time_get_current_time", "{}")
        assert refused.outcome is Outcome.NOT_EXECUTED


def test_the_readme_names_every_command() -> None:
    """A command that is not told of does not exist for who reads the README."""
    ran = subprocess.run([sys.executable, "-m", "toolbay", "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^  (\w+)  ", ran.stdout.partition("Commands:")[2], re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert commands
    assert [command for command in commands if f"`{command}`" not in readme] == []


def test_the_keys_that_the_readme_explains_are_keys() -> None:
    """CFG-2: a table of keys is of use only where each of them does something."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"\w+", row)}
    assert {"command", "url", "toolTimeout", "inheritEnv"} <= keys
    assert keys <= {field.alias or name for name, field in ServerConfig.model_fields.items()}
