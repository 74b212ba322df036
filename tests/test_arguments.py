"""Arguments of calls: judged by the tool's own schema, mended where that is plain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbay import _schemas, arguments
from toolbay.arguments import BadSchema, check, compile, restore  # noqa: A004

SCHEMA: Any = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "maximum": 9},
        "ratio": {"type": "number"},
        "dry": {"type": "boolean"},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "either": {"type": ["string", "integer"]},
        "maybe": {"type": ["integer", "null"]},
        "mode": {"enum": ["fast", "slow"]},
        "level": {"enum": [1, 2, 3]},
        "filter": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"field": {"type": "string"}, "limit": {"type": "integer"}},
                    "required": ["field"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        },
    },
    "required": ["count"],
    "additionalProperties": False,
}


def problems(arguments_: Any, schema: Any = SCHEMA) -> tuple[str, ...]:
    return check(compile(schema), arguments_)


def repair(schema: Any, given: Any) -> Any:
    """As a caller does it: a bad schema judges nothing."""
    try:
        validator = compile(schema)
    except BadSchema:
        validator = None
    return arguments.repair(validator, given)


def only(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "count: is required and missing."),
        ({"count": "x"}, "count: must be an integer, and is a string."),
        ({"count": 10}, "count: must be at most 9."),
        ({"count": 1, "mode": "warp"}, 'mode: must be one of "fast", "slow".'),
        ({"count": 1, "nmae": 1}, 'arguments: has no argument named "nmae"; did you mean "name"?'),
        ({"count": 1, "tags": ["a", 2]}, "tags[1]: must be a string, and is an integer."),
        ({"count": 1, "filter": {"limit": 1}}, "filter.field: is required and missing."),
        ({"count": 1, "filter": {"field": 5}}, "filter.field: must be a string, and is an integer."),
        ({"count": 1, "filter": {"field": "a", "feild": 1}}, 'filter: has no argument named "feild"; did you mean "field"?'),
        ({"count": 1, "filter": True}, "filter: must be an object or null, and is a boolean."),
        ({"count": 1, "either": None}, "either: must be an integer or a string, and is null."),
    ],
)
def test_what_is_wrong_is_said_with_its_path(given: Any, sentence: str) -> None:
    """SCH-2: a message that a model can mend from."""
    assert problems(given) == (sentence,)


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "string", "minLength": 2}, "x", "at least 2 characters"),
        ({"type": "string", "maxLength": 2}, "xxx", "at most 2 characters"),
        ({"type": "string", "pattern": "^a+$"}, "b", "pattern ^a+$"),
        ({"const": "x"}, "y", 'must be "x"'),
        ({"exclusiveMinimum": 1}, 1, "more than 1"),
        ({"exclusiveMaximum": 1}, 1, "less than 1"),
        ({"minimum": 1}, 0, "at least 1"),
        ({"multipleOf": 3}, 4, "multiple of 3"),
        ({"minItems": 1}, [], "at least 1 items"),
        ({"maxItems": 1}, [1, 2], "at most 1 items"),
        ({"uniqueItems": True}, [1, 1], "twice"),
        ({"minProperties": 1}, {}, "at least 1 members"),
        ({"maxProperties": 0}, {"a": 1}, "at most 0 members"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "name is not allowed"),
        ({"contains": {"type": "string"}}, [1], "no item of the kind"),
        ({"not": {"type": "string"}}, "x", "excluded"),
        ({"oneOf": [{}, {"type": "string"}]}, "x", "exactly one"),
        ({"oneOf": [{"const": "x"}, {"const": "y"}]}, "z", 'one of "x", "y"'),
        ({"anyOf": [{"minimum": 5}, {"multipleOf": 2}]}, 1, "another of the 2 forms"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "required"),
        (False, 1, "not allowed here"),
    ],
)
def test_every_rule_has_its_sentence(schema: Any, value: Any, words: str) -> None:
    """SCH-2: not only the common ones."""
    (sentence,) = problems({"a": value}, only(schema))
    assert sentence.startswith("a")
    assert words in sentence


def test_sentences_are_few_short_and_never_repeat_what_was_sent() -> None:
    """SCH-2: five of 200 characters at most; a value may be a secret, or a megabyte, or steer a terminal."""
    found = problems(
        {
            "count": "canary-s3cret" * 1000,
            "mode": "canary-s3cret",
            "tags": ["\x1b[2J", *range(100)],
            "filter": {"field": {"k": "canary-s3cret"}},
            "\x1b[2J" + "k" * 500: 1,
        }
    )
    assert 0 < len(found) <= 5
    assert all(len(sentence) <= 200 and sentence.isprintable() for sentence in found)
    assert "canary-s3cret" not in "".join(found)
    deep: Any = 5
    for _ in range(60):
        deep = {"a_rather_long_name_of_a_property": deep}
    recursive = {"properties": {"a_rather_long_name_of_a_property": {"$ref": "#"}}, "type": "object"}
    (sentence,) = problems(deep, recursive)
    assert len(sentence) <= 200
    assert sentence.endswith(": must be an object, and is an integer.")
    assert max(len(sentence) for sentence in problems({"a": "x"}, only({"enum": [f"option {n}" * 9 for n in range(50)]}))) <= 200


def test_each_schema_is_judged_by_the_draft_it_names() -> None:
    """SCH-2: tuples are `items` in draft 7 and `prefixItems` in 2020-12; `format` is no reason to refuse."""
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **only({"items": [{"type": "string"}]})}
    assert problems({"a": [1]}, old)
    new = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **only({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
    }
    assert not problems({"a": ["x", 1]}, new)
    assert problems({"a": ["x", "x"]}, new)
    with pytest.raises(BadSchema, match="no valid JSON Schema"):
        compile({"$schema": "https://json-schema.org/draft/2020-12/schema", **only({"items": [{}]})})
    very_old = {"$schema": "http://json-schema.org/draft-04/schema#", **only({"minimum": 1, "exclusiveMinimum": True})}
    assert problems({"a": 1}, very_old)
    assert not problems({"a": "no date"}, only({"type": "string", "format": "date-time"}))
    assert problems({"a": 1}, {"$schema": "https://example.com/mine", **only({"type": "string"})})


def test_a_schema_without_a_draft_may_use_older_words() -> None:
    """SCH-2: 2020-12 first, and where that cannot be, the drafts that many servers mean."""
    assert problems({"a": [1]}, only({"items": [{"type": "string"}]}))
    assert problems({"a": 1}, only({"minimum": 1, "exclusiveMinimum": True}))


def test_nullable_counts_only_beside_a_type() -> None:
    """SCH-2: OpenAPI's word is understood where a server uses it so, and is no keyword anywhere else."""
    for schema in (
        {"type": "string", "nullable": True},
        {"type": "string", "enum": ["x"], "nullable": True},
        {"type": "string", "const": "x", "nullable": True},
    ):
        assert not problems({"a": None}, only(schema))
        assert problems({"a": 1}, only(schema))
    assert problems({"a": None}, only({"enum": ["x"], "nullable": True}))
    assert problems({"a": None}, only({"type": "string", "nullable": False}))
    assert problems({"nullable": None}, {"properties": {"nullable": {"type": "string"}, "type": {}}})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (only({"type": "strnig"}), "no valid JSON Schema"),
        (only({"$ref": "https://127.0.0.1:9/a.json"}), "never fetched"),
        (only({"$ref": "file:///etc/hostname"}), "never fetched"),
        (only({"$ref": "#/$defs/none"}), "nothing is there"),
        (only({"enum": [float("nan")]}), "no JSON"),
        ({"description": "x" * 1_000_001}, "larger than"),
    ],
)
def test_a_schema_that_cannot_be_judged_by_says_why(schema: Any, reason: str) -> None:
    """SCH-3: and nothing is fetched. The answer is the same the second time."""
    for _ in range(2):
        with pytest.raises(BadSchema, match=reason):
            compile(schema)


