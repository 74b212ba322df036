"""What requests carry: renewed once for a hundred callers and for two programs, whatever the authorization server does meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from support.canaries import found
from support.processes import end_tree, eventually
from toolbay.auth import credentials as module
from toolbay.auth import custody, errands
from toolbay.auth.clients import usable
from toolbay.auth.credentials import Credentials
from toolbay.auth.custody import EARLY
from toolbay.auth.records import Authority, Client, Login, Tokens
from toolbay.auth.store import Files, Memory, Store, key
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import ConfigError, Refused

pytestmark = pytest.mark.anyio

BEARER = 'Bearer error="invalid_token"'


def lacks(*scopes: str) -> str:
    return f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'


class Bench:
    """A server with its authorization server, and a clock that all of them go by."""

    def __init__(self, oauth: RawOAuth, server: RawHttp) -> None:
        self.oauth = oauth
        self.server = server
        self.store: Store = Memory()
        self.now = 1_000_000.0
        self.secrets: set[str] = set()
        self.auth: dict[str, Any] | None = None
        oauth.now = lambda: self.now

    @property
    def config(self) -> ServerConfig:
        return ServerConfig.model_validate({**self.entry, "auth": self.auth})

    @property
    def entry(self) -> dict[str, Any]:
        return {"type": "streamableHttp", "url": self.server.url, "ssrf_whitelist": ("127.0.0.0/8",)}

    @property
    def key(self) -> str:
        return key("s", self.config)

    def credentials(self, store: Store | None = None) -> Credentials:
        return Credentials("s", self.config, store=store or self.store, on_secrets=self.secrets.update, now=lambda: self.now)

    async def kept(self) -> Login:
        login = await self.store.load(self.key)
        assert login is not None
        return login

    async def logged_in(self, *scopes: str, refreshable: bool = True, ends_in: float | None = 3600.0) -> Login:
        """A login that somebody has made before; its token is good, and ends in so many seconds."""
        if "client-0" not in self.oauth.clients:
            self.oauth.know("client-0")
        access, refresh = self.oauth.give("client-0", *scopes, resource=self.server.url, refreshable=refreshable)
        issuer = self.oauth.issuer
        login = Login(
            url=self.server.url,
            authority=Authority(issuer=issuer, resource=self.server.url, token_endpoint=f"{issuer}/token"),
            client=Client(id="client-0", issuer=issuer, asked_for=True),
            tokens=Tokens(access=access, refresh=refresh, ends_at=None if ends_in is None else self.now + ends_in, scopes=scopes),
        )
        await self.store.save(self.key, login)
        return login

    def as_program(self, **more: Any) -> None:
        issuer = self.oauth.issuer
        self.auth = {"type": "client_credentials", "client_id": "program", "client_secret": "canary-secret", "issuer": issuer, **more}
        self.oauth.know("program", "canary-secret")

    async def call(self, credentials: Credentials) -> bool:
        """What a request does: with a token, and once more with another one."""
        token = await credentials.token()
        if self.oauth.guards(token):
            return True
        return await credentials.renew(token, status=401, challenge=BEARER) and self.oauth.guards(await credentials.token())

    async def calls(self, *of: Credentials, times: int = 100) -> list[bool | Refused]:
        """So many at once with each of them; every one of these is in its block."""
        ended: list[bool | Refused] = []

        async def one(credentials: Credentials) -> None:
            try:
                ended.append(await self.call(credentials))
            except Refused as refused:
                ended.append(refused)

        async with anyio.create_task_group() as group:
            for credentials in of:
                for _ in range(times):
                    group.start_soon(one, credentials)
        return ended


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        yield Bench(oauth, server)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has failed may try again at once."""
    monkeypatch.setattr(module, "PAUSE", 0.0)


# -- a login that is there, or is not


async def test_without_a_login_nothing_is_sent_and_nobody_is_asked(bench: Bench) -> None:
    """H4: no token, no renewal, no request."""
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await credentials.token() == ""
        assert await bench.calls(credentials) == [False] * 100
    assert not bench.oauth.paths


async def test_a_login_is_used_and_its_secrets_are_told_before(bench: Bench) -> None:
    """H4: what was kept is sent as long as it holds."""
    login = await bench.logged_in()
    credentials = bench.credentials()
    assert login.tokens is not None
    assert await credentials.token() == login.tokens.access
    assert bench.secrets == login.secrets
    assert not bench.oauth.paths


@pytest.mark.parametrize("as_file", [False, True])
async def test_what_another_program_does_counts_at_once(as_file: bool, bench: Bench, tmp_path: Path) -> None:
    """G4: logging in, logging out and renewing elsewhere."""
    bench.store = Files(tmp_path / "logins") if as_file else Memory()
    credentials = bench.credentials()
    assert await credentials.token() == ""
    assert not credentials.custody.outdated
    login = await bench.logged_in()
    assert credentials.custody.outdated
    assert login.tokens is not None
    assert await credentials.token() == login.tokens.access
    assert not credentials.custody.outdated
    other = replace(login, tokens=replace(login.tokens, access="canary-other"))
    await bench.store.save(bench.key, other)
    assert await credentials.renew(login.tokens.access, status=401, challenge=BEARER)
    assert await credentials.token() == "canary-other"
    assert bench.secrets >= other.secrets
    await bench.store.remove(bench.key)
    assert await credentials.token() == ""
    assert not bench.oauth.paths, "nobody was asked for what was there"


