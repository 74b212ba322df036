"""One entry of a configuration (CFG-2 to CFG-6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolbay import config
from toolbay.config import Config, InvalidServer, ServerConfig, TransportType

ENVIRON = {"HOME": "/home/me", "TOKEN": "canary-123456", "EMPTY": ""}


def read(entry: Any, *, environ: dict[str, str] = ENVIRON, base: Path | None = None, name: str = "s") -> Config:
    return config.parse({"tools": {"mcpServers": {name: entry}}}, environ=environ, base=base)


def valid(entry: Any, **more: Any) -> ServerConfig:
    server = next(iter(read(entry, **more).tools.mcp_servers.values()))
    assert isinstance(server, ServerConfig), server
    return server


def reason(entry: Any, **more: Any) -> str:
    server = next(iter(read(entry, **more).tools.mcp_servers.values()))
    assert isinstance(server, InvalidServer), server
    return server.reason


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"command": "x"}, TransportType.STDIO),
        ({"url": "https://h/mcp"}, TransportType.HTTP),
        ({"url": "https://h/sse"}, TransportType.SSE),
        ({"url": "https://h/a/sse/"}, TransportType.SSE),
        ({"url": "https://h/sse?x=1"}, TransportType.SSE),
        ({"url": "https://h/mcp?next=/sse"}, TransportType.HTTP),
        ({"url": "https://sse/"}, TransportType.HTTP),
        ({"url": "https://h/nosse"}, TransportType.HTTP),
        ({"url": "https://h/sse", "type": "http"}, TransportType.HTTP),
        ({"url": "https://h/mcp", "type": "sse"}, TransportType.SSE),
        ({"url": "https://h/mcp", "type": "streamable-http"}, TransportType.HTTP),
        ({"url": "https://h/mcp", "type": "streamable_http"}, TransportType.HTTP),
        ({"url": "https://h/mcp", "type": "streamableHttp"}, TransportType.HTTP),
        ({"command": "x", "url": "https://h/", "type": "stdio"}, TransportType.STDIO),
        ({"command": "x", "url": "https://h/", "type": "http"}, TransportType.HTTP),
        ({"command": "", "url": "https://h/"}, TransportType.HTTP),
    ],
)
def test_the_transport_is_inferred_unless_it_is_said(entry: Any, kind: TransportType) -> None:
    """CFG-4: an explicit type wins; else a command is stdio; else a path that ends in /sse is sse; else streamable HTTP."""
    assert valid(entry).type is kind


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"command": "x", "url": "https://h/"}, "remove the one"),
        ({}, "add `command` for a program, or `url`"),
        ({"type": "stdio", "url": "https://h/"}, "needs `command`"),
        ({"type": "http", "command": "x"}, "needs `url`"),
        ({"type": "websocket", "url": "https://h/"}, "must be stdio, sse or streamableHttp"),
        ({"url": "ftp://h/"}, "http:// or https://"),
        ({"url": "https://"}, "name a host"),
        ({"url": "https://[half"}, "no address"),
        ({"command": "x", "args": "-y pkg"}, "`args` that must be a list"),
        ({"command": "x", "args": [["a"]]}, "`args.0` that must be text"),
        ({"command": 5}, "`command` that must be text"),
        ({"command": "x", "toolTimeout": 0}, "`toolTimeout` that must be greater than 0"),
        ({"command": "x", "toolTimeouts": {"slow": 0}}, "`toolTimeouts.slow` that must be greater than 0"),
        ({"command": "x", "toolTimeouts": {"slow": -5}}, "must be greater than 0"),
        ({"command": "x", "toolTimeout": "soon"}, "must be a number"),
        ({"command": "x", "retry": "maybe"}, "'safe', 'always' or 'never'"),
        ({"command": "x", "restart": {"maxAttempts": 0}}, "must be at least 1"),
        ({"command": "x", "retry": {"t": "sometimes"}}, "`retry.t` that must be 'safe', 'always' or 'never'"),
        ("npx", "must be an object"),
        (None, "must be an object"),
        (["npx"], "must be an object"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why_and_what_to_do(entry: Any, said: str) -> None:
    """CFG-4: an invalid entry is a sentence with the server's name and the mend, not an exception."""
    text = reason(entry)
    assert said in text
    assert text.startswith('Server "s" ')
    assert text.endswith(".")


