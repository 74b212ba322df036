"""Packages without a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbay.config import load, parse
from toolbay.config.launchers import bare_name, nameless, pinned, unpinned
from toolbay.config.models import InvalidServer, ServerConfig, TransportType
from toolbay.errors import ConfigError


def entry(command: str, *args: str) -> ServerConfig:
    return ServerConfig(type=TransportType.STDIO, command=command, args=args)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("npx -y @scope/server", "@scope/server"),
        ("npx -y @scope/server@latest /folder", "@scope/server@latest"),
        ("npx -y @scope/server@^1.2.3", "@scope/server@^1.2.3"),
        ("npx -y @scope/server@1.2.3 /folder", ""),
        ("npx --yes server@2026.1.4-beta.1", ""),
        ("/usr/bin/npx --package=server other", "server"),
        ("npx -p server@1.0.0 -- other", ""),
        ("npx.cmd server", "server"),
        ("npx ./server", ""),
        ("bunx server", "server"),
        ("uvx mcp-server-time", "mcp-server-time"),
        ("uvx mcp-server-time==2026.1.2", ""),
        ("uvx mcp-server-time@2026.1.2", ""),
        ("uvx --python 3.12 mcp-server-time", "mcp-server-time"),
        ("uvx --from mcp-server-time>=2 tool", "mcp-server-time>=2"),
        ("uvx --from mcp-server-time==2026.1.2 tool", ""),
        ("uvx --from git+https://example.com/x.git tool", ""),
        ("npx", ""),
        ("node server.js", ""),
    ],
)
def test_attack_16_a_package_without_an_exact_version_is_found(words: str, package: str) -> None:
    """SEC row 16: whoever owns the package decides what runs tomorrow."""
    command, *args = words.split()
    assert unpinned(entry(command, *args)) == package


@pytest.mark.parametrize(
    ("words", "has_none"),
    [
        ("npx", True),
        ("npx -y", True),
        ("npx.cmd --yes", True),
        ("uvx --python 3.12", True),
        ("npx -y server", False),
        ("npx -c weatherd", False),
        ("npx --call=weatherd", False),
        ("npx -p server", False),
        ("uvx --from server weatherd", False),
        ("node", False),
    ],
)
def test_a_launcher_that_is_told_no_package_is_found(words: str, has_none: bool) -> None:
    """TRA-8, CFG-6: it would print how it is used, or wait for ever; so its entry cannot be used, which is said without starting it."""
    command, *args = words.split()
    wrong = nameless(entry(command, *args))
    assert bool(wrong) is has_none
    read = parse({"mcpServers": {"s": {"command": command, "args": args}, "none": {"command": "x"}}}).tools.mcp_servers
    told = [f'Server "s" has arguments that {wrong}.'] if has_none else []
    assert [fault for server in read.values() if isinstance(server, InvalidServer) for fault in server.told] == told


def test_arguments_that_could_not_be_resolved_are_not_judged() -> None:
    """CFG-6: one fault, and not another one for what it leaves out; a reference that is empty names no package."""
    servers = {"mcpServers": {"s": {"command": "npx", "args": ["-y", "${PACKAGE}"]}}}
    for environ, said in (({}, "PACKAGE"), ({"PACKAGE": ""}, "name no package")):
        server = parse(servers, environ=environ).tools.mcp_servers["s"]
        assert isinstance(server, InvalidServer)
        assert len(server.told) == 1
        assert said in server.reason
    assert isinstance(parse(servers, environ={"PACKAGE": "weather"}).tools.mcp_servers["s"], ServerConfig)


@pytest.mark.parametrize("package", ["@scope/server", "@scope/server@latest", "@scope/server@^1.2.3"])
def test_a_package_has_a_name_and_can_be_pinned(package: str) -> None:
    """SEC row 16: a scope begins with the sign that a version begins with."""
    assert bare_name(package) == "@scope/server"
    assert pinned(package, "2.0.1") == "@scope/server@2.0.1"
    assert bare_name("weather[all]>=2") == "weather"
    assert bare_name("") == ""


def test_a_server_behind_an_address_launches_nothing() -> None:
    """SEC row 16: only commands download packages."""
    assert unpinned(ServerConfig(type=TransportType.HTTP, url="https://example.com/npx")) == ""


def test_the_entries_of_real_configurations_are_judged_without_complaint(shared_data: Path) -> None:
    """SEC row 16, CFG-6: what people write; the numbers are printed."""
    judged = loose = 0
    for file in sorted((shared_data / "configs").glob("*.json")):
        try:
            config = load(file)
        except ConfigError:
            continue
        for server in config.tools.mcp_servers.values():
            if isinstance(server, ServerConfig):
                judged += 1
                loose += bool(unpinned(server))
    print(f"entries: {judged}, without an exact version: {loose}")
    assert judged > 50
    assert 0 < loose < judged
