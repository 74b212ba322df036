"""A whole configuration: found, read, reported (CFG-1, CFG-6)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolbay import config
from toolbay.config import InvalidServer, ServerConfig
from toolbay.errors import ConfigError

YAML = "tools:\n  mcpServers:\n    a: {command: x}\n"


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def names(found: config.Config) -> list[str]:
    return list(found.tools.mcp_servers)


def test_the_working_directory_comes_before_the_users_folder(tmp_path: Path) -> None:
    """CFG-1: `toolbay.yaml`, `.json`, `.jsonc`, `.toml`, in the working directory, then in the user's configuration folder."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    environ = {"TOOLBAY_HOME": str(home)}
    assert config.load(environ=environ, cwd=work).model_dump() == config.Config().model_dump()
    user = put(home / "toolbay.toml", '[mcpServers.user]\ncommand = "x"\n')
    assert config.find(work, environ) == user
    for name in ("toolbay.toml", "toolbay.jsonc", "toolbay.json", "toolbay.yaml"):
        found = put(work / name, YAML)
        assert config.find(work, environ) == found


def test_an_explicit_path_comes_before_the_variable_and_that_before_the_found(tmp_path: Path) -> None:
    """CFG-1: `--config` and `TOOLBAY_CONFIG` override; relative ones start from the working directory."""
    put(tmp_path / "toolbay.yaml", YAML)
    put(tmp_path / "other.yaml", YAML.replace("a:", "other:"))
    put(tmp_path / "third.yaml", YAML.replace("a:", "third:"))
    environ = {"TOOLBAY_CONFIG": "other.yaml"}
    assert names(config.load(environ={}, cwd=tmp_path)) == ["a"]
    assert names(config.load(environ=environ, cwd=tmp_path)) == ["other"]
    explicit = config.load(Path("third.yaml"), environ=environ, cwd=tmp_path)
    assert names(explicit) == ["third"]
    assert explicit.path == tmp_path / "third.yaml"


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """CFG-1: what a person named must be there; what nobody named may be missing."""
    with pytest.raises(ConfigError, match="does not exist"):
        config.load(tmp_path / "none.yaml", environ={})
    with pytest.raises(ConfigError, match="which TOOLBAY_CONFIG names, does not exist"):
        config.load(environ={"TOOLBAY_CONFIG": "none.yaml"}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path, environ={})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", YAML),
        ("c.yml", "mcpServers:\r\n  a:\r\n    command: x\r\n"),
        ("c.json", '{"mcpServers": {"a": {"command": "x"}}}'),
        ("c.json", '\ufeff{"servers": {"a": {"command": "x"}}}\r\n'),
        ("c.json", '// c\n{"servers": {/* d */ "a": {"command": "x",}, }, } // e'),
        ("c.jsonc", "{mcpServers: {'a': {\"command\": 'x'}}}"),
        ("c.toml", '\ufeff[tools.mcpServers.a]\r\ncommand = "x"\r\n'),
        ("c.toml", '[[mcp_servers]]\nname = "a"\ncommand = "x"\n'),
        ("c.json", '{"mcpServers": [{"name": "a", "command": "x"}]}'),
        ("config", '{"mcpServers": {"a": {"command": "x"}}}'),
        ("config", YAML),
    ],
)
def test_every_language_and_every_place_of_servers_is_read(tmp_path: Path, name: str, text: str) -> None:
    """CFG-1: `tools.mcpServers`, a bare `mcpServers`, VS Code's `servers`; comments, trailing commas, BOM, CRLF."""
    found = config.load(put(tmp_path / name, text), environ={})
    assert isinstance(found.tools.mcp_servers["a"], ServerConfig)
    assert not found.problems


def test_utf_16_with_its_mark_is_read(tmp_path: Path) -> None:
    """CFG-1: what a Windows shell writes by default."""
    assert names(config.load(put(tmp_path / "c.yaml", "\ufeff".encode("utf-16-le") + YAML.encode("utf-16-le")), environ={})) == ["a"]


