"""Requests with a token: where it goes, what follows a refusal, and what the ledger says meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest

from servers.raw_http import RawHttp, Request, Step
from servers.raw_sse import RawSse
from support.connections import Link, linked
from support.processes import eventually
from toolbay.errors import AuthRequired, CallTimeout, Refused
from toolbay.events import ServerChanged
from toolbay.net import http
from toolbay.upstream import faults
from toolbay.upstream.authorized import Authorized
from toolbay.upstream.engines import official, with_credentials
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.statuses import MEND as MEND_OF
from toolbay.upstream.statuses import refused_status

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = "canary-token-1", "canary-token-2", "canary-token-3"
EXPIRED = 'Bearer error="invalid_token"'
LACKING = 'Bearer error="insufficient_scope", scope="notes:write"'
MEND = "the wallet says what to do"
SOON = {"first_delay": 0.01, "max_delay": 0.05, "max_attempts": 100}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@dataclass
class Wallet:
    """Scripted credentials: a token now, and the next ones."""

    now: str = FIRST
    further: list[str | Refused] = field(default_factory=list[str | Refused])
    """What renewals come to, in order; after the last one there is none."""
    asked: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    """What was renewed: the token, the status, the challenge."""
    gate: anyio.Event | None = None
    """Renewals wait for it."""
    down: bool = False
    """Whether tokens are to be renewed before they are used, which nobody can."""
    work: list[str] = field(default_factory=list[str])
    whose: str = "ada's"

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        self.work.append("begun")
        yield
        self.work.append("ended")

    async def token(self) -> str:
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise Refused("auth.example refused the connection")
        return self.now

    async def renew(self, refused: str, *, status: int, challenge: str) -> bool:
        self.asked.append((refused, status, challenge))
        if self.gate is not None:
            await self.gate.wait()
        await anyio.lowlevel.checkpoint()
        if refused != self.now:
            return True
        if not self.further:
            return False
        following = self.further.pop(0)
        if isinstance(following, Refused):
            raise following
        self.now = following
        return True

    def mend(self, *, status: int, challenge: str) -> str:
        return f"{MEND} ({status})"


@dataclass
class Door:
    """Lets through who brings one of these tokens."""

    valid: set[str]
    refusal: Step = field(default_factory=lambda: Step(kind="status", status=401, headers={"WWW-Authenticate": EXPIRED}))
    seen: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Method and Authorization header of every request."""
    only: bytes = b""
    """Only requests with this in them are looked at."""

    async def __call__(self, request: Request) -> Step | None:
        await anyio.lowlevel.checkpoint()
        brought = request.headers.get("authorization", "")
        self.seen.append((request.method, brought))
        return None if brought.removeprefix("Bearer ") in self.valid or self.only not in request.body else self.refusal

    @property
    def brought(self) -> list[str]:
        return [token for _, token in self.seen]


@asynccontextmanager
async def guarded(wallet: Wallet, *valid: str, era: Any = "legacy", **more: Any) -> AsyncGenerator[tuple[RawHttp, Door, Link]]:
    """A server that takes these tokens, and a connection with that wallet."""
    async with RawHttp(era=era) as server:
        door = server.door = Door(set(valid))
        engine = with_credentials(official, lambda _name, _config: wallet)
        async with linked(server.entry, open_engine=engine, restart=SOON, **more) as link:
            yield server, door, link


def said(error: str | Exception, *parts: str) -> None:
    assert isinstance(error, Exception), error
    for part in parts:
        assert part in str(error)


@ERAS
async def test_every_request_carries_the_token(era: Any) -> None:
    """TRA-1: posts, the stream that is listened to, and the end of a session; the work of renewals lasts as long as the client."""
    wallet = Wallet()
    async with guarded(wallet, FIRST, era=era) as (server, door, link):
        assert await link.call("note", {"text": "x"}) == "x"
        if era == "legacy":
            await eventually(lambda: server.listeners == 1, "the stream that is listened to")
        assert wallet.work == ["begun"]
    assert set(door.brought) == {f"Bearer {FIRST}"}
    assert {method for method, _ in door.seen} == ({"POST", "GET", "DELETE"} if era == "legacy" else {"POST"})
    assert wallet.work == ["begun", "ended"]
    assert not wallet.asked


@ERAS
async def test_a_session_goes_on_with_no_token_of_another_login(era: Any) -> None:
    """SEC: attack 26: what one person began carries nothing of another's: it ends, and the call is made once in a session of his own."""
    wallet = Wallet()
    async with guarded(wallet, FIRST, SECOND, era=era) as (server, door, link):
        assert await link.call("note", {"text": "x"}) == "x"
        began, door.seen[:] = server.sessions, []
        wallet.now, wallet.whose = SECOND, "bob's"
        assert await link.call("note", {"text": "x"}) == "x"
        assert set(door.brought) == {f"Bearer {SECOND}"}
        assert (server.effects["note"], server.sessions) == (2, began * 2)
        if era == "legacy":
            assert {headers.get("mcp-session-id") for headers in server.headers[-2:]} == {"session-2"}
    assert not wallet.asked


