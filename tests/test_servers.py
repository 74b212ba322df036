"""The servers that other tests lean on are there and do what their names say, seen through the official SDK's client."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from support import servers
from support.processes import MARK, Footprint, alive, eventually, leftovers, marked

pytestmark = pytest.mark.anyio


def client(entry: servers.Entry) -> Client:
    if entry["type"] == "stdio":
        return Client(stdio_client(StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])))
    return Client((sse_client if entry["type"] == "sse" else streamable_http_client)(entry["url"]))


async def ask(entry: servers.Entry, tool: str, arguments: dict[str, Any]) -> str:
    with anyio.fail_after(60):
        async with client(entry) as connected:
            result = await connected.call_tool(tool, arguments)
            assert not result.is_error, result
            return "\n".join(block.text for block in result.content if block.type == "text")


async def test_the_node_servers_answer(tmp_path: Path) -> None:
    """TRA-1: the servers of tests/servers/package.json, over stdio."""
    assert "Echo: hi" in await ask(servers.everything_stdio(), "echo", {"message": "hi"})
    assert "report.pdf" in await ask(servers.filesystem(servers.SAMPLE), "list_directory", {"path": str(servers.SAMPLE)})
    assert "entities" in await ask(servers.memory(tmp_path / "graph.json"), "read_graph", {})


async def test_the_pdf_server_reads_one_page() -> None:
    """TRA-1: a page of a real PDF, as text."""
    sources = [{"path": str(servers.SAMPLE / "report.pdf"), "pages": [3]}]
    text = await ask(servers.pdf(), "read_pdf", {"sources": sources})
    assert "187 millimetres" in text
    assert "48,250" not in text, "page four was not asked for"


async def test_the_python_servers_answer() -> None:
    """TRA-1: servers from the Python registry, over stdio."""
    assert "timezone" in await ask(servers.time(), "get_current_time", {"timezone": "Asia/Tokyo"})
    assert "commit" in (await ask(servers.git(servers.ROOT), "git_log", {"repo_path": str(servers.ROOT), "max_count": 1})).lower()


@pytest.mark.parametrize("entry", [servers.sdk1, servers.sdk2, servers.raw])
async def test_our_own_servers_answer_over_stdio(entry: Any, tmp_path: Path) -> None:
    """TRA-1: both generations of the SDK, and none."""
    effects = tmp_path / "effects"
    assert await ask(entry("--effects", effects), "note", {"text": "note"}) in {"note", "noted: note"}
    assert effects.read_text(encoding="utf-8") == "note\n"


@pytest.mark.parametrize(("entry", "era"), [(servers.sdk1, "legacy"), (servers.sdk2, "legacy"), (servers.sdk2, "auto")])
async def test_our_servers_ask_the_person_in_both_eras(entry: Any, era: Any) -> None:
    """TRA-1: an elicitation goes to the client and its answer comes back."""

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    asked = entry()
    transport = stdio_client(StdioServerParameters(command=asked["command"], args=asked["args"]))
    with anyio.fail_after(60):
        async with Client(transport, mode=era, elicitation_callback=answer) as connected:
            result = await connected.call_tool("ask_name", {})
    assert "hello Ada" in str(result.content)


@pytest.fixture(params=["sse", "http"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["sdk1_serving", "sdk2_serving", "everything_serving"])
def listening(request: pytest.FixtureRequest, mode: Any) -> Generator[servers.Running]:
    with getattr(servers, request.param)(mode) as running:
        yield running


async def test_servers_over_http_and_sse_answer(listening: servers.Running) -> None:
    """TRA-1: a process that listens, and is gone after the test."""
    everything = "everything" in str(listening.process.args)
    assert "hi" in await ask(listening.entry, "echo", {"message" if everything else "text": "hi"})


async def test_a_server_over_http_is_gone_after_its_block() -> None:
    """LIF-1: the helper itself leaves nothing."""
    before = Footprint.now()
    with servers.sdk2_serving("http") as running:
        assert alive(running.process.pid)
    assert not before.grown()


async def test_a_marked_child_that_left_the_process_tree_is_found(tmp_path: Path) -> None:
    """LIF-1: what the leak tests rely on."""
    effects, env = tmp_path / "effects", marked()
    with anyio.fail_after(60):
        async with client(servers.raw("--spawn-child", "--effects", effects, env=env)):
            await eventually(lambda: len(leftovers(env[MARK])) == 2, "the server and its child")
    child = int(effects.read_text(encoding="utf-8").split()[1])
    if alive(child):
        servers.end_tree(child)
    await eventually(lambda: not leftovers(env[MARK]), "an end of all that was started")