def test_schemas_and_arguments_that_nest_without_end_are_refused() -> None:
    """SCH-3: before anything recurses into them."""
    deep: Any = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(BadSchema, match="nests deeper"):
        compile(deep)
    (sentence,) = problems(deep, {"type": "object"})
    assert "nest deeper" in sentence
    assert repair({"type": "object", "required": ["a"]}, deep) is deep


def test_a_schema_whose_alternatives_multiply_is_refused() -> None:
    """SCH-3: thirty levels of two would take the engine hours."""
    for word in ("anyOf", "allOf", "oneOf"):
        bomb = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(40)} | {
            "d40": {"type": "string"}
        }
        with pytest.raises(BadSchema, match="cost too much"):
            compile({"$ref": "#/$defs/d0", "$defs": bomb})
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(6_000)} | {"d6000": {}}
    with pytest.raises(BadSchema, match="cost too much"):
        compile({"$ref": "#/$defs/d0", "$defs": chain})


def test_a_recursive_schema_is_followed_only_as_far_as_is_affordable() -> None:
    """SCH-3: alternatives that double with every level of the arguments; ordinary recursion is judged."""
    doubling = {
        "anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["q"]}, {"properties": {"a": {"$ref": "#"}}, "required": ["z"]}],
        "type": "object",
    }
    value: Any = {"q": 1}
    for _ in range(60):
        value = {"a": value}
    (sentence,) = problems(value, doubling)
    assert "too long to check" in sentence
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
        "required": ["name"],
    }
    forest: Any = {"name": "x", "children": [{"name": "y", "children": [{"name": 1}]}] * 200}
    assert problems(forest, tree)[0] == "children[0].children[0].name: must be a string, and is an integer."
    for _ in range(60):
        forest = {"name": "x", "children": [forest]}
    assert len(problems(forest, tree)) == 5