async def test_where_there_is_no_token_none_is_sent() -> None:
    """TRA-1: a server that wants none gets none, not even an empty one."""
    async with guarded(Wallet(""), "") as (_, door, link):
        assert await link.call("note", {"text": "x"}) == "x"
    assert set(door.brought) == {""}


@ERAS
async def test_a_call_whose_token_has_ended_is_sent_once_more_with_another(era: Any) -> None:
    """H4: 401 says that it was not carried out; the caller sees nothing of it."""
    wallet = Wallet(further=[SECOND])
    async with guarded(wallet, FIRST, era=era) as (server, door, link):
        door.valid = {SECOND}
        door.seen.clear()
        assert await link.call("note", {"text": "x"}) == "x"
        assert [brought for method, brought in door.seen if method == "POST"] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
        assert wallet.asked == [(FIRST, 401, EXPIRED)]
        assert server.effects == {"note": 1}
        assert link.heard.states == ["connecting", "ready"]


@ERAS
async def test_a_request_is_sent_twice_at_the_most(era: Any) -> None:
    """H4: a server that denies every token is told to need a login, in the words of who keeps the tokens."""
    wallet = Wallet(further=[SECOND, THIRD])
    async with guarded(wallet, FIRST, era=era) as (server, door, link):
        door.valid = set()
        error = await link.outcome("note")
        assert isinstance(error, AuthRequired)
        said(error, f"HTTP 401, {MEND} (401)")
        assert [token for _, token in door.seen][-2:] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
        assert not server.effects
        await link.reaches("needs_auth")
        said(link.connection.error or "", MEND)
        assert wallet.further == [THIRD]


@pytest.mark.parametrize("further", [[], [FIRST]], ids=["none", "the same"])
async def test_without_another_token_nothing_is_sent_again(further: list[str | Refused]) -> None:
    """H4: what does not hold is not brought twice."""
    wallet = Wallet(further=further)
    async with guarded(wallet, FIRST) as (_, door, link):
        door.valid, door.refusal = set(), Step(kind="status", status=401, body=b"gone away", headers={"WWW-Authenticate": "Bearer"})
        before = len(door.seen)
        said(await link.outcome("note"), MEND, "gone away")
        posts = [method for method, _ in door.seen[before:] if method == "POST"]
        assert len(posts) == 1


async def test_a_scope_that_is_missing_is_asked_for_and_another_403_is_not() -> None:
    """H4: insufficient_scope may be mended by another token; what is merely forbidden may not, and costs one call."""
    wallet = Wallet(further=[SECOND])
    async with guarded(wallet, FIRST) as (server, door, link):
        door.valid, door.only = {SECOND}, b"tools/call"
        door.refusal = Step(kind="status", status=403, headers={"WWW-Authenticate": LACKING})
        assert await link.call("note", {"text": "x"}) == "x"
        assert wallet.asked == [(FIRST, 403, LACKING)]
        door.valid = set()
        said(await link.outcome("note"), f"HTTP 403, {MEND} (403)")
        door.refusal = Step(kind="status", status=403)
        said(await link.outcome("note"), "answered HTTP 403, access was denied")
        assert len(wallet.asked) == 2
        assert server.effects == {"note": 1}
        assert link.heard.states == ["connecting", "ready"]


@ERAS
async def test_a_call_waits_for_a_token_that_cannot_be_had_at_once(era: Any) -> None:
    """H4, CAL-3: who gives tokens cannot be reached: what was denied was not sent, and is sent on the next session."""
    wallet = Wallet(further=[Refused("auth.example refused the connection"), SECOND])
    async with guarded(wallet, FIRST, era=era, retry="never") as (server, door, link):
        door.valid = {SECOND}
        assert await link.call("note", {"text": "x"}) == "x"
        assert server.effects == {"note": 1}
        assert link.heard.states == ["connecting", "ready", "waiting", "connecting", "ready"]
        waiting = [event for event in link.heard.events if isinstance(event, ServerChanged)][2]
        assert "auth.example refused the connection" in waiting.error


async def test_a_server_whose_tokens_cannot_be_renewed_comes_up_by_itself_later() -> None:
    """H4: before the first request already."""
    wallet = Wallet(down=True)
    async with guarded(wallet, FIRST) as (_, door, link):
        assert link.state == "waiting"
        said(link.connection.error or "", "auth.example refused the connection")
        assert not door.seen
        wallet.down = False
        await link.reaches("ready")


