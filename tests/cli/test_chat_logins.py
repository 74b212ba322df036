"""`toolbay chat` beside a server that wants a login: what is told of it, and what to do."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from cli.conftest import Configure
from cli.terminals import toolbay
from servers.raw_http import RawHttp
from servers.raw_oauth import RawOAuth
from support.connections import raw

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")]


async def test_a_chat_tells_who_waits_for_a_login_and_what_to_do(tmp_path: Path, configure: Configure) -> None:
    """H4, RUN-5, LIF-4, CLI: in its list, in the answer that finds no tool, and after a reload."""
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        configure(notes=server.entry, raw=raw())
        lines = ["/servers", "make me a sandwich", "/reload"]
        work = partial(toolbay, "--model", "offline", "chat", "--wait", "all", cwd=tmp_path, given="\n".join(lines))
        done = await anyio.to_thread.run_sync(work)
    assert done.returncode == 0, done.stderr
    wants = "notes: HTTP 401, it wants a login: log in with `toolbay login notes`"
    assert f"✗ {wants}\n" in done.stderr
    assert "doctor" not in done.stderr
    shown = done.stdout.splitlines()
    assert any(line.split("  ")[0] == "notes" and "needs a login" in line and wants in line for line in shown)
    assert f"Servers that are not there, whose tools might fit:\n- {wants}\n" in done.stdout
    assert shown[-2:] == ["Reloaded: tried again notes; needs a login notes.", f"✗ {wants}"]
