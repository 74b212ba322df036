"""The fault matrix, logins: tokens that end, are refused, or cannot be renewed, and what is kept of them (H4, G4)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from faults.harness import FAULTY, Allowance, Bay, case
from faults.web import CROWD, ERAS, LOOPBACK, PATIENCE, Era, many, timed
from servers.raw_http import RawHttp, Request, Step
from servers.raw_oauth import RawOAuth
from servers.raw_sse import RawSse
from support.canaries import assert_clean
from support.logins import Agreeing, logged_in_before
from support.processes import eventually
from toolbay.auth.logins import Logins
from toolbay.auth.records import Login
from toolbay.auth.store import Files, key
from toolbay.config import data_home
from toolbay.config.models import ServerConfig
from toolbay.types import Outcome

pytestmark = pytest.mark.anyio

Way = Literal["legacy", "modern", "sse"]
WAYS = pytest.mark.parametrize("way", ["legacy", "modern", "sse"])
LOGIN = "log in.* `toolbay login faulty`"
ROBOT = {"type": "client_credentials", "clientId": "robot", "clientSecret": "canary-robot"}
SOON = {"firstDelay": 0.05, "maxDelay": 0.2, "maxAttempts": 1000}


@dataclass
class Guarded:
    """A protected server, and the authorization server that knows who may come in."""

    oauth: RawOAuth
    server: RawHttp | RawSse
    auth: dict[str, Any] | None = None
    """A program's own is told who gave its secret."""
    tool_timeout: float = PATIENCE
    calls: list[str] = field(default_factory=list[str])
    """The tokens that calls were brought with, let through or not."""

    @property
    def store(self) -> Files:
        return Files(data_home(os.environ) / "logins")

    @property
    def entry(self) -> dict[str, Any]:
        url, sse = self.server.url, isinstance(self.server, RawSse)
        where = {"type": "sse", "url": f"{url}/sse"} if sse else {"type": "streamableHttp", "url": url}
        return {
            **where,
            "ssrfWhitelist": LOOPBACK,
            "toolTimeout": self.tool_timeout,
            "restart": SOON,
            **({"auth": {"issuer": self.oauth.issuer, **self.auth} if "clientSecret" in self.auth else self.auth} if self.auth else {}),
        }

    @property
    def config(self) -> ServerConfig:
        return ServerConfig.model_validate(self.entry)

    @property
    def file(self) -> Path:
        return data_home(os.environ) / "logins" / f"{key(FAULTY, self.config)}.json"

    async def logged_in(self, *scopes: str, name: str = FAULTY, **more: Any) -> Login:
        return await logged_in_before(self.store, self.oauth, name, self.config, *scopes, **more)

    async def kept(self, name: str = FAULTY) -> Login:
        login = await self.store.load(key(name, self.config))
        assert login is not None
        return login

    def watch_calls(self) -> None:
        inner = self.server.door
        assert inner is not None

        async def door(request: Request) -> Step | None:
            if b"tools/call" in request.body:
                self.calls.append(request.headers.get("authorization", "").removeprefix("Bearer "))
            return await inner(request)

        self.server.door = door

    def refuse_all(self, *, status: int = 401, challenge: str = 'Bearer error="invalid_token"') -> None:
        """Whatever is brought, calls are denied from now on."""
        inner = self.server.door
        assert inner is not None

        async def door(request: Request) -> Step | None:
            found = await inner(request)
            denied = Step(kind="status", status=status, headers={"WWW-Authenticate": challenge})
            return denied if b"tools/call" in request.body or found is not None else None

        self.server.door = door


@asynccontextmanager
async def guarded(way: Way, *, auth: dict[str, Any] | None = None) -> AsyncGenerator[Guarded]:
    async with AsyncExitStack() as stack:
        oauth = await stack.enter_async_context(RawOAuth())
        if way == "sse":
            server = await stack.enter_async_context(RawSse().running())
        else:
            server = await stack.enter_async_context(RawHttp(era=way))
        oauth.protect(server)
        made = Guarded(oauth, server, auth)
        made.watch_calls()
        yield made


@asynccontextmanager
async def suffering(row: str, fault: str, way: Way, made: Guarded, *, allowance: Allowance = Allowance()) -> AsyncGenerator[Bay]:  # noqa: B008 - it is frozen
    async with case(row, f"{fault} ({way})", made.entry, allowance=allowance) as bay:
        bay.counted = lambda _: made.server.effects
        yield bay