@pytest.mark.parametrize("change", [{"url": "https://elsewhere.example.org/mcp"}, {}])
async def test_attack_10_a_login_of_another_server_or_issuer_is_not_shown_to_this_one(change: dict[str, str], bench: Bench) -> None:
    """SEC: attack 10: a record under the wrong name, and a server whose authorization server was set to another one."""
    login = await bench.logged_in()
    if not change:
        bench.auth = {"issuer": "https://other.example.org"}
    await bench.store.save(bench.key, replace(login, **change))
    credentials = bench.credentials()
    assert await credentials.token() == ""
    assert not await credentials.renew("", status=401, challenge=BEARER)


# -- one renewal


async def test_a_hundred_callers_whose_token_is_refused_cost_one_renewal(bench: Bench) -> None:
    """H4: 1 refresh for 100 callers, who all go on with the new token."""
    login = await bench.logged_in("read")
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [True] * 100
    assert bench.oauth.refreshes == 1
    assert not credentials.custody.outdated, "what it has written itself is no news"
    new = await bench.kept()
    assert new.tokens is not None
    assert new.tokens.access == await credentials.token()
    assert (new.tokens.scopes, new.client, new.authority) == (("read",), login.client, login.authority)
    assert bench.secrets >= new.secrets | login.secrets
    assert bench.oauth.forms[0]["resource"] == bench.server.url


async def test_a_token_is_renewed_before_it_ends(bench: Bench) -> None:
    """H4: 30 s before, once, without a request that is refused."""
    login = await bench.logged_in(ends_in=3600)
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.call(credentials)
        bench.now += 3600 - EARLY - 1
        assert await bench.calls(credentials) == [True] * 100
        assert bench.oauth.refreshes == 0
        bench.now += 1
        assert await bench.calls(credentials) == [True] * 100
    assert bench.oauth.refreshes == 1
    assert (await bench.kept()).tokens != login.tokens


async def test_a_short_life_is_used_for_half_of_it(bench: Bench) -> None:
    """H4: tokens of 10 s are not renewed at each request."""
    bench.oauth.lifetime = 10
    await bench.logged_in(ends_in=10)
    credentials = bench.credentials()
    async with credentials.at_work():
        for _ in range(20):
            assert await bench.call(credentials)
            bench.now += 1
    assert 3 <= bench.oauth.refreshes <= 5


async def test_a_token_that_is_said_to_last_for_no_time_is_not_renewed_for_each_request(bench: Bench) -> None:
    """H4, SEC: whoever gives tokens says how long they last."""
    bench.oauth.answer = {"expires_in": 1e-9}
    await bench.logged_in(ends_in=-1)
    credentials = bench.credentials()
    async with credentials.at_work():
        for _ in range(50):
            assert await bench.call(credentials)
            bench.now += 0.1
    assert bench.oauth.refreshes <= 2


async def test_an_authorization_server_that_does_not_rotate_is_asked_with_the_same_token(bench: Bench) -> None:
    """H4: an answer without a refresh token leaves the one that is there."""
    bench.oauth.rotates = False
    await bench.logged_in()
    credentials = bench.credentials()
    async with credentials.at_work():
        for _ in range(2):
            bench.oauth.expire()
            assert await bench.call(credentials)
    assert bench.oauth.refreshes == 2


async def test_two_programs_on_one_folder_cost_one_renewal(bench: Bench, tmp_path: Path) -> None:
    """G4: two stores, as two programs have them: the authorization server sees 1, which rotates."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    bench.oauth.expire()
    one, other = bench.credentials(), bench.credentials(Files(tmp_path / "logins"))
    async with one.at_work(), other.at_work():
        assert await bench.calls(one, other, times=50) == [True] * 100
    assert bench.oauth.refreshes == len(bench.oauth.forms) == 1
    assert await one.token() == await other.token()


PROGRAM = """
import hashlib, json, sys
from pathlib import Path
import anyio
from toolbay.auth.credentials import Credentials
from toolbay.auth.store import Files
from toolbay.config.models import ServerConfig

async def main():
    config = ServerConfig.model_validate(json.loads(sys.argv[2]))
    credentials = Credentials("s", config, store=Files(Path(sys.argv[1])), on_secrets=lambda _: None, now=lambda: 1_000_000.0)
    refused = await credentials.token()
    async def one():
        assert await credentials.renew(refused, status=401, challenge="Bearer")
    async with credentials.at_work(), anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        print("asking", flush=True)
    print(hashlib.sha256((await credentials.token()).encode()).hexdigest(), flush=True)

