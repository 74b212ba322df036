"""The client over real sockets: pinning, TLS by name, connections that are kept, names that are slow."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel
import httpcore2
import httpx2
import pytest
import trustme

from net.wires import Recorder, Script, Small, always, answer, chunk
from toolbay.errors import BlockedAddress
from toolbay.net import http
from toolbay.net.dial import Dialler
from toolbay.net.guard import Policy

pytestmark = pytest.mark.anyio

HERE = Policy(whitelist=("127.0.0.1/32",))
NAMES = ("mcp.test", "127.0.0.1")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def here(*, resolver: Script | None = None, tls: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    known = Script().knows("mcp.test", ["127.0.0.1"]).knows("other.test", ["127.0.0.1"])
    return http.client(policy=HERE, proxy="", resolver=resolver or known, tls=tls)


async def test_a_rebinding_name_never_reaches_the_loopback_server() -> None:
    """Attacks 9 and 28: the first answer is good (127.0.0.2 stands for the internet here), all later ones are this machine."""
    try:
        probe = socket.create_server(("127.0.0.2", 0))
    except OSError:
        pytest.skip("this system has one loopback address only")
    probe.close()
    good = Small(always(answer(b"good", "Connection: close")), host="127.0.0.2")
    async with Small(always(answer(b"inside"))) as inside, good:
        resolver = Script().knows("rebind.test", ["127.0.0.2"], ["127.0.0.1"], ["127.0.0.2", "127.0.0.1"])
        async with http.client(policy=Policy(whitelist=("127.0.0.2/32",)), proxy="", resolver=resolver) as client:
            assert (await client.get(f"http://rebind.test:{good.port}/")).text == "good"
            for port in (good.port, inside.port, inside.port):
                with pytest.raises(httpx2.ConnectError) as caught:
                    await client.get(f"http://rebind.test:{port}/")
                assert isinstance(caught.value.__cause__, BlockedAddress)
        assert inside.connections == 0
        assert good.connections == 1


async def test_one_bad_answer_among_good_ones_refuses_all() -> None:
    """Attack 9: the good one is not dialled either."""
    async with (
        Small(always(answer())) as server,
        here(resolver=Script().knows("mixed.test", ["127.0.0.1", "10.0.0.1"])) as client,
    ):
        with pytest.raises(httpx2.ConnectError, match=r"10\.0\.0\.1"):
            await client.get(f"http://mixed.test:{server.port}/")
        assert server.connections == 0


async def test_a_kept_connection_is_not_resolved_again() -> None:
    """Attack 9: what was checked stays what is used; the second answer would be refused."""
    resolver = Script().knows("mcp.test", ["127.0.0.1"], ["10.0.0.1"])
    async with Small(always(answer())) as server, here(resolver=resolver) as client:
        for _ in range(3):
            assert (await client.get(f"http://mcp.test:{server.port}/")).text == "ok"
        assert (server.connections, len(resolver.asked)) == (1, 1)


async def test_certificates_are_verified_by_the_name_while_an_address_is_dialled(authority: trustme.CA) -> None:
    """H3: SNI and Host are the name; a certificate for the address alone is none for the name."""
    async with Small(always(answer()), tls=server_side(authority, "mcp.test")) as server, here(tls=client_side(authority)) as client:
        assert (await client.get(f"https://mcp.test:{server.port}/")).text == "ok"
        assert server.names == ["mcp.test"]
        assert server.headers[0]["host"] == f"mcp.test:{server.port}"
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.get(f"https://other.test:{server.port}/")
        assert any(isinstance(error, ssl.SSLCertVerificationError) for error in chain(caught.value))


async def test_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    """H3: nothing is sent to who cannot prove the name."""
    async with Small(always(answer()), tls=server_side(authority, "mcp.test")) as server, here() as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"https://mcp.test:{server.port}/")
        assert server.requests == []


def chain(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def event_stream(ends: bool = True) -> Any:
    """Answers each request with an event, then a moment later with the end of the stream."""

    async def handler(_first: str, _headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(chunk(b"event: message\ndata: " + body + b"\n\n"))
        await writer.drain()
        await asyncio.sleep(0)
        if ends:
            writer.write(chunk(b""))

    return handler


async def call(client: httpx2.AsyncClient, url: str, content: bytes = b"{}") -> bytes:
    """As the protocol's SDK does: stop reading with the event that is the answer."""
    async with client.stream("POST", url, content=content) as response:
        async for part in response.aiter_bytes():
            if b"data: " in part:
                await response.aclose()
                return part.partition(b"data: ")[2].strip()
    raise AssertionError("no event")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_thousand_calls_with_event_streams_use_one_connection(scheme: str, authority: trustme.CA) -> None:
    """Connections are kept: an answer is read to its end after its reader has left it."""
    tls = server_side(authority, *NAMES) if scheme == "https" else None
    async with Small(event_stream(), tls=tls) as server, here(tls=client_side(authority)) as client:
        for number in range(1000):
            assert await call(client, f"{scheme}://mcp.test:{server.port}/mcp", str(number).encode()) == str(number).encode()
        assert (len(server.requests), server.connections) == (1000, 1)


