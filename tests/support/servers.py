"""The real servers that tests talk to: each function gives an entry as it stands in a configuration file.

`config()` makes a `ServerConfig` of an entry. Where a server is not installed the test is skipped, with the reason.
Servers over HTTP are context managers: the process listens when the block begins and is gone, with its whole tree,
when it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from support.processes import end_tree, wait_until
from toolbay.config.models import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "tests" / "servers"
SAMPLE = ROOT / "demo" / "sample"
"""A folder of real files: notes, a table, and report.pdf."""
LOOPBACK = ["127.0.0.0/8"]
"""What a server on this machine needs in `ssrfWhitelist`."""

Entry = dict[str, Any]
Mode = Literal["stdio", "sse", "http"]


def config(entry: Mapping[str, Any], **more: Any) -> ServerConfig:
    """The entry as a value, with further fields by their Python names."""
    return ServerConfig.model_validate({**entry, **more})


def stdio(command: str | Path, *args: str | Path, env: Mapping[str, str] | None = None) -> Entry:
    return {"type": "stdio", "command": str(command), "args": [str(arg) for arg in args], "env": dict(env or {})}


def everything_stdio() -> Entry:
    """The official reference server, in TypeScript: all of the protocol's features."""
    return stdio(*_node("@modelcontextprotocol/server-everything"), "stdio")


def filesystem(folder: Path, *, env: Mapping[str, str] | None = None) -> Entry:
    return stdio(*_node("@modelcontextprotocol/server-filesystem"), folder, env=env)


def memory(file: Path) -> Entry:
    """The knowledge graph server, keeping its graph in `file`."""
    return stdio(*_node("@modelcontextprotocol/server-memory"), env={"MEMORY_FILE_PATH": str(file)})


def pdf() -> Entry:
    """One tool, `read_pdf`: {"sources": [{"path": ..., "pages": [3]}], "include_page_count": true}."""
    return stdio(*_node("@sylphx/pdf-reader-mcp"))


def git(repository: Path) -> Entry:
    return stdio(sys.executable, "-m", _module("mcp_server_git"), "--repository", repository)


def time(timezone: str = "UTC") -> Entry:
    return stdio(sys.executable, "-m", _module("mcp_server_time"), "--local-timezone", timezone)


def sdk1(*args: str | Path, env: Mapping[str, str] | None = None) -> Entry:
    """Our server on the official SDK's first generation."""
    return stdio(_first_generation(), SERVERS / "sdk1_server.py", "stdio", *args, env=env)


def sdk2(*args: str | Path, env: Mapping[str, str] | None = None) -> Entry:
    """Our server on the official SDK's second generation."""
    return stdio(sys.executable, SERVERS / "sdk2_server.py", "stdio", *args, env=env)


def raw(*faults: str | Path, env: Mapping[str, str] | None = None) -> Entry:
    """The server without an SDK that does the wrong thing it is told to: see tests/servers/raw_server.py."""
    return stdio(sys.executable, SERVERS / "raw_server.py", *faults, env=env)


