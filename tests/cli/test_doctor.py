"""`toolbay doctor`, as a real process on configurations with good and bad servers."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import trustme

from cli.conftest import Configure, Open
from cli.terminals import PATIENCE, started, toolbay
from support.connections import raw
from support.processes import MARK, leftovers, marked, wait_until
from support.servers import SERVERS, free_port, stdio

WHOLE = """\
!   good     PYTHON -IS SERVERS/raw_server.py --pollute 1 --tools echo,note
    raw 1.0, MCP 2025-11-25 by initialize
    2 tools, 0 resources, 0 prompts; a model is given 1 of them, about 00 tokens; ready in 0.0 s, still there 0.5 s later
    spawn         0.00 s  pid 0
    first byte    0.00 s
    initialize    0.00 s  agreed on 2025-11-25
    tools/list    0.00 s  2 listed
    ! an entry of its lists names nothing
      why   enabledTools: "nte" matches no tool of this server; did you mean "note"? Available: echo (mcp_good_echo), note (mcp_good_note)
      mend  correct the name, or remove the entry
    ! it writes 2 lines to stdout that are no message
      why   stdout is for messages only
            | INFO: line 0 that is no message
            | INFO: line 0 that is no message
      mend  have it log to stderr: print(..., file=sys.stderr) in Python, console.error(...) in JavaScript, or its option for that
x   dead     PYTHON -IS SERVERS/raw_server.py --stderr 'the disk is full' --exit-at-start 3
    spawn         0.00 s  pid 0
    first byte      -    nothing came
    initialize      -    no answer
    end             -    exit code 3
    x it ended before it answered
      why   exit code 3
            | the disk is full
      mend  run it by hand and read what it says: PYTHON -IS SERVERS/raw_server.py --stderr 'the disk is full' --exit-at-start 3
x   gone     http://127.0.0.1:PORT/mcp
    guard              0.00 s  127.0.0.1 may be reached
    TCP                0.00 s  failed
    server/discover    0.00 s  http://127.0.0.1:PORT/mcp refused the connection: is the server running there?
    x http://127.0.0.1:PORT could not be reached
      why   the connection was refused: nothing listens there
      mend  start the server, and check host and port in `url`
x   unset
    x its entry cannot be used
      why   Server "unset" has a key `env.KEY` that needs the environment variable NONE, which is not set: set it, or write ${NONE:-default}
      mend  correct its entry in FOLDER/toolbay.json; toolbay config check reads it without starting anything
-   resting  PYTHON -IS SERVERS/raw_server.py
    disabled: toolbay doctor resting looks at it all the same
