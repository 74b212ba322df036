"""What a token endpoint is asked, and what it answers."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.raw_http import Step
from support.authorities import Place, place, told
from toolbay.auth import grants
from toolbay.auth.grants import Code, Denied, by_code, by_itself, by_refresh, revoke
from toolbay.auth.records import Client, Method, Tokens
from toolbay.errors import LoginFailed

pytestmark = pytest.mark.anyio
BACK = "http://127.0.0.1:7777/callback"
VERIFIER = "canary-verifier-" + "v" * 30
OLD = Tokens(access="canary-old-access", refresh="canary-old-refresh", ends_at=5.0, scopes=("read",))


def now() -> float:
    return 1_000.0


def known(at: Place, method: Method = "none") -> Client:
    secret = "" if method == "none" else "canary-secret+/ü"
    at.oauth.know("client 1", secret, method=method)
    return Client(id="client 1", issuer=at.oauth.issuer, secret=secret, method=method)


async def agreed(at: Place, client: Client, *scopes: str) -> Code:
    """The code of a person who has said yes."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": BACK,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": at.server.url,
        "scope": " ".join(scopes),
    }
    back = await at.oauth.approve(f"{at.oauth.issuer}/authorize?{urlencode(query)}")
    code = dict(parse_qsl(urlsplit(back).query))["code"]
    return Code(code=code, verifier=VERIFIER, redirect_uri=BACK, asked=scopes)


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_a_code_becomes_tokens_however_the_client_says_who_it_is(method: Method) -> None:
    """H4: RFC 6749, 4.1.3, with PKCE and the resource; tokens last from when they were asked for."""
    async with place() as at:
        client = known(at, method)
        got = await by_code(at.web, at.authority(), client, await agreed(at, client, "read", "write"), now=now)
        assert at.oauth.guards(got.access)
        assert (got.ends_at, got.scopes, bool(got.refresh)) == (4_600.0, ("read", "write"), True)
        form = at.oauth.forms[-1]
        assert form["resource"] == at.server.url
        assert ("client_secret" in form) is (method == "client_secret_post")


async def test_tokens_are_renewed_and_what_is_not_said_is_kept() -> None:
    """H4: a rotated refresh token takes the place of the old one; without a new one the old one counts on."""
    async with place() as at:
        client = known(at)
        first = await by_code(at.web, at.authority(), client, await agreed(at, client, "read"), now=now)
        second = await by_refresh(at.web, at.authority(), client, first, now=now)
        assert second.refresh not in ("", first.refresh)
        at.oauth.rotates = False
        at.oauth.answer = {"scope": None, "expires_in": None}
        third = await by_refresh(at.web, at.authority(), client, second, now=now)
        assert (third.refresh, third.scopes, third.ends_at) == (second.refresh, ("read",), None)
        assert at.oauth.guards(third.access)
        assert [form["resource"] for form in at.oauth.forms] == [at.server.url] * 3
        assert "scope" not in at.oauth.forms[-1]


async def test_a_program_gets_tokens_for_itself() -> None:
    """H4: RFC 6749, 4.4."""
    async with place() as at:
        got = await by_itself(at.web, at.authority(), known(at, "client_secret_basic"), ("a", "b"), now=now)
        assert (got.scopes, got.refresh) == (("a", "b"), "")
        assert at.oauth.forms[-1] == {"grant_type": "client_credentials", "scope": "a b", "resource": at.server.url}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"expires_in": "60"}, {"ends_at": 1_060.0}),
        ({"expires_in": " 60.5 "}, {"ends_at": 1_060.5}),
        ({"expires_in": 60.5}, {"ends_at": 1_060.5}),
        ({"expires_in": 1e-9}, {"ends_at": 1_010.0}),
        ({"expires_in": "0.001"}, {"ends_at": 1_010.0}),
        ({"expires_in": 0}, {"ends_at": None}),
        ({"expires_in": -5}, {"ends_at": None}),
        ({"expires_in": "soon"}, {"ends_at": None}),
        ({"expires_in": True}, {"ends_at": None}),
        ({"expires_in": 10**400}, {"ends_at": 1_000.0 + 10 * 365 * 86_400}),
        ({"scope": None}, {"scopes": ("asked",)}),
        ({"scope": "less"}, {"scopes": ("less",)}),
        ({"scope": "a,b c"}, {"scopes": ("a,b", "c")}),
        ({"scope": ["a", "b"]}, {"scopes": ("a", "b")}),
        ({"scope": 7}, {"scopes": ("asked",)}),
        ({"token_type": "bEARER"}, {}),
        ({"token_type": None}, {}),
        ({"refresh_token": 7}, {"refresh": ""}),
        ({"refresh_token": "canary-a b"}, {"refresh": ""}),
        ({"id_token": {}, "error": ""}, {}),
    ],
)
async def test_answers_are_read_as_they_are_written_in_the_wild(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """H4: numbers as texts, lists of scopes, missing kinds; what says nothing usable is not said."""
    async with place() as at:
        at.oauth.answer = answer
        got = await by_itself(at.web, at.authority(), known(at, "client_secret_post"), ("asked",), now=now)
        for name, value in expected.items():
            assert getattr(got, name) == value
        assert got.access


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"access_token": None}, "without a token"),
        ({"access_token": ""}, "without a token"),
        ({"access_token": 7}, "without a token"),
        ({"access_token": "canary-a\r\nX-Injected: 1"}, "without a token"),
        ({"access_token": "canary-a b"}, "without a token"),
        ({"access_token": "canary-\u00e9"}, "without a token"),
        ({"access_token": "canary-" + "a" * 40_000}, "without a token"),
        ({"token_type": "DPoP"}, "not supported, DPoP"),
        ({"token_type": "mac\x1b[31m" + "m" * 500}, "not supported"),
    ],
)
async def test_a_token_that_cannot_be_sent_is_none(answer: dict[str, Any], says: str) -> None:
    """SEC: it goes into a header; its kind must be the one that is known here."""
    async with place() as at:
        at.oauth.answer = answer
        with pytest.raises(LoginFailed, match=says) as error:
            await by_itself(at.web, at.authority(), known(at, "client_secret_post"), (), now=now)
        assert not isinstance(error.value, Denied)
        assert "canary-" not in str(error.value)
        assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"error": "invalid_grant", "error_description": "it was used"}, "invalid_grant"),
        (401, {"error": "invalid_client"}, "invalid_client"),
        (200, {"error": "bad_verification_code"}, "bad_verification_code"),
        (400, {"error": {"type": "x"}}, ""),
        (403, "<html>", ""),
        (404, "not here", ""),
    ],
)
async def test_a_no_is_told_with_its_code(status: int, body: object, code: str) -> None:
    """H4: RFC 6749, 5.2; some say it with status 200."""
    async with place() as at:
        text = body if isinstance(body, str) else json.dumps(body)
        at.oauth.steps["token"] = [told(status, text.encode())]
        with pytest.raises(Denied, match=f"HTTP {status}") as error:
            await by_refresh(at.web, at.authority(), known(at), OLD, now=now)
        assert error.value.code == code
        assert not error.value.retriable
        assert code in str(error.value)


