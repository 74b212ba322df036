"""What a schema says to a model, without what no person would see in it (REN-7)."""

from __future__ import annotations

from typing import Any, cast

from toolbay import _schemas
from toolbay._schemas import Node
from toolbay._text import clean
from toolbay.types import Json
from toolbay.upstream.shapes import KEYWORDS

TEXT_LIMIT = 1_500
"""Characters of one description in a schema."""

_PROSE = ("title", "description")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependentRequired")
_SAYINGS = ("default", "examples")
"""What is said and not judged by: it is cleaned. Anything else would no longer mean what the server means by it."""


def hygienic(parameters: Json) -> tuple[Json, tuple[str, ...]]:
    """A copy of a translated schema that is fit to be shown, and the keywords of which something had to be left out.

    Prose is cleaned and bounded. Where a value, a name or a pattern would change, what holds it is not told at all: arguments
    are judged by the server's own schema all the same. Words that are none of JSON Schema's are not passed on.
    """
    lost: dict[str, None] = {}

    def change(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        out: Node = {}
        for keyword, value in _schemas.rebuilt(cast("Node", schema), change).items():
            if keyword in _PROSE:
                out[keyword] = clean(value)[:TEXT_LIMIT]
            elif keyword in _SAYINGS:
                out[keyword] = _cleaned(value)
            elif keyword in _NAMED:
                out[keyword] = {name: part for name, part in cast("Node", value).items() if clean(name) == name and _cleaned_names(part)}
                if len(out[keyword]) < len(cast("Node", value)):
                    lost[keyword] = None
            elif keyword == "required":
                out[keyword] = [name for name in value if clean(name) == name]
            elif keyword not in KEYWORDS:
                continue
            elif keyword in _schemas.SINGLE | _schemas.LISTS | _schemas.MAPS or _cleaned(value) == value:
                out[keyword] = value
            else:
                lost[keyword] = None
        return out

    return change(parameters), tuple(lost)


def _cleaned_names(part: Any) -> bool:
    """Whether the names that another one asks for (`dependentRequired`) can all be told."""
    return not isinstance(part, list) or all(clean(name) == name for name in cast("list[str]", part))


def _cleaned(value: Any) -> Any:
    """Data with every text in it cleaned, names too."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): _cleaned(part) for name, part in cast("Node", value).items()}
    return [_cleaned(part) for part in cast("list[Any]", value)] if isinstance(value, list) else value
