"""Proxies: from where, for whom, and what is never asked of them."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from net.wires import Recorder, Script, Small, always, answer
from toolbay.errors import BlockedAddress
from toolbay.net import http
from toolbay.net.guard import Policy
from toolbay.net.proxy import Proxies

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("environment", "url", "chosen"),
    [
        ({}, "https://mcp.test/", ""),
        ({"https": "http://proxy:3128"}, "https://mcp.test/", "http://proxy:3128"),
        ({"https": "http://proxy:3128"}, "http://mcp.test/", ""),
        ({"http": "proxy:3128"}, "http://mcp.test/", "http://proxy:3128"),
        ({"all": "http://proxy:3128"}, "https://mcp.test/", "http://proxy:3128"),
        ({"all": "http://one:1", "https": "http://two:2"}, "https://mcp.test/", "http://two:2"),
        ({"all": "http://proxy:3128"}, "http://localhost:8000/", ""),
        ({"all": "http://proxy:3128"}, "http://127.0.0.1:8000/", ""),
        ({"all": "http://proxy:3128"}, "http://[::1]:8000/", ""),
    ],
)
def test_the_environment_names_the_proxy(environment: dict[str, str], url: str, chosen: str) -> None:
    """H14: by scheme, ALL_PROXY for the rest; this machine is reached directly."""
    assert Proxies.from_environment(environment).choose(http.target(url)) == chosen


@pytest.mark.parametrize(
    ("without", "url", "direct"),
    [
        ("*", "https://mcp.test/", True),
        ("mcp.test", "https://mcp.test/", True),
        ("MCP.Test", "https://mcp.test./", True),
        ("mcp.test", "https://a.mcp.test/", True),
        (".mcp.test", "https://a.mcp.test/", True),
        (".mcp.test", "https://mcp.test/", True),
        ("*.mcp.test", "https://a.mcp.test/", True),
        ("cp.test", "https://mcp.test/", False),
        ("mcp.test.evil", "https://mcp.test/", False),
        ("a.test, mcp.test ,b.test", "https://mcp.test/", True),
        ("a.test mcp.test", "https://mcp.test/", True),
        ("mcp.test:8443", "https://mcp.test:8443/", True),
        ("mcp.test:8443", "https://mcp.test/", False),
        ("https://mcp.test", "https://mcp.test/", True),
        ("10.1.2.3", "https://10.1.2.3/", True),
        ("10.1.2.3:443", "https://10.1.2.3/", True),
        ("10.0.0.0/8", "https://10.1.2.3/", True),
        ("10.0.0.0/8", "https://11.1.2.3/", False),
        ("10.0.0.0/8", "https://10.test/", False),
        ("fd00::/8", "https://[fd00::1]/", True),
        ("fd00::1", "https://[fd00::1]/", True),
        ("[fd00::1]:8443", "https://[fd00::1]:8443/", True),
        ("[fd00::1]", "https://[fd00::1]/", True),
        ("nonsense/99", "https://10.1.2.3/", False),
        ("", "https://mcp.test/", False),
        (".", "https://mcp.test/", False),
    ],
)
def test_no_proxy_is_read_as_curl_reads_it(without: str, url: str, direct: bool) -> None:
    """H14: names with all below them, addresses, ranges, ports."""
    proxies = Proxies.from_environment({"all": "http://proxy:3128", "no": without})
    assert (proxies.choose(http.target(url)) == "") is direct


def through(proxy: str | None, network: Recorder, **names: list[str]) -> httpx2.AsyncClient:
    resolver = Script().knows("proxy.test", ["10.9.9.9"])
    for name, answers in names.items():
        resolver.knows(f"{name}.test", answers)
    return http.client(policy=Policy(), proxy=proxy, resolver=resolver, network=network)


async def test_plain_requests_go_to_a_proxy_at_a_private_address() -> None:
    """H14: the proxy's address comes from the configuration, so it may be anywhere; its credentials go to it alone."""
    network = Recorder(answer(b"via"))
    async with through("http://me:word@proxy.test:3128", network) as client:
        assert (await client.get("http://mcp.test/a?b")).text == "via"
    assert network.dialled == [("10.9.9.9", 3128)]
    assert network.streams[0].written.startswith(b"GET http://mcp.test/a?b HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6d29yZA==" in network.streams[0].written


async def test_tls_goes_through_a_tunnel() -> None:
    """H14: the proxy sees the name and nothing else."""
    network = Recorder(b"HTTP/1.1 200 Connected\r\n\r\n")
    async with through("http://proxy.test:3128", network) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("https://mcp.test/secret", headers={"Authorization": "canary-hunter2"})
    tunnel, _, inside = network.streams[0].written.partition(b"\r\n\r\n")
    assert tunnel.startswith(b"CONNECT mcp.test:443 HTTP/1.1\r\n")
    assert b"canary-hunter2" not in tunnel
    assert b"canary-hunter2" in inside


@pytest.mark.parametrize(
    "url",
    [
        "http://metadata.google.internal/",
        "http://169.254.169.254/",
        "http://10.0.0.1/",
        "http://[::ffff:10.0.0.1]/",
        "http://0x7f.1/",
        "http://user@mcp.test/",
        "http://127.0.0.1:8000/",
        "http://localhost:8000/",
    ],
)
async def test_attack_09_a_proxy_is_not_asked_for_what_is_closed(url: str) -> None:
    """Attack 9: names are the proxy's to resolve; all that can be seen in a URL is judged here."""
    network = Recorder(answer())
    async with through("http://proxy.test:3128", network) as client:
        client_names = network.dialled
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.get(url)
    assert isinstance(caught.value.__cause__, BlockedAddress)
    assert client_names == []


async def test_attack_09_a_host_without_proxy_goes_the_guarded_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 9: NO_PROXY is no consent."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "NO_PROXY", "HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "intranet.test,open.test")
    network = Recorder()
    async with through(None, network, intranet=["10.1.2.3"], open=["8.8.8.8"]) as client:
        with pytest.raises(httpx2.ConnectError, match=r"10\.1\.2\.3, a private address"):
            await client.get("https://intranet.test/")
        assert network.dialled == []
        for url, failure in (("https://open.test/", httpx2.ConnectError), ("https://mcp.test/", httpx2.ProxyError)):
            with pytest.raises(failure):
                await client.get(url)
    assert network.dialled == [("8.8.8.8", 443), ("10.9.9.9", 3128)]


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        ("socks5://proxy.test:1080", "speaks socks5, which is not supported"),
        ("ftp://proxy.test", "has no proper URL"),
        ("http://169.254.169.254:80", "metadata service"),
        ("http://metadata.google.internal", "metadata service"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_said_so_and_not_gone_around(proxy: str, says: str) -> None:
    """H14: the direct way may be what the proxy is there to prevent."""
    network = Recorder(answer())
    async with through(proxy, network, mcp=["8.8.8.8"]) as client:
        with pytest.raises(httpx2.ConnectError, match=says) as caught:
            await client.get("http://mcp.test/")
    assert network.dialled == []
    said = caught.value.__cause__
    assert isinstance(said, BlockedAddress)
    assert says in said.cause
    if "metadata" not in says:
        assert said.mend == "set an http one in HTTP_PROXY and HTTPS_PROXY"


async def test_a_proxy_that_refuses_is_an_error_of_the_proxy() -> None:
    """H14: HTTP 407 from the tunnel."""
    network = Recorder(answer(b"", status="407 Proxy Authentication Required"))
    async with through("http://proxy.test:3128", network) as client:
        with pytest.raises(httpx2.ProxyError, match="407"):
            await client.get("https://mcp.test/")


async def test_this_machine_is_reached_without_the_proxy() -> None:
    """H14: a proxy would take `localhost` for itself."""

    async def handler(first: str, _headers: dict[str, str], _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(first.encode()))

    async with Small(always(answer(b"proxy"))) as proxy, Small(handler) as server:
        url = f"http://localhost:{server.port}/mcp"
        async with http.client(policy=http.policy_for(url), proxy=f"http://127.0.0.1:{proxy.port}") as client:
            assert (await client.get(url)).text == "GET /mcp HTTP/1.1"
        assert proxy.connections == 0
