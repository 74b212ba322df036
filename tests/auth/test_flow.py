"""A person's login, whole: a real server that wants a token, a real authorization server, a real browser's request; and all who say no."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import TaskGroup, TaskStatus
from hypothesis import given
from hypothesis import strategies as st

from servers.raw_http import RawHttp, Request, Step
from servers.raw_oauth import RawOAuth
from support.logins import Guarded, a_login
from support.processes import eventually
from toolbay.auth.callback import listening
from toolbay.auth.flow import logged_in
from toolbay.auth.pages import Page, Person
from toolbay.auth.records import Login, Tokens
from toolbay.auth.scopes import ungranted
from toolbay.auth.store import Damaged, Files, Memory, key
from toolbay.errors import ConfigError, LoginFailed

pytestmark = pytest.mark.anyio


class Visitor:
    """A person with a browser on this machine, who agrees."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.shown: list[tuple[int, str]] = []

    async def go(self, page: Page) -> None:
        self.pages.append(page)
        self.shown.append(await RawOAuth.visit(page.url))


class Absent:
    """A person who is shown the page and does nothing, with `before` to look at what is there."""

    def __init__(self, before: Callable[[Page], Awaitable[None]] | None = None) -> None:
        self.pages: list[Page] = []
        self._before = before

    async def go(self, page: Page) -> None:
        self.pages.append(page)
        if self._before is not None:
            await self._before(page)


class Paster(Absent):
    """A person whose browser is at another machine, and who brings its address, changed by `how`."""

    def __init__(self, how: Callable[[str], str] = lambda address: address) -> None:
        super().__init__()
        self._how = how

    async def pasted(self) -> str:
        return self._how(await RawOAuth.approve(self.pages[-1].url))


class Scene(Guarded):
    async def login(self, person: Person | None = None, *, patience: float = 30, **auth: Any) -> Login:
        config = self.config(**auth)
        return await logged_in("notes", config, store=self.store, person=person or Visitor(), now=time.time, patience=patience)

    async def kept(self, **auth: Any) -> Login | None:
        return await self.store.load(key("notes", self.config(**auth)))

    async def keep(self, login: Login, **auth: Any) -> None:
        await self.store.save(key("notes", self.config(**auth)), login)

    async def fails(self, match: str, person: Person | None = None, *, patience: float = 30, **auth: Any) -> LoginFailed:
        with pytest.raises(LoginFailed, match=match) as caught:
            await self.login(person, patience=patience, **auth)
        assert "canary-" not in str(caught.value)
        return caught.value


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    async with RawOAuth(path="/tenant") as oauth, RawHttp() as server:
        oauth.protect(server)
        yield Scene(oauth=oauth, server=server, store=Memory())


async def test_a_person_agrees_and_the_tokens_are_kept() -> None:
    """OAuth: discovery, registration, the page, the callback, the code: once each; the tokens open the server."""
    async with scene() as here:
        person = Visitor()
        login = await here.login(person)
        assert login.tokens is not None
        assert here.oauth.guards(login.tokens.access)
        assert await here.kept() == login
        assert (login.url, login.authority.issuer, login.client.asked_for) == (here.server.url, here.oauth.issuer, True)
        (page,), ((status, shown),) = person.pages, person.shown
        assert (page.server, page.host, page.issuer) == ("notes", urlsplit(here.oauth.origin).netloc, here.oauth.issuer)
        assert (status, "You can close this page" in shown) == (200, True)
        assert (len(here.oauth.registrations), here.oauth.codes, len(here.oauth.authorizations)) == (1, 1, 1)
        assert page.redirect_uri == here.oauth.registrations[0]["redirect_uris"][0] == login.client.redirect_uri
        assert page.state not in repr(page)