@pytest.mark.parametrize(
    "answer",
    [
        *(told(status) for status in (408, 429, 500, 502, 503, 520)),
        told(400, b'{"error": "temporarily_unavailable"}'),
        told(503, b'{"error": "invalid_grant"}'),
        Step(kind="reset"),
        Step(kind="truncate"),
    ],
)
async def test_trouble_is_no_no(answer: Step) -> None:
    """H4: the tokens may count on, so it may be asked again; nothing was decided."""
    async with place() as at:
        at.oauth.steps["token"] = [answer]
        with pytest.raises(LoginFailed) as error:
            await by_refresh(at.web, at.authority(), known(at), OLD, now=now)
        assert error.value.retriable
        assert not isinstance(error.value, Denied)


async def test_an_authorization_server_that_is_gone_is_no_no() -> None:
    """H4: refused connections as well."""
    async with place() as at:
        client, authority = known(at), at.authority()
        await at.oauth.stop()
        try:
            with pytest.raises(LoginFailed, match="refused the connection") as error:
                await by_refresh(at.web, authority, client, OLD, now=now)
        finally:
            await at.oauth.start()
        assert error.value.retriable


async def test_a_secret_that_is_said_back_is_not_told() -> None:
    """SEC: attack 32: an authorization server may quote what it was sent, also where the quote is cut."""
    async with place() as at:
        client = known(at, "client_secret_post")
        echo = f"{OLD.refresh} and {client.secret} " + "x" * 80 + OLD.refresh * 200
        for body in (json.dumps({"error": "invalid_grant", "error_description": echo}), echo):
            at.oauth.steps["token"] = [told(400, body.encode())]
            with pytest.raises(Denied) as error:
                await by_refresh(at.web, at.authority(), client, OLD, now=now)
            assert "canary-" not in str(error.value)
            assert "***" in str(error.value)
            at.oauth.steps["token"] = [told(400, VERIFIER.encode() + b" canary-code")]
            code = Code(code="canary-code", verifier=VERIFIER, redirect_uri=BACK)
            with pytest.raises(Denied) as error:
                await by_code(at.web, at.authority(), client, code, now=now)
            assert "canary-" not in str(error.value)
            assert "canary-" not in repr(code)


async def test_a_login_is_taken_back() -> None:
    """H4: RFC 7009: first the refresh token, then the access token."""
    async with place() as at:
        client = known(at, "client_secret_basic")
        got = await by_code(at.web, at.authority(), client, await agreed(at, client), now=now)
        await revoke(at.web, at.authority(), client, got)
        assert at.oauth.revocations == [got.refresh, got.access]
        assert not at.oauth.guards(got.access)
        with pytest.raises(Denied) as error:
            await by_refresh(at.web, at.authority(), client, got, now=now)
        assert error.value.code == "invalid_grant"


async def test_an_access_token_that_cannot_be_taken_back_runs_out() -> None:
    """H4: RFC 7009, 2.2.1: `unsupported_token_type` is no failure once the refresh token has ended; alone it is one."""
    async with place() as at:
        at.oauth.steps["revoke"] = [Step(), told(400, b'{"error": "unsupported_token_type"}')]
        await revoke(at.web, at.authority(), known(at), OLD)
        with pytest.raises(Denied, match="did not take the login back"):
            await revoke(at.web, at.authority(), known(at), Tokens(access="canary-only"))


async def test_a_login_that_cannot_be_taken_back_is_told() -> None:
    """H4: no address for it, or trouble there."""
    async with place() as at:
        with pytest.raises(LoginFailed, match="no address at which a login is taken back") as error:
            await revoke(at.web, at.authority(revocation_endpoint=""), known(at), OLD)
        assert not error.value.retriable
        at.oauth.steps["revoke"] = [told(503)]
        with pytest.raises(LoginFailed, match="did not take the login back") as error:
            await revoke(at.web, at.authority(), known(at), OLD)
        assert error.value.retriable


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.text("0123456789. ", max_size=20))
def test_any_life_is_read(value: object) -> None:
    """H4: nothing that an answer says raises, or lasts for ever."""
    life = grants._seconds(value)
    assert life is None or grants.SHORTEST_LIFE <= life <= grants.LONGEST_LIFE
