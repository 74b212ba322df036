"""The address on this machine that a browser comes back to, asked by real clients on real sockets."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.auth import callback as module
from toolbay.auth.callback import HEAD_LIMIT, HOST, MOST, Callback, OpenedTwice, PortTaken, fields, listening, same
from toolbay.errors import LoginFailed

pytestmark = pytest.mark.anyio

STATE = "canary-state"
CODE = "canary-code"
RIGHT = f"/callback?code={CODE}&state={STATE}&iss=https%3A%2F%2Fas.example"


@asynccontextmanager
async def expecting() -> AsyncGenerator[tuple[Callback, int]]:
    async with listening() as callback:
        callback.expect(STATE)
        yield callback, int(callback.redirect_uri.split(":")[2].split("/")[0])


async def said(port: int, request: bytes) -> str:
    """All that is answered to these bytes until the end of the connection."""
    async with await anyio.connect_tcp(HOST, port) as stream:
        await stream.send(request)
        found = b""
        with anyio.fail_after(15):
            while True:
                try:
                    found += await stream.receive()
                except anyio.EndOfStream:
                    return found.decode()


async def visit(port: int, target: str, method: str = "GET") -> str:
    return await said(port, f"{method} {target} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAccept: text/html\r\n\r\n".encode())


def status(answer: str) -> int:
    return int(answer.split(" ", 2)[1])


async def nothing_came(callback: Callback) -> bool:
    with anyio.move_on_after(0.05):
        await callback.came()
        return False
    return True


async def test_the_answer_with_the_right_state_is_taken_and_the_person_sees_a_page() -> None:
    """OAuth, RFC 8252: the fields come decoded; the page says that it can be closed, and holds nothing of what came."""
    async with expecting() as (callback, port):
        assert callback.redirect_uri == f"http://127.0.0.1:{port}/callback"
        answer = await visit(port, RIGHT)
        assert await callback.came() == {"code": CODE, "state": STATE, "iss": "https://as.example"}
    head, _, body = answer.partition("\r\n\r\n")
    assert status(answer) == 200
    assert "You can close this page" in body
    assert CODE not in answer
    assert STATE not in answer
    for header in ("content-security-policy: default-src 'none'", "cache-control: no-store", "referrer-policy: no-referrer"):
        assert header in head.lower()


async def test_the_page_is_opened_once() -> None:
    """SEC: what openers are told can be read by all at this machine: the second one to come ends the login, whoever was first."""
    async with expecting() as (callback, port):
        begin = callback.beginning("https://as.example/go?state=canary-state").removeprefix(f"http://127.0.0.1:{port}")
        assert status(await visit(port, begin, "HEAD")) == 405
        assert status(await visit(port, begin[:-1])) == 404
        first = await visit(port, begin)
        assert status(first) == 302
        assert "\r\nLocation: https://as.example/go?state=canary-state\r\n" in first
        assert await nothing_came(callback)
        second = await visit(port, begin)
        assert status(second) == 409
        assert "opened already" in second
        assert "canary" not in second
        assert status(await visit(port, RIGHT)) == 200
        with pytest.raises(OpenedTwice, match="begin anew"):
            await callback.came()


async def test_who_opens_the_page_once_is_waited_for() -> None:
    """OAuth: the usual way; without that address as well, which a person who opens the page by hand never sees."""
    for opens in (True, False):
        async with expecting() as (callback, port):
            begin = callback.beginning("https://as.example/go").removeprefix(f"http://127.0.0.1:{port}")
            if opens:
                assert status(await visit(port, begin)) == 302
            assert status(await visit(port, RIGHT)) == 200
            assert (await callback.came())["code"] == CODE


KNOCK = """
import encodings.idna, os, socket, sys  # while this user's files can still be read
os.setgid(65534)
os.setuid(65534)
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
stream.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n".encode())
if sys.argv[3] == "stays":
    print(stream.recv(100).decode())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.getuid() != 0, reason="takes another user's place")
