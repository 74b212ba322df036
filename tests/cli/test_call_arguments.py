"""KEY=VALUE words become what the tool's schema asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.cli.call_arguments import parsed
from toolbay.errors import BadCall

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "sizes": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "options": {"type": "object"},
        "either": {"type": ["integer", "string"]},
        "anything": {},
        "a:": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"),
        ("text=true", "true"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("count=5", 5),
        ("ratio=0.5", 0.5),
        ("ratio=2", 2),
        ("deep=yes", True),
        ("deep=False", False),
        ("names=a,b c", ["a", "b c"]),
        ("names=", []),
        ('names=["a,b"]', ["a,b"]),
        ("sizes=1,2", [1, 2]),
        ("sizes=null", None),
        ('options={"x": 1}', {"x": 1}),
        ("either=7", 7),
        ("either=seven", "seven"),
        ("anything=[1]", [1]),
        ("anything=plain", "plain"),
        ("unknown=3", 3),
        ("text:=5", 5),
        ("a:=5", "5"),
    ],
)
def test_a_word_is_read_as_its_type(word: str, value: Any) -> None:
    """CLI: KEY=VALUE is parsed by the tool's schema."""
    key = "a:" if word.startswith("a:") else word.split("=", maxsplit=1)[0].rstrip(":")
    found = parsed([word], "", SCHEMA)
    assert found == {key: value}
    assert type(found[key]) is type(value)


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (["text"], "", "KEY=VALUE"),
        (["=x"], "", "KEY=VALUE"),
        (["count=many"], "", '"count" wants integer, not "many"'),
        (["ratio=inf"], "", "wants number"),
        (["deep=maybe"], "", "wants boolean"),
        (["options={x"], "", 'The value of "options" is no JSON'),
        (["txet=x"], "", 'did you mean "text"'),
        ([], "[1]", "must be a JSON object"),
        ([], "{", "--args is no JSON"),
    ],
)
def test_what_does_not_fit_is_told(words: list[str], text: str, says: str) -> None:
    """CLI: plain errors before anything is sent."""
    with pytest.raises(BadCall, match=says.replace("(", r"\(")):
        parsed(words, text, SCHEMA)


def test_words_win_over_the_object() -> None:
    """CLI: `--args` and words together."""
    assert parsed(["count=2"], '{"count": 1, "text": "x"}', SCHEMA) == {"count": 2, "text": "x"}


def test_a_tool_that_takes_anything_gets_anything() -> None:
    """CLI: a near miss is only refused where the schema does not ask for further keys."""
    assert parsed(["txet=x"], "", {**SCHEMA, "additionalProperties": True}) == {"txet": "x"}


@given(st.text(), st.integers(), st.booleans())
def test_every_value_can_be_given(text: str, count: int, deep: bool) -> None:
    """CLI: what a schema allows can be written as a word."""
    words = [f"text={text}", f"count={count}", f"deep={json.dumps(deep)}"]
    assert parsed(words, "", SCHEMA) == {"text": text, "count": count, "deep": deep}
