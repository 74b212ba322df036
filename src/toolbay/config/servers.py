"""One entry of a configuration becomes one server, or the reason why it cannot. It costs only itself (CFG-6)."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from toolbay import _redact
from toolbay.config import dotenv, fields, logins, reading, references, synonyms
from toolbay.config.launchers import nameless
from toolbay.config.models import InvalidServer, Problem, ServerConfig, TransportType
from toolbay.config.places import digest, tilde
from toolbay.errors import ConfigError

SHORTEST_SECRET = 6
"""Characters. What is shorter stands in too many harmless words to be masked everywhere."""

_PLAIN_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|USERNAME|USERPROFILE|HOMEPATH|HOMEDRIVE|PATH|PWD|OLDPWD|SHELL|TERM|EDITOR|TMPDIR|TEMP|TMP|LANG|LC_\w+|XDG_\w+|HOSTNAME"
    r"|COMPUTERNAME|APPDATA|LOCALAPPDATA|PROGRAMDATA|PROGRAMFILES|SYSTEMROOT|WINDIR|VIRTUAL_ENV|CONDA_PREFIX"
)
_OTHER_REFERENCE = re.compile(r"\{env:\w+\}|\{\{.*\}\}|%[A-Z][A-Z0-9_]*%|(?:^|\s)\$[A-Z][A-Z0-9_]+$")
_NOT_REPLACED = "The value looks like another client's reference and is taken as it is; here write ${NAME}."
_ANY_PORT = (
    "The key `clientId` has no `callbackPort` or `callbackUrl` beside it, so that the browser comes back to any port of this machine: "
    "few authorization servers allow that; set the one that this client was registered with."
)
_NO_ISSUER = (
    "The key `clientSecret` has no `issuer` beside it, so that it is shown to nobody: set the authorization server that gave it; "
    "`toolbay login NAME` says which one the server names."
)
_NOT_YET = ("sampling", "elicitation")
"""Settings that are read, so that a file may have them already, and do nothing so far."""
_SENT_OUT = ("env", "headers", "url", "args")


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What an entry is read against: the environment, and the folder that relative paths start from."""

    environ: Mapping[str, str]
    base: Path | None = None


@dataclass(kw_only=True, slots=True)
class Findings:
    """What reading gathers beside the servers: problems to tell, values to mask, files that were read."""

    problems: list[Problem] = field(default_factory=list[Problem])
    secrets: set[str] = field(default_factory=set[str])
    files: dict[Path, str] = field(default_factory=dict[Path, str])

    def note(self, where: str, text: str) -> None:
        self.problems.append(Problem(where=where, text=text))

    def hide(self, *values: str) -> None:
        self.secrets.update(value for value in values if len(value) >= SHORTEST_SECRET)


def read(name: str, entry: Any, where: str, around: Surroundings, findings: Findings) -> ServerConfig | InvalidServer:
    """The server of one entry. `where` is the entry's key path. Where it is none, all its faults are told, each by itself."""
    faults: list[str] = []
    with _gathering(faults):
        server = _server(name, entry, where, around, findings, faults=faults)
        if server is not None and not faults:
            return server
    label = json.dumps(name, ensure_ascii=False) if name else f"at `{where}`"
    first, *others = faults
    more = f", and has {len(others)} more fault{'s' if others[1:] else ''}: toolbay config check tells each" if others else ""
    sentences = tuple(f"Server {label} {fault}." for fault in faults)
    return InvalidServer(reason=f"Server {label} {first}{more}.", faults=sentences, where=where)


@contextmanager
def _gathering(faults: list[str]) -> Generator[None]:
    """What ends the block as a ConfigError is one fault more."""
    try:
        yield
    except ConfigError as error:
        faults.append(str(error))


def _server(name: str, entry: Any, where: str, around: Surroundings, findings: Findings, *, faults: list[str]) -> ServerConfig | None:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"must be an object with `command` or `url`, not {_article(entry)}")
    given = cast("Mapping[str, Any]", entry)
    if not name:
        raise ConfigError(_unnamed(given))
    ours, problems = synonyms.translated(given, where)
    findings.problems += problems
    values, problems = fields.fit(ServerConfig, ours, where)
    findings.problems += problems
    _to_text(values)
    unresolved = _resolve(values, around, findings, faults)
    _gather_secrets(values, findings)
    _tell_literal_references(values, where, findings)
    kind: TransportType | None = None
    with _gathering(faults):
        _find_paths(values, around, findings)
    with _gathering(faults):
        kind = _type_of(values, where, findings, _meant(ours))
    if kind is not TransportType.STDIO and "url" not in unresolved:
        with _gathering(faults):
            kind = _by_path(kind, values)
    try:
        sound = {key: value for key, value in values.items() if key not in unresolved}
        server = ServerConfig.model_validate({**sound, "type": kind or TransportType.STDIO})
    except ValidationError as error:
        faults += [f"has a key `{key}` that {clause}" for key, clause in fields.complaints(error, ServerConfig)]
        return None
    if server.type is TransportType.STDIO and _holds_arguments(server.command, around):
        findings.note(f"{where}.command", "The key `command` holds more than a program's name or path: arguments belong in `args`.")
    if not unresolved & {"command", "args"} and (wrong := nameless(server)):
        faults.append(f"has arguments that {wrong}")
    _tell_login(server, where, findings)
    for key in _NOT_YET:
        if getattr(server, key) != ServerConfig.model_fields[key].default:
            findings.note(f"{where}.{_alias(key)}", f"The key `{_alias(key)}` is not supported yet and has no effect.")
    return server