@pytest.mark.parametrize("how", ["stays", "leaves at once"])
async def test_another_user_of_this_machine_is_turned_away(how: str) -> None:
    """SEC: whoever read the addresses can neither open the page nor bring an answer; the person's own browser still can."""
    async with expecting() as (callback, port):
        begin = callback.beginning("https://as.example/go").removeprefix(f"http://127.0.0.1:{port}")

        async def by_another(target: str) -> str:
            words = [sys.executable, "-ISc", KNOCK, str(port), target, how]
            return (await anyio.run_process(words)).stdout.decode()

        for target in (begin, RIGHT):
            said = await by_another(target)
            assert how != "stays" or status(said) == 403
        assert await nothing_came(callback)
        assert status(await visit(port, begin)) == 302
        assert status(await visit(port, RIGHT)) == 200
        assert (await callback.came())["code"] == CODE


async def test_the_page_of_a_refusal_says_that_nothing_was_granted() -> None:
    """OAuth: who said no does not read that all went well; and nothing of the error's text is on the page."""
    async with expecting() as (callback, port):
        answer = await visit(port, f"/callback?error=access_denied&error_description=%3Cscript%3Ehello&state={STATE}")
        assert (await callback.came())["error"] == "access_denied"
    assert "Nothing was granted" in answer
    assert "hello" not in answer
    assert "access_denied" not in answer


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/", 404),
        ("/favicon.ico", 404),
        (f"/callback/?code={CODE}&state={STATE}", 404),
        (f"/Callback?code={CODE}&state={STATE}", 404),
        (f"//callback?code={CODE}&state={STATE}", 404),
        (f"http://127.0.0.1/callback?code={CODE}&state={STATE}", 404),
        ("/callback", 400),
        (f"/callback?code={CODE}", 400),
        (f"/callback?code={CODE}&state=", 400),
        (f"/callback?code={CODE}&state={STATE}x", 400),
        (f"/callback?code={CODE}&state={STATE[:-1]}", 400),
        (f"/callback?code={CODE}&STATE={STATE}", 400),
        (f"/callback?code={CODE}&state={STATE}&state={STATE}", 400),
        (f"/callback?code={CODE}&code=canary-other&state={STATE}", 400),
        (f"/callback?code={CODE}&state={STATE}" + "&a=" * 40, 400),
        (f"/callback?error=access_denied&state=%F0%9F%92%A9{STATE}", 400),
    ],
)
async def test_what_is_not_the_answer_is_turned_away_and_the_right_one_still_counts(target: str, code: int) -> None:
    """SEC: attack 8: another path, a missing, wrong or doubled field; any page in the browser can send these."""
    async with expecting() as (callback, port):
        assert status(await visit(port, target)) == code
        assert await nothing_came(callback)
        assert status(await visit(port, RIGHT)) == 200
        assert (await callback.came())["code"] == CODE


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "BREW"])
async def test_only_a_get_counts(method: str) -> None:
    """OAuth: what looks ahead at links, and forms of other pages, use up nothing."""
    async with expecting() as (callback, port):
        assert status(await visit(port, RIGHT, method)) == 405
        assert await nothing_came(callback)
        assert status(await visit(port, RIGHT)) == 200


async def test_the_first_answer_counts_and_a_second_is_told_so() -> None:
    """OAuth: a page that is loaded again, or another code that somebody slips in later."""
    async with expecting() as (callback, port):
        assert status(await visit(port, RIGHT)) == 200
        again = await visit(port, f"/callback?code=canary-later&state={STATE}")
        assert status(again) == 410
        assert "has come back already" in again
        assert (await callback.came())["code"] == CODE


async def test_nothing_counts_before_a_state_is_expected() -> None:
    """OAuth: an empty state is no state."""
    async with listening() as callback:
        port = int(callback.redirect_uri.split(":")[2].split("/")[0])
        assert status(await visit(port, f"/callback?code={CODE}&state=")) == 400
        assert status(await visit(port, f"/callback?code={CODE}")) == 400
        assert await nothing_came(callback)


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /callback HTTP/1.1\r\n\r\n",
        b"GET /callback?\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * (HEAD_LIMIT + 1),
        b"GET /" + b"a" * (HEAD_LIMIT + 1),
    ],
)
async def test_what_is_no_request_is_an_error_to_its_sender_alone(bytes_: bytes) -> None:
    """OAuth: TLS, nonsense, heads without end: the answer that is waited for still comes through."""
    async with expecting() as (callback, port):
        assert status(await said(port, bytes_)) in {400, 414, 431}
        assert status(await visit(port, RIGHT)) == 200
        assert (await callback.came())["code"] == CODE