anyio.run(main)
"""


@contextmanager
def program(bench: Bench, folder: Path) -> Generator[subprocess.Popen[str]]:
    """One that wants another token, ten times over."""
    entry = json.dumps({**bench.entry, "ssrf_whitelist": ["127.0.0.0/8"]})
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), entry], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        end_tree(process.pid)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await anyio.to_thread.run_sync(process.stdout.readline)).strip()


async def test_processes_that_renew_at_once_cost_one_renewal(bench: Bench, tmp_path: Path) -> None:
    """G4: three real programs and a slow authorization server: it sees 1, and all of them go on with the same token."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True)]
    with program(bench, tmp_path / "logins") as a, program(bench, tmp_path / "logins") as b, program(bench, tmp_path / "logins") as c:
        assert [await says(process) for process in (a, b, c)] == ["asking"] * 3
        await eventually(lambda: bench.oauth.forms, "the first request")
        bench.oauth.gate.set()
        digests = [await says(process) for process in (a, b, c)]
    assert len(set(digests)) == 1
    assert len(digests[0]) == 64
    assert bench.oauth.refreshes == len(bench.oauth.forms) == 1


async def test_a_program_that_is_killed_while_it_renews_holds_up_nobody(bench: Bench, tmp_path: Path) -> None:
    """G4: SIGKILL between request and answer: the next one has the lock at once, and renews."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True), Step()]
    credentials = bench.credentials()
    async with credentials.at_work():
        with program(bench, tmp_path / "logins") as process:
            await eventually(lambda: bench.oauth.forms, "its request")
            os.kill(process.pid, signal.SIGKILL)
            assert await bench.call(credentials)
    assert bench.oauth.refreshes == 1
    assert len(bench.oauth.forms) == 2


# -- who leaves, and what ends


async def by_scope(work: Callable[[], Any], ready: Callable[[], object]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await eventually(ready)
        group.cancel_scope.cancel()


async def by_hand(work: Callable[[], Any], ready: Callable[[], object]) -> None:
    task = asyncio.create_task(work())
    await eventually(ready)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leaving", [by_scope, by_hand])
async def test_a_caller_who_leaves_does_not_break_off_the_renewal(leaving: Any, bench: Bench) -> None:
    """H4: it is carried to its end and kept, since what was rotated is lost otherwise; nobody asks twice."""
    before = await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True)]
    credentials = bench.credentials()
    async with credentials.at_work():
        await leaving(partial(bench.call, credentials), lambda: bench.oauth.forms)
        assert await bench.kept() == before
        bench.oauth.gate.set()
        assert await bench.calls(credentials) == [True] * 100
    assert (await bench.kept()).tokens != before.tokens
    assert bench.oauth.refreshes == len(bench.oauth.forms) == 1


@pytest.mark.parametrize("linger", [60.0, 0.0])
async def test_a_block_that_ends_lets_a_renewal_come_to_its_end(linger: float, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: an answer within the time that is left is kept, though all is cancelled around it; of a token that counts once there is more."""
    monkeypatch.setattr(errands, "LINGER", linger)
    monkeypatch.setattr(errands, "AT_STAKE", 60.0)
    before = await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True)]
    credentials = bench.credentials()

    async def block() -> None:
        async with credentials.at_work():
            await bench.call(credentials)

    async with anyio.create_task_group() as group:
        group.start_soon(block)
        await eventually(lambda: bench.oauth.forms)
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        bench.oauth.gate.set()
    assert (await bench.kept()).tokens != before.tokens


async def test_a_block_ends_in_time_though_the_authorization_server_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: what hangs is broken off, and the login is as it was."""
    monkeypatch.setattr(errands, "LINGER", 0.1)
    monkeypatch.setattr(errands, "AT_STAKE", 0.2)
    before = await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True), Step()]
    credentials = bench.credentials()
    with anyio.fail_after(10):
        async with credentials.at_work(), anyio.create_task_group() as group:
            group.start_soon(bench.call, credentials)
            await eventually(lambda: bench.oauth.forms)
            group.cancel_scope.cancel()
    assert await bench.kept() == before
    async with credentials.at_work():
        assert await bench.call(credentials)


@pytest.mark.parametrize("kind", ["oauth", "client_credentials"])
async def test_a_block_ends_in_the_time_that_is_set_for_it(kind: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: a session has some seconds for its end, and what hangs leaves some of them; what can be had again is not waited for."""
    monkeypatch.setattr(errands, "LINGER", 60.0 if kind == "oauth" else 0.1)
    monkeypatch.setattr(errands, "AT_STAKE", 60.0)
    if kind == "oauth":
        await bench.logged_in(ends_in=-1)
    else:
        bench.as_program()
    bench.oauth.steps["token"] = [Step(wait=True)]
    credentials = bench.credentials()
    begun = anyio.current_time()
    with anyio.CancelScope() as closing:
        async with credentials.at_work(), anyio.create_task_group() as group:
            group.start_soon(credentials.token)
            await eventually(lambda: bench.oauth.forms)
            closing.deadline = anyio.current_time() + errands.SPARE + (0.1 if kind == "oauth" else 60)
            group.cancel_scope.cancel()
    assert not closing.cancelled_caught
    assert anyio.current_time() - begun < 10, "the request alone may take 15 s"