def _tell_login(server: ServerConfig, where: str, findings: Findings) -> None:
    """A login that nobody will use."""
    if server.auth is None or server.auth.type == "none":
        return
    if server.type is TransportType.STDIO:
        findings.note(
            f"{where}.auth", "The key `auth` has no effect, for the type is stdio: what a program needs to know belongs in `env`."
        )
    elif any(name.lower() == "authorization" for name in server.headers):
        findings.note(f"{where}.auth", "The key `auth` has no effect, for `headers` has Authorization too: remove one of them.")
    elif server.auth.client_secret and not server.auth.client_id:
        findings.note(f"{where}.auth.clientSecret", "The key `clientSecret` has no effect without `clientId`: add that, or remove this.")
    elif server.auth.type == "oauth" and server.auth.client_id and not server.auth.redirect_uri:
        findings.note(f"{where}.auth.clientId", _ANY_PORT)
    elif server.auth.type == "client_credentials" and not server.auth.issuer:
        findings.note(f"{where}.auth.clientSecret", _NO_ISSUER)


def _unnamed(entry: Mapping[str, Any]) -> str:
    """A list of servers, as YAML makes one of `- time:`, is written where an object is meant."""
    name = next(iter(entry), "")
    if name and (entry[name] is None or isinstance(entry[name], Mapping)):
        return f"is an item of a list, and servers are an object by their names: write `{name}:` in the place of `- {name}:`"
    return "has no name: give it a `name` that is not empty, or write the servers as an object by their names"


def _meant(entry: Mapping[str, Any]) -> str:
    """A misspelt `command` or `url`, as a hint."""
    known = fields.names(ServerConfig)
    for key in entry:
        meant = fields.nearest(key, known) if key not in known and not fields.is_note(key) else None
        if meant in {"command", "url"}:
            return f" (is `{key}` meant to be `{meant}`?)"
    return ""


def _resolve(values: dict[str, Any], around: Surroundings, findings: Findings, faults: list[str]) -> set[str]:
    """Replace the references in `values`; gives the keys whose values stay as they are, since one of theirs cannot be."""
    unresolved: set[str] = set()
    for key, value in values.items():
        told = list(_unresolvable(value, _alias(key), around, findings))
        if told:
            unresolved.add(key)
            faults += told
        else:
            values[key] = resolved(value, _alias(key), around, findings)
    return unresolved


def _unresolvable(value: Any, key: str, around: Surroundings, findings: Findings) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[str, Any]", value).items():
            yield from _unresolvable(item, f"{key}.{name}", around, findings)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            yield from _unresolvable(item, f"{key}[{at}]", around, findings)
    else:
        try:
            resolved(value, key, around, findings)
        except ConfigError as error:
            yield str(error)


def _alias(name: str) -> str:
    return ServerConfig.model_fields[name].alias or name


