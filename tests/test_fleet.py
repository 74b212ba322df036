"""All servers together: names, filters, and the way from one configuration to another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from support import servers
from support.connections import Heard, raw
from support.processes import MARK, alive, children, eventually, leftovers, marked
from toolbay import App, parse
from toolbay._redact import Secrets
from toolbay.artifacts import Artifacts
from toolbay.assembly import Assembly
from toolbay.config.models import InvalidServer, ServerConfig
from toolbay.errors import ConfigError
from toolbay.events import Events, Notice, ServerChanged, ToolsChanged
from toolbay.fleet import Fleet
from toolbay.lock import Verdicts
from toolbay.registry import Registry
from toolbay.testing import MemoryServer, in_memory
from toolbay.types import CallContext, Json, Reloaded, ToolResult
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing

pytestmark = pytest.mark.anyio

Servers = Mapping[str, ServerConfig | InvalidServer]


class Bay:
    """A fleet with its registry and what was heard of it."""

    def __init__(self, folder: Path) -> None:
        self.events, self.heard = Events(), Heard()
        self.secrets = Secrets()
        self.registry = Registry(events=self.events, interceptors=(), mask=self.secrets.mask)
        store = Artifacts(folder / "artifacts", max_bytes=10_000_000, max_files=100, max_age_days=1)
        self.fleet = Fleet(self.registry, events=self.events, artifacts=store)

    async def apply(self, wanted: Servers, **more: Any) -> Reloaded:
        with anyio.fail_after(60):
            return await self.fleet.apply(wanted, **more)

    async def call(self, name: str, arguments: Json | None = None) -> ToolResult:
        with anyio.fail_after(60):
            return await self.registry.call(name, arguments or {}, CallContext(call_id="c"))

    @property
    def names(self) -> list[str]:
        return list(self.registry.tools)

    def state(self, server: str) -> str:
        return self.fleet.servers[server].state

    def pid(self, server: str) -> int:
        pid = self.fleet.servers[server].pid
        assert pid is not None
        return pid

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(event.server, event.text) for event in self.heard.events if isinstance(event, Notice)]

    def changes(self, server: str) -> list[str]:
        return [event.state for event in self.heard.events if isinstance(event, ServerChanged) and event.server == server]


@asynccontextmanager
async def bay(folder: Path, wanted: Servers | None = None) -> AsyncGenerator[Bay]:
    made = Bay(folder)
    with made.events.listen(made.heard.events.append):
        async with made.fleet:
            if wanted is not None:
                await made.apply(wanted)
            yield made


def conf(entry: servers.Entry | None = None, **more: Any) -> ServerConfig:
    return servers.config(raw() if entry is None else entry, **more)


# -- names and filters ------------------------------------------------------------------------------------------------


async def test_all_that_the_reference_server_has_is_there_under_its_names_and_callable(tmp_path: Path) -> None:
    """NAM-1, ALW-2: tools, resources and prompts, sorted, through the registry."""
    async with bay(tmp_path, {"every thing": servers.config(servers.everything_stdio())}) as made:
        assert made.names == sorted(made.names)
        assert "Echo: hi" in (await made.call("mcp_every_thing_echo", {"message": "hi"})).text
        assert not (await made.call("mcp_every_thing_resource_architecture_md")).is_error
        assert not (await made.call("mcp_every_thing_prompt_simple-prompt")).is_error
        status = made.fleet.servers["every thing"]
        assert status.tools >= 10
        assert status.resources >= 8
        assert status.prompts >= 3
        assert status.title.strip()


async def test_servers_whose_tools_would_share_a_name_keep_apart_whatever_their_order(tmp_path: Path) -> None:
    """NAM-3: `a b` and `a_b` both make mcp_a_b_echo; each name means its own server, today and after a restart."""
    first, second = conf(raw("--effects", tmp_path / "one")), conf(raw("--effects", tmp_path / "two"))
    async with bay(tmp_path, {"a b": first, "a_b": second}) as made:
        named = {tool.server: name for name, tool in made.registry.tools.items() if tool.wire_name == "note"}
        assert "mcp_a_b_note" not in made.names
        await made.call(named["a b"])
        assert ((tmp_path / "one").exists(), (tmp_path / "two").exists()) == (True, False)
    async with bay(tmp_path, {"a_b": second, "a b": first}) as made:
        assert {tool.server: name for name, tool in made.registry.tools.items() if tool.wire_name == "note"} == named


async def test_filters_decide_what_is_offered(tmp_path: Path) -> None:
    """ALW-1, ALW-2: own names, wrapped names, patterns, nothing; `disabledTools` wins; no resources without `*`."""
    sdk = servers.sdk2()
    wanted = {
        "own": conf(enabled_tools=["echo"]),
        "wrapped": conf(enabled_tools=["mcp_wrapped_note"]),
        "glob": conf(enabled_tools=["s*"]),
        "none": conf(enabled_tools=[]),
        "less": conf(disabled_tools=["note", "mcp_less_slow"]),
        "few": servers.config(sdk, enabled_tools=["echo"], enabled_resources=["greeting"]),
    }
    async with bay(tmp_path, wanted) as made:
        await made.fleet.settle(None)
        assert made.names == [
            "mcp_few_echo",
            "mcp_few_resource_greeting",
            "mcp_glob_slow",
            "mcp_less_echo",
            "mcp_own_echo",
            "mcp_wrapped_note",
        ]
        assert (await made.call("mcp_own_note")).is_error, "what is not offered cannot be called"


async def test_an_entry_that_matches_nothing_is_told_once(tmp_path: Path) -> None:
    """ALW-3: with what there is, and the nearest; not again at every change."""
    wanted = {"s": conf(raw("--tools", "grow,echo"), enabled_tools=["grow", "ecko"])}
    async with bay(tmp_path, wanted) as made:
        assert len(made.notices) == 1
        server, text = made.notices[0]
        assert server == "s"
        assert '"ecko"' in text
        assert 'did you mean "echo"' in text
        assert "mcp_s_grow" in text
        await made.call("mcp_s_grow", {"name": "more"})
        await eventually(lambda: made.fleet.servers["s"].tools == 3, "a new listing")
        await made.apply({**wanted, "t": conf()})
        assert len([text for _, text in made.notices if text == made.notices[0][1]]) == 1


async def test_what_is_wrong_with_a_listing_is_told_once(tmp_path: Path) -> None:
    """SCH-3: a bad tool costs itself."""
    async with bay(tmp_path, {"s": conf(raw("--bad-tool"))}) as made:
        assert "mcp_s_echo" in made.names
        await made.apply({"s": conf(raw("--bad-tool")), "t": conf()})
        assert len(made.notices) == len(set(made.notices))


async def test_complaints_are_bounded_and_told_again_for_a_server_that_was_closed_meanwhile(tmp_path: Path) -> None:
    """SCH-3: twenty sentences of one listing, and how many more; a server of that name that comes later is another one."""
    twice = ",".join(f"tool{number},tool{number}" for number in range(30))
    async with bay(tmp_path, {"s": conf(raw("--tools", twice))}) as made:
        assert len(made.notices) == 21
        assert made.notices[-1] == ("s", "and 10 more like these")
        await made.apply({})
        await made.apply({"s": conf(raw("--tools", twice))})
        assert len(made.notices) == 42


async def test_tools_that_did_not_change_are_the_same_objects(tmp_path: Path) -> None:
    """LIF-4: whatever comes and goes beside them, so that nothing is made, checked or compared again."""
    wanted = {"s": conf(raw("--tools", "grow,echo"))}
    async with bay(tmp_path, wanted) as made:
        before = dict(made.registry.tools)
        await made.apply({**wanted, "t": conf()})
        assert all(made.registry.tools[name] is tool for name, tool in before.items())
        await made.call("mcp_s_grow", {"name": "more"})
        await eventually(lambda: "mcp_s_more" in made.names, "a new listing")
        assert made.registry.tools["mcp_s_echo"] is not before["mcp_s_echo"], "made anew, from another listing"


# -- one bad server ---------------------------------------------------------------------------------------------------


async def test_invalid_dead_and_hanging_servers_cost_only_themselves(tmp_path: Path) -> None:
    """CFG-6, TRA-2, TRA-3: the good one is there, and each other says why it is not."""
    wanted: Servers = {
        "good": conf(),
        "invalid": InvalidServer(reason="it has both command and url: remove one"),
        "dead": conf(raw("--exit-at-start", "4")),
        "absent": conf(servers.stdio("no-such-command")),
        "refused": conf({"type": "streamableHttp", "url": f"http://127.0.0.1:{servers.free_port()}/mcp"}),
        "hanging": conf(raw("--hang", "initialize"), startup_timeout=3600),
        "off": conf(disabled=True),
    }
    async with bay(tmp_path) as made:
        await made.apply(wanted, wait=False)
        with anyio.fail_after(60):
            await made.fleet.settle(0.5)
        settled = {name for name, status in made.fleet.servers.items() if status.settled}
        assert settled == {"good", "invalid", "dead", "absent", "refused"}
        assert {name for name in made.fleet.servers if made.state(name) == "ready"} == {"good"}
        assert {name: made.state(name) for name in ("invalid", "absent", "hanging")} == {
            "invalid": "invalid",
            "absent": "failed",
            "hanging": "connecting",
        }
        assert (await made.call("mcp_good_echo", {"text": "hi"})).text == "hi"
        assert "both command and url" in made.fleet.servers["invalid"].error
        assert "exit code 4" in made.fleet.servers["dead"].error
        assert (await made.fleet.ready("dead")).settled
        with pytest.raises(ConfigError, match="'invalid' cannot be used: it has both"):
            await made.fleet.ready("invalid")
        with pytest.raises(ConfigError, match=r"no server named 'nowhere' \(configured: absent, dead, good, hanging, refused\)"):
            await made.fleet.ready("nowhere")


async def test_the_tools_of_a_server_that_was_given_up_leave_and_come_back_with_it(tmp_path: Path) -> None:
    """LIF-2, LIF-4: they leave the registry when it is given up; a reload tries it again, and waits for what comes of it."""
    wanted = {"s": conf(restart={"enabled": False}), "t": conf()}
    async with bay(tmp_path, wanted) as made:
        before, kept = made.names, made.pid("t")
        os.kill(made.pid("s"), signal.SIGKILL)
        await eventually(lambda: made.state("s") == "failed", "the end")
        assert made.names == [name for name in before if name.startswith("mcp_t_")]
        done = await made.apply(wanted)
        assert done == Reloaded(retried=("s",), connected=("s",))
        assert made.names == before
        assert made.pid("t") == kept
        assert made.changes("t") == ["connecting", "ready"]


async def test_the_tools_of_a_server_that_is_brought_back_stay(tmp_path: Path) -> None:
    """LIF-2: a model must not see a set of tools that flickers."""
    async with bay(tmp_path, {"s": conf()}) as made:
        before = [event for event in made.heard.events if isinstance(event, ToolsChanged)]
        names, first = made.names, made.pid("s")
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: made.state("s") == "ready" and made.pid("s") != first, "a restart")
        assert made.names == names
        assert [event for event in made.heard.events if isinstance(event, ToolsChanged) and (event.added or event.removed)] == [
            event for event in before if event.added or event.removed
        ]


async def test_a_listing_of_which_nothing_can_be_made_costs_its_own_server_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SCH-3, TRA-2, OBS-2: an item that nobody foresaw; the others' tools are there, and it is said, and logged without secrets."""

    class Unforeseen:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"no {name} beside canary-listed")

    events = Events()
    bad, good = (Connection(name, conf(), events=events, safe=Secrets({"canary-listed"}).mask) for name in ("bad", "good"))
    bad.listing = Listing(tools=cast("Any", (Unforeseen(),)))
    good.listing = Listing(tools=({"name": "echo", "inputSchema": {}},))
    assembly = Assembly(Artifacts(tmp_path, max_bytes=1, max_files=1, max_age_days=1))
    everything = Verdicts(everything=True)
    tools, news = assembly.tools({"bad": bad, "good": good}, {"bad": everything, "good": everything})
    assert [tool.name for tool in tools] == ["mcp_good_echo"]
    assert [notice.server for notice in news] == ["bad"]
    said = list(caplog.records)
    assert "the offers of bad could not be made\nTraceback" in caplog.text
    assert said[-1].getMessage().endswith("RuntimeError: no get beside ***")
    assert "canary-listed" not in "".join(str(record.exc_info) + record.getMessage() for record in said)
    assert assembly.tools({"bad": bad, "good": good}, {"bad": everything, "good": everything}) == (tools, [])
    assert caplog.records == said, "once"


