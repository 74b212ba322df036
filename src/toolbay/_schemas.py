"""How a JSON Schema is built: where sub-schemas stand, what is a name, what is data.

A key inside `properties` is a name, never a keyword. What stands in `enum`, `const`, `default` or `examples` is data,
never a schema. Everything that walks a schema walks it with what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
"""Of the arguments of one call, as JSON."""

MAX_SCHEMA_BYTES = 250_000
"""Of one schema, as JSON. The largest seen in the wild has 45,000; to make one ready holds the interpreter, and cannot be cut short."""


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


def reference_of(node: Node) -> str | None:
    """The reference that `node` makes. Within one document the dynamic and recursive ones are plain ones."""
    return next((value for word in ("$ref", "$dynamicRef", "$recursiveRef") if isinstance(value := node.get(word), str)), None)


class BadReference(ValueError):
    """A `$ref` to another document or to nothing; `str()` is a clause that says so."""


class References:
    """What the references within one schema lead to. Another document is never fetched."""

    def __init__(self, root: Node) -> None:
        """Raises:
        BadReference: a part of `root` is a document of its own, whose references would start there.
        """
        self.root = root
        self._anchors: dict[str, Any] = {}
        self._own_id = next((value for word in ("$id", "id") if isinstance(value := root.get(word), str)), "").partition("#")[0]
        self._find_anchors(root)

    def locate(self, reference: str) -> tuple[tuple[str, ...], Any]:
        """Where `reference` leads, and the schema there.

        Raises:
            BadReference: it leads out of this schema, or nowhere.
        """
        base, mark, fragment = reference.partition("#")
        if base and base != self._own_id:
            raise BadReference(f'it refers to another document ("{reference[:80]}"), and those are never fetched')
        if fragment and not fragment.startswith("/") and fragment in self._anchors:
            return ("#", fragment), self._anchors[fragment]
        try:
            path, target = pointed(self.root, f"#{fragment}" if mark else "#")
        except (LookupError, ValueError):
            raise BadReference(f'it refers to "{reference[:80]}", and nothing is there') from None
        if not is_schema(target):
            raise BadReference(f'it refers to "{reference[:80]}", and no schema is there')
        return path, target

    def _find_anchors(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            return
        node = cast("Node", schema)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := node.get(word), str):
                self._anchors.setdefault(name, node)
        for word in ("$id", "id"):
            name = node.get(word)
            if isinstance(name, str) and name.startswith("#"):
                self._anchors.setdefault(name[1:], node)
            elif isinstance(name, str) and word == "$id" and node is not self.root:
                raise BadReference(f'a part of it is a document of its own ("$id": "{name[:80]}")')
        for _, _, child in subschemas(node):
            self._find_anchors(child)


# What it may cost to judge a value by a schema. The validator's engine cannot be interrupted, and a schema of thirty
# lines can make it work for a year: alternatives of alternatives double with every level. So the work is counted first.

MAX_WEIGHT = 20_000
"""Schemas met when every reference is followed once along each way. The heaviest seen in the wild has 812."""

MAX_STEPS = 300_000
"""Pairs of schema and value in judging one value by a recursive schema."""

MAX_PLAIN_STEPS = 500_000
"""The same by a schema that is not recursive: there each step is one that is really taken, and takes less than 100 ns."""


class TooMuch(ValueError):
    """Judging would cost more than it may."""


@dataclass(frozen=True)
class Weight:
    """How many schemas one value meets at the most; not known where a schema leads back into itself."""

    schemas: int
    recursive: bool


def weight(references: References) -> Weight:
    """What judging by the schema weighs, each reference followed once along each way.

    Raises:
        TooMuch: even one level of it weighs more than `MAX_WEIGHT`.
        BadReference: a reference leads out of the schema or nowhere.
    """
    weights: dict[int, int] = {}
    recursive = False

    def weigh(schema: Any) -> int:
        nonlocal recursive
        if not isinstance(schema, dict):
            return 1
        node = cast("Node", schema)
        known = weights.get(id(node))
        if known is not None:
            recursive = recursive or known == 0
            return known or 1
        weights[id(node)] = 0
        total = 1
        reference = reference_of(node)
        if reference is not None:
            total += weigh(references.locate(reference)[1])
        for keyword, _, child in subschemas(node):
            if keyword not in {"$defs", "definitions"}:
                total += weigh(child)
        if total > MAX_WEIGHT:
            raise TooMuch
        weights[id(node)] = total
        return total

    try:
        total = weigh(references.root)
    except RecursionError:
        raise TooMuch from None
    return Weight(total, recursive)


def steps(references: References, value: Any, most: int = MAX_STEPS) -> int:
    """Count the work of judging `value`, in pairs of a schema and a value that it judges.

    Raises:
        TooMuch: it is more than `most`.
    """
    try:
        return _Count(references, most).steps(references.root, value)
    except RecursionError:
        raise TooMuch from None


class _Count:
    def __init__(self, references: References, most: int) -> None:
        self._references = references
        self._most = most
        self._known: dict[tuple[int, int], int] = {}

    def steps(self, schema: Any, value: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        node = cast("Node", schema)
        pair = (id(node), id(value))
        if pair in self._known:
            return self._known[pair]
        self._known[pair] = 0
        total = 1
        reference = reference_of(node)
        if reference is not None:
            total += self.steps(self._references.locate(reference)[1], value)
        for keyword, name, child in subschemas(node):
            for part in _judged(keyword, name, value):
                total += self.steps(child, part)
            if total > self._most:
                raise TooMuch
        self._known[pair] = total
        if len(self._known) > self._most:
            raise TooMuch
        return total


def _judged(keyword: str, name: str | int | None, value: Any) -> list[Any]:
    """The parts of `value` that a schema under `keyword` judges, rather too many than too few."""
    if keyword in SAME_PLACE:
        return [value]
    if isinstance(value, dict):
        members = cast("Node", value)
        if keyword == "properties":
            return [members[name]] if name in members else []
        if keyword in {"patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}:
            return list(members.values())
    if isinstance(value, list) and keyword in {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}:
        items = cast("list[Any]", value)
        return items[name : name + 1] if isinstance(name, int) else items
    return []
