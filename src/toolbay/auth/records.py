"""What is known of a login, as values: the authorization server, who we are there, and the tokens that it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias, cast

Method: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post"]
"""How we say at a token endpoint who we are (RFC 6749, 2.3.1; RFC 7591, 2)."""
VERSION = 1
"""Of what is written; a record of another version is not read."""


PATIENCE: Final = 300.0
"""Seconds that a login may take, the person's time included, where nobody says another number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Authority:
    """An authorization server as discovery found it. Every address in it was judged and may be used."""

    issuer: str
    """Its name (RFC 8414, 2), exactly as it says it; where a server of the 2025-03 era has none, the server's own origin."""
    resource: str
    """What tokens are asked for (RFC 8707)."""
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    """Empty where clients cannot ask for an id by themselves."""
    revocation_endpoint: str = ""
    scopes: tuple[str, ...] | None = None
    """What the protected resource says may be asked for (RFC 9728, 2); None where it does not say."""
    offline_access: bool = False
    """Whether it knows the scope `offline_access`, without which it gives no refresh token."""
    methods: tuple[str, ...] = ()
    """`token_endpoint_auth_methods_supported`, as it says them."""
    names_itself: bool = False
    """Whether its answers carry `iss` (RFC 9207)."""
    takes_addresses: bool = False
    """Whether a client id may be the address of a document about the client (CIMD)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """Who we are at one authorization server."""

    id: str
    issuer: str
    """Where this id counts; it is shown to nobody else."""
    secret: str = field(default="", repr=False)
    method: Method = "none"
    redirect_uri: str = ""
    """The address on this machine that it was registered with; empty where any was."""
    ends_at: float | None = None
    """When the secret ends, in seconds since 1970; None: never."""
    asked_for: bool = False
    """Whether the id was given on our own request, so that another may be asked for."""
    scopes: tuple[str, ...] | None = None
    """What may be asked for under that id, as it was asked for with; None where nothing was said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """What a token endpoint gave."""

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    ends_at: float | None = None
    """When `access` ends, in seconds since 1970; None where nobody said."""
    scopes: tuple[str, ...] | None = None
    """What it holds for; None where nobody said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """One login with one server."""

    server: str = ""
    """The server's name in the configuration at the time; empty where nobody noted it."""
    url: str
    """The server's address."""
    authority: Authority
    client: Client
    tokens: Tokens | None = None
    """None: they ended and could not be renewed, or it was never completed."""
    wanted: tuple[str, ...] = ()
    """Scopes that the server has asked for since, which the tokens lack: the next login asks for them too, where no `scopes` are set."""
    ended: str = ""
    """Why there are no tokens any more: a clause."""
    ended_at: float | None = None
    """Since when, in seconds since 1970; None where nobody noted it."""
    mark: str = field(default_factory=lambda: token_hex(8), compare=False)
    """Tells it from every other login with this server, which may be another person's; it stays when the login is renewed."""

    @property
    def secrets(self) -> frozenset[str]:
        """What must not be shown."""
        tokens = (self.tokens.access, self.tokens.refresh) if self.tokens else ()
        return frozenset(value for value in (*tokens, self.client.secret) if value)

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: object) -> Login:
        """What `as_json` made. Raises ValueError for anything else: a record that was damaged is not guessed at."""
        given = _object(data)
        if given.get("version") != VERSION:
            raise ValueError("it is of another version")
        tokens = given.get("tokens")
        return cls(
            server=_text(given, "server") if "server" in given else "",
            url=_text(given, "url"),
            authority=_authority(_object(given.get("authority"))),
            client=_client(_object(given.get("client"))),
            tokens=None if tokens is None else _tokens(_object(tokens)),
            wanted=_texts(given.get("wanted")) or (),
            ended=_text(given, "ended"),
            ended_at=_time(given.get("ended_at")),
            mark=_text(given, "mark") if "mark" in given else "",
        )


def _authority(given: Mapping[str, Any]) -> Authority:
    return Authority(
        issuer=_text(given, "issuer"),
        resource=_text(given, "resource"),
        token_endpoint=_text(given, "token_endpoint"),
        authorization_endpoint=_text(given, "authorization_endpoint"),
        registration_endpoint=_text(given, "registration_endpoint"),
        revocation_endpoint=_text(given, "revocation_endpoint"),
        scopes=_texts(given.get("scopes")),
        offline_access=_flag(given, "offline_access"),
        methods=_texts(given.get("methods")) or (),
        names_itself=_flag(given, "names_itself"),
        takes_addresses=_flag(given, "takes_addresses"),
    )


def _client(given: Mapping[str, Any]) -> Client:
    method = _text(given, "method")
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        raise ValueError("it names an unknown way to say who we are")
    return Client(
        id=_text(given, "id"),
        issuer=_text(given, "issuer"),
        secret=_text(given, "secret"),
        redirect_uri=_text(given, "redirect_uri"),
        method=method,
        ends_at=_time(given.get("ends_at")),
        asked_for=_flag(given, "asked_for"),
        scopes=_texts(given.get("scopes")),
    )


def _tokens(given: Mapping[str, Any]) -> Tokens:
    access = _text(given, "access")
    if not access:
        raise ValueError("it has an empty token")
    return Tokens(access=access, refresh=_text(given, "refresh"), ends_at=_time(given.get("ends_at")), scopes=_texts(given.get("scopes")))


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is missing")  # noqa: TRY004 - all that is wrong with a record is one kind of error
    return cast("dict[str, Any]", value)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not _is_whole(value):
        raise ValueError(f"{name} is no text")
    return value


def _is_whole(text: str) -> bool:
    """Whether it can be sent: JSON may hold halves of characters."""
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")  # noqa: TRY004
    return value


def _texts(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) and _is_whole(item) for item in cast("list[object]", value)):
        raise ValueError("a list of texts is missing")
    return tuple(cast("list[str]", value))


def _time(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a time is no number")  # noqa: TRY004
    return float(value)
