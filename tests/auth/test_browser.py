"""How a page is opened: the openers are real programs on PATH, which write down what they were given."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.processes import alive, eventually
from toolbay.auth import browser
from toolbay.auth.browser import LONGEST, fit, opened, openers

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="openers of these are no programs on PATH")]

GOOD = (
    "https://as.example/authorize?response_type=code&client_id=abc&redirect_uri=http%3A%2F%2F127.0.0.1%3A4711%2Fcallback&scope=a+b&state=x-_~.",
    "https://login.as.example:8443/tenant/oauth2/v2.0/authorize?resource=https%3A%2F%2Fmcp.example%2Fmcp",
    "https://xn--bcher-kva.example/@me/a,b:c?next=https://as.example/a?b=c",
    "http://127.0.0.1:4711/authorize?a=b",
    "http://localhost:4711/authorize",
    "http://[::1]:4711/authorize",
    "https://as.example",
)
BAD = (
    "",
    "as.example/authorize",
    "//as.example/authorize",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "JaVaScRiPt://as.example/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)",
    "ms-msdt:/id PCWDiagnostic",
    "search-ms:query=calc",
    "smb://as.example/share",
    "ftp://as.example/file",
    "mailto:someone@as.example",
    "view-source:https://as.example/",
    "about:blank",
    "--version",
    "-https://as.example/",
    "--new-window=https://as.example/",
    "/usr/bin/calc",
    "C:\\Windows\\System32\\calc.exe",
    "\\\\as.example\\share\\calc.exe",
    " https://as.example/",
    "https://as.example/ ",
    "https://as.example/a b",
    "https://as.example/\n",
    "https://as.example/?a=b\r\ncalc",
    "https://as.example/\x00",
    "https://as.example/\x1b]8;;https://evil.example\x07",
    "https://as.example/?a=%0Acalc",
    "https://as.example/?a=%00",
    "https://as.example/?a=%zz",
    "https://as.example/?a=%PATH%",
    "https://as.example/?a=$(calc)",
    "https://as.example/$(calc.exe)",
    "https://$(calc)/authorize",
    "https://as.example/`calc`",
    'https://as.example/?a="&calc&"',
    "https://as.example/?a='calc'",
    "https://as.example/?a=b;calc",
    "https://as.example/?a=b|calc",
    "https://as.example/?a=b>out",
    "https://as.example/?a=<script>",
    "https://as.example/?a=b^&calc",
    "https://as.example/?a={calc}",
    "https://as.example/?a=!calc",
    "https://as.example/*",
    "https://as.example/\\evil.example",
    "https://as.example\\@evil.example/",
    "https://as.example@evil.example/",
    "https://user:password@as.example/",
    "https://as.example/#fragment",
    "https://as.example:0/",
    "https://as.example:99999/",
    "https://as.example:-1/",
    "https://as.example:8a/",
    "https://:443/",
    "https:///authorize",
    "https://-as.example/",
    "https://as.example-/",
    "https://as_example/",
    "https://b\u00fccher.example/",
    "https://as\u3002example/",
    "https://as.example/\u202egnp",
    "https://[::1%25eth0]/",
    "http://as.example/authorize",
    "http://127.0.0.1.evil.example/authorize",
    "http://localhost.evil.example/",
    "http://10.0.0.1/authorize",
    "http:/127.0.0.1/",
    "HTTPS://as.example/",
    f"https://as.example/{'a' * LONGEST}",
)


class Opener:
    """A program in the place of an opener, first on PATH. It writes its arguments down and ends with a code, or stays."""

    def __init__(self, folder: Path, name: str, *, code: int = 0, stays: bool = False) -> None:
        self._told = folder / f"{name}.json"
        self._pid = folder / f"{name}.pid"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(
            f"#!{sys.executable} -IS\n"
            "import json, os, signal, sys\n"
            f"temporary = {str(self._told) + '.tmp'!r}\n"
            "open(temporary, 'w').write(json.dumps(sys.argv[1:]))\n"
            f"open({str(self._pid)!r}, 'w').write(str(os.getpid()))\n"
            f"os.replace(temporary, {str(self._told)!r})\n" + ("signal.pause()\n" if stays else f"sys.exit({code})\n")
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def told(self) -> list[str] | None:
        return json.loads(self._told.read_text()) if self._told.exists() else None

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """First and alone on PATH, on a machine with windows."""
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    for name in ("WSL_DISTRO_NAME", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":99")
    return tmp_path / "programs"


@pytest.mark.parametrize("url", GOOD)
async def test_a_page_is_opened_by_a_program_that_gets_the_address_as_its_one_argument(url: str, folder: Path) -> None:
    """OAuth: as it is, with all that a query may hold."""
    opener = Opener(folder, "xdg-open")
    assert await opened(url)
    assert opener.told == [url]


async def test_attack_12_no_opener_gets_an_address_that_is_no_plain_web_address(folder: Path) -> None:
    """SEC: attack 12: schemes, options, shells, control characters, users, other spellings (CVE-2025-6514)."""
    opener = Opener(folder, "xdg-open")
    assert len(BAD) >= 30
    assert [url for url in BAD if await opened(url)] == []
    assert opener.told is None


@given(st.text() | st.text(alphabet="ahtps:/.?#@%$`'\"\\;|&<>()[]{} \n\x00-1").map(lambda tail: f"https://as.example{tail}"))
def test_attack_12_whatever_is_fit_holds_nothing_that_a_shell_knows(url: str) -> None:
    """SEC: attack 12: for any text; what is fit names the host that it seems to name."""
    if fit(url):
        assert not set(url) & set("$`'\"\\;|<>(){}^!*# \t\n")
        assert url.isascii()
        assert url.isprintable()
        assert "@" not in url.split("/")[2]


async def test_a_browser_that_stays_with_its_opener_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OAuth: it counts as opened, in a session of its own, and nothing here waits for its end."""
    monkeypatch.setattr(browser, "GRACE", 0.05)
    opener = Opener(folder, "xdg-open", stays=True)
    try:
        assert await opened(GOOD[0])
        await eventually(lambda: opener.told == [GOOD[0]])
        assert alive(opener.pid)
        assert os.getsid(opener.pid) == opener.pid
    finally:
        await eventually(lambda: opener.told is not None)
        os.kill(opener.pid, signal.SIGKILL)
    await eventually(lambda: not alive(opener.pid))


