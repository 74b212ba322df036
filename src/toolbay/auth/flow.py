"""A person's login, from the first question to the tokens (OAuth 2.1, 4.1; RFC 7636, 8252, 8707, 9207).

Who shows the page is a `Person`: the command line, or a program of yours. What the browser brings back is taken here where it
runs on this machine; where it does not, the person may hand over the address that it ended at.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio.lowlevel import checkpoint

from toolbay.auth.callback import HOST, PATH, Callback, PortTaken, listening
from toolbay.auth.clients import client_for, unnamed, usable
from toolbay.auth.discovery import asked, discover
from toolbay.auth.grants import Denied, by_code, by_itself
from toolbay.auth.pages import Page, Pasting, Person
from toolbay.auth.question import Question, command
from toolbay.auth.records import PATIENCE, Client, Login
from toolbay.auth.replacing import begun, forgotten, instead, keep, kept_before, put, take_back
from toolbay.auth.scopes import to_ask
from toolbay.auth.store import Store, key
from toolbay.auth.web import web
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import BlockedAddress, LoginFailed

GRACE: Final = 5.0
"""Seconds more for what must not be left half done."""
_UNKNOWN: Final = frozenset({"invalid_client", "unauthorized_client"})


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
        kept, damaged = await kept_before(store, place)
    async with web(config, until=until) as way, AsyncExitStack() as stack:
        with _of(name):
            challenge = await asked(way, config)
            authority = await discover(way, config, challenge)
            if damaged is not None and auth.type == "oauth" and auth.client_id and not auth.issuer:
                raise LoginFailed(f"{damaged.path} cannot be read ({damaged.why}), which knew whose `clientId` is: {unnamed(authority)}")
        scopes = to_ask(auth, authority, challenge, kept)
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
                    await put(store, place, partial(begun, name, config, authority, ours))
            question = Question(server=name, auth=auth, authority=authority, client=ours, redirect_uri=callback.redirect_uri, scopes=scopes)
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
                    await put(store, place, partial(forgotten, ours, now()))
                    raise LoginFailed(f"{denied}; run {command('login', name)} again, which asks for another client id") from denied
                raise
            login = Login(server=name, url=config.url, authority=authority, client=ours, tokens=tokens)
            before = await keep(way, store, place, login, partial(instead, login, auth, now()))
    await take_back(config, before, login, until=anyio.current_time() + GRACE)
    return login


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
