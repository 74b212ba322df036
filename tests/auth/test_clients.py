"""Who we are at an authorization server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from servers.raw_http import Step
from support.authorities import Place, place, told
from toolbay.auth.clients import client_for, current, usable
from toolbay.auth.records import Authority, Client, Method
from toolbay.config.models import LoginConfig
from toolbay.errors import LoginFailed

pytestmark = pytest.mark.anyio
BACK = "http://127.0.0.1:7777/callback"
DOCUMENT = "https://example.org/toolbay.json"
BY_HAND = LoginConfig(client_id="by-hand", client_secret="canary-by-hand")
WITH_SECRET = {"client_id": "a", "token_endpoint_auth_method": "client_secret_basic"}


async def client(at: Place, config: LoginConfig | None = None, *, known: Client | None = None, **authority: Any) -> Client:
    return await client_for(
        at.web, at.authority(**authority), config or LoginConfig(), redirect_uri=BACK, scopes=("read", "write"), known=known
    )


async def test_an_id_is_asked_for_as_a_native_client() -> None:
    """H4: RFC 7591, with application_type, both grants and the scopes; public where that may be."""
    async with place() as at:
        got = await client(at)
        assert at.oauth.registrations == [
            {
                "client_name": "Toolbay",
                "redirect_uris": [BACK],
                "application_type": "native",
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
                "scope": "read write",
            }
        ]
        assert got == Client(id="client-1", issuer=at.oauth.issuer, redirect_uri=BACK, asked_for=True, scopes=("read", "write"))


async def test_an_id_is_asked_for_with_all_that_the_server_may_want() -> None:
    """H4: a login that needs more later must not be refused since its client never named that."""
    async with place() as at:
        got = await client(at, scopes=("read", "admin"))
        assert got.scopes == ("read", "write", "admin")
        assert at.oauth.registrations[-1]["scope"] == "read write admin"


@pytest.mark.parametrize(
    ("methods", "method"),
    [
        (("client_secret_post", "client_secret_basic"), "client_secret_post"),
        (("private_key_jwt", "client_secret_basic", "client_secret_post"), "client_secret_basic"),
        (("client_secret_basic", "none"), "none"),
    ],
)
async def test_a_client_says_who_it_is_in_a_way_that_is_known_there(methods: tuple[str, ...], method: str) -> None:
    """H4: none where that may be, else the first way with a secret that the authorization server names."""
    async with place() as at:
        at.oauth.auth_methods = methods
        at.oauth.secret_ends = 2_000_000_000
        got = await client(at)
        secret = method != "none"
        assert (got.method, bool(got.secret), got.ends_at) == (method, secret, 2e9 if secret else None)


@pytest.mark.parametrize(
    ("answer", "methods", "expected"),
    [
        ({}, ("none",), ("none", "")),
        ({"client_secret": "canary-s"}, ("none",), ("none", "")),
        ({"client_secret": "canary-s"}, (), ("client_secret_basic", "canary-s")),
        ({"client_secret": "canary-s", "token_endpoint_auth_method": "client_secret_post"}, (), ("client_secret_post", "canary-s")),
        ({"client_secret": "canary-s", "token_endpoint_auth_method": "none"}, (), ("none", "")),
        ({"client_secret": "canary-s"}, ("client_secret_post",), ("client_secret_post", "canary-s")),
    ],
)
async def test_what_a_registration_says_counts_before_what_was_asked(
    answer: dict[str, Any], methods: tuple[str, ...], expected: tuple[str, str]
) -> None:
    """H4: RFC 7591, 3.2.1: the server may give another way than was asked for, or not say which it gave."""
    async with place() as at:
        at.oauth.auth_methods = (*methods, "none")
        at.oauth.registered = {"token_endpoint_auth_method": None, **answer}
        if methods == ("client_secret_post",):
            at.oauth.auth_methods = methods
            at.oauth.registered["client_secret"] = "canary-s"
        got = await client(at, methods=methods)
        assert (got.method, got.secret) == expected


@pytest.mark.parametrize(
    ("said", "ends_at"), [(0, None), (-1, None), ("soon", None), (True, None), (10**400, 1e11), (17.5, 17.5), (None, None)]
)
async def test_when_a_secret_ends_is_read_leniently(said: object, ends_at: float | None) -> None:
    """H4: 0 is never, and what is no time says nothing."""
    async with place() as at:
        at.oauth.auth_methods = ("client_secret_post",)
        at.oauth.registered = {"client_secret_expires_at": said}
        assert (await client(at)).ends_at == ends_at


async def test_an_id_that_was_given_by_hand_goes_before_all_others() -> None:
    """H4: pre-registered, then an address of our own, then an id that is asked for."""
    async with place() as at:
        full = LoginConfig(client_id="by-hand", client_secret="canary-by-hand", client_metadata_url=DOCUMENT)
        got = await client(at, full, takes_addresses=True)
        assert got == Client(id="by-hand", secret="canary-by-hand", issuer=at.oauth.issuer, method="client_secret_basic")
        public = await client(at, LoginConfig(client_id="by-hand"))
        assert public == Client(id="by-hand", issuer=at.oauth.issuer)
        ours = LoginConfig(client_metadata_url=DOCUMENT)
        assert await client(at, ours, takes_addresses=True) == Client(id=DOCUMENT, issuer=at.oauth.issuer)
        assert at.oauth.registrations == []
        assert (await client(at, ours, takes_addresses=False)).asked_for


@pytest.mark.parametrize("methods", [(), ("client_secret_basic",), ("client_secret_post",), ("private_key_jwt",)])
async def test_a_secret_that_was_given_by_hand_is_shown_as_it_is_taken(methods: tuple[str, ...]) -> None:
    """H4: basic, unless only the form is known there."""
    async with place() as at:
        got = await client(at, BY_HAND, methods=methods)
        assert got.method == ("client_secret_post" if methods == ("client_secret_post",) else "client_secret_basic")


async def test_attack_08_an_id_that_was_given_by_hand_is_not_shown_to_another_authorization_server() -> None:
    """SEC: attack 8: a server that names another one than before gets neither id nor secret there until a person has named it."""
    async with place() as at:
        before = Client(id="by-hand", secret="canary-by-hand", issuer="https://before.example", method="client_secret_basic")
        with pytest.raises(LoginFailed, match="another authorization server") as error:
            await client(at, BY_HAND, known=before)
        assert "https://before.example" in str(error.value)
        assert at.oauth.issuer in str(error.value)
        assert "canary-" not in str(error.value)
        named = BY_HAND.model_copy(update={"issuer": at.oauth.issuer})
        assert (await client(at, named, known=before)).issuer == at.oauth.issuer
        asked_for = replace(before, id="other", asked_for=True)
        assert (await client(at, BY_HAND, known=asked_for)).issuer == at.oauth.issuer
        assert at.oauth.connections == 0


async def test_where_nobody_is_given_an_id_the_mend_is_told() -> None:
    """H4: a client can always be registered by hand."""
    async with place() as at:
        with pytest.raises(LoginFailed, match=r"auth: \{clientId"):
            await client(at, registration_endpoint="")
        assert at.oauth.registrations == []


async def test_a_registration_is_tried_without_scopes_where_it_fails_with_them() -> None:
    """H4: some let no client name them beforehand."""
    async with place() as at:
        at.oauth.steps["register"] = [told(400, b'{"error": "invalid_client_metadata"}'), Step()]
        assert (await client(at)).asked_for
        assert "scope" not in at.oauth.registrations[-1]
        assert at.oauth.paths["/register"] == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            told(400, b'{"error": "invalid_redirect_uri", "error_description": "no \x1b[31mloopback"}', Content_Type="application/json"),
            "HTTP 400",
        ),
        (told(403, b"<html>no</html>", Content_Type="text/html"), "HTTP 403"),
        (told(201, b"{}"), "HTTP 201"),
        (told(200, b"welcome"), "HTTP 200"),
        (told(302, Location="https://evil.example/"), "HTTP 302"),
        (told(201, b'{"client_id": "a\\nb"}'), "client id that is none"),
        (told(201, b'{"client_id": "a\\ud800"}'), "client id that is none"),
        (told(201, json.dumps({"client_id": "a" * 2_001}).encode()), "client id that is none"),
        (told(201, json.dumps({**WITH_SECRET, "client_secret": "canary-\ud800"}).encode()), "client secret that is none"),
        (told(201, json.dumps({**WITH_SECRET, "client_secret": "canary-\u00e9"}).encode()), "client secret that is none"),
        (told(201, json.dumps({**WITH_SECRET, "client_secret": "canary-" + "s" * 8_000}).encode()), "client secret that is none"),
        (told(201, b'{"client_id": "a", "token_endpoint_auth_method": "private_key_jwt"}'), "not supported"),
        (told(201, b'{"client_id": "a", "token_endpoint_auth_method": "client_secret_basic"}'), "not supported"),
    ],
)
async def test_a_registration_that_gives_no_id_is_told_with_its_mend(answer: Step, says: str) -> None:
    """H4: why, on one line without control characters, and what to do."""
    async with place() as at:
        at.oauth.steps["register"] = [answer]
        with pytest.raises(LoginFailed, match=says) as error:
            await client(at)
        assert not error.value.retriable
        assert "clientId" in str(error.value)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_registration_that_fails_for_now_may_be_tried_again(status: int) -> None:
    """H4: and is tried once only."""
    async with place() as at:
        at.oauth.steps["register"] = [told(status)]
        with pytest.raises(LoginFailed, match="try again later") as error:
            await client(at)
        assert error.value.retriable
        assert at.oauth.paths["/register"] == 1


THERE = Authority(
    issuer="https://as.example", resource="https://example.org", token_endpoint="https://as.example/token", takes_addresses=True
)


@pytest.mark.parametrize(
    ("client", "config", "expected"),
    [
        (Client(id="a", issuer="https://as.example", asked_for=True), {}, True),
        (Client(id="a", issuer="https://other.example", asked_for=True), {}, False),
        (Client(id="a", issuer="https://as.example/", asked_for=True), {}, False),
        (Client(id="a", issuer="https://as.example", asked_for=True, ends_at=1_031.0), {}, True),
        (Client(id="a", issuer="https://as.example", asked_for=True, ends_at=1_030.0), {}, False),
        (Client(id="a", issuer="https://as.example", asked_for=True, scopes=("read", "write", "more")), {}, True),
        (Client(id="a", issuer="https://as.example", asked_for=True, scopes=("read",)), {}, False),
        (Client(id="a", issuer="https://as.example", asked_for=True), {"client_id": "b"}, False),
        (Client(id="b", issuer="https://as.example"), {"client_id": "b"}, True),
        (Client(id="b", issuer="https://as.example"), {"client_id": "b", "client_secret": "canary-new"}, False),
        (Client(id="b", issuer="https://as.example"), {}, False),
        (Client(id=DOCUMENT, issuer="https://as.example"), {"client_metadata_url": DOCUMENT}, True),
        (Client(id=DOCUMENT, issuer="https://as.example"), {"client_metadata_url": f"{DOCUMENT}2"}, False),
    ],
)
def test_a_client_of_an_earlier_login_serves_where_it_counts_still(client: Client, config: dict[str, str], expected: bool) -> None:
    """SEC: attack 10: only where it was given, while its secret lasts, for what it may ask, while it is configured."""
    assert usable(client, THERE, LoginConfig.model_validate(config), scopes=("read", "write"), now=lambda: 1_000.0) is expected


def test_an_address_of_our_own_goes_before_an_id_that_was_asked_for() -> None:
    """H4: pre-registered, address, registration, in this order: also for who was registered before the address was set."""
    asked_for = Client(id="a", issuer=THERE.issuer, asked_for=True)
    config = LoginConfig(client_metadata_url=DOCUMENT)
    assert not usable(asked_for, replace(THERE, takes_addresses=True), config, scopes=(), now=lambda: 0.0)
    assert usable(asked_for, replace(THERE, takes_addresses=False), config, scopes=(), now=lambda: 0.0)
    assert usable(
        replace(asked_for, id=DOCUMENT, asked_for=False), replace(THERE, takes_addresses=True), config, scopes=(), now=lambda: 0.0
    )


@pytest.mark.parametrize(
    ("kept", "config", "expected"),
    [
        (("given", "canary-old", "client_secret_post"), BY_HAND, ("given", "canary-old", "client_secret_post")),
        (("by-hand", "canary-old", "client_secret_post"), BY_HAND, ("by-hand", "canary-by-hand", "client_secret_post")),
        (("by-hand", "", "none"), BY_HAND, ("by-hand", "canary-by-hand", "client_secret_basic")),
        (("by-hand", "canary-old", "client_secret_post"), LoginConfig(client_id="by-hand"), ("by-hand", "", "none")),
    ],
)
def test_a_client_by_hand_has_the_secret_that_is_configured_now(
    kept: tuple[str, str, Method], config: LoginConfig, expected: tuple[str, str, Method]
) -> None:
    """H4: a secret is changed while a login goes on; what was asked for has its own."""
    client = current(Client(id=kept[0], issuer=THERE.issuer, secret=kept[1], method=kept[2]), THERE, config)
    assert (client.id, client.secret, client.method) == expected
    asked_for = Client(id="by-hand", issuer=THERE.issuer, asked_for=True)
    assert current(asked_for, THERE, config) == asked_for