# -- reload -----------------------------------------------------------------------------------------------------------


async def test_a_reload_does_what_changed_and_says_it(tmp_path: Path) -> None:
    """LIF-4: added, changed connection, refiltered, removed, retried; untouched servers keep their process."""
    program = tmp_path / "late.py"
    late = conf(servers.stdio(sys.executable, "-IS", program), restart={"enabled": False})
    old = {"kept": conf(), "filtered": conf(), "moved": conf(), "gone": conf(), "late": late}
    async with bay(tmp_path, old) as made:
        assert made.state("late") == "failed"
        pids = {name: made.pid(name) for name in ("kept", "filtered", "moved", "gone")}
        program.write_bytes((servers.SERVERS / "raw_server.py").read_bytes())
        new = {
            "kept": conf(),
            "filtered": conf(disabled_tools=["slow"], tool_timeout=5),
            "moved": conf(raw("--tools", "echo")),
            "late": late,
            "new": conf(),
            "broken": conf(raw("--exit-at-start", "1")),
        }
        done = await made.apply(new)
        assert done == Reloaded(
            added=("broken", "new"),
            changed=("filtered", "moved"),
            removed=("gone",),
            retried=("late",),
            connected=("new", "moved", "late"),
            failed=("broken",),
            tools_removed=("mcp_filtered_slow", "mcp_gone_echo", "mcp_gone_note", "mcp_gone_slow", "mcp_moved_note", "mcp_moved_slow"),
        )
        assert {name: made.pid(name) for name in ("kept", "filtered")} == {name: pids[name] for name in ("kept", "filtered")}
        assert made.pid("moved") != pids["moved"]
        assert not alive(pids["gone"])
        assert not alive(pids["moved"])
        assert made.changes("kept") == made.changes("filtered") == ["connecting", "ready"]
        assert (await made.call("mcp_new_echo", {"text": "new"})).text == "new"
        assert (await made.call("mcp_late_echo", {"text": "late"})).text == "late"