async def test_an_opener_that_fails_or_cannot_be_run_opens_nothing(folder: Path) -> None:
    """OAuth: then the person is shown the address and opens it."""
    assert not await opened(GOOD[0])
    opener = Opener(folder, "xdg-open", code=3)
    assert not await opened(GOOD[0])
    assert opener.told == [GOOD[0]]
    (folder / "xdg-open").write_text("#!/nowhere/at-all\n")
    assert not await opened(GOOD[0])


async def test_inside_of_windows_the_next_opener_is_tried_where_the_first_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OAuth: WSL has Windows' browser, or one of its own."""
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    first, second = Opener(folder, "wslview", code=1), Opener(folder, "xdg-open")
    assert await opened(GOOD[0])
    assert first.told == second.told == [GOOD[0]]


async def test_without_windows_no_opener_is_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OAuth: it would show the page in this very terminal, over what the person is told there."""
    opener = Opener(folder, "xdg-open")
    monkeypatch.delenv("DISPLAY")
    assert not await opened(GOOD[0])
    assert opener.told is None


@pytest.mark.parametrize(
    ("system", "environ", "programs"),
    [
        ("linux", {"DISPLAY": ":0"}, [("xdg-open",)]),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, [("xdg-open",)]),
        ("linux", {"SSH_CONNECTION": "a", "DISPLAY": "localhost:10.0"}, [("xdg-open",)]),
        ("linux", {"SSH_CONNECTION": "a"}, []),
        ("linux", {"WSL_DISTRO_NAME": "Debian"}, [("wslview",)]),
        ("freebsd14", {"DISPLAY": ":0"}, [("xdg-open",)]),
        ("darwin", {}, [("/usr/bin/open",)]),
        ("darwin", {"SSH_CONNECTION": "a"}, []),
        ("win32", {"SystemRoot": r"D:\Windows"}, [(r"D:\Windows\System32\rundll32.exe", "url.dll,FileProtocolHandler")]),
        ("win32", {}, [(r"C:\Windows\System32\rundll32.exe", "url.dll,FileProtocolHandler")]),
        ("win32", {"SSH_TTY": "a"}, []),
    ],
)
def test_each_system_has_its_openers(system: str, environ: dict[str, str], programs: list[tuple[str, ...]]) -> None:
    """OAuth: none on a machine that the person only reaches from another one."""
    assert list(openers(system, environ)) == programs
