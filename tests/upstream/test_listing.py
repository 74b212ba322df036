"""What a server lists: to the end, within bounds, item by item; and again when it says that it changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import linked, raw
from support.processes import eventually
from toolbay.errors import CallTimeout, ConnectionLost, ServerError
from toolbay.types import Json
from toolbay.upstream import listing, streamable, subscription
from toolbay.upstream.engine import MODERN_PROTOCOL, ServerInfo
from toolbay.upstream.listing import MAX_ITEMS, MAX_PAGES, Listing

pytestmark = pytest.mark.anyio

Answer = Callable[[Json], Json]
"""What a scripted server makes of a list request's parameters."""


class Script:
    """An engine that answers lists from a script."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers
        self.asked: list[tuple[str, Json]] = []
        self.died = anyio.Event()
        self.info = ServerInfo(capabilities={name.partition("_")[0]: {} for name in answers})

    def last_words(self) -> None:
        return None

    async def request(self, method: str, params: Json, *, budget: Any, on_progress: Any = None, on_sent: Any = None) -> Json:
        self.asked.append((method, params))
        key = {"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts"}.get(method, "resources_templates")
        if key not in self._answers:
            raise ServerError("Method not found", code=-32601)
        return self._answers[key](params)


def tool(name: Any, **more: Any) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def names(made: Listing) -> list[str]:
    return [item["name"] for item in made.tools]


def pages(*parts: list[Json], cursors: list[str] | None = None) -> Answer:
    """One page after the other; `cursors` names those that lead to the further ones."""
    keys = cursors or [str(number) for number in range(1, len(parts))]

    def answer(params: Json) -> Json:
        at = keys.index(params["cursor"]) + 1 if "cursor" in params else 0
        return {"tools": parts[at], **({"nextCursor": keys[at]} if at < len(keys) else {})}

    return answer


async def test_a_listing_is_as_fresh_as_the_page_that_is_so_for_the_shortest_time() -> None:
    """LIF-6, 2026-07-28 caching: each page says it for itself; where none does, nothing is known."""

    def paged(params: Json) -> Json:
        return {"tools": [tool("b")], "ttlMs": 500} if params else {"tools": [tool("a")], "ttlMs": 60_000, "nextCursor": "1"}

    engine = Script(tools=paged, prompts=lambda _: {"prompts": [tool("p")], "ttlMs": 2_000})
    assert (await listing.read(engine)).fresh_for == 0.5
    assert (await listing.read(Script(tools=pages([tool("a")])))).fresh_for is None


async def test_a_list_is_paged_to_its_end() -> None:
    """LIF-3: every page, each cursor given back as it came."""
    script = Script(tools=pages([tool("a")], [], [tool("b"), tool("c")], cursors=["x y", "ü"]))
    made = await listing.read(script)
    assert names(made) == ["a", "b", "c"]
    assert [params for _, params in script.asked] == [{}, {"cursor": "x y"}, {"cursor": "ü"}]
    assert made.complaints == ()


async def test_an_empty_string_is_a_cursor_like_any_other() -> None:
    """LIF-3: only the absence of a cursor ends the list."""
    assert names(await listing.read(Script(tools=pages([tool("a")], [tool("b")], cursors=[""])))) == ["a", "b"]


@pytest.mark.parametrize("cursor", [None, 5, {}, []])
async def test_a_cursor_that_is_no_string_ends_the_list(cursor: Any) -> None:
    """LIF-3: `null` is what many servers send at the end."""
    made = await listing.read(Script(tools=lambda params: {"tools": [tool("a")], "nextCursor": cursor}))
    assert names(made) == ["a"]


async def test_a_cursor_that_repeats_ends_the_list_and_is_said() -> None:
    """LIF-3: with a bound."""
    script = Script(tools=lambda params: {"tools": [tool(f"t{params.get('cursor', '')}")], "nextCursor": "again"})
    made = await listing.read(script)
    assert names(made) == ["t", "tagain"]
    assert "repeats a cursor" in made.complaints[-1]


async def test_endless_pages_end_at_the_bound_of_pages() -> None:
    """LIF-3: with a bound."""
    script = Script(tools=lambda params: {"tools": [tool(f"t{len(script.asked)}")], "nextCursor": str(len(script.asked))})
    made = await listing.read(script)
    assert len(script.asked) == len(made.tools) == MAX_PAGES
    assert f"more than {MAX_PAGES} pages" in made.complaints[-1]


async def test_endless_items_end_at_the_bound_of_items() -> None:
    """LIF-3: with a bound."""
    script = Script(
        tools=lambda params: {"tools": [tool(f"{len(script.asked)}-{n}") for n in range(9000)], "nextCursor": str(len(script.asked))}
    )
    made = await listing.read(script)
    assert MAX_ITEMS < len(made.tools) < MAX_ITEMS + 9001
    assert "longer than" in made.complaints[-1]


async def test_what_one_item_has_wrong_costs_that_item() -> None:
    """SCH-3, LIF-3: the others stay, and it is said once for each."""
    bad: list[Any] = [None, 5, "x", [], {}, {"name": ""}, {"name": 7}, {"title": "nameless"}]
    made = await listing.read(Script(tools=lambda params: {"tools": [tool("a"), *bad, tool("b", inputSchema=5)]}))
    assert names(made) == ["a", "b"]
    assert made.complaints == ("one of its tools has no name and is left out",) * len(bad)


async def test_an_item_that_is_listed_twice_counts_once() -> None:
    """NAM-3: the first one; resources are told apart by URI, not by name."""
    made = await listing.read(Script(tools=pages([tool("a", title="first")], [tool("a", title="second")])))
    assert [item["title"] for item in made.tools] == ["first"]
    assert "lists 'a' twice among its tools" in made.complaints[0]
    both = [{"name": "note", "uri": "n://1"}, {"name": "note", "uri": "n://2"}]
    made = await listing.read(Script(resources=lambda params: {"resources": both}))
    assert list(made.resources) == both


@pytest.mark.parametrize("result", [{}, {"tools": None}, {"tools": {"a": 1}}, {"tools": "none"}])
async def test_a_list_that_is_none_is_said(result: Json) -> None:
    """LIF-3: read leniently, never a crash."""
    made = await listing.read(Script(tools=lambda params: result))
    assert made.tools == ()
    assert made.complaints == ("its list of tools is none",)


def failing(error: Exception) -> Answer:
    def answer(params: Json) -> Json:
        raise error

    return answer


async def test_a_list_that_fails_costs_that_list() -> None:
    """LIF-3: what it has besides is offered, and the failure is said."""
    script = Script(
        tools=lambda params: {"tools": [tool("a")]},
        resources=failing(ServerError("disk on fire", code=-1)),
        prompts=failing(CallTimeout("it gave no answer in time")),
    )
    made = await listing.read(script)
    assert names(made) == ["a"]
    assert made.complaints == (
        "its resources could not be listed: disk on fire",
        "its prompts could not be listed: it gave no answer in time",
    )


async def test_a_server_whose_only_list_fails_is_not_there() -> None:
    """LIF-3: tools that cannot be listed, and nothing else."""
    with pytest.raises(ServerError, match="disk on fire"):
        await listing.read(Script(tools=failing(ServerError("disk on fire", code=-1))))
    with pytest.raises(ConnectionLost):
        await listing.read(Script(tools=failing(ConnectionLost("gone")), prompts=lambda params: {"prompts": [{"name": "p"}]}))


async def test_a_method_that_the_server_does_not_know_is_no_complaint() -> None:
    """LIF-3: many advertise resources and know no templates."""
    made = await listing.read(Script(resources=lambda params: {"resources": [{"name": "r", "uri": "r://1"}]}))
    assert made.complaints == ()
    assert len(made.resources) == 1


async def test_only_what_the_server_says_it_has_is_asked_for() -> None:
    """LIF-3: a server without prompts is not asked for them."""
    script = Script(tools=lambda params: {"tools": []})
    await listing.read(script)
    assert [method for method, _ in script.asked] == ["tools/list"]


async def test_a_real_server_is_paged_to_its_end_and_an_endless_one_is_bounded() -> None:
    """LIF-3: over a pipe."""
    async with linked(raw("--pages", "4")) as link:
        assert link.tools == ["echo", "note", "slow", "page_1", "page_2", "page_3"]
    async with linked(raw("--endless-pages")) as link:
        assert link.state == "ready"
        assert link.tools == ["echo", "note", "slow", "page_1"]
        assert link.connection.listing is not None
        assert "repeats a cursor" in link.connection.listing.complaints[-1]


async def test_a_changed_list_is_read_again_once_for_many_announcements() -> None:
    """LIF-3: `list_changed` refreshes, debounced; the calls meanwhile go on."""
    async with linked(raw("--tools", "grow,echo")) as link:
        heard: list[int] = []
        link.connection.on_listing = lambda: heard.append(len(link.tools))
        for number in range(10):
            await link.call("grow", {"name": f"t{number}"})
        await eventually(lambda: len(link.tools) == 12, "all ten")
        assert heard[-1] == 12
        assert len(heard) <= 3, "ten announcements, few listings"
        assert await link.call("t9", {"text": "new"}) == "new"
        assert link.heard.states == ["connecting", "ready"]


@pytest.mark.parametrize("mode", ["stdio", "stdio-modern", "http", "sse", "http-legacy"])
async def test_a_real_server_that_grows_and_shrinks_is_followed(mode: str) -> None:
    """LIF-3: sent unasked in the handshake era, subscribed to since 2026-07-28."""
    more: Json = {"protocol_version": MODERN_PROTOCOL} if mode == "stdio-modern" else {}
    if mode == "http-legacy":
        more = {"protocol_version": "legacy"}
    if mode.startswith("stdio"):
        await _follow(servers.sdk2(), more)
    else:
        with servers.sdk2_serving("sse" if mode == "sse" else "http") as running:
            await _follow(running.entry, more)


async def _follow(entry: servers.Entry, more: Json) -> None:
    async with linked(entry, **more) as link:
        assert link.state == "ready", link.connection.error
        await link.call("grow", {"name": "sprout"})
        await eventually(lambda: "sprout" in link.tools, "the new tool")
        assert await link.call("sprout") == "I am sprout"
        await link.call("shrink", {"name": "sprout"})
        await eventually(lambda: "sprout" not in link.tools, "its end")
        assert link.heard.states == ["connecting", "ready"]


async def test_the_reference_server_is_followed() -> None:
    """LIF-3: server-everything adds tools once a client that can has said that it is there."""
    async with linked(servers.everything_stdio(), roots=["."]) as link:
        assert link.state == "ready", link.connection.error
        await eventually(lambda: any("root" in name for name in link.tools), f"a tool about roots in {link.tools}")


# -- what servers do with announcements and lists that they should not ------------------------------------------------


def listed(journal: Path) -> int:
    """How often the server was asked for the first page of its tools."""
    messages = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return len([one for one in messages if one.get("method") == "tools/list" and "cursor" not in one.get("params", {})])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("endless", "its list of tools has more than 100 pages: what it listed before stays"),
        ("repeated", "its list of tools repeats a cursor: what it listed before stays"),
        ("empty", "its list of tools repeats a cursor: what it listed before stays"),
        ("error", "its tools could not be listed: the list is spoilt, as told; what it listed before stays"),
    ],
)
async def test_a_list_that_comes_to_no_end_leaves_what_was_listed_before(how: str, said: str, tmp_path: Path) -> None:
    """L3: whatever is wrong with the new list, it is said, the tools stay, and the next good one counts."""
    spoil = tmp_path / "spoil"
    async with linked(raw("--tools", "grow,echo", "--spoil-list", spoil)) as link:
        spoil.write_text(how)
        await link.call("grow", {"name": "more"})
        await eventually(lambda: link.connection.listing and link.connection.listing.complaints, "a complaint")
        assert link.connection.listing is not None
        assert link.connection.listing.complaints[-1] == said
        assert link.tools == ["grow", "echo"]
        spoil.unlink()
        await link.call("grow", {"name": "again"})
        await eventually(lambda: link.tools == ["grow", "echo", "more", "again"], "the good list")
        assert link.connection.listing.complaints == ()
        assert link.heard.states == ["connecting", "ready"]


async def test_what_a_server_says_that_it_knows_no_more_goes() -> None:
    """LIF-3: a list that is refused as unknown is no failure to keep the old one for."""
    script = Script(tools=lambda params: {"tools": [tool("a")]}, prompts=failing(ServerError("unknown", code=-32601)))
    before = Listing(tools=(tool("b"),), prompts=({"name": "p"},))
    made = await listing.read(script, before=before)
    assert (names(made), made.prompts, made.complaints) == (["a"], (), ())


async def test_thousands_of_announcements_are_one_more_reading_or_two(tmp_path: Path) -> None:
    """L1: the call that they came with is answered, and nothing else is asked."""
    journal = tmp_path / "journal"
    async with linked(raw("--tools", "grow,echo", "--announce", "5000", "--journal", journal)) as link:
        assert listed(journal) == 1
        assert await link.call("grow", {"name": "more"}) == "grown"
        await eventually(lambda: "more" in link.tools, "the new tool")
        assert listed(journal) <= 3


async def test_a_server_that_announces_a_change_at_each_reading_is_asked_at_a_bounded_rate(tmp_path: Path) -> None:
    """L1: a few in a row, then one in ten seconds; nobody is told of a change that is none."""
    journal = tmp_path / "journal"
    async with linked(raw("--provoke", "--journal", journal)) as link:
        told: list[int] = []
        link.connection.on_listing = lambda: told.append(1)
        await eventually(lambda: listed(journal) == 1 + listing.RELIST_BURST, "the readings in a row")
        with pytest.raises(AssertionError, match="one more did not come about"):
            await eventually(lambda: listed(journal) > 1 + listing.RELIST_BURST, "one more", seconds=2.0)
        assert await link.call("echo", {"text": "calls go on"}) == "calls go on"
        assert not told


async def test_a_stream_that_was_lost_is_had_again_and_what_was_missed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-3, H9: the stream of 2025 is refused with 500 more than once; what changed meanwhile is seen once it is there again."""
    monkeypatch.setattr(streamable, "FIRST_DELAY", 0.05)
    async with RawHttp() as server:
        server.capabilities = {"tools": {"listChanged": True}}
        async with linked(server.entry) as link:
            await eventually(lambda: server.listeners == 1, "the stream")
            server.steps["GET"] = [Step(kind="status", status=500)]
            server.hang_up()
            await eventually(lambda: server.methods["GET"] >= 4, "attempts that are refused")
            server.steps["new"] = [Step()]
            server.steps["GET"] = []
            await eventually(lambda: "new" in link.tools, "what came while nobody could say so")
            server.steps["newer"] = [Step()]
            server.announce()
            await eventually(lambda: "newer" in link.tools, "what was announced on the new stream")
            assert link.heard.states == ["connecting", "ready"]


async def test_a_subscription_that_was_lost_is_asked_for_again_and_what_was_missed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-3: the same since 2026-07-28, once the server acknowledges the new subscription."""
    monkeypatch.setattr(subscription, "DELAYS", (0.05,))
    said = json.dumps({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}}})
    stream = {"Content-Type": "text/event-stream", "Connection": "close"}
    short = Step(kind="status", headers=stream, body=f"data: {said}\n\n".encode())
    held = Step(kind="silence")
    async with RawHttp(era="modern") as server:
        server.capabilities = {"tools": {"listChanged": True}}
        server.steps["subscriptions/listen"] = [short, Step(kind="status", status=500), Step(kind="status", status=503), held]
        async with linked(server.entry) as link:

            def asked(method: str) -> int:
                return len([post for post in server.posts if post["method"] == method])

            await eventually(lambda: asked("subscriptions/listen") == 4, "four subscriptions")
            assert asked("tools/list") == 1, "nothing was acknowledged since"
            server.steps["new"] = [Step()]
            server.steps["subscriptions/listen"] = [short, held]
            server.hang_up()
            await eventually(lambda: "new" in link.tools, "what came meanwhile")
