"""What the requests to one server carry, renewed once however many want it.

Within the program there is one renewal at a time (`Errands`), and between programs one (the store's lock): who has the lock
looks first whether another one has been quicker.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio

from toolbay._aio import bounded, clock
from toolbay._redact import url as shown_url
from toolbay._text import line
from toolbay.auth.challenges import Challenge, bearer, union
from toolbay.auth.clients import client_for, current
from toolbay.auth.custody import Custody
from toolbay.auth.discovery import asked, discover
from toolbay.auth.errands import Errands
from toolbay.auth.grants import Denied, by_itself, by_refresh
from toolbay.auth.records import Authority, Login
from toolbay.auth.store import Store
from toolbay.auth.web import Web, web
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import BlockedAddress, LoginFailed, Refused, ToolbayError

PATIENCE = 5.0
"""Seconds that a request waits for the renewal of a token that still holds; then it goes with that."""
PAUSE = 1.0
"""Seconds after a renewal that failed in which nobody tries again."""
SAVING = 0.5
"""Seconds at the end in which what could not be written is tried once more."""
MOST_RENEWALS = 10
WINDOW = 60.0
"""Seconds in which `MOST_RENEWALS` are made because tokens were refused: a server that refuses all of them gains nothing by more."""
MOST_STEPS = 3
"""How often further scopes are asked for (specification, basic/authorization: step-up is limited, and what was tried is known)."""
MOST_NOTES = 20
"""How often scopes are noted that a person's login lacks: a server that wants others each time has nothing written each time."""
_FORGOTTEN = frozenset({"invalid_client", "unauthorized_client"})

_log = logging.getLogger("toolbay.auth")