def test_all_faults_of_an_entry_are_told_together_each_by_itself() -> None:
    """CFG-6: also where what it would need most is missing or misspelt, and where references cannot be replaced."""
    entry = {"comand": "x", "args": "y", "toolTimeout": 0, "env": {"A": "${NONE_A}", "B": "${NONE_B}", "C": "c"}, "envFile": "none.env"}
    found = config.parse({"mcpServers": {"s": entry}}, environ={}).tools.mcp_servers["s"]
    assert isinstance(found, InvalidServer)
    assert found.where == "mcpServers.s"
    assert [fault.removeprefix('Server "s" ').partition(":")[0] for fault in found.faults] == [
        "has a key `env.A` that needs the environment variable NONE_A, which is not set",
        "has a key `env.B` that needs the environment variable NONE_B, which is not set",
        "has a key `envFile` whose file none.env cannot be read (No such file or directory)",
        "has neither `command` nor `url` (is `comand` meant to be `command`?)",
        "has a key `args` that must be a list.",
        "has a key `toolTimeout` that must be greater than 0.",
    ]
    assert found.reason.startswith(found.faults[0].rstrip("."))
    assert found.reason.endswith(", and has 5 more faults: toolbay config check tells each.")


def test_what_cannot_be_resolved_is_no_second_fault() -> None:
    """CFG-6: neither a missing address, nor one of another form, nor a number that is none."""
    entry = {"url": "${NONE}", "toolTimeout": "${NONE}", "args": ["${NONE}"]}
    found = config.parse({"mcpServers": {"s": entry}}, environ={}).tools.mcp_servers["s"]
    assert isinstance(found, InvalidServer)
    assert [fault.split("`")[1] for fault in found.faults] == ["url", "toolTimeout", "args[0]"]


@pytest.mark.parametrize("item", [{"time": {"command": "x"}}, {"time": None, "command": "x"}])
def test_a_list_in_the_place_of_an_object_is_told_with_what_to_write(item: Any) -> None:
    """CFG-6: in YAML it is one dash too many."""
    found = config.parse({"tools": {"mcpServers": [item]}}, environ={}).tools.mcp_servers["tools.mcpServers[0]"]
    assert isinstance(found, InvalidServer)
    assert found.reason == (
        "Server at `tools.mcpServers[0]` is an item of a list, and servers are an object by their names: "
        "write `time:` in the place of `- time:`."
    )


def test_every_field_is_read_in_camel_case_and_in_snake_case() -> None:
    """CFG-2, CFG-3: both ways of writing give the same server."""
    camel = {
        "command": "x", "toolTimeout": 5, "enabledTools": ["a"], "disabledTools": ["b"], "enabledResources": [], "enabledPrompts": ["p"],
        "startupTimeout": 7, "toolTimeouts": {"aB": 1}, "maxTimeout": 9, "inheritEnv": ["X"], "ssrfWhitelist": ["10.0.0.0/8"],
        "protocolVersion": "legacy", "restart": {"maxAttempts": 2}, "retry": "never", "approval": {"tool": "always"}, "roots": ["/r"],
        "sampling": True, "elicitation": True, "sandbox": "soft", "description": "d", "disabled": True, "trusted": True,
        "sandboxPaths": ["~/a:rw"], "sandboxNetwork": True, "limits": {"memory": "2g", "processes": 9},
    }  # fmt: skip
    snake = {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): value for key, value in camel.items()}
    snake["restart"] = {"max_attempts": 2}
    assert valid(camel) == valid(snake)
    for entry in (camel, snake):
        assert [problem.where.rpartition(".")[2] for problem in read(entry).problems] == ["sampling", "elicitation"]  # not supported yet
    assert valid(camel).tool_timeouts == {"aB": 1.0}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2g", 2 * 10**9),
        ("2 GB", 2 * 10**9),
        ("2GiB", 2 * 2**30),
        ("1.5M", 1_500_000),
        ("500 mb", 5 * 10**8),
        (3_000_000, 3_000_000),
        (0, 0),
    ],
)
def test_a_limit_of_memory_is_read_as_people_write_it(written: object, meant: int) -> None:
    """CFG-3: a size with its unit, or a number of bytes."""
    assert valid({"command": "x", "limits": {"memory": written}}).limits.memory == meant