def test_a_hostile_pattern_costs_nothing() -> None:
    """SCH-3: the engine is linear."""
    assert problems({"a": "a" * 30_000 + "!"}, only({"type": "string", "pattern": "^(a+)+$"}))


def test_a_large_pattern_is_not_checked_and_neither_are_hundreds() -> None:
    """SCH-3, SEC-29: 45,000 states by 900,000 letters would hold the whole program for minutes; so would making them ready."""
    large = "(" + "|".join(f"a{{{count}}}b" for count in range(1, 300)) + ")"
    made = compile(only({"type": "string", "pattern": large}))
    assert made.notes
    assert not check(made, {"a": "a" * 900_000})
    assert check(made, {"a": 5})
    many = compile(
        {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^(a|b|ab){{1,20}}{i}$"} for i in range(3_000)}}
    )
    assert (many.patterns, len(many.notes)) == (0, 3_000)
    assert not check(many, {"p1": "x"})
    assert check(many, {"p1": 1})


def test_patterns_are_checked_on_texts_of_ordinary_size() -> None:
    """SCH-3, SEC-29: what is larger is left to the server, all else that is wrong with it is still said."""
    schema = {
        "type": "object",
        "properties": {"a": {"pattern": "[ab]*a[ab]{12}c$"}, "b": {"type": "integer"}},
        "patternProperties": {"^x": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert problems({"a": "ab" * 1_000}, schema)
    assert not problems({"a": "ab" * 100_000}, schema)
    assert problems({"a": "ab" * 100_000, "b": "five"}, schema) == ("b: must be an integer, and is a string.",)


def test_a_pattern_that_a_linear_engine_cannot_run_is_left_out_with_a_note() -> None:
    """SCH-3: the tool stays; nothing is refused that the schema would have taken."""
    made = compile(only({"type": "string", "pattern": "^(?=a)b", "minLength": 2}))
    assert made.notes == ('the pattern "^(?=a)b" is not checked',)
    assert check(made, {"a": "x"})
    assert not check(made, {"a": "xx"})
    named = {"patternProperties": {"^(?!_)": {"type": "string"}, "^x": {"type": "integer"}}, "additionalProperties": False}
    assert not problems({"abc": "x"}, named)
    assert problems({"xyz": "x"}, named)
    for schema in (
        {"not": {"pattern": "(?=a)a"}},
        {"if": {"pattern": "(?=a)a"}, "then": False},
        {"oneOf": [{"pattern": "(?=a)a"}, {"pattern": "b"}]},
        {"contains": {"pattern": "(?=a)"}, "minContains": 0, "maxContains": 0},
    ):
        assert not problems({"a": "b"}, only(schema))
        assert not problems({"a": ["b"]}, only(schema))
    assert compile(only({"properties": {"pattern": {"const": "(?=a)"}}})).notes == ()


def test_large_arguments_are_judged_and_larger_ones_refused() -> None:
    """SCH-3: up to a megabyte; of many mistakes in large arguments the first is said."""
    assert not problems({"count": 1, "sizes": list(range(100_000))})
    assert problems({"count": 1, "tags": list(range(100_000))}) == ("tags[0]: must be a string, and is an integer.",)
    (sentence,) = problems({"count": 1, "name": "x" * 1_000_000})
    assert "send less" in sentence
    assert "no JSON" in problems({"count": float("inf")})[0]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ('{"count": 1}', {"count": 1}),
        ('"{\\"count\\": 1}"', {"count": 1}),
        ('```json\n{"count": 1}\n```', {"count": 1}),
        ('```python\n{"count": 1}\n```', {"count": 1}),
        ({"count": "5"}, {"count": 5}),
        ({"count": " 5.0 "}, {"count": 5}),
        ({"count": 1, "ratio": "2.5e1"}, {"count": 1, "ratio": 25}),
        ({"count": 1, "dry": "true"}, {"count": 1, "dry": True}),
        ({"count": 1, "dry": "False"}, {"count": 1, "dry": False}),
        ({"count": 1, "maybe": "7"}, {"count": 1, "maybe": 7}),
        ({"count": 1, "level": "2"}, {"count": 1, "level": 2}),
        ({"count": 1, "tags": '["a", "b"]'}, {"count": 1, "tags": ["a", "b"]}),
        ({"count": 1, "sizes": ["1", "2", 3]}, {"count": 1, "sizes": [1, 2, 3]}),
        ({"count": 1, "labels": '{"a": "b"}'}, {"count": 1, "labels": {"a": "b"}}),
        ({"count": 1, "filter": '{"field": "x", "limit": "3"}'}, {"count": 1, "filter": {"field": "x", "limit": 3}}),
        ({"count": 1, "filter": {"field": "x", "limit": "3"}}, {"count": 1, "filter": {"field": "x", "limit": 3}}),
        ({"count": 1, "name": None, "tags": None, "mode": None}, {"count": 1}),
        ({"count": 1, "filter": {"field": "x", "limit": None}}, {"count": 1, "filter": {"field": "x"}}),
        ({"arguments": {"count": 1}}, {"count": 1}),
        ({"parameters": {"count": "1"}}, {"count": 1}),
        ({"input": '{"count": "1"}'}, {"count": 1}),
        ('{"arguments": {"count": "5", "sizes": "[1]"}}', {"count": 5, "sizes": [1]}),
    ],
)
def test_what_can_be_meant_in_one_way_only_is_mended(given: Any, meant: Any) -> None:
    """SCH-4: as models send it."""
    before = json.dumps(given)
    found = repair(SCHEMA, given)
    assert found == meant
    assert isinstance(found, dict)
    assert all(type(value) is type(meant[key]) for key, value in found.items())
    assert json.dumps(given) == before


@pytest.mark.parametrize(
    "given",
    [
        "count 1",
        "[1]",
        '{"count": NaN}',
        {"count": ""},
        {"count": " "},
        {"count": "five"},
        {"count": "5.5"},
        {"count": "05"},
        {"count": "0x5"},
        {"count": True},
        {"count": None},
        {"count": 1, "dry": "yes"},
        {"count": 1, "dry": 1},
        {"count": 1, "name": 5},
        {"count": 1, "tags": "a"},
        {"count": 1, "sizes": 5},
        {"count": 1, "sizes": "5"},
        {"count": 1, "tags": "a,b"},
        {"count": 1, "labels": "[1]"},
        {"count": 1, "labels": {"a": None}},
        {"count": 1, "tags": ["a", None]},
        {"count": 1, "level": "9"},
        {"arguments": {"name": "x"}},
        {"arguments": {"count": 1}, "name": "x"},
        {"args": {"count": 1}},
    ],
    ids=repr,
)
def test_what_is_not_plain_stays_as_it_is(given: Any) -> None:
    """SCH-4: a lone value is no list, an empty string is nothing else, a missing argument is not made up."""
    assert repair(SCHEMA, given) == given


def test_what_fits_is_never_touched() -> None:
    """SCH-4: text that looks like something else stays text where text may stand."""
    given = {"count": 1, "name": "5", "either": "5", "tags": ["[1]", "true", ""], "maybe": None, "labels": {"a": "{}"}, "filter": None}
    assert repair(SCHEMA, given) == given
    for free in ({"arguments": {"a": "1"}}, {"a": "{}"}, {"a": None}):
        assert repair({"type": "object"}, free) == free


def test_an_argument_may_have_any_name() -> None:
    """SCH-4: also that of a wrapper, and words of Python and of this program."""
    names = ("self", "name", "timeout", "schema", "arguments", "cls", "validator", "$ref", "type", "properties")
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "additionalProperties": False}
    given: Any = dict.fromkeys(names, "5")
    assert repair(schema, given) == dict.fromkeys(names, 5)
    assert not problems(dict.fromkeys(names, 5), schema)
    wrapper = {
        "type": "object",
        "properties": {"arguments": {"type": "object", "properties": {"count": {"type": "integer"}}}},
        "required": ["arguments"],
    }
    assert repair(wrapper, {"arguments": {"count": "1"}}) == {"arguments": {"count": 1}}
    assert repair({"type": "object", "anyOf": [{"properties": {"input": {"type": "array"}}}], "required": ["a"]}, {"input": {"a": 1}}) == {
        "input": {"a": 1}
    }


