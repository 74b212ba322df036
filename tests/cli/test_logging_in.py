"""`toolbay login` and `toolbay logout`, as real processes: with a browser, over SSH without one, and with people who say no."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cli.conftest import Configure, Open
from cli.terminals import PATIENCE, Terminal, started, toolbay
from servers.raw_http import RawHttp, Request, Step
from servers.raw_oauth import RawOAuth
from support.canaries import assert_clean
from support.connections import raw
from toolbay.auth.records import Login

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals, and no openers on PATH")]
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/authorize\?\S+")


class Scene:
    """A server that wants a login, its authorization server, and the program beside them."""

    def __init__(self, folder: Path, oauth: RawOAuth, server: RawHttp) -> None:
        self.folder = folder
        self.oauth = oauth
        self.server = server
        self.programs = folder / "programs"
        self.logins = folder / "home" / "data" / "logins"

    def browser(self, *, visits: bool = True, code: int = 0) -> dict[str, str]:
        """The environment of a machine with a browser, whose person agrees to every page; `code`: how its opener ends."""
        self.programs.mkdir(exist_ok=True)
        path = self.programs / "xdg-open"
        note = f"open({str(self.folder / 'argv')!r}, 'w').write(' '.join(sys.argv[1:]))"
        visit = f"import sys, urllib.request; {note}; urllib.request.urlopen(sys.argv[1], timeout=60).read()"
        path.write_text(f"#!{sys.executable} -IS\n{visit}\n" if visits else f"#!/bin/sh\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"DISPLAY": ":99", "PATH": f"{self.programs}:{Path(sys.executable).parent}"}

    async def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return await beside(partial(toolbay, *arguments, cwd=self.folder, env=env))

    @property
    def kept(self) -> list[Login]:
        return [Login.from_json(json.loads(path.read_text())) for path in sorted(self.logins.glob("*.json"))]

    def entry(self, **auth: Any) -> dict[str, Any]:
        return {**self.server.entry, **({"auth": auth} if auth else {})}


async def beside(work: Callable[[], Any]) -> Any:
    """Do it in a thread: the servers live in this loop."""
    return await anyio.to_thread.run_sync(work)


async def until(process: subprocess.Popen[str], text: str) -> str:
    """What it says on stderr up to the line with `text`."""
    assert process.stderr is not None
    said = ""
    while text not in said:
        line = await beside(process.stderr.readline)
        assert line, said
        said += line
    return said


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncGenerator[Scene]:
    async with RawOAuth() as oauth, RawHttp() as server:
        oauth.protect(server)
        here = Scene(tmp_path, oauth, server)
        yield here
    # Here, and here alone, tokens may lie; the rest of the folder is searched for them.
    for path in here.logins.glob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.unlink()


async def expected(terminal: Terminal, text: str) -> str:
    return await beside(lambda: terminal.expect(text))


async def test_a_person_logs_in_by_a_browser_and_the_server_is_open(scene: Scene, configure: Configure) -> None:
    """H4: the page is shown, the browser opened; afterwards another program is let in with the login."""
    configure(notes=scene.entry())
    scene.oauth.scopes = ("read", "write")
    done = await scene.run("login", "notes", **scene.browser())
    assert done.returncode == 0, done.stderr
    assert f"✓ logged in to notes at {scene.oauth.issuer}" in done.stdout
    assert "granted: read write" in done.stdout
    assert "it renews itself" in done.stdout
    assert ADDRESS.search(done.stderr)
    told = (scene.folder / "argv").read_text()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/begin\?once=[\w-]{40,}", told), "what all at this machine can read leads there once"
    assert f"To log in to notes, agree on this page at 127.0.0.1:{scene.oauth.port}:" in done.stderr
    assert "It asks you for: read write" in done.stderr
    (login,) = scene.kept
    assert login.tokens is not None
    assert scene.oauth.guards(login.tokens.access)
    done = await scene.run("tools", "--json")
    assert done.returncode == 0, done.stderr


async def test_as_json_and_quiet(scene: Scene, configure: Configure) -> None:
    """TRA-8: data to stdout alone; the address is shown even where quiet was asked for, since nothing goes on without it."""
    configure(notes=scene.entry())
    done = await scene.run("--quiet", "login", "notes", "--json", "--scopes", "read  write", **scene.browser())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ends_at"] > 0
    assert {**told, "ends_at": 0} == {
        "name": "notes",
        "logged_in": True,
        "issuer": scene.oauth.issuer,
        "scopes": ["read", "write"],
        "ends_at": 0,
        "renews": True,
        "not_granted": [],
    }
    assert ADDRESS.search(done.stderr)
    assert len(done.stderr.strip().splitlines()) == 3, done.stderr


async def test_over_ssh_the_address_is_pasted_at_the_terminal(scene: Scene, configure: Configure, at_terminal: Open) -> None:
    """OAuth: what is wrong with another one is said, and the right one is asked for again; none of it is shown."""
    configure(notes=scene.entry())
    terminal = at_terminal("login", "notes", SSH_CONNECTION="10.0.0.1 22 10.0.0.2 22")
    page = ADDRESS.search(await expected(terminal, "Open it in a browser."))
    assert page is not None
    await expected(terminal, "paste that address here. Ctrl-C gives up.")
    await expected(terminal, "or paste its last address")
    address = await scene.oauth.approve(page.group())
    terminal.type("\r")
    terminal.type("https://as.example/somewhere\r")
    await expected(terminal, "! that is not where the browser ended, which is http://127.0.0.1:")
    terminal.type(f"{address.replace('state=', 'state=x')}\r")
    await expected(terminal, "! that address belongs to another login")
    terminal.type(f"\x1b[200~{address}\x1b[201~")
    await expected(terminal, " characters; Enter)")
    terminal.type("\r")
    await expected(terminal, "✓ logged in to notes")
    assert await beside(terminal.end) == 0
    assert "code=" not in terminal.seen
    assert len(scene.kept) == 1


async def test_an_address_of_many_thousand_characters_can_be_pasted(scene: Scene, configure: Configure, at_terminal: Open) -> None:
    """OAuth: codes are as long as their makers like; a terminal's own lines end at 4,095 characters."""
    configure(notes=scene.entry())
    terminal = at_terminal("login", "notes", "--no-browser")
    page = ADDRESS.search(await expected(terminal, "paste that address here."))
    assert page is not None
    await expected(terminal, "or paste its last address")
    address = f"{await scene.oauth.approve(page.group())}&session_state={'a' * 9000}"
    await beside(lambda: terminal.type(f"{address}\r"))
    await expected(terminal, "✓ logged in to notes")
    assert await beside(terminal.end) == 0


