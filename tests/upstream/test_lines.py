"""Bytes to lines, and the ring that keeps the last ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolbay.upstream.lines import DEFAULT_LIMIT, Lines, LineTooLong, Ring

pieces = st.lists(
    st.sampled_from([b"", b"a", b"\n", b"\r\n", b"\r", b" ", b"\t", b"\xff", b'{"a": "b"}', "ü€".encode(), b"\x0b", b"\x00"]), max_size=30
)


def fed(chunks: list[bytes], limit: int = DEFAULT_LIMIT) -> list[bytes]:
    lines = Lines(limit)
    return [line for chunk in chunks for line in lines.feed(chunk)]


@given(pieces, st.lists(st.integers(0, 100), max_size=10))
@example([b"a\r", b"\nb\n"], [2])
@example([b"\n\n", b"a"], [])
@example([b"a\r\n"], [])
def test_any_chunking_gives_the_same_lines(parts: list[bytes], cuts: list[int]) -> None:
    """TRA-7: how the pipe cuts a stream is of no account; only `\\n` ends a line, blank ones are left out."""
    stream = b"".join(parts)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    chunks = [stream[start:end] for start, end in pairwise(bounds)]
    whole = [line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]]
    assert fed(chunks) == fed([stream]) == fed([stream[index : index + 1] for index in range(len(stream))])
    assert fed(chunks) == [line for line in whole if line.strip()]


@pytest.mark.parametrize("chunk", [1, 7, 1000, 10_000])
def test_a_line_over_the_limit_raises_and_one_at_the_limit_does_not(chunk: int) -> None:
    """TRA-7: memory is bounded even where no line end ever comes."""
    lines = Lines(limit=5_000)
    data = b"x" * 5_000
    assert [line for start in range(0, 5_000, chunk) for line in lines.feed(data[start : start + chunk])] == []
    assert lines.feed(b"\n") == [data]
    with pytest.raises(LineTooLong):
        for start in range(0, 6_000, chunk):
            lines.feed((b"x" * 6_000)[start : start + chunk])


def test_a_whole_line_that_is_read_in_one_piece_has_the_same_limit() -> None:
    """TRA-7: with its end, as most lines come."""
    assert fed([b"x" * 5_000 + b"\n"], limit=5_000) == [b"x" * 5_000]
    with pytest.raises(LineTooLong):
        fed([b"x" * 5_001 + b"\n"], limit=5_000)


def test_a_long_stream_of_short_lines_meets_no_limit() -> None:
    """TRA-7: the limit is one line's, not the stream's."""
    assert len(fed([b"12345678\n12"] * 1000, limit=12)) == 1000


def test_the_real_limit_takes_results_of_tens_of_megabytes() -> None:
    """TRA-7: results of 10 MB are seen."""
    big = b"y" * 20_000_000
    assert fed([big[start : start + 262_144] for start in range(0, len(big), 262_144)] + [b"\n"]) == [big]


@given(st.lists(st.binary(max_size=50), max_size=40))
def test_the_ring_stays_within_its_bounds(chunks: list[bytes]) -> None:
    """TRA-6: bounded by count and by size, whatever comes."""
    ring = Ring(lines=5, line_bytes=20)
    for chunk in chunks:
        ring.feed(chunk)
    assert len(ring.lines) <= 6, "the lines and an unfinished one"
    assert all(len(line) <= 20 for line in ring.lines)
    assert ring.count == b"".join(chunks).count(b"\n")


def test_the_ring_keeps_the_last_lines_and_the_unfinished_one() -> None:
    """TRA-6: what a server said last is what people need."""
    ring = Ring(lines=2)
    ring.feed(b"one\ntwo\r\nth")
    ring.feed(b"ree\n\n\xff last words")
    assert ring.lines == ("two", "three", "\N{REPLACEMENT CHARACTER} last words")


def test_a_stream_without_line_ends_does_not_grow_the_ring() -> None:
    """TRA-6: a flood on one line is cut, and what comes after its end is read again."""
    ring = Ring(line_bytes=100)
    for _ in range(1000):
        ring.feed(b"z" * 1000)
    assert ring.lines == ("z" * 100,)
    ring.feed(b"\nafter\n")
    assert ring.lines == ("z" * 100, "after")


def test_a_secret_is_masked_before_its_line_is_cut() -> None:
    """SEC-33: in finished and unfinished lines, wherever the bound is."""
    for place in range(80, 101):
        ring = Ring(line_bytes=100, safe=lambda text: text.replace("s3cr3t-value", "***"))
        ring.feed(b"x" * place + b"s3cr3t-value" * 5)
        assert "s3c" not in ring.lines[0]
        ring.feed(b"y" * 100 + b"\n")
        assert "s3c" not in ring.lines[0]
        assert len(ring.lines[0]) == 100