def _article(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else "text" if isinstance(value, str) else "a bare value"


def _to_text(values: dict[str, Any]) -> None:
    """Numbers and bools where text belongs are common in YAML and harmless: taken as their JSON text."""
    for key in ("args", "env", "headers"):
        value = values.get(key)
        if isinstance(value, list):
            values[key] = [_scalar(item) for item in cast("list[Any]", value)]
        elif isinstance(value, Mapping):
            values[key] = {name: _scalar(item) for name, item in cast("Mapping[str, Any]", value).items() if item is not None}


def _scalar(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def resolved(value: Any, key: str, around: Surroundings, findings: Findings) -> Any:
    """`value` with every reference in it replaced, at any depth.

    Raises:
        ConfigError: one cannot be; a clause that names the key and the mend.
    """
    if isinstance(value, str):
        try:
            done = references.resolve(value, around.environ)
        except references.BadReference as error:
            raise ConfigError(f"has a key `{key}` that {error}") from None
        if key.partition(".")[0].partition("[")[0] in _SENT_OUT or _redact.looks_secret(key.rpartition(".")[2]):
            findings.hide(*(text for name, text in done.used if not _PLAIN_VARIABLES.fullmatch(name.upper())))
        return done.text
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: resolved(item, f"{key}.{name}", around, findings) for name, item in items}
    if isinstance(value, list):
        return [resolved(item, f"{key}[{at}]", around, findings) for at, item in enumerate(cast("list[Any]", value))]
    return value


def _gather_secrets(values: Mapping[str, Any], findings: Findings) -> None:
    for key in ("env", "headers", "auth"):
        for name, value in _texts(values.get(key)):
            findings.hide(*_redact.url_credentials(value))
            if not _redact.harmless_header(name) if key == "headers" else _redact.looks_secret(name):
                findings.hide(value, *value.split()[1:])
    url, args, auth = values.get("url"), values.get("args"), values.get("auth")
    if isinstance(auth, str) and auth not in logins.SHORT:
        findings.hide(auth, *auth.split()[1:])  # a token, as some clients take it there
    if isinstance(url, str):
        findings.hide(*_redact.url_credentials(url))
    if isinstance(args, list):
        texts = [item for item in cast("list[Any]", args) if isinstance(item, str)]
        findings.hide(*_redact.credentials(texts))


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _texts(item, key)


def _tell_literal_references(values: Mapping[str, Any], where: str, findings: Findings) -> None:
    """What other clients would have replaced goes out as it is; silence would make that hard to find."""
    for key in ("env", "headers", "auth", "url"):
        for name, value in _texts(values.get(key)):
            if _OTHER_REFERENCE.search(value):
                findings.note(f"{where}.{key}" + (f".{name}" if name else ""), _NOT_REPLACED)


def _find_paths(values: dict[str, Any], around: Surroundings, findings: Findings) -> None:
    for key in ("command", "cwd", "env_file"):
        if isinstance(values.get(key), str):
            values[key] = tilde(values[key], around.environ)
    if isinstance(values.get("args"), list):
        values["args"] = [tilde(item, around.environ) if isinstance(item, str) else item for item in values["args"]]
    for key in ("cwd", "env_file"):
        if around.base and isinstance(values.get(key), str) and values[key]:
            values[key] = str(around.base / values[key])
    if isinstance(values.get("env_file"), str) and values["env_file"]:
        listed = _env_file(Path(values["env_file"]), findings)
        findings.hide(*(value for name, value in listed.items() if _redact.looks_secret(name)))
        env = values.get("env", {})
        if isinstance(env, Mapping):
            values["env"] = {**listed, **cast("Mapping[str, Any]", env)}


def _env_file(path: Path, findings: Findings) -> dict[str, str]:
    findings.files[path] = ""
    try:
        data = reading.read(path)
        findings.files[path] = digest(data) if path.is_file() else ""
        return dotenv.parse(data.decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"has a key `envFile` whose file {path} cannot be read ({error.strerror}): create it, or remove the key"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"has a key `envFile` whose file {path} is not text in UTF-8: save it as UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"has a key `envFile` whose file {path} cannot be used: {error}") from None


def _type_of(values: Mapping[str, Any], where: str, findings: Findings, hint: str) -> TransportType:
    """CFG-4: an explicit type wins; else what is there decides. `hint` is told where nothing is there."""
    has_command, has_url = bool(values.get("command")), bool(values.get("url"))
    given = values.get("type")
    if given is not None:
        known = synonyms.kind(given) if isinstance(given, str) else None
        if known is None:
            raise ConfigError("has a key `type` that must be stdio, sse or streamableHttp (also written http)")
        chosen = TransportType(known)
        needed, other = ("command", "url") if chosen is TransportType.STDIO else ("url", "command")
        if not values.get(needed):
            mend = f"or remove `type`, for there is a `{other}`" if values.get(other) else f"such as {_SUCH_AS[needed]}"
            raise ConfigError(f"is of type {chosen.value} and needs `{needed}`{hint}: add it, {mend}")
        if values.get(other):
            findings.note(f"{where}.{other}", f"The key `{other}` has no effect, for the type is {chosen.value}: remove it.")
    elif has_command and has_url:
        raise ConfigError("has both `command` and `url`: remove the one that is not meant, or add `type`")
    elif has_command:
        chosen = TransportType.STDIO
    elif has_url:
        chosen = TransportType.HTTP
    else:
        raise ConfigError(f"has neither `command` nor `url`{hint}: add `command` for a program, or `url` for an address")
    return chosen


def _by_path(kind: TransportType | None, values: dict[str, Any]) -> TransportType | None:
    """The transport by its URL, where the entry does not say it."""
    if not isinstance(values.get("url"), str) or not values["url"]:
        return kind
    values["url"] = values["url"].strip()
    path = _path_of(values["url"])
    return TransportType.SSE if values.get("type") is None and kind and path.rstrip("/").endswith("/sse") else kind


def _holds_arguments(command: str, around: Surroundings) -> bool:
    """Spaces are rare in the names of programs, and common where a whole line was put into `command`."""
    return len(command.split()) > 1 and not Path(command).exists() and not (around.base and (around.base / command).exists())


_SUCH_AS = {"command": "`command: npx`", "url": "`url: https://example.com/mcp`"}


def _path_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("has a key `url` that is no address: write one such as https://example.com/mcp") from None
    if parts.scheme.lower() not in {"http", "https"} or not host:
        raise ConfigError("has a key `url` that must begin with http:// or https:// and name a host")
    return parts.path
