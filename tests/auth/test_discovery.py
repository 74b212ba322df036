"""From a server's address to its authorization server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.raw_http import RawHttp, Request, Step
from servers.raw_oauth import RawOAuth
from support.authorities import Place, entry, place, told
from support.processes import eventually
from toolbay.auth import discovery
from toolbay.auth.challenges import Challenge
from toolbay.auth.discovery import asked, discover
from toolbay.auth.records import Authority
from toolbay.auth.web import web
from toolbay.config.models import LoginConfig
from toolbay.errors import BlockedAddress, LoginFailed

pytestmark = pytest.mark.anyio
PRM = "/.well-known/oauth-protected-resource"
PROGRAM = LoginConfig(type="client_credentials", client_id="program", client_secret="canary-secret")


async def found(at: Place, auth: LoginConfig | None = None) -> Authority:
    config = at.entry(auth=auth)
    return await discover(at.web, config, await asked(at.web, config))


def document(value: object) -> Step:
    return told(200, json.dumps(value).encode(), Content_Type="application/json")


def doors(server: RawHttp, answers: dict[str, Step]) -> list[str]:
    """`server` gives these answers, by method and path, and 404 besides; what it was asked is listed."""
    requests: list[str] = []

    async def door(request: Request) -> Step:
        requests.append(f"{request.method} {request.target}")
        return answers.get(requests[-1], told(404))

    server.door = door
    return requests


async def test_a_server_says_what_it_wants_to_who_comes_without_a_token() -> None:
    """H4: the challenge of its 401, with the scopes that it names."""
    async with place() as at:
        at.oauth.needs[""] = ("read", "write")
        at.oauth.challenge_names = {"resource_metadata", "scope"}
        origin = at.server.url.removesuffix("/mcp")
        assert await asked(at.web, at.entry()) == Challenge(scopes=("read", "write"), resource_metadata=f"{origin}{PRM}/mcp")
        assert at.server.methods == {"POST": 1}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (told(401), Challenge()),
        (told(401, WWW_Authenticate='Basic realm="x"'), None),
        (told(401, WWW_Authenticate="Bearer"), Challenge()),
        (told(403), None),
        (told(403, WWW_Authenticate="Bearer scope=a"), Challenge(scopes=("a",))),
        (told(400), None),
        (told(400, WWW_Authenticate="Bearer scope=a"), None),
        (told(404), None),
        (told(200, b"{}"), None),
    ],
)
async def test_only_a_refusal_is_a_challenge(answer: Step, said: Challenge | None) -> None:
    """H4: a 401 that says nothing wants a token all the same; one that wants something else does not."""
    async with RawHttp() as server, web(entry(server.url)) as way:
        doors(server, {"POST /mcp": answer})
        assert await asked(way, entry(server.url)) == said


@pytest.mark.parametrize("status", [429, 500, 503, 530])
async def test_a_server_in_trouble_is_asked_another_time(status: int) -> None:
    """H4: what it wants is not known then."""
    async with RawHttp() as server, web(entry(server.url)) as way:
        doors(server, {"POST /mcp": told(status)})
        with pytest.raises(LoginFailed, match=f"HTTP {status}") as error:
            await asked(way, entry(server.url))
    assert error.value.retriable


async def test_a_stream_that_stays_open_is_no_refusal() -> None:
    """H4: a server over sse lets everybody in with a stream without an end, which is not waited for, and left."""
    async with RawHttp() as server, web(entry(server.url, type="sse")) as way:
        assert await asked(way, entry(server.url, type="sse")) is None
        await eventually(lambda: server.listeners == 0)
        assert server.methods == {"GET": 1}


async def test_a_server_is_asked_as_its_transport_does_but_for_a_token() -> None:
    """H4: the configured headers, without Authorization; redirects within the origin."""
    config_headers = {"X-Tenant": "a", "authorization": "Bearer canary-own"}
    seen: list[Request] = []

    async def door(request: Request) -> Step:
        seen.append(request)
        return told(308, Location="/mcp/") if request.target == "/mcp" else told(401, WWW_Authenticate="Bearer scope=here")

    async with RawHttp() as server, web(entry(server.url)) as way:
        server.door = door
        assert await asked(way, entry(server.url, headers=config_headers)) == Challenge(scopes=("here",))
    assert [request.target for request in seen] == ["/mcp", "/mcp/"]
    for request in seen:
        assert request.headers["x-tenant"] == "a"
        assert "authorization" not in request.headers
        assert json.loads(request.body)["method"] == "initialize"


async def test_a_server_that_lets_everybody_begin_is_asked_for_its_list() -> None:
    """H4: it says with that what a token must hold for, as it would say it to a session."""
    seen: list[str] = []

    async def door(request: Request) -> Step:
        seen.append(json.loads(request.body)["method"])
        if seen[-1] == "tools/list":
            assert (request.headers["mcp-protocol-version"], request.headers["mcp-method"]) == ("2026-07-28", "tools/list")
        return told(200, b"{}") if seen[-1] == "initialize" else told(401, WWW_Authenticate="Bearer scope=basic")

    async with RawHttp() as server, web(entry(server.url)) as way:
        server.door = door
        assert await asked(way, entry(server.url)) == Challenge(scopes=("basic",))
    assert seen == ["initialize", "tools/list"]


@pytest.mark.parametrize("end", [Step(kind="status", status=405), Step(kind="silence"), Step(kind="reset")], ids=lambda end: end.kind)
async def test_a_session_that_was_begun_only_to_ask_is_ended(end: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: by servers that let everybody begin; whatever comes of that is no answer to the question, and is not waited for long."""
    monkeypatch.setattr(discovery, "ENDING", 0.1)
    async with RawHttp() as server, web(entry(server.url)) as way:
        server.steps["DELETE"] = [end]
        assert await asked(way, entry(server.url)) is None
        assert (server.sessions, server.valid, server.methods["DELETE"]) == (1, set(), 1)
        begun = server.posts[0]["params"]["clientInfo"]
        assert begun == {"name": "toolbay", "version": version("toolbay")}