# -- H4: tokens that end ----------------------------------------------------------------------------------------------


@WAYS
async def test_h4_a_token_that_has_ended_is_renewed_once_for_a_hundred_callers(way: Way) -> None:
    """H4: 401 for a hundred callers: one refresh, each call executed exactly once, and none of them sees anything of it."""
    async with guarded(way) as made:
        await made.logged_in()
        async with suffering("H4", "an expired token, 100 callers", way, made, allowance=CROWD) as bay:
            assert bay.state() == "ready", bay.error()
            await bay.well("note")
            made.oauth.expire()
            for result in await many(bay, 100, "note"):
                assert not result.is_error, result.text
            assert made.oauth.refreshes == 1
            assert made.server.effects["note"] == 101
            assert bay.states() == ["connecting", "ready"]
            assert made.oauth.guards((await made.kept()).tokens.access)  # type: ignore[union-attr]


@WAYS
async def test_h4_a_token_that_is_known_to_have_ended_is_not_tried(way: Way) -> None:
    """H4: what is known to end needs no refusal: nothing is denied at all."""
    async with guarded(way) as made:
        await made.logged_in(ends_in=-1.0)
        made.oauth.expire()
        async with suffering("H4", "a token that is known to have ended", way, made, allowance=CROWD) as bay:
            for result in await many(bay, 100, "note"):
                assert not result.is_error, result.text
            assert (made.oauth.refreshes, made.oauth.denied) == (1, [])


@WAYS
async def test_h4_a_server_that_refuses_fresh_tokens_is_not_asked_for_ever(way: Way) -> None:
    """H4: a 401 loop: one re-send for each call, then a state that says what to do; nothing took effect."""
    async with guarded(way) as made:
        await made.logged_in()
        async with suffering("H4", "401 for fresh tokens", way, made, allowance=CROWD) as bay:
            await bay.well("note")
            made.refuse_all()
            made.calls.clear()
            for result in await many(bay, 20, "note"):
                bay.told(result, Outcome.NOT_EXECUTED, "401", "toolbay login faulty")
            assert 20 < len(made.calls) <= 40
            assert made.oauth.refreshes <= 3
            await bay.reaches("needs_auth")
            assert "it refuses the token that" in bay.error()
            asked = len(made.oauth.forms)
            result, took = await timed(lambda: bay.call("note"))
            bay.told(result, Outcome.NOT_EXECUTED, "toolbay login faulty")
            assert took < 1
            await anyio.sleep(1.2)  # it is not asked again for what was written here
            assert (len(made.oauth.forms), bay.state()) == (asked, "needs_auth")


@WAYS
async def test_h4_a_login_that_has_ended_is_told_and_the_next_one_is_taken_up(way: Way) -> None:
    """H4: refresh refused (invalid_grant): asked once, told with the command that mends it; who logs in elsewhere need do no more."""
    async with guarded(way) as made:
        await made.logged_in()
        async with suffering("H4", "the refresh is refused", way, made, allowance=CROWD) as bay:
            await bay.well("note")
            made.oauth.expire()
            made.oauth.end()
            for result in await many(bay, 100, "note"):
                bay.told(result, Outcome.NOT_EXECUTED, "invalid_grant", LOGIN)
            assert len(made.oauth.forms) == 1
            await bay.reaches("needs_auth")
            assert (await made.kept()).tokens is None
            await Logins(made.store).login(FAULTY, made.config, Agreeing())
            await bay.reaches("ready")
            await bay.well("note")
            assert bay.states() == ["connecting", "ready", "needs_auth", "connecting", "ready"]


@WAYS
async def test_h4_a_login_that_is_missing_from_the_start_is_told(way: Way) -> None:
    """H4: nobody has logged in: one state with its mend, and two requests."""
    async with guarded(way) as made, suffering("H4", "no login", way, made) as bay:
        assert bay.state() == "needs_auth"
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, f"it wants a login: {LOGIN}")
        assert (len(made.oauth.denied), made.oauth.forms) == (1, [])
        await bay.app.login(FAULTY, Agreeing())
        await bay.reaches("ready")
        await bay.well("note")