async def test_at_a_terminal_the_browsers_answer_ends_the_wait(scene: Scene, configure: Configure, at_terminal: Open) -> None:
    """OAuth: nobody has to press a key; also where the person has said that nothing will be pasted."""
    configure(notes=scene.entry())
    for keys in ("", "half an addr", "\x04"):
        terminal = at_terminal("login", "notes")
        page = ADDRESS.search(await expected(terminal, "Open it in a browser."))
        assert page is not None
        await expected(terminal, "waiting for the browser")
        terminal.type(keys)
        await scene.oauth.visit(page.group())
        await expected(terminal, "✓ logged in to notes")
        assert await beside(terminal.end) == 0


@pytest.mark.parametrize("way", ["keys", "signal"])
async def test_ctrl_c_gives_a_login_up(scene: Scene, configure: Configure, at_terminal: Open, way: str) -> None:
    """LIF-1: exit code 130; the port is free, nothing is kept but the client id."""
    configure(notes=scene.entry())
    terminal = at_terminal("login", "notes")
    await expected(terminal, "or paste its last address")
    port = int(scene.oauth.registrations[0]["redirect_uris"][0].split(":")[2].split("/")[0])
    if way == "keys":
        terminal.type("\x03")
    else:
        terminal.send(signal.SIGINT)
    await expected(terminal, "stopping…")
    assert await beside(terminal.end) == 130
    assert [login.tokens for login in scene.kept] == [None]
    socket.create_server(("127.0.0.1", port)).close()


async def test_without_a_terminal_the_address_is_read_from_stdin_where_there_is_no_browser(scene: Scene, configure: Configure) -> None:
    """OAuth: `ssh machine toolbay login NAME --no-browser`, and programs that drive us; without the option stdin is left alone."""
    configure(notes=scene.entry())
    process = started("login", "notes", "--no-browser", cwd=scene.folder)
    try:
        page = ADDRESS.search(await until(process, "paste that address here"))
        assert page is not None
        assert process.stdin is not None
        process.stdin.write("\nnonsense\n" + await scene.oauth.approve(page.group()) + "\n")
        process.stdin.flush()
        out, errors = await beside(lambda: process.communicate(timeout=PATIENCE))
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "! that is not where the browser ended" in errors
    assert "✓ logged in to notes" in assert_clean(out + errors, "what login said")


