"""A call against what its server lists when it is sent: what is known of a server's tools, and for how long."""

from __future__ import annotations

from typing import Any, cast

import pytest

from toolbay.errors import BadCall
from toolbay.freshness import REMEMBERED, Freshness
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing


class Scripted:
    """Stands where a connection stands: its name and listing are read."""

    name = "s"
    listing: Listing | None = None


class Calls:
    """Calls of one server's tools, judged by what it has listed."""

    def __init__(self) -> None:
        self.freshness = Freshness()
        self.server = Scripted()

    def listed(self, **tools: str) -> None:
        """The server lists tools that each need an argument of this name."""
        items = [{"name": name, "inputSchema": {"type": "object", "required": [argument]}} for name, argument in tools.items()]
        self.server.listing = Listing(tools=tuple(items))
        self.freshness.see(cast("Connection", self.server))

    def judged(self, tool: str, **arguments: Any) -> str:
        """Why a call may not be sent; empty where it may."""
        try:
            self.freshness.admit(cast("Connection", self.server), ("tools", tool), {"arguments": arguments}, lambda _name: None)
        except BadCall as error:
            return str(error)
        return ""


def test_a_call_is_judged_again_only_where_what_its_tool_takes_has_changed() -> None:
    """LIF-6, SCH-2: also by a tool that was gone in between."""
    calls = Calls()
    calls.listed(a="x", b="x")
    assert calls.judged("a", y=1) == "", "who chose it was told so already"
    calls.listed(b="x")
    assert calls.judged("a", x=1) == "it was not sent: s does not list it any more"
    calls.listed(a="y", b="x")
    assert "what it takes has changed" in calls.judged("a", x=1)
    assert (calls.judged("a", y=1), calls.judged("b", z=1)) == ("", "")


@pytest.mark.parametrize(("others", "known"), [(REMEMBERED - 1, True), (REMEMBERED, False)])
def test_a_server_that_lists_other_tools_each_time_is_not_remembered_without_end(others: int, known: bool) -> None:
    """I3, LIF-3: names may be made anew with each list; what was gone for longest is let go."""
    calls = Calls()
    calls.listed(a="x")
    for number in range(others):
        calls.listed(**{f"t{number}": "x"})
    calls.listed(last="x")
    calls.listed(a="y")
    assert bool(calls.judged("a", x=1)) is known