async def test_a_request_waits_for_an_answer_that_is_just_ending() -> None:
    """Connections are kept: the end of a stream often comes a moment after the next call was made."""
    gate = asyncio.Event()

    async def handler(first: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        await event_stream(ends=False)(first, headers, body, writer)
        await gate.wait()
        writer.write(chunk(b""))

    async with Small(handler) as server, here() as client:
        url = f"http://mcp.test:{server.port}/mcp"
        await call(client, url)  # the limit of patience is met: the gate is closed, and its connection is given up
        gate.set()
        await call(client, url)
        before = server.connections
        gate.clear()
        async with anyio.create_task_group() as group:
            response = await client.send(client.build_request("POST", url, content=b"1"), stream=True)
            await anext(response.aiter_raw())
            group.start_soon(response.aclose, name="let go")
            await anyio.lowlevel.checkpoint()
            group.start_soon(call, client, url, name="next call")
            await anyio.wait_all_tasks_blocked()
            gate.set()
        assert server.connections == before


async def test_a_stream_that_goes_on_is_left_after_a_moment_and_waited_for_once() -> None:
    """A server that never ends its streams costs a new connection for each call, and no other call waits for it."""
    async with Small(event_stream(ends=False)) as server, here() as client:
        url = f"http://mcp.test:{server.port}/mcp"
        with anyio.fail_after(10):
            for _ in range(3):
                await call(client, url)
        assert server.connections == 3


async def test_a_long_rest_is_not_read() -> None:
    """What is still read after the reader has left is bounded."""
    async with Small(always(answer(b"x" * 10_000_000))) as server, here() as client:
        async with client.stream("GET", f"http://mcp.test:{server.port}/") as response:
            await anext(response.aiter_raw())
        assert response.num_bytes_downloaded < 1_000_000
        await client.get(f"http://mcp.test:{server.port}/")
        assert server.connections == 2


async def test_leaving_a_stream_while_cancelled_waits_for_nothing() -> None:
    """A cancelled call lets go at once."""
    async with Small(event_stream(ends=False)) as server, here() as client:
        with anyio.CancelScope() as scope:
            async with client.stream("POST", f"http://mcp.test:{server.port}/", content=b"1") as response:
                await anext(response.aiter_raw())
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await call(client, f"http://mcp.test:{server.port}/")) == b"{}"


class Slow:
    """What the operating system's look-ups of `slow.test` wait for, and how many of them are over."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.over = 0


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterable[Slow]:
    slow = Slow()
    look_up = socket.getaddrinfo

    def hanging(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == b"slow.test":
            slow.release.wait(30)
            slow.over += 1
            return look_up("127.0.0.1", *args, **kwargs)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield slow
    slow.release.set()


async def test_a_name_that_resolves_slowly_holds_up_nobody_else(slow_names: Slow) -> None:
    """H1: more slow look-ups than any pool has threads, and the loop and other servers go on."""
    async with Small(always(answer())) as server:
        policy = http.policy_for(f"http://localhost:{server.port}/", whitelist=("127.0.0.1/32",))

        async def ask_slow() -> None:
            async with http.client(policy=policy, proxy="") as client:
                assert (await client.get(f"http://slow.test:{server.port}/")).text == "ok"

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(60):
                    group.start_soon(ask_slow, name=f"slow {number}")
                await anyio.wait_all_tasks_blocked()
                async with http.client(policy=policy, proxy="") as client:
                    for _ in range(100):
                        assert (await client.get(f"http://localhost:{server.port}/")).text == "ok"
                assert len(server.requests) == 100
                slow_names.release.set()
        assert len(server.requests) == 160


async def test_a_name_that_never_resolves_is_given_up(slow_names: Slow) -> None:
    """H1: the look-up is part of the time for connecting."""
    async with http.client(policy=HERE, proxy="") as client:
        with pytest.raises(httpx2.ConnectTimeout):
            await client.get("http://slow.test/", timeout=httpx2.Timeout(5, connect=0.05))
    assert slow_names.over == 0


async def test_a_name_that_dns_does_not_know_is_said_so() -> None:
    """H1: the cause is the resolver's own error."""
    async with http.client(proxy="") as client:
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.get("http://no-such-host.invalid/")
    assert any(isinstance(error, socket.gaierror) for error in chain(caught.value))


async def test_a_refused_connection_keeps_its_cause() -> None:
    """H2: refused is told apart from the rest."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with here() as client:
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.get(f"http://mcp.test:{port}/")
    assert any(isinstance(error, ConnectionRefusedError) for error in chain(caught.value))


class Halting(Recorder):
    """A network on which some addresses never answer."""

    def __init__(self, *silent: str) -> None:
        super().__init__(*[answer()] * 9)
        self.silent = silent
        self.given_up: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(host, port)
        if host in self.silent:
            try:
                await anyio.sleep_forever()
            finally:
                self.given_up.append(host)
        return stream


async def test_an_address_that_does_not_answer_gives_way_to_the_next() -> None:
    """H16: broken IPv6 beside working IPv4; the attempt that lost is broken off."""
    network = Halting("2606:4700::1")
    resolver = Script().knows("mcp.test", ["2606:4700::1", "8.8.8.8"])
    with anyio.fail_after(5):
        stream = await Dialler(Policy(), resolver, network).connect_tcp("mcp.test", 443, timeout=10)
    assert stream.get_extra_info("server_addr") == ("8.8.8.8", 443)
    assert network.hosts == ["2606:4700::1", "8.8.8.8"]
    assert network.given_up == ["2606:4700::1"]


async def test_all_addresses_together_have_the_time_for_connecting() -> None:
    """H2: ten black holes take no longer than one."""
    silent = [f"8.8.8.{number}" for number in range(1, 5)]
    network = Halting(*silent)
    with anyio.fail_after(10), pytest.raises(httpcore2.ConnectTimeout):
        await Dialler(Policy(), Script().knows("mcp.test", silent), network).connect_tcp("mcp.test", 443, timeout=0.6)
    assert sorted(network.given_up) == network.hosts
