"""Schemas in the form that every provider takes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.nullables import denullable
from toolbay import arguments
from toolbay.upstream.schema import UntranslatableSchema, normalise


def properties(**schemas: Any) -> Any:
    """The translation of the properties of an object schema."""
    return normalise({"type": "object", "properties": schemas}).parameters["properties"]


def one(schema: Any) -> Any:
    return properties(a=schema)["a"]


def place(pointer: str) -> str:
    return f"ref_{hashlib.sha256(pointer.encode()).hexdigest()[:12]}"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        (
            {"type": ["null", "integer"], "minimum": 1, "default": None},
            {"type": "integer", "minimum": 1, "default": None, "nullable": True},
        ),
        ({"type": ["string"]}, {"type": "string"}),
        (
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "title": "A"},
            {"title": "A", "type": "string", "minLength": 1, "nullable": True},
        ),
        ({"oneOf": [{"type": "null"}, {"type": "number"}], "description": "d"}, {"description": "d", "type": "number", "nullable": True}),
        (
            {"anyOf": [{"type": "string", "description": "inner"}, {"const": None}], "description": "outer"},
            {"description": "outer", "type": "string", "nullable": True},
        ),
        ({"anyOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"type": "array", "items": {"type": ["string", "null"]}}, {"type": "array", "items": {"type": "string", "nullable": True}}),
        ({"not": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, {"not": {"type": "string", "nullable": True}}),
        ({"additionalProperties": {"type": ["string", "null"]}}, {"additionalProperties": {"type": "string", "nullable": True}}),
        ({"type": ["string", "null"], "enum": ["x", None]}, {"type": "string", "enum": ["x"], "nullable": True}),
        ({"enum": ["x", None]}, {"enum": ["x"], "nullable": True}),
        ({"type": ["string", "number", "null"]}, {"type": ["string", "number", "null"]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
            {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
        ),
        ({"type": "null"}, {"type": "null"}),
    ],
)
def test_what_may_be_null_is_a_type_and_nullable(schema: Any, expected: Any) -> None:
    """SCH-1: `[T, "null"]` and unions of one T with null, wherever they stand; other unions stay."""
    assert one(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"], "enum": ["x"]},
        {"type": "string", "anyOf": [{"minLength": 1}, {"type": "null"}]},
        {"type": ["string", "null"], "not": {"type": "null"}},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "allOf": [{"type": "string"}]},
        {"type": ["string", "null"], "oneOf": [{"type": ["string", "null"]}, {"enum": [None]}]},
    ],
)
def test_null_that_something_else_refuses_is_not_offered(schema: Any) -> None:
    """SCH-2: the translation never promises what validation refuses."""
    assert "nullable" not in one(schema)
    assert not arguments.compile(schema).accepts(None)


def test_a_union_that_cannot_be_joined_stays_a_condition() -> None:
    """SCH-1: what both sides say about properties is not mixed up."""
    branch = {"type": "object", "properties": {"b": {"type": "string"}}}
    found = one({"type": ["object", "null"], "properties": {"a": {}}, "additionalProperties": False, "anyOf": [branch, {"type": "null"}]})
    assert found["allOf"] == [branch]
    assert found["nullable"] is True
    assert found["properties"] == {"a": {}}


@pytest.mark.parametrize("pointer", ["#/definitions/T", "#/properties/b", "#/properties/b~1c", "#/properties/b%25d/items/0", "#anchored"])
def test_pointers_lead_to_defs_under_a_name_made_of_the_pointer(pointer: str) -> None:
    """SCH-1: whatever they point at; the definition is translated too."""
    target = {"type": ["string", "null"]}
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": pointer},
            "b": target,
            "b/c": target,
            "b%d": {"items": [target]},
            "e": {**target, "$anchor": "anchored"},
        },
        "definitions": {"T": target, "unused": {}},
    }
    found = normalise(schema).parameters
    assert found["properties"]["a"] == {"$ref": f"#/$defs/{place(pointer)}"}
    assert found["$defs"] == {place(pointer): {"type": "string", "nullable": True}}
    assert "definitions" not in found


def test_definitions_that_stand_in_defs_keep_their_names_and_unused_ones_go() -> None:
    """SCH-1: also those that only other definitions use."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"U": {}, "B": {"type": "string"}, "A": {"items": {"$ref": "#/$defs/B"}}},
    }
    assert normalise(schema).parameters["$defs"] == {"B": {"type": "string"}, "A": {"items": {"$ref": "#/$defs/B"}}}


