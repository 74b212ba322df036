"""Logins at authorization servers that nobody here wrote: a certified one, and the official TypeScript SDK's.

The person's browser is a program that keeps cookies and follows redirects, which is enough where everything is granted at once.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cli.terminals import toolbay
from support import servers
from support.servers import Authorized

pytestmark = pytest.mark.node

BROWSER = """#!{python}
import http.cookiejar, sys, urllib.request
cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
urllib.request.build_opener(urllib.request.ProxyHandler({{}}), cookies).open(sys.argv[-1], timeout=20).read()
"""
SECRET = "canary-oauth-client-secret-0001"


class Desk:
    """A person's machine: a folder with a configuration, and a browser."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        opener = folder / "bin" / "xdg-open"
        opener.parent.mkdir()
        opener.write_text(BROWSER.format(python=sys.executable), encoding="utf-8")
        opener.chmod(0o755)
        self._env = {"DISPLAY": ":0", "PATH": os.pathsep.join([str(opener.parent), str(Path(sys.executable).parent), os.environ["PATH"]])}

    def configured(self, server: Authorized, **more: Any) -> None:
        entry = {**server.entry, **more}
        (self._folder / "toolbay.json").write_text(json.dumps({"mcpServers": {"notes": entry}}), encoding="utf-8")

    def toolbay(self, *arguments: str, code: int = 0) -> str:
        """What the program prints; it ends with this code."""
        done = toolbay(*arguments, cwd=self._folder, env=self._env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def call(self, tool: str, code: int = 0) -> str:
        return self.toolbay("call", f"mcp_notes_{tool}", code=code)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def counts(server: Authorized) -> dict[str, int]:
    with urllib.request.urlopen(f"{server.origin}/counts") as answer:
        return json.loads(answer.read())


def test_a_login_at_a_certified_server_holds_is_renewed_and_is_taken_back(desk: Desk) -> None:
    """H4: log in by a browser, call, call when the token has ended (one renewal, with a rotated refresh token), log out."""
    with servers.authorized_serving(seconds=1) as server:
        desk.configured(server)
        assert "toolbay login notes" in desk.call("count", code=3)
        desk.toolbay("login", "notes")
        assert counts(server)["authorization_code"] == 1
        for _ in range(20):
            assert desk.call("count").startswith("0\n")
            if counts(server)["refresh_token"]:
                break
        assert counts(server)["refresh_token"] >= 1, "a token of one second has ended by then"
        assert counts(server)["refused"] == 0
        desk.toolbay("logout", "notes")
        assert counts(server)["revoked"] >= 1
        assert "toolbay login notes" in desk.call("count", code=3)


def test_what_a_login_lacks_is_said_and_the_next_login_asks_for_it(desk: Desk) -> None:
    """H4: 403 insufficient_scope: not executed, the scope is named; a second login brings it besides what was there."""
    with servers.authorized_serving() as server:
        desk.configured(server)
        desk.toolbay("login", "notes")
        said = desk.call("write", code=1)
        assert "lacks the scope notes:write" in said
        assert "toolbay login notes" in said
        assert counts(server)["notes"] == 0
        desk.toolbay("login", "notes")
        assert "written" in desk.call("write")
        assert desk.call("count").startswith("1\n")


def test_a_program_logs_in_by_itself_and_asks_for_more_where_it_must(desk: Desk) -> None:
    """H4: client_credentials with a client registered by hand: no person, one step-up, the call is made once."""
    with servers.authorized_serving(client=("robot", SECRET)) as server:
        robot = {"type": "client_credentials", "clientId": "robot", "clientSecret": SECRET}
        desk.configured(server, auth=robot)
        named = re.search(r'issuer: "([^"]+)"', desk.toolbay("login", "notes", code=1))
        assert named, "the secret is for nobody that only the server names"
        desk.configured(server, auth={**robot, "issuer": named[1]})
        assert desk.call("count").startswith("0\n")
        assert "written" in desk.call("write")
        assert counts(server)["notes"] == 1
        assert counts(server)["client_credentials"] == 2


def test_a_login_at_the_typescript_sdks_server_brings_tokens_for_that_server(desk: Desk) -> None:
    """SEC: attack 10: the server takes only tokens that were asked for with its own address as `resource`."""
    with servers.typescript_oauth_serving() as server:
        desk.configured(server)
        desk.toolbay("login", "notes")
        assert "Hello, Ada" in desk.toolbay("call", "mcp_notes_greet", "name=Ada")
