"""A person's login, from the first question to the tokens (OAuth 2.1, 4.1; RFC 7636, 8252, 8707, 9207).

Who shows the page is a `Person`: the command line, or a program of yours. What the browser brings back is taken here where it
runs on this machine; where it does not, the person may hand over the address that it ended at.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio

from toolbay._text import line
from toolbay.auth.callback import HOST, PATH, Callback, PortTaken, fields, listening, same
from toolbay.auth.challenges import Challenge, union
from toolbay.auth.clients import client_for, usable
from toolbay.auth.discovery import asked, discover
from toolbay.auth.grants import Code, Denied, by_code, by_itself
from toolbay.auth.records import Authority, Client, Login
from toolbay.auth.store import Damaged, Store, key
from toolbay.auth.web import web
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import LoginFailed

PATIENCE: Final = 300.0
"""Seconds that a person has for the pages of a login."""
OFFLINE: Final = "offline_access"
"""The scope that brings a refresh token (OpenID Connect Core, 11)."""
_LATER: Final = frozenset({"server_error", "temporarily_unavailable"})
_UNKNOWN: Final = frozenset({"invalid_client", "unauthorized_client"})
_ENTROPY: Final = 32
"""Bytes of what must not be guessed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The page that a person is led to."""

    url: str = field(repr=False)
    """Judged, and safe to show; it is good for one login."""
    host: str
    """Whose page it is: for the person to look at before anything is typed there."""
    issuer: str
    """The host of the authorization server."""
    server: str
    """The server's name in the configuration."""
    redirect_uri: str
    """Where the browser ends."""
    state: str = field(repr=False)
    """What the answer must bring along."""
    scopes: tuple[str, ...] = ()
    """What is asked for; empty where that is left to the authorization server."""

    def fault(self, address: str) -> str:
        """Why `address` is not the one that the browser ended at, as a sentence's beginning; empty where it is."""
        found = _fields_of(address)
        if found is None or not ("code" in found or "error" in found):
            return f"that is not where the browser ended, which is {self.redirect_uri}?..."
        if not same(found.get("state", ""), self.state):
            return "that address belongs to another login: go on with the page that was opened last"
        return ""


class Person(Protocol):
    """Who logs in."""

    async def go(self, page: Page) -> None:
        """Lead the person to `page.url`. It may return at once, or stay: it is cancelled when the browser has come back."""
        ...


@runtime_checkable
class Pasting(Person, Protocol):
    """A person whose browser may be at another machine, and who then brings the address that it ended at."""

    async def pasted(self) -> str:
        """That address, in which `page.fault` finds no fault; empty where none will come. Asked for once `go` has returned."""
        ...


async def logged_in(
    name: str, config: ServerConfig, *, store: Store, person: Person, now: Callable[[], float], patience: float = PATIENCE
) -> Login:
    """The login with the server `name`, once the person has agreed; it is kept in `store`, in the place of what was there.

    Where `auth.type` is client_credentials nobody is asked. `patience`: seconds that the person has.

    Raises:
        LoginFailed: the server, its authorization server or the person said no, one of them cannot be trusted, or time was up.
        BlockedAddress: the network policy refuses an address of the login.
        ConfigError: the login cannot be kept.
    """
    auth = config.auth or LoginConfig()
    if auth.type == "none":
        raise LoginFailed(f'nobody logs in to "{name}": its `auth.type` is none')
    place = key(name, config)
    try:
        kept = await store.load(place)
    except Damaged:
        kept = None  # what takes its place is on its way
    async with web(config) as way, AsyncExitStack() as stack:
        challenge = await asked(way, config)
        authority = await discover(way, config, challenge)
        scopes = _scopes(auth, authority, challenge, kept)
        known = kept.client if kept is not None else None
        if auth.type == "client_credentials":
            ours = await client_for(way, authority, auth, redirect_uri="", scopes=scopes, known=known)
            tokens = await by_itself(way, authority, ours, scopes, now=now)
        else:
            ours = known if known is not None and usable(known, authority, auth, scopes=scopes, now=now) else None
            callback = await _callback(stack, auth, ours)
            if ours is None or ours.redirect_uri not in ("", callback.redirect_uri):
                ours = await client_for(way, authority, auth, redirect_uri=callback.redirect_uri, scopes=scopes, known=known)
                await _change(store, place, partial(_begun, config, authority, ours))
            question = _Question(server=name, authority=authority, client=ours, redirect_uri=callback.redirect_uri, scopes=scopes)
            callback.expect(question.state)
            try:
                code = question.code(await _answer(question.page, callback, person, patience, question.hint))
                tokens = await by_code(way, authority, ours, code, now=now)
            except Denied as denied:
                if ours.asked_for and denied.code in _UNKNOWN:
                    await _change(store, place, partial(_forgotten, ours, now()))
                    raise LoginFailed(f"{denied}; run {_command('login', name)} again, which asks for another client id") from denied
                raise
    login = Login(url=config.url, authority=authority, client=ours, tokens=tokens)
    await _change(store, place, lambda _: login)
    return login