@dataclass(frozen=True)
class Running:
    """A server process that listens."""

    url: str
    process: subprocess.Popen[bytes]
    type: Literal["sse", "streamableHttp"]

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    @property
    def entry(self) -> Entry:
        return {"type": self.type, "url": self.url, "ssrfWhitelist": LOOPBACK}

    def kill(self) -> None:
        """Die as a crashed server does: at once, and without a word to its clients."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def sdk2_serving(mode: Literal["sse", "http"], port: int = 0, *args: str | Path) -> Generator[Running]:
    """Our second-generation server over HTTP or SSE; port 0 is any free one."""
    with _own_server([sys.executable, str(SERVERS / "sdk2_server.py")], mode, port, args) as running:
        yield running


@contextlib.contextmanager
def sdk1_serving(mode: Literal["sse", "http"], port: int = 0, *args: str | Path) -> Generator[Running]:
    """Our first-generation server over HTTP or SSE; port 0 is any free one."""
    with _own_server([str(_first_generation()), str(SERVERS / "sdk1_server.py")], mode, port, args) as running:
        yield running


@contextlib.contextmanager
def everything_serving(mode: Literal["sse", "http"], port: int = 0) -> Generator[Running]:
    """The official reference server over HTTP or SSE."""
    port = port or free_port()
    argv = [*_node("@modelcontextprotocol/server-everything"), "streamableHttp" if mode == "http" else "sse"]
    with _process(argv, {"PORT": str(port)}) as (process, output):
        wait_until(lambda: _listens(port) or _ended(process, output), f"{argv[1]} listening on port {port}", 60)
        url = f"http://127.0.0.1:{port}/{'mcp' if mode == 'http' else 'sse'}"
        yield Running(url, process, "streamableHttp" if mode == "http" else "sse")


@dataclass(frozen=True)
class Authorized:
    """An MCP server that takes the tokens of an authorization server, both on this machine."""

    entry: Entry
    origin: str
    """Where its own pages are, such as /counts of tests/servers/authorized.mjs."""


@contextlib.contextmanager
def authorized_serving(*, seconds: int = 3600, client: tuple[str, str] | None = None) -> Generator[Authorized]:
    """The official SDK's server behind oidc-provider, a certified authorization server (tests/servers/authorized.mjs).

    `seconds`: how long access tokens hold. `client`: id and secret of one that was registered by hand, to log in by itself.
    """
    if not (SERVERS / "node_modules" / "oidc-provider").is_dir():
        pytest.skip("oidc-provider is not installed: make setup")
    env = {"TOKEN_SECONDS": str(seconds), **({"OAUTH_CLIENT": client[0], "OAUTH_SECRET": client[1]} if client else {})}
    with _process([_node_program(), str(SERVERS / "authorized.mjs")], env) as (process, output):
        wait_until(lambda: "\n{" in f"\n{output.read_text()}" or _ended(process, output), "the addresses of the servers", 60)
        told = next(line for line in output.read_text().splitlines() if line.startswith("{"))
        url = str(json.loads(told)["mcp"])
        yield Authorized({"type": "streamableHttp", "url": url, "ssrfWhitelist": LOOPBACK}, url.removesuffix("/mcp"))


@contextlib.contextmanager
def typescript_oauth_serving() -> Generator[Authorized]:
    """The example of the official TypeScript SDK with its own authorization server, which takes tokens for itself only."""
    example = (
        SERVERS / "node_modules" / "@modelcontextprotocol" / "sdk" / "dist" / "esm" / "examples" / "server" / "simpleStreamableHttp.js"
    )
    if not example.is_file():
        pytest.skip("the TypeScript SDK is not installed: make setup")
    port, at = free_port(), free_port()
    argv = [_node_program(), str(example), "--oauth", "--oauth-strict"]
    with _process(argv, {"MCP_PORT": str(port), "MCP_AUTH_PORT": str(at)}) as (process, output):
        for number in (port, at):
            wait_until(lambda number=number: _listens(number) or _ended(process, output), f"{number} listening", 60)
        origin = f"http://localhost:{port}"
        yield Authorized({"type": "streamableHttp", "url": f"{origin}/mcp", "ssrfWhitelist": [*LOOPBACK, "::1/128"]}, origin)


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _own_server(argv: Sequence[str], mode: Literal["sse", "http"], port: int, args: Sequence[str | Path]) -> Generator[Running]:
    with _process([*argv, mode, str(port), *map(str, args)], {}) as (process, output):
        # The address is printed once the port is bound; connecting waits in the queue until the server takes it.
        wait_until(lambda: output.read_text().count("\n") or _ended(process, output), "the address of the server", 60)
        url = next(line for line in output.read_text().splitlines() if line.startswith("http://"))
        running = Running(url, process, "streamableHttp" if mode == "http" else "sse")
        wait_until(lambda: _listens(running.port) or _ended(process, output), f"{url} listening", 60)
        yield running


@contextlib.contextmanager
def _process(argv: Sequence[str], env: Mapping[str, str]) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """A process with its output in a file, so that it never waits for a reader."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as sink:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env={**os.environ, **env})
        try:
            yield process, output
        finally:
            end_tree(process.pid)
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ended(process: subprocess.Popen[bytes], output: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"the server ended with code {process.returncode}:\n{output.read_text()[-2000:]}")
    return False


def _node_program() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing, and with it the Node servers of the tests")
    return node


def _node(package: str) -> tuple[str, str]:
    """Node and the package's entry file; run directly, without npx, so that the child is the server itself."""
    node = _node_program()
    entry = SERVERS / "node_modules" / package / "dist" / "index.js"
    if not entry.exists():
        pytest.skip(f"{package} is not installed: make setup")
    return node, str(entry)


def _module(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make setup")
    return name


def _first_generation() -> Path:
    python = ROOT / ".venv-mcp1" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        pytest.skip("the environment with the SDK's first generation is not there: make setup")
    return python
