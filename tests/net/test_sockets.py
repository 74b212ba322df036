"""The guard at the socket: a resolver follows a script, and what is dialled is written down. Nothing leaves the machine."""

from __future__ import annotations

import ipaddress
import json
import socket
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from net.wires import Canned, Recorder, Script, answer
from toolbay.errors import BlockedAddress
from toolbay.net import http
from toolbay.net.dial import JOINED, Dialler, NothingTaken, Wire
from toolbay.net.guard import Policy

pytestmark = pytest.mark.anyio

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "ssrf" / "cases.json"
CASES: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else []
REFUSALS = (BlockedAddress, httpx2.InvalidURL, httpx2.TransportError)


def plain(address: str) -> str:
    """The address that goes over the wire: a mapped one is IPv4."""
    found = ipaddress.ip_address(address)
    return str(getattr(found, "ipv4_mapped", None) or found)


def host_of(url: str) -> str:
    return httpx2.URL(url).raw_host.decode()


def params(**having: bool) -> list[Any]:
    chosen = [case for case in CASES if all((key in case) is wanted for key, wanted in having.items())]
    return [pytest.param(case, id=case["id"]) for case in chosen]


def test_all_cases_are_there() -> None:
    """Attack 9: the three tests below cover every one of the 250 cases."""
    if not CASES:
        pytest.skip("the collection of URLs is not there")
    parts = params(redirects_to=False, resolves_to_sequence=False), params(redirects_to=True), params(resolves_to_sequence=True)
    assert [len(part) for part in parts] == [len(CASES) - len(parts[1]) - len(parts[2]), len(parts[1]), len(parts[2])]
    assert len(CASES) == 250


@pytest.mark.parametrize("case", params(redirects_to=False, resolves_to_sequence=False))
async def test_attack_09_a_request_dials_exactly_the_checked_addresses_or_nothing(case: dict[str, Any]) -> None:
    """Attack 9: collected URLs, with what DNS says to any name."""
    recorder = Recorder()

    async def resolver(_host: str, _port: int) -> list[str]:
        return case.get("resolves_to", [])

    async with http.client(policy=Policy(tuple(case.get("whitelist", ()))), proxy="", resolver=resolver, network=recorder) as client:
        with pytest.raises((httpx2.InvalidURL, httpx2.TransportError)):
            await client.get(case["url"])
    if case["verdict"] == "blocked":
        assert recorder.dialled == []
    else:
        url = httpx2.URL(case["url"])
        expected = case.get("resolves_to") or [url.raw_host.decode()]
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        assert recorder.dialled == [(plain(address), port) for address in expected]


@pytest.mark.parametrize("case", params(redirects_to=True))
async def test_attack_09_a_redirect_that_points_inside_dials_nothing_more(case: dict[str, Any]) -> None:
    """Attacks 9 and 10: the first answer redirects; `location` is sent as the collection has it."""
    location = case["redirects_to"].encode("utf-8")
    recorder = Recorder(b"HTTP/1.1 307 See\r\nLocation: " + location + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", answer(b"in"))
    resolver = Script().knows(host_of(case["url"]), case["resolves_to"]).knows("internal.test", case.get("redirect_resolves_to", []))
    async with http.client(policy=Policy(), proxy="", resolver=resolver, network=recorder) as client:
        if case["verdict"] == "blocked":
            with pytest.raises(REFUSALS):
                await http.get(client, case["url"])
            assert recorder.hosts == case["resolves_to"]
        else:
            assert (await http.get(client, case["url"])).content == b"in"
            assert recorder.hosts == case["resolves_to"] * 2


@pytest.mark.parametrize("case", params(resolves_to_sequence=True))
async def test_attack_28_a_later_answer_of_the_same_name_is_judged_again(case: dict[str, Any]) -> None:
    """Attack 9, DNS rebinding: each connection dials what its own look-up was judged by, and never asks twice."""
    recorder = Recorder()
    resolver = Script().knows(host_of(case["url"]), *case["resolves_to_sequence"])
    blocked = 0
    async with http.client(policy=Policy(), proxy="", resolver=resolver, network=recorder) as client:
        for turn in range(1, 5):
            with pytest.raises(httpx2.ConnectError) as caught:
                await client.get(case["url"])
            blocked += isinstance(caught.value.__cause__, BlockedAddress)
            assert len(resolver.asked) == turn
    good = [address for answers in case["resolves_to_sequence"] for address in answers if ipaddress.ip_address(address).is_global]
    assert recorder.hosts == good
    assert blocked == 4 - len(good)


BAD = st.sampled_from(
    [
        "127.0.0.1",
        "10.0.0.5",
        "169.254.169.254",
        "192.168.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "172.16.9.9",
        "255.255.255.255",
    ]
)


def spelled(address: str, how: int, part: int) -> str:
    """One of the ways to write an IPv4 address as a host, harmless and hostile ones."""
    number = int(ipaddress.IPv4Address(address))
    octets = address.split(".")
    wide = str.maketrans("0123456789.", "０１２３４５６７８９。")
    return (
        address,
        str(number),
        hex(number),
        f"0{number:o}",
        ".".join(hex(int(octet)) for octet in octets),
        ".".join(f"{int(octet):04o}" for octet in octets),
        f"{octets[0]}.{number & 0xFFFFFF}",
        f"{octets[0]}.{octets[1]}.{number & 0xFFFF}",
        f"{address}.",
        address.translate(wide),
        address.replace(".", "。"),
        address.replace(".", "%2e"),
        f"[::ffff:{address}]",
        f"[::{address}]",
        f"[64:ff9b::{address}]",
        f"[64:ff9b:1:{number >> 16:x}:{number >> 8 & 0xFF:x}:{(number & 0xFF) << 8:x}::]",
        f"[2002:{number >> 16:x}:{number & 0xFFFF:x}::{part:x}]",
        f"[2001:0:4136:e378:8000:{part:x}:{(number >> 16) ^ 0xFFFF:x}:{(number & 0xFFFF) ^ 0xFFFF:x}]",
        f"[2606:4700::5efe:{address}]",
        f"[::ffff:0:{address}]",
        f"user@{address}",
        f"example.com@{address}",
        f"{address}\\@example.com",
        f"example.com\\@{address}",
        f"{address}#@example.com",
        f"{address}.nip.io",
        f"[::ffff:{address}%25eth0]",
        ".".join(str(int(octet) + 256) for octet in octets),
    )[how]


HOSTILE = st.builds(spelled, BAD, st.integers(0, 27), st.integers(0, 0xFFFF))
URLS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["http://", "https://", "HTTP://", "http:/", "http:", "//", "http:\\\\", " http://"]),
    st.one_of(HOSTILE, HOSTILE.map(lambda text: text + "\u200b"), st.text("0127.x[]:afe%@。", min_size=1, max_size=16)),
    st.sampled_from(["", ":80", ":0", ":8080", ":99999", ":", ":80:80"]),
    st.sampled_from(["", "/", "/a", "?b", "#c", "/@example.com", "\\"]),
)


