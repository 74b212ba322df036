"""A person's login, from the first question to the tokens (OAuth 2.1, 4.1; RFC 7636, 8252, 8707, 9207).

Who shows the page is a `Person`: the command line, or a program of yours. What the browser brings back is taken here where it
runs on this machine; where it does not, the person may hand over the address that it ended at.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
from anyio.lowlevel import checkpoint

from toolbay._text import line
from toolbay.auth.callback import HOST, PATH, Callback, PortTaken, listening
from toolbay.auth.challenges import Challenge, union
from toolbay.auth.clients import PORT, client_for, unnamed, usable
from toolbay.auth.discovery import asked, discover
from toolbay.auth.grants import Code, Denied, by_code, by_itself, revoke
from toolbay.auth.pages import Page, Pasting, Person
from toolbay.auth.records import Authority, Client, Login
from toolbay.auth.store import Damaged, Store, key
from toolbay.auth.web import Web, web
from toolbay.config.logins import loopback
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import BlockedAddress, ConfigError, LoginFailed

PATIENCE: Final = 300.0
"""Seconds that a login may take, the person's time included."""
GRACE: Final = 5.0
"""Seconds more for what must not be left half done."""
OFFLINE: Final = "offline_access"
"""The scope that brings a refresh token (OpenID Connect Core, 11)."""
_IMPLIED: Final = frozenset({OFFLINE, "openid", "profile", "email", "address", "phone"})
"""Scopes that are granted as something else: tokens of another kind, claims (OpenID Connect Core, 5.4 and 11)."""
_LATER: Final = frozenset({"server_error", "temporarily_unavailable"})
_UNKNOWN: Final = frozenset({"invalid_client", "unauthorized_client"})
_ENTROPY: Final = 32
"""Bytes of what must not be guessed."""


async def logged_in(
    name: str, config: ServerConfig, *, store: Store, person: Person, now: Callable[[], float], patience: float = PATIENCE
) -> Login:
    """The login with the server `name`, once the person has agreed; it is kept in `store`, in the place of what was there.

    Where `auth.type` is client_credentials nobody is asked. `patience`: seconds for all of it, the person's time included; a code
    that has come waits `GRACE` seconds more for who is at work on the same login, and is exchanged in as many.

    Raises:
        LoginFailed: the server, its authorization server or the person said no, one of them cannot be trusted, time was up, or of
            the scopes that were named one was not granted that the login before has. What was there stays then.
        BlockedAddress: the network policy refuses an address of the login.
        ConfigError: the login cannot be kept.
    """
    auth = config.auth or LoginConfig()
    if auth.type == "none":
        raise LoginFailed(f'nobody logs in to "{name}": its `auth.type` is none')
    place, until = key(name, config), anyio.current_time() + patience
    async with _alone(name, store, place, until):  # who is in the way is told before a person is asked
        kept, damaged = await _before(store, place)
    async with web(config, until=until) as way, AsyncExitStack() as stack:
        with _of(name):
            challenge = await asked(way, config)
            authority = await discover(way, config, challenge)
            if damaged is not None and auth.type == "oauth" and auth.client_id and not auth.issuer:
                raise LoginFailed(f"{damaged.path} cannot be read ({damaged.why}), which knew whose `clientId` is: {unnamed(authority)}")
        scopes = _scopes(auth, authority, challenge, kept)
        known = kept.client if kept is not None else None
        if auth.type == "client_credentials":
            with _of(name):
                ours = await client_for(way, authority, auth, redirect_uri="", scopes=scopes, known=known)
            ask = partial(by_itself, way, authority, ours, scopes, now=now)
        else:
            ours = known if known is not None and usable(known, authority, auth, scopes=scopes, now=now) else None
            callback = await _callback(stack, auth, ours)
            if ours is None or ours.redirect_uri not in ("", callback.redirect_uri):
                with _of(name):
                    ours = await client_for(way, authority, auth, redirect_uri=callback.redirect_uri, scopes=scopes, known=known)
                async with _alone(name, store, place, until):
                    await _put(store, place, partial(_begun, name, config, authority, ours))
            question = _Question(
                server=name, auth=auth, authority=authority, client=ours, redirect_uri=callback.redirect_uri, scopes=scopes
            )
            callback.expect(question.state)
            page = replace(question.page, begin=callback.beginning(question.page.url))
            code = question.code(await _answer(page, callback, person, _Time(patience, until), question.hint))
            ask = partial(by_code, way, authority, ours, code, now=now)
        async with _alone(name, store, place, until + GRACE):
            way.until = max(until, anyio.current_time() + GRACE)
            try:
                with _of(name):
                    tokens = await ask()
            except Denied as denied:
                if ours.asked_for and denied.code in _UNKNOWN:
                    await _put(store, place, partial(_forgotten, ours, now()))
                    raise LoginFailed(f"{denied}; run {_command('login', name)} again, which asks for another client id") from denied
                raise
            login = Login(server=name, url=config.url, authority=authority, client=ours, tokens=tokens)
            before = await _keep(way, store, place, login, partial(_instead, login, auth, now()))
    await _take_back(config, before, login)
    return login