@pytest.mark.parametrize(
    ("there", "challenged", "requested"),
    [
        ({"path", "root"}, True, [f"{PRM}/mcp"]),
        ({"path"}, False, [f"{PRM}/mcp"]),
        ({"root"}, False, [f"{PRM}/mcp", PRM]),
        ({"root"}, True, [f"{PRM}/mcp", PRM]),
        ({"/custom/place.json"}, True, ["/custom/place.json"]),
    ],
)
async def test_a_servers_metadata_are_looked_for_where_it_says_then_where_they_should_be(
    there: set[str], challenged: bool, requested: list[str]
) -> None:
    """H4: RFC 9728, 3 and 5: the challenge's address, then under the server's path, then at the root."""
    async with place() as at:
        at.oauth.prm_at = there
        at.oauth.challenge = None if challenged else ""
        got = await found(at)
        assert [path for path in at.oauth.paths if not path.startswith("/.well-known/oauth-authorization-server")] == requested
        assert (got.issuer, got.resource) == (at.oauth.issuer, at.server.url)


@pytest.mark.parametrize("path", ["", "/tenant1", "/a/b"])
@pytest.mark.parametrize("kind", ["oauth", "oidc", "oidc-appended"])
async def test_an_authorization_servers_metadata_are_looked_for_at_all_its_well_known_addresses(path: str, kind: str) -> None:
    """H4: RFC 8414, 3 and 5, and OpenID Connect Discovery, 4, in the order of the specification."""
    async with place(path=path) as at:
        at.oauth.metadata_at = {kind}
        got = await found(at)
        oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
        order = [f"{oauth}{path}", f"{openid}{path}", *([f"{path}{openid}"] if path else [])]
        requested = [name for name in at.oauth.paths if not name.startswith(PRM)]
        assert requested == order[: len(requested)]
        assert got.token_endpoint == f"{at.oauth.issuer}/token"