async def test_nothing_to_do_is_nothing_done(tmp_path: Path) -> None:
    """LIF-4: the same configuration again."""
    wanted = {"s": conf(), "off": conf(disabled=True)}
    async with bay(tmp_path, wanted) as made:
        tools, pid = made.registry.tools, made.pid("s")
        assert await made.apply({"s": conf(), "off": conf(disabled=True)}) == Reloaded()
        assert (made.pid("s"), dict(made.registry.tools)) == (pid, dict(tools))


async def test_a_server_that_stays_keeps_the_secrets_of_every_configuration(tmp_path: Path) -> None:
    """OBS-2, LIF-4: what became a secret is masked from now on, what was one stays so."""
    async with bay(tmp_path) as made:
        pids: set[int] = set()
        for secrets in ({"first-5ecret"}, {"second-5ecret"}):
            made.secrets.add(secrets)
            await made.apply({"s": conf()})
            pids.add(made.pid("s"))
        assert len(pids) == 1
        assert (await made.call("mcp_s_echo", {"text": "first-5ecret, second-5ecret"})).text == "***, ***"


async def test_a_running_call_survives_a_new_filter_and_a_changed_neighbour(tmp_path: Path) -> None:
    """LIF-4: untouched servers, and those that are only refiltered, keep their running calls."""
    journal = tmp_path / "journal"
    answers: list[ToolResult] = []
    async with bay(tmp_path, {"s": conf(raw("--journal", journal)), "t": conf()}) as made:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await made.call("mcp_s_slow", {"steps": 5, "seconds": 0.2}))

            group.start_soon(ask)
            await eventually(lambda: "tools/call" in journal.read_text(), "the call")
            await made.apply({"s": conf(raw("--journal", journal), disabled_tools=["slow"]), "t": conf(raw("--tools", "echo"))})
            assert not answers
            assert "mcp_s_slow" not in made.names
        assert answers[0].text == "5 steps"


