"""Text hygiene: what is removed, what stays because a script needs it, and what it costs."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay._text import clean, excerpt, line, pieces

VISIBLE_FORMATS = {
    *range(0x600, 0x606),
    0x6DD,
    0x70F,
    0x890,
    0x891,
    0x8E2,
    0x110BD,
    0x110CD,
    *range(0x13430, 0x13440),
}
"""Characters of category Cf that are seen: number signs, verse ends, the layout of hieroglyphs."""

HOSTILE = st.text(
    alphabet=st.sampled_from(
        "ab1#*;m[](P\\\n\t\r \x07\x1b\x80\x85\x90\x9b\x9c\x9d\x7f\x00\u200b\u200c\u200d\u202e\u2066\ufe0f\ufe0e\ufe00\ufeff\xad\u20e3"
        "\u061c\u0645\u06cc\u0915\u094d\u17b4\u1780\u180b\u1820\u2764\U0001f525\U0001f469\U0001f3fd\U000e0041\U000e0100\ud83d\udd25\ud800é漢"
    ),
    max_size=24,
)


@settings(max_examples=1500)
@given(HOSTILE)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    """REN-7: cleaning is idempotent, whatever the neighbours of what is removed."""
    once = clean(text)
    assert clean(once) == once


@settings(max_examples=500)
@given(st.one_of(HOSTILE, st.text(st.characters(), max_size=40)))
def test_nothing_forbidden_is_left(text: str) -> None:
    """REN-7: no control character but newline and tab, no surrogate, no invisible format character outside its context."""
    for character in clean(text):
        category = unicodedata.category(character)
        assert category != "Cs"
        assert category != "Cc" or character in "\n\t"
        assert category != "Cf" or character in "\u200c\u200d" or ord(character) in VISIBLE_FORMATS


def test_every_control_and_format_character_of_unicode_is_removed_or_visible() -> None:
    """REN-7: over all of Unicode, alone and between letters."""
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in {"Cc", "Cf", "Cs"} and code not in VISIBLE_FORMATS and character not in "\n\t":
            assert character not in clean(f"a{character}b"), hex(code)


@pytest.mark.parametrize("code", [*range(0xE0000, 0xE0200), *range(0xFE00, 0xFE10), 0x115F, 0x1160, 0x3164, 0xFFA0, 0x34F, 0x17B4, 0x180B])
def test_invisible_letters_and_selectors_carry_no_message(code: int) -> None:
    """REN-7: tags and variation selectors, and letters that show nothing, are removed from between letters."""
    assert clean(f"a{chr(code)}b") == "ab"


@given(st.text(st.characters(categories=["Lu", "Ll", "Lm", "Nd", "P", "S", "Zs", "Mn", "Mc"], exclude_characters="\u034f\ufe0e\ufe0f")))
def test_plain_text_comes_back_untouched(text: str) -> None:
    """REN-7: letters, digits, marks, punctuation and symbols of all scripts are nobody's attack."""
    ignorable = {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x17B4, 0x17B5}
    text = "".join(character for character in text if ord(character) not in ignorable)
    assert clean(text) is text


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b1;31mred\x9b0m", "red"),
        ("\x1b]8;;http://evil.example/\x1b\\here\x1b]8;;\x1b\\", "here"),
        ("\x1b]0;title\x07text", "text"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1bP1;2|dcs\nof lines\x1b\\text", "text"),
        ("\x1b(Bplain\x1bc", "plain"),
        ("\x1b]52;c;unterminated", "52;c;unterminated"),
        ("mojibake â\x80\x9d stays readable", "mojibake â stays readable"),
        ("\x1b\x1b[0m[31m", "[31m"),
        ("one\r\ntwo\rthree\x0cfour\x0bfive", "one\ntwo\nthree\nfour\nfive"),
        ("\ud83d\ude00 and \ud83d alone", "\U0001f600 and \ufffd alone"),
        ("\udb40\udc41hidden", "hidden"),
        ("access\u202egpj.exe", "accessgpj.exe"),
        ("so\xadft", "soft"),
    ],
)
def test_escapes_breaks_and_surrogates(raw: str, cleaned: str) -> None:
    """REN-7: 7-bit and 8-bit escape sequences, line breaks of all kinds, broken encodings."""
    assert clean(raw) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "می‌خواهم",
        "क्‍ष",
        "👩‍💻 👩🏽‍🚀 ❤️‍🔥 🏳️‍🌈 👨‍👩‍👧‍👦",
        "1️⃣ #️⃣ ✔︎ ⚠️ ©️",
        "۝ ؀",
        "日本語 Ελληνικά עברית ไทย e\u0301",
    ],
)
def test_what_scripts_need_stays(text: str) -> None:
    """REN-7: joiners between letters of joining scripts and between emoji, and presentation selectors after symbols."""
    assert clean(text) == text


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("a\u200db\u200cc", "abc"),
        ("م\u200d\u200d\u200cم", "مم"),
        ("م\u200d", "م"),
        ("a\ufe0f", "a"),
        ("❤\ufe0f\ufe0f\ufe0f", "❤\ufe0f"),
        ("🏴\U000e0067\U000e0062\U000e007f", "🏴"),
    ],
)
def test_joiners_and_selectors_elsewhere_go(raw: str, cleaned: str) -> None:
    """REN-7: outside of their context, and in runs, they are a hiding place."""
    assert clean(raw) == cleaned


