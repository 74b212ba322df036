"""A whole configuration: found, read, and turned into values. Only a file that cannot be read at all is an error."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from toolbay.config import fields, reading, servers, syntax
from toolbay.config.models import AgentConfig, Config, InvalidServer, Problem, Section, ServerConfig, ToolsConfig
from toolbay.config.places import digest, eclipsed, expanded, find, searched
from toolbay.errors import ConfigError

SERVER_PLACES = (("tools", "mcpServers"), ("tools", "mcp_servers"), ("mcpServers",), ("mcp_servers",), ("servers",))
"""Where servers are looked for; of two of the same name the one found first counts."""

_Part = TypeVar("_Part", bound=Section)


def load(path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Config:
    """The configuration of `path`, else of TOOLBAY_CONFIG, else of the first file found; empty where there is none.

    Raises:
        ConfigError: a named file is missing, or a file cannot be read or parsed (with line, column and what was expected).
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    named = str(path) if path is not None else environ.get("TOOLBAY_CONFIG", "")
    chosen = cwd / expanded(named, environ) if named else find(cwd, environ)
    if chosen is None:
        return Config(searched=True, files=dict.fromkeys(searched(cwd, environ), ""))
    try:
        data = reading.read(chosen)
    except FileNotFoundError:
        said = "" if path is not None else ", which TOOLBAY_CONFIG names,"
        raise ConfigError(f"The configuration {chosen}{said} does not exist: create it, or name another.") from None
    except OSError as error:
        raise ConfigError(f"The configuration {chosen} cannot be read ({error.strerror}): check what it is and its permissions.") from None
    source = syntax.decode(data, chosen)
    parsed = syntax.parse(source.text, syntax.kind_of(chosen, source.text), chosen)
    config = parse(parsed, environ=environ, base=chosen.parent, path=chosen)
    # A pipe gives what is in it once: there is nothing to look at again.
    files = {**({chosen: digest(data)} if chosen.is_file() else {}), **config.files}
    others = [] if named else [other.name for other in eclipsed(chosen)]
    if not others:
        return config.model_copy(update={"files": files})
    text = f"{chosen.name} is read, and {' and '.join(others)} beside it not: put into one file what is to count, and remove the other."
    return config.model_copy(update={"problems": (Problem(where=chosen.name, text=text), *config.problems), "files": files})


def parse(
    data: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, base: Path | None = None, path: Path | None = None
) -> Config:
    """The configuration that `data` describes. Relative paths in it start from `base`. Raises nothing: see `problems`."""
    environ = os.environ if environ is None else environ
    findings = servers.Findings()
    around = servers.Surroundings(environ=environ, base=base)
    found = _servers(data, around, findings)
    tools = _with_folder(_part(ToolsConfig, _object(data, "tools", findings), "tools", around, findings), around)
    agent = _part(AgentConfig, _object(data, "agent", findings), "agent", around, findings)
    known = {"tools", "agent", *(place[0] for place in SERVER_PLACES)}
    for key in data:
        if key not in known and not fields.is_note(key):
            findings.problems.append(fields.unknown(key, key, ("tools", "agent", "mcpServers", "servers")))
    return Config(
        tools=tools.model_copy(update={"mcp_servers": found}),
        agent=agent,
        path=path,
        problems=tuple(findings.problems),
        files=findings.files,
        secrets=frozenset(findings.secrets),
    )


def _object(data: Mapping[str, Any], key: str, findings: servers.Findings) -> Mapping[str, Any]:
    value = data.get(key)
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if value is not None:
        findings.note(key, f"The key `{key}` must be an object and is ignored.")
    return {}


def entries(data: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    """The servers at one place, an object by names or a list of objects with `name`: name, entry, key path."""
    value: Any = data
    for key in place:
        value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
    where = ".".join(place)
    if isinstance(value, Mapping):
        for name, entry in cast("Mapping[str, Any]", value).items():
            yield name, entry, f"{where}.{name}"
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, Mapping):
                inner = dict(cast("Mapping[str, Any]", item))
                name = inner.pop("name", None)
                yield (name if isinstance(name, str) else ""), inner, f"{where}[{at}]"
            else:
                yield "", item, f"{where}[{at}]"
    elif value is not None:
        yield "", value, where


def _servers(data: Mapping[str, Any], around: servers.Surroundings, findings: servers.Findings) -> dict[str, ServerConfig | InvalidServer]:
    found: dict[str, ServerConfig | InvalidServer] = {}
    for place in SERVER_PLACES:
        for name, entry, where in entries(data, place):
            if name and name in found:
                findings.note(where, f"There is another server `{name}` in this file, which counts: remove or rename one of them.")
            else:
                found[name or where] = servers.read(name, entry, where, around, findings)
    return found


def _part(model: type[_Part], data: Mapping[str, Any], where: str, around: servers.Surroundings, findings: servers.Findings) -> _Part:
    """A section without servers: what does not fit is told, and its default counts."""
    values, problems = fields.fit(model, data, where)
    findings.problems += problems
    values.pop("mcp_servers", None)
    kept: dict[str, Any] = {}
    for key, value in values.items():
        try:
            # Instructions are prose, in which a `${` may be meant.
            kept[key] = value if key == "instructions" else servers.resolved(value, key, around, findings)
        except ConfigError as error:
            findings.note(f"{where}.{key}", f"The section `{where}` {error}; its default counts instead.")
    while True:
        try:
            return model.model_validate(kept)
        except ValidationError as error:
            for key, clause in fields.complaints(error, model):
                findings.note(f"{where}.{key}", f"The key `{key}` {clause}; its default counts instead.")
            bad = {str(item["loc"][0]) for item in error.errors(include_url=False, include_input=False)}
            kept = {key: value for key, value in kept.items() if key not in bad and model.model_fields[key].alias not in bad}


def _with_folder(tools: ToolsConfig, around: servers.Surroundings) -> ToolsConfig:
    """The artifacts' folder starts from the configuration's, not from wherever the program was started."""
    folder = tools.artifacts.dir
    if not folder:
        return tools
    path = expanded(folder, around.environ)
    return tools.model_copy(
        update={"artifacts": tools.artifacts.model_copy(update={"dir": str(around.base / path if around.base else path)})}
    )
