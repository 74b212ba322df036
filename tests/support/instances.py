"""Values that a JSON Schema asks for, and values that it nearly asks for, from a seeded source of chance."""

from __future__ import annotations

import random
import re
from typing import Any

from toolbay import _schemas

_WORDS = (
    "x",
    "alpha beta",
    "2026-01-02T03:04:05Z",
    "2026-01-02",
    "03:04:05",
    "PROJ-12",
    "PROJ",
    "123e4567-e89b-12d3-a456-426614174000",
    "a" * 64,
    "abc.def",
    "abcdef",
    "abc",
    "key=value",
    "pid=1",
    "a/b",
    "https://example.com/a",
    "me@example.com",
    "7",
    "example.com",
    "",
)
_ODD: tuple[Any, ...] = (None, True, 0, -1, 1.5, 10**9, "", "odd", [], ["odd"], [None], {}, {"odd": 1})


class Instances:
    """Draws values of one schema. They mostly fit; whether they do is for a validator to say."""

    def __init__(self, schema: Any, seed: object) -> None:
        self._schema = schema
        self._references = _schemas.References(schema)
        self._chance = random.Random(repr(seed))

    def draw(self) -> Any:
        return self._value(self._schema, 0)

    def mutated(self, value: Any) -> Any:
        """`value` with one thing in it changed: dropped, added, or replaced by something else."""
        places = list(_places(value))
        container, key = self._chance.choice(places) if places else (None, None)
        copy = _schemas.copied(value)
        if container is None:
            return {**copy, "odd": 1} if isinstance(copy, dict) else self._chance.choice(_ODD)
        target = copy
        for step in container:
            target = target[step]
        what = self._chance.randrange(4)
        if what == 0:
            del target[key]
        elif what == 1 and isinstance(target, dict):
            target["odd"] = self._chance.choice(_ODD)
        elif what == 2:
            target[key] = None
        else:
            target[key] = self._chance.choice(_ODD)
        return copy

    def _value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > 12:
            return self._chance.choice(("x", 1, None))
        reference = _schemas.reference_of(schema)
        if reference is not None:
            return self._value(self._references.locate(reference)[1], depth + 1)
        for word in ("anyOf", "oneOf"):
            if schema.get(word):
                rest = {key: value for key, value in schema.items() if key != word}
                return self._value(_joined(rest, self._chance.choice(schema[word])), depth + 1)
        if schema.get("allOf"):
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            for branch in schema["allOf"]:
                rest = _joined(rest, self._references.locate(branch["$ref"])[1] if "$ref" in branch else branch)
            return self._value(rest, depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._chance.choice(schema["enum"])
        types = schema.get("type", ["object"] if "properties" in schema else ["string", "integer", "null"])
        return self._of_type(schema, types if isinstance(types, str) else self._chance.choice(types), depth)

    def _of_type(self, schema: dict[str, Any], kind: str, depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            return self._string(schema)
        if kind in {"integer", "number"}:
            low = schema.get("minimum", schema.get("exclusiveMinimum", -5 if "maximum" not in schema else schema["maximum"] - 5))
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + 10))
            number = self._chance.choice((low, high, low + 1, (low + high) / 2))
            return int(number) if kind == "integer" else number
        return self._chance.choice((True, False)) if kind == "boolean" else None

    def _object(self, schema: dict[str, Any], depth: int) -> Any:
        required = schema.get("required") or []
        optional = 0.5 if depth < 3 else 0.15
        out = {
            name: self._value(child, depth + 1)
            for name, child in (schema.get("properties") or {}).items()
            if name in required or self._chance.random() < optional
        }
        out |= {name: "x" for name in required if name not in out}
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict) and self._chance.random() < 0.7:
            out["extra"] = self._value(extra, depth + 1)
        return out

    def _array(self, schema: dict[str, Any], depth: int) -> Any:
        first = schema.get("prefixItems") or (schema["items"] if isinstance(schema.get("items"), list) else [])
        out = [self._value(child, depth + 1) for child in first]
        most = schema.get("maxItems", 3)
        least = max(schema.get("minItems", 0), len(out))
        rest = schema.get("items") if isinstance(schema.get("items"), dict | bool) else schema.get("additionalItems", True)
        while len(out) < least or (len(out) < min(most, 3) and self._chance.random() < 0.5):
            out.append(self._value(rest, depth + 1))
        return out

    def _string(self, schema: dict[str, Any]) -> str:
        pattern = schema.get("pattern")
        fitting = [word for word in _WORDS if pattern is None or re.search(pattern, word)]
        word = self._chance.choice(fitting or list(_WORDS))
        word = word.ljust(min(schema.get("minLength", 0), 200), "a")
        return word[: schema["maxLength"]] if "maxLength" in schema else word


def _joined(rest: dict[str, Any], branch: Any) -> dict[str, Any]:
    if not isinstance(branch, dict):
        return rest
    out = {**rest, **branch}
    if "properties" in rest and "properties" in branch:
        out["properties"] = {**rest["properties"], **branch["properties"]}
    if "required" in rest and "required" in branch:
        out["required"] = [*rest["required"], *branch["required"]]
    return out


def _places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Every place in a value: the path of its container, and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield path, key
        yield from _places(child, (*path, key))