@WAYS
async def test_h4_a_scope_that_a_person_must_grant_costs_one_call(way: Way) -> None:
    """H4: 403 insufficient_scope: told once, not sent again; the next login asks for it, and the other tools go on."""
    async with guarded(way) as made:
        await made.logged_in("notes:read")
        made.oauth.needs = {"note": ("notes:write",)}
        async with suffering("H4", "403 insufficient_scope, a person's login", way, made) as bay:
            await bay.well("echo")
            for _ in range(3):
                made.calls.clear()
                result = await bay.call("note")
                bay.told(result, Outcome.NOT_EXECUTED, "403", "lacks the scope notes:write", LOGIN)
                assert len(made.calls) == 1
            await bay.well("echo")
            assert (await made.kept()).wanted == ("notes:write",)
            assert (bay.states(), made.oauth.forms) == (["connecting", "ready"], [])
            person = Agreeing()
            await bay.app.login(FAULTY, person)
            assert made.oauth.authorizations[-1]["scope"].split() == ["notes:read", "notes:write"]
            await bay.well("note")


@ERAS
async def test_h4_a_program_of_its_own_asks_for_the_scope_that_is_missing(era: Era) -> None:
    """H4: 403 insufficient_scope, client credentials: one more token for a hundred callers, for what it has and what it lacks."""
    async with guarded(era, auth=ROBOT) as made:
        made.oauth.scopes = ("notes:read",)
        made.oauth.know("robot", "canary-robot")
        made.oauth.needs = {"note": ("notes:write",)}
        async with suffering("H4", "403 insufficient_scope, a program's login", era, made, allowance=CROWD) as bay:
            await bay.well("echo")
            for result in await many(bay, 100, "note"):
                assert not result.is_error, result.text
            assert [form["scope"].split() for form in made.oauth.forms] == [["notes:read"], ["notes:read", "notes:write"]]
            assert made.server.effects["note"] == 100


@ERAS
async def test_h4_a_scope_that_is_never_granted_is_not_asked_for_ever(era: Era) -> None:
    """H4: step-up is bounded: the same scopes are asked for once, and other ones three times."""
    async with guarded(era, auth=ROBOT) as made:
        made.oauth.know("robot", "canary-robot")
        made.oauth.grants_only = ("nothing",)
        async with suffering("H4", "403 insufficient_scope without end", era, made) as bay:
            for number in range(6):
                made.oauth.needs = {"note": (f"notes:{number}",)}
                for _ in range(2):
                    made.calls.clear()
                    bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "403", f"lacks the scope notes:{number}")
                    assert len(made.calls) <= 2
            assert len(made.oauth.forms) <= 1 + 3
            await bay.well("echo")
            assert bay.states() == ["connecting", "ready"]


@pytest.mark.parametrize("trouble", ["503", "reset", "gone"])
@WAYS
async def test_h4_tokens_that_cannot_be_had_now_are_had_later(way: Way, trouble: str) -> None:
    """H4: the token endpoint is down: not executed, told why, and it comes back by itself with nobody doing anything."""
    async with guarded(way) as made:
        await made.logged_in()
        async with suffering("H4", f"the token endpoint is down: {trouble}", way, made) as bay:
            bay.servers[FAULTY]["toolTimeout"] = 1.0
            await bay.start()
            await bay.well("note")
            made.oauth.expire()
            port = made.oauth.port
            if trouble == "gone":
                await made.oauth.stop()
            else:
                made.oauth.steps["token"] = [Step(kind="reset") if trouble == "reset" else Step(kind="status", status=503)]
            result = await bay.call("note")
            bay.told(result, Outcome.NOT_EXECUTED, "could not be renewed")
            assert bay.state() in ("waiting", "connecting")
            made.oauth.steps.clear()
            if trouble == "gone":
                made.oauth.port = port
                await made.oauth.start()
            await bay.reaches("ready")
            await bay.well("note")
            assert made.oauth.refreshes == 1
            assert (await made.kept()).tokens is not None


@ERAS
async def test_h4_what_was_renewed_lives_on_though_its_caller_has_left(era: Era) -> None:
    """H4, C1: a refresh that was begun is carried to its end: the token that it took counts once, and the next caller has the other."""
    async with guarded(era) as made:
        await made.logged_in()
        async with suffering("H4", "the caller leaves during the refresh", era, made) as bay:
            await bay.well("note")
            made.oauth.expire()
            made.oauth.steps["token"] = [Step(wait=True), Step()]
            with anyio.move_on_after(10) as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(bay.call, "note")
                    await eventually(lambda: bool(made.oauth.forms), "the refresh")
                    group.cancel_scope.cancel()
            assert not scope.cancelled_caught
            made.oauth.gate.set()
            await bay.well("echo")
            assert (made.oauth.refreshes, made.server.effects["note"]) == (1, 1)


