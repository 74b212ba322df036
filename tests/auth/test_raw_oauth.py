"""The authorization server of these tests refuses what a real one refuses: else a client that does it wrong would pass."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from servers.raw_http import RawHttp
from servers.raw_oauth import RawOAuth
from support.persons import fetched

pytestmark = pytest.mark.anyio
VERIFIER = "canary-verifier-that-is-at-least-43-characters-long"
BACK = "http://127.0.0.1:9/callback"


async def code(oauth: RawOAuth, **changed: str) -> str:
    challenge = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": BACK,
        "state": "s",
        "scope": "read write",
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": "http://127.0.0.1:1/mcp",
        **changed,
    }
    led = dict(parse_qsl(urlsplit(await oauth.approve(f"{oauth.issuer}/authorize?{urlencode(query)}")).query))
    assert (led["state"], led["iss"]) == ("s", oauth.issuer)
    return led["code"]


async def token(oauth: RawOAuth, **fields: str) -> tuple[int, Mapping[str, Any]]:
    form = {"client_id": "me", "redirect_uri": BACK, "resource": "http://127.0.0.1:1/mcp", "code_verifier": VERIFIER, **fields}
    status, _, body = await fetched(f"{oauth.issuer}/token", method="POST", body=urlencode(form).encode())
    return status, json.loads(body)


async def by_code(oauth: RawOAuth, **fields: str) -> tuple[int, Mapping[str, Any]]:
    return await token(oauth, grant_type="authorization_code", **fields)


async def test_a_code_is_exchanged_once_by_who_has_its_verifier() -> None:
    async with RawOAuth(path="/tenant") as oauth:
        oauth.know("me")
        for wrong in ({"code_verifier": "canary-another"}, {"redirect_uri": "http://127.0.0.1:9/other"}):
            status, answer = await by_code(oauth, code=await code(oauth), **wrong)
            assert (status, answer["error"]) == (400, "invalid_grant")
        given = await code(oauth)
        status, answer = await by_code(oauth, code=given)
        assert (status, answer["scope"], answer["expires_in"]) == (200, "read write", 3600)
        assert oauth.guards(answer["access_token"])
        assert not oauth.guards(answer["refresh_token"])
        assert (await by_code(oauth, code=given))[1]["error"] == "invalid_grant"
        assert (await by_code(oauth, code=await code(oauth), resource="http://127.0.0.1:1/"))[1]["error"] == "invalid_target"
        assert (await by_code(oauth, code=await code(oauth), client_id="you"))[0] == 401
        assert oauth.codes == 1


async def test_a_refresh_token_counts_once_and_its_second_use_ends_all_that_came_of_it() -> None:
    async with RawOAuth() as oauth:
        oauth.know("me")
        _, first = oauth.give("me", "read", resource="http://127.0.0.1:1/mcp")
        status, second = await token(oauth, grant_type="refresh_token", refresh_token=first)
        assert (status, oauth.refreshes, oauth.guards(second["access_token"])) == (200, 1, True)
        assert (await token(oauth, grant_type="refresh_token", refresh_token=first))[1]["error"] == "invalid_grant"
        assert not oauth.guards(second["access_token"])
        assert (await token(oauth, grant_type="refresh_token", refresh_token=second["refresh_token"]))[0] == 400
        assert oauth.refreshes == 1


async def test_a_protected_server_takes_what_is_valid_and_says_where_that_is_had() -> None:
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        oauth.needs = {"note": ("write",)}
        access, _ = oauth.give("me", "read")

        async def called(tool: str, bearer: str) -> tuple[int, str]:
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
            headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
            status, told, _ = await fetched(server.url, method="POST", body=json.dumps(message).encode(), headers=headers)
            return status, told.get("www-authenticate", "")

        where = f"http://127.0.0.1:{server.port}/.well-known/oauth-protected-resource/mcp"
        assert await called("echo", "") == (401, f'Bearer resource_metadata="{where}"')
        assert (await called("echo", access))[0] == 200
        assert await called("note", access) == (403, f'Bearer error="insufficient_scope", resource_metadata="{where}", scope="write"')
        assert json.loads((await fetched(where))[2]) == {"resource": server.url, "authorization_servers": [oauth.issuer]}
        oauth.expire()
        assert (await called("echo", access))[1].startswith('Bearer error="invalid_token"')
        assert oauth.denied == ["", access, access]