async def test_what_is_found_is_told_as_it_was_said() -> None:
    """H4: scopes of the server, methods, iss, CIMD, offline_access."""
    async with place() as at:
        at.oauth.scopes = ("read", "write")
        at.oauth.metadata = {"scopes_supported": ["offline_access", "unrelated"]}
        at.oauth.cimd = {}
        got = await found(at)
        issuer = at.oauth.issuer
        assert got == Authority(
            issuer=issuer,
            resource=at.server.url,
            authorization_endpoint=f"{issuer}/authorize",
            token_endpoint=f"{issuer}/token",
            registration_endpoint=f"{issuer}/register",
            revocation_endpoint=f"{issuer}/revoke",
            scopes=("read", "write"),
            offline_access=True,
            methods=("none", "client_secret_basic", "client_secret_post"),
            names_itself=True,
            takes_addresses=True,
        )


async def test_what_is_not_said_is_not_there() -> None:
    """H4: no scopes, no registration, no revocation; fields of another kind than they should be cost only themselves."""
    async with place() as at:
        at.oauth.registers = False
        at.oauth.iss = None
        at.oauth.prm = {"scopes_supported": "read  write", "authorization_servers": at.oauth.issuer, "bearer_methods_supported": 7}
        odd = {"revocation_endpoint": None, "token_endpoint_auth_methods_supported": {}, "scopes_supported": [7], "jwks_uri": "file:///x"}
        at.oauth.metadata = {**odd, "authorization_response_iss_parameter_supported": "true"}
        got = await found(at)
        assert (got.registration_endpoint, got.revocation_endpoint, got.methods) == ("", "", ())
        assert (got.scopes, got.offline_access, got.names_itself, got.takes_addresses) == (("read", "write"), False, False, False)


def covered(url: str) -> list[tuple[str, str | None]]:
    origin = url.removesuffix("/mcp")
    right = [url, f"{url}/", origin, f"{origin}/", None, ""]
    wrong = [f"{origin}/mc", f"{origin}/mcp/x", f"{origin}/MCP", "https://evil.example/mcp", url.replace("http:", "https:"), "mcp"]
    return [("right", text) for text in right] + [("wrong", text) for text in [*wrong, f"{url}?x=1"]]


async def test_a_servers_metadata_must_be_about_the_server() -> None:
    """SEC: attack 10: a token for another resource is not asked for; one for the whole origin covers the server."""
    async with place() as at:
        for verdict, resource in covered(at.server.url):
            at.oauth.prm = {"resource": resource}
            if verdict == "right":
                assert (await found(at)).resource == (resource or at.server.url)
            else:
                with pytest.raises(LoginFailed, match="is about") as error:
                    await found(at)
                assert not error.value.retriable
        assert at.oauth.authorizations == []


@pytest.mark.parametrize(
    ("resource", "url", "covers"),
    [
        ("https://h.example/a", "https://h.example:443/a/b", True),
        ("https://H.example/a?t=1", "https://h.example/a?t=1", True),
        ("https://h.example/a?t=1", "https://h.example/a?t=2", False),
        ("https://h.example/a", "https://h.example/a/../b", False),
        ("https://h.example/a/b", "https://h.example/a", False),
        ("https://h.example:8443/a", "https://h.example/a", False),
    ],
)
def test_a_resource_covers_what_is_beneath_it(resource: str, url: str, covers: bool) -> None:
    """SEC: attack 10: by origin and whole parts of the path."""
    assert discovery._covers(resource, url) is covers


async def test_a_resource_of_a_server_that_names_none_has_no_query() -> None:
    """SEC: a server's address may hold a key, which is not the authorization server's business."""
    async with place() as at:
        at.oauth.prm = {"resource": None}
        at.oauth.prm_at = {"root"}
        config = entry(f"{at.server.url}?key=canary-key")
        got = await discover(at.web, config, Challenge())
        assert got.resource == at.server.url


@pytest.mark.parametrize("issuer", ["https://evil.example", "/", "", None])
async def test_attack_08_metadata_of_another_authorization_server_are_not_used(issuer: str | None) -> None:
    """SEC: attack 8: RFC 8414, 3.3: it must name itself exactly as it was looked for."""
    async with place(path="/tenant") as at:
        at.oauth.metadata = {"issuer": f"{at.oauth.issuer}/" if issuer == "/" else issuer}
        with pytest.raises(LoginFailed) as error:
            await found(at)
        assert "authorization server" in str(error.value)
        assert not error.value.retriable
        assert at.oauth.registrations == []