# -- G4: what is kept of logins ---------------------------------------------------------------------------------------


DAMAGES = {
    "empty": b"",
    "half a file": None,
    "no JSON": b"\x00\xff canary-not-json",
    "another version": b'{"version": 99}',
    "a list": b"[]",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_g4_a_damaged_file_costs_its_own_server_only(damage: str) -> None:
    """G4: that server needs a login and says why; the file stays as it is until there is one; all others are fine."""
    async with guarded("legacy") as made, guarded("modern") as other:
        await made.logged_in()
        await other.logged_in(name="other")
        whole = made.file.read_bytes()
        data = whole[: len(whole) // 2] if (given := DAMAGES[damage]) is None else given
        made.file.write_bytes(data)
        async with case("G4", f"the file of a login is damaged: {damage}", {FAULTY: made.entry, "other": other.entry}) as bay:
            bay.counted = lambda server: (made if server == FAULTY else other).server.effects
            assert (bay.state(), bay.state("other")) == ("needs_auth", "ready")
            bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "what is kept of the login cannot be used", LOGIN)
            assert_clean(bay.error(), "the state's error")
            await bay.well("note", server="other")
            await bay.start()
            assert made.file.read_bytes() == data
            await Logins(made.store).login(FAULTY, made.config, Agreeing())
            await bay.reaches("ready")
            await bay.well("note")


async def test_g4_a_file_that_is_damaged_while_its_server_runs_ends_nothing() -> None:
    """G4: what is known goes on; when it has to be renewed, it is, and what is on the disk is whole again."""
    async with guarded("modern") as made:
        await made.logged_in()
        async with suffering("G4", "the file is damaged while its server runs", "modern", made) as bay:
            await bay.well("note")
            made.file.write_bytes(b"{")
            await bay.well("note")
            assert made.file.read_bytes() == b"{"
            made.oauth.expire()
            await bay.well("note")
            assert made.oauth.guards((await made.kept()).tokens.access)  # type: ignore[union-attr]
            assert bay.states() == ["connecting", "ready"]


PROGRAMS = 3


@ERAS
async def test_g4_of_programs_that_renew_at_once_one_does(era: Era, tmp_path: Path) -> None:
    """G4: several processes are refused at the same moment: the authorization server sees one refresh, and all of them go on.

    Its refresh tokens count once: a second one with the same would end the login for all.
    """
    async with guarded(era) as made:
        await made.logged_in()
        config = tmp_path / "toolbay.json"
        made.tool_timeout = 60.0  # programs take their time to start
        config.write_text(json.dumps({"mcpServers": {FAULTY: made.entry}}))
        async with suffering("G4", "several processes renew at once", era, made, allowance=CROWD) as bay:
            await bay.well("note")
            made.oauth.expire()
            made.oauth.steps["token"] = [Step(wait=True)]
            results: list[tuple[int, str]] = []

            async def program() -> None:
                command = ["-m", "toolbay", "--config", str(config), "call", f"{FAULTY}.echo", "text=from a program"]
                pipe = asyncio.subprocess.PIPE
                child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
                try:
                    output, _ = await child.communicate()
                finally:
                    if child.returncode is None:
                        child.kill()
                        with anyio.CancelScope(shield=True):
                            await child.wait()
                results.append((child.returncode or 0, assert_clean(output.decode(), "the output of a program")))

            async with anyio.create_task_group() as group:
                group.start_soon(bay.well, "note")
                for _ in range(PROGRAMS):
                    group.start_soon(program)
                await eventually(lambda: len(made.oauth.denied) == 1 + PROGRAMS, "all of them being refused", 60)
                assert len(made.oauth.forms) == 1
                made.oauth.gate.set()
            assert [code for code, _ in results] == [0] * PROGRAMS, results
            assert all("from a program" in output for _, output in results)
            assert (made.oauth.refreshes, len(made.oauth.forms)) == (1, 1)
            assert made.server.effects == {"note": 2, "echo": PROGRAMS}
            assert made.oauth.guards((await made.kept()).tokens.access)  # type: ignore[union-attr]
            await bay.well("note")