def test_a_value_that_fits_two_alternatives_differently_is_left() -> None:
    """SCH-4: only what is unambiguous."""
    schema = only(
        {
            "anyOf": [
                {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
                {"type": "object", "properties": {"x": {"type": "boolean"}}},
            ]
        }
    )
    assert repair(schema, {"a": {"x": "1"}}) == {"a": {"x": 1}}
    one_or_other = only(
        {
            "anyOf": [
                {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
                {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "integer"}}},
            ]
        }
    )
    assert repair(one_or_other, {"a": {"x": "5", "y": "6"}}) == {"a": {"x": "5", "y": "6"}}
    told = only(
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "n"}, "v": {"type": "integer"}}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}, "v": {"type": "boolean"}}, "required": ["k"]},
            ]
        }
    )
    assert repair(told, {"a": {"k": "b", "v": "true"}}) == {"a": {"k": "b", "v": True}}


def test_what_comes_nearer_is_kept_and_the_rest_is_said() -> None:
    """SCH-4: the kind is mended even where the value is still out of bounds or incomplete."""
    found = repair(SCHEMA, {"count": "12", "filter": '{"limit": "1"}'})
    assert found == {"count": 12, "filter": {"limit": "1"}}
    assert "count: must be at most 9." in problems(found)


def alternatives(count: int) -> Any:
    """An array of objects, each of one of `count` kinds."""
    kinds = [
        {"type": "object", "properties": {"kind": {"const": f"k{i}"}, "n": {"type": "integer"}}, "required": ["kind"]} for i in range(count)
    ]
    return only({"type": "array", "items": {"oneOf": kinds}})