@pytest.mark.parametrize(("named", "says"), [("/", ""), ("", "/")])
async def test_a_slash_after_a_bare_origin_says_nothing(named: str, says: str) -> None:
    """H4: both are written; the name that counts is the one that the authorization server says itself, as its `iss` will be."""
    async with place() as at:
        issuer = at.oauth.issuer
        at.oauth.prm = {"authorization_servers": [issuer + named]}
        at.oauth.metadata = {"issuer": issuer + says}
        assert (await found(at)).issuer == issuer + says


async def test_an_authorization_server_that_does_not_protect_codes_is_not_used_unasked() -> None:
    """SEC: PKCE with S256 must be advertised; `assumePkce` is the mend; who logs in by himself has no code."""
    async with place() as at:
        for methods in (None, [], ["plain"], "plain"):
            at.oauth.metadata = {"code_challenge_methods_supported": methods}
            with pytest.raises(LoginFailed, match=r"PKCE.*assumePkce: true"):
                await found(at)
            assert (await found(at, LoginConfig(assume_pkce=True))).issuer == at.oauth.issuer
            assert (await found(at, PROGRAM)).token_endpoint == f"{at.oauth.issuer}/token"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 520])
@pytest.mark.parametrize("which", ["prm", "metadata"])
async def test_trouble_at_a_well_known_address_is_no_not_there(which: str, status: int) -> None:
    """SEC: whoever can make one document fail must not lead the login to the next place where one is looked for."""
    async with place() as at:
        at.oauth.steps[which] = [told(status, b"<b>busy</b>", Content_Type="text/html")]
        with pytest.raises(LoginFailed, match=f"HTTP {status}") as error:
            await found(at)
        assert error.value.retriable
        assert sum(at.oauth.paths.values()) == (1 if which == "prm" else 2)
        assert "busy" not in str(error.value)


@pytest.mark.parametrize(
    "answer",
    [
        told(200, b"<html>the application</html>", Content_Type="text/html"),
        told(401),
        told(403),
        told(404),
        told(405),
        told(410),
        told(200, b"[]"),
        told(200, b'{"detail": "not found"}'),
        told(200, b"{" * 5_000),
        told(302, Location="https://www.example.com/"),
    ],
)
async def test_what_is_no_metadata_is_passed_over(answer: Step) -> None:
    """H4: pages of an application that answers everything, redirects to another site, refusals."""
    async with place() as at:
        at.oauth.challenge = ""
        at.oauth.steps["prm"] = [answer, Step()]
        at.oauth.steps["metadata"] = [answer, Step()]
        assert (await found(at)).issuer == at.oauth.issuer


async def test_an_authorization_server_without_metadata_is_told_with_its_name() -> None:
    """H4: there is no guessing where the server has named it."""
    async with place() as at:
        at.oauth.metadata_at = set()
        with pytest.raises(LoginFailed, match=f"{at.oauth.issuer} does not say how to log in there") as error:
            await found(at)
        assert not error.value.retriable


async def test_of_several_authorization_servers_a_person_chooses_else_the_first_counts() -> None:
    """H4: RFC 9728, 7.6; `auth.issuer` counts also where the server does not name it."""
    async with place() as at, RawOAuth() as other:
        at.oauth.prm = {"authorization_servers": [7, "", at.oauth.issuer, other.issuer]}
        assert (await found(at)).issuer == at.oauth.issuer
        assert (await found(at, LoginConfig(issuer=other.issuer))).issuer == other.issuer
        at.oauth.prm = {"authorization_servers": []}
        assert (await found(at, LoginConfig(issuer=other.issuer))).issuer == other.issuer


@pytest.mark.parametrize(
    "issuer", ["http://auth.example.com", "https://auth.example.com?tenant=1", "auth.example.com", "file:///x", "https://a b"]
)
async def test_attack_08_an_authorization_server_must_have_a_proper_name(issuer: str) -> None:
    """SEC: attack 8: https, no query (RFC 8414, 2); nothing is sent there."""
    async with place() as at:
        at.oauth.prm = {"authorization_servers": [issuer]}
        with pytest.raises(LoginFailed, match=r"the authorization server is .*, which is not used"):
            await found(at)