async def test_a_caller_of_another_session_goes_on_where_one_was_broken_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: two sessions share a login; the one whose block a renewal ran in ends."""
    monkeypatch.setattr(errands, "LINGER", 0.1)
    monkeypatch.setattr(errands, "AT_STAKE", 0.2)
    await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True), Step()]
    credentials = bench.credentials()
    ended: list[bool] = []

    async def caller() -> None:
        ended.append(await bench.call(credentials))

    async with credentials.at_work(), anyio.create_task_group() as group, credentials.at_work():
        group.start_soon(caller)
        await eventually(lambda: bench.oauth.forms)
    assert ended == [True]
    assert len(bench.oauth.forms) == 2


async def test_outside_of_a_block_a_renewal_belongs_to_who_wants_it(bench: Bench) -> None:
    """H4: it leaves with its caller, and the next one does it."""
    await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(wait=True), Step()]
    credentials = bench.credentials()
    async with anyio.create_task_group() as group:
        group.start_soon(bench.call, credentials)
        await eventually(lambda: bench.oauth.forms)
        group.cancel_scope.cancel()
    assert await bench.calls(credentials, times=10) == [True] * 10
    assert bench.oauth.refreshes == 1


async def test_an_error_in_a_block_comes_out_as_it_is(bench: Bench) -> None:
    """STRUCTURE: the block's own task group wraps nothing."""
    with pytest.raises(ValueError, match="mine"):
        async with bench.credentials().at_work():
            raise ValueError("mine")


# -- what an authorization server says


async def test_a_login_that_was_taken_back_has_ended_once_for_all(bench: Bench) -> None:
    """H4: invalid_grant: one question for 100 callers, the end and its reason are kept, and nobody asks again, here or elsewhere."""
    await bench.logged_in("read")
    bench.oauth.end()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [False] * 100
        assert await bench.calls(credentials, bench.credentials()) == [False] * 200
    assert len(bench.oauth.forms) == 1
    kept = await bench.kept()
    assert kept.tokens is None
    assert "invalid_grant: no such refresh token" in kept.ended
    mend = credentials.mend(status=401, challenge=BEARER)
    assert mend == f"the login has ended: log in again with `toolbay login s` ({kept.ended})"
    await bench.logged_in()
    assert await bench.call(credentials), "another login is taken as it comes"


async def test_a_client_that_is_forgotten_is_not_used_for_the_next_login(bench: Bench) -> None:
    """H4: invalid_client for an id that was asked for: the login has ended, and the next one asks for another id."""
    login = await bench.logged_in()
    assert usable(login.client, login.authority, LoginConfig(), scopes=(), now=lambda: bench.now)
    bench.oauth.clients.clear()
    bench.oauth.expire()
    credentials = bench.credentials()
    assert not await bench.call(credentials)
    kept = await bench.kept()
    assert kept.tokens is None
    assert "invalid_client" in kept.ended
    assert not usable(kept.client, kept.authority, LoginConfig(), scopes=(), now=lambda: bench.now)


HTML = Step(kind="status", status=403, headers={"Content-Type": "text/html"}, body=b"<h1>Who are you?</h1>")


