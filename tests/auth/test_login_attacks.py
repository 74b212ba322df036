"""Attacks 8 to 10 of the security page on logins, each with everything that it would need: servers that are honest but for one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servers.raw_http import RawHttp, Request, Step
from servers.raw_oauth import RawOAuth
from support.authorities import Place, entry, place, told
from support.logins import Agreeing
from toolbay.auth.clients import client_for
from toolbay.auth.discovery import asked, discover
from toolbay.auth.grants import Code, by_code, by_itself, by_refresh, revoke
from toolbay.auth.logins import Logins, LoginStatus
from toolbay.auth.records import Client, Tokens
from toolbay.auth.store import Files
from toolbay.auth.web import web
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.errors import BlockedAddress, LoginFailed

pytestmark = pytest.mark.anyio
TOKENS = Tokens(access="canary-access", refresh="canary-refresh")


def now() -> float:
    return 1_000.0


async def refused(at: Place, config: ServerConfig | None = None) -> str:
    """Why discovery goes no further; no secret is in it."""
    config = config or at.entry()
    with pytest.raises((LoginFailed, BlockedAddress)) as error:
        await discover(at.web, config, await asked(at.web, config))
    assert not getattr(error.value, "retriable", False)
    assert len(str(error.value)) < 600
    return str(error.value)


ITSELF = {"type": "client_credentials", "client_id": "robot", "client_secret": "canary-robot"}
BY_HAND = {"type": "oauth", "client_id": "by-hand", "client_secret": "canary-by-hand"}


async def test_attack_08_a_programs_secret_goes_to_no_authorization_server_that_only_the_server_names(tmp_path: Path) -> None:
    """SEC: attack 8: at first contact, after a damaged record and after a logout; each is told what to set where it is right."""
    async with RawOAuth() as thief, place() as at:
        at.oauth.know("robot", "canary-robot")
        right = at.entry(auth=LoginConfig.model_validate({**ITSELF, "issuer": at.oauth.issuer}))
        config, logins = at.entry(auth=LoginConfig.model_validate(ITSELF)), Logins(Files(tmp_path))
        at.oauth.prm = {"authorization_servers": [thief.issuer]}

        async def is_not_shown() -> None:
            with pytest.raises(LoginFailed, match="shown to nobody") as error:
                await logins.login("s", config, Agreeing())
            assert f'auth: {{issuer: "{thief.issuer}"}}' in str(error.value)
            credentials = Logins(Files(tmp_path)).of("s", config)
            assert credentials is not None
            assert await credentials.token() == ""
            assert "shown to nobody" in credentials.mend(status=401, challenge="Bearer")

        await is_not_shown()
        await logins.login("s", right, Agreeing())
        (file,) = tmp_path.glob("*.json")
        file.write_text("damaged")
        await is_not_shown()
        await logins.login("s", right, Agreeing())
        await logins.logout("s", right)
        await is_not_shown()
        assert (thief.forms, len(at.oauth.forms)) == ([], 2)


async def test_attack_08_a_clients_secret_goes_nowhere_else_because_a_record_is_gone(tmp_path: Path) -> None:
    """SEC: attack 8: whose a client is that was given by hand is known after a logout, and asked for where the record is damaged."""
    async with RawOAuth() as thief, place() as at:
        for oauth in (thief, at.oauth):
            oauth.know("by-hand", "canary-by-hand")
        config, logins, person = at.entry(auth=LoginConfig.model_validate(BY_HAND)), Logins(Files(tmp_path)), Agreeing()
        login = await logins.login("s", config, person)
        assert login.tokens is not None
        assert await logins.logout("s", config)
        assert not at.oauth.guards(login.tokens.access)
        (file,) = tmp_path.glob("*.json")
        assert "canary-" not in file.read_text()
        assert await logins.standing("s", config) == LoginStatus(logged_in=False, issuer=at.oauth.issuer)
        at.oauth.prm = {"authorization_servers": [thief.issuer]}
        with pytest.raises(LoginFailed, match="names another authorization server"):
            await logins.login("s", config, person)
        file.write_text("damaged")
        with pytest.raises(LoginFailed, match="whose `clientId` is") as error:
            await logins.login("s", config, person)
        assert file.name in str(error.value)
        assert f'auth: {{issuer: "{thief.issuer}"}}' in str(error.value)
        assert (thief.forms, len(person.pages)) == ([], 1)
        at.oauth.prm = {}
        named = at.entry(auth=LoginConfig.model_validate({**BY_HAND, "issuer": f"{at.oauth.issuer}/"}))
        await logins.login("s", named, person)
        credentials = Logins(Files(tmp_path)).of("s", named)
        assert credentials is not None
        assert at.oauth.guards(await credentials.token())
        await logins.logout("s", named)
        assert list(tmp_path.glob("*.json")) == [], "the configuration knows it"


@pytest.mark.parametrize("name", ["authorization", "token", "registration", "revocation"])
async def test_attack_08_an_honest_servers_metadata_that_name_a_thiefs_address_end_the_login(name: str) -> None:
    """SEC: whatever is sent there could be used by who has it; nothing is, and a person's word (`hosts`) is the only way on."""
    async with place() as at:
        at.oauth.metadata = {f"{name}_endpoint": "https://thief.example/x"}
        why = await refused(at)
        assert "127.0.0.1" in why
        assert "thief.example" in why
        assert 'auth: {hosts: ["thief.example"]}' in why
        assert (at.oauth.registrations, at.oauth.authorizations, at.oauth.forms) == ([], [], [])
        trusting = at.entry(auth=LoginConfig(hosts=("thief.example",)))
        got = await discover(at.web, trusting, await asked(at.web, trusting))
        assert getattr(got, f"{name}_endpoint") == "https://thief.example/x"


