"""A server's JSON Schema in the one form that every model provider takes.

The result is for providers, to tell a model what a tool wants. Arguments are judged by the original: `nullable` is no
JSON Schema, and some rules are told in words only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from toolbay import _schemas
from toolbay._schemas import Node, reference_of
from toolbay.types import Json
from toolbay.upstream.pointers import Document, UntranslatableSchema, takes_null
from toolbay.upstream.roots import merged

__all__ = ["Normalised", "UntranslatableSchema", "normalise"]

MAX_DEPTH = 64
"""Schemas in one another."""
_MAX_NODES = 50_000
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DROPPED = {"$schema", "$id", "$comment", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "definitions", "$defs"}
_ANNOTATIONS = {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
_GROUPS = (
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"},
    {"items", "prefixItems", "additionalItems", "unevaluatedItems"},
    {"contains", "minContains", "maxContains"},
    {"if", "then", "else"},
    {"$ref", "$dynamicRef", "$recursiveRef"},
)


@dataclass(frozen=True)
class Normalised:
    """`parameters` for providers; `renamed`, the root's new property names to the server's own; `notes`, clauses on what is not told."""

    parameters: Json
    renamed: Mapping[str, str]
    notes: tuple[str, ...]


def normalise(schema: Any) -> Normalised:
    """Translate an `inputSchema` (SCH-1). The result is new throughout, and translating it again changes nothing.

    `[T, "null"]` and unions of one T with null become T and `nullable: true`; pointers lead to `#/$defs/` only; the root
    is an object without combinators whose property names match `[A-Za-z0-9_.-]{1,64}`; objects have `properties`, arrays
    `items`; tuples are `prefixItems`. Sources: behaviour SCH-1, and what providers were seen to refuse.

    Raises:
        UntranslatableSchema: no object, deeper than 64 schemas, larger than 1 MB, a `$ref` to another document or to nothing.
    """
    root: Any = {} if schema is None or schema is True else schema
    if not isinstance(root, dict):
        raise UntranslatableSchema("it is not a JSON object")
    return _Translation(Document(json.loads(_checked(root)))).run()


def _checked(value: Any) -> str:
    """`value` as JSON, if it is no larger than it may be."""
    if _schemas.nests_deeper(value):
        raise UntranslatableSchema(f"it nests deeper than {MAX_DEPTH} schemas")
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise UntranslatableSchema("it holds something that is no JSON") from None
    if len(text) > _schemas.MAX_SCHEMA_BYTES:
        raise UntranslatableSchema(f"it is larger than {_schemas.MAX_SCHEMA_BYTES:,} bytes")
    return text


class _Translation:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._notes: dict[str, None] = {}
        self._nodes = 0

    def run(self) -> Normalised:
        raw, notes = merged(self._document)
        self._notes.update(dict.fromkeys(notes))
        root = self._node({key: value for key, value in raw.items() if key not in {"title", "nullable"}}, 0)
        root.pop("nullable", None)
        root = {**({} if "type" in root else {"type": "object"}), **root, "type": "object"}
        root.setdefault("properties", {})
        definitions: Node = {}
        while pending := self._document.pending(definitions):
            for name, target in pending:
                definitions[name] = self._schema(target, 1)
        renamed = _rename(root)
        if renamed:
            self._notes[f"{len(renamed)} argument(s) have other names for the model: {', '.join(renamed)}"[:300]] = None
        if definitions:
            root["$defs"] = self._document.ordered(definitions)
        if self._document.dropped:
            self._notes[f"what is malformed in it is not told to the model: {', '.join(self._document.dropped)}"[:300]] = None
        _checked(root)
        return Normalised(root, renamed, tuple(self._notes))

    def _schema(self, schema: Any, depth: int) -> Any:
        return self._node(_spelt(schema), depth)

    def _node(self, schema: Node, depth: int) -> Node:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise UntranslatableSchema(f"it nests deeper than {MAX_DEPTH} schemas")
        if self._nodes > _MAX_NODES:
            raise UntranslatableSchema("it grows too large when its references are followed")
        if schema.get("nullable") is True and "type" not in schema:
            self._notes["`nullable` without a type is passed on, though null is refused"] = None
        node = self._plain(schema)
        while (union := self._union_of_one(node)) is not None:
            node = union
        self._settle_type(node)
        _settle_tuple(node)
        out: Node = {}
        for keyword, value in node.items():
            self._put(out, keyword, value, depth + 1)
        if _has_type(out, "object"):
            out.setdefault("properties", {})
        if _has_type(out, "array") or "prefixItems" in out:
            out.setdefault("items", {})
        return out

    def _plain(self, schema: Node) -> Node:
        """Without what no provider wants, in the words of 2020-12, the reference under `$ref`."""
        reference = reference_of(schema)
        node: Node = {}
        for keyword, value in schema.items():
            if keyword in _DROPPED or keyword.startswith("x-"):
                continue
            if keyword in {"$ref", "$dynamicRef", "$recursiveRef"}:
                node["$ref"] = reference
            elif keyword == "id" and self._document.draft == 4:
                continue
            elif reference is None or not self._document.old_references or keyword in _ANNOTATIONS or keyword == "nullable":
                node[keyword] = value
        for word in ("Minimum", "Maximum"):
            # Draft 4 said with a boolean whether the limit itself is excluded.
            exclusive = node.get(f"exclusive{word}")
            if isinstance(exclusive, bool):
                del node[f"exclusive{word}"]
                if exclusive and word.lower() in node:
                    node[f"exclusive{word}"] = node.pop(word.lower())
        if "dependencies" in node:
            old = cast("Node", node.pop("dependencies"))
            node["dependentRequired"] = {**{k: v for k, v in old.items() if isinstance(v, list)}, **node.get("dependentRequired", {})}
            node["dependentSchemas"] = {**{k: v for k, v in old.items() if _schemas.is_schema(v)}, **node.get("dependentSchemas", {})}
            node = {key: value for key, value in node.items() if value != {} or key not in {"dependentRequired", "dependentSchemas"}}
        return node

    def _union_of_one(self, node: Node) -> Node | None:
        """`node` with its `anyOf` or `oneOf` resolved, where but one branch of it is not null."""
        for word in ("anyOf", "oneOf"):
            branches = cast("list[Any]", node.get(word, []))
            others = [branch for branch in branches if not _is_null(branch)]
            nulls = len(branches) - len(others)
            if len(others) != 1:
                continue
            if word == "oneOf" and nulls and (nulls > 1 or takes_null(self._document, others[0])):
                continue
            rest = {key: value for key, value in node.items() if key not in {word, "nullable"}}
            branch = self._plain(_spelt(others[0]))
            nullable = takes_null(self._document, node) and (
                nulls > 0 or node.get("nullable") is True or branch.pop("nullable", False) is True
            )
            branch.pop("nullable", None)
            joined = self._joined(rest, branch)
            return {**joined, "nullable": True} if nullable else joined
        return None

    def _joined(self, rest: Node, branch: Node) -> Node:
        """`rest` and `branch` in one schema; `rest` wins on what is only said, and what cannot be joined stays apart."""
        asserted = {key for key in rest if key not in _ANNOTATIONS}
        apart = any(
            key in asserted and rest[key] != value for key, value in branch.items() if key not in {*_ANNOTATIONS, "type", "required"}
        )
        apart = apart or any(asserted & group and branch.keys() & group for group in _GROUPS)
        apart = apart or (self._document.old_references and bool(asserted) and "$ref" in branch)
        types = None
        if "type" in asserted and "type" in branch:
            types = [
                word
                for word in _words(branch["type"])
                if word in _words(rest["type"]) or (word == "integer" and "number" in _words(rest["type"]))
            ]
            apart = apart or not types
        if apart:
            return {**rest, "allOf": [*cast("list[Any]", rest.get("allOf") or []), branch]}
        joined = {**rest, **{key: value for key, value in branch.items() if key not in rest}}
        if types:
            joined["type"] = types[0] if len(types) == 1 else types
        if "required" in rest and "required" in branch:
            joined["required"] = list(dict.fromkeys([*rest["required"], *branch["required"]]))
        return joined

    def _settle_type(self, node: Node) -> None:
        """One type where one is left beside null; null out of `enum`; `nullable` where null was accepted."""
        if node.get("nullable") is not True:
            node.pop("nullable", None)
        nullable = takes_null(self._document, node) if "null" in _words(node.get("type")) or None in node.get("enum", ()) else False
        if "type" in node:
            words = _words(node["type"])
            unknown = not words
            known = [word for word in words if word != "null"]
            if unknown:
                del node["type"]
                self._notes["a type that is none of JSON Schema's is not told to the model"] = None
            elif len(known) == 1:
                node["type"] = known[0]
            else:
                node["type"] = words if known else "null"
                nullable = False
        values = cast("list[Any]", node.get("enum", []))
        if None in values and node.get("type") != "null" and "null" not in _words(node.get("type")):
            kept = [value for value in values if value is not None]
            if kept:
                node["enum"] = kept
            else:
                nullable = False
        if nullable:
            node["nullable"] = True

    def _put(self, out: Node, keyword: str, value: Any, depth: int) -> None:
        if keyword == "$ref":
            out[keyword] = f"#/$defs/{_schemas.escaped(self._document.place(value))}"
        elif keyword in _schemas.MAPS:
            out[keyword] = {name: self._schema(child, depth) for name, child in cast("Node", value).items()}
        elif keyword in _schemas.LISTS and isinstance(value, list):
            out[keyword] = [self._schema(child, depth) for child in cast("list[Any]", value)]
        elif keyword in {"additionalProperties", "unevaluatedProperties", "unevaluatedItems"} and isinstance(value, bool):
            out[keyword] = value
        elif keyword in _schemas.SINGLE:
            out[keyword] = self._schema(value, depth)
        else:
            out[keyword] = _schemas.copied(value)


def _spelt(schema: Any) -> Node:
    """A schema as an object: providers know no other."""
    if isinstance(schema, dict):
        return cast("Node", schema)
    return {} if schema is not False else {"not": {}}


def _words(types: Any) -> list[str]:
    """The types that `type` names, each once."""
    named = cast("list[Any]", types) if isinstance(types, list) else [types]
    return [word for word in dict.fromkeys(word for word in named if isinstance(word, str)) if word in _schemas.TYPES]


def _has_type(node: Node, word: str) -> bool:
    return word in _words(node.get("type"))


def _is_null(branch: Any) -> bool:
    if not isinstance(branch, dict):
        return False
    node = cast("Node", branch)
    only = {key for key in node if key not in _ANNOTATIONS and key != "nullable"}
    return (only == {"type"} and _words(node["type"]) == ["null"]) or (
        bool(only) and only <= {"type", "const", "enum"} and (node.get("const", 0) is None or node.get("enum") == [None])
    )


def _settle_tuple(node: Node) -> None:
    """Tuples in the words of 2020-12, and `items` beside them: providers do not count `prefixItems`."""
    if isinstance(node.get("items"), list):
        rest = node.pop("additionalItems", True)
        node["prefixItems"] = node["items"]
        node["items"] = rest
    else:
        node.pop("additionalItems", None)
    tuple_ = node.get("prefixItems")
    if not isinstance(tuple_, list):
        return
    places = cast("list[Any]", tuple_)
    limit = node.get("maxItems")
    if node.get("items") is False:
        node["maxItems"] = min(len(places), limit) if isinstance(limit, int) else len(places)
        limit = node["maxItems"]
        del node["items"]
    if node.get("items", True) is True:
        closed = isinstance(limit, int) and limit <= len(places)
        distinct = list({json.dumps(place, sort_keys=True): place for place in places}.values()) if closed else []
        node["items"] = {} if not closed or not distinct else distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    if not places:
        del node["prefixItems"]


def _rename(root: Node) -> dict[str, str]:
    """Give the root's properties names that providers take, in place; new name to old."""
    properties = cast("Node", root["properties"])
    bad = [name for name in properties if not _NAME.fullmatch(name)]
    if not bad:
        return {}
    plain = {name: re.sub(r"[^A-Za-z0-9_.-]", "_", name) for name in bad}
    alike = Counter(plain.values())
    taken = set(properties)
    new: dict[str, str] = {}
    for name, candidate in plain.items():
        alone = candidate.strip("_") and len(candidate) <= 64 and candidate not in taken and alike[candidate] == 1
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        hashed = (f"{candidate[: 63 - size].rstrip('_') or 'argument'[: 63 - size]}_{digest[:size]}" for size in (8, 16, 32, 40))
        new[name] = candidate if alone else next(told for told in hashed if told not in taken)
        taken.add(new[name])
    _respell(root, new)
    return {told: name for name, told in new.items()}


def _respell(node: Node, new: Mapping[str, str]) -> None:
    """Use the names of `new` wherever `node` speaks of properties of the object that it judges."""
    for word in ("properties", "dependentSchemas", "dependentRequired"):
        if isinstance(node.get(word), dict):
            node[word] = {new.get(name, name): child for name, child in cast("Node", node[word]).items()}
    if isinstance(node.get("required"), list):
        node["required"] = [new.get(name, name) for name in cast("list[str]", node["required"])]
    if isinstance(node.get("dependentRequired"), dict):
        lists = cast("dict[str, list[str]]", node["dependentRequired"])
        node["dependentRequired"] = {name: [new.get(other, other) for other in others] for name, others in lists.items()}
    for keyword, _, child in _schemas.subschemas(node):
        if keyword in _schemas.SAME_PLACE and isinstance(child, dict):
            _respell(cast("Node", child), new)
