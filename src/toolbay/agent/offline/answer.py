"""What the offline matcher says: results shown plainly, a question for what is missing, and what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import cast

from toolbay.agent.offline.values import Param
from toolbay.types import Message, Tool, for_people

NOTE = (
    "(I am Toolbay's built-in offline matcher, no language model: I pick tools by their words; "
    "set TOOLBAY_MODEL or `agent.model` to `provider:model` for real answers.)"
)
MAX_TEXT = 4_000
"""Characters of one result that are shown."""
NEAR = 5
ASKING = "What should it be?"
"""In what each question ends."""
_DECODER = json.JSONDecoder()
MAX_DEPTH = 12
"""Levels of a JSON result that are shown."""


def results(answered: Sequence[Message], tools: dict[str, Tool]) -> str:
    """The results in the order of their calls."""
    shown: list[str] = []
    for message in answered:
        named = label(tools.get(message.name), message.name)
        if message.is_error:
            shown.append(f"{named} did not work: {_trimmed(for_people(message.text)) or 'it gave no reason.'}")
            continue
        text = _plain(message.text) or "(no output)"
        shown.append(f"{named}:\n{text}" if len(answered) > 1 else text)
        shown.extend(f"File: {artifact.path} ({artifact.media_type}, {artifact.size} bytes)" for artifact in message.artifacts)
    return "\n\n".join(shown)


def question(tool: Tool, param: Param) -> str:
    """Ask for one value, and say what it is for."""
    about = f" ({_first_sentence(param.description)})" if param.description else ""
    kind = f" It is one of: {', '.join(str(choice) for choice in param.choices[:20])}." if param.choices else ""
    return f"I would use {label(tool, tool.name)}, but it needs `{param.name}`{about}.{kind} {ASKING}"


def nothing(step: str, near: Sequence[Tool], *, any_tools: bool) -> str:
    """Nothing fits: say so, and what comes nearest."""
    if not any_tools:
        return "There are no tools to choose from at this moment."
    said = f'None of the tools clearly fits "{step[:200]}".'
    if near:
        said += "\nNearest are:\n" + "\n".join(f"- {label(tool, tool.name)}: {_first_sentence(tool.description)}" for tool in near[:NEAR])
        said += "\nName one of them, or say it with its words."
    return said


def absent(lacking: Sequence[str]) -> str:
    """Which servers are not there, whose tools might have fitted; nothing where all are."""
    return "\n".join(["Servers that are not there, whose tools might fit:", *(f"- {each}" for each in lacking)]) if lacking else ""


def offered(tools: Sequence[Tool]) -> str:
    """What there is, by server."""
    if not tools:
        return nothing("", (), any_tools=False)
    servers: dict[str, list[str]] = {}
    for tool in tools:
        servers.setdefault(tool.server or "built in", []).append(tool.wire_name or tool.name)
    return "I can call these tools:\n" + "\n".join(
        f"- {server}: {', '.join(names[:30])}{' …' * (len(names) > 30)}" for server, names in servers.items()
    )


def joined(*parts: str) -> str:
    """What there is to say, in its order; never nothing."""
    return "\n\n".join(part for part in parts if part) or "What shall I do?"


def label(tool: Tool | None, name: str) -> str:
    """A tool as people know it: its own name and its server."""
    if tool is None or not tool.wire_name:
        return name
    return f"{tool.wire_name} ({tool.server})" if tool.server else tool.wire_name


def _first_sentence(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    end = line.find(". ")
    line = line if end < 0 else line[:end]
    return line.rstrip(".")[:200]


def _plain(text: str) -> str:
    """A JSON document at the beginning as an outline without what is empty; everything else as it is, trimmed."""
    text = text.strip()
    if text[:1] in {"{", "["}:
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return _trimmed(text)
        text = "\n".join([*_outline(value, ""), text[end:].strip()]).strip() or text
    return _trimmed(text)


def _outline(value: object, indent: str) -> Iterator[str]:
    if len(indent) > 2 * MAX_DEPTH:
        yield f"{indent}…"
    elif isinstance(value, dict):
        for key, part in cast("dict[str, object]", value).items():
            yield from _part(f"{indent}{key}:", part, indent)
    elif isinstance(value, list):
        for part in cast("list[object]", value):
            yield from _part(f"{indent}-", part, indent)
    else:
        yield f"{indent}{_word(value)}"


def _part(head: str, part: object, indent: str) -> Iterator[str]:
    if part in (None, "", [], {}):
        return
    if isinstance(part, dict | list) or (isinstance(part, str) and "\n" in part):
        yield head
        inner = "\n".join(_outline(cast("object", part), indent + "  "))
        yield inner.replace("\n", f"\n{indent}  ") if isinstance(part, str) else inner
    else:
        yield f"{head} {_word(part)}"


def _word(value: object) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _trimmed(text: str) -> str:
    text = text.strip()
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT].rstrip()}\n… ({len(text) - MAX_TEXT} more characters)"