def test_recursion_ends() -> None:
    """SCH-1: a place is reserved before its schema is entered: into itself, into the root, two into one another."""
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/definitions/Node"}, "self": {"$ref": "#"}},
        "definitions": {
            "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/definitions/Other"}, {"type": "null"}]}}},
            "Other": {"type": "object", "properties": {"back": {"$ref": "#/definitions/Node"}}},
        },
    }
    found = normalise(schema).parameters
    assert set(found["$defs"]) == {place("#/definitions/Node"), place("#/definitions/Other"), place("#")}
    assert found["$defs"][place("#/definitions/Node")]["properties"]["next"] == {
        "$ref": f"#/$defs/{place('#/definitions/Other')}",
        "nullable": True,
    }
    assert normalise(found).parameters == found


def test_what_stands_beside_a_reference_counts_as_its_draft_says() -> None:
    """SCH-2: until draft 7 nothing but words did."""
    schema = {"properties": {"a": {"$ref": "#/$defs/A", "minLength": 3, "description": "d"}}, "$defs": {"A": {"type": "string"}}}
    assert normalise(schema).parameters["properties"]["a"] == {"$ref": "#/$defs/A", "minLength": 3, "description": "d"}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert normalise(old).parameters["properties"]["a"] == {"$ref": "#/$defs/A", "description": "d"}


def test_objects_have_properties_and_arrays_have_items() -> None:
    """SCH-1: at every depth."""
    found = properties(
        o={"type": "object"},
        l={"type": ["array", "null"]},
        n={"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array"}}},
    )
    assert found["o"] == {"type": "object", "properties": {}}
    assert found["l"] == {"type": "array", "nullable": True, "items": {}}
    assert found["n"]["items"] == {"type": "object", "additionalProperties": {"type": "array", "items": {}}, "properties": {}}


def test_tuples_are_prefix_items_with_items_beside_them() -> None:
    """SCH-1: a provider does not count `prefixItems`; a closed tuple is closed by its length."""
    closed = one({"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False})
    assert closed == {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "number"}],
        "maxItems": 2,
        "items": {"anyOf": [{"type": "string"}, {"type": "number"}]},
    }
    assert one({"type": "array", "items": [{"type": "string"}]}) == {"type": "array", "items": {}, "prefixItems": [{"type": "string"}]}


def test_older_words_are_said_in_those_of_2020() -> None:
    """SCH-2: boolean limits of draft 4, `dependencies`."""
    assert one({"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}) == {
        "type": "integer",
        "exclusiveMinimum": 1,
        "maximum": 5,
    }
    assert one({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}) == {
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"c": {"required": ["d"]}},
    }


def test_names_are_never_keywords_and_data_is_never_a_schema() -> None:
    """SCH-1: a property may have any name; what stands in enum, const, default and examples stays as it is."""
    names = (
        "type",
        "$ref",
        "nullable",
        "enum",
        "default",
        "properties",
        "items",
        "anyOf",
        "$schema",
        "x-secret",
        "title",
        "$defs",
        "required",
        "const",
    )
    schemas = {name: {"type": ["string", "null"]} for name in names}
    data = {"type": ["string", "null"], "x-a": 1, "$ref": "#/nowhere", "nullable": True, "anyOf": [{"type": "null"}]}
    nested = one(
        {"type": "object", "properties": {**schemas, "data": {"default": data, "const": data, "examples": [data]}}, "required": ["type"]}
    )
    assert nested["required"] == ["type"]
    assert list(nested["properties"]) == [*names, "data"]
    assert all(nested["properties"][name] == {"type": "string", "nullable": True} for name in names)
    assert nested["properties"]["data"] == {"default": data, "const": data, "examples": [data]}


