"""What each keyword of JSON Schema may hold. Schemas are written by strangers: what is malformed is left out, and named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, cast

from toolbay import _schemas
from toolbay._schemas import Node

_MALFORMED: Final = object()


def sound(schema: Any, dropped: dict[str, None]) -> Any:
    """A copy of `schema` in which every keyword holds what JSON Schema (any draft, and OpenAPI's `nullable`) says it may.

    What it may not hold is left out, and the keyword is added to `dropped`. A sub-schema that is none is one that takes all.
    """
    if not isinstance(schema, dict):
        return schema
    node: Node = {}
    for keyword, value in cast("Node", schema).items():
        shape = _SHAPES.get(keyword)
        kept = value if shape is None else shape(value)
        if kept is not value:
            dropped[keyword] = None
        if kept is not _MALFORMED:
            node[keyword] = kept
    return _schemas.rebuilt(node, lambda child: sound(child, dropped))


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else _MALFORMED


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _MALFORMED


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _MALFORMED
    return value if isinstance(value, int) or math.isfinite(value) else _MALFORMED


def _limit(value: Any) -> Any:
    """A bound; draft 4 says with a boolean whether it is excluded itself."""
    return value if isinstance(value, bool) else _number(value)


def _count(value: Any) -> Any:
    return value if _number(value) is value and value >= 0 and value == int(value) else _MALFORMED


def _list(value: Any) -> Any:
    return cast("Any", value) if isinstance(value, list) and value else _MALFORMED


def _array(value: Any) -> Any:
    return cast("Any", value) if isinstance(value, list) else _MALFORMED


def _names(value: Any) -> Any:
    if not isinstance(value, list):
        return _MALFORMED
    items = cast("list[Any]", value)
    names = [name for name in items if isinstance(name, str)]
    return items if len(names) == len(items) else names


def _types(value: Any) -> Any:
    return value if isinstance(value, str) else _names(value)


def _schema(value: Any) -> Any:
    return value if _schemas.is_schema(value) else _MALFORMED


def _schema_list(value: Any) -> Any:
    """Places count in a tuple, and a branch that takes all is still one: so a child that is no schema stays as `{}`."""
    if not isinstance(value, list):
        return _MALFORMED
    items = cast("list[Any]", value)
    return items if all(map(_schemas.is_schema, items)) else [item if _schemas.is_schema(item) else {} for item in items]


def _branches(value: Any) -> Any:
    return _schema_list(value) if value else _MALFORMED


def _items(value: Any) -> Any:
    return _schema_list(value) if isinstance(value, list) else _schema(value)


def _map(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The shape of an object with members of a shape; members that are malformed are left out."""

    def shape(value: Any) -> Any:
        if not isinstance(value, dict):
            return _MALFORMED
        members = cast("Node", value)
        kept = {name: made for name, member in members.items() if (made := of(member)) is not _MALFORMED}
        return members if len(kept) == len(members) and all(kept[name] is members[name] for name in kept) else kept

    return shape


def _anything(value: Any) -> Any:
    return value if _schemas.is_schema(value) else {}


_SHAPES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_schemas.SINGLE, _schema),
    **dict.fromkeys(_schemas.MAPS, _map(_anything)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _branches),
    "items": _items,
    "prefixItems": _schema_list,
    "dependencies": _map(lambda value: _names(value) if isinstance(value, list) else _schema(value)),
    "dependentRequired": _map(_names),
    "type": _types,
    "enum": _list,
    "required": _names,
    "examples": _array,
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _limit),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"), _count
    ),
    **dict.fromkeys(("nullable", "uniqueItems", "deprecated", "readOnly", "writeOnly"), _flag),
    **dict.fromkeys(("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$schema", "$comment"), _text),
}
KEYWORDS = frozenset(_SHAPES) | {"const", "default"}
"""The words of JSON Schema, any draft, and OpenAPI's `nullable`."""
