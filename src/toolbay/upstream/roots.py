"""The root of a schema as providers take it: one object, with no combinators beside its properties.

What the branches of a root `anyOf`, `oneOf` or `allOf` say of properties is gathered into the root; which of them go
together is then said in words, and held by the validation of arguments against the original schema.
"""

from __future__ import annotations

import json
from typing import Any, cast

from toolbay._schemas import Node, reference_of
from toolbay.upstream.pointers import Document, UntranslatableSchema

_GONE = ("allOf", "anyOf", "oneOf", "enum", "const", "not")
_DEEPEST = 20


def merged(document: Document) -> tuple[Node, tuple[str, ...]]:
    """The root of `document` as one object schema, not yet translated, and what is to be said of it.

    Raises:
        UntranslatableSchema: it is no object, whichever way it is read.
    """
    root, rules = _flat(document, document.root, 0)
    if root is None:
        raise UntranslatableSchema("its root is not an object")
    notes = [f"the rule `{word}` at its root is not told to the model" for word in ("enum", "const", "not") if word in root]
    if rules:
        notes.append("the alternatives at its root are merged, and told to the model in words")
        told = " ".join(rules)
        said = root.get("description")
        root["description"] = f"{said.rstrip()} {told}" if isinstance(said, str) and said.strip() else told
    return {key: value for key, value in root.items() if key not in _GONE}, tuple(notes)


def _flat(document: Document, schema: Any, depth: int) -> tuple[Node | None, list[str]]:
    """`schema` without references and combinators at its root; None where it can be no object."""
    if schema is True:
        return {}, []
    if not isinstance(schema, dict):
        return None, []
    document.spend(1 + len(_properties(cast("Node", schema))))
    if depth > _DEEPEST:
        raise UntranslatableSchema("its root refers to itself")
    node = dict(cast("Node", schema))
    rules: list[str] = []
    reference = reference_of(node)
    if reference is not None:
        target, rules = _flat(document, document.target(reference), depth + 1)
        if target is None:
            return None, []
        beside = {key: value for key, value in node.items() if key not in {"$ref", "$dynamicRef", "$recursiveRef"}}
        if document.old_references:
            beside = {key: value for key, value in beside.items() if key in {"title", "description"}}
        node = _both(beside, target)
    types = node.get("type")
    if types is not None and "object" not in (cast("list[Any]", types) if isinstance(types, list) else [types]):
        return None, []
    node["type"] = "object"
    for word in ("allOf", "anyOf", "oneOf"):
        branches = node.pop(word, None)
        if not isinstance(branches, list):
            continue
        flat = [
            (branch, rule)
            for child in cast("list[Any]", branches)
            for branch, rule in [_flat(document, child, depth + 1)]
            if branch is not None
        ]
        rules += [line for _, lines in flat for line in lines]
        if word == "allOf" or len(flat) == 1:
            if word == "allOf" and len(flat) < len(cast("list[Any]", branches)):
                return None, []
            for branch, _ in flat:
                node = _both(node, branch)
        elif not flat and branches:
            return None, []
        elif flat:
            rules += _rule([branch for branch, _ in flat], exactly=word == "oneOf")
            node = _any(node, [branch for branch, _ in flat])
        document.spend(len(_properties(node)))
    return node, rules


def _rule(branches: list[Node], *, exactly: bool) -> list[str]:
    if len(branches) < 2:
        return []
    sets: list[str] = []
    for branch in branches:
        required = _required(branch)
        fixed = [f"{name} = {text}" for name, text in _fixed(branch).items()]
        sets.append(", ".join(fixed + [name for name in required if name not in _fixed(branch)]) or "none of them required")
    unique = list(dict.fromkeys(sets))
    if len(unique) < 2:
        return []
    return [f"Give {'exactly one' if exactly else 'at least one'} of these sets of arguments: {'; '.join(f'({text})' for text in unique)}."]


def _fixed(branch: Node) -> dict[str, str]:
    return {
        name: str(cast("Node", child)["const"])[:40]
        for name, child in _properties(branch).items()
        if isinstance(child, dict) and isinstance(cast("Node", child).get("const"), str | int)
    }


def _both(one: Node, other: Node) -> Node:
    """A schema that says what `one` and `other` say, as far as properties go; `one` wins where words differ."""
    out = {**other, **one}
    properties = dict(_properties(one))
    for name, child in _properties(other).items():
        mine = properties.get(name)
        properties[name] = child if mine is None or mine is True or mine == {} else mine if mine == child else {"allOf": [mine, child]}
    if properties:
        out["properties"] = properties
    required = list(dict.fromkeys([*_required(one), *_required(other)]))
    if required:
        out["required"] = required
    if properties.keys() - _properties(one).keys() and one.get("additionalProperties") is False:
        out["additionalProperties"] = other.get("additionalProperties", True)
    return out


def _any(root: Node, branches: list[Node]) -> Node:
    """`root` with every property of `branches`; required is what all of them require."""
    gathered: dict[str, dict[str, Any]] = {}
    for branch in branches:
        for name, child in _properties(branch).items():
            gathered.setdefault(name, {}).setdefault(json.dumps(child, sort_keys=True), child)
    own = _properties(root)
    properties = {
        **own,
        **{name: _one_of_them(list(children.values())) for name, children in gathered.items() if own.get(name, True) in (True, {})},
    }
    everywhere = set(_required(branches[0])).intersection(*(_required(branch) for branch in branches))
    shared = [name for name in _required(branches[0]) if name in everywhere]
    out = {**root, "properties": properties}
    required = list(dict.fromkeys([*_required(root), *shared]))
    if required:
        out["required"] = required
    closed = all(branch.get("additionalProperties") is False for branch in branches)
    if closed and "additionalProperties" not in root:
        out["additionalProperties"] = False
    return out


def _one_of_them(children: list[Any]) -> Any:
    if len(children) == 1:
        return children[0]
    values: list[Any] = []
    for child in children:
        node = cast("Node", child) if isinstance(child, dict) else {}
        if "const" in node and node.keys() <= {"const", "type", "description", "title"}:
            values.append(node["const"])
    if len(values) == len(children):
        types = [cast("Node", child).get("type") for child in children]
        only = types[0] if all(one == types[0] for one in types) else None
        return {**({"type": only} if only else {}), "enum": values}
    return {"anyOf": children}


def _properties(node: Node) -> Node:
    return node.get("properties", {})


def _required(node: Node) -> list[str]:
    return node.get("required", [])