class Credentials:
    """The access token for the server `name`: `upstream.engine.Credentials`. Safe to be asked by many at once.

    `on_secrets` is called with what must not be shown, before it is used.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        store: Store,
        on_secrets: Callable[[frozenset[str]], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._config = config
        self._auth = config.auth or LoginConfig()
        self._itself = self._auth.type == "client_credentials"
        self._now = now
        self._kept = Custody(name, config, store=store, on_secrets=on_secrets, now=now)
        self._errands = Errands()
        self._challenge: Challenge | None = None
        self._trouble: tuple[float, ToolbayError] | None = None
        self._renewals: deque[float] = deque(maxlen=MOST_RENEWALS)
        self._steps: list[frozenset[str]] = []
        self._noted = 0

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        try:
            async with self._errands.at_work():
                yield
        finally:
            await bounded(SAVING, self._kept.save)

    @property
    def custody(self) -> Custody:
        """The login itself, as it is known here."""
        return self._kept

    @property
    def whose(self) -> str:
        return self._kept.mark or ""

    async def token(self) -> str:
        kept = self._kept
        await kept.look()
        tokens = kept.tokens
        if tokens is None:
            if self._itself and not kept.failed:
                await self._renew("")
        elif kept.ends_soon and (self._itself or tokens.refresh):
            try:
                with anyio.move_on_after(PATIENCE if kept.left > 0 else None):
                    await self._renew(tokens.access)
            except Refused:
                if kept.left <= 0:
                    raise
        return kept.access

    async def renew(self, refused: str, *, status: int, challenge: str) -> bool:
        kept = self._kept
        await kept.look()
        if kept.access not in ("", refused):
            return True
        said = bearer(challenge)
        if status == 403:
            return await self._step_up(refused, said)
        self._challenge = said or self._challenge
        often = len(self._renewals) == MOST_RENEWALS and clock() - self._renewals[0] < WINDOW
        if often or kept.failed or (kept.tokens is None and not self._itself):
            return False
        await self._renew(refused, because_refused=True)
        return kept.access not in ("", refused)

    def mend(self, *, status: int, challenge: str) -> str:
        # What others said comes last, since long texts are cut in lists, and what to do must not be.
        said = bearer(challenge)
        command = f"`toolbay login {shlex.quote(self._name)}`"
        if status == 403:
            return self._mend_scopes(_lacking(said, self._kept), command)
        if self._itself:
            return _mend_itself(self._name, self._kept)
        login = self._kept.login
        if login is not None and login.tokens is not None:
            issuer = line(shown_url(login.authority.issuer), 200)
            return f"it refuses the token that {issuer} gave: log in again with {command}; if that changes nothing, ask who runs the server"
        if login is not None and login.ended:
            return f"the login has ended: log in again with {command} ({login.ended})"
        if self._kept.damage:
            return f"what is kept of the login cannot be used: log in again with {command} ({self._kept.damage})"
        if self._config.auth is not None or said is not None:
            return f"it wants a login: log in with {command}"
        header = f"set an Authorization header in `headers` of {self._name}"
        # Who names no scheme may take a login all the same, and say how at a well-known address.
        return f"it wants credentials: {header}" if challenge.strip() else f"it wants credentials: log in with {command}, or {header}"

    def _mend_scopes(self, lacking: Sequence[str], command: str) -> str:
        if not lacking:
            return f"access was denied: ask who runs {self._name}"
        scopes = f"the scope{'s' if len(lacking) > 1 else ''} {line(' '.join(lacking), 200)}"
        mend = f"log in again with {command}"
        if left_out := self._left_out(lacking):
            which = "them" if len(left_out) > 1 else "it" if left_out == lacking else line(left_out[0], 100)
            add = f"and `auth.scopes` leaves {which} out: add {which} there"
            return f"the token lacks {scopes}, {add}" if self._itself else f"the login lacks {scopes}, {add}, and {mend}"
        if self._itself:
            return f"the token lacks {scopes}, which the authorization server did not give: ask who runs that"
        if self._kept.tokens is None:
            return f"it wants a login with {scopes}: log in with {command}"
        return f"the login lacks {scopes}: {mend}"

    def _left_out(self, lacking: Sequence[str]) -> list[str]:
        """What a person has limited the login to goes without these: a server cannot widen that."""
        return [scope for scope in lacking if self._auth.scopes and scope not in self._auth.scopes]

    async def _renew(self, refused: str, *, because_refused: bool = False) -> None:
        """Have another token in the place of `refused`, or the end of the login. Raises Refused where neither could be had now."""
        if self._trouble is not None and clock() - self._trouble[0] < PAUSE:
            raise self._refused(self._trouble[1])
        failure = await self._errands.run(refused, partial(self._renewal, refused, because_refused=because_refused))
        if isinstance(failure, ToolbayError):
            raise self._refused(failure)
        if failure is not None:
            raise failure

    def _refused(self, error: ToolbayError) -> Refused:
        mend = f"check `auth` of {self._name}" if self._itself else f"log in again with `toolbay login {shlex.quote(self._name)}`"
        text = f"the login with {self._name} could not be renewed: {self._kept.safe(str(error))}; if that stays so, {mend}"
        return Refused(text, server=self._name, retriable=_is_for_later(error))

    async def _renewal(self, refused: str, *, because_refused: bool) -> None:
        try:
            async with self._kept.locked():
                if self._kept.access not in ("", refused):
                    return  # another program was quicker
                if because_refused:
                    self._renewals.append(clock())
                async with web(self._config) as way:
                    await (self._log_in(way) if self._itself else self._refresh(way))
        except ToolbayError as error:
            self._trouble = clock(), error
            raise
        self._trouble = None

    async def _refresh(self, way: Web) -> None:
        login, tokens = self._kept.login, self._kept.tokens
        if login is None or tokens is None:
            return
        if not tokens.refresh:
            if self._kept.left <= 0:
                await self._end(login, "its time is over, and nothing was given to renew it with")
            return  # else a server that is wrong today may take it tomorrow
        self._errands.stake()  # a refresh token may count once
        try:
            given = await by_refresh(way, login.authority, current(login.client, login.authority, self._auth), tokens, now=self._now)
        except Denied as denied:
            if _is_for_later(denied):
                raise
            await self._end(login, str(denied), code=denied.code)
            return
        await self._kept.keep(replace(login, tokens=given))

    async def _end(self, login: Login, why: str, *, code: str = "") -> None:
        client = login.client
        if client.asked_for and code in _FORGOTTEN:
            client = replace(client, ends_at=self._now())  # so that the next login asks for another one
        ended = replace(login, tokens=None, ended=line(self._kept.safe(why), 400), ended_at=self._now(), client=client)
        _log.info("the login with %s has ended: %s", self._name, ended.ended)  # the server's state tells it
        if self._kept.damage:
            self._kept.take(ended)  # what cannot be read may be a newer program's, and good
        else:
            await self._kept.keep(ended)

    async def _log_in(self, way: Web) -> None:
        """The program's own login. A no that another attempt would not change is noted, and nobody asks again."""
        login = self._kept.login
        try:
            try:
                authority = await self._authority(way) if login is None else login.authority
                given = await self._own_login(way, authority, login)
            except Denied:
                # The server may have another authorization server by now.
                authority = await self._authority(way)
                if login is None or authority == login.authority:
                    raise
                given = await self._own_login(way, authority, login)
        except (LoginFailed, BlockedAddress) as error:
            if _is_for_later(error):
                raise
            self._kept.take(None)
            self._kept.failed = line(self._kept.safe(str(error)), 400)
            _log.info("the program could not log in with %s by itself: %s", self._name, self._kept.failed)
        else:
            await self._kept.keep(given)

    async def _authority(self, way: Web) -> Authority:
        if self._challenge is None:
            self._challenge = await asked(way, self._config)
        return await discover(way, self._config, self._challenge)

    async def _own_login(self, way: Web, authority: Authority, login: Login | None, more: Sequence[str] = ()) -> Login:
        """The program's own login, with what the server has asked for so far, and `more`."""
        said = self._challenge.scopes if self._challenge is not None else None
        wanted = union(login.wanted if login is not None else (), more)
        scopes = union(self._auth.scopes or (*(said or authority.scopes or ()), *wanted))
        known = login.client if login is not None else None
        client = await client_for(way, authority, self._auth, redirect_uri="", scopes=scopes, known=known)
        tokens = await by_itself(way, authority, client, scopes, now=self._now)
        made = Login(server=self._name, url=self._config.url, authority=authority, client=client, tokens=tokens, wanted=wanted)
        return made if login is None else replace(made, mark=login.mark)

    async def _step_up(self, refused: str, said: Challenge | None) -> bool:
        """The token lacks scopes: a program asks for them; of a person's login they are noted, and the next one asks for them."""
        login, lacking = self._kept.login, _lacking(said, self._kept)
        if self._itself:
            left_out = self._left_out(lacking)
            lacking = [scope for scope in lacking if scope not in left_out]
        if not lacking or login is None or login.tokens is None:
            return False
        if not self._itself and (union(login.wanted, lacking) == login.wanted or self._noted == MOST_NOTES):
            return False
        step = frozenset((*(login.tokens.scopes or ()), *login.wanted, *lacking))
        failure = await self._errands.run((refused, step), partial(self._more, refused, step, lacking))
        if isinstance(failure, ToolbayError):
            _log.info("%s of %s could not be had: %s", " ".join(lacking), self._name, self._kept.safe(str(failure)))
        elif failure is not None:
            raise failure
        return self._kept.access not in ("", refused)

    async def _more(self, refused: str, step: frozenset[str], lacking: Sequence[str]) -> None:
        async with self._kept.locked():
            login = self._kept.login
            if login is None or self._kept.access != refused:
                return
            if not self._itself:
                self._noted += 1
                await self._kept.keep(replace(login, wanted=union(login.wanted, lacking)))
            elif step not in self._steps and len(self._steps) < MOST_STEPS:
                self._steps.append(step)
                try:
                    async with web(self._config) as way:
                        await self._kept.keep(await self._own_login(way, login.authority, login, lacking))
                except LoginFailed as error:
                    if _is_for_later(error):
                        self._steps.remove(step)  # nobody has said anything to it yet
                    raise


def _mend_itself(name: str, kept: Custody) -> str:
    if kept.failed:
        return f"the program could not log in by itself: correct `auth` of {name} ({kept.failed})"
    if kept.login is not None:
        issuer = line(shown_url(kept.login.authority.issuer), 200)
        return f"it refuses the token that {issuer} gave: check `auth` of {name} (issuer, scopes), or ask who runs it"
    return "it wants a login, and the program has not logged in by itself yet: try again"


def _lacking(said: Challenge | None, kept: Custody) -> list[str]:
    """The scopes that a refusal with 403 names, and that the token is not known to have."""
    if said is None or said.error != "insufficient_scope":
        return []
    granted = (kept.tokens.scopes if kept.tokens is not None else None) or ()
    return [scope for scope in said.scopes or () if scope not in granted]


def _is_for_later(error: ToolbayError) -> bool:
    """Whether the same may end better later. A no without a word of OAuth may come from what stands before the authorization server."""
    return isinstance(error, LoginFailed) and (error.retriable or (isinstance(error, Denied) and not error.code))
