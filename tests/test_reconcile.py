"""Going from one set of servers to another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay.config.models import Limits, RestartPolicy, ServerConfig, TransportType
from toolbay.reconcile import CONNECTION, PRESENCE, TOOLS, Plan, plan

ANOTHER: dict[str, Any] = {
    "type": TransportType.HTTP,
    "command": "other",
    "args": ("--x",),
    "env": {"A": "1"},
    "env_file": ".env",
    "inherit_env": ("B",),
    "cwd": "/elsewhere",
    "url": "http://localhost/mcp",
    "headers": {"X": "1"},
    "tool_timeout": 5.0,
    "tool_timeouts": {"a": 1.0},
    "max_timeout": 9.0,
    "startup_timeout": 3.0,
    "max_concurrent": 3,
    "max_queued": 5,
    "ping_interval": 9.0,
    "enabled_tools": ("a",),
    "disabled_tools": ("b",),
    "enabled_resources": (),
    "enabled_prompts": ("p",),
    "retry": "never",
    "restart": RestartPolicy(enabled=False),
    "approval": {"a": "always"},
    "trusted": True,
    "roots": ("/r",),
    "sampling": True,
    "elicitation": True,
    "limits": Limits(memory=10_000_000),
    "sandbox": "strict",
    "sandbox_paths": ("/srv/data:rw",),
    "sandbox_network": True,
    "ssrf_whitelist": ("10.0.0.0/8",),
    "fake_ip": ("198.18.0.0/15",),
    "auth": {"scopes": "files:read"},
    "description": "files",
    "protocol_version": "legacy",
}


def server(**changes: Any) -> ServerConfig:
    return ServerConfig.model_validate({"type": TransportType.STDIO, "command": "x", **changes})


def test_every_field_of_a_server_is_in_exactly_one_group() -> None:
    """LIF-4: a new field must be placed before it can be forgotten."""
    placed = [*CONNECTION, *TOOLS, *PRESENCE]
    assert sorted(placed) == sorted(ServerConfig.model_fields)


@pytest.mark.parametrize("field", sorted(CONNECTION))
def test_a_change_of_the_connection_restarts(field: str) -> None:
    """LIF-4: changed ones restart if their connection changed, whether they were up or had failed."""
    old, new = {"a": server()}, {"a": server(**{field: ANOTHER[field]})}
    assert plan(old, new) == Plan(restart=("a",))
    assert plan(old, new, frozenset({"a"})) == Plan(restart=("a",))


@pytest.mark.parametrize("field", sorted(TOOLS))
def test_a_change_of_filters_or_timeouts_keeps_the_connection(field: str) -> None:
    """LIF-4: a new filter or timeout only refilters."""
    old, new = {"a": server()}, {"a": server(**{field: ANOTHER[field]})}
    assert plan(old, new) == Plan(refilter=("a",))


def test_servers_come_go_stay_and_are_tried_again() -> None:
    """LIF-4: removed close, added connect, failed are tried again, untouched stay; sorted."""
    old = {"z": server(), "gone": server(), "also-gone": server(), "down": server(), "moved": server()}
    new = {"z": server(), "new": server(), "down": server(tool_timeout=2.0), "moved": server(command="y")}
    assert plan(old, new, frozenset({"down", "gone", "unheard-of"})) == Plan(
        stop=("also-gone", "gone"), start=("new",), restart=("moved",), retry=("down",), keep=("z",)
    )


def test_a_disabled_server_counts_as_absent() -> None:
    """LIF-4: switching off is stopping, switching on is starting, and a change of what is off is nothing."""
    on, off = {"a": server()}, {"a": server(disabled=True)}
    assert plan(on, off) == Plan(stop=("a",))
    assert plan(off, on) == Plan(start=("a",))
    assert plan(off, {"a": server(disabled=True, command="y")}, frozenset({"a"})) == Plan()
    assert plan({}, off) == Plan()


def test_the_same_configuration_changes_nothing() -> None:
    """LIF-4: untouched servers keep their connection and their running calls."""
    both = {"a": server(env={"K": "v"}, approval="writes"), "b": server()}
    unchanged = plan(both, {name: ServerConfig.model_validate(one.model_dump()) for name, one in both.items()})
    assert unchanged == Plan(keep=("a", "b"))


names = st.sampled_from(["a", "b", "c", "d"])
configs = st.dictionaries(
    names,
    st.builds(server, command=st.sampled_from(["x", "y"]), disabled=st.booleans(), tool_timeout=st.sampled_from([1.0, 2.0])),
)


@given(configs, configs, st.frozensets(names))
@settings(max_examples=60)
def test_a_plan_names_each_server_once_and_leads_to_what_is_wanted(
    old: dict[str, ServerConfig], new: dict[str, ServerConfig], failed: frozenset[str]
) -> None:
    """LIF-4: what runs after the plan is what the new configuration enables, nothing else."""
    made = plan(old, new, failed)
    groups = (made.stop, made.start, made.restart, made.refilter, made.retry, made.keep)
    everything = [name for group in groups for name in group]
    assert len(everything) == len(set(everything))
    running = {name for name, one in old.items() if not one.disabled} - set(made.stop) | set(made.start)
    assert running == {name for name, one in new.items() if not one.disabled}
    assert all(list(group) == sorted(group) for group in groups)