async def test_no_words_of_strangers_make_a_record_that_cannot_be_read_again(tmp_path: Path) -> None:
    """G4: each field is bounded where it comes in; what cannot be sent is not kept, so that the next attempt is free of it."""
    async with scene() as here:
        here.store = Files(tmp_path)
        here.oauth.prm = {"scopes_supported": [f"{at}{'p' * 490}" for at in range(400)]}
        here.oauth.metadata = {"token_endpoint_auth_methods_supported": ["none", "\U0001f600" * 10_000, *["x" * 90] * 100]}
        here.oauth.answer = {"scope": " ".join(f"{at}{'g' * 490}" for at in range(400))}
        assert await here.login(scopes=["read"]) == await here.kept()
        here.oauth.auth_methods, here.oauth.metadata, here.oauth.prm, here.oauth.answer = ("client_secret_post",), {}, {}, {}
        for secret in ("canary-\ud800", "canary-é", "canary-" + "s" * 100_000):
            here.oauth.registered = {"client_secret": secret}
            await here.fails("client secret that is none", scopes=["other"])
        here.oauth.registered = {}
        assert await here.login(scopes=["other"]) == await here.kept()


class Locking(Visitor):
    """A person who agrees while another program is at work on the same login, for as long as `group` lives."""

    def __init__(self, here: Scene, group: TaskGroup) -> None:
        super().__init__()
        self._here, self._group = here, group

    async def hold(self, *, task_status: TaskStatus[None]) -> None:
        async with self._here.store.locked(key("notes", self._here.config())):
            task_status.started()
            await anyio.sleep_forever()

    async def hold_at_registration(self) -> None:
        await eventually(lambda: self._here.oauth.paths["/tenant/register"], "a client id being asked for")
        await self._group.start(self.hold)
        self._here.oauth.gate.set()

    async def go(self, page: Page) -> None:
        await self._group.start(self.hold)
        await super().go(page)


async def test_another_program_that_is_at_work_costs_no_yes_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: told before a person is asked; and if it comes later no code is exchanged for tokens that nobody could keep."""
    monkeypatch.setattr("toolbay.auth.store.PATIENCE", 0.3)
    async with scene() as here, anyio.create_task_group() as group:
        person = Locking(here, group)
        assert (await here.fails("another program has been at work on the same login", person)).retriable
        assert (len(person.pages), here.oauth.codes) == (1, 0)
        assert (await here.fails("another program has been at work on the same login", person)).retriable
        assert (len(person.pages), here.oauth.codes) == (1, 0)
        group.cancel_scope.cancel()


class Overheard(Absent):
    """A person whose opener's address another one has used before, and who has agreed as himself."""

    async def go(self, page: Page) -> None:
        await super().go(page)
        self.thief = await opened(page.begin)
        self.own = await opened(page.begin)
        await RawOAuth.visit(page.url)


async def opened(url: str) -> tuple[int, str]:
    """Status and Location of what a browser is shown there first."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(url)
    return answer.status_code, answer.headers.get("location", "")


async def test_a_page_that_somebody_else_has_opened_ends_the_login() -> None:
    """SEC: it could be his account in which this person works from then on; nothing of it is used, and both are told."""
    async with scene() as here:
        person = Overheard()
        await here.fails(r'no login with "notes": its page was opened twice', person)
        assert person.thief == (302, person.pages[0].url)
        assert person.own == (409, "")
        assert person.pages[0].state not in person.pages[0].begin
        assert here.oauth.codes == 0


class Hindering(Visitor):
    """A person who agrees while something is put into the place of the record."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    async def go(self, page: Page) -> None:
        self._file.unlink(missing_ok=True)
        (self._file / "in the way").mkdir(parents=True)
        await super().go(page)


async def test_a_login_that_cannot_be_kept_is_taken_back(tmp_path: Path) -> None:
    """G4: no tokens are left that nobody knows of; and it is said what became of them."""
    async with scene() as here:
        here.store = Files(tmp_path)
        here.oauth.know("ours")
        itself: dict[str, Any] = {"clientId": "ours", "issuer": here.oauth.issuer}
        file = tmp_path / f"{key('notes', here.config(**itself))}.json"
        for steps, says in (
            ([], "was taken back at"),
            ([Step(kind="status", status=503)] * 2, "could not be taken back: it can be ended at"),
        ):
            here.oauth.steps["revoke"] = list(steps)
            with pytest.raises(ConfigError, match=says) as error:
                await here.login(Hindering(file), **itself)
            assert str(file) in str(error.value)
            assert "canary-" not in str(error.value)
            (file / "in the way").rmdir()
            file.rmdir()
        assert here.oauth.codes == 2
        assert not here.oauth.guards("canary-access-2")