async def _before(store: Store, place: str) -> tuple[Login | None, Damaged | None]:
    """What is kept, and what is wrong with it; another login takes its place."""
    try:
        return await store.load(place), None
    except Damaged as damaged:
        return None, damaged


@asynccontextmanager
async def _alone(name: str, store: Store, place: str, until: float) -> AsyncGenerator[None]:
    """Nobody else works on this login. A code counts once, so it is only exchanged by who can keep what comes of it."""
    with anyio.CancelScope(deadline=until) as waiting:
        async with AsyncExitStack() as stack:
            with _of(name):
                await stack.enter_async_context(store.locked(place))
            await checkpoint()  # time that is over ends this here, and not what is done within
            waiting.deadline = math.inf
            yield
    if waiting.cancelled_caught:
        raise LoginFailed(f'no login with "{name}": another program was at work on it until the time was over: try again', retriable=True)


async def _keep(way: Web, store: Store, place: str, login: Login, change: Callable[[Login | None], Login | None]) -> Login | None:
    """`_put`. Where that cannot be, the login is taken back, for nobody could end it any more; what went wrong says so."""
    there: Login | None = None
    try:
        with anyio.CancelScope(shield=True):  # a code is exchanged once
            there, _ = await _before(store, place)
            return await _put(store, place, change)
    except Exception as error:
        end = await _undone(way, login, there)
        if isinstance(error, ConfigError):
            raise ConfigError(f"{error} {end}") from error
        raise


async def _undone(way: Web, login: Login, there: Login | None) -> str:
    """What came of taking the login back, as a sentence; `there` is the one that stays."""
    assert login.tokens is not None
    host = urlsplit(login.authority.issuer).netloc
    if there is not None and there.tokens is not None and there.client.id == login.client.id:
        return f"The new login was not taken back at {host}, since the one that is kept could end with it."
    try:
        await revoke(way, login.authority, login.client, login.tokens)
    except (LoginFailed, BlockedAddress):
        return f"The new login could not be taken back: it can be ended at {host}."
    return f"The new login was taken back at {host}."


@contextmanager
def _of(name: str) -> Generator[None]:
    """What goes wrong says whose login it was."""
    try:
        yield
    except Denied as error:
        raise Denied(f'no login with "{name}": {error}', code=error.code) from error
    except LoginFailed as error:
        raise LoginFailed(f'no login with "{name}": {error}', retriable=error.retriable) from error
    except BlockedAddress as error:
        raise BlockedAddress(f'no login with "{name}": {error.cause}', error.mend) from error


def ungranted(asked: Iterable[str], granted: Iterable[str] | None) -> list[str]:
    """What was asked for and was not granted, as far as anybody can tell.

    Some grant under a longer name, such as https://graph.microsoft.com/User.Read, and what OpenID Connect names is often not
    named again.
    """
    there = None if granted is None else [scope.lower() for scope in granted]
    if there is None:
        return []
    return [scope for scope in asked if scope not in _IMPLIED and not any(_names(one, scope.lower()) for one in there)]


def _names(granted: str, asked: str) -> bool:
    return granted == asked or granted.endswith((f"/{asked}", f".{asked}", f":{asked}"))


def _instead(login: Login, auth: LoginConfig, now: float, there: Login | None) -> Login:
    """`login` in the place of what is there; but not one that holds for less, where the scopes of it were named."""
    held, given = there.tokens if there is not None else None, login.tokens
    if there is None or held is None or given is None or there.authority.issuer != login.authority.issuer:
        return login
    lives = held.refresh or held.ends_at is None or held.ends_at > now
    if lives and (missing := ungranted(auth.scopes, given.scopes)) and ungranted(held.scopes or (), given.scopes):
        raise LoginFailed(
            f'{urlsplit(login.authority.issuer).netloc} did not grant {line(" ".join(missing), 200)} for "{login.server}": '
            "the login that was there stays as it is; ask for what is granted, or log out first"
        )
    return login


async def _take_back(config: ServerConfig, before: Login | None, login: Login) -> None:
    """The tokens of the login that was replaced are worth nothing from now on, if that can be had without harm.

    Under the same client id it cannot: with one token, many take back all that its person has granted to that id, the login that
    has just been made as well (RFC 7009, 2.1 lets them).
    """
    if before is None or before.tokens is None or before.client.id == login.client.id:
        return
    with suppress(LoginFailed, BlockedAddress):
        async with web(config, until=anyio.current_time() + GRACE) as way:
            await revoke(way, before.authority, before.client, before.tokens)


async def _put(store: Store, place: str, change: Callable[[Login | None], Login | None]) -> Login | None:
    """Keep what `change` makes of what is kept now, which another program may have written meanwhile, and which is given back.

    None leaves it as it is. For who has the lock.
    """
    there, _ = await _before(store, place)
    if (login := change(there)) is not None:
        await store.save(place, login)
    return there