async def test_a_new_timeout_holds_from_the_next_call_on(tmp_path: Path) -> None:
    """LIF-4: a changed timeout needs no restart."""
    async with bay(tmp_path, {"s": conf()}) as made:
        pid = made.pid("s")
        await made.apply({"s": conf(tool_timeout=0.2)})
        result = await made.call("mcp_s_slow", {"steps": 1, "seconds": 5})
        assert result.is_error
        assert "no answer" in result.text
        assert made.pid("s") == pid


async def test_a_new_budget_holds_for_servers_that_stay(tmp_path: Path) -> None:
    """REN-4, LIF-4: the characters of one result are read anew as well."""
    async with bay(tmp_path, {"s": conf()}) as made:
        assert len((await made.call("mcp_s_echo", {"text": "x" * 10_000})).text) == 10_000
        await made.apply({"s": conf()}, budget=1000)
        assert len((await made.call("mcp_s_echo", {"text": "x" * 10_000})).text) < 3000


async def test_two_reloads_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    """LIF-5: each sees what the one before it left; the last one holds."""
    done: list[Reloaded] = []
    async with bay(tmp_path) as made:
        async with anyio.create_task_group() as group:

            async def ask(wanted: Servers) -> None:
                done.append(await made.apply(wanted))

            for wanted in ({"a": conf()}, {"b": conf()}, {"b": conf(), "c": conf()}):
                group.start_soon(ask, wanted)
        assert [(each.added, each.removed) for each in done] == [(("a",), ()), (("b",), ("a",)), (("c",), ())]
        assert sorted(made.fleet.servers) == ["b", "c"]