def may_be_dialled(address: str) -> bool:
    """An opinion that shares nothing with ours: the standard library's, and the services that have public addresses."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found in ipaddress.ip_network("64:ff9b::/96"):
        found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and str(found) not in ("168.63.129.16", "192.0.0.192", "100.100.100.200")


@settings(max_examples=400, deadline=None)
@given(url=URLS)
async def test_attack_09_no_spelling_dials_a_closed_address(url: str) -> None:
    """Attack 9: hosts that a C library takes for addresses resolve as it would have it, other names to what they contain."""
    recorder = Recorder()

    async def like_libc(host: str, _port: int) -> list[str]:
        try:
            return [socket.inet_ntoa(socket.inet_aton(host))]
        except OSError:
            return [".".join(host.split(".")[:4])] if host.endswith(".nip.io") else []

    async with http.client(policy=Policy(), proxy="", resolver=like_libc, network=recorder) as client:
        with pytest.raises((httpx2.InvalidURL, httpx2.TransportError)):
            await client.get(url)
    assert all(may_be_dialled(host) for host in recorder.hosts)


@settings(max_examples=200, deadline=None)
@given(answers=st.lists(st.one_of(BAD, st.ip_addresses().map(str), st.text(max_size=12)), max_size=4))
async def test_attack_09_no_answer_of_dns_leads_to_a_closed_address(answers: list[str]) -> None:
    """Attack 9: all answers pass and all are dialled, or none is."""
    recorder = Recorder()
    async with http.client(policy=Policy(), proxy="", resolver=Script().knows("mcp.test", answers), network=recorder) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("http://mcp.test/")
    assert all(may_be_dialled(host) for host in recorder.hosts)
    assert recorder.hosts in ([], list(dict.fromkeys(plain(text) for text in answers if recorder.hosts)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0x7f.1", "metadata.google.internal", "a b", "", "fe80::1%eth0"])
async def test_the_dialler_guards_by_itself(host: str) -> None:
    """Attack 9: the connection pool may ask for any host; what the URL said does not matter here."""
    recorder = Recorder()
    with pytest.raises(BlockedAddress):
        await Dialler(Policy(), Script(), recorder).connect_tcp(host, 80, timeout=5)
    assert recorder.dialled == []


async def test_socket_files_are_refused() -> None:
    """Attack 9: the container engine's socket is none of a server's business."""
    with pytest.raises(BlockedAddress, match="socket file"):
        await Dialler(Policy(), Script(), Recorder()).connect_unix_socket("/var/run/docker.sock")


async def test_what_is_refused_is_the_cause_of_a_connect_error() -> None:
    """Attack 9: whoever explains errors finds the sentence by its type."""
    async with http.client(policy=Policy(), proxy="", network=Recorder()) as client:
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.get("http://10.0.0.1/")
    assert isinstance(caught.value.__cause__, BlockedAddress)
    assert caught.value.request.url.host == "10.0.0.1"


async def test_a_connection_that_ends_up_elsewhere_is_not_used() -> None:
    """Attack 9: the peer's address is checked after the connection stands, before a byte is written."""
    network = Recorder(answer(), peer="127.0.0.1")
    async with http.client(policy=Policy(), proxy="", resolver=Script().knows("mcp.test", ["8.8.8.8"]), network=network) as client:
        with pytest.raises(httpx2.ConnectError, match=r"dialled at 8\.8\.8\.8, but 127\.0\.0\.1 answered"):
            await client.get("http://mcp.test/")
    assert network.streams[0].written == b""


