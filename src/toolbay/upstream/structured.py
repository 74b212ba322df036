"""`structuredContent` as text for a model, and whether the content blocks have said it already. Pure.

Most servers say everything twice: as text and as structure. Seen in the wild: the same JSON; the structure's only value as
text (`{"result": ...}`, `{"content": ...}`); the content blocks themselves, with their base64, inside the structure.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from toolbay._weight import heavy
from toolbay.types import Json

_WIDE = 120
"""Characters up to which JSON stays on one line."""
_LARGE = 20_000
"""Weight from which two values are compared part by part."""
_SCALARS = ("-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "t", "f", "n")
_SPACE = re.compile(r"[ \t\n\r]*")
_scan = json.JSONDecoder().raw_decode
_WRAPPINGS = 3
"""How many single-key objects around a value are looked through."""


def as_text(value: Any) -> str:
    """`value` as JSON that reads well and costs little: one line while it is short, else an indent of one.

    Raises:
        ValueError: it is nested too deeply, or is no JSON.
    """
    try:
        short = "" if heavy(value, 10 * _WIDE) else json.dumps(value, ensure_ascii=False)
        return short if 0 < len(short) <= _WIDE else json.dumps(value, ensure_ascii=False, indent=1)
    except (TypeError, RecursionError) as problem:
        raise ValueError("it is nested too deeply or is not JSON") from problem


def repeats(value: Any, content: list[Any]) -> bool:
    """Whether `value`, a result's structured content, only says again what its content blocks say."""
    payloads = [_payload(block) for block in content]
    texts = [text for text in payloads if text]
    if not texts:
        return False
    try:
        return _repeats(value, payloads, _Said([*texts, "\n".join(texts)]), _WRAPPINGS)
    except RecursionError:
        return False


class _Said:
    """What some texts say: as they are, and as the JSON that they may be."""

    def __init__(self, texts: list[str]) -> None:
        self._plain = {text.strip() for text in texts}

    def __contains__(self, value: Any) -> bool:
        return (isinstance(value, str) and value.strip() in self._plain) or any(_spells(text, value) for text in self._plain)


def _repeats(value: Any, payloads: list[str], said: _Said, wrappings: int) -> bool:
    if value in said or ((text := _payload(value)) and text in said):
        return True
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return len(items) == len(payloads) and all(_same(item, text) for item, text in zip(items, payloads, strict=True))
    if isinstance(value, dict) and wrappings:
        values = list(cast("Json", value).values())
        return len(values) == 1 and _repeats(values[0], payloads, said, wrappings - 1)
    return False


def _same(item: Any, text: str) -> bool:
    return bool(text) and (_payload(item) == text or item in _Said([text]))


def _payload(block: Any) -> str:
    """What a content block carries: its text or its base64."""
    if not isinstance(block, dict):
        return ""
    fields = cast("Json", block)
    match fields.get("type"):
        case "text":
            value = fields.get("text")
        case "image" | "audio":
            value = fields.get("data")
        case "resource" if isinstance(fields.get("resource"), dict):
            inner = cast("Json", fields["resource"])
            value = inner.get("text") or inner.get("blob")
        case _:
            value = ""
    return value if isinstance(value, str) else ""


def _spells(text: str, value: Any) -> bool:
    """Whether `text` is `value` as JSON."""
    try:
        return _end(value, text, 0) == len(text)
    except ValueError:
        return False


def _end(value: Any, text: str, at: int) -> int:
    """Where `value` ends that begins in `text` at `at`; -1 where another value is there.

    A large value is compared part by part, up to the first difference: to read it whole would hold up every other thread.
    """
    opener = "{" if isinstance(value, dict) else "[" if isinstance(value, list) else '"' if isinstance(value, str) else _SCALARS
    if not text.startswith(opener, at):
        return -1
    if not isinstance(value, dict | list) or not heavy(value, _LARGE):
        found, end = _scan(text, at)
        return end if found == value else -1
    named = cast("Json", value) if isinstance(value, dict) else None
    parts: list[Any] = list(named) if named is not None else cast("list[Any]", value)
    at = _skip(text, at + 1)
    for number in range(len(parts)):
        if number:
            if not text.startswith(",", at):
                return -1
            at = _skip(text, at + 1)
        part = parts[number]
        if named is not None:
            name, at = _scan(text, at)
            at = _skip(text, at)
            if name not in named or not text.startswith(":", at):
                return -1
            part, at = named[name], _skip(text, at + 1)
        at = _end(part, text, at)
        if at < 0:
            return -1
        at = _skip(text, at)
    return at + 1 if text.startswith("]" if named is None else "}", at) else -1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