async def test_a_server_that_becomes_invalid_is_closed_and_named(tmp_path: Path) -> None:
    """CFG-6, LIF-4: its tools go, the others stay."""
    async with bay(tmp_path, {"s": conf(), "t": conf()}) as made:
        pid = made.pid("s")
        done = await made.apply({"s": InvalidServer(reason="no command"), "t": conf()})
        assert done.removed == ("s",)
        assert (made.state("s"), made.state("t")) == ("invalid", "ready")
        assert not alive(pid)
        assert all(name.startswith("mcp_t_") for name in made.names)
        assert (await made.apply({"s": conf(), "t": conf()})).connected == ("s",)


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_leaving_closes_every_server_whatever_it_was_doing(tmp_path: Path) -> None:
    """LIF-1: ready, hanging in its handshake (for whose `startupTimeout` nobody waits), failed, and with a call under way."""
    env = marked()
    with anyio.fail_after(60):
        await _open_and_leave(tmp_path, env)
    assert not leftovers(env[MARK])
    assert not children()


async def _open_and_leave(folder: Path, env: dict[str, str]) -> None:
    async with bay(folder) as made:
        wanted = {
            "ready": conf(raw(env=env)),
            "hanging": conf(raw("--hang", "initialize", env=env), startup_timeout=3600),
            "failed": conf(raw("--exit-at-start", "1", env=env)),
        }
        await made.apply(wanted, wait=False)
        with anyio.fail_after(30):
            await made.fleet.ready("ready")
            await made.fleet.ready("failed")
        with anyio.move_on_after(0):
            await made.call("mcp_ready_slow", {"steps": 1000, "seconds": 1})
        assert len(leftovers(env[MARK])) == 2
    assert {made.state(name) for name in wanted} == {"closed"}


