"""Schemas that are not well-formed: they cost what is malformed in them, and nothing else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay import _schemas, arguments
from toolbay.upstream.schema import UntranslatableSchema, normalise

KEYWORDS = [
    "type",
    "enum",
    "const",
    "required",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "patternProperties",
    "properties",
    "propertyNames",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "$defs",
    "definitions",
    "$id",
    "id",
    "$anchor",
    "$schema",
    "nullable",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "maxItems",
    "minItems",
    "contains",
    "format",
    "pattern",
    "title",
    "description",
    "default",
    "examples",
    "x",
    "unevaluatedProperties",
    "unevaluatedItems",
]
JSON = st.recursive(
    st.sampled_from([None, True, False, 5, -1, 2.5, 10**400, 1e400, "a", "#", "#/x", "#/properties/p", "string", "null", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a", "p"]), inner, max_size=3),
    max_leaves=8,
)
ODD = st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=4)


def assert_translated_or_refused(schema: Any) -> None:
    try:
        found = normalise(schema)
    except UntranslatableSchema:
        pass
    else:
        assert normalise(found.parameters).parameters == found.parameters
        json.dumps(found.parameters, allow_nan=False)
    with contextlib.suppress(arguments.BadSchema):
        arguments.compile(schema)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(ODD, ODD)
def test_no_schema_raises_anything_but_that_it_cannot_be_translated(root: Any, inner: Any) -> None:
    """SCH-3: any JSON under any keyword, at the root, inside, beside a union with null, and under a name that is changed."""
    assert_translated_or_refused(root)
    assert_translated_or_refused({**root, "type": "object", "properties": {"p": inner, "a b": {"type": "string"}}})
    assert_translated_or_refused({"properties": {"p": {**inner, "anyOf": [root, {"type": "null"}]}}})
    assert_translated_or_refused({"properties": {"p": {"$ref": "#/x"}}, "x": inner})


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_every_keyword_may_hold_anything(keyword: str) -> None:
    """SCH-3: also alone, and beside others that are combined with it."""
    for value in (5, "a", None, True, [], [1], [None], [{}], [[]], {}, {"a": 5}, {"a": ["b"]}, {"a": None}, [{"required": 5}], 1e400):
        odd = {keyword: value}
        assert_translated_or_refused(odd)
        assert_translated_or_refused({"type": "object", "properties": {"a b": {"type": "string"}, "p": odd}, **odd})
        for other in ({"dependencies": {}}, {"anyOf": [odd, {"type": "null"}], "required": ["z"]}, {"type": ["string", "null"]}):
            assert_translated_or_refused({"properties": {"p": {**other, **odd}}})


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"enum": 5}, {}),
        ({"enum": "a", "type": "string"}, {"type": "string"}),
        ({"required": "a"}, {}),
        ({"required": ["a", 5]}, {"required": ["a"]}),
        ({"properties": []}, {}),
        ({"properties": {"a": "string"}}, {"properties": {"a": {}}}),
        ({"dependentRequired": [1]}, {}),
        ({"dependentRequired": {"a": 5, "b": ["c"]}}, {"dependentRequired": {"b": ["c"]}}),
        ({"$ref": None}, {}),
        ({"anyOf": 5}, {}),
        ({"anyOf": []}, {}),
        ({"items": 5}, {}),
        ({"maxLength": "many", "minItems": -1, "minimum": "0"}, {}),
        ({"exclusiveMinimum": "0", "uniqueItems": "yes", "pattern": 5, "title": ["a"]}, {}),
        ({"type": {"a": 1}, "nullable": "yes"}, {}),
        ({"type": ["string", 5]}, {"type": "string"}),
    ],
)
def test_what_is_malformed_is_left_out_and_said(odd: Any, told: Any) -> None:
    """SCH-3: the rest of the schema is told all the same."""
    found = normalise({"type": "object", "properties": {"p": {**odd, "description": "d"}, "q": {"type": "integer"}}})
    assert found.parameters["properties"] == {"p": {**told, "description": "d"}, "q": {"type": "integer"}}
    assert any("malformed" in note and next(iter(odd)) in note for note in found.notes)


def test_what_is_pointed_at_under_an_unknown_keyword_is_looked_at_too() -> None:
    """SCH-3: a reference may make a schema of anything."""
    found = normalise({"properties": {"a": {"$ref": "#/x/y"}, "b": {"$ref": "#/x/y"}}, "x": {"y": {"enum": 5, "type": "string"}}})
    assert [*found.parameters["$defs"].values()] == [{"type": "string"}]
    assert any("enum" in note for note in found.notes)


def forking(levels: int, word: str, ways: int = 2) -> dict[str, Any]:
    """Alternatives of alternatives: short to write, and `ways ** levels` to read."""
    return {f"d{level}": {word: [{"$ref": f"#/$defs/d{level + 1}"}] * ways} for level in range(levels)} | {f"d{levels}": {"type": "object"}}


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_alternatives_that_multiply_at_the_root_are_refused(word: str) -> None:
    """SCH-3, SEC-29: nine levels of ten branches are a billion roots."""
    with pytest.raises(UntranslatableSchema, match="multiply"):
        normalise({"$ref": "#/$defs/d0", "$defs": forking(9, word, 10)})
    with pytest.raises(UntranslatableSchema, match="multiply"):
        normalise({word: [{"$ref": "#/$defs/wide"}] * 500, "$defs": {"wide": {"properties": {f"p{i}": {} for i in range(500)}}}})


def test_questions_about_null_cannot_multiply() -> None:
    """SCH-3: each of many properties asks, and each answer is far to seek."""
    far = {"allOf": [{"type": ["string", "null"]}] * 2_000}
    asking = {"enum": ["a", None], "allOf": [{"$ref": "#/$defs/far"}, {"minLength": 1}]}
    schema = {"properties": {f"p{i}": asking for i in range(2_000)}, "$defs": {"far": far}}
    with pytest.raises(UntranslatableSchema, match="multiply"):
        normalise(schema)


def test_many_names_and_many_places_take_no_longer_than_they_are_many() -> None:
    """SCH-3: what is compared with every other must not be many; 8,000 of each would take a minute."""
    count = 8_000
    names = normalise({"properties": {f"a b{i}": True for i in range(count)}})
    assert len(names.renamed) == count
    places = {"type": "array", "prefixItems": [{"const": i} for i in range(count)], "maxItems": count}
    assert len(normalise({"properties": {"p": places}}).parameters["properties"]["p"]["items"]["anyOf"]) == count
    branches = [{"properties": {"a": {"minimum": i}}} for i in range(count // 2)]
    assert len(normalise({"anyOf": branches}).parameters["properties"]["a"]["anyOf"]) == count // 2
    assert 40 * count > _schemas.MAX_SCHEMA_BYTES, "not many more would fit"
