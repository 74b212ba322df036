"""Arguments as models really send them, mended where only one reading is possible and the schema asks for it.

What is wrong is taken from the validator: a change is proposed only where it reported an error of kind, and kept only
where the error is gone afterwards.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

from toolbay import _schemas
from toolbay._schemas import Node
from toolbay.arguments.problems import is_other_kind, near_branches
from toolbay.arguments.validator import BadSchema, Validator
from toolbay.arguments.validator import compile as compiled
from toolbay.types import Json

_WRAPPERS = ("arguments", "parameters", "input")
_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_ROUNDS = 6
_TRIALS = 40
_LARGEST = 200_000

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class _Change:
    """Put `value` at `path`, or drop what is there."""

    path: Path
    value: Any = None
    drop: bool = False


def repair(schema: Json, arguments: Json | str) -> Json | str:
    """`arguments` as they were meant, or as they are (SCH-4).

    Text that is a JSON object, fenced or not, becomes that object. A JSON string where an object or array is asked for, `"5"`
    for a number, `"true"` for a boolean, null for an optional property that takes none, and a lone `arguments`, `parameters`
    or `input` around everything are mended. A lone value is no list, and an empty string is nothing else. `schema` is the
    server's own; what fits it is never touched.
    """
    parsed = _object_in(arguments) if isinstance(arguments, str) else arguments
    if parsed is None:
        return arguments
    try:
        validator = compiled(schema)
    except BadSchema:
        return parsed
    if validator.refusal(parsed) is not None or validator.engine.is_valid(parsed):
        return parsed
    inner = _unwrapped(schema, parsed)
    if inner is not None:
        mended = _mended(validator, inner)
        if validator.accepts(mended):
            return mended
    return _mended(validator, parsed)


def restore(arguments: Json | str, renamed: Mapping[str, str]) -> Json | str:
    """`arguments` under the server's own names. `renamed` maps names that models were given to these. Text is read first, if it can be."""
    if not renamed:
        return arguments
    parsed = _object_in(arguments) if isinstance(arguments, str) else arguments
    if parsed is None:
        return arguments
    return {renamed.get(name, name): value for name, value in parsed.items()}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _parsed(text: str) -> Any:
    """The JSON value in `text`; the text itself where it is none."""
    if len(text) > _schemas.MAX_BYTES:
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _object_in(text: str) -> Json | None:
    if len(text) > _schemas.MAX_BYTES:
        return None
    fenced = _FENCE.fullmatch(text)
    value = _parsed(fenced[1] if fenced else text)
    if isinstance(value, str) and value != text:
        value = _parsed(value)  # encoded twice
    return cast("Json", value) if isinstance(value, dict) else None


def _unwrapped(schema: Json, arguments: Json) -> Json | None:
    """What a lone wrapper holds, unless the schema has an argument of that name."""
    if len(arguments) != 1:
        return None
    (name, value), *_ = arguments.items()
    if name not in _WRAPPERS or name in _names(schema, 0):
        return None
    if isinstance(value, str):
        return _object_in(value)
    return cast("Json", value) if isinstance(value, dict) else None


def _names(schema: Any, depth: int) -> set[str]:
    """Every property name that a schema has at its root, also in branches and in definitions: rather too many."""
    if not isinstance(schema, dict) or depth > 3:
        return set()
    node = cast("Node", schema)
    names = set(cast("Node", node.get("properties") or {})) if isinstance(node.get("properties"), dict | None) else set[str]()
    for keyword, _, child in _schemas.subschemas(node):
        if keyword in _schemas.SAME_PLACE | {"$defs", "definitions"}:
            names |= _names(child, depth + 1)
    return names


def _mended(validator: Validator, arguments: Json) -> Json:
    if len(json.dumps(arguments)) > _LARGEST or validator.refusal(arguments) is not None:
        return arguments
    current = arguments
    trials = _TRIALS
    for _ in range(_ROUNDS):
        errors = validator.errors(current)
        if not errors:
            return current
        # Most mistakes are the same one many times: all plain changes at once, judged once.
        together = [groups[0] for error in errors if len(groups := list(_proposals(error))) == 1]
        attempt = _applied(current, [change for group in together for change in group])
        if together and _closer(validator, current, errors, attempt, [change.path for group in together for change in group]):
            current = attempt
            continue
        better, trials = _one_by_one(validator, current, errors, trials)
        if better is None:
            return current
        current = better
    return current


