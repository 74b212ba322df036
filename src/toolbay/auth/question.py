"""What a person is asked to allow, as the address of a page (RFC 7636, 8707), and what the answer to it is worth (RFC 9207)."""

from __future__ import annotations

import base64
import hashlib
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from toolbay._text import line
from toolbay.auth.clients import PORT
from toolbay.auth.grants import Code
from toolbay.auth.pages import Page, comes_from
from toolbay.auth.records import Authority, Client
from toolbay.auth.scopes import OFFLINE
from toolbay.config.logins import loopback
from toolbay.config.models import LoginConfig
from toolbay.errors import LoginFailed

_LATER: Final = frozenset({"server_error", "temporarily_unavailable"})
_ENTROPY: Final = 32
"""Bytes of what must not be guessed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
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
        if not comes_from(self.authority.issuer, answer, always_says=self.authority.names_itself):
            # Of an answer that may be somebody else's nothing is shown, its error neither.
            raise LoginFailed(
                f'the answer to the login with "{self.server}" does not say that it comes from {self._issuer}, which was asked, '
                f"so nothing of it was used: run {command('login', self.server)} again, and tell who runs it if that ends the same"
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
            return f"if its page says that this client is unknown, run {command('logout', self.server)} and log in again"
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


def command(command: str, name: str) -> str:
    """As it is written in a sentence."""
    return f"`toolbay {command} {shlex.quote(name)}`"