@pytest.mark.parametrize("wrong", ["much", "2 elephants", "-1g", "", True, -5])
def test_a_limit_of_memory_that_is_none_is_told(wrong: object) -> None:
    """CFG-6: with the key and what would fit."""
    assert "`limits.memory`" in reason({"command": "x", "limits": {"memory": wrong}})


def test_limits_have_a_default_that_stops_fork_bombs_and_can_be_lifted() -> None:
    """CFG-3: processes are bounded unless somebody says 0; memory is not."""
    assert (valid({"command": "x"}).limits.memory, valid({"command": "x"}).limits.processes) == (0, 1_000)
    assert valid({"command": "x", "limits": {"processes": 0}}).limits.processes == 0


def test_what_is_not_supported_yet_says_so() -> None:
    """CFG-6: a setting that does nothing is told; its default is not worth a word."""
    found = read({"url": "http://h", "sampling": True, "elicitation": False, "auth": {"type": "oauth"}})
    assert [(problem.where, "not supported yet" in problem.text) for problem in found.problems] == [("tools.mcpServers.s.sampling", True)]


def test_a_version_of_the_protocol_that_nobody_knows_is_refused() -> None:
    """CFG-3: `auto`, `legacy`, or a version that the protocol has had; the reason names them."""
    from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

    for version in ("auto", "legacy", *KNOWN_PROTOCOL_VERSIONS):
        assert valid({"command": "x", "protocolVersion": version}).protocol_version == version
    for wrong in ("1999", "latest", "2025-13-45"):
        assert all(word in reason({"command": "x", "protocolVersion": wrong}) for word in ("protocolVersion", "legacy", "2025-06-18"))


def test_a_key_within_a_section_is_named_as_files_have_it() -> None:
    """CFG-6: the path that is told is the one that stands in the file."""
    assert "`restart.maxAttempts`" in reason({"command": "x", "restart": {"maxAttempts": 0}})
    assert "`toolTimeouts.my_tool`" in reason({"command": "x", "toolTimeouts": {"my_tool": "soon"}})
    found = config.parse({"tools": {"artifacts": {"maxBytes": 0}}})
    assert [problem.where for problem in found.problems] == ["tools.artifacts.maxBytes"]


def test_defaults_are_those_of_the_contract() -> None:
    """CFG-2, CFG-3: toolTimeout 30, startupTimeout 30, enabledTools ["*"], retry safe, protocolVersion auto."""
    server = valid({"command": "x"})
    assert (server.tool_timeout, server.startup_timeout, server.enabled_tools) == (30.0, 30.0, ("*",))
    assert (server.retry, server.protocol_version, server.disabled) == ("safe", "auto", False)


def test_a_key_that_is_there_twice_counts_once_and_is_told() -> None:
    """CFG-2: of `toolTimeout` and `tool_timeout` the first form counts, in whatever order they come."""
    for entry in ({"tool_timeout": 1, "toolTimeout": 2}, {"toolTimeout": 2, "tool_timeout": 1}):
        found = read({"command": "x", **entry})
        assert valid({"command": "x", **entry}).tool_timeout == 2
        assert len(found.problems) == 1