async def test_silent_clients_hold_up_nobody_and_leave_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """OAuth: browsers connect in advance, and other programs do as they like; more than are borne make room for newer ones."""
    monkeypatch.setattr(module, "PATIENCE", 1e6)
    async with expecting() as (callback, port), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(await anyio.connect_tcp(HOST, port)) for _ in range(MOST + 20)]
        await silent[-1].send(b"GET /callback?code=")
        assert status(await visit(port, RIGHT)) == 200
        assert (await callback.came())["code"] == CODE
        await _left(silent[0])
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    async with expecting() as (_, port), await anyio.connect_tcp(HOST, port) as slow:
        await slow.send(b"GET /callback?code=")
        await _left(slow)


async def _left(stream: anyio.abc.SocketStream) -> None:
    with anyio.fail_after(15), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        await stream.receive()


async def test_a_client_that_leaves_is_no_loss() -> None:
    """OAuth: before its request, in the middle of it, and before the page; the code of one that was sent whole still counts."""
    async with expecting() as (callback, port):
        for piece in (b"", b"GET /call"):
            async with await anyio.connect_tcp(HOST, port) as stream:
                await stream.send(piece)
        with socket.create_connection((HOST, port)) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            plain.sendall(f"GET {RIGHT} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            with anyio.fail_after(15):
                assert (await callback.came())["code"] == CODE


async def test_a_port_that_is_taken_is_told_with_its_number() -> None:
    """OAuth: which port, and why; the one that was asked for is had where it is free, and free again afterwards."""
    async with listening() as first:
        port = int(first.redirect_uri.split(":")[2].split("/")[0])
        with pytest.raises(PortTaken, match=f"port {port} of this machine .*in use"):
            async with listening(first.redirect_uri):
                pass
    async with listening(first.redirect_uri) as again:
        assert again.redirect_uri == first.redirect_uri


async def test_localhost_is_listened_at_in_both_families() -> None:
    """SEC: attack 28: a browser may take either; who has the other one would get the answer."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} of this machine"):
            async with listening(f"http://localhost:{port}/callback"):
                pass
        async with listening(f"http://127.0.0.1:{port}/callback"):
            pass
    async with listening(f"http://localhost:{port}/done") as callback:
        callback.expect(STATE)
        for host in (HOST, "::1"):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(f"GET /callback?code={CODE}&state={STATE} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                assert b" 404 " in await stream.receive()
        assert status(await visit(port, f"/done?code={CODE}&state={STATE}")) == 200
        assert (await callback.came())["code"] == CODE


async def test_it_listens_for_this_machine_alone_and_only_while_its_block_runs() -> None:
    """SEC: attack 28: no other machine can knock; and what fails in the block comes out as it is."""
    port = 0
    with pytest.raises(LoginFailed, match="as it is"):
        async with listening() as callback:
            port = int(callback.redirect_uri.split(":")[2].split("/")[0])
            with pytest.raises(OSError, match=r"."):
                await anyio.connect_tcp("127.0.0.2", port)
            raise LoginFailed("as it is")
    with pytest.raises(OSError, match=r"."):
        await anyio.connect_tcp(HOST, port)


async def test_the_end_of_the_block_ends_clients_too() -> None:
    """LIF: nothing goes on after a login that was given up."""
    async with AsyncExitStack() as stack:
        async with expecting() as (_, port):
            stream = await stack.enter_async_context(await anyio.connect_tcp(HOST, port))
            await stream.send(b"GET /")
        await _left(stream)


@given(
    st.text() | st.lists(st.tuples(st.sampled_from(["a", "b", "state"]), st.text())).map(lambda pairs: "&".join("=".join(p) for p in pairs))
)
def test_any_query_is_read_or_refused(query: str) -> None:
    """OAuth: no text makes it fall, and no field is taken twice."""
    found = fields(query)
    assert found is None or all(isinstance(value, str) for value in found.values())
    assert fields(f"state=1&{query}&state=2") is None


@given(st.text(), st.text())
def test_two_texts_are_the_same_only_where_they_are(one: str, other: str) -> None:
    """OAuth: of whatever characters."""
    assert same(one, other) == (one == other)
    assert same(one, one)
