"""All servers of a configuration, and the logins with them: log in, log out, how each stands, and who waits for one is told."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

import anyio
import anyio.abc

from toolbay._redact import Secrets, trace
from toolbay.auth.records import PATIENCE
from toolbay.auth.store import Damaged, Store, key
from toolbay.config.models import LoginConfig, ServerConfig, TransportType
from toolbay.errors import BlockedAddress, ConfigError, LoginFailed

if TYPE_CHECKING:
    from toolbay.auth.credentials import Credentials
    from toolbay.auth.pages import Person
    from toolbay.auth.records import Login

_Servers: TypeAlias = "Callable[[], Mapping[str, ServerConfig]]"

REVOKING = 10.0
"""Seconds that who gave a login has to take it back."""
LOOK_EVERY = 0.5
"""Seconds between two looks whether somebody has logged in to a server that waits for it."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts for logins that came and did not help: two programs must not keep each other busy."""


_log = logging.getLogger("toolbay.auth")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginStatus:
    """How a login stands, for people. It holds no secret."""

    logged_in: bool
    """Whether there are tokens that may hold; their server has the last word."""
    ends_at: float | None = None
    """When the access token ends, in seconds since 1970; None where nobody said."""
    renews: bool = False
    """Whether another one is had without a person."""
    scopes: tuple[str, ...] | None = None
    """What the tokens hold for; None where nobody said."""
    issuer: str = ""
    """The authorization server."""
    ended: str = ""
    """Why there are no tokens any more: a clause; empty where there are, or never were any."""
    ended_at: float | None = None
    """Since when, in seconds since 1970; None where nobody noted it."""
    wanted: tuple[str, ...] = ()
    """Scopes that the server has asked for since: the next login asks for them, where no `scopes` are set."""
    mark: str = field(default="", compare=False)
    """Tells this login from every other one with the same server, also where it was renewed since; empty where there are no tokens."""


class Other(NamedTuple):
    """A login that is kept, and that no server of a configuration has. Empty is what nobody noted, or what cannot be read."""

    key: str
    server: str = ""
    url: str = ""
    issuer: str = ""


@dataclass(slots=True)
class Waking:
    """When a server was last woken for a login, and how long it is left alone from then on: twice as long each time, if it is soon."""

    at: float = float("-inf")
    pause: float = 0.0

    def due(self, now: float) -> bool:
        """Whether it may be woken now, which is noted."""
        passed = now - self.at
        if passed < self.pause:
            return False
        soon = passed < self.pause + LONGEST_PAUSE
        self.at, self.pause = now, min(2 * self.pause, LONGEST_PAUSE) if soon else FIRST_PAUSE
        return True


@dataclass(slots=True)
class _Known:
    """What is known here of the login with one server."""

    made_with: tuple[object, ...]
    credentials: Credentials
    others: int = 0
    """How many other logins (`Custody.others`) were told of."""
    readings: int = 0
    """How many of what others wrote (`Custody.readings`) its server has been woken for, or was up with."""
    woken: Waking = field(default_factory=Waking)
    """For a login that was waited for."""
    failing: bool = False
    """Whether the last look at it failed."""
    told: Waking = field(default_factory=Waking)
    """For another login than the one that was used."""


def takes_login(config: ServerConfig) -> bool:
    """Whether requests to this server may carry what a login brings.

    They do over HTTP that nobody on the way can read (RFC 6750, 5.3), unless the entry says `none`, or what to send instead.
    """
    return config.type is not TransportType.STDIO and not _without(config)


def _without(config: ServerConfig) -> str:
    """Why requests over HTTP carry no login, and what to do about it: a clause; empty where they may."""
    if config.auth is not None and config.auth.type == "none":
        return "its `auth` is none: take that out of the entry first"
    if any(name.lower() == "authorization" for name in config.headers):
        return "its entry has an Authorization header, which is sent in its place: take that out of the entry first"
    from toolbay.auth.trust import secure  # noqa: PLC0415 - as in `_credentials`

    return "" if secure(config.url) else "its `url` is not https, so that others could read it on the way and use it: set one that is"


