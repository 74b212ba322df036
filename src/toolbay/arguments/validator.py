"""A JSON Schema made ready to judge arguments, by the draft that it names itself.

Patterns run on an engine whose time is linear; references never leave the schema; the work that a schema can cause is
counted before it is done.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import jsonschema_rs

from toolbay import _schemas
from toolbay._schemas import Node, References, Weight
from toolbay._weight import NODE, heavy, plain, weigh
from toolbay.arguments.problems import describe
from toolbay.types import Json

MAX_PROBLEMS = 5
MAX_EXAMINED = 20_000
"""Steps of judging up to which every error is gathered, for each may hold as many as it took; beyond, the first must do."""
_QUICK = 200
"""Steps of judging a value that may be done at once, by whoever has other things to do: looking and mending take some rounds of them."""

_LIGHT = NODE * _schemas.MAX_NESTING
"""Weight of a value that can neither nest too deeply, for every level weighs at least one `NODE`, nor be too large as JSON."""
_TOO_LARGE = f"arguments: are more than {_schemas.MAX_BYTES:,} bytes, and no more can be sent; send less at a time."
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)

_MAX_PATTERNS = 200
"""Patterns of one schema; of more none is checked."""
_PATTERN_TEXT = 40_000
"""Weight of a value up to which one pattern is checked on it; of more patterns, on so much less. The engine's time is linear in
the text, but also in the size of a pattern, and it cannot be stopped: nobody waits for a server that wants much of both."""
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=20_000)
"""Bytes of a pattern that is made ready to run: the largest seen in the wild fits, a thousand repetitions of something do not."""

_CLASSES: dict[int, Callable[..., jsonschema_rs.Validator]] = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


class BadSchema(ValueError):
    """A schema by which nothing can be judged. `reason` is a clause that says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Validator:
    """Made by `compile`. `notes` are clauses on rules of `schema` that it does not apply."""

    schema: Json
    notes: tuple[str, ...]
    engine: jsonschema_rs.Validator = field(repr=False, compare=False)
    weight: Weight
    references: References = field(repr=False, compare=False)
    patterns: int
    without_patterns: jsonschema_rs.Validator = field(repr=False, compare=False)
    """Judges large values, on which patterns would take too long."""

    def accepts(self, value: Any) -> bool:
        """Whether `value` fits. What is too large or too costly to judge does not."""
        return self.refusal(value) is None and self.fits(value)

    def fits(self, value: Any) -> bool:
        """The same of a value that `refusal` lets pass."""
        return self._engine_for(value).is_valid(value)

    def _engine_for(self, value: Any) -> jsonschema_rs.Validator:
        return self.without_patterns if self.patterns and heavy(value, _PATTERN_TEXT // self.patterns) else self.engine

    def errors(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        """What is wrong with a `value` that `refusal` lets pass: all of it, or where that would be much work, the first."""
        engine = self._engine_for(value)
        if engine.is_valid(value):
            return []
        if self.steps(value, MAX_EXAMINED) <= MAX_EXAMINED:
            return list(engine.iter_errors(value))
        try:
            engine.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []

    def quick(self, value: Any) -> bool:
        """Whether judging and mending `value` is so little work that it needs no thread."""
        weight = weigh(value, NODE * _QUICK)
        if weight > NODE * _QUICK:
            return False
        # Each part of it meets at most all schemas: mostly these are so few that nothing needs to be counted.
        few = not self.weight.recursive and weight // NODE * self.weight.schemas <= _QUICK
        return few or self.steps(value, _QUICK) <= _QUICK

    def steps(self, value: Any, most: int) -> int:
        """The work of judging `value`, in pairs of a schema and a value; more than `most` is not counted to its end."""
        try:
            return _schemas.steps(self.references, value, most)
        except _schemas.TooMuch:
            return most + 1

    def refusal(self, value: Any) -> str | None:
        """Why `value` cannot be judged at all, as a sentence; None where it can."""
        weight = weigh(value, _LIGHT)
        light = weight <= _LIGHT
        if not light:
            if _schemas.nests_deeper(value):
                return f"arguments: nest deeper than {_schemas.MAX_NESTING} levels; send a flatter value."
            if heavy(value, 30 * _schemas.MAX_BYTES):
                return _TOO_LARGE
        parts = weight // NODE  # at most, where it was weighed to its end
        if not (light and plain(value)):  # writing it out would cost more than all the rest
            try:
                size = len(_ENCODER.encode(value).encode())
            except UnicodeEncodeError:
                return "arguments: hold half of a character (a lone surrogate); send text that is whole."
            except (TypeError, ValueError):
                return "arguments: hold something that is no JSON, such as NaN; send plain JSON."
            if size > _schemas.MAX_BYTES:
                return _TOO_LARGE
            if not light:
                parts = size // 2 + 1
        most = _schemas.MAX_STEPS if self.weight.recursive else _schemas.MAX_PLAIN_STEPS
        # Each part of it meets at most all schemas.
        if (self.weight.recursive or parts * self.weight.schemas > most) and self.steps(value, most) > most:
            return "arguments: take too long to check against this tool's schema; send a smaller or flatter value."
        return None


def compile(schema: Json) -> Validator:  # noqa: A001  # `arguments.compile` reads as it should
    """The validator of `schema`, by the draft that its `$schema` names (2020-12 where it names none). Kept for the next time.

    `format` is not asserted. OpenAPI's `nullable: true` beside `type` lets null pass. Patterns that the linear engine cannot
    run (look-around, back-references) are left out, with a note.

    Raises:
        BadSchema: it is no valid JSON Schema, too large, too costly, or refers to another document or to nothing.
    """
    if _schemas.nests_deeper(schema):
        raise BadSchema(f"it nests deeper than {_schemas.MAX_NESTING} levels")
    try:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError):
        raise BadSchema("it holds something that is no JSON") from None
    if len(text) > _schemas.MAX_SCHEMA_BYTES:
        raise BadSchema(f"it is larger than {_schemas.MAX_SCHEMA_BYTES:,} bytes")
    made = _compiled(text)
    if isinstance(made, str):
        raise BadSchema(made)
    return made


def check(validator: Validator, arguments: Any) -> tuple[str, ...]:
    """What is wrong with `arguments`: at most 5 sentences of at most 200 characters, each with its path; empty where they fit."""
    refusal = validator.refusal(arguments)
    if refusal is not None:
        return (refusal,)
    errors = validator.errors(arguments)
    return tuple(dict.fromkeys(describe(error, validator.schema) for error in errors[: MAX_PROBLEMS * 4]))[:MAX_PROBLEMS]


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> Validator | str:
    """The validator, or the reason why there can be none: that too is worth remembering."""
    schema = json.loads(text)
    if not isinstance(schema, dict):
        return "it is not a JSON object"
    root = cast("Node", schema)
    try:
        references = References(root)
        weight = _schemas.weight(references)
    except _schemas.BadReference as error:
        return str(error)
    except _schemas.TooMuch:
        return "judging by it would cost too much: its alternatives or references multiply"
    notes: dict[str, None] = {}
    ready: Node = _tolerant(root)
    patterns = _patterns(ready)
    engine = _engine(ready) if patterns <= _MAX_PATTERNS else ""
    if isinstance(engine, str):
        ready = _linear(ready, notes, _runs if patterns <= _MAX_PATTERNS else _never)[0]
        engine = _engine(ready)
    if isinstance(engine, str):
        return engine
    patterns = _patterns(ready)
    without = _engine(_linear(ready, {}, _never)[0]) if patterns else engine
    assert not isinstance(without, str), "a schema is no less valid without its patterns"
    return Validator(root, tuple(notes), engine, weight, References(ready), patterns, without)


def _patterns(schema: Any) -> int:
    if not isinstance(schema, dict):
        return 0
    node = cast("Node", schema)
    named = node.get("patternProperties")
    own = ("pattern" in node) + (len(cast("Node", named)) if isinstance(named, dict) else 0)
    return own + sum(_patterns(child) for _, _, child in _schemas.subschemas(node))


def _engine(schema: Node) -> jsonschema_rs.Validator | str:
    declared = _schemas.draft_of(schema)
    reason = ""
    # Servers that name no draft also write in the words of older ones: tuples under `items`, boolean `exclusiveMinimum`.
    for draft in [declared] if declared is not None else [2020, 7, 4]:
        try:
            return _CLASSES[draft](schema, offline=True, validate_formats=False, pattern_options=_PATTERNS)
        except jsonschema_rs.ValidationError as error:
            place = "/".join(str(step) for step in error.instance_path)
            reason = reason or f"it is no valid JSON Schema (at {place[:80] or 'its root'}: {error.message[:120]})"
    return reason


def _tolerant(node: Any) -> Any:
    """`node` with OpenAPI's `nullable` said in the words of JSON Schema."""
    if not isinstance(node, dict):
        return node
    out = _schemas.rebuilt(cast("Node", node), _tolerant)
    types = out.get("type")
    if out.get("nullable") is True and isinstance(types, str | list):
        named = [types] if isinstance(types, str) else cast("list[Any]", types)
        out["type"] = named if "null" in named else [*named, "null"]
        if isinstance(out.get("enum"), list) and None not in out["enum"]:
            out["enum"] = [*cast("list[Any]", out["enum"]), None]
        if "const" in out:
            out["enum"] = [out.pop("const"), None]
    return out


@functools.lru_cache(maxsize=4096)
def _runs(pattern: str) -> bool:
    """Whether the linear engine takes a pattern."""
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=_PATTERNS)
    except jsonschema_rs.ValidationError:
        return False
    return True


