"""Who is told of logins that come and go, and when; what a logout takes back; and stores that fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from support.authorities import entry
from support.logins import Agreeing, logged_in_before
from support.processes import eventually
from toolbay.auth.logins import Logins
from toolbay.auth.records import Login
from toolbay.auth.store import Memory, key
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import ConfigError

pytestmark = pytest.mark.anyio

ITSELF = LoginConfig(type="client_credentials", client_id="robot", client_secret="canary-robot")


@asynccontextmanager
async def protected() -> AsyncGenerator[tuple[RawOAuth, RawHttp]]:
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        yield oauth, server


class Full(Memory):
    """A store whose disk is full from some moment on, and that fails in a way of its own where there is a `fault`."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.fault: Exception | None = None

    async def save(self, key: str, login: Login) -> None:
        if self.full:
            raise self.fault or ConfigError("the disk is full")
        await super().save(key, login)


@pytest.mark.parametrize("itself", [False, True])
async def test_a_logout_takes_back_what_could_not_be_written(itself: bool) -> None:
    """SEC: attack 11; G4: of a renewal that is in memory only its tokens hold, those in the store do not; and nobody writes it later."""
    async with protected() as (oauth, server):
        store = Full()
        auth = ITSELF.model_copy(update={"issuer": oauth.issuer}) if itself else None
        config = entry(server.url, auth=auth)
        oauth.know("robot", "canary-robot")
        if not itself:
            await logged_in_before(store, oauth, "s", config)
        logins = Logins(store)
        credentials = logins.of("s", config)
        assert credentials is not None
        store.full = True
        async with credentials.at_work():
            oauth.expire()
            await credentials.renew(await credentials.token(), status=401, challenge="Bearer")
            token = await credentials.token()
            assert oauth.guards(token)
            held = credentials.custody.tokens
            assert held is not None
            assert await logins.logout("s", config) is True
            assert oauth.revocations[0] == (held.refresh or held.access)
            assert not oauth.guards(token)
            store.full = False
        assert list(await store.keys()) == []
        assert credentials.custody.login is None


@pytest.mark.parametrize("known", [False, True])
async def test_a_logout_where_nobody_was_logged_in_is_no_news(known: bool) -> None:
    """L2: no session is ended for it, and no list is forgotten."""
    async with protected() as (oauth, server):
        store, here = Memory(), ServerConfig.model_validate(server.entry)
        logins, told = Logins(store), list[str]()
        logins.on_other = lambda name, _: told.append(name)
        if known and (credentials := logins.of("s", here)) is not None:
            await credentials.token()
        assert await logins.logout("s", here) is None
        assert told == []
        await logged_in_before(store, oauth, "s", here)
        assert await logins.logout("s", here)
        assert told == ["s"]


async def test_one_login_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: also where what it replaces is taken back for so long that the program sees it by itself meanwhile."""
    monkeypatch.setattr("toolbay.auth.logins.LOOK_EVERY", 0.02)
    async with protected() as (oauth, server):
        store, here, told = Memory(), ServerConfig.model_validate(server.entry), list[str]()
        before = await logged_in_before(store, oauth, "s", here)
        await store.save(key("s", here), replace(before, client=replace(before.client, ends_at=0.0)))
        async with Logins(store) as logins:
            logins.on_other = lambda name, _: told.append(name)
            credentials = logins.of("s", here)
            assert credentials is not None
            await credentials.token()
            logins.watch(dict, lambda: {"s": here}, lambda _: None)
            oauth.steps["revoke"] = [Step(wait=True)] * 2
            async with anyio.create_task_group() as group:
                group.start_soon(logins.login, "s", here, Agreeing())
                await eventually(lambda: told, "it being seen")
                oauth.gate.set()
            assert told == ["s"]
            await logins.login("s", here, Agreeing())
            assert told == ["s", "s"]


@pytest.mark.parametrize("which", ["stamp", "told"])
async def test_what_fails_as_nothing_should_costs_one_look(
    which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G4, STRUCTURE: a store of somebody's own, or who is told, ends neither the watching nor the program; that is logged once."""
    monkeypatch.setattr("toolbay.auth.logins.LOOK_EVERY", 0.02)
    failing, looks, woken, token = True, 0, list[str](), ""

    class Odd(Memory):
        def stamp(self, key: str) -> object:
            fails("stamp")
            return super().stamp(key)

    def fails(what: str) -> None:
        nonlocal looks
        if failing and watching and what == which:
            looks += 1
            raise RuntimeError(f"with {token} in it")

    def tell(_name: str, _config: ServerConfig) -> None:
        fails("told")

    watching = False
    async with protected() as (oauth, server):
        store, here = Odd(), ServerConfig.model_validate(server.entry)
        async with Logins(store) as logins:
            logins.on_other = tell
            credentials = logins.of("s", here)
            assert credentials is not None
            await logged_in_before(store, oauth, "s", here)
            token = await credentials.token()
            if which == "told":
                await logged_in_before(store, oauth, "s", here)
            watching = True
            logins.watch(lambda: {} if failing else {"s": here}, lambda: {"s": here} if failing else {}, woken.append)
            await eventually(lambda: looks > (which == "stamp"), "it failing")
            failing = False
            login = await logged_in_before(store, oauth, "s", here)
            await eventually(lambda: woken, "the watching going on")
            assert login.tokens is not None
            assert await credentials.token() == login.tokens.access
    assert caplog.text.count("the login with s could not be looked at") == 1
    assert "canary-" not in caplog.text


