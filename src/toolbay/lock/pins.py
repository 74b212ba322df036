"""What the lock file keeps: digests that decide, and beside them a readable copy, so that a change can be shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from toolbay._text import visible
from toolbay.lock.definitions import WORDS, as_json, description, digest, parameters
from toolbay.types import Json, Subject

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Mask = Callable[[str], str]
"""Takes secrets out of a text."""

INSTRUCTIONS_SHOWN = 2_000
_PART = 12
"""Digits that tell one field's value from another's. They only choose words; the whole digest decides."""
_PART_SHOWN = 500
_DIFF_LINES = 300
"""Lines of a description that are compared: what takes quadratic time is kept short."""
_SHOWN_ITSELF = frozenset({"name", "uri", "uriTemplate", "description", "arguments"})
_CLOSED = ConfigDict(frozen=True, extra="forbid")


class Pin(BaseModel):
    """One definition. `parts` are short digests of its fields, so that a diff can name the one that changed."""

    model_config = _CLOSED

    sha256: Digest
    description: str = ""
    parameters: tuple[str, ...] = ()
    parts: Mapping[str, str] = {}

    @classmethod
    def of(cls, definition: Json, mask: Mask) -> Pin:
        """
        Raises:
            ValueError: it is nested too deep to be pinned.
        """
        return cls(
            sha256=digest(definition),
            description=mask(description(definition)),
            parameters=tuple(mask(line) for line in parameters(definition)),
            parts={name: digest(value)[:_PART] for name, value in definition.items()},
        )


class TextPin(BaseModel):
    """A server's instructions."""

    model_config = _CLOSED

    sha256: Digest
    begins: str = ""

    @classmethod
    def of(cls, text: str, mask: Mask) -> TextPin:
        return cls(sha256=digest(text), begins=mask(visible(text[:INSTRUCTIONS_SHOWN])))


class ServerPin(BaseModel):
    """One server. `identity` is the digest of its launch, `launch` shows it without credentials."""

    model_config = _CLOSED

    identity: Digest
    launch: str = ""
    instructions: TextPin = TextPin.of("", str)
    tools: Mapping[str, Pin] = {}
    resources: Mapping[str, Pin] = {}
    templates: Mapping[str, Pin] = {}
    prompts: Mapping[str, Pin] = {}

    def pin(self, subject: Subject) -> Pin | None:
        """What is pinned of one capability."""
        lists: dict[str, Mapping[str, Pin]] = {
            "tools": self.tools,
            "resources": self.resources,
            "templates": self.templates,
            "prompts": self.prompts,
        }
        return lists[subject[0]].get(subject[1])


def told(subject: Subject) -> str:
    """`tool read_file`, `resource file:///notes`: a capability for people."""
    return f"{WORDS[subject[0]]} {' '.join(visible(subject[1][:200]).split())}"


def diff(pinned: Pin | None, definition: Json, mask: Mask = str) -> str:
    """What changed from a pin to a definition, as lines that begin with `-` (pinned), `+` (now) or two spaces (both).

    A change that the readable copy does not hold is named by its field, with its value of now.
    """
    old = _lines(pinned.description, pinned.parameters) if pinned else []
    new = _lines(mask(description(definition)), [mask(line) for line in parameters(definition)])
    lines = [f"{line[:1]} {line[1:]}" for line in list(difflib.unified_diff(old, new, n=_DIFF_LINES, lineterm=""))[3:]]
    if pinned is None:
        return "\n".join(lines)
    for name in sorted({*pinned.parts, *definition}):
        before, now = pinned.parts.get(name), digest(definition[name])[:_PART] if name in definition else None
        if before != now and (name not in _SHOWN_ITSELF or old == new):
            value = mask(visible(as_json(definition.get(name)))[:_PART_SHOWN])
            lines.append(f"! {name} differs; it is now {value}" if now else f"! {name} is not there any more")
    return "\n".join(lines)


def _lines(text: str, listed: list[str] | tuple[str, ...]) -> list[str]:
    return [*text.splitlines()[:_DIFF_LINES], *(f"· {line}" for line in listed)]