def test_an_unknown_key_is_told_with_its_path_and_the_nearest_and_is_ignored() -> None:
    """CFG-6: a typing error costs nothing but a line."""
    found = read({"command": "x", "argz": ["a"], "restart": {"maxAttemps": 3}, "_note": "why", "wholly_else": 1})
    told = {problem.where: problem.text for problem in found.problems}
    assert "`args`" in told["tools.mcpServers.s.argz"]
    assert "`maxAttempts`" in told["tools.mcpServers.s.restart.maxAttemps"]
    assert set(told) == {f"tools.mcpServers.s.{key}" for key in ("argz", "restart.maxAttemps", "wholly_else")}
    assert isinstance(found.tools.mcp_servers["s"], ServerConfig)


def test_one_invalid_server_costs_only_itself() -> None:
    """CFG-6: the others are there, in their order."""
    found = config.parse({"mcpServers": {"a": {"command": "x"}, "b": {}, "c": {"url": "http://h"}, "": {"command": "x"}}}, environ={})
    kinds = {name: isinstance(server, ServerConfig) for name, server in found.tools.mcp_servers.items()}
    assert kinds == {"a": True, "b": False, "c": True, "mcpServers.": False}


def test_references_are_resolved_in_every_text_of_a_server() -> None:
    """CFG-5: command, args, env, cwd, url, headers."""
    stdio = valid({"command": "${HOME}/bin/x", "args": ["--t=${TOKEN}"], "env": {"T": "${env:TOKEN}"}, "cwd": "${NONE:-/srv}"})
    assert (stdio.command, stdio.args, stdio.env, stdio.cwd) == ("/home/me/bin/x", ("--t=canary-123456",), {"T": "canary-123456"}, "/srv")
    http = valid({"url": "https://${HOST:-h}/${TOKEN}", "headers": {"Authorization": "Bearer ${TOKEN}"}})
    assert (http.url, http.headers) == ("https://h/canary-123456", {"Authorization": "Bearer canary-123456"})


def test_a_missing_variable_makes_only_that_server_invalid_and_names_itself() -> None:
    """CFG-5: the sentence has the variable and the key."""
    text = reason({"command": "x", "env": {"KEY": "${NOT_THERE}"}})
    assert "NOT_THERE" in text
    assert "`env.KEY`" in text
    assert valid({"command": "x", "env": {"KEY": "${EMPTY}"}}).env == {"KEY": ""}


def test_a_tilde_is_the_home_folder_where_a_path_begins(tmp_path: Path) -> None:
    """CFG-5: in command, cwd and args; not in the middle of a text, not in another's home."""
    server = valid({"command": "~/bin/x", "cwd": "~", "args": ["~/a", "~", "x~/b", "~root/c", "--p=~/d"]}, base=tmp_path)
    assert (server.command, server.cwd) == ("/home/me/bin/x", "/home/me")
    assert server.args == ("/home/me/a", "/home/me", "x~/b", "~root/c", "--p=~/d")


def test_a_relative_cwd_starts_from_the_file(tmp_path: Path) -> None:
    """CFG-2: not from wherever the program was started."""
    assert valid({"command": "x", "cwd": "sub"}, base=tmp_path).cwd == str(tmp_path / "sub")


def test_an_env_file_is_read_and_env_wins(tmp_path: Path) -> None:
    """CFG-3: `envFile`, from the configuration's folder; comments, quotes and `export` as usual."""
    (tmp_path / "s.env").write_text(
        '# c\n\nexport A=1 # one\nB=\'a # b\'\nC="x\\ny"\nA_TOKEN=from-file\nD=\nE=a#b\r\nF="two\nlines"\n', encoding="utf-8"
    )
    found = read({"command": "x", "envFile": "s.env", "env": {"D": "mine"}}, base=tmp_path)
    server = found.tools.mcp_servers["s"]
    assert isinstance(server, ServerConfig)
    assert server.env == {"A": "1", "B": "a # b", "C": "x\ny", "A_TOKEN": "from-file", "D": "mine", "E": "a#b", "F": "two\nlines"}
    assert found.secrets == {"from-file"}