def test_of_two_servers_of_one_name_the_first_place_counts(tmp_path: Path) -> None:
    """CFG-1: `tools.mcpServers` before a bare `mcpServers`; the other is told."""
    found = config.parse(
        {"mcpServers": {"a": {"command": "y"}, "b": {"command": "z"}}, "tools": {"mcpServers": {"a": {"command": "x"}}}}, environ={}
    )
    first = found.tools.mcp_servers["a"]
    assert isinstance(first, ServerConfig)
    assert first.command == "x"
    assert names(found) == ["a", "b"]
    assert [problem.where for problem in found.problems] == ["mcpServers.a"]


def test_servers_in_a_list_without_names_are_invalid() -> None:
    """CFG-6: they cost only themselves."""
    found = config.parse({"mcpServers": [{"command": "x"}, {"name": "a", "command": "x"}, "what"]}, environ={})
    assert [isinstance(server, InvalidServer) for server in found.tools.mcp_servers.values()] == [True, False, True]
    assert "no name" in str(found.tools.mcp_servers["mcpServers[0]"])


@pytest.mark.parametrize(
    ("name", "text", "line", "column", "said"),
    [
        ("c.json", '{"a": 1,\n "b" 2}', 2, 6, "expected `:`"),
        ("c.json", '{"a": [1, 2}', 1, 12, "expected `,` or `]`"),
        ("c.json", '{"a": 1', 1, 8, "the text ends"),
        ("c.json", '// c\n{"a": "x\n}', 2, 7, "closing"),
        ("c.json", '{"a": tru}', 1, 7, "expected a value"),
        ("c.json", "{} {}", 1, 4, "nothing more"),
        ("c.json", "{ /* open", 1, 3, "`*/`"),
        ("c.json", '{"a": "\\x"}', 1, 8, "escapes"),
        ("c.json", "[1]", 1, 1, "an object"),
        ("c.json", "# c\n{}", 1, 1, "expected a value"),
        ("c.yaml", "a: [1\nb: 2", 2, 2, "expected ',' or ']'"),
        ("c.yaml", "a: 1\na: 2", 2, 1, "this key was there before"),
        ("c.yaml", "a:\n\t- 1", 2, 1, "cannot start any token"),
        ("c.yaml", "a: *b", 1, 4, "undefined alias"),
        ("c.yaml", "a: \x07", 1, 4, "control characters"),
        ("c.yaml", "- 1", 1, 1, "an object"),
        ("c.toml", "a = 1\nb = \n", 2, 5, "value"),
        ("c.toml", "a = 1\na = 2\n", 2, 6, ""),
        ("c.yaml", b"a: 1\nb: \xff", 2, 4, "UTF-8"),
    ],
)
def test_a_file_that_does_not_parse_says_where_and_what_was_expected(
    tmp_path: Path, name: str, text: str | bytes, *, line: int, column: int, said: str
) -> None:
    """CFG-6: line, column, what was expected, in one sentence."""
    path = put(tmp_path / name, text)
    with pytest.raises(ConfigError) as caught:
        config.load(path, environ={})
    if said:
        assert f"line {line}, column {column}: " in str(caught.value)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_parse_shows_none_of_its_text(tmp_path: Path) -> None:
    """CFG-8: the library's own words for a repeated YAML key quote both values."""
    for name, text in (
        ("c.yaml", "k: canary-2\nk: canary-3"),
        ("c.json", '{"k": "canary-2" "canary-3"}'),
        ("c.toml", 'k = "canary-2" "canary-3"'),
    ):
        with pytest.raises(ConfigError) as caught:
            config.load(put(tmp_path / name, text), environ={})
        assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["c.yaml", "c.json", "c.toml"])
def test_an_empty_file_is_an_error_and_a_commented_one_is_not(tmp_path: Path, name: str) -> None:
    """CFG-6: a file of no bytes is one that is being written just now; the running configuration must stay."""
    with pytest.raises(ConfigError, match="is empty"):
        config.load(put(tmp_path / name, " \n"), environ={})
    comment = "// nothing yet\n{}" if name.endswith("json") else "# nothing yet\n"
    assert not config.load(put(tmp_path / name, comment), environ={}).tools.mcp_servers


