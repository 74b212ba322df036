"""What the `$ref`s of one schema point at, without ever leaving that schema."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

from toolbay import _schemas
from toolbay._schemas import Node
from toolbay._text import clean
from toolbay.upstream.shapes import sound

MAX_STEPS = 50_000
"""What translating one schema may cost: alternatives of alternatives double with every level."""


class UntranslatableSchema(ValueError):
    """A schema that cannot be given to model providers. It costs its tool only (SCH-3); `reason` is a clause that says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Document:
    """A schema without what is malformed in it, and a place under `$defs` for everything in it that is pointed at.

    `dropped` names the keywords that were malformed.

    A pointer to an entry of the root's `$defs` keeps its name, if it is fit to be shown; every other one is given the name
    `ref_<first 12 hex of the SHA-256 of the pointer>` (SCH-1).
    """

    def __init__(self, root: Node) -> None:
        self.dropped: dict[str, None] = {}
        self.root: Node = sound(root, self.dropped)
        self.draft = _schemas.draft_of(self.root)
        self._named: Node = self.root.get("$defs", {})
        self._targets: dict[str, Any] = {}
        self._places: dict[tuple[str, ...], str] = {}
        self._sound = set(_nodes(self.root))
        self._strange: dict[tuple[str, ...], Any] = {}
        self._steps = 0
        try:
            self._references = _schemas.References(self.root)
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
            named = len(path) == 2 and path[0] == "$defs" and clean(path[1]) == path[1]
            name = path[1] if named else self._fresh(reference)
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

    def spend(self, steps: int = 1) -> None:
        """Count work that may multiply.

        Raises:
            UntranslatableSchema: it is too much.
        """
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise UntranslatableSchema("its alternatives or references multiply")

    def _locate(self, reference: str) -> tuple[tuple[str, ...], Any]:
        try:
            path, target = self._references.locate(reference)
        except _schemas.BadReference as error:
            raise UntranslatableSchema(str(error)) from None
        if not isinstance(target, dict) or id(cast("Node", target)) in self._sound:
            return path, cast("Any", target)
        # A place that is no schema until something points at it, such as one under a keyword that nobody knows.
        if path not in self._strange:
            self._strange[path] = sound(target, self.dropped)
            self.spend(sum(1 for _ in _nodes(self._strange[path])))
        return path, self._strange[path]


def _nodes(schema: Any) -> Iterator[int]:
    """The identities of all schemas in `schema` that are objects."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield id(cast("Node", node))
            waiting.extend(child for _, _, child in _schemas.subschemas(cast("Node", node)))


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
            self._document.spend()
            self._known[id(node)] = True  # what it answers where it leads back to itself
            self._known[id(node)] = self._judge(node, depth + 1)
        return self._known[id(node)]

    def _judge(self, node: Node, depth: int) -> bool:
        reference = _schemas.reference_of(node)
        if reference is not None and (self._document.old_references or not self.taken(self._document.target(reference), depth)):
            return self.taken(self._document.target(reference), depth)
        if node.get("nullable") is True:
            return True
        types = node.get("type", "null")
        if "null" not in ([types] if isinstance(types, str) else types):
            return False
        if None not in node.get("enum", (None,)):
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
            if word in node
        }
        return all(counts.get("allOf", ())) and any(counts.get("anyOf", (True,))) and counts.get("oneOf", [True]).count(True) == 1