async def test_who_says_no_and_who_does_not_come_back(scene: Scene, configure: Configure) -> None:
    """OAuth: exit code 1 and a sentence; as JSON, too."""
    configure(notes=scene.entry())
    scene.oauth.refuses = "access_denied"
    done = await scene.run("login", "notes", "--json", **scene.browser())
    assert done.returncode == 1
    assert 'nothing was granted to Toolbay for "notes"' in json.loads(done.stdout)["error"]
    done = await scene.run("login", "notes", "--timeout", "3")
    assert done.returncode == 1
    assert re.search(r'error: nobody came back from the login with "notes" at 127.0.0.1:\d+ within 3 s', done.stderr)
    assert "nobody can paste an address here" in done.stderr
    assert "toolbay logout notes" in done.stderr
    configure(notes=scene.entry(clientId="ours"))
    scene.oauth.know("ours")
    done = await scene.run("login", "notes", "--timeout", "3")
    assert "The key `clientId` has no `callbackPort` or `callbackUrl`" in done.stderr.partition("agree on this page")[0]
    assert 'the client id "ours"' in done.stderr


@pytest.mark.parametrize(
    ("code", "options", "said"), [(0, (), "was told to show it"), (3, (), "Open it"), (0, ("--no-browser",), "Open it")]
)
async def test_whether_a_browser_was_opened_is_said(
    scene: Scene, configure: Configure, code: int, options: tuple[str, ...], said: str
) -> None:
    """OAuth: one whose opener fails, and one that is not to be opened."""
    configure(notes=scene.entry())
    process = started("login", "notes", *options, cwd=scene.folder, env=scene.browser(visits=False, code=code))
    try:
        assert ADDRESS.search(await until(process, said))
        process.send_signal(signal.SIGINT)
        assert await beside(lambda: process.wait(PATIENCE)) == 130
    finally:
        process.kill()
        process.communicate()
    assert scene.oauth.authorizations == []


async def test_what_was_not_granted_is_told(scene: Scene, configure: Configure) -> None:
    """OAuth: less than was asked for; and when a login ends that cannot be renewed."""
    configure(notes=scene.entry())
    scene.oauth.grants_only, scene.oauth.refreshable = ("read",), False
    done = await scene.run("login", "notes", "--scopes", "read,delete", **scene.browser())
    assert done.returncode == 1, "what was named was not given"
    assert "the commas are taken for that" in done.stderr
    assert "! not granted: delete (the login is kept with the rest)" in done.stderr
    assert "it ends in 60 min; then log in again" in done.stdout
    (before,) = scene.kept
    scene.oauth.grants_only = ("else",)
    done = await scene.run("login", "notes", "--scopes", "bogus", **scene.browser())
    assert done.returncode == 1
    assert "(you are logged in to notes at http" in done.stderr
    assert 'did not grant bogus for "notes": the login that was there stays as it is' in done.stderr
    assert scene.kept == [before]
    scene.oauth.grants_only = ("read", "else")
    done = await scene.run("login", "notes", "--scopes", "else bogus", **scene.browser())
    assert (done.returncode, "! not granted: bogus (the new login has replaced the one before)" in done.stderr) == (1, True), done.stderr
    assert scene.kept != [before]
    scene.oauth.grants_only, scene.oauth.scopes = ("else",), ("read", "write")
    done = await scene.run("login", "notes", **scene.browser())
    assert (done.returncode, "! not granted: read" in done.stderr) == (0, True), "the server has named them, and nobody here"


async def test_a_program_logs_in_by_itself(scene: Scene, configure: Configure) -> None:
    """OAuth: `client_credentials`: it is tried once, and nobody is asked; a wrong secret is told and never shown."""
    scene.oauth.know("nightly", "canary-of-nightly")
    itself = {"type": "client_credentials", "clientId": "nightly", "clientSecret": "${NIGHTLY}"}
    configure(notes=scene.entry(**itself))
    done = await scene.run("login", "notes", NIGHTLY="canary-of-nightly")
    assert done.returncode == 1
    assert f'set `auth: {{issuer: "{scene.oauth.issuer}"}}`' in " ".join(done.stderr.split())
    configure(notes=scene.entry(**itself, issuer=scene.oauth.issuer))
    done = await scene.run("login", "notes", NIGHTLY="canary-of-nightly")
    assert done.returncode == 0, done.stderr
    assert "nobody is asked" in done.stderr
    assert "✓ logged in to notes" in done.stdout
    done = await scene.run("login", "notes", NIGHTLY="canary-wrong")
    assert done.returncode == 1
    assert "invalid_client" in done.stderr
    done = await scene.run("logout", "notes", NIGHTLY="canary-of-nightly")
    assert (done.returncode, "(the next use of notes logs in again" in done.stderr) == (0, True), done.stderr


