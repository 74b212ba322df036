"""Structured content: shown where it says more than the text, and never twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.results import PNG, PNG64, shown, text
from toolbay.upstream.render import Blob, tool_result


@pytest.mark.parametrize(
    ("content", "structured"),
    [
        ([text('{"b": 1,\n "a": [1, 2]}')], {"a": [1, 2], "b": 1}),
        ([text("plain\n")], {"result": "plain"}),
        ([text("2")], {"result": 2}),
        ([text("true")], {"result": True}),
        ([text('{"a": 1}')], {"result": {"a": 1}}),
        ([text('[{"a": 1}]')], {"entities": [{"a": 1}]}),
        ([text("hello world\n")], {"content": "hello world\n"}),
        ([text("one"), text("two")], {"result": "one\ntwo"}),
        ([text("one"), text("2"), text('{"x": 3}')], {"result": ["one", 2, {"x": 3}]}),
        ([text("rows")], {"result": [{"type": "text", "text": "rows", "annotations": None, "_meta": None}]}),
        ([text("rows"), {"type": "resource", "resource": {"uri": "x://y", "text": "t"}}], {"result": "t"}),
        ([text("something")], {}),
    ],
)
def test_a_structure_that_says_it_again_is_not_shown(content: list[Any], structured: Any) -> None:
    """REN-3: what the text says already, in any of the ways seen in the wild, costs no tokens; programs still get it."""
    rendered = tool_result({"content": content, "structuredContent": structured})
    assert rendered.parts == tool_result({"content": content}).parts
    assert rendered.structured == structured


@pytest.mark.parametrize(
    ("content", "structured", "expected"),
    [
        ([], {"a": 1}, '{"a": 1}'),
        ([], {}, "{}"),
        ([], [1, "ü"], '[1, "ü"]'),
        ([text("Distance: 5 km")], {"distance": 5, "units": "km"}, 'Distance: 5 km\n{"distance": 5, "units": "km"}'),
        ([text("2")], {"result": [2, 2]}, '2\n{"result": [2, 2]}'),
        ([text("done")], {"a": "done", "b": 1}, 'done\n{"a": "done", "b": 1}'),
        ([text("a")], {"k": ["x" * 60, "y" * 60]}, 'a\n{\n "k": [\n  "' + "x" * 60 + '",\n  "' + "y" * 60 + '"\n ]\n}'),
    ],
)
def test_a_structure_that_says_more_is_shown_as_json(content: list[Any], structured: Any, expected: str) -> None:
    """REN-3: compact JSON, never a language's object dump."""
    assert shown({"content": content, "structuredContent": structured}) == expected


@pytest.mark.parametrize(
    "structured",
    [
        {"content": [{"type": "image", "data": PNG64, "mimeType": "image/png"}]},
        {"image": PNG64},
        {"result": [{"type": "image", "data": PNG64, "mimeType": "image/png", "annotations": None}]},
    ],
)
def test_a_picture_that_the_structure_repeats_is_kept_once(structured: Any) -> None:
    """REN-2: the base64 of a block inside the structure is neither text nor a second file."""
    raw = {"content": [{"type": "image", "data": PNG64, "mimeType": "image/png"}], "structuredContent": structured}
    assert tool_result(raw).parts == (Blob(PNG, "image/png", "image"),)


def test_a_picture_among_other_facts_is_taken_out_of_the_structure() -> None:
    """REN-2: what else the structure says stays; base64 in it becomes a file, or a reference to the one that is there."""
    structured = {"width": 640, "screenshot": PNG64}
    alone = tool_result({"content": [], "structuredContent": structured}).parts
    assert alone == (
        '{\n "width": 640,\n "screenshot": "(image/png: the file that follows)"\n}',
        Blob(PNG, "image/png", "image"),
    )
    beside = tool_result({"content": [{"type": "image", "data": PNG64}], "structuredContent": structured}).parts
    assert beside[1:] == ('{\n "width": 640,\n "screenshot": "(the file above)"\n}',)


def test_a_structure_nested_without_end_is_said_to_be_unreadable() -> None:
    """REN-6: depth that no JSON writer takes is an error for the structure, not for the call."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    told = shown({"content": [text("[" * 100_000)], "structuredContent": deep})
    assert told.endswith("[the structured content of this result could not be read: it is nested too deeply or is not JSON]")


ROWS: Any = {"rows": [{"id": number, "name": f"é {number}", "tags": ["a", None]} for number in range(5_000)], "total": 5_000}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_large_structure_is_compared_part_by_part(indent: int | None, ascii_only: bool) -> None:
    """REN-3: in whatever way its JSON is written, also with other members around it; one value that differs is seen."""
    told = json.dumps(ROWS, indent=indent, ensure_ascii=ascii_only)
    other_order = json.dumps({"total": 5_000, "rows": ROWS["rows"]}, indent=indent)
    for said in (told, f" {told}\n", other_order):
        assert len(tool_result({"content": [text(said)], "structuredContent": ROWS}).parts) == 1
        assert len(tool_result({"content": [text(said)], "structuredContent": {"result": ROWS}}).parts) == 1
    for other in (
        {**ROWS, "total": 5_001},
        {**ROWS, "more": 1},
        {"rows": ROWS["rows"]},
        {**ROWS, "rows": ROWS["rows"][:-1]},
        {**ROWS, "rows": [*ROWS["rows"], {}]},
        {**ROWS, "rows": [*ROWS["rows"][:-1], {"id": 4_999, "name": "another"}]},
        {**ROWS, "rows": "x" * 50_000},
        "x" * 50_000,
    ):
        assert len(tool_result({"content": [text(told)], "structuredContent": other}).parts) == 2
    for broken in (told[:-1], told.replace(",", ";", 1), told.replace(":", ",", 1), told + "x"):
        assert len(tool_result({"content": [text(broken)], "structuredContent": ROWS}).parts) == 2