def test_an_env_file_that_cannot_be_used_is_told_without_its_text(tmp_path: Path) -> None:
    """CFG-3: missing, or broken at a line."""
    assert "cannot be read" in reason({"command": "x", "envFile": "none.env"}, base=tmp_path)
    (tmp_path / "bad.env").write_text("A=1\ncanary-hunter2 canary-hunter2\n", encoding="utf-8")
    text = reason({"command": "x", "envFile": "bad.env"}, base=tmp_path)
    assert "line 2" in text
    assert "canary-hunter2" not in text


def test_numbers_and_bools_stand_for_their_text() -> None:
    """CFG-2: `args: [8080, true]` and `env: {DEBUG: 1}` are what people write."""
    found = read({"command": "x", "args": [8080, True, 1.5], "env": {"DEBUG": 1, "ON": False, "GONE": None}})
    server = found.tools.mcp_servers["s"]
    assert isinstance(server, ServerConfig)
    assert (server.args, server.env) == (("8080", "true", "1.5"), {"DEBUG": "1", "ON": "false"})
    assert not found.problems


@pytest.mark.parametrize(
    ("entry", "attribute", "value"),
    [
        ({"transport": "http", "url": "http://h/sse"}, "type", TransportType.HTTP),
        ({"transportType": "sse", "url": "http://h"}, "type", TransportType.SSE),
        ({"serverUrl": "http://h/mcp"}, "url", "http://h/mcp"),
        ({"httpUrl": "http://h/mcp"}, "url", "http://h/mcp"),
        ({"command": "x", "timeout": 60000}, "tool_timeout", 60.0),
        ({"command": "x", "timeout": 120}, "tool_timeout", 120.0),
        ({"command": "x", "timeout": "2m0s"}, "tool_timeout", 30.0),
        ({"command": "x", "timeout": 5, "toolTimeout": 7}, "tool_timeout", 7.0),
        ({"command": "x", "initTimeout": 60000}, "startup_timeout", 60.0),
        ({"command": "x", "startup_timeout_sec": 1200}, "startup_timeout", 1200.0),
        ({"command": "x", "startup_timeout_ms": 500}, "startup_timeout", 0.5),
        ({"command": ["x", "a"], "args": ["b"]}, "args", ("a", "b")),
        ({"command": "x", "autoApprove": ["t"]}, "approval", "never"),
    ],
)
def test_other_clients_words_are_understood_and_told(entry: Any, attribute: str, value: Any) -> None:
    """CFG-6: a copied entry works; each word that is not ours is named once."""
    found = read(entry)
    server = found.tools.mcp_servers["s"]
    assert isinstance(server, ServerConfig)
    assert getattr(server, attribute) == value
    assert len(found.problems) == 1
    assert found.problems[0].where.startswith("tools.mcpServers.s.")


@pytest.mark.parametrize(
    ("switches", "disabled", "told"),
    [
        ({"disabled": True}, True, 0),
        ({"enabled": False}, True, 0),
        ({"enabled": True}, False, 0),
        ({"isActive": False}, True, 0),
        ({"quarantined": True}, True, 0),
        ({"enabled": True, "disabled": True}, True, 1),
        ({"enabled": False, "disabled": False}, True, 1),
        ({"enabled": "perhaps"}, False, 1),
    ],
)
def test_every_off_switch_of_the_wild_switches_off(switches: Any, disabled: bool, told: int) -> None:
    """CFG-3: `disabled`, `enabled`, `isActive`, `quarantined`; contradicting ones count as off."""
    assert valid({"command": "x", **switches}).disabled is disabled
    assert len(read({"command": "x", **switches}).problems) == told


def test_null_is_the_default() -> None:
    """CFG-6: generated files are full of nulls."""
    entry = {"command": "x", "env": None, "url": None, "oauth": None, "timeout": None, "toolTimeout": None, "type": None}
    assert valid(entry) == valid({"command": "x"})