def _never(_pattern: str) -> bool:
    return False


def _linear(node: Node, notes: dict[str, None], runs: Callable[[str], bool]) -> tuple[Node, bool]:
    """`node` without the patterns of which `runs` says no, and whether it had any. It never refuses more than before."""
    touched: set[str] = set()

    def note(pattern: str) -> None:
        notes[f'the pattern "{pattern[:80]}" is not checked'] = None

    out: Node = {}
    for keyword in node:

        def change(child: Any, keyword: str = keyword) -> Any:
            if not isinstance(child, dict):
                return child
            made, had = _linear(cast("Node", child), notes, runs)
            if had:
                touched.add(keyword)
            return made

        out.update(_schemas.rebuilt({keyword: node[keyword]}, change))
    pattern = out.get("pattern")
    if isinstance(pattern, str) and not runs(pattern):
        note(pattern)
        del out["pattern"]
        touched.add("pattern")
    named = out.get("patternProperties")
    if isinstance(named, dict):
        for name in [name for name in cast("Node", named) if not runs(name)]:
            note(name)
            del named[name]
            touched.add("patternProperties")
            # Names that only this pattern allowed must not be refused now.
            out.pop("additionalProperties", None)
            out.pop("unevaluatedProperties", None)
    if "not" in touched:
        del out["not"]
    if "if" in touched:
        for word in ("if", "then", "else"):
            out.pop(word, None)
    if "contains" in touched:
        out.pop("maxContains", None)
    if "oneOf" in touched:
        branches = {"anyOf": out.pop("oneOf")}
        out["allOf"] = [*cast("list[Any]", out.get("allOf") or []), branches]
    return out, bool(touched)
