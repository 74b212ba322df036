"""What a program's last lines say: the one that tells most, and that any text is read in bounded time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.upstream import signs

NPM = (
    "npm error code E404",
    "npm error 404 Not Found - GET https://registry.example/@some%2fwether - Not found",
    "npm error 404  '@some/wether@*' is not in this registry.",
    "npm error A complete log of this run can be found in: /home/me/.npm/_logs/2026.log",
)
TRACE = (
    "Traceback (most recent call last):",
    '  File "/srv/weather.py", line 3, in <module>',
    "    main()",
    "ValueError: the moon is not a city",
)
NODE = (
    "/srv/index.js:3",
    "throw new Error('x')",
    "Error: the moon is not a city",
    "    at main (/srv/index.js:3:7)",
    "",
    "Node.js v20.11.0",
)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (NPM, NPM[2]),
        (TRACE, TRACE[-1]),
        (NODE, NODE[2]),
        (("one", "two"), "one | two"),
        (("one", "two", "three"), "three"),
        (("  at a place",), "at a place"),
        ((), ""),
    ],
    ids=["npm", "python", "node", "two", "plain", "frame", "none"],
)
def test_of_many_lines_the_one_is_told_that_complains(lines: tuple[str, ...], told: str) -> None:
    """TRA-8: neither where in a program it was, nor where its log lies."""
    assert signs.telling(lines) == told


def test_the_first_sign_that_is_known_is_read_with_its_place() -> None:
    """TRA-8: the same reading for the doctor and for the error of a start."""
    read = signs.read(NPM, "npx")
    assert read is not None
    assert (read.what, read.at) == ("its package @some/wether cannot be fetched", 2)
    assert signs.read(["all is well"], "npx") is None
    assert signs.read(["https://weather.example/city does not exist"], "npx") is None, "an address is no file"


@given(st.lists(st.text(max_size=80), max_size=6))
def test_whatever_is_written_one_line_is_told(lines: list[str]) -> None:
    """TRA-8: a server may write anything."""
    told = signs.telling(lines)
    assert bool(told) or not any(text.strip() for text in lines)
    signs.read(signs.looked_at(lines, lines), "weather")


@pytest.mark.parametrize("text", ["/" * 2_000, "A_" * 1_000, "/a" * 1_000 + " ", "No such file or directory: '" * 70, "ENOENT: " * 250])
def test_a_line_that_is_an_attack_is_read_soon(text: str) -> None:
    """SEC-31: a hundred such lines cost no second."""
    began = time.process_time()
    signs.read(signs.looked_at([text] * signs.LINES, ()), "weather")
    signs.telling([text] * signs.LINES)
    assert time.process_time() - began < 5