async def test_cancelling_whoever_holds_the_fleet_closes_every_server(tmp_path: Path) -> None:
    """LIF-1: cancellation is a way out like any other."""
    env = marked()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def hold() -> None:
                async with bay(tmp_path, {"s": conf(raw(env=env)), "t": conf(raw(env=env))}):
                    await anyio.sleep_forever()

            group.start_soon(hold)
            await eventually(lambda: len(leftovers(env[MARK])) == 2, "the start")
            group.cancel_scope.cancel()
    assert not leftovers(env[MARK])


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_an_impatient_person_leaves_nothing_behind(times: int, tmp_path: Path) -> None:
    """LIF-1: asyncio's own cancellation, which Ctrl-C is, as often as somebody presses it: who waits, waits for all."""
    env = marked()

    async def hold() -> None:
        async with bay(tmp_path, {"s": conf(raw("--ignore-eof", env=env)), "t": conf(raw(env=env))}):
            await anyio.sleep_forever()

    with anyio.fail_after(60):
        holder = asyncio.ensure_future(hold())
        await eventually(lambda: len(leftovers(env[MARK])) == 2, "the start")
        for _ in range(times):
            holder.cancel()
            await anyio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await holder
    assert not leftovers(env[MARK])
    assert not children()


async def test_a_status_can_be_shown_to_people(tmp_path: Path) -> None:
    """OBS-2: what `servers` says is data: state, counts, protocol, pid, the last lines of stderr."""
    async with bay(tmp_path, {"s": conf(raw("--stderr", "hello from stderr"), description="For tests.")}) as made:
        status = made.fleet.servers["s"]
        assert (status.state, status.tools, status.protocol, status.title) == ("ready", 3, "2025-11-25", "raw 1.0")
        assert (status.stderr, status.description, status.type) == (("hello from stderr",), "For tests.", "stdio")
        assert status.seconds > 0
        assert json.dumps(status.stderr)


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyError("k"), ConfigError("theirs")])
async def test_what_the_user_of_an_app_raises_leaves_it_as_it_is(raised: Exception) -> None:
    """LIF-1: the servers are closed, and the error is the one that was raised, not a group of it."""
    app = App(parse({"mcpServers": {"s": {"command": "memory"}}}), open_engine=in_memory({"s": MemoryServer()}))
    with pytest.raises(type(raised)) as caught:
        async with app:
            await app.settle()
            raise raised
    assert caught.value is raised
    assert app.servers["s"].state == "closed"


async def test_a_tool_of_a_server_that_is_not_there_is_told_with_the_reason(tmp_path: Path) -> None:
    """RUN-3, CAL-6: not with the nearest tool of another server; the longest name of a server counts."""
    wanted: Servers = {
        "a": conf(servers.stdio("no-such-program-anywhere")),
        "a_b": conf(raw()),
        "odd": InvalidServer(reason='Server "odd" has neither a command nor a URL.'),
    }
    async with bay(tmp_path, wanted) as made:
        await made.fleet.settle()
        assert "no-such-program-anywhere' was not found" in (await made.call("mcp_a_echo")).text
        assert (await made.call("mcp_a_b_ecco")).text == "There is no tool named mcp_a_b_ecco. Did you mean mcp_a_b_echo?"
        assert 'at this moment: Server "odd" has neither a command nor a URL.' in (await made.call("mcp_odd_x")).text
        assert "Did you mean mcp_a_b_echo" in (await made.call("mcp_c_echo")).text
