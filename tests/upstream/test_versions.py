"""The version of the protocol that a configuration asks for is the one that the server is offered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servers.raw_http import MODERN, RawHttp, Step
from support.connections import linked, raw

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("wanted", "offered"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("legacy", "2025-11-25")])
async def test_the_asked_for_version_is_offered(wanted: str, offered: str, tmp_path: Path) -> None:
    """TRA-1: `protocolVersion` of the handshake is what `initialize` says; the newest of that era where none is named."""
    journal = tmp_path / "journal"
    async with linked(raw("--journal", journal), protocol_version=wanted):
        messages = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [one["params"]["protocolVersion"] for one in messages if one.get("method") == "initialize"] == [offered]


def unsupported(*versions: str) -> Step:
    error = {"code": -32022, "message": "Unsupported protocol version", "data": {"supported": list(versions), "requested": "?"}}
    return Step(status=400, error=error)


async def test_a_server_that_names_another_version_is_asked_once_more_with_it() -> None:
    """TRA-1: -32022 names what it supports; a version of those that is known here is taken, though the first one was refused."""
    async with RawHttp(era="modern") as server:
        server.steps["server/discover"] = [unsupported("1999-01-01", MODERN), Step()]
        async with linked(server.entry) as link:
            assert (link.state, link.connection.info and link.connection.info.protocol) == ("ready", MODERN)
        assert [post["method"] for post in server.posts if "id" in post][:3] == ["server/discover", "server/discover", "tools/list"]


@pytest.mark.parametrize(("versions", "probes"), [((MODERN,), 2), (("1999-01-01",), 1), ((), 1)])
async def test_a_server_that_refuses_what_it_names_is_greeted_as_an_older_one(versions: tuple[str, ...], probes: int) -> None:
    """TRA-1: it is asked for its era twice at most."""
    async with RawHttp() as server:
        server.steps["server/discover"] = [unsupported(*versions)]
        async with linked(server.entry) as link:
            assert link.state == "ready"
        asked = [post["method"] for post in server.posts if "id" in post]
        assert asked[: probes + 1] == ["server/discover"] * probes + ["initialize"]
