"""What must happen to go from one set of servers to another: pure, decided by one table of field names.

A change of what a connection is made of restarts a server; a change of what is done with its tools does not (LIF-4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolbay.config.models import ServerConfig

CONNECTION = frozenset(
    {
        "type",
        "command",
        "args",
        "env",
        "env_file",
        "inherit_env",
        "cwd",
        "url",
        "headers",
        "roots",
        "sampling",
        "elicitation",
        "limits",
        "sandbox",
        "sandbox_paths",
        "sandbox_network",
        "ssrf_whitelist",
        "fake_ip",
        "auth",
        "protocol_version",
    }
)
"""Fields that a running connection was made with: another value needs another connection."""

TOOLS = frozenset(
    {
        "tool_timeout",
        "tool_timeouts",
        "max_timeout",
        "startup_timeout",
        "max_concurrent",
        "max_queued",
        "ping_interval",
        "enabled_tools",
        "disabled_tools",
        "enabled_resources",
        "enabled_prompts",
        "retry",
        "restart",
        "approval",
        "trusted",
        "description",
    }
)
"""Fields that are read anew for each list, call or start: a running connection goes on with another value."""

PRESENCE = frozenset({"disabled"})
"""Fields that decide whether a server is there at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Names of servers, each in exactly one tuple, sorted."""

    stop: tuple[str, ...] = ()
    """Gone or disabled: close them."""
    start: tuple[str, ...] = ()
    """New or enabled: connect them."""
    restart: tuple[str, ...] = ()
    """Their connection changed: close them, then connect anew."""
    refilter: tuple[str, ...] = ()
    """Only what is done with their tools changed: keep the connection and its running calls."""
    retry: tuple[str, ...] = ()
    """They had failed and their connection did not change: try once more, with the new settings."""
    keep: tuple[str, ...] = ()
    """Untouched."""


def plan(old: Mapping[str, ServerConfig], new: Mapping[str, ServerConfig], failed: frozenset[str] = frozenset()) -> Plan:
    """How to get from `old` to `new`, where the servers in `failed` are not up though `old` wants them."""
    before = {name for name, server in old.items() if not server.disabled}
    after = {name for name, server in new.items() if not server.disabled}
    fates: dict[str, list[str]] = {"restart": [], "refilter": [], "retry": [], "keep": []}
    for name in sorted(before & after):
        fates[_fate(old[name], new[name], failed=name in failed)].append(name)
    return Plan(
        stop=tuple(sorted(before - after)),
        start=tuple(sorted(after - before)),
        **{fate: tuple(names) for fate, names in fates.items()},
    )


def _fate(old: ServerConfig, new: ServerConfig, *, failed: bool) -> str:
    if _differs(old, new, CONNECTION):
        return "restart"
    if failed:
        return "retry"
    return "refilter" if _differs(old, new, TOOLS) else "keep"


def _differs(old: ServerConfig, new: ServerConfig, fields: frozenset[str]) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in fields)


def refiltered(old: ServerConfig, new: ServerConfig) -> ServerConfig:
    """`old`'s connection with what `new` says of its tools."""
    return old.model_copy(update={name: getattr(new, name) for name in TOOLS})