async def test_what_the_page_is_asked_with() -> None:
    """OAuth: S256, the resource, a state and a verifier that are never the same; what the endpoint's own query says stays, but for ours."""
    async with scene() as here:
        here.oauth.metadata = {
            "authorization_endpoint": f"{here.oauth.issuer}/authorize?tenant=a%20b&redirect_uri=https%3A%2F%2Fevil.example"
        }
        people = [Visitor(), Visitor()]
        for person in people:
            await here.login(person)
        one, two = here.oauth.authorizations
        for asked, person in zip((one, two), people, strict=True):
            assert asked["response_type"] == "code"
            assert asked["code_challenge_method"] == "S256"
            assert asked["resource"] == here.server.url
            assert asked["redirect_uri"] == person.pages[0].redirect_uri
            assert asked["tenant"] == "a b"
            assert person.pages[0].url.count("redirect_uri=") == 1
            assert len(asked["state"]) >= 43
        assert one["state"] != two["state"]
        assert one["code_challenge"] != two["code_challenge"]
        assert here.oauth.forms[0]["code_verifier"] != here.oauth.forms[1]["code_verifier"]


async def test_over_ssh_the_person_brings_the_address_that_the_browser_ended_at() -> None:
    """OAuth: with quotes, brackets, a full stop or white space around it, broken, without its beginning: as people copy it."""
    changes: list[Callable[[str], str]] = [
        lambda address: f"  {address}\r\n",
        lambda address: address.removeprefix("http://"),
        lambda address: f"{address}#",
        lambda address: address.replace("127.0.0.1", "localhost", 1),
        lambda address: f'"{address}"',
        lambda address: f"'{address}',",
        lambda address: f"<{address}>",
        lambda address: f"\u201c{address}\u201d.",
        lambda address: f"[here]({address}).",
        lambda address: f"`{address}`",
        lambda address: address.replace("&", "&amp;"),
        lambda address: f"{address[:60]}\r\n{address[60:]}\u200b",
    ]
    async with scene() as here:
        for change in changes:
            login = await here.login(Paster(change))
            assert login.tokens is not None
            assert here.oauth.guards(login.tokens.access)


async def test_a_person_who_brings_no_address_may_still_have_a_browser_here() -> None:
    """OAuth: the answer of the browser is waited for all the same."""

    class Bare(Visitor):
        async def go(self, page: Page) -> None:
            self.pages.append(page)

        async def pasted(self) -> str:
            group.start_soon(RawOAuth.visit, self.pages[-1].url)
            return ""

    async with scene() as here, anyio.create_task_group() as group:
        assert (await here.login(Bare())).tokens is not None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda address: "?", "not where the browser ended, which is http://127.0.0.1:"),
        (lambda address: "https://as.example/authorize?client_id=a&state=b", "not where the browser ended"),
        (lambda address: address.partition("?")[0], "was cut off: there is no answer in it"),
        (lambda address: address[:30], "was cut off: there is no answer in it"),
        (lambda address: address.partition("&state=")[0], "was cut off: there is no `state` in it"),
        (lambda address: address.partition("&iss=")[0][:-3], "was cut off: its `state` is not whole"),
        (lambda address: address.partition("&iss=")[0], "does not say that it comes from 127.0.0.1"),
        (lambda address: address[:-3], "does not say that it comes from 127.0.0.1"),
        (lambda address: f"{address}x", "does not say that it comes from 127.0.0.1"),
        (lambda address: address + "&code=canary-second", "no address as a browser shows it"),
        (lambda address: address.replace("state=", "state=x"), "belongs to another login"),
        (lambda address: address.replace("state=", "other="), "was cut off"),
    ],
)
async def test_a_wrong_address_is_not_taken(change: Callable[[str], str], match: str) -> None:
    """OAuth: it is said what is wrong with it; nothing of it is sent anywhere."""
    async with scene() as here:
        await here.fails(match, Paster(change))
        assert here.oauth.forms == []


async def test_wrong_callbacks_before_the_right_one_change_nothing() -> None:
    """SEC: attack 8: any page in the browser can knock with a code or a refusal of its own."""

    async def knocked(page: Page) -> None:
        for query in ("code=canary-evil&state=guessed", "error=access_denied", "code=canary-evil"):
            _, shown = await _get(f"{page.redirect_uri}?{query}")
            assert "no answer that Toolbay waits for" in shown
        await RawOAuth.visit(page.url)
        status, _ = await _get(f"{page.redirect_uri}?code=canary-evil&state={page.state}")
        assert status in (410, 0)

    async with scene() as here:
        login = await here.login(Absent(knocked))
        assert login.tokens is not None
        (form,) = here.oauth.forms
        assert form["code"].startswith("canary-code-")


