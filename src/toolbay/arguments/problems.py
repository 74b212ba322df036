"""What is wrong with arguments, in sentences that a model can mend them from. Values are named by their kind, never repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

from toolbay._nearest import nearest
from toolbay._schemas import Node
from toolbay._text import line

MAX_LENGTH = 200


def describe(error: ValidationError, schema: Node) -> str:
    """One error as `path: what is wrong.`, at most 200 characters. `schema` is the one that was judged by."""
    path, text = _told(error, schema, 0)
    told = line(f"{path_text(path)}: {text}", MAX_LENGTH - 1)
    return told if told.endswith("?") else f"{told}."


def path_text(path: Sequence[str | int]) -> str:
    """`filter.items[0].name`; `arguments` for the whole."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_short(step)}" if text else _short(step)
    if len(text) > 90:
        text = f"{text[:40]}…{text[-49:]}"
    return text or "arguments"


def kind_of(value: Any) -> str:
    """The JSON type of a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _told(error: ValidationError, schema: Node, depth: int) -> tuple[list[str | int], str]:
    kind, path = error.kind, list(error.instance_path)
    match kind:
        case ValidationErrorKind.Required(property=name):
            return [*path, name], "is required and missing"
        case ValidationErrorKind.AdditionalProperties(unexpected=names) | ValidationErrorKind.UnevaluatedProperties(unexpected=names):
            return path, _unexpected(names, _known(error, schema))
        case ValidationErrorKind.AnyOf(context=context) | ValidationErrorKind.OneOfNotValid(context=context):
            return _alternatives(error, context, schema, depth)
        case _:
            return path, _plain(error)


def _plain(error: ValidationError) -> str:
    kind, value = error.kind, error.instance
    match kind:
        case ValidationErrorKind.Type(types=types):
            return f"must be {_either(types)}, and is {kind_of(value)}"
        case ValidationErrorKind.Enum(options=options):
            return f"must be one of {_listed(options)}"
        case ValidationErrorKind.Constant(expected_value=expected):
            return f"must be {_json(expected)}"
        case ValidationErrorKind.Minimum(limit=limit):
            return f"must be at least {limit}"
        case ValidationErrorKind.Maximum(limit=limit):
            return f"must be at most {limit}"
        case ValidationErrorKind.ExclusiveMinimum(limit=limit):
            return f"must be more than {limit}"
        case ValidationErrorKind.ExclusiveMaximum(limit=limit):
            return f"must be less than {limit}"
        case ValidationErrorKind.MultipleOf(multiple_of=step):
            return f"must be a multiple of {step}"
        case ValidationErrorKind.MinLength(limit=limit):
            return f"must have at least {limit} characters"
        case ValidationErrorKind.MaxLength(limit=limit):
            return f"must have at most {limit} characters"
        case ValidationErrorKind.MinItems(limit=limit):
            return f"must have at least {limit} items"
        case ValidationErrorKind.MaxItems(limit=limit) | ValidationErrorKind.AdditionalItems(limit=limit):
            return f"must have at most {limit} items"
        case ValidationErrorKind.MinProperties(limit=limit):
            return f"must have at least {limit} members"
        case ValidationErrorKind.MaxProperties(limit=limit):
            return f"must have at most {limit} members"
        case _:
            return _rare(error)


def _rare(error: ValidationError) -> str:
    match error.kind:
        case ValidationErrorKind.Pattern(pattern=pattern):
            return f"must match the pattern {pattern}"
        case ValidationErrorKind.UniqueItems():
            return "must not hold the same item twice"
        case ValidationErrorKind.FalseSchema():
            return "is not allowed here"
        case ValidationErrorKind.Contains():
            return "holds no item of the kind that it must have"
        case ValidationErrorKind.PropertyNames():
            return "has a member whose name is not allowed"
        case ValidationErrorKind.Not():
            return "is of a form that is excluded"
        case ValidationErrorKind.OneOfMultipleValid():
            return "fits several of the allowed forms, and must fit exactly one"
        case _:
            return f"breaks the rule `{error.kind.name}` of the schema"


def _alternatives(error: ValidationError, context: list[list[ValidationError]], schema: Node, depth: int) -> tuple[list[str | int], str]:
    """The branch that is nearest to the value says what is wrong; where none is, the kinds that are allowed."""
    here = list(error.instance_path)
    branches = [branch for branch in context if branch]
    near = near_branches(error, context)
    if not near:
        kinds = [one.kind for branch in branches for one in branch if list(one.instance_path) == here]
        types = list(dict.fromkeys(word for kind in kinds if isinstance(kind, ValidationErrorKind.Type) for word in kind.types))
        options = [option for kind in kinds if isinstance(kind, ValidationErrorKind.Enum) for option in kind.options]
        options += [kind.expected_value for kind in kinds if isinstance(kind, ValidationErrorKind.Constant)]
        if options and not (isinstance(error.instance, dict | list)):
            return here, f"must be one of {_listed(options)}" + (f", or {_either(types)}" if types else "")
        return (
            here,
            f"must be {_either(types)}, and is {kind_of(error.instance)}" if types else "fits none of the forms that are allowed here",
        )
    best = near[0]
    if depth > 8:
        return here, "fits none of the forms that are allowed here"
    path, text = _told(best[0], schema, depth + 1)
    return (path, text) if len(near) == 1 else (path, f"{text} (or give another of the {len(context)} forms allowed for {path_text(here)})")


def near_branches(error: ValidationError, context: list[list[ValidationError]]) -> list[list[ValidationError]]:
    """The errors of those alternatives that take the value's kind, the nearest alternative first."""
    here = error.instance_path
    branches = [branch for branch in context if branch and not any(one.instance_path == here and is_other_kind(one) for one in branch)]
    return sorted(branches, key=len)


def is_other_kind(error: ValidationError) -> bool:
    """Whether a value is not merely out of bounds but another value than was asked for."""
    return isinstance(error.kind, ValidationErrorKind.Type | ValidationErrorKind.Enum | ValidationErrorKind.Constant)


def _unexpected(names: list[str], known: list[str]) -> str:
    text = f"has no argument named {_listed(names, limit=3)}"
    near = nearest(names[0], known) if names else ""
    if near:
        return f"{text}; did you mean {_json(near)}?"
    return f"{text}; it takes {_listed(known)}" if known else f"{text}; it takes none"


def _known(error: ValidationError, schema: Node) -> list[str]:
    """The names that the schema around a broken `additionalProperties` has."""
    value: Any = schema
    for step in list(error.schema_path)[:-1]:
        if isinstance(value, dict) and step in value:
            value = cast("Node", value)[cast("str", step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[step]
        else:
            return []
    properties = cast("Node", value).get("properties") if isinstance(value, dict) else None
    return list(cast("Node", properties)) if isinstance(properties, dict) else []


def _either(words: Sequence[str]) -> str:
    named = [word if word == "null" else f"{'an' if word[0] in 'aio' else 'a'} {word}" for word in words]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}" if named else "something else"


def _listed(options: Sequence[Any], *, limit: int = 8) -> str:
    shown = ", ".join(_json(option) for option in options[:limit])
    return f"{shown} and {len(options) - limit} more" if len(options) > limit else shown


def _json(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return line(text, 40)