@pytest.mark.parametrize(
    ("step", "retriable"),
    [
        (Step(kind="status", status=503), True),
        (Step(kind="status", status=429), True),
        (Step(kind="reset"), True),
        (HTML, True),
        (Step(kind="status", status=400, body=b'{"error": "temporarily_unavailable"}'), True),
        (Step(kind="status", status=200, body=b'{"access_token": "canary-x", "token_type": "DPoP"}'), False),
        (Step(kind="status", status=200, body=b"<html>"), False),
        (Step(kind="status", status=302, headers={"Location": "https://elsewhere.example.org/"}), False),
    ],
)
async def test_what_is_no_answer_ends_nothing(step: Step, retriable: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: trouble of the authorization server, or of what stands before it: all are told, the tokens stay, and it is asked again later."""
    before = await bench.logged_in()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [step, Step()]
    credentials = bench.credentials()
    async with credentials.at_work():
        for _ in range(2):
            for refused in await bench.calls(credentials, times=20):
                assert isinstance(refused, Refused)
                assert refused.retriable == retriable
                assert str(refused).startswith("the login with s could not be renewed: ")
        assert len(bench.oauth.forms) == 1, "nor is it asked without a pause"
        assert await bench.kept() == before
        monkeypatch.setattr(module, "PAUSE", 0.0)
        assert await bench.calls(credentials) == [True] * 100


async def test_a_secret_that_was_changed_in_the_configuration_is_used_at_once(bench: Bench) -> None:
    """H4: a client that was registered by hand keeps its login when its secret is another one."""
    bench.auth = {"client_id": "client-0", "client_secret": "canary-new"}
    login = await bench.logged_in()
    ours = replace(login.client, asked_for=False, secret="canary-old", method="client_secret_basic")
    await bench.store.save(bench.key, replace(login, client=ours))
    bench.oauth.clients["client-0"].secret = "canary-new"
    bench.oauth.expire()
    assert await bench.call(bench.credentials())


async def test_nobody_at_the_address_ends_nothing(bench: Bench, impatient: None) -> None:
    """H4: a refused connection."""
    await bench.logged_in()
    bench.oauth.expire()
    await bench.oauth.stop()
    credentials = bench.credentials()
    async with credentials.at_work():
        with pytest.raises(Refused, match="refused the connection") as caught:
            await bench.call(credentials)
        assert caught.value.retriable
        await bench.oauth.start()
        assert await bench.call(credentials)


async def test_a_token_that_still_holds_is_used_where_no_other_can_be_had(bench: Bench, impatient: None) -> None:
    """H4: trouble in the last half minute costs nothing; after it there is no token to send."""
    login = await bench.logged_in(ends_in=3600)
    bench.oauth.steps["token"] = [Step(kind="status", status=503)]
    credentials = bench.credentials()
    async with credentials.at_work():
        assert login.tokens is not None
        assert await credentials.token() == login.tokens.access
        bench.now += 3590
        assert await credentials.token() == login.tokens.access
        bench.now += 10
        with pytest.raises(Refused):
            await credentials.token()


async def test_a_token_that_still_holds_is_not_held_up_for_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: the authorization server hangs in the last half minute: requests go on, and so does the renewal."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    login = await bench.logged_in(ends_in=3600)
    bench.oauth.steps["token"] = [Step(wait=True)]
    credentials = bench.credentials()
    async with credentials.at_work():
        assert login.tokens is not None
        assert await credentials.token() == login.tokens.access
        bench.now += 3590
        assert await credentials.token() == login.tokens.access
        assert await credentials.token() == login.tokens.access
        bench.oauth.gate.set()
        monkeypatch.setattr(module, "PATIENCE", 10.0)
        assert await credentials.token() != login.tokens.access
    assert len(bench.oauth.forms) == 1


@pytest.mark.parametrize(("ends_in", "ends"), [(3600.0, False), (None, False), (0.0, True)])
async def test_a_login_without_a_refresh_token_ends_when_its_time_is_over(ends_in: float | None, ends: bool, bench: Bench) -> None:
    """H4: one that should still hold is left: its server may be wrong today. Nobody is asked in vain."""
    await bench.logged_in(refreshable=False, ends_in=ends_in)
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [False] * 100
    assert not bench.oauth.forms
    assert ((await bench.kept()).tokens is None) == ends
    said = (
        "the login has ended: log in again with `toolbay login s` (its time is over"
        if ends
        else "it refuses the token that http://127.0.0.1"
    )
    assert said in credentials.mend(status=401, challenge=BEARER)


async def test_a_server_that_refuses_every_token_does_not_get_ever_more(bench: Bench) -> None:
    """H4: a 401 loop: at most ten renewals in a minute, then the error stands."""
    await bench.logged_in()
    credentials = bench.credentials()
    async with credentials.at_work():
        renewed = [await credentials.renew(await credentials.token(), status=401, challenge=BEARER) for _ in range(20)]
    assert renewed == [True] * 10 + [False] * 10
    assert bench.oauth.refreshes == 10
    assert "it refuses the token" in credentials.mend(status=401, challenge=BEARER)


async def test_what_is_said_back_shows_no_secret(bench: Bench, caplog: pytest.LogCaptureFixture, impatient: None) -> None:
    """SEC: attack 10: the authorization server's own words hold secrets, of this request and of others."""
    login = await bench.logged_in()
    await bench.store.save(bench.key, replace(login, client=replace(login.client, secret="canary-secret", method="client_secret_post")))
    bench.oauth.clients["client-0"].secret = "canary-secret"
    assert login.tokens is not None
    echo = json.dumps({"error": "invalid_grant", "error_description": f"{login.tokens.access} of canary-secret is not good"}).encode()
    bench.oauth.expire()
    bench.oauth.steps["token"] = [Step(kind="status", status=status, body=echo) for status in (503, 400)]
    credentials = bench.credentials()
    with pytest.raises(Refused) as caught:
        await bench.call(credentials)
    assert not await bench.call(credentials)
    ended = (await bench.kept()).ended
    assert "is not good" in ended
    for text in (str(caught.value), ended, credentials.mend(status=401, challenge=BEARER), caplog.text):
        assert not found(text)


# -- a store that does not do its part


class Unwritable(Memory):
    """What is there can be read."""

    writable = False
    saves = 0

    async def save(self, key: str, login: Login) -> None:
        self.saves += 1
        if not self.writable:
            raise ConfigError("it cannot be written")
        await super().save(key, login)

    @asynccontextmanager
    async def locked(self, key: str) -> AsyncGenerator[None]:
        if not self.writable:
            raise ConfigError("it cannot be locked")
        async with super().locked(key):
            yield


async def test_a_store_that_cannot_be_written_costs_a_line_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """G4: a home that is read-only: renewed tokens count in memory, the next renewal is made with them, and it is said once."""
    bench.store = store = Unwritable()
    store.writable = True
    await bench.logged_in()
    store.writable = False
    credentials = bench.credentials()
    async with credentials.at_work():
        for _ in range(3):
            bench.oauth.expire()
            assert await bench.calls(credentials) == [True] * 100
        assert bench.oauth.refreshes == 3
        assert caplog.text.count("is kept in memory only") == 1
        store.writable = True
        bench.oauth.expire()
        assert await bench.call(credentials)
    kept = await bench.kept()
    assert kept.tokens is not None
    assert kept.tokens.access == await credentials.token()


@pytest.mark.parametrize("when", ["by and by", "at the end"])
async def test_what_could_not_be_written_for_a_moment_is_written_later(
    when: str, bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4, H4: a full disk: with the program the only refresh token that counts would be gone, and with that the login."""
    monkeypatch.setattr(custody, "AGAIN", 0.0 if when == "by and by" else 3600.0)
    bench.store = store = Unwritable()
    store.writable = True
    before = await bench.logged_in()
    store.writable = False
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [True] * 100
        assert await bench.calls(credentials) == [True] * 100
        assert await bench.kept() == before
        store.writable = True
        saves = store.saves
        assert await bench.calls(credentials) == [True] * 100
        assert store.saves == saves + (when == "by and by")
    assert store.saves == saves + 1
    assert caplog.text.count("is kept in memory only") == 1
    another = bench.credentials()
    bench.oauth.expire()
    async with another.at_work():
        assert await bench.call(another)


async def test_what_could_not_be_written_gives_way_to_what_another_program_has_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: a person has logged in anew meanwhile."""
    monkeypatch.setattr(custody, "AGAIN", 0.0)
    bench.store = store = Unwritable()
    store.writable = True
    await bench.logged_in()
    store.writable = False
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.call(credentials)
        store.writable = True
        login = await bench.logged_in()
        assert bench.oauth.guards(await credentials.token())
    assert await bench.kept() == login


async def test_a_lock_that_cannot_be_does_not_keep_a_login_from_being_renewed(bench: Bench, tmp_path: Path) -> None:
    """G4: something else stands in the place of the lock."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    (tmp_path / "logins" / f"{bench.key}.lock").mkdir()
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [True] * 100
    assert bench.oauth.refreshes == 1


async def test_a_lock_that_is_not_given_back_is_told(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4: after the patience of the store it is an error that may be over soon."""
    monkeypatch.setattr("toolbay.auth.store.PATIENCE", 0.1)
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    bench.oauth.expire()
    credentials = bench.credentials()
    async with credentials.at_work(), Files(tmp_path / "logins").locked(bench.key):
        with pytest.raises(Refused, match="another program has been at work on the same login") as caught:
            await bench.call(credentials)
    assert caught.value.retriable
    assert not bench.oauth.forms


async def test_a_damaged_record_is_told_and_asks_for_a_login(bench: Bench, tmp_path: Path) -> None:
    """G4: a token file that is corrupt: no token, no question, no guess; and the next login counts."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    file = tmp_path / "logins" / f"{bench.key}.json"
    file.write_bytes(file.read_bytes()[:100])
    credentials = bench.credentials()
    assert await bench.calls(credentials) == [False] * 100
    assert not bench.oauth.paths
    mend = credentials.mend(status=401, challenge="")
    assert mend == f"what is kept of the login cannot be used: log in again with `toolbay login s` ({file}: it is no JSON)"
    assert file.stat().st_size == 100, "it is left as it is"
    await bench.logged_in()
    assert await bench.call(credentials)


async def test_a_record_that_is_damaged_while_it_is_in_use_is_put_right_by_the_next_renewal(bench: Bench, tmp_path: Path) -> None:
    """G4: what the program knows goes on to count; but an end is not written over what cannot be read."""
    bench.store = Files(tmp_path / "logins")
    await bench.logged_in()
    file = tmp_path / "logins" / f"{bench.key}.json"
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.call(credentials)
        file.write_text("{}")
        bench.oauth.expire()
        assert await bench.calls(credentials) == [True] * 100
        assert (await bench.kept()).tokens is not None
        file.write_text("{ }")
        bench.oauth.end()
        assert await bench.calls(credentials) == [False] * 100
    assert file.read_text() == "{ }"
    assert "the login has ended" in credentials.mend(status=401, challenge=BEARER)


async def test_an_error_that_nobody_foresaw_reaches_all_who_wait(bench: Bench) -> None:
    """STRUCTURE: it is not swallowed, and the next one tries again."""

    class Broken(Memory):
        broken = True

        @asynccontextmanager
        async def locked(self, key: str) -> AsyncGenerator[None]:
            if self.broken:
                raise RuntimeError("nobody foresaw it")
            async with super().locked(key):
                yield

    bench.store = store = Broken()
    await bench.logged_in()
    bench.oauth.expire()
    credentials = bench.credentials()
    raised: list[RuntimeError] = []

    async def one() -> None:
        try:
            await bench.call(credentials)
        except RuntimeError as error:
            raised.append(error)

    async with credentials.at_work():
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
        assert len(raised) == 10
        store.broken = False
        assert await bench.call(credentials)


# -- a program's own login


async def test_a_program_logs_in_by_itself_once_for_all_its_callers(bench: Bench) -> None:
    """H4: client_credentials: discovered, asked for, kept; and asked for again when it is refused."""
    bench.as_program()
    bench.oauth.scopes = ("read", "write")
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [True] * 100
        assert [form["grant_type"] for form in bench.oauth.forms] == ["client_credentials"]
        assert bench.oauth.forms[0]["scope"] == "read write"
        assert bench.oauth.forms[0]["resource"] == bench.server.url
        assert await bench.call(bench.credentials()), "another program finds it"
        assert len(bench.oauth.forms) == 1
        bench.oauth.expire()
        assert await bench.calls(credentials) == [True] * 100
        assert len(bench.oauth.forms) == 2
        bench.now += 3600
        assert await bench.calls(credentials) == [True] * 100
    assert len(bench.oauth.forms) == 3
    assert (await bench.kept()).tokens is not None


async def test_a_program_with_a_wrong_secret_asks_once(bench: Bench) -> None:
    """H4: a no is told with its reason and not asked for again; a corrected entry is tried anew."""
    bench.as_program(client_secret="canary-wrong")
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await bench.calls(credentials) == [False] * 100
        assert await bench.calls(credentials) == [False] * 100
    assert len(bench.oauth.forms) == 1
    mend = credentials.mend(status=401, challenge=BEARER)
    assert mend.startswith("the program could not log in by itself: correct `auth` of s (the authorization server http://127.0.0.1")
    assert "invalid_client" in mend
    bench.as_program()
    assert await bench.call(bench.credentials())


async def test_a_program_whose_authorization_server_is_away_tries_again(bench: Bench, impatient: None) -> None:
    """H4: trouble at each of its steps: told, and over when it is over."""
    bench.as_program()
    credentials = bench.credentials()
    async with credentials.at_work():
        for step in ("prm", "metadata", "token"):
            bench.oauth.steps[step] = [Step(kind="status", status=503), Step()]
            with pytest.raises(Refused) as caught:
                await bench.call(credentials)
            assert caught.value.retriable
        assert await bench.call(credentials)


async def test_a_program_goes_to_the_authorization_server_that_is_configured_now(bench: Bench) -> None:
    """SEC: attack 8: what another one gave is not used; without a word of the person the client is not shown to another one."""
    bench.as_program()
    assert await bench.call(bench.credentials())
    async with RawOAuth() as other:
        other.now = bench.oauth.now
        other.know("program", "canary-secret")
        other.protect(bench.server)
        bench.oauth.clients.clear()  # whom it served goes elsewhere
        bench.oauth.expire()
        credentials = bench.credentials()
        assert not await bench.call(credentials)
        assert bench.oauth.issuer in credentials.mend(status=401, challenge=BEARER)
        assert not other.forms
        bench.as_program(issuer=other.issuer)
        credentials = bench.credentials()
        assert other.guards(await credentials.token())


# -- scopes


async def test_a_scope_that_a_login_lacks_is_noted_for_the_next_one(bench: Bench) -> None:
    """H4: 403 insufficient_scope with a person's login: noted once, nobody is asked, and the mend says which."""
    login = await bench.logged_in("read")
    assert login.tokens is not None
    credentials = bench.credentials()
    async with credentials.at_work():
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(partial(credentials.renew, login.tokens.access, status=403, challenge=lacks("read", "write")))
        stamp = bench.store.stamp(bench.key)
        assert not await credentials.renew(login.tokens.access, status=403, challenge=lacks("write"))
        assert bench.store.stamp(bench.key) == stamp, "it is noted once"
        assert not await credentials.renew(login.tokens.access, status=403, challenge=lacks("admin"))
    assert await bench.kept() == replace(login, wanted=("write", "admin"))
    assert not bench.oauth.paths
    mend = credentials.mend(status=403, challenge=lacks("read", "write"))
    assert mend == "the login lacks the scope write: log in again with `toolbay login s`"
    bench.auth = {"scopes": ("read",)}
    limited = bench.credentials()
    await limited.token()
    for named, asks in {"write": "it", "read write": "it", "write admin": "them"}.items():
        mend = limited.mend(status=403, challenge=lacks(*named.split()))
        assert f", and `auth.scopes` leaves {asks} out: add {asks} there, and log in again with `toolbay login s`" in mend
    for challenge in ("", BEARER, lacks(), lacks("read")):
        assert not await credentials.renew(login.tokens.access, status=403, challenge=challenge)
        assert credentials.mend(status=403, challenge=challenge) == "access was denied: ask who runs s"


@pytest.mark.parametrize("width", [1, 200])
async def test_a_server_that_wants_ever_more_scopes_has_few_of_them_noted(width: int, bench: Bench) -> None:
    """H4, SEC: the record stays one that can be read, it is not written for each call, and the next page has room for what is noted."""
    bench.store = store = Unwritable()
    store.writable = True
    login = await bench.logged_in("read")
    credentials = bench.credentials()
    async with credentials.at_work():
        token = await credentials.token()
        for number in range(90):
            wanted = (f"s{number}x{i}" + "y" * 60 for i in range(width))
            assert not await credentials.renew(token, status=403, challenge=lacks(*wanted))
        assert await credentials.token() == token
    kept = await bench.kept()
    assert replace(kept, wanted=()) == login
    assert len(kept.wanted) > 10
    assert len(" ".join(kept.wanted)) <= 4 * 1024
    assert store.saves <= 1 + module.MOST_NOTES


async def test_a_program_asks_for_what_it_lacks_together_with_what_it_has(bench: Bench) -> None:
    """H4: step-up: the union, once for 100 callers, and kept for the next token."""
    bench.as_program()
    bench.oauth.scopes = ("read",)
    credentials = bench.credentials()
    async with credentials.at_work():
        token = await credentials.token()
        assert bench.oauth.granted(token) == ("read",)
        renewed: list[bool] = []

        async def one() -> None:
            renewed.append(await credentials.renew(token, status=403, challenge=lacks("write")))

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(one)
        assert renewed == [True] * 100
        assert bench.oauth.granted(await credentials.token()) == ("read", "write")
        assert len(bench.oauth.forms) == 2
        bench.oauth.expire()
        assert await bench.call(credentials)
        assert bench.oauth.granted(await credentials.token()) == ("read", "write")


async def test_a_program_asks_for_no_more_than_was_set(bench: Bench) -> None:
    """H4, SEC: a server cannot widen what a person has limited; what was added to it since is asked for."""
    bench.as_program(scopes=("read",))
    credentials = bench.credentials()
    async with credentials.at_work():
        token = await credentials.token()
        assert not await credentials.renew(token, status=403, challenge=lacks("write"))
        assert len(bench.oauth.forms) == 1
        mend = credentials.mend(status=403, challenge=lacks("write"))
        assert mend == "the token lacks the scope write, and `auth.scopes` leaves it out: add it there"
    bench.as_program(scopes=("read", "write"))
    credentials = bench.credentials()
    async with credentials.at_work():
        assert await credentials.token() == token
        assert await credentials.renew(token, status=403, challenge=lacks("write", "admin"))
        assert bench.oauth.granted(await credentials.token()) == ("read", "write")


async def test_a_program_asks_for_more_a_few_times_and_never_twice_for_the_same(bench: Bench) -> None:
    """H4: step-up is bounded: an authorization server that gives less than it was asked for, and one that says no."""
    bench.as_program()
    bench.oauth.scopes = ("read",)
    bench.oauth.grants_only = ("read",)
    credentials = bench.credentials()
    async with credentials.at_work():
        token = await credentials.token()
        assert await credentials.renew(token, status=403, challenge=lacks("write"))
        token = await credentials.token()
        for _ in range(5):
            assert not await credentials.renew(token, status=403, challenge=lacks("write"))
        assert len(bench.oauth.forms) == 2
        mend = credentials.mend(status=403, challenge=lacks("write"))
        assert mend.startswith("the token lacks the scope write, which the authorization server did not give")
        bench.oauth.steps["token"] = [Step(kind="status", status=400, body=b'{"error": "invalid_scope"}')]
        for scope in ("a", "b", "c", "d"):
            assert not await credentials.renew(token, status=403, challenge=lacks(scope))
        assert len(bench.oauth.forms) == 4, "three times in all"
        assert await credentials.token() == token, "what there is stays"


async def test_trouble_while_more_is_asked_for_uses_up_no_attempt(bench: Bench) -> None:
    """H4: step-up: the token stays, and the same may be asked for again."""
    bench.as_program()
    bench.oauth.scopes = ("read",)
    credentials = bench.credentials()
    async with credentials.at_work():
        token = await credentials.token()
        bench.oauth.steps["token"] = [*[Step(kind="status", status=503)] * 5, Step()]
        for _ in range(5):
            assert not await credentials.renew(token, status=403, challenge=lacks("write"))
        assert await credentials.token() == token
        assert await credentials.renew(token, status=403, challenge=lacks("write"))
        assert bench.oauth.granted(await credentials.token()) == ("read", "write")


async def test_what_is_to_be_done_for_a_login_is_done_one_after_the_other(bench: Bench) -> None:
    """H4: a scope to note and a token to renew at once, of which neither stands for the other."""
    login = await bench.logged_in("read")
    assert login.tokens is not None
    bench.oauth.expire()
    credentials = bench.credentials()
    used = await credentials.token()
    ended: list[bool] = []

    async def call() -> None:
        ended.append(await bench.call(credentials))

    async with credentials.at_work(), anyio.create_task_group() as group, bench.store.locked(bench.key):
        group.start_soon(partial(credentials.renew, used, status=403, challenge=lacks("write")))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
    kept = await bench.kept()
    assert ended == [True]
    assert kept.wanted == ("write",)
    assert kept.tokens != login.tokens


# -- what to do


@pytest.mark.parametrize(
    ("auth", "challenge", "mend"),
    [
        (
            None,
            "",
            "it wants credentials: log in with `toolbay login 'my server'`, or set an Authorization header in `headers` of my server",
        ),
        (None, 'Basic realm="x"', "it wants credentials: set an Authorization header in `headers` of my server"),
        (None, "Bearer", "it wants a login: log in with `toolbay login 'my server'`"),
        (None, 'X resource_metadata="https://example.org/"', "it wants a login: log in with `toolbay login 'my server'`"),
        ({"type": "oauth"}, "", "it wants a login: log in with `toolbay login 'my server'`"),
        (
            {"type": "client_credentials", "client_id": "x", "client_secret": "canary-secret"},
            "",
            "it wants a login, and the program has not logged in by itself yet: try again",
        ),
    ],
)
def test_who_never_logged_in_is_told_what_the_server_takes(auth: dict[str, str] | None, challenge: str, mend: str) -> None:
    """H4: the command is one that can be copied into a shell."""
    config = ServerConfig.model_validate({"type": "streamableHttp", "url": "https://example.org/mcp", "auth": auth})
    credentials = Credentials("my server", config, store=Memory(), on_secrets=lambda _: None)
    assert credentials.mend(status=401, challenge=challenge) == mend


async def test_who_lacks_a_scope_without_a_login_is_told_to_log_in(bench: Bench) -> None:
    """H4: a server that lets everybody in, but not to everything."""
    credentials = bench.credentials()
    assert not await credentials.renew("", status=403, challenge=lacks("write"))
    said = "it wants a login with the scope write: log in with `toolbay login s`"
    assert credentials.mend(status=403, challenge=lacks("write")) == said