def test_what_no_provider_wants_is_dropped() -> None:
    """SCH-1: `$schema`, `$id`, `$comment`, the root's title, `x-` words; a title elsewhere stays."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:a",
        "$comment": "c",
        "title": "Root",
        "x-a": 1,
        "type": "object",
    }
    schema |= {"properties": {"x-a": {"type": "string", "title": "kept", "x-b": 1, "$comment": "c"}}, "additionalProperties": False}
    assert normalise(schema).parameters == {
        "type": "object",
        "properties": {"x-a": {"type": "string", "title": "kept"}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        True,
        {"type": "object"},
        {"type": None},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"type": ["object", "null"]},
    ],
)
def test_a_root_that_says_nothing_is_an_object(schema: Any) -> None:
    """SCH-1: `{"type": "object", "properties": {}}`."""
    assert normalise(schema).parameters == {"type": "object", "properties": {}}


def test_alternatives_at_the_root_are_gathered_and_told_in_words() -> None:
    """SCH-1: properties of all branches, required what all require, the rule in the description."""
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": "page"}, "content": {"type": "string"}},
            "required": ["kind", "content"],
            "additionalProperties": False,
        },
        {"$ref": "#/$defs/Link"},
    ]
    link = {
        "properties": {"kind": {"const": "link"}, "url": {"type": ["string", "null"]}},
        "required": ["kind", "url"],
        "additionalProperties": False,
    }
    found = normalise({"type": "object", "description": "Add one.", "oneOf": branches, "$defs": {"Link": link}})
    assert found.parameters["properties"] == {
        "kind": {"enum": ["page", "link"]},
        "content": {"type": "string"},
        "url": {"type": "string", "nullable": True},
    }
    assert found.parameters["required"] == ["kind"]
    assert found.parameters["additionalProperties"] is False
    assert (
        found.parameters["description"]
        == "Add one. Give exactly one of these sets of arguments: (kind = page, content); (kind = link, url)."
    )
    assert not found.parameters.keys() & {"oneOf", "$defs"}
    assert found.notes


def test_conditions_at_the_root_are_joined() -> None:
    """SCH-1: allOf, a reference, a union with null, and what cannot be said at the root."""
    schema = {
        "$ref": "#/definitions/Base",
        "definitions": {"Base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
        "allOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        "anyOf": [{"type": "object", "properties": {"c": {}}}, {"type": "null"}],
        "not": {"required": ["d"]},
    }
    found = normalise(schema)
    assert found.parameters == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}},
        "required": ["a", "b"],
    }
    assert any("`not`" in note for note in found.notes)


def test_names_of_arguments_that_providers_refuse_are_changed_with_a_way_back() -> None:
    """SCH-1: at the root only, everywhere the root speaks of them, and never two into one."""
    long = "a" * 70
    schema = {
        "type": "object",
        "properties": {"$top": {}, "a[b]": {}, "a(b)": {}, "a_b_": {}, long: {}, "$": {}, "ok.-_1": {"properties": {"$in": {}}}},
        "required": ["$top", "ok.-_1"],
        "dependentRequired": {"$top": ["a[b]"]},
        "if": {"required": ["a[b]"]},
        "then": {"properties": {"$top": {"const": 1}}},
    }
    found = normalise(schema)
    told = {old: new for new, old in found.renamed.items()}
    assert set(told) == {"$top", "a[b]", "a(b)", long, "$"}
    assert told["$top"] == "_top"
    assert len({*told.values(), "a_b_", "ok.-_1"}) == 7
    assert list(found.parameters["properties"]) == [told.get(name, name) for name in schema["properties"]]
    assert found.parameters["required"] == ["_top", "ok.-_1"]
    assert found.parameters["dependentRequired"] == {"_top": [told["a[b]"]]}
    assert found.parameters["if"] == {"required": [told["a[b]"]]}
    assert found.parameters["then"] == {"properties": {"_top": {"const": 1}}}
    assert found.parameters["properties"]["ok.-_1"] == {"properties": {"$in": {}}}
    assert arguments.restore(dict.fromkeys(found.parameters["properties"], 1), found.renamed) == dict.fromkeys(schema["properties"], 1)


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, "not an object"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "not an object"),
        (False, "not a JSON object"),
        ([], "not a JSON object"),
        ({"$ref": "#"}, "refers to itself"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "never fetched"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "never fetched"),
        ({"properties": {"a": {"$ref": "other.json#/a"}}}, "never fetched"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "nothing is there"),
        ({"properties": {"a": {"$ref": "#/properties/a/description"}, "description": "d"}}, "nothing is there"),
        ({"properties": {"a": {"$id": "b.json", "type": "string"}}}, "document of its own"),
        (nested(65), "deeper than 64"),
        (nested(5000), "deeper than 64"),
        ({"description": "x" * 1_000_001}, "larger than"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    """SCH-3: without fetching anything, without running out of stack."""
    with pytest.raises(UntranslatableSchema, match=reason):
        normalise(schema)


def test_a_schema_of_64_levels_is_translated() -> None:
    """SCH-3: the bound is where it is said to be."""
    assert normalise(nested(64)).parameters == nested(64)


def test_references_that_multiply_are_cut_off() -> None:
    """SCH-3: a short schema cannot grow without bound, and a long chain of references needs no stack."""
    inner: Any = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1500)}}
    for _ in range(50):
        inner = {"type": "object", "properties": {"a": inner}}
    pointers = ["#" + "/properties/a" * level for level in range(1, 50)]
    with pytest.raises(UntranslatableSchema, match="grows too large"):
        normalise({**inner, "properties": {**inner["properties"], **{f"r{i}": {"$ref": pointer} for i, pointer in enumerate(pointers)}}})
    chain = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(5000)} | {"d5000": {}}
    assert len(normalise({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain}).parameters["$defs"]) == 5001


def test_the_result_shares_nothing_with_the_schema() -> None:
    """SCH-2: the original stays as it came, also when the translation is changed."""
    schema = {"type": "object", "properties": {"a": {"enum": [["x"]], "default": {"b": [1]}, "x": {"y": []}}}, "required": ["a"]}
    before = json.dumps(schema)
    found = normalise(schema).parameters
    found["properties"]["a"]["enum"][0].append(1)
    found["properties"]["a"]["default"]["b"].append(2)
    found["properties"]["a"]["x"]["y"].append(3)
    found["required"].append("z")
    assert json.dumps(schema) == before


def test_denullable_says_nullable_in_json_schema() -> None:
    """SCH-2: `nullable` is for providers only; a property of that name is none."""
    schema = {"type": "object", "properties": {"nullable": {"type": "string", "nullable": True}}}
    assert denullable(schema) == {"type": "object", "properties": {"nullable": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}


TYPES = st.sampled_from(["string", "integer", "boolean", "null", "array", "object"])
NAMES = st.sampled_from(["a", "b", "type", "$ref", "$in"])
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 5, -3, 2.5, "", "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
LEAVES = st.one_of(
    st.booleans(),
    st.builds(lambda kind: {"type": kind}, TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True)),
    st.builds(
        lambda values, kind: {"enum": values, **({"type": [kind, "null"]} if kind else {})},
        st.lists(VALUES, min_size=1, max_size=3),
        st.none() | TYPES.filter("null".__ne__),
    ),
    st.builds(lambda value: {"const": value}, VALUES),
    st.builds(lambda low: {"type": ["integer", "null"], "minimum": low, "nullable": True}, st.integers(-3, 3)),
    st.sampled_from([{}, {"$ref": "#/$defs/D"}, {"$ref": "#/definitions/E"}, {"$ref": "#/definitions/E/properties/a"}, {"minLength": 2}]),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maps = st.dictionaries(NAMES, inner, max_size=3)
    lists = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "anyOf": lists | st.builds(lambda child: [child, {"type": "null"}], inner),
            "oneOf": lists | st.builds(lambda child: [{"type": "null"}, child], inner),
            "allOf": lists,
            "not": inner,
            "if": inner,
            "then": inner,
            "properties": maps,
            "additionalProperties": inner,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "items": inner,
            "prefixItems": lists,
            "maxItems": st.integers(0, 3),
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "description": st.just("d"),
        },
    )


SCHEMAS = st.recursive(LEAVES, composed, max_leaves=8)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.dictionaries(NAMES, SCHEMAS, min_size=1, max_size=3),
    SCHEMAS,
    SCHEMAS,
    st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=4, max_size=8),
)
def test_the_translation_means_what_the_schema_means(members: Any, first: Any, second: Any, values: list[Any]) -> None:
    """SCH-1, SCH-2: for any schema of an object, and stable under a second pass."""
    schema = {"type": "object", "properties": members, "$defs": {"D": first}, "definitions": {"E": {"properties": {"a": second}}}}
    try:
        original = arguments.compile(schema)
    except arguments.BadSchema:
        return
    found = normalise(schema)
    assert normalise(found.parameters).parameters == found.parameters
    if any("nullable" in note for note in found.notes):
        return
    translated = arguments.compile(denullable(found.parameters))
    told = {old: new for new, old in found.renamed.items()}
    for value in values:
        assert translated.accepts({told.get(name, name): item for name, item in value.items()}) == original.accepts(value), value