5 servers: 1 with warnings, 3 failed, 1 disabled
"""


def evened(text: str, folder: Path, port: int) -> str:
    """What differs from run to run and from machine to machine, taken out. No time here is 10 s or more, so columns stay."""
    for given, word in ((sys.executable, "PYTHON"), (str(SERVERS), "SERVERS"), (str(folder), "FOLDER"), (str(port), "PORT")):
        text = text.replace(given, word)
    for pattern, zero in (
        (r"\b\d\.\d\d s", "0.00 s"),
        (r"pid \d+", "pid 0"),
        (r"about \d\d tokens; ready in \d\.\d s", "about 00 tokens; ready in 0.0 s"),
    ):
        text = re.sub(pattern, zero, text)
    return text


def test_the_whole_output_on_a_mixed_configuration(configure: Configure, tmp_path: Path) -> None:
    """TRA-2, TRA-3, TRA-7, TRA-8, ALW-3, CFG-5: a line for each server, its start with times, then what is wrong and the mend."""
    port = free_port()
    configure(
        good={**raw("--pollute", "1", "--tools", "echo,note"), "enabledTools": ["echo", "nte"]},
        dead=raw("--stderr", "the disk is full", "--exit-at-start", "3"),
        gone={"url": f"http://127.0.0.1:{port}/mcp"},
        unset={"command": "x", "env": {"KEY": "${NONE}"}},
        resting={**raw(), "disabled": True},
    )
    done = toolbay("doctor", cwd=tmp_path)
    assert evened(done.stdout, tmp_path, port) == WHOLE
    assert done.returncode == 3
    assert done.stderr == "(using ./toolbay.json)\n"


def test_all_fine_is_exit_code_0(configure: Configure, tmp_path: Path) -> None:
    """TRA-2: warnings are no failure."""
    configure(a=raw(), b=raw("--pollute", "1"))
    done = toolbay("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("2 servers: 1 fine, 1 with warnings\n")


def test_one_server_is_looked_at_where_it_is_named(configure: Configure, tmp_path: Path) -> None:
    """CFG-3: also one that is disabled; a name that nobody has gets the nearest."""
    configure(good={**raw(), "disabled": True}, dead=raw("--exit-at-start", "3"))
    done = toolbay("doctor", "good", cwd=tmp_path)
    assert (done.returncode, "dead" in done.stdout) == (0, False), done.stdout
    done = toolbay("doctor", "god", cwd=tmp_path)
    assert done.returncode == 1
    assert 'did you mean "good"?' in done.stderr


def test_as_json_for_programs(configure: Configure, tmp_path: Path) -> None:
    """TRA-8: all that is shown to people, as data; the exit code is the same."""
    configure(good=raw(), missing=stdio("weatherd-that-is-not-there"))
    done = toolbay("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert (told["ok"], told["path"]) == (False, str(tmp_path / "toolbay.json"))
    good, missing = told["servers"]
    assert (good["server"], good["verdict"], good["protocol"], good["era"]) == ("good", "ok", "2025-11-25", "initialize")
    assert [step["name"] for step in good["trace"]] == ["spawn", "first byte", "initialize", "tools/list"]
    assert (good["login"], good["watched"]) == (None, 0.5)
    (finding,) = missing["findings"]
    assert finding["level"] == "error"
    assert finding["server"] == "missing"
    assert "weatherd-that-is-not-there was not found" in finding["what"]
    assert done.stderr == ""


def test_quiet_tells_what_does_not_work(configure: Configure, tmp_path: Path) -> None:
    """TRA-8: a line for each server, and errors with their mends; no trace, no warnings."""
    configure(good=raw("--pollute", "1"), missing=stdio("weatherd-that-is-not-there"))
    done = toolbay("--quiet", "doctor", cwd=tmp_path)
    assert done.returncode == 3
    assert "mend  " in done.stdout
    assert "spawn" not in done.stdout
    assert "stdout is for messages" not in done.stdout


def test_without_a_configuration_it_says_how_to_begin(tmp_path: Path) -> None:
    """CFG-1: nothing is there, and that is no failure."""
    done = toolbay("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "no configuration file was found" in done.stdout
    assert "toolbay add time -- uvx mcp-server-time" in done.stdout
    (tmp_path / "toolbay.json").write_text("{}")
    assert "toolbay.json has none" in toolbay("doctor", cwd=tmp_path).stdout


def test_a_file_that_cannot_be_read_is_exit_code_1(tmp_path: Path) -> None:
    """CFG-1: with line and column."""
    (tmp_path / "toolbay.json").write_text('{"tools": {')
    done = toolbay("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "line 1" in done.stderr
    assert "error" in json.loads(toolbay("doctor", "--json", cwd=tmp_path).stdout)


def test_secrets_are_masked_everywhere(configure: Configure, tmp_path: Path) -> None:
    """SEC-32: in arguments, headers, addresses, and in what a server says."""
    code = "import os, sys; print(os.environ['KEY'], sys.argv, file=sys.stderr); print(os.environ['KEY']); sys.exit(4)"
    configure(
        said={**stdio(sys.executable, "-IS", "-c", code, "--api-key", "hush-hush-argument"), "env": {"KEY": "${WEATHER_KEY}"}},
        held={"url": f"http://127.0.0.1:{free_port()}/mcp?key=hush-hush-query", "headers": {"X-Key": "hush-hush-header"}},
    )
    for options in ([], ["--json"], ["-v"]):
        done = toolbay("doctor", *options, cwd=tmp_path, env={"WEATHER_KEY": "hush-hush-variable"})
        assert done.returncode == 3
        assert "hush-hush" not in done.stdout + done.stderr, options


@contextlib.contextmanager
def secured(folder: Path, ends: dt.datetime) -> Generator[str]:
    """An address that shows a certificate of an authority, whose own is in `folder`, and then hangs up."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_after=ends).configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/mcp"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def test_a_certificate_that_ended_is_shown_with_its_day(configure: Configure, tmp_path: Path) -> None:
    """TRA-3: whose it is, when it ended, whom to ask; a real process that trusts its authority."""
    with secured(tmp_path, dt.datetime(2021, 2, 3, tzinfo=dt.UTC)) as url:
        configure(old={"url": url})
        done = toolbay("doctor", cwd=tmp_path, env={"SSL_CERT_FILE": str(tmp_path / "authority.pem")})
    assert done.returncode == 3
    assert "the certificate of 127.0.0.1 was not accepted" in done.stdout
    assert "certificate has expired" in done.stdout
    assert "for 127.0.0.1, issued by Testing" in done.stdout
    assert "good until 2021-02-03" in done.stdout
    assert "renew it" in done.stdout


def test_a_certificate_that_ends_soon_is_warned_of(configure: Configure, tmp_path: Path) -> None:
    """TRA-3: before it is a fault."""
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    with secured(tmp_path, ends) as url:
        configure(old={"url": url})
        done = toolbay("doctor", cwd=tmp_path, env={"SSL_CERT_FILE": str(tmp_path / "authority.pem")})
    assert "! the certificate of 127.0.0.1 ends soon" in done.stdout
    assert f"good until {ends:%Y-%m-%d}" in done.stdout
    assert "it hung up, or what it sent is no HTTP" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
def test_ctrl_c_ends_an_examination_and_its_servers(configure: Configure, tmp_path: Path) -> None:
    """LIF-1: whoever has no patience leaves nothing behind."""
    mark = marked()
    configure(hanging=raw("--hang", "initialize", "--ignore-eof", env=mark))
    process = started("doctor", cwd=tmp_path)
    try:
        wait_until(lambda: leftovers(mark[MARK]), "the server", PATIENCE)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert time.monotonic() - began < 15
        wait_until(lambda: not leftovers(mark[MARK]), "the end of the server")
    finally:
        process.kill()
        process.communicate()


def test_at_a_terminal_it_says_what_it_is_doing(configure: Configure, at_terminal: Open) -> None:
    """TRA-2: while it takes its time."""
    configure(slow=raw("--slow-start", "1"))
    terminal = at_terminal("doctor")
    terminal.expect("looking at 1 server")
    terminal.expect("1 server: 1 fine")
    assert terminal.end() == 0