async def _change(store: Store, place: str, change: Callable[[Login | None], Login | None]) -> None:
    """Keep what `change` makes of what is kept now, which another program may have written meanwhile; None leaves it."""
    async with store.locked(place):
        try:
            there = await store.load(place)
        except Damaged:
            there = None
        if (login := change(there)) is not None:
            await store.save(place, login)


def _begun(config: ServerConfig, authority: Authority, ours: Client, there: Login | None) -> Login | None:
    """With a client id that was asked for: so that another attempt need not ask for another one."""
    if not ours.asked_for or (there is not None and there.tokens is not None):
        return None
    login = Login(url=config.url, authority=authority, client=ours)
    return login if there is None else replace(login, wanted=there.wanted, ended=there.ended)


def _forgotten(ours: Client, now: float, there: Login | None) -> Login | None:
    """With a client id that serves no other login."""
    return replace(there, client=replace(ours, ends_at=now)) if there is not None and there.client == ours else None


async def _callback(stack: AsyncExitStack, auth: LoginConfig, ours: Client | None) -> Callback:
    """Where the browser comes back to: the port that was set, that of the client we are already, or any."""
    if auth.callback_port:
        try:
            return await stack.enter_async_context(listening(auth.callback_port))
        except PortTaken as taken:
            raise LoginFailed(f"{taken}: end what has it, or set another port as `auth.callbackPort`", retriable=True) from taken
    if port := _port(ours):
        with suppress(PortTaken):
            return await stack.enter_async_context(listening(port))
    return await stack.enter_async_context(listening())


def _port(ours: Client | None) -> int:
    parts = urlsplit(ours.redirect_uri if ours is not None else "")
    return parts.port or 0 if (parts.hostname, parts.path) == (HOST, PATH) else 0


def _scopes(auth: LoginConfig, authority: Authority, challenge: Challenge | None, kept: Login | None) -> tuple[str, ...]:
    """What the person set, else what the server says that it needs and what was granted before; and what it has wanted since."""
    named = auth.scopes or (challenge.scopes if challenge is not None else None) or authority.scopes or ()
    before = kept if kept is not None and kept.authority.issuer == authority.issuer else None
    held = before.tokens.scopes if before is not None and before.tokens is not None and not auth.scopes else None
    found = union(named, held or (), before.wanted if before is not None else ())
    # Alone it would be in the place of what is granted to who names nothing.
    lasting = found and auth.type == "oauth" and authority.offline_access
    return (*found, OFFLINE) if lasting and OFFLINE not in found else found


