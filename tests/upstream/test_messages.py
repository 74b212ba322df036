"""What of a text that the parser does not take is a message all the same: one bad place costs that place, and no list or result."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json

from servers.raw_http import RawHttp, Step
from servers.raw_sse import RawSse
from support.connections import linked, raw
from toolbay import App, parse
from toolbay.errors import BadCall
from toolbay.upstream.messages import DEEPEST, LONGEST_NUMBER, MENDED_AT_MOST, as_message, mended, message

pytestmark = pytest.mark.anyio

HALF = b'"cut \\ud83d"'
DEEP = b'{"x":' * 5_000 + b'"]}"' + b"}" * 5_000
LONG = b"9" * 5_000
PLACES = pytest.mark.parametrize("place", [HALF, DEEP, LONG], ids=["half of a character", "nested without end", "a number without end"])

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@asynccontextmanager
async def served_over(transport: str) -> AsyncGenerator[Any]:
    if transport == "stdio":
        yield raw()
    elif transport == "http":
        async with RawHttp() as server:
            yield server.entry
    else:
        async with RawSse().running() as events:
            yield {"type": "sse", "url": f"{events.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}


@given(values, st.booleans())
def test_what_the_parser_takes_is_mended_to_itself(value: Any, escaped: bool) -> None:
    """SCH-3: nothing is touched but what is in the way."""
    data = json.dumps([value], ensure_ascii=escaped).encode()
    assert mended(data) == from_json(data)


members = st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), values)
near = st.builds(
    lambda some, more: {"jsonrpc": "2.0", "id": 1, **some, **more},
    st.sampled_from([{}, {"result": {}}, {"error": {"code": 1, "message": "m"}}, {"method": "m"}]),
    members,
)


@given(near | values)
@example({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "m"}})
def test_a_short_look_at_an_answer_finds_what_a_look_at_all_kinds_finds(value: Any) -> None:
    """SCH-3: whatever else a server puts into it."""
    try:
        of_all = jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        of_all = None
    assert as_message(value) == of_all
    assert type(as_message(value)) is type(of_all)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'["\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\\\ud83d", "\\n"]', ["\ufffd", "\ufffd", "\U0001f600", "\\ud83d", "\n"]),
        (b'{"\\ud83d": 1}', {"\ufffd": 1}),
        (b"[" + b"1" * LONGEST_NUMBER + b", 2, -1e" + b"3" * LONGEST_NUMBER + b"]", [None, 2, None]),
        (b'["' + b"1" * LONGEST_NUMBER + b'"]', ["1" * LONGEST_NUMBER]),
        (b'["\xff[[{", "]"]', ["\ufffd[[{", "]"]),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'["unfinished', None),
        (b"Server is listening [1", None),
        (b"]" * 500, None),
        (b"", None),
    ],
)
def test_each_place_is_mended_by_itself(text: bytes, value: Any) -> None:
    assert mended(text) == value


@pytest.mark.parametrize("extra", [0, 1])
def test_values_are_cut_below_their_deepest_level(extra: int) -> None:
    """SCH-3: brackets in strings open nothing; what stands beside stays."""
    levels = DEEPEST + extra - 1
    found: Any = mended(b"[" * levels + b'["[[[[", "]"]' + b"]" * levels)
    for _ in range(levels):
        (found,) = found
    assert found == (None if extra else ["[[[[", "]"])
    assert mended(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"b":2}')["b"] == 2


async def test_a_text_of_brackets_alone_holds_nobody_up() -> None:
    """P9, I4: mending is bounded, and what is much of it is done beside everything else."""
    with anyio.fail_after(20):
        assert await message(b"[" * MENDED_AT_MOST) is None
        assert await message(b'["\\' * (MENDED_AT_MOST // 3)) is None
        assert await message(b"[" * (2 * MENDED_AT_MOST)) is None


@PLACES
async def test_a_bad_place_in_a_list_costs_that_place(tmp_path: Path, place: bytes) -> None:
    """SCH-3: over pipes, where a list that cannot be read would cost the whole server."""
    put, definitions = tmp_path / "put", tmp_path / "definitions"
    put.write_bytes(place)
    definitions.write_text(json.dumps({"note": {"inputSchema": {"type": "object", "properties": {"x": {"default": "?!"}}}}}))
    async with linked(raw("--definitions", definitions, "--put", put)) as link:
        assert link.state == "ready", link.connection.error
        assert "echo" in link.tools
        assert await link.call("echo", {"text": "good"}) == "good"


async def test_a_text_that_was_cut_in_a_character_arrives(tmp_path: Path) -> None:
    """P8: JavaScript writes half of an emoji as an escape of its own."""
    put = tmp_path / "put"
    put.write_bytes(HALF)
    async with linked(raw("--put", put)) as link:
        assert await link.call("echo", {"text": "?!"}) == "cut \ufffd"


@PLACES
@pytest.mark.parametrize("sse", [False, True], ids=["JSON", "events"])
async def test_a_bad_place_in_an_answer_over_http_costs_that_place(place: bytes, sse: bool) -> None:
    """SCH-3: the same in a body and in an event."""

    def spoilt(reply: bytes) -> list[Any]:
        reply = reply.replace(b'"content"', b'"structuredContent": {"x": ' + place + b'}, "content"')
        kind, body = ("text/event-stream", b"data: " + reply + b"\n\n") if sse else ("application/json", reply)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return [head.encode() + body]

    async with RawHttp() as server, linked(server.entry) as link:
        server.steps["echo"] = [Step(wire=spoilt)]
        assert await link.call("echo", {"text": "good"}) == "good"


@pytest.mark.parametrize(
    "answer", ['"' + "7" * 5_000 + '"', "7" * 400, '"x"', "null", "[]"], ids=["text", "number", "word", "null", "list"]
)
async def test_an_answer_under_an_id_that_is_none_costs_nothing(answer: str) -> None:
    """P11: whatever the id is, the session lives on and the call gets its own answer."""
    async with linked(raw("--other-id", f"echo={answer}")) as link:
        assert await link.call("echo", {"text": "good"}) == "good"
        assert len(link.heard.states) == 2, "connecting, ready"


@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_arguments_that_cannot_be_written_cost_their_call(transport: str) -> None:
    """CAL-6: they are not sent, and whatever else is under way on that connection goes on."""
    deep: Any = 1
    for _ in range(400):
        deep = {"x": deep}
    async with served_over(transport) as entry, linked(entry) as link:
        refused = await link.outcome("echo", {"text": "hello", "x": deep})
        assert isinstance(refused, BadCall), refused
        assert "nothing was sent" in str(refused)
        assert await link.call("echo", {"text": "good"}) == "good"
        assert link.heard.states == ["connecting", "ready"]


@pytest.mark.parametrize("digits", [400, 5_000])
async def test_a_wait_of_any_length_before_a_stream_is_resumed_costs_nothing(digits: int) -> None:
    """H9: `retry` of an event stream is a number of any size."""

    def waiting(reply: bytes) -> list[Any]:
        body = b"retry: " + b"9" * digits + b"\n\ndata: " + reply + b"\n\n"
        return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body) + body]

    async with RawHttp() as server, linked(server.entry) as link:
        server.steps["echo"] = [Step(wire=waiting)]
        assert await link.call("echo", {"text": "good"}) == "good"
        assert link.heard.states == ["connecting", "ready"]


async def test_a_code_of_any_length_leaves_room_for_the_words() -> None:
    """I5: an error of 500 characters at the most."""
    async with App(parse({"mcpServers": {"s": raw("--error", f"note={'9' * 400}")}})) as app:
        await app.settle()
        told = (await app.call("mcp_s_note", {})).text
    assert "is refused, as told" in told
    assert len(told) <= 500