async def test_attack_08_what_is_not_used_need_not_be_right() -> None:
    """SEC: who has an id registers nowhere, so that it costs nobody a login where that is."""
    async with place() as at:
        at.oauth.metadata = {"registration_endpoint": "https://thief.example/x"}
        config = at.entry(auth=LoginConfig(client_id="by-hand"))
        assert (await discover(at.web, config, await asked(at.web, config))).registration_endpoint == ""


async def test_attack_08_a_thief_cannot_pass_for_another_authorization_server() -> None:
    """SEC: mix-up: its metadata say an honest one's name, so that codes of that one would be brought to it; both are told."""
    async with place() as at, RawOAuth(path="/thief") as thief:
        at.oauth.prm = {"authorization_servers": [thief.issuer]}
        thief.metadata = {"issuer": at.oauth.issuer, "authorization_endpoint": f"{at.oauth.issuer}/authorize"}
        why = await refused(at)
        assert thief.issuer in why
        assert at.oauth.issuer in why
        assert sum(at.oauth.paths[path] for path in ("/authorize", "/register", "/token")) == 0


async def test_attack_08_a_client_is_shown_to_nobody_but_who_gave_it() -> None:
    """SEC: an id, a secret, a code or a refresh token of one authorization server is not sent to another."""
    async with place() as at:
        client = Client(id="a", issuer="https://honest.example", secret="canary-secret", method="client_secret_post", asked_for=True)
        code = Code(code="canary-code", verifier="canary-verifier", redirect_uri="http://127.0.0.1:1/callback")
        for attempt in (
            by_code(at.web, at.authority(), client, code, now=now),
            by_refresh(at.web, at.authority(), client, TOKENS, now=now),
            by_itself(at.web, at.authority(), client, (), now=now),
            revoke(at.web, at.authority(), client, TOKENS),
        ):
            with pytest.raises(LoginFailed, match=r"belongs to https://honest\.example"):
                await attempt
        assert at.oauth.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://169.254.169.254/",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal/",
        "http://10.0.0.1/",
        "https://elsewhere.example/.well-known/oauth-protected-resource",
        "http://127.0.0.1@169.254.169.254/",
        "file:///etc/passwd",
        "//169.254.169.254/",
        "/relative",
        "http://127.0.0.1:TRAP/",
        "http://localhost:TRAP/",
    ],
)
async def test_attack_09_metadata_are_not_fetched_from_elsewhere(url: str) -> None:
    """SEC: the address in a 401 must be of the server's own origin: no connection is made, whatever the whitelist opens."""
    async with place() as at, RawHttp() as trap:
        url = url.replace("TRAP", str(trap.port))
        at.oauth.challenge = f'Bearer resource_metadata="{url}"'
        await refused(at)
        assert trap.connections == 0
        assert at.oauth.connections == 0
        assert not [path for path in at.oauth.paths if "well-known" in path]


async def test_attack_09_a_person_may_say_that_metadata_are_elsewhere() -> None:
    """SEC: RFC 9728 leaves that open; `hosts` says it, and then it must be https (or this machine)."""
    async with place() as at, RawOAuth() as other, RawHttp() as elsewhere:
        other.protect(elsewhere)
        other.prm = {"resource": at.server.url}
        where = f"{elsewhere.url.removesuffix('/mcp')}/.well-known/oauth-protected-resource"
        at.oauth.challenge = f'Bearer resource_metadata="{where}"'
        config = at.entry(auth=LoginConfig(hosts=("127.0.0.1",)))
        assert (await discover(at.web, config, await asked(at.web, config))).issuer == other.issuer
        for bad in ("http://elsewhere.example/", "https://other.example/"):
            at.oauth.challenge = f"Bearer resource_metadata={bad}"
            assert "is not used" in (why := await refused(at, config)) or "not the server itself" in why


@pytest.mark.parametrize(
    "issuer", ["http://169.254.169.254", "https://169.254.169.254", "https://[fd00:ec2::254]", "https://10.0.0.1", "https://192.168.0.1/x"]
)
async def test_attack_09_an_authorization_server_inside_a_network_is_not_asked(issuer: str) -> None:
    """SEC: the network's guard judges it as every other address; only the server's entry can open one."""
    async with place() as at:
        at.oauth.prm = {"authorization_servers": [issuer]}
        await refused(at)
        assert at.oauth.connections == 0