class Logins:
    """An async context manager; leaving it ends what `watch` has begun. Everything else needs no entering."""

    def __init__(self, store: Store, *, now: Callable[[], float] = time.time, secrets: Secrets | None = None) -> None:
        """`now`: seconds since 1970. `secrets` learns of each token as it comes."""
        self._store = store
        self._now = now
        self.secrets = secrets or Secrets()
        self.on_other: Callable[[str, ServerConfig], None] = lambda _name, _config: None
        """Called when it may be another person who is logged in to a server from now on, or nobody; must be quick and must not raise.

        By what is done here at once, by what another program does while `watch` is at work.
        """
        self._known: dict[str, _Known] = {}
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    def of(self, name: str, config: ServerConfig) -> Credentials | None:
        """What requests to this server carry; None where they carry no login (`takes_login`).

        Always the same for the same entry, so that it is renewed once however many connections there are.
        """
        known = self._of(name, config)
        return known and known.credentials

    def _of(self, name: str, config: ServerConfig) -> _Known | None:
        if not takes_login(config):
            return None
        place = key(name, config)
        made_with = (config.auth, config.url, config.headers, config.ssrf_whitelist, config.fake_ip)
        known = self._known.get(place)
        if known is None or known.made_with != made_with:
            known = self._known[place] = _Known(made_with, self._credentials(name, config))
        return known

    def _credentials(self, name: str, config: ServerConfig) -> Credentials:
        from toolbay.auth.credentials import Credentials  # noqa: PLC0415 - brings an HTTP library, which programs over pipes need not load

        learn = partial(self.secrets.add_passing, key(name, config))
        return Credentials(name, config, store=self._store, now=self._now, on_secrets=learn)

    def safe_of(self, name: str, config: ServerConfig) -> Callable[[str], str]:
        """What takes the secrets out of texts of this server: also tokens of its own that are too common to be hidden in all texts."""
        return partial(self.secrets.mask_of, key(name, config)) if takes_login(config) else self.secrets.mask

    # -- what a person asks -------------------------------------------------------------------------------------------

    async def login(self, name: str, config: ServerConfig, person: Person, *, patience: float = PATIENCE) -> Login:
        """Log in. Of type `client_credentials` nobody is asked. `patience`: seconds that it may take, the person's time included.

        Raises:
            ConfigError: the server is none that one logs in to, or the login cannot be kept.
            LoginFailed, BlockedAddress: as `flow.logged_in`.
        """
        _check(name, config)
        from toolbay.auth.flow import logged_in  # noqa: PLC0415 - as in `_credentials`

        place, told = key(name, config), self._told(name, config)
        before = await self._kept(place)
        self.secrets.add_passing(place, {config.auth.client_secret if config.auth else "", *(before.secrets if before else ())})
        try:
            login = await logged_in(name, config, store=self._store, person=person, now=self._now, patience=patience)
        except LoginFailed as failed:
            # An authorization server may say back what it was told.
            raise LoginFailed(self.secrets.mask_of(place, str(failed)), retriable=failed.retriable) from None
        self.secrets.add_passing(place, login.secrets)
        await self._changed_here(name, config, told)
        return login

    async def logout(self, name: str, config: ServerConfig) -> bool | None:
        """Forget the login. None where there was none.

        True where nobody can use its tokens from now on, for who gave them has taken them back, or they had ended. That is
        waited for `REVOKING` seconds at the most.

        Raises:
            ConfigError: what is kept cannot be removed.
            LoginFailed: another program is at work on it (retriable).
        """
        if config.type is TransportType.STDIO:
            return None
        told = self._told(name, config)
        ended = await self._forget(key(name, config), lambda _: config)
        if ended is not None:
            await self._changed_here(name, config, told)
        return ended

    async def others(self, servers: Mapping[str, ServerConfig]) -> Sequence[Other]:
        """The logins that are kept and that no server of these has: of one that was removed or changed, or of another configuration.

        Raises ConfigError as `Store.keys`.
        """
        own = {key(name, config) for name, config in servers.items()}
        found: list[Other] = []
        for place in await self._store.keys():
            if place not in own:
                login = await self._kept(place)
                found.append(Other(place, login.server, login.url, login.authority.issuer) if login else Other(place))
        return found

    async def forget(self, other: Other, *, ssrf_whitelist: Sequence[str] = ()) -> bool | None:
        """As `logout`, for one that no server has. `ssrf_whitelist`: what every server may reach."""
        return await self._forget(other.key, lambda login: _alone(login, ssrf_whitelist))

    async def _forget(self, place: str, entry: Callable[[Login], ServerConfig]) -> bool | None:
        known = self._known.get(place)
        async with self._store.locked(place):
            # Where a renewal could not be written, what is kept is what it replaced, and worth nothing.
            unsaved = await known.credentials.custody.renounce() if known is not None else None
            login = unsaved or await self._kept(place)
            revoked = await _revoked(login, entry(login)) if login is not None else None
            if login is not None and (left := _left_of(login, entry(login))) is not None:
                await self._store.save(place, left)
                there = True
            else:
                there = await self._store.remove(place)
        # One that was only begun was no login; one that cannot be read may have been any.
        if login is None:
            return False if there else None
        return None if login.tokens is None and not login.ended else revoked

    def _told(self, name: str, config: ServerConfig) -> int:
        known = self._known.get(key(name, config))
        return known.others if known is not None else 0

    async def _changed_here(self, name: str, config: ServerConfig, told: int) -> None:
        """Tell of it, if `watch` has not seen and told it since `told` was all that was."""
        if (known := self._known.get(key(name, config))) is not None:
            custody = known.credentials.custody
            await custody.look()
            known.readings = custody.readings
            if known.others != told and known.others == custody.others:
                return
            known.others = custody.others
        self.on_other(name, config)

    async def standing(self, name: str, config: ServerConfig) -> LoginStatus:
        """How the login stands. Nobody is asked for it."""
        try:
            login = await self._store.load(key(name, config))
        except Damaged as damaged:
            return LoginStatus(logged_in=False, ended=f"{damaged.path} is no record of a login that can be used ({damaged.why})")
        if login is None:
            return LoginStatus(logged_in=False)
        tokens = login.tokens
        by_itself = config.auth is not None and config.auth.type == "client_credentials"
        renews = tokens is not None and (bool(tokens.refresh) or by_itself)
        return LoginStatus(
            logged_in=tokens is not None and (renews or tokens.ends_at is None or tokens.ends_at > self._now()),
            ends_at=tokens.ends_at if tokens else None,
            renews=renews,
            scopes=tokens.scopes if tokens else None,
            issuer=login.authority.issuer,
            ended=login.ended,
            ended_at=login.ended_at,
            wanted=login.wanted,
            mark=login.mark if tokens else "",
        )

    async def _kept(self, place: str) -> Login | None:
        """What there is of a login; what is damaged is none."""
        try:
            return await self._store.load(place)
        except Damaged:
            return None

    # -- who waits for it ---------------------------------------------------------------------------------------------

    def watch(self, down: _Servers, up: _Servers, wake: Callable[[str], None]) -> None:
        """From now on see what other programs do.

        Call `wake` with a server's name soon after a login has come for one of those that are `down`, and `on_other` soon
        after another login has come for one of those that are `up`, or its login has gone.
        """
        assert self._group is not None, "enter it first"
        self._group.start_soon(self._watch, down, up, wake, name="logins: watch")

    async def _watch(self, down: _Servers, up: _Servers, wake: Callable[[str], None]) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY)
            for look, servers in ((partial(self._look_for_one, wake), down()), (self._look_for_another, up())):
                for name, config in servers.items():
                    # What nobody has asked for yet has no news; a server whose entry was changed has it by its new one.
                    if (known := self._known.get(key(name, config))) is not None:
                        await self._guarded(partial(look, known, name, config), known, self.safe_of(name, config), name)

    async def _guarded(self, look: Callable[[], Awaitable[None]], known: _Known, safe: Callable[[str], str], name: str) -> None:
        """A store of somebody's own that fails as none should costs this look alone. That is told once, until one goes well."""
        try:
            await look()
        except Exception as error:
            if not known.failing:
                known.failing = True
                _log.warning("the login with %s could not be looked at: %s", name, trace(error, safe))
        else:
            known.failing = False

    async def _look_for_one(self, wake: Callable[[str], None], known: _Known, name: str, _config: ServerConfig) -> None:
        custody = known.credentials.custody
        await custody.look()
        # One that has only begun is kept as well, for the id that was asked for.
        if custody.readings != known.readings and custody.tokens is not None and known.woken.due(anyio.current_time()):
            known.readings, known.others = custody.readings, custody.others
            wake(name)

    async def _look_for_another(self, known: _Known, name: str, config: ServerConfig) -> None:
        custody = known.credentials.custody
        await custody.look()
        if custody.others != known.others:
            if not known.told.due(anyio.current_time()):
                return
            known.others = custody.others
            self.on_other(name, config)
        known.readings = custody.readings