def _begun(name: str, config: ServerConfig, authority: Authority, ours: Client, there: Login | None) -> Login | None:
    """With a client id that was asked for: so that another attempt need not ask for another one."""
    if not ours.asked_for or (there is not None and there.tokens is not None):
        return None
    login = Login(server=name, url=config.url, authority=authority, client=ours)
    return login if there is None else replace(login, wanted=there.wanted, ended=there.ended)


def _forgotten(ours: Client, now: float, there: Login | None) -> Login | None:
    """With a client id that serves no other login."""
    return replace(there, client=replace(ours, ends_at=now)) if there is not None and there.client == ours else None


async def _callback(stack: AsyncExitStack, auth: LoginConfig, ours: Client | None) -> Callback:
    """Where the browser comes back to: the address or the port that was set, that of the client we are already, or any."""
    if fixed := auth.redirect_uri:
        try:
            return await stack.enter_async_context(listening(fixed))
        except PortTaken as taken:
            where = "callbackUrl" if auth.callback_url else "callbackPort"
            raise LoginFailed(f"{taken}: end what has it, or set another port as `auth.{where}`", retriable=True) from taken
    if here := _earlier(ours):
        with suppress(PortTaken):
            return await stack.enter_async_context(listening(here))
    return await stack.enter_async_context(listening())


def _earlier(ours: Client | None) -> str:
    """The address that a client was registered with, if it may have been of our own choice; else empty."""
    parts = urlsplit(ours.redirect_uri if ours is not None else "")
    return parts.geturl() if (parts.hostname, parts.path) == (HOST, PATH) else ""


def _scopes(auth: LoginConfig, authority: Authority, challenge: Challenge | None, kept: Login | None) -> tuple[str, ...]:
    """What the person set, and nothing that a server wants; else that, what was granted before, and what it has wanted since."""
    needed = (challenge.scopes if challenge is not None else None) or authority.scopes or ()
    before = kept if kept is not None and kept.authority.issuer == authority.issuer else None
    held = before.tokens.scopes if before is not None and before.tokens is not None else None
    found = union(auth.scopes or (*needed, *(held or ()), *(before.wanted if before is not None else ())))
    # Alone it would be in the place of what is granted to who names nothing.
    lasting = found and auth.type == "oauth" and authority.offline_access
    return (*found, OFFLINE) if lasting and OFFLINE not in found else found


def _command(command: str, name: str) -> str:
    return f"`toolbay {command} {shlex.quote(name)}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What a person is asked to allow, and what belongs to the answer."""

    server: str
    auth: LoginConfig
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
            issuer=self.authority.issuer,
            server=self.server,
            redirect_uri=self.redirect_uri,
            state=self.state,
            scopes=self.scopes,
            names_itself=self.authority.names_itself,
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
        unknown = f'if its page does not take the client id "{line(self.client.id, 80)}", correct `clientId`'
        hint = f"{unknown}; if it does not take the address that it should lead back"
        if self.auth.redirect_uri:
            return f"{hint} to, register {self.redirect_uri} there for that id"
        here = f"register {loopback(PORT)} there for that id and set `callbackPort: {PORT}`"
        return f"{hint} to, {here}, or set the one that is registered for it as `callbackUrl`"

    @property
    def _issuer(self) -> str:
        return urlsplit(self.authority.issuer).netloc

    def _refusal(self, error: str, said: str) -> str:
        if error == "access_denied":
            return f'nothing was granted to Toolbay for "{self.server}": {self._issuer} answered {said}'
        return f'{self._issuer} refused the login with "{self.server}": {said}'


class _Time(NamedTuple):
    patience: float
    until: float


async def _answer(page: Page, callback: Callback, person: Person, time: _Time, hint: str) -> dict[str, str]:
    """The fields that the browser brought back, or the person. Raises LoginFailed; what a person raises comes as it is."""
    answers: list[dict[str, str]] = []
    failures: list[Exception] = []

    async def came() -> dict[str, str]:
        with _of(page.server):
            return await callback.came()

    async def led() -> dict[str, str]:
        await person.go(page)
        if not isinstance(person, Pasting):
            return await came()
        if not (address := await person.pasted()):
            return await came()
        if (found := page.brought(address)) is None:
            raise LoginFailed(f'no login with "{page.server}": {page.fault(address)}')
        return found

    with anyio.move_on_at(time.until):
        async with anyio.create_task_group() as group:

            async def first(source: Callable[[], Awaitable[dict[str, str]]]) -> None:
                try:
                    answers.append(await source())
                except Exception as failure:  # carried past the group, which would wrap it
                    failures.append(failure)
                group.cancel_scope.cancel()

            group.start_soon(first, came, name="wait for the browser")
            group.start_soon(first, led, name="lead a person to a page")
    if answers:
        return answers[0]
    for failure in failures:
        raise failure
    raise LoginFailed(f'nobody came back from the login with "{page.server}" at {page.host} within {time.patience:g} s: {hint}')
