"""Where the offers of a listing are made."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from support import servers
from toolbay.artifacts import Artifacts
from toolbay.assembly import LIGHT, Assembly
from toolbay.lock import UNPINNED
from toolbay.types import Json
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing

pytestmark = pytest.mark.anyio


class Scripted:
    """Stands where a connection stands: its name, configuration and listing are read."""

    name = "s"
    config = servers.config(servers.stdio("x"))
    listing: Listing | None = None


class Watched(dict[str, Any]):
    """A listed item that knows which threads have read it."""

    readers: frozenset[int] = frozenset()

    def get(self, *args: Any) -> Any:
        self.readers |= {threading.get_ident()}
        return super().get(*args)


def assembly(tmp_path: Path) -> Assembly:
    return Assembly(Artifacts(tmp_path, max_bytes=1000, max_files=10, max_age_days=1))


def offered(made: Assembly, scripted: Scripted) -> list[str]:
    tools, _ = made.tools({"s": cast("Connection", scripted)}, {"s": UNPINNED})
    return [tool.name for tool in tools]


@pytest.mark.parametrize("size", [1, LIGHT])
async def test_attack_29_the_offers_of_a_heavy_listing_are_made_beside_the_event_loop(tmp_path: Path, size: int) -> None:
    """Attack 29: a schema that is much work to translate holds up nobody; a light one is not worth a thread."""
    schema: Json = {"type": "object", "properties": {"x": {"description": "x" * size}}}
    item = Watched(name="t", inputSchema=schema)
    made, scripted, listing = assembly(tmp_path), Scripted(), Listing(tools=(item,))
    await made.prepare(cast("Connection", scripted), listing)
    assert item.readers
    assert (threading.get_ident() in item.readers) == (size < LIGHT)
    item.readers = frozenset()
    scripted.listing = listing
    assert offered(made, scripted) == ["mcp_s_t"]
    assert not item.readers, "what was prepared is not made again"


async def test_what_was_prepared_for_another_listing_is_not_offered(tmp_path: Path) -> None:
    """LIF-2: only the listing that a connection has now says what there is; without one there is nothing."""
    made, scripted = assembly(tmp_path), Scripted()
    first = Listing(tools=({"name": "first", "inputSchema": {}},))
    await made.prepare(cast("Connection", scripted), first)
    assert offered(made, scripted) == []
    scripted.listing = replace(first, tools=({"name": "second", "inputSchema": {}},))
    assert offered(made, scripted) == ["mcp_s_second"]