async def _get(url: str) -> tuple[int, str]:
    """The status and the page at an address; 0 where nobody is there any more."""
    from support.persons import fetched

    try:
        status, _, body = await fetched(url)
    except (OSError, EOFError):
        return 0, ""
    return status, body.decode()


async def test_who_says_no_is_told_that_nothing_was_granted() -> None:
    """OAuth: in the words of the authorization server, cleaned and cut; no token is asked for, and nothing is retried."""
    async with scene() as here:
        here.oauth.refuses = "access_denied"
        person = Visitor()
        failed = await here.fails(r'nothing was granted to Toolbay for "notes": 127.0.0.1:\d+ answered access_denied', person)
        assert not failed.retriable
        assert "Nothing was granted" in person.shown[0][1]
        assert here.oauth.forms == []


async def test_a_refusal_is_shown_in_one_bounded_line() -> None:
    """SEC-6: escapes, new lines and length, in what any server may say."""

    async def refused(page: Page) -> None:
        said = quote(f"\x1b[31mred\nline\u202e {'a' * 1000}")
        iss = quote(page.url.split("/authorize")[0], safe="")
        await _get(f"{page.redirect_uri}?error=invalid_scope&error_description={said}&state={page.state}&iss={iss}")

    async with scene() as here:
        failed = await here.fails("invalid_scope: red line a", Absent(refused))
        assert str(failed).isprintable()
        assert len(str(failed)) < 400


async def test_an_authorization_server_that_is_busy_may_be_asked_again() -> None:
    """OAuth: server_error and temporarily_unavailable (RFC 6749, 4.1.2.1)."""
    async with scene() as here:
        for here.oauth.refuses in ("server_error", "temporarily_unavailable"):
            assert (await here.fails(here.oauth.refuses)).retriable


@pytest.mark.parametrize(
    ("promised", "iss", "taken"),
    [
        (True, "right", True),
        (True, None, False),
        (True, "wrong", False),
        (None, "right", True),
        (None, None, True),
        (None, "wrong", False),
        (None, "with a slash", False),
        (None, "", False),
    ],
)
async def test_attack_08_an_answer_counts_from_who_was_asked_alone(promised: bool | None, iss: str | None, taken: bool) -> None:
    """SEC: attack 8: the table of RFC 9207, 2.4, without any normalisation; of a wrong one neither code nor error is used or shown."""
    async with scene() as here:
        other = {"wrong": "https://evil.example", "with a slash": f"{here.oauth.issuer}/"}
        here.oauth.metadata = {"authorization_response_iss_parameter_supported": promised}
        here.oauth.iss = other.get(iss or "", iss)
        for here.oauth.refuses in ("", "evil_words"):
            if taken and not here.oauth.refuses:
                assert (await here.login()).tokens is not None
            elif taken:
                await here.fails("evil_words")
            else:
                failed = await here.fails("does not say that it comes from 127.0.0.1")
                assert "evil" not in str(failed)
                assert here.oauth.forms == []


async def test_an_answer_without_a_code_is_none() -> None:
    """OAuth: what has neither code nor error."""

    async def answered(page: Page) -> None:
        iss = quote(page.url.split("/authorize")[0], safe="")
        await _get(f"{page.redirect_uri}?state={page.state}&iss={iss}&code=")

    async with scene() as here:
        await here.fails('answered the login with "notes" without a code', Absent(answered))


async def test_who_does_not_come_back_is_told_what_may_have_been_on_the_page() -> None:
    """OAuth: the two pages on which logins end without an answer: an unknown client, and an address that is not registered."""
    async with scene() as here:
        failed = await here.fails(r"nobody came back from the login .* within 2 s: .*`toolbay logout notes`", Absent(), patience=2)
        assert not failed.retriable
        here.oauth.know("ours")
        failed = await here.fails(r"register http://127.0.0.1:8765/callback there", Absent(), patience=2, clientId="ours")
        assert 'client id "ours"' in str(failed)
        assert "callbackPort" in str(failed)
        back = f"http://localhost:{free()}/back"
        await here.fails(f"register {back} there for that id", Absent(), patience=2, clientId="ours", callbackUrl=back)