async def test_what_cannot_be_logged_in_to_says_why(scene: Scene, configure: Configure) -> None:
    """CFG-5: programs, entries that say what to send, entries that cannot be used, names that nobody has; and no self registration."""

    async def nothing_else(request: Request) -> Step | None:
        return None if request.target == "/mcp" else Step(kind="status", status=404)

    configure(
        local=raw(),
        off=scene.entry(type="none"),
        fixed={**scene.server.entry, "headers": {"Authorization": "Bearer canary-fixed"}},
        unset={"url": "${NOWHERE_TO_BE_FOUND}"},
        notes=scene.entry(),
    )
    scene.oauth.registers = False
    for name, said in {
        "local": "is a program",
        "off": "`auth`",
        "fixed": "Authorization header",
        "unset": "NOWHERE_TO_BE_FOUND",
        "note": 'did you mean "notes"?',
        "notes": "clientId",
    }.items():
        done = await scene.run("login", name)
        assert done.returncode == 1, name
        assert said in done.stderr, name
        assert not ADDRESS.search(done.stderr)
    scene.server.door = nothing_else
    done = await scene.run("login", "notes")
    assert (done.returncode, "wants none, and takes requests without one" in done.stderr) == (1, True), done.stderr


async def test_a_port_that_is_taken_is_told(scene: Scene, configure: Configure) -> None:
    """OAuth: which, and where it is set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        configure(notes=scene.entry(callbackPort=port))
        done = await scene.run("login", "notes")
    assert done.returncode == 1
    assert f"port {port} of this machine" in done.stderr
    assert "auth.callbackPort" in done.stderr


@pytest.mark.parametrize("words", [("login",), ("login", "notes", "--timeout", "0"), ("logout",), ("logout", "notes", "--all")])
async def test_wrong_usage_is_exit_code_2(scene: Scene, configure: Configure, words: tuple[str, ...]) -> None:
    """TRA-8: what is missing, or too much."""
    configure(notes=scene.entry())
    assert (await scene.run(*words)).returncode == 2


async def test_logging_out_ends_the_login_there_and_here(scene: Scene, configure: Configure) -> None:
    """OAuth: both tokens are taken back (RFC 7009), and nothing is kept; once more is no failure."""
    configure(notes=scene.entry())
    await scene.run("login", "notes", **scene.browser())
    (login,) = scene.kept
    assert login.tokens is not None
    done = await scene.run("logout", "notes")
    assert (done.returncode, done.stdout) == (0, "✓ logged out of notes\n"), done.stderr
    assert set(scene.oauth.revocations) == {login.tokens.access, login.tokens.refresh}
    assert not scene.oauth.guards(login.tokens.access)
    assert scene.kept == []
    done = await scene.run("logout", "notes")
    assert (done.returncode, done.stdout) == (0, "")
    assert "(there was no login with notes)" in done.stderr


@pytest.mark.parametrize("words", [("logout", "notes"), ("login", "notes", "--scopes", "read")])
async def test_what_was_listed_to_one_person_is_no_beginning_for_another(
    scene: Scene, configure: Configure, words: tuple[str, ...]
) -> None:
    """LIF-6: after a logout or another login the next program waits for the server's own lists."""
    configure(notes=scene.entry())
    listings = scene.folder / "home" / "data" / "listings"
    await scene.run("login", "notes", **scene.browser())
    assert (await scene.run("tools")).returncode == 0
    assert len(list(listings.glob("*.json"))) == 1
    done = await scene.run(*words, **scene.browser())
    assert done.returncode == 0, done.stderr
    assert list(listings.glob("*.json")) == []


async def test_a_login_that_could_not_be_taken_back_is_forgotten_and_that_is_said(scene: Scene, configure: Configure) -> None:
    """OAuth: an authorization server that is down, or has no address for it."""
    configure(notes=scene.entry())
    for step, metadata in (([Step(kind="status", status=503)], {}), ([], {"revocation_endpoint": None})):
        scene.oauth.steps["revoke"], scene.oauth.metadata = step, metadata
        await scene.run("login", "notes", **scene.browser())
        done = await scene.run("logout", "notes")
        assert done.returncode == 0
        assert f"{scene.oauth.issuer} has not confirmed that it ends" in done.stderr
        assert scene.kept == []