@pytest.mark.parametrize("unit", ["\x1b]", "\x1b[", "\x9d", "\x90a\n", "\u200d", "❤️\u200d", "\x1b[31m", "\x1b]" + "x" * 50, "م\u200d"])
def test_hostile_text_is_cleaned_in_linear_time(unit: str) -> None:
    """REN-7: a megabyte of openers that nothing ends is done within the test's time limit; quadratic cost would take hours."""
    text = unit * (1_000_000 // len(unit))
    assert len(clean(text)) <= len(text)


@given(st.text(max_size=60), st.integers(-1, 50))
def test_a_line_is_one_line_within_its_limit(text: str, limit: int) -> None:
    """REN-7: names and titles of servers are one bounded line."""
    shown = line(text, limit)
    assert len(shown) <= max(limit, 0)
    assert len(shown.splitlines()) <= 1


def test_a_line_says_that_it_was_cut() -> None:
    """REN-7: an ellipsis stands for what was cut off, within the limit."""
    assert line("a \n\x1b[1m b", 10) == "a b"
    assert line("abcdef", 4) == "abc…"


@given(st.text(max_size=400), st.integers(-1, 200))
def test_an_excerpt_stays_within_its_limit(text: str, limit: int) -> None:
    """REN-4: head, tail and the count between them fit the limit; what fits comes back whole."""
    shown = excerpt(text, limit)
    assert len(shown) <= max(limit, 0)
    if len(clean(text)) <= limit:
        assert shown == clean(text)


def test_an_excerpt_keeps_head_and_tail_and_counts_the_rest() -> None:
    """REN-4: the count is of what was left out."""
    text = "h" * 5000 + "t" * 5000
    head, gap, tail = excerpt(text, 1000).split("\n")
    assert (set(head), set(tail)) == ({"h"}, {"t"})
    assert gap == f"[… {10_000 - len(head) - len(tail):,} characters left out …]"


def test_a_large_text_is_cut_after_white_space_and_loses_nothing() -> None:
    """REN-7: pieces are only a way of looking; together they are the text."""
    for text in ("word " * 1000, "line\n" * 1000, "x" * 5000, "", "\n" * 5000):
        cut = list(pieces(text, 700))
        assert "".join(cut) == text
        assert all(len(piece) <= 700 for piece in cut)
    assert all(piece.endswith(" ") for piece in list(pieces("word " * 1000, 700))[:-1])


def test_a_large_text_is_cleaned_like_a_small_one() -> None:
    """REN-7: escapes, invisible characters and lone surrogates, wherever they stand in it."""
    odd = "\x1b[31mred\x1b[0m \u202ehid\u200bden \ud83d\r\n"
    assert clean(odd * 60_000) == clean(odd) * 60_000
    assert clean("x" * 600_000 + "\x1b") == "x" * 600_000
