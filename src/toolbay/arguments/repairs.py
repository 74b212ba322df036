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
from toolbay.arguments.validator import MAX_EXAMINED, Validator
from toolbay.types import Json

_WRAPPERS = ("arguments", "parameters", "input")
_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_ROUNDS = 6
_TRIALS = 40
_STEPS = 4 * MAX_EXAMINED
"""Steps of judging, all looks at what is wrong together."""

Path: TypeAlias = tuple[str | int, ...]
_Better: TypeAlias = tuple[Json, "list[ValidationError]"]
"""Arguments that are nearer to what is wanted, and what is still wrong with them."""


@dataclass(frozen=True)
class _Change:
    """Put `value` at `path`, or drop what is there."""

    path: Path
    value: Any = None
    drop: bool = False


def repair(validator: Validator | None, arguments: Json | str) -> Json | str:
    """`arguments` as they were meant, or as they are (SCH-4). Without a validator only text is read.

    Empty text is an empty object; text that is a JSON object, fenced or not, becomes that object. A JSON string where an
    object or array is asked for, `"5"` for a number, `"true"` for a boolean, null for an optional property that takes none,
    and a lone `arguments`, `parameters` or `input` around everything are mended. A lone value is no list, and an empty string
    is nothing else. The schema is the server's own; what fits it is never touched. Where mending would be too much work (a
    few times `MAX_EXAMINED` steps of judging), all stays as it is.
    """
    parsed = _object_in(arguments) if isinstance(arguments, str) else arguments
    if parsed is None:
        return arguments
    if validator is None or validator.refusal(parsed) is not None or validator.fits(parsed):
        return parsed
    inner = _unwrapped(validator.schema, parsed)
    if inner is not None:
        mended = _Mending(validator).mended(inner)
        if validator.accepts(mended):
            return mended
    return _Mending(validator).mended(parsed)


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
    if not text.strip():
        return {}  # what models send to tools without parameters
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


class _Mending:
    """One attempt to mend arguments, with what it may cost: work that is judged by is counted, and at its end all stays as it is."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._steps = _STEPS
        self._trials = _TRIALS

    def mended(self, arguments: Json) -> Json:
        if self._validator.refusal(arguments) is not None:
            return arguments
        current = arguments
        errors = self._errors(current)
        for _ in range(_ROUNDS):
            if not errors:
                return current
            # Most mistakes are the same one many times: all plain changes at once, judged once.
            together = [groups[0] for error in errors if len(groups := list(_proposals(error))) == 1]
            better = self._closer(current, errors, [change for group in together for change in group]) or self._one_by_one(current, errors)
            if better is None:
                return current
            current, errors = better
        return current

    def _errors(self, value: Json) -> list[ValidationError] | None:
        """What is wrong with `value`; None where to look once more would be too much."""
        if self._steps <= 0:
            return None
        self._steps -= self._validator.steps(value, MAX_EXAMINED)
        return self._validator.errors(value)

    def _one_by_one(self, current: Json, errors: list[ValidationError]) -> _Better | None:
        """The first error that can be mended in exactly one way, mended."""
        for error in errors:
            results: list[_Better] = []
            for group in _proposals(error):
                if self._trials <= 0:
                    return None
                self._trials -= 1
                better = self._closer(current, errors, group)
                if better is not None and all(better[0] != other for other, _ in results):
                    results.append(better)
            if len(results) == 1:
                return results[0]
        return None

    def _closer(self, before: Json, errors: list[ValidationError], changes: list[_Change]) -> _Better | None:
        """`before` with `changes`, and what is wrong then, if that is less.

        What is inside of what was changed does not count: it could not be seen before.
        """
        after = _applied(before, changes)
        if after == before or self._validator.refusal(after) is not None:
            return None
        found = self._errors(after)
        places = {change.path for change in changes}

        def wrong(among: list[ValidationError]) -> int:
            weighed = [_weighed(error) for error in among]
            return sum(weight for place, weight in weighed if not any(place[:size] in places for size in range(len(place))))

        return None if found is None or (found and wrong(found) >= wrong(errors)) else (after, found)


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
    copies: dict[int, Any] = {}

    def own(container: Any) -> Any:
        """A container that may be changed: a copy, made once."""
        if id(container) in copies:
            return container
        copy = container.copy()
        copies[id(copy)] = copy
        return copy

    root = own(arguments)
    for change in changes:
        if not change.path:
            root = own(change.value) if _is_object(change.value) else root
            continue
        *way, last = change.path
        value: Any = root
        for step in way:
            if not _holds(value, step):
                break
            if isinstance(value[step], dict | list):
                value[step] = own(value[step])
            value = value[step]
        if not _holds(value, last):
            continue
        if not change.drop:
            value[last] = change.value
        elif isinstance(last, str):
            del value[last]
    return root


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _holds(container: Any, step: str | int) -> bool:
    """Whether `step` leads further into `container`."""
    if isinstance(container, dict):
        return step in container
    return isinstance(container, list) and isinstance(step, int) and step < len(cast("list[Any]", container))
