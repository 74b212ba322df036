"""Keys of other clients' files that mean what one of ours means: read, and said so, so that a copied entry just works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from toolbay.config import foreign_logins
from toolbay.config.models import Problem

TYPES = {
    "stdio": "stdio",
    "sse": "sse",
    "http": "streamableHttp",
    "streamablehttp": "streamableHttp",
}
"""The words for a transport, folded: lower case, without `-` and `_`."""

_RENAMED = {
    "transport": "type",
    "transportType": "type",
    "transport_type": "type",
    "protocol": "type",
    "serverUrl": "url",
    "httpUrl": "url",
}
_TIMES = {
    "timeout": "toolTimeout",
    "tool_timeout_sec": "toolTimeout",
    "initTimeout": "startupTimeout",
    "startup_timeout_sec": "startupTimeout",
    "startup_timeout_ms": "startupTimeout",
}
_WITHOUT_EFFECT = {
    "autoApprove": "which calls need a person is said by `approval`",
    "alwaysAllow": "which calls need a person is said by `approval`",
    "trust": "which calls need a person is said by `approval`",
    "includeTools": "here that is `enabledTools`",
    "available_tools": "here that is `enabledTools`",
    "excludeTools": "here that is `disabledTools`",
    "envs": "here that is `env`",
    "env_keys": "here that is `inheritEnv`",
    "cmd": "here that is `command`",
    "name": "the name of a server is its key",
    "authProviderType": "how to log in is said by `auth`",
    "requiresOAuth": "whether a server wants a login is seen when it is asked",
    "oauth_resource": "what a login is for is said by the server",
    "headersHelper": "a token belongs into `headers`, as ${NAME}",
}


def kind(word: str) -> str | None:
    """The transport's name for any of the words for it."""
    return TYPES.get(word.replace("-", "").replace("_", "").lower())


def translated(entry: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """An entry in our words. An entry's own word wins over a synonym of it."""
    found = dict(entry)
    problems: list[Problem] = []
    for key, text in [*_renamed(found), *_times(found), *_switches(found), *_command(found), *foreign_logins.translated(found)]:
        problems.append(Problem(where=f"{where}.{key}", text=text))
    for key in [key for key in found if key in _WITHOUT_EFFECT]:
        del found[key]
        problems.append(Problem(where=f"{where}.{key}", text=f"The key `{key}` has no effect: {_WITHOUT_EFFECT[key]}."))
    return found, problems


def _renamed(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, ours in _RENAMED.items():
        if key not in entry or (key == "protocol" and kind(str(entry[key])) is None):
            continue
        value = entry.pop(key)
        if value is None:
            continue
        if entry.get(ours) is None:
            entry[ours] = value
            yield key, f"The key `{key}` is read as `{ours}`: better write `{ours}`."
        else:
            yield key, f"The key `{key}` is ignored, for `{ours}` is there too: remove one of them."


def _times(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, ours in _TIMES.items():
        value = entry.pop(key, None)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            yield key, f"The key `{key}` is ignored, for its value is no number above 0: write `{ours}` in seconds."
            continue
        # In all files seen in the wild, a bare number this large is milliseconds.
        seconds = value / 1000 if key.endswith("_ms") or (value >= 1000 and not key.endswith("_sec")) else value
        if ours in entry or ours.replace("Timeout", "_timeout") in entry:
            yield key, f"The key `{key}` is ignored, for `{ours}` is there too: remove one of them."
        else:
            entry[ours] = seconds
            yield key, f"The key `{key}` is read as `{ours}: {seconds:g}` (seconds): better write that."


def _switches(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    off: list[bool] = []
    for key, when in (("disabled", True), ("quarantined", True), ("enabled", False), ("isActive", False)):
        if isinstance(entry.get(key), bool):
            off.append(entry.pop(key) is when)
        elif key != "disabled" and key in entry and entry.pop(key) is not None:
            yield key, f"The key `{key}` is ignored, for it is neither true nor false: write `disabled`."
    if off:
        entry["disabled"] = any(off)
    if len(set(off)) > 1:
        yield "disabled", "The entry is switched on and off at once and counts as off: keep only `disabled`."


def _command(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    command = entry.get("command")
    if isinstance(command, list) and command:
        parts = cast("list[Any]", command)
        args = entry.get("args")
        if args is None or isinstance(args, list):
            entry["command"], entry["args"] = parts[0], [*parts[1:], *cast("list[Any]", args or [])]
            yield "command", "The key `command` is a list; its first item is read as the command and the rest as `args`."
