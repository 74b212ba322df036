"""What is pinned of a server: how it is launched, what it says of itself, and the definition of each capability.

Two definitions are equal where a model could not tell them apart: the order of keys and the spelling of numbers are of no
account, everything that reaches a model or decides about a call is. Nothing here knows files or connections.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from toolbay import _redact
from toolbay._lenient import as_object
from toolbay._text import visible
from toolbay.config.models import ServerConfig, TransportType
from toolbay.types import Json, Subject

LISTS = ("tools", "resources", "templates", "prompts")
WORDS = {"tools": "tool", "resources": "resource", "templates": "resource template", "prompts": "prompt"}
"""The lists, and what one item of each is called."""

DESCRIPTION_SHOWN = 4_000
"""Characters of a description that are kept to be shown; no model is given more."""
PARAMETER_SHOWN = 300
PARAMETERS_SHOWN = 100

_NAMES = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}
_FIELDS = {
    "tools": ("name", "title", "description", "inputSchema", "outputSchema", "annotations"),
    "resources": ("name", "title", "description", "uri", "mimeType", "annotations"),
    "templates": ("name", "title", "description", "uriTemplate", "mimeType", "annotations"),
    "prompts": ("name", "title", "description", "arguments"),
}
_PASSING = frozenset({"lastModified"})
"""Annotations of resources that change with their content, and so say nothing of the definition."""
_PORTS = {"http": 80, "https": 443}
_EXACT = 2**53
"""Below it a float that is whole is the integer that it looks like."""


class Listed(Protocol):
    """What a server listed: raw items, as they came."""

    @property
    def tools(self) -> Sequence[Json]: ...
    @property
    def resources(self) -> Sequence[Json]: ...
    @property
    def templates(self) -> Sequence[Json]: ...
    @property
    def prompts(self) -> Sequence[Json]: ...


def digest(value: Any) -> str:
    """SHA-256 of `value` in a canonical form: keys sorted, `1.0` as `1`, no spaces, only ASCII.

    What is nested too deep to be looked at gets a digest that no pinned one equals.
    """
    try:
        text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in cast("Sequence[Any]", value)]
    return value


def identity(config: ServerConfig) -> str:
    """A digest of what is launched or reached: command, arguments, folder, names of variables, sandbox; or origin and path.

    Values of the environment, headers and queries are no part of it: they are secrets, and are changed without harm.
    Arguments are taken whole, so that no spelling of another program passes as this one.
    """
    if config.type is TransportType.STDIO:
        names = sorted({*config.env, *config.inherit_env})
        walls = [config.sandbox, sorted(config.sandbox_paths), config.sandbox_network]
        return digest(["stdio", config.command, list(config.args), config.cwd, names, walls])
    try:
        parts = urlsplit(config.url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return digest(["http", config.url])
    return digest(["http", parts.scheme, parts.hostname or "", port, parts.path or "/"])


def launch(config: ServerConfig) -> str:
    """What `identity` is of, for people, without what looks like a credential."""
    if config.type is TransportType.STDIO:
        return visible(" ".join(_redact.argv([config.command, *config.args])))
    return visible(_redact.origin(config.url))


def definitions(listing: Listed) -> Iterator[tuple[Subject, Json]]:
    """Every capability of a listing with what is pinned of it."""
    lists: dict[str, Sequence[Json]] = {
        "tools": listing.tools,
        "resources": listing.resources,
        "templates": listing.templates,
        "prompts": listing.prompts,
    }
    for name, items in lists.items():
        for item in items:
            key = item.get(_NAMES[name])
            if isinstance(key, str) and key:
                yield (name, key), _definition(name, item)


def _definition(name: str, item: Json) -> Json:
    found = {field: item[field] for field in _FIELDS[name] if item.get(field) is not None}
    if name in ("resources", "templates") and isinstance(found.get("annotations"), dict):
        found["annotations"] = {key: value for key, value in found["annotations"].items() if key not in _PASSING}
    return found


def description(definition: Json) -> str:
    """The description as a person should see it: what hides in it is written out."""
    text = definition.get("description")
    return visible(text[:DESCRIPTION_SHOWN]) if isinstance(text, str) else ""


def parameters(definition: Json) -> tuple[str, ...]:
    """One line for each parameter: its name, its type, whether it must be given, what is said of it."""
    listed = definition.get("arguments")
    if isinstance(listed, list):
        entries = [as_object(entry) for entry in cast("list[Any]", listed)]
        return tuple(_parameter(str(entry.get("name", "")), entry, entry.get("required") is True) for entry in entries[:PARAMETERS_SHOWN])
    schema = as_object(definition.get("inputSchema"))
    required = schema.get("required")
    wanted = cast("list[Any]", required) if isinstance(required, list) else []
    known = sorted(as_object(schema.get("properties")).items())[:PARAMETERS_SHOWN]
    return tuple(_parameter(name, as_object(part), name in wanted) for name, part in known)


def _parameter(name: str, part: Json, required: bool) -> str:
    kind = part.get("type", "")
    told = kind if isinstance(kind, str) else as_json(kind)
    facts = ", ".join(fact for fact in (told, "required" if required else "") if fact)
    said = part.get("description")
    line = f"{name}{f' ({facts})' if facts else ''}{f': {said}' if isinstance(said, str) and said else ''}"
    return " ".join(visible(line[:PARAMETER_SHOWN]).split())


def as_json(value: Any) -> str:
    """A value for people."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        return "nested too deep to be shown"
