"""Every tool list of real servers passes the schema and naming rules; the numbers are printed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.instances import Instances
from support.nullables import denullable
from toolbay import _schemas, arguments
from toolbay.types import Kind
from toolbay.upstream.naming import Key, assign, sanitised, wrapped
from toolbay.upstream.schema import Normalised, UntranslatableSchema, normalise


@pytest.fixture(scope="module")
def servers(shared_data: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((shared_data / "tools").glob("*.json"))}


def schemas_of(servers: dict[str, dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(f"{name}/{tool['name']}", tool["inputSchema"]) for name, server in servers.items() for tool in server.get("tools") or []]


def test_every_name_of_every_server_is_fit_for_models_and_unique(
    servers: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """NAM-1, NAM-2, NAM-3: all capabilities of all real servers side by side."""
    keys: list[Key] = []
    for name, server in servers.items():
        keys += [Key(name, Kind.TOOL, tool["name"]) for tool in server.get("tools") or []]
        keys += [Key(name, Kind.RESOURCE, entry["name"], entry["uri"]) for entry in server.get("resources") or []]
        keys += [Key(name, Kind.PROMPT, entry["name"]) for entry in server.get("prompts") or []]
        # As people key them by the package, which is where names get long.
        keys += [Key(server["package"], Kind.TOOL, tool["name"]) for tool in server.get("tools") or []]
    names = assign(keys)
    assert len(set(names.values())) == len(set(keys))
    assert all(re.fullmatch(r"mcp_[A-Za-z0-9_-]{1,60}", name) for name in names.values())
    long = [key for key in names if len(sanitised(f"mcp_{key.server}_{key.name}")) > 64]
    clashing = [key for key, name in names.items() if name != wrapped(key)]
    with capsys.disabled():
        print(f"\nnames: {len(names)} of {len(servers)} servers, {len(long)} cut at 64, {len(clashing)} told apart by a hash")
    assert len(names) > 1000
    assert long


def test_every_schema_of_every_server_is_translated_and_keeps_its_meaning(
    servers: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """SCH-1, SCH-2: what fits the original fits the translation and the other way round; a second pass changes nothing."""
    counts = Counter({"tools": 0, "refused": 0, "renamed keys": 0})
    for name, schema in schemas_of(servers):
        before = json.dumps(schema)
        counts["tools"] += 1
        try:
            normalised = normalise(schema)
        except UntranslatableSchema:
            counts["refused"] += 1
            continue
        assert json.dumps(schema) == before, name
        counts["renamed keys"] += len(normalised.renamed)
        assert json.dumps(normalise(normalised.parameters).parameters) == json.dumps(normalised.parameters), name
        assert_accepted_by_all_providers(normalised.parameters, name)
        compare(name, schema, normalised, counts)
    with capsys.disabled():
        print(f"\nschemas: {dict(counts)}")
    assert counts["refused"] == 0
    assert counts["fit"] > counts["tools"]
    assert counts["do not fit"] > counts["tools"]


def compare(name: str, schema: Any, normalised: Normalised, counts: Counter[str]) -> None:
    original = arguments.compile(schema)
    translated = arguments.compile(denullable(normalised.parameters))
    told = {old: new for new, old in normalised.renamed.items()}
    instances = Instances(schema, name)
    for _ in range(4):
        value = instances.draw()
        for candidate in (value, instances.mutated(value), instances.mutated(instances.mutated(value))):
            if not isinstance(candidate, dict):
                continue  # a call's arguments are always an object
            fits = original.accepts(candidate)
            counts["fit" if fits else "do not fit"] += 1
            respelt = {told.get(key, key): item for key, item in candidate.items()}
            assert translated.accepts(respelt) == fits, (name, candidate, arguments.check(original, candidate))


def assert_accepted_by_all_providers(parameters: Any, name: str) -> None:
    """What providers were seen to refuse is not there."""
    assert parameters["type"] == "object", name
    assert not parameters.keys() & {"anyOf", "oneOf", "allOf", "enum", "not", "const", "$schema", "$id", "title", "definitions"}, name
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key) for key in parameters["properties"]), name
    used = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(parameters)))
    assert used == {f"#/$defs/{_schemas.escaped(key)}" for key in parameters.get("$defs", {})}, name
    stack: list[Any] = [parameters]
    while stack:
        node = stack.pop()
        assert not node.keys() & {"$schema", "$comment", "definitions"}, name
        assert not any(key.startswith("x-") for key in node), name
        kinds = node.get("type") if isinstance(node.get("type"), list) else [node.get("type")]
        assert not (len(kinds) == 2 and "null" in kinds), name
        assert "object" not in kinds or isinstance(node["properties"], dict), name
        assert "array" not in kinds or isinstance(node["items"], dict), name
        for word in ("anyOf", "oneOf"):
            branches = node.get(word, [])
            assert not branches or sum(branch.get("type") != "null" for branch in branches) != 1, name
        stack += [child for _, _, child in _schemas.subschemas(node) if isinstance(child, dict)]


def test_every_shape_that_a_provider_refused_is_translated(shared_data: Path) -> None:
    """SCH-1: the shapes that users reported, which the lists above lack."""
    shapes = json.loads((shared_data / "schemas" / "reported-shapes.json").read_text("utf-8"))["shapes"]
    for shape in shapes:
        normalised = normalise(shape["inputSchema"])
        assert_accepted_by_all_providers(normalised.parameters, shape["id"])
        assert normalise(normalised.parameters).parameters == normalised.parameters
        if not any("alternatives" in note for note in normalised.notes):
            compare(shape["id"], shape["inputSchema"], normalised, Counter())
        if "name" in shape:
            assert re.fullmatch(r"mcp_[A-Za-z0-9_-]{1,60}", wrapped(Key("server", Kind.TOOL, shape["name"])))
    assert len(shapes) > 10


def test_every_output_schema_can_be_judged_by(servers: dict[str, dict[str, Any]]) -> None:
    """SCH-2: also those that are valid under their own draft only."""
    found = [tool["outputSchema"] for server in servers.values() for tool in server.get("tools") or [] if "outputSchema" in tool]
    for schema in found:
        arguments.compile(schema)
        normalise(schema)
    assert len(found) > 100