async def test_what_a_person_raises_comes_as_it_is_and_nothing_stays() -> None:
    """LIF: also a cancellation; the port is free again."""

    class GaveUp(Exception):
        pass

    async def gave_up(page: Page) -> None:
        raise GaveUp

    async with scene() as here:
        person = Absent(gave_up)
        with pytest.raises(GaveUp):
            await here.login(person)
        stuck = Absent(lambda page: anyio.sleep_forever())
        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: here.login(stuck))
                await eventually(lambda: stuck.pages)
                group.cancel_scope.cancel()
        for page in (person.pages[0], stuck.pages[0]):
            async with listening(page.redirect_uri):
                pass


async def test_a_client_that_was_asked_for_serves_again_with_its_address() -> None:
    """OAuth: a second login, and one after an attempt that was given up, ask for no other id."""
    async with scene() as here:
        first = Absent()
        await here.fails("nobody came back", first, patience=2)
        begun = await here.kept()
        assert begun is not None
        assert begun.tokens is None
        second, third = Visitor(), Visitor()
        login = await here.login(second)
        await here.login(third)
        assert len(here.oauth.registrations) == 1
        assert login.client == begun.client
        assert {person.pages[0].redirect_uri for person in (first, second, third)} == {begun.client.redirect_uri}


async def test_a_new_client_is_asked_for_where_the_port_of_the_old_one_is_taken() -> None:
    """OAuth: another program has it; what works meanwhile is kept until the new login is complete."""
    async with scene() as here:
        before = await here.login()
        async with listening(before.client.redirect_uri):
            await here.fails("nobody came back", Absent(), patience=2)
            assert await here.kept() == before
            after = await here.login()
        assert after.client.id != before.client.id
        assert after.client.redirect_uri != before.client.redirect_uri
        assert await here.kept() == after


async def test_what_another_program_has_kept_meanwhile_is_not_lost() -> None:
    """G4: an attempt that was begun before it, and comes to nothing, leaves it as it is."""
    async with scene() as here:
        held, there = Absent(), a_login()
        here.oauth.steps["register"] = [Step(wait=True)]

        async def attempt() -> None:
            await here.fails("nobody came back", held, patience=2)

        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                group.start_soon(attempt)
                await eventually(lambda: any(path.endswith("/register") for path in here.oauth.paths))
                await here.keep(there)
                here.oauth.gate.set()
        assert len(held.pages) == 1
        assert await here.kept() == there


def free() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


async def test_the_page_itself_is_no_answer() -> None:
    """OAuth: it is what people paste who have not opened it."""
    async with scene() as here:
        person = Visitor()
        await here.login(person)
        (page,) = person.pages
        for address in (page.url, f"<{page.url}>", page.url[:60], page.url.partition("?")[0]):
            assert page.fault(address).startswith("that is the login page itself: open it")


