"""Where an App keeps logins: in files that programs share, or where its program says."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from servers.raw_http import RawHttp
from servers.raw_oauth import RawOAuth
from support.logins import Agreeing
from toolbay import App, parse
from toolbay.testing import MemoryLogins

pytestmark = pytest.mark.anyio


async def test_an_app_keeps_logins_where_its_program_says(tmp_path: Path) -> None:
    """LIB: a store of its own; nothing of a login gets onto the disk."""
    store = MemoryLogins()
    with anyio.fail_after(60):
        async with RawOAuth() as oauth, RawHttp() as server:
            oauth.protect(server)
            config = parse({"mcpServers": {"s": server.entry}})
            async with App(config, logins=store, environ={"TOOLBAY_HOME": str(tmp_path)}) as app:
                await app.settle(None)
                assert app.servers["s"].state == "needs_auth"
                assert (await app.login("s", Agreeing())).logged_in
                await app.settle(None)
                assert app.servers["s"].state == "ready"
            async with App(config, logins=store, environ={"TOOLBAY_HOME": str(tmp_path)}) as another:
                await another.settle(None)
                assert another.servers["s"].state == "ready"
    assert not (tmp_path / "data" / "logins").exists()
