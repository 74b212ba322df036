"""Arguments for a tool out of a request: each parameter takes the piece that its type, name and description ask for.

What is written as `name=value` binds exactly; required parameters choose before optional ones; a piece is used once. Optional
parameters are filled only where the request speaks of them, so that a server's defaults stay its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from toolbay.agent.offline.draft import BODIES, PATHS, TEXTS, URLS, Draft, Filled
from toolbay.agent.offline.places import assumed, is_path, path, pattern, url, zone
from toolbay.agent.offline.texts import named, text
from toolbay.agent.offline.values import Param, coerced, enum_of, spoken
from toolbay.agent.offline.words import Request, Sort
from toolbay.search.words import fold
from toolbay.types import Json, Tool


def fill(tool: Tool, request: Request, remembered: Mapping[str, Any] | None = None) -> Filled:
    """Fill the parameters of `tool`; `remembered` are arguments of earlier calls, for folders and repositories not named again."""
    draft = Draft(tool, request, remembered or {})
    params = Param.all_of(draft.tool.input_schema)
    waiting: list[Param] = []
    for param in params:
        value = _pair(draft, param)
        if value is None:
            waiting.append(param)
        else:
            draft.filled.arguments[param.name] = value
    waiting.sort(key=lambda param: (not param.required, _is_vague(param)))
    called = {param.name: named(draft, param) for param in waiting}
    for param in waiting:
        value = _value(draft, param) if called[param.name] is None else called[param.name]
        if value is None and param.required:
            value = assumed(draft, param)
        if value is not None:
            draft.filled.arguments[param.name] = value
        elif param.required:
            draft.filled.missing.append(param)
    order = [param.name for param in params]
    draft.filled.arguments = {name: draft.filled.arguments[name] for name in order if name in draft.filled.arguments}
    return draft.filled


def _is_vague(param: Param) -> bool:
    """What takes any text chooses last, so that what is a path or a number goes where it belongs."""
    return param.kind == "string" and bool(param.words & TEXTS) and not param.words & (PATHS | URLS)


def _pair(draft: Draft, param: Param) -> Any:
    plain = fold(param.name).replace("-", "_")
    for piece in draft.free:
        if piece.sort is Sort.PAIR and fold(piece.key).replace("-", "_") == plain:
            value = coerced(piece.value, param)
            if value is not None:
                draft.use(piece)
                return value
    return None


def _value(draft: Draft, param: Param) -> Any:
    if param.choices:
        return enum_of(param, draft.request.rest)
    match param.kind:
        case "boolean":
            return spoken(param, draft.request.rest)
        case "integer" | "number":
            return _number(draft, param)
        case "array":
            return _array(draft, param)
        case "object":
            return _object(draft, param) if param.required else None
        case _:
            return _string(draft, param)


def _number(draft: Draft, param: Param) -> int | float | None:
    piece = draft.near(param)
    if piece is None and param.required:
        piece = next((piece for piece in draft.free if piece.sort is Sort.NUMBER), None)
    if piece is None:
        return None
    value = coerced(piece.value.partition("-")[0] if piece.value[1:].count("-") else piece.value, param)
    if value is not None:
        draft.use(piece)
    return cast("int | float | None", value)


def _array(draft: Draft, param: Param) -> list[Any] | None:
    item = param.item()
    if item.kind == "object":
        one = _object(draft, item)
        return [one] if one else None
    if item.kind in {"integer", "number"}:
        return _numbers(draft, param)
    values: list[str] = []
    while (value := _string(draft, item, many=bool(values))) is not None:
        values.append(value)
        if item.words & TEXTS or len(values) == 50:
            break
    return values or None


def _numbers(draft: Draft, param: Param) -> list[int] | None:
    first = draft.near(param)
    if first is None:
        if not param.required:
            return None
        first = next((piece for piece in draft.free if piece.sort is Sort.NUMBER), None)
    if first is None:
        return None
    numbers: list[int] = []
    end = first.start
    for piece in [piece for piece in draft.free if piece.sort is Sort.NUMBER and piece.start >= first.start]:
        between = draft.request.text[end : piece.start]
        if numbers and not re.fullmatch(r"\s*(?:,|and|&|und|et|y|、|和)*\s*(?:and\s*)?", between):
            break
        low, _, high = piece.value.partition("-")
        if not low.isdigit() or (high and not high.isdigit()) or (high and int(high) - int(low) > 500):
            break
        numbers.extend(range(int(low), int(high or low) + 1))
        end = piece.end
        draft.use(piece)
    return numbers or None


def _object(draft: Draft, param: Param) -> Json | None:
    """One level down: the object's own parameters take from the same pieces.

    Where an object must be given but none of its parts must (a path or a URL, say), whatever part finds a piece takes it.
    """
    inside: Json = {}
    parts = Param.all_of(param.schema)
    is_open = param.required and not any(part.required for part in parts)
    for part in sorted(parts, key=lambda part: not part.required):
        value = _pair(draft, part)
        if value is None and part.kind != "object":
            value = _value(draft, replace(part, required=True) if is_open and part.kind != "boolean" else part)
        if value is not None:
            inside[part.name] = value
        elif part.required:
            if part.kind == "array" and not part.words & BODIES:
                inside[part.name] = []
                continue
            return None
    return inside or None


def _string(draft: Draft, param: Param, *, many: bool = False) -> str | None:
    if param.is_zone:
        return zone(draft, param)
    if param.words & URLS or param.schema.get("format") in {"uri", "url"}:
        return url(draft, param)
    if is_path(draft, param):
        return path(draft, param)
    if param.words & {"date", "day", "since", "before", "after", "timestamp"} or param.schema.get("format") in {"date", "date-time"}:
        return draft.first(Sort.DATE)
    if "time" in param.words and "out" not in param.words:
        return draft.first(Sort.TIME)
    if param.words & {"pattern", "glob"}:
        return pattern(draft, param)
    if param.words & {"page", "pages"}:
        near = draft.near(param)
        return None if near is None else draft.use(near)
    return text(draft, param, many=many)