def _check(name: str, config: ServerConfig) -> None:
    """Raise ConfigError for a server that one does not log in to."""
    if config.type is TransportType.STDIO:
        raise ConfigError(f"{name} is a program that is started here and takes its credentials in `env`: there is nothing to log in to")
    if why := _without(config):
        raise ConfigError(f"{name} uses no login, since {why}")


def _left_of(login: Login, config: ServerConfig) -> Login | None:
    """What is known from then on: whose a client is that was given by hand, so that the next login shows it to nobody else."""
    auth = config.auth
    if auth is None or auth.issuer or login.client.asked_for or login.client.id != auth.client_id:
        return None
    client = replace(login.client, secret="")
    return replace(login, tokens=None, client=client, wanted=(), ended="", ended_at=None)


async def _revoked(login: Login, config: ServerConfig) -> bool:
    """Whether who gave the tokens has taken them back."""
    if login.tokens is None:
        return True
    from toolbay.auth.clients import current  # noqa: PLC0415 - as in `Logins._credentials`
    from toolbay.auth.grants import revoke  # noqa: PLC0415
    from toolbay.auth.web import web  # noqa: PLC0415

    try:
        async with web(config, until=anyio.current_time() + REVOKING) as way:
            await revoke(way, login.authority, current(login.client, login.authority, config.auth or LoginConfig()), login.tokens)
    except (LoginFailed, BlockedAddress):
        return False
    return True


def _alone(login: Login, ssrf_whitelist: Sequence[str]) -> ServerConfig:
    """An entry by which a login can be taken back whose own is gone: where it was given at this machine itself, that is open."""
    from toolbay.net.guard import consent  # noqa: PLC0415 - as in `Logins._credentials`
    from toolbay.net.http import target  # noqa: PLC0415

    here: tuple[str, ...] = ()
    with suppress(BlockedAddress):
        here = consent(target(login.authority.revocation_endpoint))
    return ServerConfig(type=TransportType.HTTP, url=login.url, ssrf_whitelist=(*ssrf_whitelist, *here))
