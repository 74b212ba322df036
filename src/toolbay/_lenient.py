"""JSON of strangers, read leniently: what is of another type than was expected is read as nothing."""

from __future__ import annotations

from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
