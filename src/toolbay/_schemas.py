"""How a JSON Schema is built: where sub-schemas stand, what is a name, what is data.

A key inside `properties` is a name, never a keyword. What stands in `enum`, `const`, `default` or `examples` is data,
never a schema. Everything that walks a schema walks it with what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

Node: TypeAlias = dict[str, Any]
"""A schema that is an object (the other schemas are `True` and `False`)."""

SINGLE = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is a schema (`items` may also be a list of them, before 2020-12)."""

LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""

MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value maps names to schemas (`dependencies` maps some to lists of names instead)."""

SAME_PLACE = frozenset({"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
"""Keywords whose schemas judge the same value as the schema they stand in."""

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

MAX_NESTING = 200
"""Levels of objects and lists in one another. The deepest schema seen in the wild has about 30."""

MAX_BYTES = 1_000_000
"""Of one schema, or the arguments of one call, as JSON."""


def is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def subschemas(node: Node) -> Iterator[tuple[str, str | int | None, Any]]:
    """Every schema directly inside `node`: the keyword, the name or index where it has one, the schema."""
    for keyword, value in node.items():
        if keyword in LISTS and isinstance(value, list):
            for index, child in enumerate(cast("list[Any]", value)):
                if is_schema(child):
                    yield keyword, index, child
        elif keyword in MAPS and isinstance(value, dict):
            for name, child in cast("Node", value).items():
                if is_schema(child):
                    yield keyword, name, child
        elif keyword in SINGLE and is_schema(value):
            yield keyword, None, value


def rebuilt(node: Node, change: Callable[[Any], Any]) -> Node:
    """A copy of `node` with `change` applied to every schema directly inside it; data is copied as it is."""
    out: Node = {}
    for keyword, value in node.items():
        if keyword in LISTS and isinstance(value, list):
            out[keyword] = [change(child) if is_schema(child) else copied(child) for child in cast("list[Any]", value)]
        elif keyword in MAPS and isinstance(value, dict):
            out[keyword] = {name: change(child) if is_schema(child) else copied(child) for name, child in cast("Node", value).items()}
        elif keyword in SINGLE and is_schema(value):
            out[keyword] = change(value)
        else:
            out[keyword] = copied(value)
    return out


def copied(value: Any) -> Any:
    """A copy of a JSON value that shares no container with it."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in cast("Node", value).items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in cast("list[Any]", value)]
    return value


def nests_deeper(value: Any, levels: int = MAX_NESTING) -> bool:
    """Whether objects and lists stand in one another more than `levels` deep. Needs no recursion itself."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner.extend(cast("Node", item).values())
            elif isinstance(item, list | tuple):
                inner.extend(cast("list[Any]", item))
        layer = [item for item in inner if isinstance(item, dict | list | tuple)]
        if not layer:
            return False
    return True


def draft_of(schema: Any) -> int | None:
    """The draft that `$schema` names: 4, 6, 7, 2019 or 2020. None where it names none that is known."""
    declared = cast("Node", schema).get("$schema") if isinstance(schema, dict) else None
    if not isinstance(declared, str):
        return None
    words = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
    if "json-schema.org/" not in declared:
        return None
    return next((number for word, number in words.items() if word in declared), None)


def pointed(document: Any, pointer: str) -> tuple[tuple[str, ...], Any]:
    """The keys on the way and the value that a local pointer (`#/properties/a`) names, by RFC 6901 in its URI form.

    Raises:
        LookupError: it names nothing.
    """
    if not pointer.startswith("#") or (len(pointer) > 1 and pointer[1] != "/"):
        raise LookupError(pointer)
    tokens = tuple(unquote(token).replace("~1", "/").replace("~0", "~") for token in pointer[2:].split("/")) if len(pointer) > 1 else ()
    value = document
    for token in tokens:
        if isinstance(value, dict):
            value = cast("Node", value)[token]
        elif isinstance(value, list) and token.isascii() and token.isdigit():
            value = cast("list[Any]", value)[int(token)]
        else:
            raise LookupError(pointer)
    return tokens, value


def escaped(token: str) -> str:
    """A name as it stands in a local pointer."""
    return token.replace("~", "~0").replace("/", "~1").replace("%", "%25")
