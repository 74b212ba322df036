"""All servers and their logins: who gets one, what a person asks, and who waits for one is told."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from support.authorities import entry
from support.canaries import found
from support.logins import Agreeing, logged_in_before
from support.processes import eventually
from toolbay import App, parse
from toolbay.auth.logins import LONGEST_PAUSE, LOOK_EVERY, Logins, LoginStatus, Waking, takes_login
from toolbay.auth.pages import Page
from toolbay.auth.records import Login
from toolbay.auth.store import Files, Memory, key
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import ConfigError, LoginFailed
from toolbay.events import Event, ServerChanged
from toolbay.types import ToolResult

pytestmark = pytest.mark.anyio

ITSELF = LoginConfig(type="client_credentials", client_id="robot", client_secret="canary-robot")


@asynccontextmanager
async def protected(**more: Any) -> AsyncGenerator[tuple[RawOAuth, RawHttp]]:
    async with RawOAuth() as oauth, RawHttp(**more) as server:
        oauth.protect(server)
        yield oauth, server


class Bay:
    """A running App with one protected server, `s`."""

    def __init__(self, folder: Path, server: RawHttp, **more: Any) -> None:
        self.entry = {**server.entry, **more}
        self.config = ServerConfig.model_validate(self.entry)
        self.folder = folder
        self.app = App(parse({"mcpServers": {"s": self.entry}}), environ={"TOOLBAY_HOME": str(folder)})
        self.heard: list[Event] = []

    @property
    def store(self) -> Files:
        return Files(self.folder / "data" / "logins")

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.heard if isinstance(event, ServerChanged)]

    @property
    def listings(self) -> list[Path]:
        """What is kept for the next run, a file for each server."""
        return list((self.folder / "data" / "listings").glob("*.json"))

    @property
    def remembered(self) -> int:
        return len(self.listings)

    async def reaches(self, state: str) -> None:
        await eventually(lambda: self.app.servers["s"].state == state, f"{state}, not {self.app.servers['s']}", 15)

    async def note(self) -> Any:
        return await self.app.call("mcp_s_note", {"text": "x"})


@asynccontextmanager
async def bay(folder: Path, server: RawHttp, **more: Any) -> AsyncGenerator[Bay]:
    made = Bay(folder, server, **more)
    with anyio.fail_after(60), made.app.events.listen(made.heard.append):
        async with made.app:
            await made.app.ready("s")
            yield made


# -- who gets one -----------------------------------------------------------------------------------------------------


def test_one_entry_has_one_set_of_credentials() -> None:
    """H4: all connections of a server renew together; what is made of other facts is another one."""
    logins = Logins(Memory())
    config = entry("https://example.org/mcp")
    held = logins.of("s", config)
    assert held is not None
    assert logins.of("s", config.model_copy(update={"tool_timeout": 3.0, "enabled_tools": ("a",)})) is held
    assert logins.of("t", config) is not held
    assert logins.of("s", entry("https://example.org/mcp", auth=LoginConfig(scopes=("read",)))) is not held


@pytest.mark.parametrize(
    ("given", "takes"),
    [
        ({"type": "stdio", "command": "x"}, False),
        ({"type": "sse", "url": "https://example.org/sse"}, True),
        ({"type": "streamableHttp", "url": "https://example.org/mcp"}, True),
        ({"type": "streamableHttp", "url": "https://example.org/mcp", "auth": {"type": "none"}}, False),
        ({"type": "streamableHttp", "url": "https://example.org/mcp", "headers": {"X-Api-Key": "k"}}, True),
        ({"type": "streamableHttp", "url": "https://example.org/mcp", "headers": {"aUTHORIZATION": "Basic k"}}, False),
        ({"type": "streamableHttp", "url": "http://127.0.0.1:8000/mcp"}, True),
        ({"type": "streamableHttp", "url": "http://example.org/mcp"}, False),
        ({"type": "sse", "url": "http://10.0.0.5/sse", "auth": {"type": "oauth"}}, False),
    ],
)
async def test_what_a_person_has_set_goes_before_a_login(given: Any, takes: bool) -> None:
    """LIF-2: a configured Authorization header, or `auth: none`, is sent as it is. SEC: RFC 6750, 5.3: nothing is sent in clear."""
    config = ServerConfig.model_validate(given)
    assert takes_login(config) is takes
    assert (Logins(Memory()).of("s", config) is not None) is takes
    if not takes:
        with pytest.raises(ConfigError, match=r"nothing to log in to|uses no login, since"):
            await Logins(Memory()).login("s", config, Agreeing())


# -- what a person asks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_person_logs_in_and_the_server_is_there(era: str, tmp_path: Path) -> None:
    """H4: it says how, waits, and goes on at once after the login; nobody starts anything."""
    async with protected(era=era) as (oauth, server), bay(tmp_path, server) as made:
        assert made.app.servers["s"].state == "needs_auth"
        assert "it wants a login: log in with `toolbay login s`" in made.app.servers["s"].error
        person = Agreeing()
        status = await made.app.login("s", person)
        assert (status.logged_in, status.renews, status.issuer) == (True, True, oauth.issuer)
        assert [page.server for page in person.pages] == ["s"]
        await made.app.ready("s")
        assert not (await made.note()).is_error
        assert made.states == ["connecting", "needs_auth", "connecting", "ready"]
        assert server.effects == {"note": 1}
        assert oauth.refreshes == 0


async def test_a_login_that_another_program_makes_wakes_the_server(tmp_path: Path) -> None:
    """H4: `toolbay login` in another window: within a second or so, without a reload."""
    async with protected() as (_, server), bay(tmp_path, server) as made:
        assert made.app.servers["s"].state == "needs_auth"
        await Logins(made.store).login("s", made.config, Agreeing())
        await made.reaches("ready")
        assert not (await made.note()).is_error


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_who_logs_in_gets_a_session_of_his_own(where: str, tmp_path: Path) -> None:
    """SEC: attack 26; L2: it may be another account: what runs on the old session may finish there, nothing new goes to it."""
    async with protected() as (_, server), bay(tmp_path, server) as made:
        await made.app.login("s", Agreeing())
        await made.app.ready("s")
        server.steps["slow"] = [Step(wait=True, effect=True)]
        server.steps["further"] = [Step()]
        results: list[ToolResult] = []
        async with anyio.create_task_group() as group:

            async def slow() -> None:
                results.append(await made.app.call("mcp_s_note", {"text": "before"}))

            server.steps["note"] = [Step(wait=True, effect=True), Step(effect=True)]
            group.start_soon(slow)
            await eventually(lambda: server.effects["note"], "the call under way")
            await (made.app.login("s", Agreeing()) if where == "here" else Logins(made.store).login("s", made.config, Agreeing()))
            await eventually(lambda: "mcp_s_further" in made.app.registry.tools, "what is listed to who is logged in now")
            assert server.sessions == 2
            assert not (await made.note()).is_error
            session = server.headers[-1]["mcp-session-id"]
            assert session == "session-2"
            server.gate.set()
        assert (results[0].is_error, results[0].text, server.effects["note"]) == (False, "before", 2)
        await eventually(lambda: server.listeners == 1, "the end of the stream of the old session")
        brought = {headers["authorization"] for headers in server.headers if headers.get("mcp-session-id") == "session-1"}
        assert len(brought) == 1, "nothing of whoever is logged in now goes to the old session"


async def test_who_logs_in_while_a_server_is_being_connected_gets_a_session_of_his_own(tmp_path: Path) -> None:
    """SEC: attack 26: what was begun for somebody else is not gone on with."""
    async with protected() as (_, server), bay(tmp_path, server) as made:
        server.steps["tools/list"] = [Step(wait=True), Step()]
        async with anyio.create_task_group() as group:
            group.start_soon(made.app.login, "s", Agreeing())
            await eventually(lambda: lists(server) == 1, "the session being begun")
            await Logins(made.store).login("s", made.config, Agreeing())
            await eventually(lambda: server.sessions == 2, "another session")
            server.gate.set()
        await made.reaches("ready")
        assert not (await made.note()).is_error
        assert server.headers[-1]["mcp-session-id"] == "session-2"


async def test_a_login_during_a_reload_does_not_undo_the_reload(tmp_path: Path) -> None:
    """LIF-4: the entry that was read last counts, whoever logs in meanwhile."""
    async with protected() as (_, server), bay(tmp_path, server) as made:
        await made.app.login("s", Agreeing())
        server.steps["initialize"] = [Step(wait=True), Step()]
        async with anyio.create_task_group() as group:
            group.start_soon(made.app.reload, parse({"mcpServers": {"s": {**made.entry, "headers": {"X-Read": "again"}}}}))
            await eventually(lambda: server.headers[-1].get("x-read") == "again", "the session of the new entry")
            await Logins(made.store).login("s", made.config, Agreeing())
            await eventually(lambda: server.sessions >= 2, "a session for the new login", 15)
            server.gate.set()
        await made.reaches("ready")
        assert not (await made.note()).is_error
        assert server.headers[-1].get("x-read") == "again"


async def test_a_warm_start_is_over_with_the_login_that_it_knew(tmp_path: Path) -> None:
    """LIF-6: what was listed to one person is not offered to another, not even until the server has answered."""
    async with protected() as (_, server):
        async with bay(tmp_path, server) as made:
            await made.app.login("s", Agreeing())
            await eventually(lambda: made.remembered == 1, "what it lists being kept")
        made = Bay(tmp_path, server)
        async with made.app:
            assert made.app.servers["s"].remembered
            await made.app.ready("s")
            server.steps["initialize"] = [Step(wait=True), Step()]
            before = server.methods["POST"]
            await Logins(made.store).login("s", made.config, Agreeing())
            await eventually(lambda: server.methods["POST"] > before + 1, "another session being begun")
            assert "mcp_s_note" not in made.app.registry.tools
            server.gate.set()
            await made.reaches("ready")
            assert "mcp_s_note" in made.app.registry.tools


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_after_a_logout_nothing_is_offered_any_more(where: str, tmp_path: Path) -> None:
    """L2, LIF-6: nobody has to call anything for that, here or in the program that logged out."""
    async with protected() as (_, server), bay(tmp_path, server) as made:
        await made.app.login("s", Agreeing())
        await made.app.ready("s")
        assert "mcp_s_note" in made.app.registry.tools
        assert await (made.app.logout("s") if where == "here" else Logins(made.store).logout("s", made.config))
        await made.reaches("needs_auth")
        await eventually(lambda: "mcp_s_note" not in made.app.registry.tools, "the tools being withdrawn")


def lists(server: RawHttp) -> int:
    """How often it was asked for its tools."""
    return [post.get("method") for post in server.posts].count("tools/list")


async def test_what_other_programs_do_with_the_same_login_asks_for_no_lists(tmp_path: Path) -> None:
    """L2: a renewal is no other login: two programs do not keep each other, and the server, busy."""
    async with protected() as (oauth, server), bay(tmp_path, server) as made:
        await made.app.login("s", Agreeing())
        await made.app.ready("s")
        await eventually(lambda: made.remembered == 1, "what it lists being kept")
        asked = lists(server)
        other = Logins(made.store).of("s", made.config)
        assert other is not None
        oauth.expire()
        assert await other.renew(await other.token(), status=401, challenge="Bearer")
        credentials = made.app.logins.of("s", made.config)
        assert credentials is not None
        assert credentials.custody.outdated
        await eventually(lambda: not credentials.custody.outdated, "it being seen")
        await anyio.sleep(2.5 * LOOK_EVERY)
        assert (lists(server), made.remembered, made.states[-1]) == (asked, 1, "ready")
        assert not (await made.note()).is_error
        assert oauth.refreshes == 1


class Locked(Memory):
    """A store that cannot be read while it is locked."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self.fault: Exception | None = fault

    async def load(self, key: str) -> Login | None:
        if self.fault is not None:
            raise type(self.fault)(*self.fault.args)
        return await super().load(key)

    def stamp(self, key: str) -> object:
        return (super().stamp(key), self.fault is None)


