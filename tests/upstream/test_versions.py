"""The version of the protocol that a configuration asks for is the one that the server is offered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.connections import linked, raw

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("wanted", "offered"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("legacy", "2025-11-25")])
async def test_the_asked_for_version_is_offered(wanted: str, offered: str, tmp_path: Path) -> None:
    """TRA-1: `protocolVersion` of the handshake is what `initialize` says; the newest of that era where none is named."""
    journal = tmp_path / "journal"
    async with linked(raw("--journal", journal), protocol_version=wanted):
        messages = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [one["params"]["protocolVersion"] for one in messages if one.get("method") == "initialize"] == [offered]
