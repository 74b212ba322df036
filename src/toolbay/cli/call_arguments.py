"""`KEY=VALUE` words as a tool's arguments: read by the tool's schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from toolbay._nearest import nearest
from toolbay.errors import BadCall
from toolbay.types import Json

_WORDS: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parsed(words: Sequence[str], text: str, schema: Json) -> Json:
    """The arguments that `--args` (`text`, a JSON object) and `KEY=VALUE` words mean together; words win.

    A word is read as the type that `schema` gives its key; without one, as JSON if it is JSON, else as text.
    `KEY:=JSON` is always JSON.

    Raises:
        BadCall: a word has no `=`, a value does not fit its type, or `text` is no JSON object.
    """
    arguments = _object(text)
    known: Json = schema.get("properties") or {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key.rstrip(":"):
            raise BadCall(f'"{word}" is no argument: write KEY=VALUE, or all of them as JSON with --args.')
        if key.endswith(":") and key not in known:
            key = key[:-1]
            arguments[key] = _json(key, value)
        elif key in known:
            arguments[key] = _typed(key, value, known[key])
        else:
            _refuse_slip(key, known, schema)
            arguments[key] = _guessed(value)
    return arguments


def _object(text: str) -> Json:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadCall(f"--args is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise BadCall('--args must be a JSON object, such as --args \'{"path": "notes.txt"}\'.')
    return dict(value)  # pyright: ignore[reportUnknownArgumentType]


def _refuse_slip(key: str, known: Json, schema: Json) -> None:
    """A key that the schema does not name goes to the server only where the schema lets it."""
    if not known or schema.get("additionalProperties") not in {False, None} or schema.get("patternProperties"):
        return
    near = nearest(key, known)
    if near:
        raise BadCall(f'There is no argument "{key}": did you mean "{near}"? It takes {", ".join(known)}.')


def _types(schema: Any) -> set[str]:
    """The types that a property's schema allows, as far as they stand in the open."""
    if not isinstance(schema, dict):
        return set()
    stated: Any = schema.get("type")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, list):
        return {str(one) for one in stated}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    found: set[str] = set()
    for key in ("anyOf", "oneOf"):
        for branch in schema.get(key) or ():  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            found |= _types(branch)
    return found


def _typed(key: str, value: str, schema: Any) -> Any:
    types = _types(schema)
    if not types:
        return _guessed(value)
    if types & {"array", "object"} and value[:1] in {"[", "{"}:
        return _json(key, value)
    if "null" in types and value == "null":
        return None
    for kind, read in (("integer", _integer), ("number", _number), ("boolean", _boolean)):
        if kind in types:
            found = read(value)
            if found is not None:
                return found
    if "string" in types:
        return value
    if types - {"null"} == {"array"}:
        # The comma form is for lists of plain words; anything richer is written as JSON.
        items: Any = schema.get("items")
        return [_typed(key, part, items) for part in value.split(",")] if value else []
    raise BadCall(f'"{key}" wants {" or ".join(sorted(types - {"null"}))}, not "{value}".')


def _boolean(value: str) -> bool | None:
    return _WORDS.get(value.lower())


def _integer(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


def _number(value: str) -> float | int | None:
    whole = _integer(value)
    if whole is not None:
        return whole
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number - number == 0 else None  # neither inf nor nan: JSON has no word for them


def _guessed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _json(key: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise BadCall(f'The value of "{key}" is no JSON: {error}.') from error
