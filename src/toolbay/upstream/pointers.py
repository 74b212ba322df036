"""What the `$ref`s of one schema point at, without ever leaving that schema."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, cast

from toolbay import _schemas
from toolbay._schemas import Node


class UntranslatableSchema(ValueError):
    """A schema that cannot be given to model providers. It costs its tool only (SCH-3); `reason` is a clause that says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Document:
    """A schema as its server sent it, and a place under `$defs` for everything in it that is pointed at.

    A pointer to an entry of the root's `$defs` keeps its name; every other one is given the name
    `ref_<first 12 hex of the SHA-256 of the pointer>` (SCH-1).
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.draft = _schemas.draft_of(root)
        named = root.get("$defs")
        self._named: Node = cast("Node", named) if isinstance(named, dict) else {}
        self._targets: dict[str, Any] = {}
        self._places: dict[tuple[str, ...], str] = {}
        try:
            self._references = _schemas.References(root)
        except _schemas.BadReference as error:
            raise UntranslatableSchema(str(error)) from None

    @property
    def old_references(self) -> bool:
        """Whether what stands beside a `$ref` is to be ignored: so until draft 7."""
        return self.draft in {4, 6, 7}

    def target(self, reference: str) -> Any:
        """The schema that `reference` names.

        Raises:
            UntranslatableSchema: it names another document, or nothing.
        """
        return self._locate(reference)[1]

    def place(self, reference: str) -> str:
        """The name under `$defs` where the target of `reference` will stand. Asking reserves it."""
        path, target = self._locate(reference)
        if path not in self._places:
            name = path[1] if len(path) == 2 and path[0] == "$defs" else self._fresh(reference)
            self._places[path] = name
            self._targets[name] = target
        return self._places[path]

    def pending(self, done: Iterable[str]) -> list[tuple[str, Any]]:
        """Targets that have a place and are not among `done`."""
        known = set(done)
        return [(name, target) for name, target in self._targets.items() if name not in known]

    def ordered(self, definitions: Node) -> Node:
        """`definitions` in a fixed order: the schema's own first, in its order, then those that were given a place."""
        own = [name for name in self._named if name in definitions]
        return {name: definitions[name] for name in dict.fromkeys([*own, *definitions])}

    def _fresh(self, reference: str) -> str:
        digest = hashlib.sha256(reference.encode("utf-8", "surrogatepass")).hexdigest()
        taken = {*self._named, *self._places.values()}
        return next(name for size in range(12, len(digest) + 1) if (name := f"ref_{digest[:size]}") not in taken)

    def _locate(self, reference: str) -> tuple[tuple[str, ...], Any]:
        try:
            return self._references.locate(reference)
        except _schemas.BadReference as error:
            raise UntranslatableSchema(str(error)) from None


def takes_null(document: Document, schema: Any) -> bool:
    """Whether `schema` accepts null. Exact: every keyword that can refuse null is looked at, and OpenAPI's `nullable` counts.

    Raises:
        UntranslatableSchema: its references follow one another too far, or lead nowhere.
    """
    return _Null(document).taken(schema, 0)


class _Null:
    """One question about null, each schema asked once: a schema may name another a million times over."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, bool] = {}

    def taken(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        node = cast("Node", schema)
        if depth > _schemas.MAX_NESTING:
            raise UntranslatableSchema("its references follow one another too far")
        if id(node) not in self._known:
            self._known[id(node)] = True  # what it answers where it leads back to itself
            self._known[id(node)] = self._judge(node, depth + 1)
        return self._known[id(node)]

    def _judge(self, node: Node, depth: int) -> bool:
        reference = _schemas.reference_of(node)
        if reference is not None and (self._document.old_references or not self.taken(self._document.target(reference), depth)):
            return self.taken(self._document.target(reference), depth)
        if node.get("nullable") is True:
            return True
        types = node.get("type")
        if isinstance(types, str | list) and "null" not in ([types] if isinstance(types, str) else cast("list[Any]", types)):
            return False
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            return False
        if node.get("const", None) is not None:
            return False
        return self._combine(node, depth)

    def _combine(self, node: Node, depth: int) -> bool:
        if "not" in node and self.taken(node["not"], depth):
            return False
        if "if" in node and not self.taken(node.get("then" if self.taken(node["if"], depth) else "else", True), depth):
            return False
        counts = {
            word: [self.taken(child, depth) for child in cast("list[Any]", node[word])]
            for word in ("allOf", "anyOf", "oneOf")
            if isinstance(node.get(word), list)
        }
        return all(counts.get("allOf", ())) and any(counts.get("anyOf", (True,))) and counts.get("oneOf", [True]).count(True) == 1