async def test_attack_10_configured_headers_stay_at_home() -> None:
    """Attack 10: the same client may fetch an advertised document elsewhere; the token does not go along."""
    network = Recorder(answer(), answer())
    policy = http.policy_for("https://mcp.test/mcp")
    resolver = Script().knows("mcp.test", ["8.8.8.8"]).knows("login.test", ["8.8.4.4"])
    secret = {"Authorization": "Bearer canary-hunter2", "X-Key": "canary-hunter2"}
    async with http.client(headers=secret, policy=policy, proxy="", resolver=resolver, network=network) as client:
        await client.get("https://mcp.test/mcp")
        await client.get("https://login.test/.well-known/oauth-authorization-server", headers={"X-Other": "1"})
    assert network.streams[0].written.count(b"canary-hunter2") == 2
    assert b"canary-hunter2" not in network.streams[1].written
    assert b"X-Other: 1\r\n" in network.streams[1].written


async def test_a_configured_loopback_server_is_reached_and_nothing_else_on_this_machine() -> None:
    """Attack 9: consent is for the origin in the configuration, not for what it advertises."""
    network = Recorder(answer(), answer())
    resolver = Script().knows("localhost", ["::1", "127.0.0.1"]).knows("localtest.me", ["127.0.0.1"])
    async with http.client(policy=http.policy_for("http://localhost:8000/mcp"), proxy="", resolver=resolver, network=network) as client:
        assert (await client.get("http://localhost:8000/mcp")).text == "ok"
        for url in ("http://localhost:8001/", "http://127.0.0.1:8000/", "http://[::1]:8000/", "http://localtest.me:8000/"):
            with pytest.raises(httpx2.ConnectError, match="closed to servers"):
                await client.get(url)
    assert network.dialled == [("::1", 8000)]


async def test_a_request_leaves_in_one_piece() -> None:
    """CAL-3: head and body together, so that a refused write says of a call that nothing of it left; only much leaves in two."""
    recorder = Recorder(answer(), answer(), answer())
    async with http.client(policy=Policy(whitelist=("127.0.0.0/8",)), network=recorder) as client:
        for method, size in (("POST", 100), ("POST", JOINED), ("GET", 0)):
            await client.request(method, f"http://127.0.0.1:{80 + len(recorder.streams)}/mcp", content=b"x" * size)
    small, large, empty = ([len(piece) for piece in stream.pieces if piece] for stream in recorder.streams)
    assert len(small) == len(empty) == 1
    assert len(large) == 2
    assert large[1] == JOINED
    assert all(stream.written.startswith((b"POST /mcp HTTP/1.1\r\n", b"GET /mcp HTTP/1.1\r\n")) for stream in recorder.streams)


@pytest.mark.parametrize(("size", "taken", "nothing"), [(100, 0, True), (JOINED, 0, True), (JOINED, 1, False)])
async def test_a_wire_tells_whether_anything_of_a_request_was_taken(size: int, taken: int, nothing: bool) -> None:
    """CAL-3: a request of which nothing was taken may be sent again; where its head was, nobody knows."""

    class Closing(Canned):
        async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  the signature is httpcore2's
            if len(self.pieces) == taken:
                raise httpcore2.WriteError("closed")
            await super().write(buffer, timeout)

    wire = Wire(Closing(("127.0.0.1", 80), b""))
    with pytest.raises(httpcore2.WriteError) as error:
        for part in (b"POST / HTTP/1.1\r\n\r\n", b"x" * size, b""):
            await wire.write(part)
    assert isinstance(error.value, NothingTaken) is nothing


async def test_a_wire_keeps_nothing_back_from_who_waits_for_an_answer() -> None:
    """TRA-4: a request that ends with its head has left when its answer is read; the next one begins anew."""
    stream = Canned(("127.0.0.1", 80), b"one")
    wire = Wire(stream)
    for piece in (b"first", b"second"):
        await wire.write(piece)
        await wire.read(100)
        assert stream.pieces[-1] == piece
