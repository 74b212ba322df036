"""One parameter of a tool, and how text becomes a value of its type."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from toolbay.agent.offline.words import Request
from toolbay.search.words import fold, stem, words
from toolbay.types import Json

_BESIDE = {
    "head": (("first", "top", "前"), ("line", "行")),
    "tail": (("last", "final", "后"), ("line", "行")),
    "limit": (("first", "top", "last", "limit", "max", "most"), ("result", "item", "entry", "commit", "hit", "row")),
    "count": (("first", "top", "last", "latest", "max"), ("result", "item", "entry", "commit", "hit", "line")),
    "max": (("first", "top", "last", "latest", "max"), ("result", "item", "entry", "commit", "hit")),
    "page": (("page", "pag", "seite", "第"), ("页",)),
    "pages": (("page", "pag", "seite", "第"), ("页",)),
    "number": (("first", "top", "last"), ("result", "item")),
}
"""What people say before and after a number, by a word of the parameter's name."""


@dataclass(frozen=True)
class Param:
    """A parameter: its schema with references and `null` branches resolved."""

    name: str
    schema: Json
    required: bool
    description: str

    @classmethod
    def all_of(cls, schema: Json) -> list[Param]:
        """The parameters of an object schema, in its order."""
        properties = schema.get("properties")
        required = schema.get("required")
        wanted = set(cast("list[Any]", required)) if isinstance(required, list) else set[Any]()
        if not isinstance(properties, dict):
            return []
        definitions = cast("object", schema.get("$defs") or schema.get("definitions"))
        return [cls.of(str(name), part, name in wanted, definitions) for name, part in cast("dict[Any, Any]", properties).items()]

    @classmethod
    def of(cls, name: str, part: Any, required: bool, definitions: Any) -> Param:
        resolved = _resolved(part, definitions, 0)
        outer = cast("Json", part) if isinstance(part, dict) else {}
        said = outer.get("description") or resolved.get("description") or ""
        return cls(name=name, schema=resolved, required=required, description=said if isinstance(said, str) else "")

    def item(self) -> Param:
        """What an array holds, under the array's name and description."""
        items = _resolved(self.schema.get("items"), self.schema.get("$defs") or {}, 0)
        return Param(name=self.name, schema=items, required=self.required, description=self.description)

    @cached_property
    def kind(self) -> str:
        kind = self.schema.get("type")
        if isinstance(kind, list):
            return next((str(one) for one in cast("list[Any]", kind) if one != "null"), "string")
        if isinstance(kind, str):
            return kind
        return "object" if isinstance(self.schema.get("properties"), dict) else "string"

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(words(self.name))

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """The values that are allowed, from `enum`, or quoted in the description where it lists all of them."""
        if isinstance(self.schema.get("enum"), list):
            return tuple(self.schema["enum"])
        if "const" in self.schema:
            return (self.schema["const"],)
        listed = re.findall(r"\('([\w-]+)'\)", self.description)
        return tuple(listed) if len(listed) > 1 and self.kind == "string" else ()

    @property
    def is_zone(self) -> bool:
        return self.kind == "string" and (
            "timezone" in self.words or {"time", "zone"} <= self.words or "tz" in self.words or "IANA" in self.description
        )

    @property
    def spoken_name(self) -> str:
        """The parameter's name as people say it, as a pattern: `branch_name` is "branch", "branch name", "branch named"."""
        parts = [re.escape(part) for part in re.split(r"[_\W]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name)) if part]
        shorter = [part for part in parts if fold(part) not in {"name", "id", "text", "value"}]
        gap = r"[\s_-]*"
        full, short = gap.join(parts), gap.join(shorter)
        return rf"(?:{full}|{short})(?:\s*(?:named|called|name|id))?(?!\w)" if shorter and shorter != parts else rf"{full}(?!\w)"


def _resolved(part: Any, definitions: Any, depth: int) -> Json:
    if not isinstance(part, dict) or depth > 8:
        return {}
    known = cast("Json", part)
    reference = known.get("$ref")
    if isinstance(reference, str) and isinstance(definitions, dict):
        target = cast("dict[str, Any]", definitions).get(reference.rpartition("/")[2])
        return _resolved(target, definitions, depth + 1)
    for word in ("anyOf", "oneOf"):
        branches = known.get(word)
        if isinstance(branches, list):
            shapes = [cast("Json", one) for one in cast("list[Any]", branches) if isinstance(one, dict)]
            real = [one for one in shapes if one.get("type") != "null"]
            arrays = [one for one in real if one.get("type") == "array"]
            if real:
                return _resolved((arrays or real)[0], definitions, depth + 1)
    return known


def coerced(text: str, param: Param) -> Any:
    """`text` as a value of the parameter's type, or None where it is none."""
    if param.choices:
        return next((choice for choice in param.choices if fold(str(choice)) == fold(text)), None)
    match param.kind:
        case "integer":
            return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
        case "number":
            if not re.fullmatch(r"-?\d{1,18}(\.\d+)?", text):
                return None
            return float(text) if "." in text else int(text)
        case "boolean":
            return {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}.get(fold(text))
        case "array" | "object":
            return _structure(text, param)
        case _:
            return text


def _structure(text: str, param: Param) -> Any:
    wanted = list if param.kind == "array" else dict
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, wanted):
        return cast("Any", value)
    if param.kind == "object":
        return None
    items = [coerced(part.strip(), param.item()) for part in text.strip("[]").split(",")]
    return None if not items or None in items else items


def enum_of(param: Param, text: str) -> Any:
    """The choice that the text speaks of: its exact word first, then its stem."""
    said = list(words(text))
    stems = {stem(word) for word in said}
    plain = " ".join(said)
    for choice in sorted(param.choices, key=lambda choice: -len(str(choice))):
        spoken_choice = " ".join(words(str(choice)))
        if spoken_choice and re.search(rf"(?<!\w){re.escape(spoken_choice)}(?!\w)", plain):
            return choice
    for choice in param.choices:
        parts = {stem(word) for word in words(str(choice))}
        if parts and parts <= stems:
            return choice
    if param.required and len(param.choices) == 1:
        return param.choices[0]
    fallback = [choice for choice in param.choices if fold(str(choice)) in {"all", "any"}]
    return fallback[0] if param.required and fallback else None


def spoken(param: Param, text: str) -> bool | None:
    """True where the text says the parameter's words (`recursively`), False where it says `without` or `no` before them."""
    wanted = {_root(word) for word in param.words - {"include", "show", "with", "is", "enable", "use", "get", "return", "to", "the"}}
    said = [_root(word) for word in words(text)]
    if not wanted or not wanted <= set(said):
        return None
    at = min(said.index(word) for word in wanted)
    return not set(said[max(0, at - 2) : at]) & {"without", "no", "not", "dont", "skip", "ignor", "exclud"}


def _root(word: str) -> str:
    return stem(re.sub(r"(?:ively|ive|ally|al|ly)$", "", word)) if len(word) > 5 else stem(word)


def matched(param: Param, before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a number between these words is meant for the parameter."""
    own = {stem(word) for word in param.words if len(word) > 1}
    if own & set(before[-1:]) or (len(before) > 1 and own & {before[-2]} and before[-1] in {"is", "of", "to", "at", "no", "number"}):
        return True
    for word in param.words:
        lead, trail = _BESIDE.get(word, ((), ()))
        is_after = bool(after) and any(stem(one) in {after[0], after[0][0]} for one in trail)
        is_before = any(stem(one) in before or (bool(before) and before[-1][-1] == one) for one in lead)
        if (is_before and (is_after or word in {"page", "pages"} or not trail)) or (
            is_after and word in {"max", "limit", "count"} and after[0] != stem("line")
        ):
            return True
    return bool(after) and after[0] in own and bool(own - {"max", "min", "number", "count", "limit"})


_VALUE = r"\s*(?:is|=|:|named|called|of|to|by|和|是|为)?\s*"


def phrase_after(request: Request, marker: str, param: Param, used: list[tuple[int, int]], *, to_end: bool = False) -> str | None:
    """What stands after `marker`: a quoted text, one token, or (`to_end`) all the rest."""
    opening = r"(?<!\w)" if marker[0] not in ":(" else ""
    pattern = rf"{opening}{marker}{_VALUE}"
    for match in re.finditer(pattern, request.text, re.IGNORECASE):
        quoted = next((piece for piece in request.pieces if piece.start == match.end() and piece.value and piece.sort != "number"), None)
        if quoted is not None and not any(a <= quoted.start < b for a, b in used):
            used.append((quoted.start, quoted.end))
            return quoted.value
        rest = request.text[match.end() :]
        if to_end and rest.strip(" \"'"):
            used.append((match.end(), len(request.text)))
            return rest.strip().strip("\"'")
        if not param.required and not re.search(r"(?:is|=|:|named|called)\s*$", match[0], re.IGNORECASE):
            continue
        token = re.match(r"[\w][\w./:@+-]*", rest)
        if token is not None and match[0].strip() and not _is_filler(token[0]) and not to_end:
            value = token[0].rstrip(".,:;")
            used.append((match.end(), match.end() + len(value)))
            return value
    return None


def _is_filler(word: str) -> bool:
    return fold(word) in {
        "a",
        "an",
        "the",
        "and",
        "or",
        "in",
        "on",
        "at",
        "of",
        "for",
        "from",
        "to",
        "with",
        "that",
        "this",
        "is",
        "are",
        "my",
        "me",
        "it",
        "by",
        "does",
        "do",
        "has",
        "have",
        "was",
        "were",
        "please",
        "then",
        "what",
        "which",
        "who",
        "file",
        "files",
        "folder",
        "graph",
    }
