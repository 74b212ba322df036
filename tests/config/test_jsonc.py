"""JSON as people write it, against two parsers that others wrote (CFG-1)."""

from __future__ import annotations

import json

import json5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.config import jsonc

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_strict_json_is_read_as_the_standard_library_reads_it(value: object, indent: int | str | None, ascii_only: bool) -> None:
    """CFG-1: and each value stands where its place says."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    node = jsonc.read(text)
    assert node.value == value
    assert text[node.start : node.end] == text
    for member in node.members:
        assert json.loads(text[member.node.start : member.node.end]) == member.node.value


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1, $b_2: 'x', \"c\": [1,2,],}",
        "// c\n{/* d */ 'a' /* e */ : // f\n 1 /* g */ , }// h",
        "['it\\'s', 'say \"x\"', \"a\\\nb\", 'tab\\t']",
        "[0x1F, -0x1f, +1, .5, 5., 1e3, -1.5E-2]",
        "[true, false, null]",
        '{"a": "http://not/a/comment /* nor this */"}',
        "{}",
        "[]",
    ],
)
def test_what_people_write_is_read_as_a_json5_parser_reads_it(text: str) -> None:
    """CFG-1: comments, trailing commas, single quotes, bare keys."""
    assert jsonc.read(text).value == json5.loads(text)


@given(st.text(alphabet="{}[]\":,ab1.-/*\\\n 'tn", max_size=14))
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    """CFG-6: never another exception, and what strict JSON takes is taken."""
    try:
        value = jsonc.read(text).value
        broken = None
    except jsonc.BrokenText as error:
        value, broken = None, error.position
    try:
        strict = json.loads(text)
    except json.JSONDecodeError:
        assert broken is None or 0 <= broken <= len(text)
    else:
        assert (value, broken) == (strict, None)
