"""A new login in the place of what is kept: what stays of that, what is taken back, and what is where it cannot be kept.

All but `take_back` is for who has the lock of the login.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import anyio

from toolbay._text import line
from toolbay.auth.grants import revoke
from toolbay.auth.records import Authority, Client, Login
from toolbay.auth.scopes import ungranted
from toolbay.auth.store import Damaged, Store
from toolbay.auth.web import Web, web
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import BlockedAddress, ConfigError, LoginFailed


async def kept_before(store: Store, place: str) -> tuple[Login | None, Damaged | None]:
    """What is kept, and what is wrong with it; another login takes its place."""
    try:
        return await store.load(place), None
    except Damaged as damaged:
        return None, damaged


async def put(store: Store, place: str, change: Callable[[Login | None], Login | None]) -> Login | None:
    """Keep what `change` makes of what is kept now, which another program may have written meanwhile, and which is given back.

    None leaves it as it is. For who has the lock.
    """
    there, _ = await kept_before(store, place)
    if (login := change(there)) is not None:
        await store.save(place, login)
    return there


async def keep(way: Web, store: Store, place: str, login: Login, change: Callable[[Login | None], Login | None]) -> Login | None:
    """`put`. Where that cannot be, the login is taken back, for nobody could end it any more; what went wrong says so."""
    there: Login | None = None
    try:
        with anyio.CancelScope(shield=True):  # a code is exchanged once
            there, _ = await kept_before(store, place)
            return await put(store, place, change)
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


def begun(name: str, config: ServerConfig, authority: Authority, ours: Client, there: Login | None) -> Login | None:
    """With a client id that was asked for: so that another attempt need not ask for another one."""
    if not ours.asked_for or (there is not None and there.tokens is not None):
        return None
    login = Login(server=name, url=config.url, authority=authority, client=ours)
    return login if there is None else replace(login, wanted=there.wanted, ended=there.ended)


def forgotten(ours: Client, now: float, there: Login | None) -> Login | None:
    """With a client id that serves no other login."""
    return replace(there, client=replace(ours, ends_at=now)) if there is not None and there.client == ours else None


def instead(login: Login, auth: LoginConfig, now: float, there: Login | None) -> Login:
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


async def take_back(config: ServerConfig, before: Login | None, login: Login, *, until: float) -> None:
    """The tokens of the login that was replaced are worth nothing from now on, if that can be had without harm.

    Under the same client id it cannot: with one token, many take back all that its person has granted to that id, the login that
    has just been made as well (RFC 7009, 2.1 lets them). `until`: the loop's time at which that is left.
    """
    if before is None or before.tokens is None or before.client.id == login.client.id:
        return
    with suppress(LoginFailed, BlockedAddress):
        async with web(config, until=until) as way:
            await revoke(way, before.authority, before.client, before.tokens)
