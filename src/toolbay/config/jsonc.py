"""JSON as people write it (comments, trailing commas, single quotes, bare keys), read into a tree that knows its places.

The standard library reads strict JSON faster; this reads what it refuses, says where a text breaks, and gives the edits
of `toolbay.config.edit` the exact places to change.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from toolbay.errors import ConfigError

_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_DOUBLE = re.compile(r'"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_SINGLE = re.compile(r"'(?:[^'\\\n]|\\.)*'", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])")
_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_CLOSING = {"{": "}", "[": "]"}


class BrokenText(ConfigError):
    """A text that breaks the rules of its language, at `position` (an index into it)."""

    def __init__(self, expected: str, position: int) -> None:
        super().__init__(expected)
        self.position = position


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A value and where it stands: `text[start:end]`. `members` are those of an object or a list, in their order."""

    start: int
    end: int
    value: Any
    members: tuple[Member, ...] = field(default=(), repr=False)

    def member(self, key: str) -> Member | None:
        """The member of an object that counts: of two of the same name the later."""
        return next((member for member in reversed(self.members) if member.key == key), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One member of an object (`key`) or of a list (`key` is None); `start` is where its key, or else its value, begins."""

    key: str | None
    start: int
    node: Node


def read(text: str) -> Node:
    """The tree of a whole text.

    Raises:
        BrokenText: the text is not JSON, even with what is allowed besides.
    """
    node = _value(text, _space(text, 0))
    rest = _space(text, node.end)
    if rest < len(text):
        raise BrokenText("expected nothing more after the end of the value", rest)
    return node


def skip_space(text: str, at: int) -> int:
    """The first place from `at` on that is neither space nor comment."""
    return _space(text, at)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    end = match.end() if match else at
    if text.startswith("/*", end):
        raise BrokenText("expected `*/` at the end of the comment that begins here", end)
    return end


def _value(text: str, at: int) -> Node:
    mark = text[at : at + 1]
    if mark in _CLOSING:
        return _container(text, at, _CLOSING[mark])
    if mark in {'"', "'"}:
        string, end = _string(text, at)
        return Node(start=at, end=end, value=string)
    number = _NUMBER.match(text, at)
    if number:
        return Node(start=at, end=number.end(), value=_number(number[0]))
    word = _NAME.match(text, at)
    if word and word[0] in _WORDS:
        return Node(start=at, end=word.end(), value=_WORDS[word[0]])
    raise BrokenText("expected a value" if mark else "expected a value, but the text ends", at)


def _container(text: str, start: int, closing: str) -> Node:
    members: list[Member] = []
    at = _space(text, start + 1)
    while not text.startswith(closing, at):
        key, begin = None, at
        if closing == "}":
            key, at = _key(text, at)
            at = _space(text, at)
            if not text.startswith(":", at):
                raise BrokenText("expected `:` after the key", at)
            at = _space(text, at + 1)
        node = _value(text, at)
        members.append(Member(key=key, start=begin, node=node))
        at = _space(text, node.end)
        if text.startswith(",", at):
            at = _space(text, at + 1)
        elif not text.startswith(closing, at):
            raise BrokenText(f"expected `,` or `{closing}`" + (", but the text ends" if at >= len(text) else ""), at)
    value: Any = {m.key: m.node.value for m in members} if closing == "}" else [m.node.value for m in members]
    return Node(start=start, end=at + 1, value=value, members=tuple(members))


def _key(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] in {'"', "'"}:
        return _string(text, at)
    name = _NAME.match(text, at)
    if name is None:
        raise BrokenText("expected a key in double quotes, or `}`" + (", but the text ends" if at >= len(text) else ""), at)
    return name[0], name.end()


def _string(text: str, at: int) -> tuple[str, int]:
    match = (_DOUBLE if text[at] == '"' else _SINGLE).match(text, at)
    if match is None:
        raise BrokenText(f"expected a closing {text[at]} on the line of the string that begins here", at)
    token = match[0]
    if token[0] == "'":
        inner = re.sub(r"\\.|\"", lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), token[1:-1], flags=re.DOTALL)
        token = f'"{inner}"'
    try:
        return json.loads(token.replace("\\\r\n", "").replace("\\\n", ""), strict=False), match.end()
    except json.JSONDecodeError as error:
        raise BrokenText(
            'expected one of the escapes \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX', at + min(error.pos, len(match[0]) - 1)
        ) from None


def _number(token: str) -> int | float:
    digits = token.lstrip("+-")
    sign = -1 if token.startswith("-") else 1
    if digits[:2] in {"0x", "0X"}:
        return sign * int(digits, 16)
    return sign * (int(digits) if digits.isdigit() else float(digits))