def test_mending_has_a_budget() -> None:
    """SCH-4, SEC-29: where every look at what is wrong is thousands of errors, all stays, and the first of them is told."""
    few: Any = {"a": [{"kind": f"k{i % 12}", "n": "5"} for i in range(100)]}
    assert repair(alternatives(12), few)["a"] == [{"kind": f"k{i % 12}", "n": 5} for i in range(100)]
    many: Any = {"a": [{"kind": f"k{i % 12}", "n": "5"} for i in range(3_000)]}
    assert repair(alternatives(12), many) == many
    assert len(problems(many, alternatives(12))) == 1
    assert problems(many, alternatives(12))[0].startswith("a[0].n: must be an integer")


def test_many_plain_mistakes_are_mended_together() -> None:
    """SCH-4: the same mistake nine thousand times is one change; what was given is not changed itself."""
    given: Any = {"a": ["1"] * 9_000}
    assert repair(only({"type": "array", "items": {"type": "integer"}}), given) == {"a": [1] * 9_000}
    assert given == {"a": ["1"] * 9_000}


def test_small_work_is_told_from_large() -> None:
    """SEC-29: by the schema as much as by the arguments."""
    assert compile(SCHEMA).quick({"count": "1", "tags": ["a", "b"]})
    assert not compile(SCHEMA).quick({"count": 1, "tags": ["a"] * 500})
    assert not compile(SCHEMA).quick({"count": 1, "name": "x" * 10_000})
    assert not compile(alternatives(300)).quick({"a": [{"kind": "k299", "n": "1"}]})