@ERAS
async def test_a_caller_who_leaves_while_a_token_is_fetched_is_told_the_truth(era: Any) -> None:
    """CAL-3, C1: what was denied was not carried out; it is not sent once its caller has gone, and there is nothing to cancel."""
    wallet = Wallet(further=[SECOND])
    async with guarded(wallet, FIRST, era=era) as (server, door, link):
        door.valid, wallet.gate = {SECOND}, anyio.Event()
        error = await link.outcome("note", patience=0.3)
        assert isinstance(error, CallTimeout)
        assert not error.sent
        wallet.gate.set()
        assert await link.call("echo", {"text": "on"}) == "on"
        assert server.effects == {"echo": 1}
        assert not server.cancelled


@pytest.mark.parametrize("name", ["localhost", "127.0.0.2"])
async def test_a_token_goes_to_its_server_only(name: str) -> None:
    """SEC: attack 8: another origin gets no token, and its refusal asks for none."""
    async with RawHttp() as server, RawHttp(host="127.0.0.2" if name == "127.0.0.2" else "127.0.0.1") as other:
        wallet, seen = Wallet(), Door(set())
        server.door = other.door = seen
        policy = http.policy_for(server.url, whitelist=("127.0.0.0/8",))
        ledger = Ledger()

        def wrap(inner: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
            return Authorized(inner, wallet, home=http.target(server.url), ledger=ledger)

        async with http.client(wrap=wrap, policy=policy) as client:
            for address in (other.at(name), server.at("127.0.0.1").replace("127.0.0.1", "localhost")):
                assert (await client.post(address, content=b"{}")).status_code == 401
            assert (seen.brought, wallet.asked) == (["", ""], [])
            assert (await client.post(server.url, content=b"{}")).status_code == 401
            assert (seen.brought[2:], len(wallet.asked)) == ([f"Bearer {FIRST}"], 1)


class Wire(httpx2.AsyncBaseTransport):
    """Refuses everything, and keeps what it was given."""

    def __init__(self) -> None:
        self.brought: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.brought.append(request.headers.get("Authorization", ""))
        return httpx2.Response(401, headers={"WWW-Authenticate": EXPIRED}, request=request)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://example.org/mcp", False),
        ("http://10.0.0.5/mcp", False),
        ("http://localhost.example.org/mcp", False),
        ("https://example.org/mcp", True),
        ("http://127.0.0.1:8000/mcp", True),
        ("http://localhost/mcp", True),
    ],
)
async def test_a_token_does_not_go_in_clear_through_a_network(url: str, sent: bool) -> None:
    """SEC: RFC 6750, 5.3: whoever is on the way could use it; its refusal asks for none."""
    wire, wallet = Wire(), Wallet()
    authorized = Authorized(wire, wallet, home=http.target(url), ledger=Ledger())
    await authorized.handle_async_request(httpx2.Request("POST", url, content=b"{}"))
    assert (wire.brought, bool(wallet.asked)) == ([f"Bearer {FIRST}" if sent else ""], sent)


def test_a_server_that_wants_a_login_in_clear_is_told_with_what_helps() -> None:
    """H4: nobody is led to put a token into a header there instead."""
    request = httpx2.Request("POST", "http://example.org/mcp")
    answer = httpx2.Response(401, headers={"WWW-Authenticate": EXPIRED}, request=request)
    said(refused_status(answer, "", str(request.url), str), "http://example.org/mcp answered HTTP 401, it wants a login", "https://")
    said(refused_status(answer, "", "https://example.org/mcp", str), "set an Authorization header")


BASIC = {"WWW-Authenticate": 'Basic realm="x"'}
DESCRIBED = {"WWW-Authenticate": 'Bearer error="invalid_token", error_description="It is over"'}
DENIALS = [
    (
        {},
        {"Authorization": FIRST},
        b"",
        "the Authorization header in `headers` is not accepted: correct it, and check that its variable is set",
    ),
    ({}, {}, b"", "it wants credentials: set an Authorization header in `headers`, or take `auth: none` out of its entry and log in"),
    (BASIC, {}, b"", "it wants credentials: set an Authorization header in `headers`"),
    (BASIC, {}, b"Unauthorized", "it wants credentials: set an Authorization header in `headers`"),
]
"""Headers of the answer and of the request, and what is said where no login is used."""
BODIES = [
    (b"", ""),
    (b"Unauthorized", ""),
    (b'{"error": "invalid_token"}', ""),
    (b'{"error": "invalid_token", "error_description": "It is over"}', ""),
    (b'{"error": "invalid_token", "error_description": "taken back\\nby you"}', " (it says: taken back by you)"),
    (b'{"error": "locked"}', " (it says: locked)"),
    (b'{"detail": "no"}', ' (it says: {"detail": "no"})'),
    (b"gone", " (it says: gone)"),
    (b"[" * 100_000, f" (it says: {'[' * 199}…)"),
]