@pytest.mark.parametrize("fault", [ConfigError("the vault is locked"), OSError("the vault is locked")], ids=lambda it: type(it).__name__)
async def test_a_store_that_cannot_be_read_costs_its_login_only(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """G4: such as a vault that is locked: it is said once, the App goes on, and so does the server once it can be read."""
    store = Locked(fault)
    async with protected() as (oauth, server), RawHttp() as open_to_all:
        config = ServerConfig.model_validate(server.entry)
        await logged_in_before(store, oauth, "s", config)
        both = parse({"mcpServers": {"s": server.entry, "t": open_to_all.entry}})
        with anyio.fail_after(60):
            async with App(both, logins=store) as app:
                await app.ready("s")
                await app.ready("t")
                assert app.servers["t"].state == "ready"
                assert app.servers["s"].state != "ready"
                await anyio.sleep(2.5 * LOOK_EVERY)
                assert not (await app.call("mcp_t_note", {"text": "x"})).is_error
                assert caplog.text.count("the login with s cannot be read now") == 1
                store.fault = None
                await eventually(lambda: app.servers["s"].state == "ready", "the login being taken up")


async def test_nobody_is_woken_for_nothing(tmp_path: Path) -> None:
    """H4: a login that has ended is written down, and that is no news to who wrote it."""
    async with protected() as (oauth, server):
        made = Bay(tmp_path, server)
        await logged_in_before(made.store, oauth, "s", made.config)
        oauth.expire()
        oauth.end()
        async with bay(tmp_path, server) as made:
            assert made.app.servers["s"].state == "needs_auth"
            denied = len(oauth.denied)
            await anyio.sleep(2.5 * LOOK_EVERY)
            assert (len(oauth.denied), made.states) == (denied, ["connecting", "needs_auth"])


class Leaving:
    """A person who looks at the page for two looks of the program, and goes away."""

    async def go(self, page: Page) -> None:
        del page
        await anyio.sleep(2.5 * LOOK_EVERY)
        raise LoginFailed("the page was closed")


async def test_a_login_that_is_not_completed_wakes_nobody(tmp_path: Path) -> None:
    """H4: what is kept of it, the id that was asked for, opens no server."""
    async with protected() as (oauth, server), bay(tmp_path, server) as made:
        with pytest.raises(LoginFailed, match="the page was closed"):
            await made.app.logins.login("s", made.config, Leaving())
        assert (len(oauth.registrations), made.states) == (1, ["connecting", "needs_auth"])
        assert await made.store.load(key("s", made.config)) is not None
        assert (await made.app.login("s", Agreeing())).logged_in
        await made.app.ready("s")
        assert len(oauth.registrations) == 1


async def test_a_logout_takes_the_login_back_and_forgets_it(tmp_path: Path) -> None:
    """SEC: attack 11: nothing is left that somebody could use."""
    async with protected() as (oauth, server), bay(tmp_path, server) as made:
        await made.app.login("s", Agreeing())
        await made.app.ready("s")
        (file,) = (tmp_path / "data" / "logins").glob("*.json")
        tokens = json.loads(file.read_text())["tokens"]
        assert await made.app.logout("s")
        assert oauth.revocations[0] == tokens["refresh"]
        assert not oauth.guards(tokens["access"])
        assert not file.exists()
        assert "s is still being started" in (await made.note()).text
        await made.reaches("needs_auth")
        assert "log in with `toolbay login s`" in (await made.note()).text
        assert await made.app.logins.standing("s", made.config) == LoginStatus(logged_in=False)
        assert await made.app.logout("s") is None, "there is nothing that could be taken back"
        assert await made.app.login_status("s") == LoginStatus(logged_in=False)


async def test_what_a_server_lists_to_one_person_is_not_remembered_for_another(tmp_path: Path) -> None:
    """LIF-6: the next run begins with what was listed to who logged in last, and after a logout with nothing."""

    def remembered(made: Bay) -> list[list[str]]:
        return [[tool["name"] for tool in json.loads(file.read_bytes())["listing"]["tools"]] for file in made.listings]

    async with protected() as (_, server), bay(tmp_path, server) as made:
        server.steps["mine"] = [Step()]
        await made.app.login("s", Agreeing())
        await eventually(lambda: remembered(made) == [["echo", "mine", "note"]], "what it lists being kept")
        del server.steps["mine"]
        server.steps["theirs"] = [Step()]
        await made.app.login("s", Agreeing())
        await eventually(lambda: remembered(made) == [["echo", "note", "theirs"]], "what it lists to somebody else being kept")
        await made.app.logout("s")
        await eventually(lambda: remembered(made) == [], "it being forgotten")
    assert remembered(made) == []


async def test_a_logout_forgets_what_cannot_be_taken_back(tmp_path: Path) -> None:
    """SEC: attack 11: who gave the tokens is down; that is told."""
    store = Files(tmp_path / "logins")
    async with protected() as (oauth, server):
        config = ServerConfig.model_validate(server.entry)
        await logged_in_before(store, oauth, "s", config)
        oauth.steps["revoke"] = [Step(kind="status", status=503)]
        assert not await Logins(store).logout("s", config)
        assert await store.load(key("s", config)) is None


async def test_a_logout_says_who_we_are_with_the_secret_that_is_configured_now(tmp_path: Path) -> None:
    """SEC: attack 11: with the one from before nothing would be taken back."""
    store = Files(tmp_path / "logins")
    async with protected() as (oauth, server):
        config = entry(server.url, auth=LoginConfig(client_id="client-0", client_secret="canary-new"))
        oauth.know("client-0", "canary-new")
        login = await logged_in_before(store, oauth, "s", config)
        ours = replace(login.client, asked_for=False, secret="canary-old", method="client_secret_basic")
        await store.save(key("s", config), replace(login, client=ours))
        assert await Logins(store).logout("s", config)
        assert login.tokens is not None
        assert not oauth.guards(login.tokens.access)


async def test_a_logout_removes_what_is_damaged(tmp_path: Path) -> None:
    """G4: what nobody can read need not stay."""
    store, config = Files(tmp_path / "logins"), entry("https://example.org/mcp")
    file = tmp_path / "logins" / f"{key('s', config)}.json"
    file.parent.mkdir(mode=0o700)
    file.write_text("{")
    file.chmod(0o600)
    standing = await Logins(store).standing("s", config)
    assert not standing.logged_in
    assert str(file) in standing.ended
    assert file.read_text() == "{"
    assert await Logins(store).logout("s", config) is False, "nobody knows whether its tokens still hold"
    assert not file.exists()


async def test_logins_that_no_server_has_are_found_and_forgotten() -> None:
    """SEC: attack 11: of servers that were removed, renamed or moved: taken back where it was given, and gone here."""
    async with protected() as (oauth, server):
        store, here = Memory(), ServerConfig.model_validate(server.entry)
        logins = Logins(store)
        await logins.login("s", here, Agreeing())
        assert await logins.others({"s": here}) == []
        (other,) = await logins.others({"renamed": here})
        assert (other.server, other.url, other.issuer) == ("s", server.url, oauth.issuer)
        login = await store.load(other.key)
        assert login is not None
        assert login.tokens is not None
        assert await logins.forget(other) is True
        assert not oauth.guards(login.tokens.access)
        assert list(await store.keys()) == []
        assert await logins.forget(other) is None


async def test_a_logout_waits_for_nobody_who_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF: for all that is to be taken back together; what is kept here is gone in any case."""
    monkeypatch.setattr("toolbay.auth.logins.REVOKING", 0.3)
    async with protected() as (oauth, server):
        store, here = Memory(), ServerConfig.model_validate(server.entry)
        await logged_in_before(store, oauth, "s", here)
        oauth.steps["revoke"] = [Step(wait=True)]
        with anyio.fail_after(10):
            assert await Logins(store).logout("s", here) is False
        assert list(await store.keys()) == []
        oauth.gate.set()


async def test_how_a_login_stands_is_told_without_asking_anybody() -> None:
    """LIF-2: what is known here, by the clock here."""
    now = [1_000.0]
    store, config = Memory(), entry("https://example.org/mcp")
    logins = Logins(store, now=lambda: now[0])
    async with RawOAuth() as oauth:
        oauth.now = lambda: now[0]
        assert await logins.standing("s", config) == LoginStatus(logged_in=False)
        await logged_in_before(store, oauth, "s", config, "read", refreshable=False)
        told = LoginStatus(logged_in=True, ends_at=4_600.0, scopes=("read",), issuer=oauth.issuer)
        assert await logins.standing("s", config) == told
        now[0] = 5_000.0
        assert not (await logins.standing("s", config)).logged_in
        await logged_in_before(store, oauth, "s", config, "read")
        now[0] = 10_000.0
        standing = await logins.standing("s", config)
        assert (standing.logged_in, standing.renews) == (True, True)
        assert not oauth.paths
        assert not found(repr(standing))


async def test_a_program_logs_in_by_itself_and_says_what_comes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """H4: `client_credentials`: nobody is led anywhere; each login asks anew, so that it shows whether it can."""
    store, person = Memory(), Agreeing()
    async with protected() as (oauth, server):
        config = entry(server.url, auth=ITSELF.model_copy(update={"issuer": oauth.issuer}))
        said = json.dumps({"error": "invalid_client", "error_description": "canary-robot is wrong"}).encode()
        oauth.steps["token"] = [Step(kind="status", status=401, headers={"Content-Type": "application/json"}, body=said)]
        with pytest.raises(LoginFailed, match=r"invalid_client: \*\*\* is wrong"):
            await Logins(store).login("s", config, person)
        oauth.steps.clear()
        oauth.know("robot", "canary-robot")
        logins = Logins(store)
        first = await logins.login("s", config, person)
        second = await logins.login("s", config, person)
        assert first.tokens != second.tokens
        assert (await logins.standing("s", config)).renews
        oauth.steps["token"] = [Step(kind="status", status=503)]
        with pytest.raises(LoginFailed) as later:
            await logins.login("s", config, person)
        assert later.value.retriable
        assert not person.pages
        assert await store.load(key("s", config)) == second
    assert not found(caplog.text)


async def test_a_server_that_needs_no_person_is_just_there(tmp_path: Path) -> None:
    """H4: its program logs in by itself, at its start."""
    async with protected() as (oauth, server):
        oauth.know("robot", "canary-robot")
        auth = {"type": "client_credentials", "clientId": "robot", "clientSecret": "canary-robot", "issuer": oauth.issuer}
        async with bay(tmp_path, server, auth=auth) as made:
            assert made.app.servers["s"].state == "ready", made.app.servers["s"].error
            assert not (await made.note()).is_error


async def test_who_never_gives_another_token_is_not_asked_for_ever(tmp_path: Path) -> None:
    """H4: a 404 may come from what stands before it, so the login stays; it is asked as often as a server is tried, and no more."""
    async with protected() as (oauth, server):
        restart = {"firstDelay": 0.01, "maxDelay": 0.02, "maxAttempts": 3}
        made = Bay(tmp_path, server, restart=restart)
        login = await logged_in_before(made.store, oauth, "s", made.config)
        oauth.expire()
        oauth.steps["token"] = [Step(kind="status", status=404, body=b"not here")]
        async with bay(tmp_path, server, restart=restart) as made:
            await made.reaches("paused")
            asked = len(oauth.forms)
            assert 1 <= asked <= 3
            assert "if that stays so, log in again with `toolbay login s`" in made.app.servers["s"].error
            await anyio.sleep(2.5 * LOOK_EVERY)
            assert (len(oauth.forms), made.app.servers["s"].state) == (asked, "paused")
            assert await made.store.load(key("s", made.config)) == login
            oauth.steps.clear()
            await made.app.login("s", Agreeing())
            await made.reaches("ready")


# -- what is said of it -----------------------------------------------------------------------------------------------


async def test_a_token_that_a_server_says_back_is_hidden_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OBS-2, SEC: attack 32: in results, errors, events and the log, from the moment that it is known."""
    async with protected() as (oauth, server):
        made = Bay(tmp_path, server)
        await logged_in_before(made.store, oauth, "s", made.config)
        oauth.expire()
        with caplog.at_level(logging.DEBUG):
            async with bay(tmp_path, server) as made:
                token = server.headers[-1]["authorization"].removeprefix("Bearer ")
                assert oauth.guards(token)
                texts = [(await made.app.call("mcp_s_echo", {"text": f"you came with {token}"})).text]
                server.steps["note"] = [Step(error={"code": -32000, "message": f"no more of {token}"})]
                texts.append((await made.note()).text)
                server.steps["note"] = [Step(kind="status", status=500, body=token.encode())]
                texts.append((await made.note()).text)
        assert all("***" in text for text in texts), texts
        for where, text in (("results", " ".join(texts)), ("events", repr(made.heard)), ("log", caplog.text)):
            assert not found(text), where


async def test_who_gives_tokens_does_not_choose_what_other_servers_say(tmp_path: Path) -> None:
    """SEC, OBS-2: a token that may stand in any text is hidden in the texts of its own server only."""
    said = "https://bank.example/pay?to=1"
    async with protected() as (oauth, server), RawHttp() as other:
        app = App(parse({"mcpServers": {"s": server.entry, "other": other.entry}}), environ={"TOOLBAY_HOME": str(tmp_path)})
        entry = ServerConfig.model_validate(server.entry)
        await logged_in_before(Files(tmp_path / "data" / "logins"), oauth, "s", entry, ends_in=-1)
        oauth.chosen = "https://bank.example/"
        with anyio.fail_after(60):
            async with app:
                await app.settle(None)
                assert oauth.refreshes == 1
                assert (await app.call("mcp_other_echo", {"text": said})).text == said
                assert (await app.call("mcp_s_echo", {"text": said})).text == "***pay?to=1"


async def test_why_a_login_failed_is_told_without_the_secrets_of_the_one_before() -> None:
    """SEC: attack 32: the authorization server knows them, and may say them where nobody has sent it any."""
    store = Memory()
    async with protected() as (oauth, server):
        config = ServerConfig.model_validate(server.entry)
        login = await logged_in_before(store, oauth, "s", config)
        assert login.tokens is not None
        oauth.steps["metadata"] = [Step(kind="status", status=503, body=f"not for {login.tokens.refresh} now".encode())]
        with pytest.raises(LoginFailed, match=r"not for \*\*\* now"):
            await Logins(store).login("s", config, Agreeing())


# -- who waits for it -------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(min_value=0.0, max_value=300.0), max_size=60))
def test_logins_that_do_not_help_wake_nobody_often(gaps: list[float]) -> None:
    """H4: of two programs that see each other's tokens come and fail, each tries once a minute in the end, and is never given up."""
    waking, now, woken = Waking(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if waking.due(now):
            woken.append(now)
    for first in woken:
        assert len([at for at in woken if first <= at < first + LONGEST_PAUSE]) <= 6
    assert not gaps or woken[:1] == [gaps[0]]
    assert waking.due(now + LONGEST_PAUSE)


def test_a_login_after_a_quiet_time_is_taken_up_at_once() -> None:
    """H4: a person who logs in is not made to wait for what happened an hour ago."""
    waking = Waking()
    times = [now for now in range(600) if waking.due(float(now))]
    assert times[:6] == [0, 1, 3, 7, 15, 31]
    assert len(times) < 17
    assert waking.due(5_000.0)
    assert not waking.due(5_000.5)
    assert waking.due(5_001.0)
