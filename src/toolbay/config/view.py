"""A configuration for eyes and editors: shown without its secrets, and described as JSON Schema."""

from __future__ import annotations

from typing import Any, cast

from toolbay import _redact
from toolbay.config.models import Config, InvalidServer, ServerConfig
from toolbay.types import Json

_TYPES = ["stdio", "sse", "streamableHttp", "http", "streamable-http", "streamable_http"]
_SCALAR = {"type": ["string", "number", "boolean"]}
_SNAKE_OR_NOTE = "^(?:[a-z]+(?:_[a-z]+)+|[$_].*|x-.*)$"


def masked(config: Config) -> Json:
    """What was set, with camelCase keys and every secret hidden; an invalid server shows its `invalid` reason."""
    shown = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    listed = {name: _server(server) for name, server in config.tools.mcp_servers.items()}
    if listed:
        shown.setdefault("tools", {})["mcpServers"] = listed
    return cast("Json", _without(shown, config.secrets))


def _server(server: ServerConfig | InvalidServer) -> Json:
    if isinstance(server, InvalidServer):
        return {"invalid": server.reason}
    shown: Json = {"type": server.type.value, **server.model_dump(mode="json", by_alias=True, exclude_defaults=True)}
    if server.url:
        shown["url"] = _redact.url(server.url)
    for key, hidden in (
        ("args", _redact.argv(server.args)),
        ("env", _redact.env(server.env)),
        ("headers", _redact.headers(server.headers)),
    ):
        if key in shown:
            shown[key] = hidden
    if server.auth is not None:
        shown["auth"] = {"type": server.auth.type, **_by_name(shown["auth"])}
    return shown


def _by_name(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _by_name(item, key) for key, item in cast("Json", value).items()}
    if isinstance(value, list):
        return [_by_name(item, name) for item in cast("list[Any]", value)]
    return next(iter(_redact.env({name: value}).values())) if isinstance(value, str) else value


def _without(value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, str):
        return _redact.mask(value, secrets)
    if isinstance(value, dict):
        return {key: _without(item, secrets) for key, item in cast("Json", value).items()}
    if isinstance(value, list):
        return [_without(item, secrets) for item in cast("list[Any]", value)]
    return value


def schema() -> Json:
    """The JSON Schema (2020-12) of a configuration file, for editors: completion, descriptions, typing errors.

    Stricter than the loader, which only reports unknown keys: here they are errors, so that an editor underlines them.
    """
    made = Config.model_json_schema(by_alias=True)
    parts = cast("dict[str, Json]", made["$defs"])
    parts.pop("InvalidServer", None)
    for name in ("Problem", "TransportType"):
        parts.pop(name, None)
    for part in parts.values():
        part["additionalProperties"] = False
        part["patternProperties"] = {_SNAKE_OR_NOTE: {}}
    _as_written(parts["ServerConfig"])
    parts["LoginConfig"] |= _BY_ITSELF
    servers: Json = {"type": "object", "additionalProperties": {"$ref": "#/$defs/ServerConfig"}, "description": "The servers by name."}
    parts["ToolsConfig"]["properties"]["mcpServers"] = servers
    own = {key: made["properties"][key] for key in ("tools", "agent")}
    elsewhere = {key: {**servers, "description": f"As `tools.mcpServers`: {why}"} for key, why in _ELSEWHERE.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Toolbay configuration",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, **own, **elsewhere},
        "$defs": parts,
    }


_BY_ITSELF: Json = {
    "if": {"properties": {"type": {"const": "client_credentials"}}, "required": ["type"]},
    "then": {
        "allOf": [
            {"anyOf": [{"required": [key]} for key in keys]} for keys in (("clientId", "client_id"), ("clientSecret", "client_secret"))
        ]
    },
}
"""A program that logs in by itself has both."""
_ELSEWHERE = {"mcpServers": "where most clients keep them.", "servers": "where VS Code keeps them."}


def _as_written(server: Json) -> None:
    """The entry as a file may have it, rather than as the loader leaves it."""
    properties = cast("dict[str, Json]", server["properties"])
    server.pop("required", None)
    properties["type"] = {
        "enum": _TYPES,
        "description": properties["type"].get("description", ServerConfig.model_fields["type"].description),
    }
    properties["args"]["items"] = _SCALAR
    for key in ("env", "headers"):
        properties[key]["additionalProperties"] = _SCALAR
    properties["enabled"] = {"type": "boolean", "description": "The opposite of `disabled`, as some clients write it.", "deprecated": True}
    server["not"] = {"required": ["command", "url"], "not": {"required": ["type"]}}
    server["anyOf"] = [{"required": ["command"]}, {"required": ["url"]}]