def _command(command: str, name: str) -> str:
    return f"`toolbay {command} {shlex.quote(name)}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What a person is asked to allow, and what belongs to the answer."""

    server: str
    authority: Authority
    client: Client
    redirect_uri: str
    scopes: tuple[str, ...]
    state: str = field(default_factory=lambda: secrets.token_urlsafe(_ENTROPY), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(_ENTROPY), repr=False)

    @property
    def page(self) -> Page:
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        ours = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": self.authority.resource,
        }
        if self.scopes:
            ours["scope"] = " ".join(self.scopes)
        if OFFLINE in self.scopes:
            ours["prompt"] = "consent"  # without which a refresh token need not be given (OpenID Connect Core, 11)
        parts = urlsplit(self.authority.authorization_endpoint)
        theirs = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in ours]
        return Page(
            url=parts._replace(query=urlencode([*theirs, *ours.items()]), fragment="").geturl(),
            host=parts.netloc,
            issuer=self._issuer,
            server=self.server,
            redirect_uri=self.redirect_uri,
            state=self.state,
            scopes=self.scopes,
        )

    def code(self, answer: Mapping[str, str]) -> Code:
        """The code in an answer with the right state, if it comes from who was asked (RFC 9207, 2.4). Raises LoginFailed."""
        issuer = answer.get("iss")
        if (issuer is None and self.authority.names_itself) or issuer not in (None, self.authority.issuer):
            # Of an answer that may be somebody else's nothing is shown, its error neither.
            raise LoginFailed(
                f'the answer to the login with "{self.server}" does not say that it comes from {self._issuer}, which was asked, '
                f"so nothing of it was used: run {_command('login', self.server)} again, and tell who runs it if that ends the same"
            )
        if "error" in answer:
            error, why = line(answer["error"], 60), line(answer.get("error_description", ""), 200)
            raise LoginFailed(self._refusal(error, f"{error}: {why}" if why else error), retriable=error in _LATER)
        if not answer.get("code"):
            raise LoginFailed(f'{self._issuer} answered the login with "{self.server}" without a code: tell who runs it')
        return Code(code=answer["code"], verifier=self.verifier, redirect_uri=self.redirect_uri, asked=self.scopes)

    @property
    def hint(self) -> str:
        """What may have been on a page that nobody came back from."""
        if self.client.asked_for:
            return f"if its page says that this client is unknown, run {_command('logout', self.server)} and log in again"
        port = urlsplit(self.redirect_uri).port
        return (
            f"if its page does not take the address that it should lead back to, register {self.redirect_uri} there, "
            f"and set `auth: {{callbackPort: {port}}}` on this server"
        )

    @property
    def _issuer(self) -> str:
        return urlsplit(self.authority.issuer).netloc

    def _refusal(self, error: str, said: str) -> str:
        if error == "access_denied":
            return f'nothing was granted to "{self.server}": {self._issuer} answered {said}'
        return f'{self._issuer} refused the login with "{self.server}": {said}'


async def _answer(page: Page, callback: Callback, person: Person, patience: float, hint: str) -> dict[str, str]:
    """The fields that the browser brought back, or the person. Raises LoginFailed; what a person raises comes as it is."""
    answers: list[dict[str, str]] = []
    failures: list[Exception] = []

    async def led() -> dict[str, str]:
        await person.go(page)
        if not isinstance(person, Pasting):
            return await callback.came()
        if not (address := await person.pasted()):
            return await callback.came()
        if fault := page.fault(address):
            raise LoginFailed(fault)
        return _fields_of(address) or {}

    with anyio.move_on_after(patience):
        async with anyio.create_task_group() as group:

            async def first(source: Callable[[], Awaitable[dict[str, str]]]) -> None:
                try:
                    answers.append(await source())
                except Exception as failure:  # carried past the group, which would wrap it
                    failures.append(failure)
                group.cancel_scope.cancel()

            group.start_soon(first, callback.came, name="wait for the browser")
            group.start_soon(first, led, name="lead a person to a page")
    if answers:
        return answers[0]
    for failure in failures:
        raise failure
    raise LoginFailed(f'nobody came back from the login with "{page.server}" at {page.host} within {patience:g} s: {hint}')


def _fields_of(address: str) -> dict[str, str] | None:
    return fields(address.strip().partition("?")[2].partition("#")[0])
