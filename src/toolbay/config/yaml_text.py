"""Edits of a YAML text that leave everything else as it is.

The library's own round trip keeps comments but moves some of them and lays out lines anew; so only the places are taken
from it, and the text is changed there.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any, cast

from toolbay.errors import ConfigError

_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_ALIAS = re.compile(r"\s*:?\s*(\*[^\s,\[\]{}]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """A value: `text[start:end]` is its own characters, without the comments after it. `column` is where it begins."""

    start: int
    end: int
    column: int
    kind: str
    """`object`, `list`, `alias`, `null` or `value`."""
    flow: bool = False
    members: tuple[_Member, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A member of an object, with its key, or an item of a list, whose key counts as being where the item begins."""

    key: str | None
    start: int
    finish: int
    column: int
    node: _Node


def put(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """Set what is at `path`; parents that are missing are made. An index may be the length of its list."""
    node = _tree(text)
    if node is None or node.kind == "null":
        body = text if not text or text.endswith("\n") else f"{text}\n"
        return body + _rendered(_nested(path, value), 0)
    for depth, key in enumerate(path):
        rest = path[depth + 1 :]
        member = _member(node, key)
        if member is None:
            return _insert(text, node, key, _nested(rest, value))
        if not rest or member.node.kind == "null" or (member.node.kind == "object" and not member.node.members):
            return _replace(text, node, member, _nested(rest, value))
        node = member.node
    return text


def drop(text: str, path: tuple[str | int, ...]) -> str:
    """Take away what is at `path`, which must be there, and the comment on its last line."""
    node, above = _tree(text), None
    member: _Member | None = None
    for key in path:
        above, node = member, member.node if member else node
        member = _member(node, key) if node else None
    assert node is not None
    assert member is not None
    if node.flow:
        return _drop_in_flow(text, member)
    start = text.rfind("\n", 0, member.start) + 1
    end = _line_end(text, max(member.node.end, member.finish))
    text = text[:start] + text[min(end + 1, len(text)) :]
    if len(node.members) == 1 and above is not None:
        colon = text.index(":", above.finish) + 1
        text = f"{text[:colon]} {'[]' if node.kind == 'list' else '{}'}{text[colon:]}"
    return text


def _tree(text: str) -> _Node | None:
    from ruamel.yaml import YAML  # noqa: PLC0415  # heavy, and for YAML files only

    composed = cast("Any", YAML(typ="safe", pure=True)).compose(text)
    return None if composed is None else _node(composed, text)


def _node(composed: Any, text: str) -> _Node:
    start, end = int(composed.start_mark.index), int(composed.end_mark.index)
    column, flow = int(composed.start_mark.column), bool(getattr(composed, "flow_style", False))
    value: Any = composed.value
    if not isinstance(value, list):
        if composed.style in {"|", ">"}:
            end = len(text[:end].rstrip())
        return _Node(start=start, end=end, column=column, kind="null" if str(composed.tag).endswith(":null") else "value")
    members: list[_Member] = []
    at = start
    for item in cast("list[Any]", value):
        member = _pair(item, at, text)
        members.append(member)
        at = member.node.end
    # The library counts the comments after a block to it.
    end = at if members and not flow else end
    kind = "object" if str(composed.tag).endswith(":map") else "list"
    return _Node(start=start, end=end, column=column, kind=kind, flow=flow, members=tuple(members))


def _pair(item: Any, at: int, text: str) -> _Member:
    """One member; `at` is where what stands before it ends. An alias shows itself by pointing back behind that."""
    name, child = cast("tuple[Any, Any]", item) if isinstance(item, tuple) else (None, item)
    if name is not None and int(name.start_mark.index) >= at:
        at = int(name.end_mark.index)
    if int(child.start_mark.index) < at:
        found = _ALIAS.search(text, at)
        start, end = found.span(1) if found else (at, at)
        node = _Node(start=start, end=end, column=0, kind="alias")
    else:
        node = _node(child, text)
    if name is None:
        return _Member(key=None, start=node.start, finish=node.start, column=node.column, node=node)
    mark, finish = name.start_mark, int(name.end_mark.index)
    return _Member(key=str(name.value), start=int(mark.index), finish=finish, column=int(mark.column), node=node)


def _nested(path: tuple[str | int, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _member(node: _Node, key: str | int) -> _Member | None:
    if node.kind not in {"object", "list"}:
        raise ConfigError(f"`{key}` cannot be reached through an alias or a bare value: edit it by hand")
    if isinstance(key, int):
        return node.members[key] if key < len(node.members) else None
    return next((member for member in node.members if member.key == key), None)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _insert(text: str, node: _Node, key: str | int, value: Any) -> str:
    if node.flow:
        member = _flow(value) if isinstance(key, int) else _flow({key: value})[1:-1]
        if not node.members:
            return f"{text[: node.start + 1]}{member}{text[node.end - 1 :]}"
        at = node.members[-1].node.end
        return f"{text[:at]}, {member}{text[at:]}"
    first = node.members[0].start
    line = text[text.rfind("\n", 0, first) + 1 : first]
    column = line.index("-") if node.kind == "list" else len(line)
    at = _line_end(text, node.end)
    if node.kind == "list":
        shown = _rendered(value, column + 2, _unit(text))
        shown = f"{shown[:column]}- {shown[column + 2 :]}"
    else:
        shown = _rendered({key: value}, column, _unit(text))
    return f"{text[:at]}\n{shown.removesuffix(chr(10))}{text[at:]}"


def _replace(text: str, node: _Node, member: _Member, value: Any) -> str:
    start, end = member.node.start, member.node.end
    if node.flow or node.kind == "list" or not isinstance(value, dict):
        gap = "" if start > member.finish or member.key is None else " "
        return f"{text[:start]}{gap}{_flow(value)}{text[end:]}"
    shown = _rendered(value, member.column + _unit(text), _unit(text)).removesuffix("\n")
    if member.node.kind == "null" or not member.node.members:
        # What stands on the key's line, a comment perhaps, stays there.
        colon = text.index(":", member.finish) + 1
        if start < end:
            text = text[:start].rstrip() + text[end:]
        at = _line_end(text, colon)
        return f"{text[:at]}\n{shown}{text[at:]}"
    return f"{text[:start].rstrip()}\n{shown}{text[end:]}"


def _drop_in_flow(text: str, member: _Member) -> str:
    start, end = member.start, member.node.end
    after = len(text) - len(text[end:].lstrip())
    if text.startswith(",", after):
        end = len(text) - len(text[after + 1 :].lstrip(" "))
    else:
        before = text[:start].rstrip()
        start = len(before) - 1 if before.endswith(",") else start
    return text[:start] + text[end:]


def _flow(value: Any) -> str:
    """A value as JSON, which is YAML once the characters are escaped that YAML does not print."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _unit(text: str) -> int:
    """Columns of one step of indentation, as the file has it."""
    widths = [len(line) - len(line.lstrip(" ")) for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "-"))]
    return min((width for width in widths if width), default=2)


def _rendered(value: Any, column: int, unit: int = 2) -> str:
    from ruamel.yaml import YAML  # noqa: PLC0415  # heavy, and for YAML files only

    writer = cast("Any", YAML())
    writer.indent(mapping=unit, sequence=unit + 2, offset=unit)
    writer.width = 100_000
    stream = io.StringIO()
    writer.dump(value, stream)
    return "".join(f"{' ' * column}{line}" if line.strip() else line for line in stream.getvalue().splitlines(keepends=True))