@pytest.mark.parametrize("value", ["canary-1\n", " canary-1", "canary\r\nX-Other: 1", "c\u00e4nary", "canary\x00"])
def test_a_header_that_cannot_be_sent_is_told_without_its_value(value: str) -> None:
    """CFG-5, CFG-6: a token that was read from a file often ends in a line break; no server is asked with half of it."""
    said = reason({"url": "http://h", "headers": {"X-Key": "${KEY}"}}, environ={"KEY": value})
    assert said == (
        'Server "s" has a key `headers` that must have values that are one line of ASCII without spaces around it, '
        "and that of X-Key is none."
    )


def test_what_a_request_can_carry_is_a_header() -> None:
    """CFG-2: names are tokens; a value may be empty and hold spaces and tabs."""
    assert valid({"url": "http://h", "headers": {"X_a.b": "a \tb", "X-Empty": ""}}).headers == {"X_a.b": "a \tb", "X-Empty": ""}
    assert 'not "X Key:"' in reason({"url": "http://h", "headers": {"X Key:": "v"}})
    assert "letters, digits and hyphens" in reason({"url": "http://h", "headers": {"": "v"}})


def test_another_clients_reference_in_a_value_is_told() -> None:
    """CFG-5: what others replace goes out as it is here; silence would hide that."""
    found = read({"url": "http://h", "headers": {"Authorization": "Bearer $GH_PAT", "X": "{env:K}", "Y": "%KEY%", "Z": "100%"}})
    assert [problem.where.rpartition(".")[2] for problem in found.problems] == ["Authorization", "X", "Y"]


def test_secrets_are_gathered_and_harmless_values_are_not() -> None:
    """CFG-8: values of references, of secret-looking names, of headers, of URLs and of arguments; never HOME, never short ones."""
    environ = {**ENVIRON, "PIN": "1234", "DB": "postgres://u:dbpassword@h/x"}
    stdio = read(
        {
            "command": "${HOME}/x",
            "args": ["${TOKEN}", "--api-key", "arg-secret", "redis://:redis-secret@h", "${DB}", "${HOME}/y"],
            "env": {"API_KEY": "env-secret", "PIN": "${PIN}", "PLAIN": "nothing-here"},
        },
        environ=environ,
    )
    assert stdio.secrets == {"canary-123456", "arg-secret", "redis-secret", "dbpassword", environ["DB"], "env-secret"}
    http = read(
        {
            "url": "https://user:url-secret@h/p?api_key=query-secret&q=nothing-here",
            "headers": {"Authorization": "Bearer header-secret", "X-Workspace": "workspace-secret", "accept": "nothing-here"},
            "auth": {"clientId": "nothing-here", "clientSecret": "auth-secret"},
        }
    )
    assert http.secrets == {"url-secret", "query-secret", "Bearer header-secret", "header-secret", "workspace-secret", "auth-secret"}


def test_no_reason_and_no_problem_ever_shows_a_value() -> None:
    """CFG-8: what is said of an entry names keys, not what they hold."""
    secret = "canary-live-very"
    for entry in (
        {"command": "x", "url": f"https://u:{secret}@h/{secret}"},
        {"url": f"ftp://{secret}"},
        {"url": f"https://[{secret}"},
        {"command": "x", "toolTimeout": secret, "timeout": secret, "retry": secret, "type": "stdio"},
        {"command": "x", "type": secret},
        {"command": "x", "args": secret, "env": {"A": [secret]}, "enabled": secret},
        {"command": "x", "env": secret, "headers": [secret]},
        {"url": "http://h", "headers": {"A": f"{secret} ${{input:{secret}}}"}},
    ):
        found = read(entry)
        assert secret not in repr(found.tools.mcp_servers["s"]) or isinstance(found.tools.mcp_servers["s"], ServerConfig)
        assert secret not in repr(found.problems)
