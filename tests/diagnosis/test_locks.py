"""Servers that want a login, looked at with the login that there is: none, one that ended, that is too small, that is not renewed."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.patients import only, the_error
from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from support import servers
from support.logins import Agreeing, Guarded, logged_in_before
from support.processes import eventually
from toolbay.auth.flow import logged_in
from toolbay.auth.logins import Logins, LoginStatus
from toolbay.auth.records import Login
from toolbay.auth.store import Files, Memory, key
from toolbay.config.models import ServerConfig
from toolbay.diagnosis import locks
from toolbay.diagnosis.answers import Answer
from toolbay.diagnosis.findings import Examination, Level, Notes, Report, Verdict
from toolbay.diagnosis.reaching import approach, listen

pytestmark = pytest.mark.anyio

URL = "https://weather.example/mcp"
TOKEN = "canary-by-hand"


class Scene(Guarded):
    async def login(self, **auth: Any) -> Login:
        return await logged_in("s", self.config(**auth), store=self.store, person=Agreeing(), now=time.time)

    async def change(self, **fields: Any) -> None:
        login = await self.kept()
        assert login is not None
        await self.store.save(key("s", self.config()), replace(login, **fields))

    async def kept(self, **auth: Any) -> Login | None:
        return await self.store.load(key("s", self.config(**auth)))

    async def looked_at(self, **auth: Any) -> Report:
        return await only({**self.server.entry, **({"auth": auth} if auth else {})}, store=self.store)


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        yield Scene(oauth=oauth, server=server, store=Memory())


async def test_a_server_is_looked_at_with_the_login_that_there_is() -> None:
    """TRA-3: as an App would; how one is logged in is told, and no token is."""
    async with scene() as here:
        here.oauth.needs = {"": ("files:read",)}
        here.oauth.challenge_names.add("scope")
        login = await here.login()
        report = await here.looked_at()
        assert report.verdict is Verdict.FINE, report.findings
        assert report.login is not None
        assert locks.described(report.login) == f"logged in at {here.oauth.issuer} for files:read, renewed by itself"
        told = Examination(reports=(report,)).as_json()["servers"][0]["login"]
        assert (told["logged_in"], told["issuer"], list(told["scopes"])) == (True, here.oauth.issuer, ["files:read"])
        assert told["ends_at"] > time.time()
        assert here.oauth.denied.count("") == 1  # by the login itself
        assert not any(secret in str(report) for secret in login.secrets)


async def test_who_has_not_logged_in_is_told_the_command() -> None:
    """TRA-3: 401 with a challenge that a login answers."""
    async with scene() as here:
        finding = the_error(await here.looked_at())
    assert "wants credentials" in finding.what
    assert finding.why.endswith("nobody has logged in yet")
    assert finding.mend.startswith("log in: toolbay login s; or")
    assert "WWW-Authenticate: Bearer resource_metadata=" in finding.shown[0]


def test_where_others_could_read_it_a_login_is_no_advice_and_https_is() -> None:
    """TRA-3, SEC: RFC 6750, 5.3: nobody is told to put a token into a header there, either."""
    url = "http://mcp.example.org/mcp"
    answer, notes = Answer(url=url, status=401, headers={"www-authenticate": "Bearer"}), Notes(server="s")
    config = ServerConfig.model_validate({"type": "streamableHttp", "url": url})
    locks.tell("s", config, answer, notes, standing=LoginStatus(logged_in=False), credentials=None)
    mend = the_error(notes).mend
    assert "https://" in mend
    assert "toolbay login s" in mend
    assert "headers" not in mend


@pytest.mark.parametrize("told", [True, False])
async def test_a_lock_without_a_word_is_looked_at_further(told: bool) -> None:
    """TRA-3: 401 without WWW-Authenticate: a login is found at the well-known address, or may be; the header is named as well."""
    async with scene() as here:
        here.oauth.challenge = ""
        here.oauth.prm_at = {"root"} if told else set()
        finding = the_error(await here.looked_at())
        where = "it does not say what for, but tells at /.well-known/oauth-protected-resource how to log in"
        assert (where in finding.why) is told
        assert finding.mend.startswith("log in: toolbay login s; or, if you were given a token, put it into `headers`")
        if told:
            assert await here.login()


async def test_a_lock_of_another_kind_is_opened_by_a_header() -> None:
    """TRA-3: no login answers Basic."""
    async with scene() as here:
        here.oauth.challenge = 'Basic realm="x"'
        finding = the_error(await here.looked_at())
    assert finding.mend.startswith("put a token into `headers`")
    assert "login" not in finding.text


async def test_a_login_that_has_ended_is_told_with_its_reason() -> None:
    """TRA-3, H4: the authorization server no longer renews it; the next look does not ask again."""
    async with scene() as here:
        await here.login()
        here.oauth.end()
        for _ in range(2):
            finding = the_error(await here.looked_at())
            assert re.search(r"; the login ended at \d{4}-\d\d-\d\d \d\d:\d\d UTC \(.*invalid_grant", finding.why)
            assert finding.mend == "log in again: toolbay login s"
        assert len([form for form in here.oauth.forms if form["grant_type"] == "refresh_token"]) == 1


async def test_a_token_that_ran_out_and_cannot_be_renewed_is_told_with_its_time() -> None:
    """TRA-3: since when, where nothing was given to renew it with."""
    async with scene() as here:
        here.oauth.refreshable = False
        login = await here.login()
        assert login.tokens is not None
        notes = Notes(server="s")
        await here.change(tokens=replace(login.tokens, ends_at=1_700_000_000.0))
        logins = Logins(here.store)
        standing = await logins.standing("s", here.config())
        answer = Answer(url=URL, status=401, headers={"www-authenticate": "Bearer"})
        locks.tell("s", here.config(), answer, notes, standing=standing, credentials=logins.of("s", here.config()))
    assert "the login ended at 2023-11-14 22:13 UTC, and nothing was given to renew it with" in the_error(notes).why


async def test_a_look_that_is_broken_off_ends_no_login() -> None:
    """H4, TRA-3: a token that is being renewed then is kept: the authorization server takes the one before no more."""
    async with scene() as here:
        config, notes = here.config(), Notes(server="s")
        login = await logged_in_before(here.store, here.oauth, "s", config)
        here.oauth.expire()
        here.oauth.steps["refresh_token"] = [Step(wait=True)]
        reach = await approach(config, notes)
        async with anyio.create_task_group() as group:
            group.start_soon(listen, "s", config, Logins(here.store), reach, notes)
            await eventually(lambda: bool(here.oauth.forms), "the renewal being under way")
            group.cancel_scope.cancel()
            here.oauth.gate.set()
        await eventually(lambda: here.oauth.refreshes == 1, "the rotation")
    kept = await here.kept()
    assert kept is not None
    assert kept.tokens is not None
    assert login.tokens is not None
    assert kept.tokens.refresh != login.tokens.refresh


async def test_a_login_that_is_too_small_is_told_with_what_it_lacks() -> None:
    """TRA-3, H4: 403 for a scope that it does not hold for; the next login asks for it."""
    async with scene() as here:
        await here.login()
        here.oauth.needs = {"": ("files:write",)}
        finding = the_error(await here.looked_at())
        assert "refuses access" in finding.what
        assert finding.why.endswith("the login lacks the scope files:write")
        assert finding.mend == "toolbay login s asks for it as well"
        assert (await here.login()).tokens is not None
        assert (await here.looked_at()).ready


async def test_a_tool_that_wanted_more_is_remembered_for_people() -> None:
    """TRA-3: the server works, and one of its tools has asked for a scope since."""
    async with scene() as here:
        await here.login()
        await here.change(wanted=("files:write",))
        report = await here.looked_at()
    (finding,) = report.findings
    assert (finding.level, finding.what) == (Level.WARNING, "the login with it lacks the scope files:write")
    assert finding.mend == "toolbay login s asks for it as well"


async def test_an_authorization_server_that_cannot_be_asked_is_no_lost_login() -> None:
    """TRA-3, H4: a renewal that may come about later is told as such, and the login stays."""
    async with scene() as here:
        await here.login()
        here.oauth.expire()
        here.oauth.steps = {"token": [Step(kind="status", status=503)] * 9}
        finding = the_error(await here.looked_at())
        assert finding.what.endswith("could not be asked with its login")
        assert "503" in finding.why
        assert finding.mend.startswith("try again later; ")
        login = await here.kept()
        assert login is not None
        assert login.tokens is not None


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ('Negotiate, Bearer realm="a \\"b\\""', 'it asks for Negotiate or Bearer (realm a "b")'),
        (f"Bearer {'a' * 60_000}", "it asks for Bearer"),
        (f'Bearer realm="{"a " * 8_000}"', "it asks for Bearer (realm a a a a"),
        ('Basic realm="x", charset="UTF-8", Digest realm="y"', "it asks for Basic or Digest (realm x)"),
    ],
)
async def test_a_challenge_is_read_as_it_is_meant_and_in_no_time(header: str, says: str) -> None:
    """TRA-3, SEC: attack 18: RFC 9110, 11.6.1, however long it is."""
    async with scene() as here:
        here.oauth.challenge = header
        began = time.process_time()
        finding = the_error(await here.looked_at())
        assert says in finding.why
        assert len(finding.text) < 4_000
        assert time.process_time() - began < 10, "a quadratic one takes minutes"


async def test_a_program_that_cannot_log_in_by_itself_is_told_why() -> None:
    """TRA-3: `client_credentials` with a secret that the authorization server does not take; the secret is not told."""
    async with scene() as here:
        here.oauth.know("robot", "canary-right")
        auth = {"type": "client_credentials", "clientId": "robot", "clientSecret": "canary-wrong"}
        finding = the_error(await here.looked_at(**auth))
        assert f'the server names {here.oauth.issuer}; if that is who gave the client, set `auth: {{issuer: "' in finding.why
        assert finding.mend == "set `issuer` in its `auth`, to the authorization server that gave `clientId` and `clientSecret`"
        assert here.oauth.forms == [], "nobody has said that it may have the secret"
        auth["issuer"] = here.oauth.issuer
        finding = the_error(await here.looked_at(**auth))
        assert "the program could not log in by itself: correct `auth` of s (" in finding.why
        assert "invalid_client" in finding.why
        assert finding.mend == "correct `clientId` and `clientSecret` in its `auth`; where they are right, `scopes` and `issuer`"
        assert "canary" not in finding.text
        report = await here.looked_at(**{**auth, "clientSecret": "canary-right"})
    assert report.ready
    assert report.login is not None
    assert report.login.logged_in


@pytest.mark.parametrize(("auth", "said"), [("none", "or take `auth: none` away, and log in with toolbay login s"), (None, "")])
async def test_who_does_not_want_a_login_is_told_where_a_token_goes(auth: Any, said: str) -> None:
    """TRA-3: `auth: none`, or a header that is not accepted."""
    async with scene() as here:
        more = {"auth": auth} if auth else {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        finding = the_error(await only({**here.server.entry, **more}, store=here.store))
    assert "login" not in finding.why
    assert said in finding.mend if auth else finding.mend.startswith("the Authorization header in `headers` is not accepted")


async def test_a_record_that_is_none_is_told_with_its_place(tmp_path: Any) -> None:
    """G4: a file that was damaged costs the login, and says which file."""
    async with scene() as here:
        here.store = Files(tmp_path)
        await here.login()
        (file,) = tmp_path.glob("*.json")
        file.write_text("{")
        finding = the_error(await here.looked_at())
    assert str(file) in finding.why
    assert finding.mend == "log in again: toolbay login s"


names = st.lists(st.sampled_from(["a:read", "b:write", "c"]), max_size=3).map(tuple)


@given(
    st.sampled_from([401, 403]),
    st.text(max_size=80) | st.sampled_from(['Bearer error="insufficient_scope", scope="a:read d"', "Bearer", "Basic realm=x"]),
    st.builds(
        LoginStatus,
        logged_in=st.booleans(),
        ends_at=st.none() | st.floats(),
        scopes=st.none() | names,
        ended=st.sampled_from(["", "invalid_grant: it was taken back"]),
        ended_at=st.none() | st.floats(),
        wanted=names,
        issuer=st.just("https://login.example"),
    ),
    st.sampled_from([None, "none", "oauth", {"type": "client_credentials", "clientId": "a", "clientSecret": "canary-c"}]),
    st.booleans(),
)
def test_any_challenge_is_a_lock(status: int, challenge: str, standing: LoginStatus, auth: Any, header: bool) -> None:
    """TRA-3: WWW-Authenticate is written by strangers, and a record may say anything; there is one error with a mend."""
    config = servers.config({"type": "streamableHttp", "url": URL, "auth": auth, "headers": {"Authorization": TOKEN} if header else {}})
    notes = Notes(server="s")
    answer = Answer(url=URL, status=status, headers={"www-authenticate": challenge})
    locks.tell("s", config, answer, notes, standing=standing, credentials=Logins(Memory()).of("s", config))
    finding = the_error(notes)
    assert f"HTTP {status}" in finding.why
    assert "canary" not in finding.text
    assert isinstance(locks.described(standing), str)