async def test_a_store_that_cannot_write_in_a_way_of_its_own_costs_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """G4: as one that says so with the error that it should."""
    async with protected() as (oauth, server):
        store, here = Full(), ServerConfig.model_validate(server.entry)
        store.fault = OSError("the vault is gone")
        await logged_in_before(store, oauth, "s", here)
        logins = Logins(store)
        credentials = logins.of("s", here)
        assert credentials is not None
        store.full = True
        async with credentials.at_work():
            oauth.expire()
            assert await credentials.renew(await credentials.token(), status=401, challenge="Bearer")
            assert oauth.guards(await credentials.token())
    assert caplog.text.count("is kept in memory only") == 1


async def test_a_login_that_a_request_saw_first_wakes_the_server_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: one of the session that is ending; what it saw is news for who waits."""
    monkeypatch.setattr("toolbay.auth.logins.LOOK_EVERY", 0.02)
    async with protected() as (oauth, server):
        store, here, woken = Memory(), ServerConfig.model_validate(server.entry), list[str]()
        async with Logins(store) as logins:
            credentials = logins.of("s", here)
            assert credentials is not None
            assert await credentials.token() == ""
            login = await logged_in_before(store, oauth, "s", here)
            assert login.tokens is not None
            assert await credentials.token() == login.tokens.access
            logins.watch(lambda: {"s": here}, dict, woken.append)
            await eventually(lambda: woken, "it being woken")
            await anyio.sleep(5 * 0.02)
            assert woken == ["s"]


async def test_watching_changes_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF: while a configuration is read again the old entry is still up: what the new one has stays."""
    monkeypatch.setattr("toolbay.auth.logins.LOOK_EVERY", 0.02)
    async with protected() as (_, server):
        old = ServerConfig.model_validate(server.entry)
        new = old.model_copy(update={"headers": {"X-New": "1"}})
        looks = 0

        def up() -> dict[str, ServerConfig]:
            nonlocal looks
            looks += 1
            return {"s": old}

        async with Logins(Memory()) as logins:
            logins.of("s", old)
            credentials = logins.of("s", new)
            logins.watch(dict, up, lambda _: None)
            await eventually(lambda: looks > 2, "some looks")
            assert logins.of("s", new) is credentials


class Slow(Memory):
    """A store that has written a while before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.gate = anyio.Event(), anyio.Event()

    async def save(self, key: str, login: Login) -> None:
        await super().save(key, login)
        self.written.set()
        await self.gate.wait()


async def test_what_a_program_writes_is_no_news_to_it() -> None:
    """H4: a server that refuses fresh tokens would be asked again, for ever, for each of them."""
    async with protected() as (oauth, server):
        store = Slow()
        store.gate.set()
        config = entry(server.url)
        await logged_in_before(store, oauth, "s", config)
        store.written, store.gate = anyio.Event(), anyio.Event()
        credentials = Logins(store).of("s", config)
        assert credentials is not None
        used = await credentials.token()
        oauth.expire()
        async with credentials.at_work(), anyio.create_task_group() as group:
            group.start_soon(lambda: credentials.renew(used, status=401, challenge="Bearer"))
            await store.written.wait()
            for _ in range(3):
                group.start_soon(credentials.token)
            await anyio.wait_all_tasks_blocked()
            store.gate.set()
        assert (credentials.custody.readings, credentials.custody.others, oauth.refreshes) == (0, 0, 1)
