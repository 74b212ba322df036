"""`toolbay chat` beside a server that wants a login: what is told of it, and what to do."""

from __future__ import annotations

import stat
import sys
from functools import partial
from pathlib import Path

import anyio.from_thread
import anyio.to_thread
import pytest

from cli.conftest import Configure, Open
from cli.terminals import toolbay
from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from support.connections import raw
from support.processes import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")]


async def test_a_chat_tells_who_waits_for_a_login_and_what_to_do(tmp_path: Path, configure: Configure) -> None:
    """H4, RUN-5, LIF-4, CLI: in its list, in the answer that finds no tool, and after a reload."""
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        configure(notes=server.entry, raw=raw())
        lines = ["/servers", "make me a sandwich", "/login", "/login note", "/reload"]
        work = partial(toolbay, "--model", "offline", "chat", "--wait", "all", cwd=tmp_path, given="\n".join(lines))
        done = await anyio.to_thread.run_sync(work)
    assert done.returncode == 0, done.stderr
    wants = "notes: HTTP 401, it wants a login: log in with `toolbay login notes`"
    assert f"✗ {wants}\n" in done.stderr
    assert "doctor" not in done.stderr
    assert "error: /login needs a person at the terminal: run toolbay login notes, and this chat goes on with that." in done.stderr
    assert 'error: There is no server "note": did you mean notes?' in done.stderr
    shown = done.stdout.splitlines()
    assert any(line.split("  ")[0] == "notes" and "needs a login" in line and wants in line for line in shown)
    assert f"Servers that are not there, whose tools might fit:\n- {wants}\n" in done.stdout
    assert shown[-2:] == ["Reloaded: tried again notes; needs a login notes.", f"✗ {wants}"]


@pytest.fixture
def opener(tmp_path: Path) -> Path:
    """A browser that agrees to what it is told to open, unless its person is away."""
    opener = tmp_path / "programs" / "xdg-open"
    opener.parent.mkdir()
    visit = "import os, sys, urllib.request; os.path.exists('away') or urllib.request.urlopen(sys.argv[1], timeout=60).read()"
    opener.write_text(f"#!{sys.executable} -IS\n{visit}\n")
    opener.chmod(opener.stat().st_mode | stat.S_IXUSR)
    return opener


async def test_who_stops_once_the_login_is_kept_is_told_so(tmp_path: Path, configure: Configure, at_terminal: Open, opener: Path) -> None:
    """H4, CLI: it is the server that is waited for by then; the login is another one than before."""
    kept = tmp_path / "home" / "data" / "logins"
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        server.steps["initialize"] = [Step(wait=True)]
        configure(notes=server.entry)

        def talk() -> int:
            chat = at_terminal("--model", "offline", "chat", DISPLAY=":99", PATH=f"{opener.parent}:{Path(sys.executable).parent}")
            chat.expect("/login notes logs in to that server here")
            chat.prompted()
            chat.type("/login\r")
            chat.expect("To log in to notes, agree on this page at 127.0.0.1:")
            anyio.from_thread.run(
                eventually,
                lambda: any("authorization" in headers for headers in server.headers),
                "the server being tried with the login",
                30,
            )
            chat.type("\x03")
            chat.expect("(stopped; the new login is kept)")
            server.gate.set()
            chat.prompted()
            chat.type("/quit\r")
            return chat.end()

        assert await anyio.to_thread.run_sync(talk) == 0
    for file in kept.glob("*"):
        file.unlink()  # as below


async def test_a_person_logs_in_from_within_a_chat(tmp_path: Path, configure: Configure, at_terminal: Open, opener: Path) -> None:
    """H4, CLI: the page is shown and opened, Ctrl-C stops the waiting only, and the server is there for the same conversation."""
    away = tmp_path / "away"
    away.touch()
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        configure(notes=server.entry)
        path = f"{opener.parent}:{Path(sys.executable).parent}"

        def talk() -> int:
            chat = at_terminal("--model", "offline", "chat", DISPLAY=":99", PATH=path)
            chat.expect("/login notes logs in to that server here")
            chat.prompted()
            chat.type("/login\r")
            chat.expect("To log in to notes, agree on this page at 127.0.0.1:")
            chat.expect("Ctrl-C gives up.")
            chat.expect("waiting for the browser")
            chat.type("\x03")
            chat.expect("(stopped; the login is as it was)")
            away.unlink()
            chat.prompted()
            chat.type("/login notes\r")
            chat.expect("✓ notes ready in ")
            chat.expect("✓ logged in to notes at http://127.0.0.1:")
            chat.prompted()
            chat.type("/servers\r")
            chat.expect("ready")
            chat.prompted()
            chat.type("/quit\r")
            return chat.end()

        assert await anyio.to_thread.run_sync(talk) == 0
    for kept in (tmp_path / "home" / "data" / "logins").glob("*"):
        kept.unlink()  # here, and here alone, tokens may lie
