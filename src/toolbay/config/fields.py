"""Keys as people write them against the fields that there are: camelCase or snake_case, the unknown told with the nearest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, cast, get_args, get_origin

from pydantic import ValidationError

from toolbay._nearest import nearest as most_alike
from toolbay.config.models import Problem, Section

_NOTE_PREFIXES = ("$", "_", "x-", "//", "#")
_EXPECTED = {
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
}


def is_note(key: str) -> bool:
    """Keys for people and tools (`$schema`, `x-...`, `_why`, `//`), which nobody mistakes for a setting."""
    return key.startswith(_NOTE_PREFIXES)


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that `key` was probably meant to be."""
    folded = {name.replace("_", "").lower(): name for name in known}
    wanted = key.replace("_", "").replace("-", "").lower()
    close = most_alike(wanted, folded, likeness=0.7) or next((name for name in folded if _holds(wanted, name) or _holds(name, wanted)), "")
    return folded.get(close)


def _holds(long: str, short: str) -> bool:
    return len(short) >= 3 and short in long and len(long) <= 3 * len(short)


def unknown(key: str, where: str, known: Iterable[str]) -> Problem:
    """What is said of a key that means nothing here."""
    close = nearest(key, known)
    return Problem(where=where, text=f"The key `{key}` is not known and is ignored" + (f"; did you mean `{close}`?" if close else "."))


def names(model: type[Section]) -> tuple[str, ...]:
    """The keys of a section as they are written in files."""
    return tuple(info.alias or name for name, info in model.model_fields.items() if not info.exclude)


def fit(model: type[Section], data: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """`data` by attribute names (sections in it by keys), without what is unknown and what is null; and what is to be said about it."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    by_key = {key: name for name, info in model.model_fields.items() if not info.exclude for key in (info.alias or name, name)}
    for key, value in data.items():
        place = f"{where}.{key}" if where else key
        name = by_key.get(key)
        if name is None:
            if not is_note(key):
                problems.append(unknown(key, place, names(model)))
            continue
        if value is None:
            continue
        alias = model.model_fields[name].alias or name
        if name in found:
            problems.append(
                Problem(where=place, text=f"The key is there twice, as `{alias}` and `{name}`; `{alias}` counts: remove the other.")
            )
            if key != alias:
                continue
        inner = _section(model.model_fields[name].annotation)
        if inner is not None and isinstance(value, Mapping):
            within, more = fit(inner, cast("Mapping[str, Any]", value), place)
            # As in files, for what is said of a value later names it by its key.
            value = {inner.model_fields[field].alias or field: item for field, item in within.items()}  # noqa: PLW2901
            problems += more
        found[name] = value
    return found, problems


def complaints(error: ValidationError, model: type[Section]) -> list[tuple[str, str]]:
    """Each key (as written in files) that does not fit, with a clause that says what it must be. Values are not repeated."""
    said: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False, include_context=True):
        location = item["loc"]
        info = model.model_fields.get(str(location[0])) if location else None
        alias = (info.alias if info else None) or (str(location[0]) if location else "")
        inner = [str(part) for part in location[1:] if not (isinstance(part, str) and ("[" in part or part in {"str", "tuple"}))]
        key = ".".join([alias, *_as_in_files(info.annotation if info else None, inner)])
        clause = _clause(str(item["type"]), item.get("ctx", {}), str(item["msg"]))
        said[key] = f"{said[key]} or {clause.removeprefix('must be ')}" if key in said else clause
    # Of a value that may have several forms, who looked inside knows best.
    return [(key, clause) for key, clause in said.items() if not any(other.startswith(f"{key}.") for other in said)]


def _section(annotation: Any) -> type[Section] | None:
    """The section that a field holds, also where it may hold none."""
    kinds = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _as_in_files(annotation: Any, inner: list[str]) -> list[str]:
    """The keys within a section as they are written in files; other parts of a path (indices, names of tools) as they are."""
    model = _section(annotation)
    if not inner or model is None:
        return inner
    info = model.model_fields.get(inner[0])
    return [(info.alias if info else None) or inner[0], *_as_in_files(info.annotation if info else None, inner[1:])]


def _clause(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}"
    if kind == "value_error":
        return str(context["error"])  # a validator of ours, which says such a clause
    if kind in {"literal_error", "enum"}:
        return f"must be {context.get('expected', '')}"
    for bound, words in (("gt", "greater than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most")):
        if bound in context:
            return f"must be {words} {context[bound]:g}"
    return f"is wrong: {message[:1].lower()}{message[1:]}"
