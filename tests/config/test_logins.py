"""How a server's entry says that one logs in: the `auth` key, and what other clients write in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay import config
from toolbay.config import Config, InvalidServer, ServerConfig
from toolbay.config.models import LoginConfig

ENVIRON = {"HOME": "/home/me", "TOKEN": "canary-123456"}
URL = "https://h/mcp"


def read(entry: Any) -> Config:
    return config.parse({"mcpServers": {"s": entry}}, environ=ENVIRON)


def server(entry: Any) -> ServerConfig:
    found = read({"url": URL, **entry}).tools.mcp_servers["s"]
    assert isinstance(found, ServerConfig), found
    return found


def faults(entry: Any) -> tuple[str, ...]:
    found = read({"url": URL, **entry}).tools.mcp_servers["s"]
    assert isinstance(found, InvalidServer), found
    return found.told


def told(entry: Any) -> dict[str, str]:
    return {problem.where.removeprefix("mcpServers.s."): problem.text for problem in read({"url": URL, **entry}).problems}


@pytest.mark.parametrize(
    ("auth", "kind"), [("oauth", "oauth"), (True, "oauth"), ({}, "oauth"), ("none", "none"), (False, "none"), ({"type": "none"}, "none")]
)
def test_a_login_has_short_forms(auth: Any, kind: str) -> None:
    """CFG-2: a word or a switch stands for an object; nothing is said about it."""
    assert server({"auth": auth}).auth == LoginConfig.model_validate({"type": kind})
    assert not told({"auth": auth})


def test_without_auth_nothing_is_said_of_a_login() -> None:
    """CFG-3: the default, and null."""
    assert server({}).auth is None
    assert server({"auth": None, "oauth": None}).auth is None
    assert not told({"auth": None, "oauth": None})


@pytest.mark.parametrize("token", ["canary-bearer-abcdef", "Bearer canary-bearer-abcdef", "basic", "client-credentials"])
def test_a_token_in_the_place_of_a_login_is_told_without_it(token: str) -> None:
    """CFG-5, CFG-6: some clients take one there; where it belongs is said, and what it is, is not."""
    (fault,) = faults({"auth": token})
    assert fault.startswith('Server "s" has a key `auth` that must be oauth, none, or an object; ')
    assert fault.endswith("; a token belongs into `headers`, as Authorization: Bearer ${TOKEN}.")
    found = read({"url": URL, "auth": token, "description": f"it is {token}"})
    assert token in found.secrets or len(token) < 6


@pytest.mark.parametrize(
    ("auth", "fault"),
    [
        ("client_credentials", "`auth` that must have `clientId` and `clientSecret`, for with the type client_credentials"),
        ({"type": "client_credentials", "clientId": "a"}, "`auth` that must have `clientId` and `clientSecret`"),
        ({"type": "client_credentials", "clientSecret": "canary-s3cret"}, "`auth` that must have `clientId` and `clientSecret`"),
        ({"type": "bearer"}, "`auth.type` that must be 'oauth', 'client_credentials' or 'none'"),
        (7, "`auth` that must be oauth, none, or an object"),
        (["oauth"], "`auth` that must be oauth, none, or an object"),
        ({"clientId": 7}, "`auth.clientId` that must be text"),
        (
            {"clientId": "a", "clientSecret": "canary-s3cret\n"},
            "`auth.clientSecret` that must be one line of ASCII without spaces around it",
        ),
        ({"scopes": ["files:read files:write"]}, "`auth.scopes.0` that must be one scope"),
        ({"scopes": {"a": 1}}, "`auth.scopes` that must be a list"),
        ({"callbackPort": 70000}, "`auth.callbackPort` that must be at most 65535"),
        ({"callback_port": "many"}, "`auth.callbackPort` that must be a whole number"),
        (
            {"callbackPort": 8765, "callbackUrl": "http://localhost:8765/callback"},
            "`auth` that must have `callbackPort` or `callbackUrl`, not both",
        ),
        *(
            ({"callbackUrl": url}, "`auth.callbackUrl` that must be an http address of this machine with a port and without query")
            for url in (
                "http://canary.example.com:8765/callback",
                "https://localhost:8765/canary",
                "http://localhost/canary",
                "http://localhost:0/canary",
                "http://localhost:65536/canary",
                "http://localhost:8765/canary?x=1",
                "http://localhost:8765/canary#x",
                "http://localhost:8765/a/../canary",
                "http://localhost:8765/can ary",
                "http://canary@localhost:8765/",
                "http://localhost.canary.com:8765/",
                "http://0.0.0.0:8765/canary",
                "http://127.0.0.2:8765/canary",
                "http://[::1:8765/canary",
                "canary://localhost:8765/",
            )
        ),
        *(
            ({"clientMetadataUrl": url}, "`auth.clientMetadataUrl` that must be an https address with a path")
            for url in (
                "https://canary-example.com",
                "https://canary-example.com/",
                "http://canary-example.com/c.json",
                "https://me:pw@canary-example.com/c.json",
                "https://canary-example.com/c.json#x",
                "https:///c.json",
                "canary-example.com/c.json",
                "https://canary-example.com/c d",
                "https://canary-example.com:x/c.json",
            )
        ),
        *(
            ({"issuer": url}, "`auth.issuer` that must be an https address (or http on this machine)")
            for url in (
                "http://canary-example.com",
                "http://127.0.0.1.canary-example.com",
                "https://canary-example.com?a=b",
                "https://canary-example.com#a",
                "https://canary@example.com",
                "file:///canary",
                "canary-example.com",
                "https://[canary",
            )
        ),
        *(
            ({"hosts": [host]}, "`auth.hosts.0` that must be the name of a host, such as login.example.com, without scheme, port and path")
            for host in (
                "https://canary.example.com",
                "canary.example.com:443",
                "canary.example.com/x",
                "*.canary.com",
                "",
                "canary..com",
                "a b",
            )
        ),
        ({"hosts": "canary.example.com"}, "`auth.hosts` that must be a list"),
    ],
)
def test_what_cannot_be_meant_is_a_fault_of_that_server(auth: Any, fault: str) -> None:
    """CFG-6: one sentence with the key and the mend; it shows no value."""
    (said,) = faults({"auth": auth})
    assert said.startswith(f'Server "s" has a key {fault}')
    assert "canary" not in said
    assert said.endswith(".")
    assert "\n" not in said


def test_a_reference_that_cannot_be_resolved_is_told_by_its_key() -> None:
    """CFG-5: as it is written in files."""
    (fault,) = faults({"auth": {"client_id": "a", "client_secret": "${NOT_THERE}"}})
    assert "`auth.clientSecret`" in fault
    assert "NOT_THERE" in fault


def test_what_can_be_meant_is_taken() -> None:
    """CFG-2: both cases of keys, references, scopes as a list and as OAuth writes them, addresses on this machine."""
    auth = server(
        {
            "auth": {
                "type": "client_credentials",
                "client_id": "me",
                "clientSecret": "${TOKEN}",
                "scopes": " files:read  files:write ",
                "issuer": "http://127.0.0.1:8080/realms/a",
                "hosts": ["Login.Example.com", "10.0.0.1"],
                "clientMetadataUrl": "https://example.com/c.json",
                "callback_port": 8123,
                "assumePkce": True,
            }
        }
    ).auth
    assert auth == LoginConfig(
        type="client_credentials",
        client_id="me",
        client_secret="canary-123456",
        scopes=("files:read", "files:write"),
        issuer="http://127.0.0.1:8080/realms/a",
        hosts=("login.example.com", "10.0.0.1"),
        client_metadata_url="https://example.com/c.json",
        callback_port=8123,
        assume_pkce=True,
    )
    for issuer in ("https://login.example.com", "https://login.example.com:8443/a/", "http://localhost", "http://[::1]:9"):
        assert server({"auth": {"issuer": issuer}}).auth == LoginConfig(issuer=issuer)


def test_keys_of_a_login_that_mean_nothing_are_told() -> None:
    """CFG-6: inside `auth` as elsewhere, with the nearest; null is the default."""
    entry = {"auth": {"clientIdd": "a", "issuer": None, "x-why": "b"}}
    assert told(entry) == {"auth.clientIdd": "The key `clientIdd` is not known and is ignored; did you mean `clientId`?"}
    assert server(entry).auth == LoginConfig()


@pytest.mark.parametrize(
    ("entry", "where", "said"),
    [
        ({"url": None, "command": "x", "auth": "oauth"}, "auth", "has no effect, for the type is stdio"),
        ({"headers": {"authorization": "Bearer x"}, "auth": "oauth"}, "auth", "has no effect, for `headers` has Authorization too"),
        ({"auth": {"clientSecret": "canary-s3cret"}}, "auth.clientSecret", "has no effect without `clientId`"),
        ({"auth": {"clientId": "a", "clientSecret": "{env:SECRET}", "callbackPort": 1}}, "auth.clientSecret", "another client's reference"),
    ],
)
def test_a_login_that_nobody_will_use_is_told(entry: Any, where: str, said: str) -> None:
    """CFG-6: a setting without effect is not silent."""
    ((place, text),) = told(entry).items()
    assert place == where
    assert said in text
    assert isinstance(read({"url": URL, **entry}).tools.mcp_servers["s"], ServerConfig)


def test_addresses_of_this_machine_are_taken_to_the_letter() -> None:
    """CFG-2: what a client was registered with is what is told."""
    for url in ("http://localhost:3118/callback", "http://127.0.0.1:1/oauth/done", "http://[::1]:65535", "http://localhost:8765/"):
        auth = server({"auth": {"clientId": "a", "callbackUrl": url}}).auth
        assert auth is not None
        assert (auth.callback_url, auth.redirect_uri) == (url, url)
        assert not told({"auth": {"clientId": "a", "callbackUrl": url}})
    assert LoginConfig(callback_port=8765).redirect_uri == "http://127.0.0.1:8765/callback"
    assert not LoginConfig().redirect_uri


def test_a_program_that_logs_in_by_itself_needs_no_port() -> None:
    """CFG-6: no browser comes back to it."""
    assert not told({"auth": {"type": "client_credentials", "clientId": "a", "clientSecret": "canary-s3cret", "issuer": "https://i.org"}})


def test_that_nobody_logs_in_is_worth_no_word_anywhere() -> None:
    """CFG-6: `auth: none` says what is so in any case."""
    assert not told({"url": None, "command": "x", "auth": "none"})
    assert not told({"headers": {"Authorization": "Bearer x"}, "auth": False})


@pytest.mark.parametrize(
    ("entry", "meant", "where"),
    [
        # Claude Code
        (
            {"oauth": {"clientId": "a", "callbackPort": 8080}},
            {"client_id": "a", "callback_url": "http://localhost:8080/callback"},
            ["oauth", "oauth.callbackPort"],
        ),
        (
            {"oauth": {"authServerMetadataUrl": "https://idp.example.com/.well-known/openid-configuration", "scopes": "a b"}},
            {"issuer": "https://idp.example.com", "scopes": ("a", "b")},
            ["oauth", "oauth.authServerMetadataUrl"],
        ),
        (
            {"oauth": {"authServerMetadataUrl": "https://idp.example.com/.well-known/oauth-authorization-server/realm"}},
            {"issuer": "https://idp.example.com/realm"},
            ["oauth", "oauth.authServerMetadataUrl"],
        ),
        (
            {"oauth": {"authServerMetadataUrl": "https://idp.example.com/realm/.well-known/openid-configuration"}},
            {"issuer": "https://idp.example.com/realm"},
            ["oauth", "oauth.authServerMetadataUrl"],
        ),
        # Cursor
        (
            {"auth": {"CLIENT_ID": "a", "CLIENT_SECRET": "canary-s3cret", "scopes": ["b"]}},
            {"client_id": "a", "client_secret": "canary-s3cret", "scopes": ("b",)},
            ["auth.CLIENT_ID", "auth.CLIENT_SECRET"],
        ),
        # opencode
        (
            {"oauth": {"clientId": "a", "clientSecret": "${TOKEN}", "scope": "b c"}},
            {"client_id": "a", "client_secret": "canary-123456", "scopes": ("b", "c")},
            ["oauth", "oauth.scope"],
        ),
        ({"oauth": False}, {"type": "none"}, ["oauth"]),
        ({"oauth": {}}, {}, ["oauth"]),
        # Gemini CLI
        (
            {"oauth": {"enabled": True, "clientId": "a", "scopes": ["b"], "issuer": "https://i.example.com"}},
            {"client_id": "a", "scopes": ("b",), "issuer": "https://i.example.com"},
            ["oauth", "oauth.enabled"],
        ),
        ({"oauth": {"enabled": False}}, {"type": "none"}, ["oauth", "oauth.enabled"]),
        # Codex
        ({"oauth": {"client_id": "a"}, "scopes": ["b"]}, {"client_id": "a", "scopes": ("b",)}, ["oauth", "scopes"]),
        # Kiro
        ({"oauthScopes": ["b"]}, {"scopes": ("b",)}, ["oauthScopes"]),
        # mcpproxy-go
        (
            {"oauth": {"client_id": "a", "redirect_uri": "http://127.0.0.1:8123/callback", "pkce_enabled": True}},
            {"client_id": "a", "callback_url": "http://127.0.0.1:8123/callback"},
            ["oauth", "oauth.pkce_enabled", "oauth.redirect_uri"],
        ),
        # others, whose address is not ours
        (
            {"oauth": {"clientId": "a", "redirectUri": "http://localhost:7777/oauth/callback", "callbackPort": None}},
            {"client_id": "a", "callback_url": "http://localhost:7777/oauth/callback"},
            ["oauth", "oauth.redirectUri"],
        ),
        # both at once, where one is only a switch
        ({"auth": "oauth", "oauth": {"clientId": "a"}}, {"client_id": "a"}, ["oauth"]),
        (
            {"oauth": {"grantType": "client_credentials", "clientId": "a", "clientSecret": "canary-s3cret"}},
            None,
            ["oauth", "oauth.grantType"],
        ),
    ],
)
def test_other_clients_logins_are_understood_and_told(entry: Any, meant: Any, where: list[str]) -> None:
    """CFG-6: a copied entry works; each key that is not ours is named once, and no value is."""
    if meant is None:
        meant = {"type": "client_credentials", "client_id": "a", "client_secret": "canary-s3cret"}
    found = server(entry).auth
    assert found is not None
    assert found == LoginConfig(**meant)
    any_port = found.type == "oauth" and found.client_id and not found.redirect_uri
    nobody = found.type == "client_credentials" and not found.issuer
    expected = [*where, *(["auth.clientId"] if any_port else []), *(["auth.clientSecret"] if nobody else [])]
    assert sorted(told(entry)) == sorted(expected)
    assert "canary" not in json.dumps(told(entry))


@pytest.mark.parametrize(
    ("entry", "where", "said"),
    [
        ({"oauth": {"tokenUrl": "https://x"}}, "oauth.tokenUrl", "the authorization server says its addresses itself"),
        ({"oauth": {"authorization_url": "https://x"}}, "oauth.authorization_url", "the authorization server says its addresses itself"),
        ({"oauth": {"redirectUri": "cursor://anysphere.cursor-retrieval/oauth"}}, "oauth.redirectUri", "http://127.0.0.1:8765/callback"),
        ({"auth": {"clientId": "a"}}, "auth.clientId", "set the one that this client was registered with"),
        (
            {"auth": {"type": "client_credentials", "clientId": "a", "clientSecret": "canary-s"}},
            "auth.clientSecret",
            "`toolbay login NAME` says which one the server names",
        ),
        ({"oauth": {"audiences": ["a"]}}, "oauth.audiences", "there is nothing like it here"),
        ({"oauth": {"authServerMetadataUrl": "https://x/y"}}, "oauth.authServerMetadataUrl", "name it by `issuer`"),
        ({"oauth": "yes"}, "oauth", "neither an object nor true or false"),
        ({"auth": "none", "oauth": {"clientId": "a"}}, "oauth", "`auth` is there too"),
        ({"auth": {"clientId": "a", "client-id": "b"}}, "auth.client-id", "`clientId` is there too"),
        ({"auth": {"scopes": ["a"]}, "scopes": ["b"]}, "scopes", "`auth` says what is asked for"),
        ({"authProviderType": "dynamic_discovery"}, "authProviderType", "how to log in is said by `auth`"),
        ({"oauth_resource": "https://x"}, "oauth_resource", "what a login is for is said by the server"),
    ],
)
def test_what_has_no_equivalent_is_told(entry: Any, where: str, said: str) -> None:
    """CFG-6: what is ignored is named with what helps."""
    assert said in told(entry)[where]
    assert isinstance(read({"url": URL, **entry}).tools.mcp_servers["s"], ServerConfig)


@pytest.mark.parametrize(
    ("entry", "headers"),
    [
        ({"bearer_token_env_var": "TOKEN"}, {"Authorization": "Bearer canary-123456"}),
        ({"auth": {"type": "static", "api_key_env": "TOKEN"}}, {"Authorization": "Bearer canary-123456"}),
        (
            {"auth": {"api_key_env": "TOKEN", "api_key_header": "X-Key", "api_key_format": "{token}"}, "headers": {"X-A": "b"}},
            {"X-A": "b", "X-Key": "canary-123456"},
        ),
        ({"bearer_token_env_var": "TOKEN", "headers": {"authorization": "Bearer mine"}}, {"authorization": "Bearer mine"}),
    ],
)
def test_a_token_that_is_named_by_its_variable_becomes_a_header(entry: Any, headers: dict[str, str]) -> None:
    """CFG-5, CFG-6: the words of Codex and Vibe; the value is masked as any other of a header."""
    found = read({"url": URL, **entry})
    assert server(entry).headers == headers
    assert server(entry).auth is None
    assert len(found.problems) == 1
    assert "canary" not in found.problems[0].text
    assert {value for value in headers.values() if "canary" in value} <= found.secrets


def test_a_token_in_the_place_of_its_variable_is_told_without_it() -> None:
    """CFG-5, CFG-8: pasted where a name belongs, it is neither used nor shown."""
    entry = {"bearer_token_env_var": "canary-pasted-token"}
    assert server(entry).headers == {}
    assert "names no environment variable" in told(entry)["bearer_token_env_var"]
    assert "canary" not in json.dumps(told(entry))
    (fault,) = faults({"bearer_token_env_var": "NOT_THERE"})
    assert "NOT_THERE" in fault


words = st.sampled_from(["oauth", "auth", "scopes", "oauthScopes", "bearer_token_env_var", "headers"])
keys = st.sampled_from(
    ["clientId", "CLIENT_SECRET", "scope", "enabled", "redirect_uri", "authServerMetadataUrl", "api_key_env", "type", "x", ""]
)
leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4), max_size=2)


@given(st.dictionaries(words, leaves | st.dictionaries(keys, leaves, max_size=4), max_size=4))
def test_whatever_stands_there_is_a_server_or_a_reason(entry: dict[str, Any]) -> None:
    """CFG-6: no shape of a login raises, and what is said is one line."""
    found = read({"url": URL, **entry})
    one = found.tools.mcp_servers["s"]
    for text in (*(problem.text for problem in found.problems), *(one.told if isinstance(one, InvalidServer) else ())):
        assert "\n" not in text
        assert text.endswith((".", "?"))