async def test_attack_09_consent_to_a_server_on_this_machine_is_none_to_its_neighbours() -> None:
    """SEC: without a whitelist a server's own port is open and no other one, whatever its metadata name."""
    async with RawOAuth() as oauth, RawHttp() as server, web(entry(server.url, ssrf_whitelist=())) as way:
        oauth.protect(server)
        config = entry(server.url, ssrf_whitelist=())
        with pytest.raises(BlockedAddress, match="ssrfWhitelist"):
            await discover(way, config, await asked(way, config))
        assert oauth.connections == 0


@pytest.mark.parametrize("step", ["prm", "metadata"])
async def test_attack_09_a_redirect_leads_nowhere_else(step: str) -> None:
    """SEC: documents are had from the origin that they speak for."""
    async with place() as at, RawHttp() as trap:
        at.oauth.steps[step] = [told(302, Location=trap.url)]
        await refused(at)
        assert trap.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_attack_10_configured_headers_do_not_follow_a_redirect_of_the_first_question(status: int) -> None:
    """SEC: they may be keys; not to another origin, and not as another method."""
    async with place() as at, RawHttp() as trap:
        config = at.entry(headers={"X-Key": "canary-key"})

        async def door(request: Request) -> Step:
            return told(status, Location=trap.url)

        at.server.door = door
        with pytest.raises(BlockedAddress, match="another origin"):
            await asked(at.web, config)
        assert trap.connections == 0


async def registered(at: Place) -> Client:
    return await client_for(at.web, at.authority(), LoginConfig(), redirect_uri="http://127.0.0.1:1/callback", scopes=())


async def test_attack_10_a_token_of_one_server_is_never_asked_for_another() -> None:
    """SEC: two servers of one authorization server: each request names its own resource, also when tokens are renewed."""
    async with RawOAuth() as oauth, RawHttp() as one, RawHttp() as two:
        oauth.know("program", "canary-secret")
        got: dict[str, Any] = {}
        for server in (one, two):
            oauth.protect(server)
            itself = LoginConfig(type="client_credentials", client_id="program", client_secret="canary-secret", issuer=oauth.issuer)
            config = entry(server.url, auth=itself)
            assert config.auth is not None
            async with web(config) as way:
                authority = await discover(way, config, await asked(way, config))
                client = await client_for(way, authority, config.auth, redirect_uri="", scopes=())
                got[server.url] = await by_itself(way, authority, client, (), now=now)
                access, refresh = oauth.give("program", resource=server.url)
                await by_refresh(way, authority, client, Tokens(access=access, refresh=refresh), now=now)
        assert [form["resource"] for form in oauth.forms] == [one.url, one.url, two.url, two.url]
        assert got[one.url].access != got[two.url].access


async def test_attack_10_a_refresh_token_of_one_server_is_no_use_for_another() -> None:
    """SEC: where a record was mixed up all the same, the resource that is named lets the authorization server say no."""
    async with place() as at:
        at.oauth.know("program", "canary-secret")
        access, refresh = at.oauth.give("program", resource="https://another.example/mcp")
        client = Client(id="program", issuer=at.oauth.issuer, secret="canary-secret", method="client_secret_basic")
        with pytest.raises(LoginFailed, match="invalid_target"):
            await by_refresh(at.web, at.authority(), client, Tokens(access=access, refresh=refresh), now=now)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("near", [True, False])
async def test_attack_10_nothing_secret_goes_along_a_redirect(status: int, near: bool) -> None:
    """SEC: codes, secrets and tokens are for the address that was judged; not even the same origin gets them elsewhere."""
    async with place() as at, RawHttp() as trap:
        client = await registered(at)
        at.oauth.steps["token"] = [told(status, Location="/elsewhere" if near else trap.url)]
        at.oauth.steps["revoke"] = at.oauth.steps["token"]
        with pytest.raises(LoginFailed, match=f"HTTP {status}.*leads elsewhere") as error:
            await by_refresh(at.web, at.authority(), client, TOKENS, now=now)
        assert not error.value.retriable
        with pytest.raises(LoginFailed, match="leads elsewhere"):
            await revoke(at.web, at.authority(), client, TOKENS)
        assert trap.connections == 0
        assert at.oauth.paths["/elsewhere"] == 0


async def test_attack_10_metadata_about_another_server_are_refused() -> None:
    """SEC: a server that would have tokens of another one asked for in its place gets none at all."""
    async with place() as at, RawHttp() as victim:
        for resource in ("https://victim.example/mcp", victim.url, f"{at.server.url}/../other"):
            at.oauth.prm = {"resource": resource}
            assert "is about" in await refused(at)
        assert at.oauth.forms == []
