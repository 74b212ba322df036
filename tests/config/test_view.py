"""A configuration shown and described (CFG-8, and the JSON Schema for editors)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from toolbay import config


def test_what_is_shown_holds_no_secret() -> None:
    """CFG-8: secrets planted everywhere in a configuration do not come out of `masked`, whatever they look like."""
    data: dict[str, Any] = {
        "tools": {
            "mcpServers": {
                "a": {
                    "command": "x",
                    "args": ["--key", "canary-s3cret-1", "plain", "${T}", "http://u:canary-s3cret-2@h"],
                    "env": {"TOKEN": "canary-s3cret-3", "U": "pg://u:canary-s3cret-4@h"},
                    "description": "like canary-s3cret-3",
                },
                "b": {
                    "url": "https://u:canary-s3cret-5@h/canary-s3cret-6?x=canary-s3cret-7",
                    "headers": {"X-Key": "canary-s3cret-8"},
                    "auth": {"clientSecret": "canary-s3cret-9", "clientId": "me"},
                },
                "c": {"url": "nothing://canary-s3cret-0"},
            },
            "resultBudget": 900,
        },
        "agent": {"model": "offline"},
    }
    shown = config.masked(config.parse(data, environ={"T": "zzcanary-s3cret-t"}))
    assert "canary-s3cret" not in json.dumps(shown)
    servers = shown["tools"]["mcpServers"]
    assert servers["a"]["args"] == ["--key", "***", "plain", "***", "http://u:***@h"]
    assert servers["b"] == {
        "type": "streamableHttp",
        "url": "https://h/...?...",
        "headers": {"X-Key": "***"},
        "auth": {"type": "oauth", "clientSecret": "***", "clientId": "me"},
    }
    assert "http:// or https://" in servers["c"]["invalid"]
    assert (shown["tools"]["resultBudget"], shown["agent"]) == (900, {"model": "offline"})
    assert config.masked(config.Config()) == {}


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ({"$schema": "x", "tools": {"mcpServers": {"a": {"command": "x", "args": ["a", 1], "env": {"A": 1}, "toolTimeout": 3}}}}, True),
        ({"mcpServers": {"a": {"type": "http", "url": "https://h", "tool_timeout": 3, "_why": "x", "enabled": False}}}, True),
        ({"servers": {"a": {"type": "stdio", "command": "x", "url": "y", "restart": {"maxAttempts": 1}}}, "agent": {"maxSteps": 3}}, True),
        ({"servers": {"a": {"command": "x", "approval": {"t": "always"}}, "b": {"command": "x", "approval": "writes"}}}, True),
        ({"servers": {"a": {"command": "x", "retry": {"t": "always", "u_*": "never"}}, "b": {"command": "x", "retry": "safe"}}}, True),
        ({"servers": {"a": {"command": "x", "retry": {"t": "sometimes"}}}}, False),
        ({"servers": {"a": {"command": "x", "argz": []}}}, False),
        ({"servers": {"a": {"type": "stdio"}}}, False),
        ({"servers": {"a": {"command": "x", "url": "https://h"}}}, False),
        ({"servers": {"a": {"command": "x", "toolTimeout": 0}}}, False),
        ({"servers": {"a": {"command": "x", "type": "carrier-pigeon"}}}, False),
        ({"servers": {"a": {"url": "https://h", "auth": "oauth"}, "b": {"url": "https://h", "auth": False}}}, True),
        ({"servers": {"a": {"url": "https://h", "auth": {"scopes": "a b"}}, "b": {"url": "https://h", "auth": {"scopes": ["a"]}}}}, True),
        ({"servers": {"a": {"url": "https://h", "auth": {"type": "client_credentials", "client_id": "x", "clientSecret": "y"}}}}, True),
        ({"servers": {"a": {"url": "https://h", "auth": {"type": "client_credentials", "clientId": "x"}}}}, False),
        ({"servers": {"a": {"url": "https://h", "auth": "a-token"}}}, False),
        ({"servers": {"a": {"url": "https://h", "auth": "client_credentials"}}}, False),
        ({"servers": {"a": {"url": "https://h", "auth": {"clientIdd": "x"}}}}, False),
        ({"agent": {"maxSteps": "many"}}, False),
    ],
)
def test_the_schema_says_what_the_loader_takes(data: Any, fits: bool) -> None:
    """CFG-2, CFG-4: an editor underlines what the loader would complain about, and nothing else."""
    found = config.parse(data, environ={})
    happy = not found.problems and not any(isinstance(server, config.InvalidServer) for server in found.tools.mcp_servers.values())
    assert jsonschema_rs.validator_for(config.schema()).is_valid(data) is fits
    assert happy is fits or "url" in data["servers"]["a"]


def test_every_key_of_the_schema_is_described() -> None:
    """CFG-3: descriptions are what editors show; they come from the fields themselves."""
    described = config.schema()
    assert json.dumps(described)
    for part in described["$defs"].values():
        for key, value in part["properties"].items():
            assert value.get("description") or "$ref" in value, key
            assert "_" not in key