async def test_a_login_whose_server_is_gone_can_be_ended(scene: Scene, configure: Configure) -> None:
    """SEC: attack 11: `remove` says that it is kept; by its name then, or with all, it is ended there and here."""
    for words in (("logout", "notes"), ("logout", "--all")):
        configure(notes=scene.entry())
        await scene.run("login", "notes", **scene.browser())
        (login,) = scene.kept
        assert login.tokens is not None
        done = await scene.run("remove", "notes")
        assert (done.returncode, "still kept: toolbay logout notes ends it" in done.stderr) == (0, True), done.stderr
        done = await scene.run(*words)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"✓ logged out of notes ({scene.server.url}, no server of this configuration)\n"
        assert "has not confirmed" not in done.stderr
        assert not scene.oauth.guards(login.tokens.access)
        assert scene.kept == []
    done = await scene.run("logout", "notes")
    assert (done.returncode, 'There is no server "notes"' in done.stderr) == (1, True)
    assert "No login is kept under that name either." in done.stderr
    configure(notes=scene.entry())
    assert "still kept" not in (await scene.run("remove", "notes")).stderr


async def test_a_login_of_an_entry_that_was_changed_is_ended_with_its_name(scene: Scene, configure: Configure) -> None:
    """SEC: attack 11: under another address it is another login, and the one before is told with its own."""
    configure(notes=scene.entry())
    await scene.run("login", "notes", **scene.browser())
    configure(notes={**scene.entry(), "url": f"{scene.server.url}/moved"})
    done = await scene.run("logout", "notes", "--json")
    first, other = json.loads(done.stdout)["servers"]
    assert (first["name"], first["was_logged_in"], first["revoked"]) == ("notes", False, None)
    assert (other["name"], other["was_logged_in"], other["revoked"], other["url"]) == ("notes", True, True, scene.server.url)
    assert scene.kept == []


async def test_an_address_is_pasted_as_mail_and_chats_copy_it_and_what_is_wrong_fits_into_a_narrow_terminal(
    scene: Scene, configure: Configure, at_terminal: Open
) -> None:
    """OAuth: nothing of a sentence is cut at the terminal's width; a half of an address and the page's own are told."""
    configure(notes=scene.entry())
    terminal = at_terminal("login", "notes", "--no-browser", columns=70)
    page = ADDRESS.search(await expected(terminal, "paste that address here."))
    assert page is not None
    await expected(terminal, "or paste its last address")
    assert re.search(r"\d+ of 300 s", terminal.seen)
    address = await scene.oauth.approve(page.group())
    await beside(lambda: terminal.type(f"{page.group()}\r"))
    await expected(terminal, "! that is the login page itself")
    await expected(terminal, "browser ends at")
    await beside(lambda: terminal.type(f"{address.partition('&state=')[0]}\r"))
    await expected(terminal, "was cut off")
    await expected(terminal, "of it")
    await beside(lambda: terminal.type(f"\x1b[200~<{address}>\x1b[201~\r"))
    await expected(terminal, "✓ logged in to notes")
    assert await beside(terminal.end) == 0


async def test_who_says_that_nothing_will_be_pasted_is_told_what_remains(scene: Scene, configure: Configure, at_terminal: Open) -> None:
    """OAuth: Ctrl-D at the prompt, and a stdin that ends."""
    configure(notes=scene.entry())
    terminal = at_terminal("login", "notes", "--no-browser")
    await expected(terminal, "or paste its last address")
    terminal.type("\x04")
    await expected(terminal, "only a browser at this machine")
    await expected(terminal, "waiting for the browser, 300 s at most")
    terminal.type("\x03")
    assert await beside(terminal.end) == 130
    done = await scene.run("login", "notes", "--no-browser", "--timeout", "3")
    assert (done.returncode, "! nobody can paste an address here any more" in done.stderr) == (1, True), done.stderr


async def test_logging_out_of_all(scene: Scene, configure: Configure) -> None:
    """OAuth: each for itself; an entry that cannot be used keeps none of the others logged in."""
    configure(one=scene.entry(), two=scene.entry(), never=scene.entry(), local=raw(), broken={"url": "${NOWHERE_TO_BE_FOUND}"})
    for name in ("one", "two"):
        assert (await scene.run("login", name, **scene.browser())).returncode == 0
    done = await scene.run("logout", "--all", "--json")
    assert done.returncode == 1
    told = {one["name"]: one for one in json.loads(done.stdout)["servers"]}
    assert {name: one.get("revoked") for name, one in told.items()} == {
        "one": True,
        "two": True,
        "never": None,
        "local": None,
        "broken": None,
    }
    assert "NOWHERE_TO_BE_FOUND" in told["broken"]["error"]
    assert scene.kept == []
    configure(one=scene.entry())
    done = await scene.run("logout", "--all")
    assert (done.returncode, done.stdout, "(there was no login)" in done.stderr) == (0, "", True)