@given(st.text() | st.text('?&=codestateiss"<> .%').map("http://127.0.0.1:1/callback?{}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    """SEC: attack 8: no text makes it fall, and none is taken without the state."""
    page = Page(
        url="https://as.example/go?client_id=a", host="as.example", issuer="https://as.example", server="s",
        redirect_uri="http://127.0.0.1:1/callback", state="canary-0123456789",
    )  # fmt: skip
    assert page.fault(text)
    assert page.brought(text) is None


async def test_a_client_id_that_was_registered_elsewhere_is_used_with_its_address() -> None:
    """OAuth: RFC 8252, 7.3: to the letter, on both families where it says localhost; its path alone is answered."""
    async with scene() as here:
        for host, path in (("localhost", "/callback"), ("127.0.0.1", "/oauth/done"), ("[::1]", ""), ("localhost", "/")):
            back = f"http://{host}:{free()}{path}"
            here.oauth.clients.clear()
            here.oauth.know("ours", redirect_uris=(back,))
            person = Visitor()
            login = await here.login(person, clientId="ours", callbackUrl=back)
            assert login.tokens is not None
            assert person.pages[0].redirect_uri == here.oauth.authorizations[-1]["redirect_uri"] == back
            assert person.shown[0][0] == 200


async def test_an_id_that_is_asked_for_is_asked_for_with_the_address_that_was_set() -> None:
    """OAuth: and another one where that has changed."""
    async with scene() as here:
        for back in (f"http://localhost:{free()}/a", f"http://localhost:{free()}/b"):
            login = await here.login(callbackUrl=back)
            assert login.client.redirect_uri == here.oauth.registrations[-1]["redirect_uris"][0] == back


async def test_a_port_that_was_set_and_is_taken_is_told_with_the_mend() -> None:
    """OAuth: a client that was registered by hand has one address; nobody chooses another one for it."""
    async with scene() as here, listening() as other:
        port = urlsplit(other.redirect_uri).port
        here.oauth.know("ours", redirect_uris=(other.redirect_uri,))
        failed = await here.fails(rf"port {port} of this machine .*auth.callbackPort", clientId="ours", callbackPort=port)
        assert failed.retriable


async def test_a_client_id_that_was_given_by_hand_is_used_with_its_port() -> None:
    """OAuth: no registration; the address is the one that was set."""
    async with scene() as here:
        async with listening() as other:
            port = urlsplit(other.redirect_uri).port
        here.oauth.registers = False
        here.oauth.know("ours", "canary-of-ours", redirect_uris=(f"http://127.0.0.1:{port}/callback",))
        person = Visitor()
        login = await here.login(person, clientId="ours", clientSecret="canary-of-ours", callbackPort=port)
        assert login.tokens is not None
        assert person.pages[0].redirect_uri == f"http://127.0.0.1:{port}/callback"
        assert here.oauth.registrations == []


async def test_without_self_registration_it_is_said_what_to_do() -> None:
    """OAuth: `auth.clientId`, before anybody is led anywhere."""
    async with scene() as here:
        here.oauth.registers = False
        person = Absent()
        await here.fails(
            r"which may lead back to http://127.0.0.1:(\d+)/callback, and set `auth: \{clientId: ..., callbackPort: \1\}`", person
        )
        assert person.pages == []


async def test_a_server_that_wants_no_login_says_so() -> None:
    """OAuth: nothing is registered and nobody is asked."""

    async def nothing_else(request: Request) -> Step | None:
        return None if request.target == "/mcp" else Step(kind="status", status=404)

    async with RawOAuth() as oauth, RawHttp() as server:
        server.door = nothing_else
        here = Scene(oauth=oauth, server=server, store=Memory())
        person = Absent()
        await here.fails(r'no login with "notes": http://127.0.0.1:\d+ wants none', person)
        assert (person.pages, dict(oauth.paths)) == ([], {})


async def test_a_program_logs_in_by_itself_and_nobody_is_asked() -> None:
    """OAuth: `auth.type: client_credentials` (RFC 6749, 4.4); wrong secrets are told; with `none` nothing is sent at all."""
    async with scene() as here:
        here.oauth.know("nightly", "canary-of-nightly")
        here.oauth.scopes = ("read",)
        here.oauth.metadata = {"scopes_supported": ["offline_access"]}
        person = Absent()
        itself: dict[str, Any] = {"type": "client_credentials", "clientId": "nightly", "issuer": here.oauth.issuer}
        login = await here.login(person, **itself, clientSecret="canary-of-nightly")
        assert login.tokens is not None
        assert here.oauth.guards(login.tokens.access)
        assert (login.tokens.scopes, login.client.asked_for) == (("read",), False)
        await here.fails("invalid_client", person, **itself, clientSecret="canary-wrong")
        asked = len(here.server.headers)
        await here.fails("`auth.type` is none", person, type="none")
        assert (person.pages, len(here.server.headers)) == ([], asked)


async def test_a_client_that_the_token_endpoint_has_forgotten_is_forgotten_here() -> None:
    """OAuth: the next login asks for another one, and so can end well."""
    async with scene() as here:
        await here.login()
        no = Step(kind="status", status=401, headers={"Content-Type": "application/json"}, body=b'{"error": "invalid_client"}')
        here.oauth.steps["token"] = [no, Step()]
        await here.fails("invalid_client; run `toolbay login notes` again, which asks for another client id")
        kept = await here.kept()
        assert kept is not None
        assert kept.tokens is not None, "which may still be good"
        assert (await here.login()).tokens is not None
        assert len(here.oauth.registrations) == 2


async def test_a_code_that_is_refused_ends_the_attempt_and_leaves_the_login_before_it() -> None:
    """OAuth: the person hears it; what worked goes on working."""
    async with scene() as here:
        before = await here.login()
        here.oauth.steps["token"] = [Step(kind="status", status=400, body=b'{"error": "invalid_grant", "error_description": "too late"}')]
        await here.fails("invalid_grant")
        assert await here.kept() == before


def with_tokens(login: Login, **changed: Any) -> Login:
    assert login.tokens is not None
    return replace(login, tokens=replace(login.tokens, **changed))


async def test_which_scopes_are_asked_for() -> None:
    """OAuth: the challenge's, else what the server knows of itself, else none, with what was granted and wanted since; or those named."""
    async with scene() as here:

        async def asked(**auth: Any) -> str | None:
            await here.login(**auth)
            return here.oauth.authorizations[-1].get("scope")

        assert await asked() is None
        here.oauth.scopes = ("read", "write")
        assert await asked() == "read write"
        here.oauth.challenge_names = {"resource_metadata", "scope"}
        here.oauth.needs = {"": ("list",)}
        assert await asked() == "list read write", "what was granted is not lost"
        assert await asked(scopes=["mine"]) == "mine"
        kept = await here.kept(scopes=["mine"])
        assert kept is not None
        await here.keep(replace(kept, wanted=("delete", "mine")))
        assert await asked(scopes=["mine"]) == "mine", "a server cannot widen what a person has limited"
        kept = await here.kept()
        assert kept is not None
        await here.keep(replace(kept, wanted=("delete", "mine")))
        assert await asked() == "list mine delete"
        kept = await here.kept()
        assert kept is not None
        assert kept.wanted == ()


async def test_scopes_of_another_authorization_server_are_not_asked_for() -> None:
    """SEC: attack 8: what was kept belongs to its issuer; so does the client."""
    async with scene() as here:
        login = await here.login()
        moved = replace(login.authority, issuer="https://elsewhere.example")
        client = replace(login.client, issuer="https://elsewhere.example")
        await here.keep(with_tokens(replace(login, authority=moved, client=client, wanted=("wanted",)), scopes=("held",)))
        await here.login()
        assert "scope" not in here.oauth.authorizations[-1]
        assert len(here.oauth.registrations) == 2


async def test_a_refresh_token_is_asked_for_where_it_has_a_scope_of_its_own() -> None:
    """OAuth: offline_access beside others, with the consent that it needs; alone it would be in the place of all others."""
    async with scene() as here:
        here.oauth.metadata = {"scopes_supported": ["offline_access", "read"]}
        await here.login()
        assert {"scope", "prompt"} & set(here.oauth.authorizations[-1]) == set()
        here.oauth.scopes = ("read",)
        await here.login()
        asked = here.oauth.authorizations[-1]
        assert (asked["scope"], asked["prompt"]) == ("read offline_access", "consent")


async def test_a_damaged_record_is_replaced_by_the_next_login(tmp_path: Path) -> None:
    """G4: nothing else can be done with it."""
    async with scene() as here:
        here.store = Files(tmp_path / "logins")
        await here.login()
        path = tmp_path / "logins" / f"{key('notes', here.config())}.json"
        path.write_text("{")
        with pytest.raises(Damaged):
            await here.kept()
        login = await here.login()
        assert await here.kept() == login
        path.unlink()


async def test_a_login_that_would_hold_for_less_than_was_named_does_not_replace_one() -> None:
    """OAuth: what was asked for by name and not granted is told, and what works is not lost."""
    async with scene() as here:
        before = await here.login(scopes=["read"])
        here.oauth.grants_only = ("else",)
        failed = await here.fails('did not grant bogus for "notes": the login that was there stays', scopes=["bogus"])
        assert not failed.retriable
        assert await here.kept() == before
        assert before.tokens is not None
        assert here.oauth.guards(before.tokens.access)
        here.oauth.grants_only = ("read",)
        assert (await here.login(scopes=["read", "bogus"])).tokens != before.tokens, "which holds for all that was held"
        await here.keep(replace(before, tokens=None, ended="it is over"))
        here.oauth.grants_only = ("less",)
        assert (await here.login(scopes=["bogus"])).tokens is not None, "where nothing is lost"


@pytest.mark.parametrize(
    ("asked", "granted", "missing"),
    [
        (["read", "write"], None, []),
        (["read", "write"], ["read"], ["write"]),
        (["User.Read", "offline_access", "openid", "profile"], ["https://graph.microsoft.com/User.Read"], []),
        (["Read"], ["read"], []),
        (["read"], ["spread"], ["read"]),
    ],
)
def test_what_was_not_granted(asked: list[str], granted: list[str] | None, missing: list[str]) -> None:
    """OAuth: as far as anybody can tell; many name it otherwise."""
    assert ungranted(asked, granted) == missing


async def test_what_another_login_has_replaced_is_taken_back_where_that_does_no_harm() -> None:
    """SEC: attack 11: under another client id; under the same one it might end the new login as well. It fails no login."""
    async with scene() as here:
        first = await here.login()
        await here.login()
        assert here.oauth.revocations == []
        first = await here.kept()
        assert first is not None
        assert first.tokens is not None
        await here.keep(replace(first, client=replace(first.client, ends_at=0.0)))
        second = await here.login()
        assert set(here.oauth.revocations) == {first.tokens.access, first.tokens.refresh}
        assert second.tokens is not None
        assert here.oauth.guards(second.tokens.access)
        await here.keep(replace(second, client=replace(second.client, ends_at=0.0)))
        here.oauth.steps["revoke"] = [Step(kind="status", status=503)]
        third = await here.login()
        assert await here.kept() == third


@pytest.mark.parametrize("which", ["prm", "metadata", "register"])
async def test_a_login_ends_in_its_time_whoever_is_frozen(which: str) -> None:
    """LIF: the time is for all of it, and not for each who is asked."""
    async with scene() as here:
        here.oauth.steps[which] = [Step(wait=True)]
        with anyio.fail_after(10):
            failed = await here.fails('no login with "notes": .*did not answer within', Absent(), patience=1)
        assert failed.retriable
        here.oauth.gate.set()


@pytest.mark.parametrize("when", ["before", "page", "code"])
async def test_a_login_ends_in_its_time_whoever_else_is_at_work_on_it(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF: the time is for waiting as well; where a code has come, it is a little longer."""
    monkeypatch.setattr("toolbay.auth.flow.GRACE", 0.2)
    async with scene() as here, anyio.create_task_group() as group:
        person = Locking(here, group)
        if when == "before":
            await group.start(person.hold)
        if when == "page":
            here.oauth.steps["register"] = [Step(wait=True)]
            group.start_soon(person.hold_at_registration)
        with anyio.fail_after(10):
            failed = await here.fails('no login with "notes": another program was at work on it', person, patience=1)
        assert failed.retriable
        assert (len(person.pages), here.oauth.codes) == (when == "code", 0)
        group.cancel_scope.cancel()


async def test_tokens_are_kept_whole() -> None:
    """OAuth: with their end and their scopes."""
    async with scene() as here:
        here.oauth.lifetime, here.oauth.grants_only = 60, ("less",)
        began = time.time()
        login = await here.login(scopes=["more"])
        assert isinstance(login.tokens, Tokens)
        assert login.tokens.scopes == ("less",)
        assert began + 59 < (login.tokens.ends_at or 0) < time.time() + 61
        assert login.tokens.refresh


async def test_a_server_of_2025_03_is_its_own_authorization_server() -> None:
    """OAuth: it has no metadata about what is protected; its origin answers."""
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server, itself=True)
        here = Scene(oauth=oauth, server=server, store=Memory())
        login = await here.login()
        assert login.tokens is not None
        assert oauth.guards(login.tokens.access)


async def test_the_page_is_read_from_its_query() -> None:
    """OAuth: what stands in it is what was sent."""
    async with scene() as here:
        person = Visitor()
        await here.login(person, scopes=["a/b:c", "d+e"])
        query = dict(parse_qsl(urlsplit(person.pages[0].url).query))
        assert query == here.oauth.authorizations[-1]
        assert query["scope"] == "a/b:c d+e"
        assert person.pages[0].scopes == ("a/b:c", "d+e")
