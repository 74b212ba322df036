"""Edits of a JSON text that leave everything else as it is: comments, trailing commas, order, indentation."""

from __future__ import annotations

import json
import re
from typing import Any

from toolbay.config.jsonc import Member, Node, read, skip_space

_REST_OF_LINE = re.compile(r"(?:[ \t]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


def put(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """Set what is at `path`; parents that are missing are made. An index may be the length of its list."""
    if not text.strip():
        text = "{}\n"
    node = read(text)
    for depth, key in enumerate(path):
        member = _member(node, key)
        if member is None or (member.node.value is None and depth + 1 < len(path)):
            for inner in reversed(path[depth + 1 :]):
                value = {inner: value}
            return _insert(text, node, key, value) if member is None else _replace(text, member, value)
        if depth + 1 == len(path):
            return _replace(text, member, value)
        node = member.node
    return text


def drop(text: str, path: tuple[str | int, ...]) -> str:
    """Take away what is at `path`, which must be there, and the comment on its last line."""
    node = read(text)
    for key in path[:-1]:
        member = _member(node, key)
        assert member is not None
        node = member.node
    member = _member(node, path[-1])
    assert member is not None
    return _remove(text, node, member)


def _member(node: Node, key: str | int) -> Member | None:
    if isinstance(key, int):
        return node.members[key] if key < len(node.members) else None
    return node.member(key)


def _replace(text: str, member: Member, value: Any) -> str:
    node = member.node
    shown = _shown(value, _indent_at(text, member.start), _unit(text), inline="\n" not in text)
    return text[: node.start] + shown + text[node.end :]


def _insert(text: str, node: Node, key: str | int, value: Any) -> str:
    label = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(key, str) else ""
    unit = _unit(text)
    if not node.members:
        outer = _indent_at(text, node.start)
        inner = text[node.start + 1 : node.end - 1].rstrip()
        shown = label + _shown(value, outer + unit, unit)
        return f"{text[: node.start + 1]}{inner}\n{outer}{unit}{shown}\n{outer}{text[node.end - 1 :]}"
    last = node.members[-1]
    comma = skip_space(text, last.node.end)
    trailing = text[comma] == ","
    after = comma + 1 if trailing else last.node.end
    rest = _REST_OF_LINE.match(text, after)
    line_end = rest.end() if rest else after
    head = text[:after] + ("" if trailing else ",")
    if not text.startswith("\n", line_end):
        return f"{head} {label}{_shown(value, '', unit, inline=True)}{',' if trailing else ''}{text[after:]}"
    indent = _indent_at(text, last.start)
    shown = label + _shown(value, indent, unit)
    return f"{head}{text[after:line_end]}\n{indent}{shown}{',' if trailing else ''}{text[line_end:]}"


def _remove(text: str, node: Node, member: Member) -> str:
    at = node.members.index(member)
    start, end = member.start, member.node.end
    comma = skip_space(text, end)
    if text[comma] == ",":
        end = comma + 1
    elif at > 0:
        before = skip_space(text, node.members[at - 1].node.end)
        text = text[:before] + text[before + 1 :]  # the comma before it, which would be left trailing
        start, end = start - 1, end - 1
        if not text[before:start].strip(" \t"):
            start = before
    line_start = text.rfind("\n", 0, start) + 1
    rest = _REST_OF_LINE.match(text, end)
    line_end = rest.end() if rest else end
    if not text[line_start:start].strip() and line_start > 0:
        start = line_start - 1
        if text.startswith("\n", line_end):
            end = line_end
    elif text.startswith(" ", end):
        end += 1
    text = text[:start] + text[end:]
    if len(node.members) == 1:
        closing = skip_space(text, node.start + 1)
        if not text[node.start + 1 : closing].strip():
            text = text[: node.start + 1] + text[closing:]
    return text


def _shown(value: Any, indent: str, unit: str, *, inline: bool = False) -> str:
    if inline:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", f"\n{indent}")


def _indent_at(text: str, at: int) -> str:
    """The white space that the line of this place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """One step of indentation, as the file has it."""
    found = re.search(r"^([ \t]+)[\"'\w$]", text, re.MULTILINE)
    return found[1] if found else "  "
