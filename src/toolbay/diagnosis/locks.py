"""What it means that an address is locked: what its server asks for, who we are there already, and what opens it. Pure."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Mapping
from datetime import UTC, datetime

from toolbay._redact import url as shown_url
from toolbay._text import line
from toolbay.auth.challenges import Challenge, bearer, challenges
from toolbay.auth.logins import LoginStatus
from toolbay.auth.trust import secure
from toolbay.config.models import ServerConfig
from toolbay.diagnosis.answers import Answer
from toolbay.diagnosis.findings import Notes
from toolbay.errors import Refused
from toolbay.upstream.engine import Credentials

_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_HEADER = "`headers`, such as Authorization: Bearer ${TOKEN}"
_CORRECT = "correct `clientId` and `clientSecret` in its `auth`; where they are right, `scopes` and `issuer`"
_NAME = "set `issuer` in its `auth`, to the authorization server that gave `clientId` and `clientSecret`"
_DENIED = "the credentials are known and may not do this: ask for the right, or use others"


def tell(
    name: str,
    config: ServerConfig,
    answer: Answer,
    notes: Notes,
    *,
    standing: LoginStatus,
    credentials: Credentials | None,
    told_at: str = "",
) -> None:
    """Put into `notes` why `answer` is a lock and what opens it. `credentials` is what was carried; None where no login is used.

    `told_at`: the path at which the server tells how to log in, where its answer does not name one.
    """
    header = answer.headers.get("www-authenticate", "")
    schemes, asked = _asked(header)
    elsewhere = f", but tells at {told_at} how to log in" if told_at else ""
    wants = f"it asks for {schemes}" if schemes else f"it does not say what for{elsewhere}"
    details = [f"{key} {line(asked[key], 200)}" for key in ("realm", "scope", "error", "error_description") if asked.get(key)]
    why = f"HTTP {answer.status}, {wants}" + (f" ({', '.join(details)})" if details else "")
    denied = answer.status == 403 or asked.get("error") == "insufficient_scope"
    challenge = bearer(header)
    if credentials is not None and (challenge or answer.is_mute or standing.logged_in or standing.ended or config.auth is not None):
        if config.auth is not None and config.auth.type == "client_credentials":
            more, mend = credentials.mend(status=answer.status, challenge=header), _CORRECT if config.auth.issuer else _NAME
        else:
            more, mend = _login(name, challenge, standing, denied=denied)
        why = f"{why}; {more}"
    elif denied:
        mend = _DENIED
    elif any(key.lower() == "authorization" for key in config.headers):
        mend = "the Authorization header in `headers` is not accepted: renew the token, and check that its variable is set"
    elif challenge is not None and not secure(config.url):
        mend = f"set a `url` that begins with https://, and {_command(name)} logs in: a login is not sent where others could read it"
    else:
        mend = f"put a token into {_HEADER}"
        if challenge is not None or (answer.is_mute and secure(config.url)):
            mend += f"; or take `auth: none` away, and log in with {_command(name)}"
    what = f"{shown_url(config.url)} {'wants credentials' if answer.status == 401 else 'refuses access'}"
    notes.error(what, why, mend, [f"WWW-Authenticate: {header}"] if header else [])


def _asked(header: str) -> tuple[str, Mapping[str, str]]:
    """The schemes that a challenge takes, for people, and what it says of them."""
    found = challenges(header)
    names = dict.fromkeys(scheme for scheme, _ in found if scheme)
    return line(" or ".join(names), 100), ChainMap(*(dict(given) for _, given in found))


def tell_trouble(name: str, config: ServerConfig, refused: Refused, notes: Notes) -> None:
    """Put into `notes` that there was no token to ask with, since who gives it could not be asked, or said no without a reason."""
    again = f"where that does not help, log in again: {_command(name)}"
    mend = f"try again later; {again}" if refused.retriable else again
    notes.error(f"{shown_url(config.url)} could not be asked with its login", str(refused), mend)


def described(standing: LoginStatus) -> str:
    """A login that there is, in a few words; empty where there is none."""
    if not standing.logged_in:
        return ""
    scopes = f" for {line(' '.join(standing.scopes), 200)}" if standing.scopes else ""
    ends = f", until {_time(standing.ends_at)}" if standing.ends_at is not None else ""
    return f"logged in at {line(shown_url(standing.issuer), 200)}{scopes}{', renewed by itself' if standing.renews else ends}"


def tell_login(name: str, standing: LoginStatus, notes: Notes) -> None:
    """Put into `notes` what is wrong with the login of a server that works all the same."""
    if standing.ended:
        notes.note("the login with it has ended", standing.ended, f"{_again(name)}, or forget it: toolbay logout {shlex.quote(name)}")
    elif standing.logged_in and (lacking := _lacking(None, standing)):
        notes.warning(
            f"the login with it lacks {_scopes(lacking)}", "the server has asked for that since", f"{_command(name)} asks for it as well"
        )


def _login(name: str, challenge: Challenge | None, standing: LoginStatus, *, denied: bool) -> tuple[str, str]:
    """How it stands with a person's login, and what to do about it."""
    if standing.ended:
        since = "has ended" if standing.ended_at is None else f"ended at {_time(standing.ended_at)}"
        return f"the login {since} ({standing.ended})", _again(name)
    if not standing.logged_in and standing.ends_at is not None:
        return f"the login ended at {_time(standing.ends_at)}, and nothing was given to renew it with", _again(name)
    if not standing.logged_in:
        return "nobody has logged in yet", f"log in: {_command(name)}; or, if you were given a token, put it into {_HEADER}"
    if denied and (lacking := _lacking(challenge, standing)):
        return f"the login lacks {_scopes(lacking)}", f"{_command(name)} asks for it as well"
    if denied:
        return "the login may not do this", f"ask whoever runs it for the right, or log in as somebody else: {_command(name)}"
    return "the login that there is was not accepted", f"{_again(name)}; if that ends the same, ask whoever runs the server"


def _lacking(challenge: Challenge | None, standing: LoginStatus) -> list[str]:
    """The scopes that the server asks for, and that the login is not known to hold for."""
    named = (*((challenge.scopes if challenge else None) or ()), *standing.wanted)
    return [scope for scope in dict.fromkeys(named) if scope not in (standing.scopes or ())]


def _scopes(names: list[str]) -> str:
    return f"the scope{'s' if names[1:] else ''} {line(' '.join(names), 200)}"


def _time(seconds: float) -> str:
    """A moment for people. A record may hold any number."""
    return f"{datetime.fromtimestamp(min(max(0.0, seconds), _LATEST), UTC):%Y-%m-%d %H:%M} UTC"


def _command(name: str) -> str:
    return f"toolbay login {shlex.quote(name)}"


def _again(name: str) -> str:
    return f"log in again: {_command(name)}"