async def test_a_server_of_2025_03_is_its_own_authorization_server() -> None:
    """H4: without metadata of its own it is asked at its origin, and its resource is its address."""
    async with place(itself=True) as at:
        got = await found(at)
        origin = at.server.url.removesuffix("/mcp")
        assert (got.issuer, got.resource, got.token_endpoint) == (origin, at.server.url, f"{origin}/token")
        assert got.names_itself


async def test_a_server_of_2025_03_that_says_nothing_has_the_addresses_of_then() -> None:
    """H4: /authorize, /token and /register at its origin; PKCE was a must then."""
    async with place(itself=True) as at:
        at.oauth.metadata_at = set()
        origin = at.server.url.removesuffix("/mcp")
        assert await found(at) == Authority(
            issuer=origin,
            resource=at.server.url,
            authorization_endpoint=f"{origin}/authorize",
            token_endpoint=f"{origin}/token",
            registration_endpoint=f"{origin}/register",
        )


@pytest.mark.parametrize("which", [f"{PRM}/mcp", "/.well-known/oauth-authorization-server"])
async def test_what_the_guard_refused_is_told_before_anything_is_taken_for_granted(which: str) -> None:
    """SEC: attack 9: an address that leads elsewhere is no "not there"; where something was found it does not matter."""
    elsewhere = {f"GET {which}": told(302, Location="https://elsewhere.example/x")}
    async with RawHttp() as server, web(entry(server.url)) as way:
        doors(server, elsewhere)
        with pytest.raises(BlockedAddress, match=r"redirects to https://elsewhere\.example"):
            await discover(way, entry(server.url), Challenge())
        origin = server.url.removesuffix("/mcp")
        metadata = {"issuer": origin, "token_endpoint": f"{origin}/t", "authorization_endpoint": f"{origin}/a"}
        found = {"GET /.well-known/openid-configuration": document({**metadata, "code_challenge_methods_supported": ["S256"]})}
        doors(server, {**elsewhere, **found})
        assert (await discover(way, entry(server.url), Challenge())).token_endpoint == f"{origin}/t"


async def test_an_origin_may_name_its_authorization_server() -> None:
    """H4: servers of 2025-03 that show another's metadata; they are read where that one has them."""
    async with RawOAuth() as oauth, RawHttp() as server, web(entry(server.url)) as way:
        doors(
            server,
            {"GET /.well-known/oauth-authorization-server": document({"issuer": oauth.issuer, "token_endpoint": "https://evil.example"})},
        )
        got = await discover(way, entry(server.url), Challenge())
        assert (got.issuer, got.token_endpoint) == (oauth.issuer, f"{oauth.issuer}/token")


async def test_a_server_that_wants_no_login_is_not_led_to_one() -> None:
    """H4: nothing is guessed where nobody asked for a token."""
    async with RawHttp() as server, web(entry(server.url)) as way:
        requests = doors(server, {"POST /mcp": told(200, b"{}")})
        assert await asked(way, entry(server.url)) is None
        with pytest.raises(LoginFailed, match="wants none, and takes requests without one"):
            await discover(way, entry(server.url), None)
        assert f"GET {PRM}/mcp" in requests
        doors(server, {})
        with pytest.raises(LoginFailed, match="did not ask for it: set `auth"):
            await discover(way, entry(server.url), None)


def nowhere() -> str:
    """An address of this machine at which nobody is."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def test_the_next_authorization_server_is_asked_where_the_first_cannot_be_reached() -> None:
    """H4: RFC 9728, 7.6: the choice is the client's; but an id that was given by hand is not shown to whoever is left."""
    dead = nowhere()
    async with place() as at:
        at.oauth.prm = {"authorization_servers": [dead, at.oauth.issuer]}
        assert (await found(at)).issuer == at.oauth.issuer
        for auth, other in ((LoginConfig(client_id="ours"), at.oauth.issuer), (PROGRAM, at.oauth.issuer), (None, nowhere())):
            at.oauth.prm = {"authorization_servers": [dead, other]}
            with pytest.raises(LoginFailed) as error:
                await found(at, auth)
            said = str(error.value)
            assert said.startswith(f"the authorization server {dead} cannot be asked: {dead} refused the connection")
            assert f"the server names {other} as well, which `auth: {{issuer:" in said
            assert "/..." not in said
            assert error.value.retriable


