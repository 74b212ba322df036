"""One login as this program knows it: what it has in memory, and what other programs have written since.

What was given is kept in memory before it is written anywhere, and where it cannot be written it counts as long as the program runs,
which tries again: a refresh token that counts once must not be gone with the program because a disk was full for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from toolbay._aio import clock
from toolbay._redact import mask, trace
from toolbay._text import line
from toolbay.auth.records import Login, Tokens
from toolbay.auth.store import Damaged, Store, canonical, key
from toolbay.auth.trust import same
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import ConfigError, ToolbayError

EARLY = 30.0
"""Seconds before its end at which a token is renewed; at half of what it had left, where that was less."""
AGAIN = 3.0
PATIENCE = 0.5
"""Seconds after which what could not be written is tried again, and that it may wait for others who work on the login."""

_UNREAD = object()
_log = logging.getLogger("toolbay.auth")


class Custody:
    """The login of the server `name`; `on_secrets` is called with what must not be shown, before it is used."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        store: Store,
        on_secrets: Callable[[frozenset[str]], None],
        now: Callable[[], float],
    ) -> None:
        self.login: Login | None = None
        self.damage = ""
        """Why what is kept cannot be read, and where that is."""
        self.failed = ""
        """Why the program cannot log in by itself; until another login comes."""
        self.others = 0
        """How often another program has put another login in the place of the one that was known here, or has ended that."""
        self.readings = 0
        """How often what others wrote was read, but for the first time; that counts as well where it could not be read before."""
        self._name = name
        self._url = canonical(config.url)
        self._auth = config.auth or LoginConfig()
        self._store = store
        self._key = key(name, config)
        self._on_secrets = on_secrets
        self._now = now
        self._reading = anyio.Lock()
        self._stamp: object = _UNREAD
        self._early = EARLY
        self._told = self._told_unread = False
        self._unsaved = False
        self._again_at = 0.0

    @property
    def tokens(self) -> Tokens | None:
        return self.login.tokens if self.login is not None else None

    @property
    def access(self) -> str:
        """The access token; empty where there is none."""
        return self.tokens.access if self.tokens is not None else ""

    @property
    def left(self) -> float:
        """Seconds until its end, as far as anybody said."""
        ends_at = self.tokens.ends_at if self.tokens is not None else None
        return float("inf") if ends_at is None else ends_at - self._now()

    @property
    def ends_soon(self) -> bool:
        return self.left <= self._early

    @property
    def outdated(self) -> bool:
        """Whether something was written since the last look; quick."""
        return self._store.stamp(self._key) != self._stamp

    async def look(self) -> None:
        """Take what another program has written since the last look, if it has; else write what could not be written, every few seconds."""
        await self._look()
        if self._unsaved and clock() >= self._again_at:
            await self.save()

    async def save(self) -> None:
        """Write what could not be written, if it can be now, and nobody else has written since."""
        if not self._unsaved:
            return
        self._again_at = clock() + AGAIN
        try:
            with anyio.move_on_after(PATIENCE):
                async with self._store.locked(self._key):
                    await self._look()
                    if self._unsaved and self.login is not None and not self.outdated:
                        await self._write(self.login)
        except Exception as error:  # as in `_look`
            self._cannot_write(error)

    async def renounce(self) -> Login | None:
        """What could not be written, if there is such: it counts no more, and is not written any more. For who has the lock."""
        await self._look()
        if not self._unsaved:
            return None
        login = self.login
        self.take(None)
        self._unsaved, self._stamp = False, _UNREAD
        return login

    async def _look(self) -> None:
        if not self.outdated:
            return
        async with self._reading:
            stamp = self._store.stamp(self._key)
            if stamp == self._stamp:
                return
            try:
                login = await self._store.load(self._key)
            except Damaged as error:
                self._stamp, self.damage, self._unsaved = stamp, f"{error.path}: {error.why}", False
                _log.warning("%s", error)
                return
            except Exception as error:  # of a store of somebody's own, such as a vault that is locked
                self._cannot_read(error)
                return
            self.readings += self._stamp is not _UNREAD or self._told_unread
            self._told_unread = False
            before = self.mark
            self.take(login if login is None or self._fits(login) else None)
            self.others += self._stamp is not _UNREAD and self.mark != before
            self._stamp, self._unsaved = stamp, False

    def take(self, login: Login | None) -> None:
        """It counts from now on, in this program."""
        if login is not None:
            self._on_secrets(login.secrets)
        self.login = login
        self.damage = self.failed = ""
        self._early = max(min(EARLY, self.left / 2), 0.0)

    async def keep(self, login: Login) -> None:
        """It counts from now on, and for others."""
        self.take(login)
        self._unsaved, self._again_at = True, clock() + AGAIN
        await self._write(login)

    async def _write(self, login: Login) -> None:
        async with self._reading:  # who looks meanwhile must not take for another's what is written here
            try:
                await self._store.save(self._key, login)
            except Exception as error:  # as in `_look`
                self._cannot_write(error)
            else:
                self._stamp, self._told, self._unsaved = self._store.stamp(self._key), False, self.login is not login

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Nobody else works on this login, and what others have done is known. Where there can be no lock, it goes on without.

        Raises LoginFailed as `Store.locked`.
        """
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._store.locked(self._key))
            except ConfigError as error:
                self._cannot_write(error)
            await self._look()
            yield

    def safe(self, text: str) -> str:
        """An authorization server may say back what it was told."""
        return mask(text, {*(self.login.secrets if self.login is not None else ()), self._auth.client_secret})

    @property
    def mark(self) -> str | None:
        """Which login there is; None for none."""
        return self.login.mark if self.login is not None and self.login.tokens is not None else None

    def _fits(self, login: Login) -> bool:
        """Whether it is one for this server, from the authorization server that is configured: else its tokens are not shown here."""
        ours = not self._auth.issuer or same(login.authority.issuer, self._auth.issuer)
        return ours and canonical(login.url) == self._url

    def _cannot_read(self, error: Exception) -> None:
        """What is known in memory stays. It is tried again each time, since a vault that is opened need not change the stamp."""
        ours = isinstance(error, ToolbayError)
        self.damage = line(self.safe(str(error)), 400) if ours else f"{type(error).__name__} where it is kept"
        if not self._told_unread:
            self._told_unread = True
            _log.warning("the login with %s cannot be read now: %s", self._name, self.damage if ours else trace(error, self.safe))

    def _cannot_write(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            why = error if isinstance(error, ToolbayError) else trace(error, self.safe)
            _log.warning("the login with %s is kept in memory only: %s", self._name, why)