def test_what_would_take_too_long_to_judge_is_refused() -> None:
    """SCH-3, SEC-29: a million bytes of arguments by thousands of alternatives each, which no engine could be stopped at."""
    needs = [{"required": [f"k{i}"]} for i in range(5_000)]
    schema = only({"type": "array", "items": {"anyOf": needs}})
    assert not problems({"a": [{"k4999": 1}] * 5}, schema)
    assert "too long to check" in problems({"a": [{"k4999": 1}] * 5_000}, schema)[0]


def test_a_few_arguments_can_take_too_long_as_well() -> None:
    """SEC-29: a hundred small values, each by ten thousand alternatives."""
    schema = only({"type": "array", "items": {"anyOf": [{"const": i} for i in range(10_000)]}})
    assert not problems({"a": [7] * 40}, schema)
    assert "too long to check" in problems({"a": [7] * 90}, schema)[0]


def test_empty_text_is_an_empty_object() -> None:
    """SCH-4: what models send to tools without parameters; what is required is then missing."""
    for text in ("", "  ", "\n"):
        assert repair({"type": "object"}, text) == {}
        assert arguments.repair(None, text) == {}
    assert problems(repair(SCHEMA, "")) == ("count: is required and missing.",)


def test_text_is_read_even_where_the_schema_is_of_no_use() -> None:
    """SCH-4: a bad schema costs nothing more."""
    assert repair(only({"type": "wat"}), '{"a": "1"}') == {"a": "1"}
    assert repair(only({"type": "wat"}), {"a": "1"}) == {"a": "1"}


def test_names_changed_for_the_model_are_changed_back() -> None:
    """SCH-1: at the top level only, also in text; other names stay."""
    renamed = {"_top": "$top"}
    assert restore({"_top": 1, "a": {"_top": 2}}, renamed) == {"$top": 1, "a": {"_top": 2}}
    assert restore('{"_top": 1}', renamed) == {"$top": 1}
    assert restore("nonsense", renamed) == "nonsense"
    assert restore('{"a": 1}', {}) == '{"a": 1}'


def test_half_a_character_is_refused_where_it_stands() -> None:
    """SCH-3, SCH-4: a lone surrogate is no text that could be sent; a schema that holds one judges nothing."""
    assert "lone surrogate" in problems({"count": 1, "name": "half a pair \ud83d"})[0]
    assert repair(SCHEMA, {"count": "1", "name": "\ud83d"}) == {"count": "1", "name": "\ud83d"}
    with pytest.raises(BadSchema, match="no JSON"):
        compile(only({"type": "\ud83d"}))


def test_validators_are_kept() -> None:
    """SCH-3: a schema is prepared once."""
    assert compile(dict(SCHEMA)) is compile(json.loads(json.dumps(SCHEMA)))


def test_a_large_schema_of_many_properties_is_affordable() -> None:
    """SCH-3: the bound is far above what real servers send."""
    wide = {
        "type": "object",
        "properties": {f"p{i}": {"type": "object", "properties": {f"q{j}": {"type": "string"} for j in range(20)}} for i in range(400)},
    }
    assert arguments.compile(wide).accepts({"p7": {"q1": "x"}})
    assert _schemas.MAX_WEIGHT > 812 * 10