def _one_by_one(validator: Validator, current: Json, errors: list[ValidationError], trials: int) -> tuple[Json | None, int]:
    """The first error that can be mended in exactly one way, mended."""
    for error in errors:
        results: list[Json] = []
        for group in _proposals(error):
            if trials <= 0:
                return None, 0
            trials -= 1
            attempt = _applied(current, group)
            if attempt not in results and _closer(validator, current, errors, attempt, [change.path for change in group]):
                results.append(attempt)
        if len(results) == 1:
            return results[0], trials
    return None, trials


def _closer(validator: Validator, before: Json, errors: list[ValidationError], after: Json, changed: list[Path]) -> bool:
    """Whether less is wrong. What is inside of what was changed does not count: it could not be seen before."""
    if after == before or validator.refusal(after) is not None:
        return False
    if validator.engine.is_valid(after):
        return True
    places = set(changed)

    def wrong(found: list[ValidationError]) -> int:
        weighed = [_weighed(error) for error in found]
        return sum(weight for place, weight in weighed if not any(place[:size] in places for size in range(len(place))))

    return wrong(validator.errors(after)) < wrong(errors)


def _weighed(error: ValidationError) -> tuple[Path, int]:
    """Where an error is, and its weight: a value of the wrong kind is worse than one that is only too large.

    A missing property is where it would stand; alternatives are where the nearest of them is broken.
    """
    path, kind = tuple(error.instance_path), error.kind
    if isinstance(kind, ValidationErrorKind.Required):
        return (*path, kind.property), 2
    if isinstance(kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
        near = near_branches(error, kind.context)
        return _weighed(near[0][0]) if near else (path, 2)
    return path, 2 if is_other_kind(error) else 1


def _proposals(error: ValidationError) -> Iterator[list[_Change]]:
    """Groups of changes, each of which may mend `error`."""
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
        for branch in kind.context[:20]:
            groups = [list(_proposals(inner))[:1] for inner in branch[:50]]
            if groups and all(groups):
                yield [change for group in groups for change in group[0]]
        if error.instance is None and _is_declared(error):
            yield [_Change(tuple(error.instance_path), drop=True)]
        return
    change = _change(error)
    if change is not None:
        yield [change]


def _is_declared(error: ValidationError) -> bool:
    """Whether the error is about a property that the schema names, not about one of a free map, where null may say something."""
    steps = error.evaluation_path
    return bool(error.instance_path) and ("properties", error.instance_path[-1]) in itertools.pairwise(steps)


def _change(error: ValidationError) -> _Change | None:
    kind, value, path = error.kind, error.instance, tuple(error.instance_path)
    if value is None and _is_declared(error) and isinstance(kind, ValidationErrorKind.Type | ValidationErrorKind.Enum):
        return _Change(path, drop=True)
    if not isinstance(value, str):
        return None
    if isinstance(kind, ValidationErrorKind.Type):
        read = _read(value, kind.types)
    elif isinstance(kind, ValidationErrorKind.Enum | ValidationErrorKind.Constant):
        options: list[Any] = kind.options if isinstance(kind, ValidationErrorKind.Enum) else [kind.expected_value]
        read = (
            _read(value, ["number"])
            if all(isinstance(option, int | float) and not isinstance(option, bool) for option in options)
            else value
        )
    else:
        return None
    return None if read is value else _Change(path, read)


def _read(text: str, types: list[str]) -> Any:
    """`text` as a value of one of `types`; the text itself where it is none of them."""
    stripped = text.strip()
    if stripped.lower() in {"true", "false"} and "boolean" in types:
        return stripped.lower() == "true"
    if ("number" in types or "integer" in types) and _NUMBER.fullmatch(stripped):
        number = json.loads(stripped)
        if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
            number = int(number)
        return number if isinstance(number, int) or ("number" in types and abs(number) != float("inf")) else text
    if stripped[:1] in {"{", "["}:
        value = _parsed(stripped)
        if (isinstance(value, dict) and "object" in types) or (isinstance(value, list) and "array" in types):
            return cast("Any", value)
    return text


def _applied(arguments: Json, changes: list[_Change]) -> Json:
    """`arguments` with `changes` made, sharing with it what did not change."""
    result: Any = arguments
    for change in changes:
        result = _put(result, change.path, change)
    return cast("Json", result) if isinstance(result, dict) else arguments


def _put(value: Any, path: Path, change: _Change) -> Any:
    if not path:
        return value if change.drop else change.value
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and step in value:
        members = dict(cast("Node", value))
        name = cast("str", step)
        if change.drop and not rest:
            del members[name]
        else:
            members[name] = _put(members[name], rest, change)
        return members
    if isinstance(value, list) and isinstance(step, int) and step < len(cast("list[Any]", value)):
        items = list(cast("list[Any]", value))
        items[step] = _put(items[step], rest, change)
        return items
    return cast("Any", value)
