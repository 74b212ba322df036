"""Answers that are too much: packed ones that unpack to gigabytes, endless ones, headers without end."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Iterator

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from net.wires import Handler, Script, Small, always, answer, chunk
from toolbay.errors import ServerError
from toolbay.net import body, http
from toolbay.net.guard import Policy

pytestmark = pytest.mark.anyio

PACKED = "Content-Encoding: gzip"


def bomb(megabytes: int) -> bytes:
    """Zeros, packed a thousand times, in members of 4 MB each."""
    return gzip.compress(bytes(4 * 2**20), 9) * (megabytes // 4)


def here() -> httpx2.AsyncClient:
    return http.client(policy=Policy(("127.0.0.1/32",)), proxy="", resolver=Script().knows("mcp.test", ["127.0.0.1"]))


async def fetch(handler: Handler) -> httpx2.Response:
    async with Small(handler) as server, here() as client:
        return await client.get(f"http://mcp.test:{server.port}/")


async def refusal(handler: Handler) -> str:
    """The sentence of a refused answer."""
    with pytest.raises(httpx2.RemoteProtocolError) as caught:
        await fetch(handler)
    assert isinstance(caught.value.__cause__, ServerError)
    assert str(caught.value) == str(caught.value.__cause__)
    return str(caught.value)


async def test_attack_19_a_gzip_bomb_is_a_clear_error_and_costs_little() -> None:
    """Attack 19: 400 kB that would be 400 MB are given up before a tenth of it."""
    packed = bomb(400)
    assert len(packed) < 500_000
    tracemalloc.start()
    try:
        text = await refusal(always(answer(packed, PACKED)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "unpack to more than 32 MB" in text
    assert "has been carried out" in text
    assert peak < 100_000_000


async def test_attack_19_a_bomb_in_an_event_stream_is_given_up_as_well() -> None:
    """Attack 19: an event stream has no end, but a ratio."""
    text = await refusal(always(answer(bomb(100), PACKED, "Content-Type: text/event-stream")))
    assert "unpack to more than 32 MB" in text


async def test_a_large_answer_that_packs_well_is_read() -> None:
    """REN-4: ten megabytes of one letter are a result like any other."""
    letters = b"x" * 10_000_000
    assert (await fetch(always(answer(gzip.compress(letters), PACKED)))).content == letters


async def test_the_answer_that_was_unpacked_says_nothing_of_its_packing() -> None:
    """Nobody above unpacks it once more."""
    response = await fetch(always(answer(gzip.compress(b"hello"), PACKED, "X-Kept: 1")))
    assert (response.text, "content-encoding" in response.headers, response.headers["x-kept"]) == ("hello", False, "1")


async def test_only_gzip_is_asked_for() -> None:
    """Attack 19: whatever the caller's headers say."""
    async with Small(always(answer())) as server, here() as client:
        await client.get(f"http://mcp.test:{server.port}/", headers={"Accept-Encoding": "br, zstd"})
        assert server.headers[0]["accept-encoding"] == "gzip, identity"


@pytest.mark.parametrize("packing", ["br", "zstd", "deflate", "gzip, gzip", "gzip, br", "compress"])
async def test_other_packings_are_refused(packing: str) -> None:
    """Attack 19: what is not unpacked within bounds is not unpacked."""
    assert f"packed its answer as {packing}" in await refusal(always(answer(b"x", f"Content-Encoding: {packing}")))


async def test_an_error_in_another_packing_is_still_that_error() -> None:
    """TRA-3: the status says what happened; its page can be done without."""
    response = await fetch(always(answer(b"x", "Content-Encoding: br", status="503 Busy")))
    assert (response.status_code, response.content) == (503, b"")


@pytest.mark.parametrize("name", ["identity", "Identity", "", "x-gzip", "GZIP", "identity, gzip"])
async def test_harmless_names_of_packings_are_understood(name: str) -> None:
    """Interoperability: RFC 9110, section 8.4.1."""
    content = gzip.compress(b"hello") if "gzip" in name.lower() else b"hello"
    assert (await fetch(always(answer(content, f"Content-Encoding: {name}")))).text == "hello"


async def test_a_packed_answer_that_is_cut_off_is_not_a_short_one() -> None:
    """H13: half an answer is none."""
    assert "ends in the middle" in await refusal(always(answer(gzip.compress(b"hello" * 99)[:-9], PACKED)))


async def test_what_is_not_gzip_is_said_so() -> None:
    """H13: a wrong label."""
    assert "not the gzip it is said to be" in await refusal(always(answer(b"hello", PACKED)))


async def test_a_packed_answer_without_a_body_is_empty() -> None:
    """Interoperability: some servers label even what has no body."""
    assert (await fetch(always(answer(b"", PACKED)))).content == b""


async def test_a_body_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 20: readers without a limit of their own are covered; the limit is made small here."""
    monkeypatch.setattr(http, "BODY_LIMIT", 2**20)

    async def endless(_first: str, _headers: dict[str, str], _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(chunk(bytes(65536)))
            await writer.drain()

    assert "more than 1 MB" in await refusal(endless)


async def test_an_event_stream_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream runs for days; its reader bounds each event."""
    monkeypatch.setattr(http, "BODY_LIMIT", 1000)
    response = await fetch(always(answer(b"data: x\n\n" * 1000, "Content-Type: text/event-stream; charset=utf-8")))
    assert len(response.content) == 9000


async def test_headers_without_measure_are_refused() -> None:
    """Attack 20: 80 kB of headers."""
    assert "more than 64 kB of headers" in await refusal(always(answer(b"", *(f"X-{number}: {'x' * 1000}" for number in range(80)))))


async def test_headers_without_end_are_refused() -> None:
    """Attack 20: the parser's own limit holds before ours."""

    async def endless(_first: str, _headers: dict[str, str], _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    with pytest.raises(httpx2.RemoteProtocolError):
        await fetch(endless)


async def test_a_fetched_document_is_bounded() -> None:
    """Attack 20: `get` reads as much as its caller allows."""
    async with Small(always(answer(b"x" * 3000))) as server, here() as client:
        url = f"http://mcp.test:{server.port}/"
        assert len((await http.get(client, url, limit=3000)).content) == 3000
        with pytest.raises(httpx2.RemoteProtocolError, match="more than 2 kB"):
            await http.get(client, url, limit=2500)


def unpack(parts: Iterator[bytes]) -> bytes:
    inflater = body._Inflater()
    found = b"".join(piece for part in parts for piece in inflater.feed(part))
    inflater.finish()
    return found


@given(members=st.lists(st.binary(max_size=300).map(lambda data: data * 400), min_size=1, max_size=3), step=st.integers(1, 999))
def test_whatever_was_packed_comes_out_in_whatever_pieces_it_came(members: list[bytes], step: int) -> None:
    """REN-4: several members, padding after them, pieces cut anywhere (RFC 1952)."""
    packed = b"".join(map(gzip.compress, members)) + bytes(7)
    assert unpack(packed[start : start + step] for start in range(0, len(packed), step)) == b"".join(members)


def test_nothing_is_held_back_until_more_comes() -> None:
    """TRA-8: an event is passed on when its last byte is here, also where it ends just over a piece."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    packed = packer.compress(bytes(body.PIECE + 100)) + packer.flush()
    for end in range(len(packed)):
        found = sum(map(len, body._Inflater().feed(packed[:end])))
        assert found == len(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed[:end]))