def test_a_file_that_is_nested_without_end_is_an_error(tmp_path: Path) -> None:
    """CFG-6: neither depth nor an alias of itself ends the program."""
    for name, text in (("c.json", "[" * 100_000), ("c.json", '{"a":' * 100_000 + "// c"), ("c.yaml", "a: &x {b: *x}")):
        with pytest.raises(ConfigError, match="too deeply"):
            config.load(put(tmp_path / name, text), environ={})


def test_unknown_and_wrong_keys_outside_servers_are_told_and_their_defaults_count() -> None:
    """CFG-6: nothing but a file that does not parse stops the program."""
    found = config.parse(
        {
            "tols": {},
            "$schema": "x",
            "agent": {"maxSteps": "many", "max_seconds": 5, "modle": "x", "instructions": "say ${x}"},
            "tools": {"resultBudget": 1, "artifacts": {"maxFiles": 3, "maxByte": 1}, "ssrf_whitelist": ["10.0.0.0/8"]},
        },
        environ={},
    )
    assert (found.agent.max_steps, found.agent.max_seconds, found.agent.instructions) == (25, 5.0, "say ${x}")
    assert (found.tools.result_budget, found.tools.artifacts.max_files, found.tools.ssrf_whitelist) == (16_000, 3, ("10.0.0.0/8",))
    told = {problem.where: problem.text for problem in found.problems}
    assert set(told) == {"tols", "agent.maxSteps", "agent.modle", "tools.resultBudget", "tools.artifacts.maxByte"}
    assert "`tools`" in told["tols"]
    assert "`model`" in told["agent.modle"]
    assert not [p for p in config.parse({"agent": [], "tools": "x"}, environ={}).problems if "must be an object" not in p.text]


def test_real_files_of_other_clients_are_read(shared_data: Path) -> None:
    """CFG-1, CFG-6: every server under `mcpServers`, `servers` or `tools.mcpServers` is a server or a reason; nothing else raises."""
    seen = invalid = 0
    unreadable: list[str] = []
    for path in sorted((shared_data / "configs").iterdir()):
        if path.suffix == ".md":
            continue
        try:
            found = config.load(path, environ={"HOME": "/home/me"})
        except ConfigError as error:
            unreadable.append(f"{path.name}: {error}")
            continue
        for name, server in found.tools.mcp_servers.items():
            seen += 1
            if isinstance(server, InvalidServer):
                invalid += 1
                assert server.reason.startswith(f'Server "{name}" ')
                assert any(word in server.reason for word in ("environment variable", "http", "keyring"))
    print(f"{seen} servers, {invalid} invalid, unreadable: {unreadable}")
    assert [said.partition(": ")[0] for said in unreadable] == ["04-claude-desktop.json"]
    assert "line 1, column 1: expected a value" in unreadable[0]
    assert (seen, invalid) == (129, 21)


def test_folders_follow_the_variable_and_else_the_system(tmp_path: Path) -> None:
    """CFG-1: TOOLBAY_HOME, else the usual folders."""
    assert config.home({"TOOLBAY_HOME": str(tmp_path)}) == tmp_path
    assert config.data_home({"TOOLBAY_HOME": str(tmp_path)}) == tmp_path / "data"
    assert config.home({"TOOLBAY_HOME": "~/t", "HOME": "/home/me"}) == Path("/home/me/t")
    assert config.home({}).name == "toolbay"
    assert config.data_home({}).name == "toolbay"


def test_the_languages_are_loaded_only_when_a_file_of_theirs_is_read() -> None:
    """CFG-1: `toolbay --help` must not wait for parsers."""
    heavy = {"ruamel.yaml", "tomlkit", "json5", "platformdirs"}
    code = f"import sys, toolbay.config, toolbay.config.edit; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"