async def test_a_wrong_issuer_in_the_configuration_is_blamed() -> None:
    """CFG-6: which key is to be corrected, whatever is wrong with it; no second one is asked."""
    async with place(path="/tenant") as at:
        for wrong in (nowhere(), at.oauth.origin, f"{at.oauth.issuer}/x"):
            with pytest.raises(LoginFailed, match="correct `auth\\.issuer` of this server"):
                await found(at, LoginConfig(issuer=wrong))


async def test_an_authorization_server_at_this_machine_is_named_where_the_guard_refuses_it() -> None:
    """SEC: which server it is that must be let in, with its port."""
    async with place() as at, web(at.entry(ssrf_whitelist=())) as way:
        with pytest.raises(BlockedAddress, match=rf"its authorization server, {at.oauth.issuer}, cannot be asked.*ssrfWhitelist"):
            await discover(way, at.entry(ssrf_whitelist=()), Challenge())


@pytest.mark.parametrize("name", ["token", "authorization"])
async def test_an_address_that_is_needed_must_be_named(name: str) -> None:
    """H4: a person's login needs both, a program's only one."""
    async with place() as at:
        at.oauth.metadata = {f"{name}_endpoint": None}
        with pytest.raises(LoginFailed, match=f"names no {name} endpoint"):
            await found(at)
        if name == "authorization":
            assert (await found(at, PROGRAM)).authorization_endpoint == ""


async def test_the_addresses_of_metadata_under_a_path_and_a_query() -> None:
    """H4: RFC 9728, 3.1: between the host and what follows it; with and without the last slash, then at the root."""
    async with RawHttp() as server, web(entry(server.url)) as way:
        requests = doors(server, {})
        with pytest.raises(LoginFailed):
            await discover(way, entry(f"{server.url}/?a=b"), None)
        assert requests[:3] == [f"GET {PRM}/mcp/?a=b", f"GET {PRM}/mcp", f"GET {PRM}"]


async def test_what_is_kept_of_the_metadata_is_bounded() -> None:
    """G4: ways that nobody can have a use for, and a resource that is longer than an address."""
    async with place() as at:
        at.oauth.metadata = {"token_endpoint_auth_methods_supported": ["é", "x" * 101, "none", *map(str, range(100))]}
        got = await discover(at.web, at.entry(), None)
        assert (got.methods[:2], len(got.methods)) == (("none", "0"), 20)
        for more in (f"#{'x' * 2_000}", "#\ud800"):
            at.oauth.prm = {"resource": f"{at.server.url}{more}"}
            with pytest.raises(LoginFailed, match="is about"):
                await discover(at.web, at.entry(), None)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(["https://auth.example.com/x", "S256"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
FIELDS = ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint", "scopes_supported")
MORE = ("token_endpoint_auth_methods_supported", "code_challenge_methods_supported", "client_id_metadata_document_supported")


@given(st.dictionaries(st.sampled_from((*FIELDS, *MORE)), JSON))
def test_any_metadata_are_read(fields: dict[str, Any]) -> None:
    """SEC: attack 8: they give an authority whose addresses are all at its own domain, or a LoginFailed."""
    protected = discovery._Protected(resource="https://example.com/mcp")
    try:
        got = discovery._authority({**fields, "issuer": "https://auth.example.com"}, protected, LoginConfig())
    except LoginFailed:
        return
    named: Iterable[str] = (got.authorization_endpoint, got.token_endpoint, got.registration_endpoint, got.revocation_endpoint)
    assert all(url in ("", "https://auth.example.com/x") for url in named)
    assert all(isinstance(item, str) for item in got.methods)