@pytest.mark.parametrize(("answer", "request_headers", "body", "why"), DENIALS)
def test_a_denial_without_a_login_is_told_with_what_helps(answer: Any, request_headers: Any, body: bytes, why: str) -> None:
    """H4: a header that is there is not to be set; a login is named where one may help."""
    asked = httpx2.Request("POST", "https://example.org/mcp", headers=request_headers)
    error = refused_status(httpx2.Response(401, headers=answer, request=asked), body.decode(), str(asked.url), str)
    assert str(error) == f"https://example.org/mcp answered HTTP 401, {why}"


@pytest.mark.parametrize(("body", "also"), BODIES)
def test_what_a_server_says_with_its_denial_comes_last_and_is_not_said_twice(body: bytes, also: str) -> None:
    """H4: of a JSON error what is meant for people; nothing where the challenge or the status has said it."""
    asked = httpx2.Request("POST", "https://example.org/mcp")
    answer = httpx2.Response(401, headers=DESCRIBED, request=asked, extensions={MEND_OF: MEND})
    assert str(refused_status(answer, body.decode(), str(asked.url), str)) == f"HTTP 401, {MEND}{also}"


async def test_a_refusal_whose_body_does_not_end_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """H10: its status says what counts; the connection that it holds is given up."""
    monkeypatch.setattr(faults, "ERROR_BODY_PATIENCE", 0.1)
    wallet = Wallet(further=[SECOND])
    async with guarded(wallet, FIRST) as (server, door, link):
        head = f"HTTP/1.1 401 No\r\nWWW-Authenticate: {EXPIRED}\r\nContent-Length: 1000\r\n\r\nbecause".encode()
        door.valid, door.refusal = {SECOND}, Step(wire=lambda _: [head, "silence"])
        assert await link.call("note", {"text": "x"}) == "x"
        assert server.effects == {"note": 1}


def sse_entry(server: RawSse) -> dict[str, Any]:
    return {"type": "sse", "url": f"{server.url}/sse", "ssrfWhitelist": ["127.0.0.0/8"]}


async def test_the_old_transport_renews_for_its_stream_and_for_its_posts() -> None:
    """H4: a stream that is asked for with a token that has ended, and a call on one that lives on."""
    server, wallet = RawSse(), Wallet(further=[SECOND, THIRD])
    door = server.door = Door({SECOND})
    engine = with_credentials(official, lambda _name, _config: wallet)
    async with server.running(), linked(sse_entry(server), open_engine=engine, restart=SOON) as link:
        assert link.state == "ready", link.connection.error
        assert [brought for method, brought in door.seen if method == "GET"] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
        door.valid = {THIRD}
        assert await link.call("note", {"text": "x"}) == "x"
        assert [token for token, _, _ in wallet.asked] == [FIRST, SECOND]
        assert (server.effects, server.opened) == ({"note": 1}, 1)


async def test_the_old_transport_says_what_to_do_where_no_token_is_let_through() -> None:
    """H4: for the stream as for a post."""
    server, wallet = RawSse(), Wallet()
    door = server.door = Door({FIRST})
    engine = with_credentials(official, lambda _name, _config: wallet)
    async with server.running(), linked(sse_entry(server), open_engine=engine, restart=SOON) as link:
        door.valid = set()
        said(await link.outcome("note"), MEND)
        await link.reaches("needs_auth")
        link.connection.start()
        await link.reaches("needs_auth")
        said(link.connection.error or "", "HTTP 401", MEND)
        assert not server.effects


async def test_a_caller_of_the_old_transport_who_leaves_while_a_token_is_fetched_is_told_the_truth() -> None:
    """CAL-3: as above."""
    server, wallet = RawSse(), Wallet(further=[SECOND])
    door = server.door = Door({FIRST})
    engine = with_credentials(official, lambda _name, _config: wallet)
    async with server.running(), linked(sse_entry(server), open_engine=engine, restart=SOON) as link:
        door.valid, wallet.gate = {SECOND}, anyio.Event()
        error = await link.outcome("note", patience=0.3)
        assert isinstance(error, CallTimeout)
        assert not error.sent
        wallet.gate.set()
        assert await link.call("echo", {"text": "on"}) == "on"
        assert server.effects == {"echo": 1}
        assert "notifications/cancelled" not in server.methods
