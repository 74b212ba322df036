"""The way to a server step by step, over real sockets: names, the guard's verdict, connections, certificates."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from collections.abc import Sequence

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from net.wires import Recorder, Script, Small, always, answer
from support.servers import free_port
from toolbay.net import certificates, http
from toolbay.net.guard import Policy
from toolbay.net.proxy import Proxies
from toolbay.net.steps import Stage, Walk, refusal, unknown_name, verdict, walk

pytestmark = pytest.mark.anyio

HERE = Policy(whitelist=("127.0.0.1/32",))
NONE = Proxies()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def serving(authority: trustme.CA, *names: str, ends: dt.datetime | None = None) -> Small:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, not_after=ends).configure_cert(context)
    return Small(always(answer()), tls=context)


async def walked(url: str, **more: object) -> Walk:
    resolver = Script().knows("mcp.test", ["127.0.0.1"]).knows("inside.test", ["10.0.0.1"])
    return await walk(http.target(url), HERE, proxies=NONE, **{"resolver": resolver, **more})  # type: ignore[arg-type]


def stages(found: Walk) -> list[Stage]:
    return [step.stage for step in found.steps]


async def test_a_good_way_names_each_step_and_the_certificate(authority: trustme.CA) -> None:
    """TRA-3: name, verdict, connection, TLS; and nothing is said over the connection."""
    async with serving(authority, "mcp.test") as server:
        found = await walked(f"https://mcp.test:{server.port}/mcp", tls=trusting(authority))
        assert server.requests == []
    assert stages(found) == [Stage.DNS, Stage.GUARD, Stage.TCP, Stage.TLS]
    assert found.failed is None
    assert found.certificate is not None
    assert found.certificate.names == ("mcp.test",)
    assert all(0 <= step.seconds < 10 for step in found.steps)


async def test_a_certificate_that_is_not_accepted_is_shown_all_the_same(authority: trustme.CA) -> None:
    """TRA-3: whose it is and when it ended, or ends; and why it was not accepted."""
    ended = dt.datetime(2021, 2, 3, tzinfo=dt.UTC)
    async with serving(authority, "mcp.test", ends=ended) as server:
        found = await walked(f"https://mcp.test:{server.port}/mcp", tls=trusting(authority))
        assert server.requests == []
    refused = refusal(found.failure)
    assert (found.failed, refused is not None) == (Stage.TLS, True)
    assert refused is not None
    assert "expired" in refused.verify_message
    assert found.certificate is not None
    assert (found.certificate.names, found.certificate.ends) == (("mcp.test",), ended)
    assert "Testing" in found.certificate.issuer
    async with serving(authority, "other.test", "127.0.0.1") as server:
        found = await walked(f"https://mcp.test:{server.port}/mcp", tls=trusting(authority))
    assert found.certificate is not None
    assert found.certificate.names == ("other.test", "127.0.0.1")


async def test_a_closed_address_is_not_dialled() -> None:
    """SEC-28: the verdict comes before any connection, for names and for literals, and behind a name that leads to both."""
    wire = Recorder()
    for url in ("http://inside.test/mcp", "http://10.0.0.1/mcp", "http://169.254.169.254/mcp"):
        found = await walked(url, network=wire)
        assert found.failed is Stage.GUARD
    assert wire.dialled == []


async def test_a_port_that_nobody_listens_on_is_told_from_a_name_that_nobody_knows() -> None:
    """TRA-3: each said as such."""
    found = await walked(f"http://mcp.test:{free_port()}/mcp")
    assert found.failed is Stage.TCP

    async def nobody(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    found = await walked("http://unknown.test/mcp", resolver=nobody)
    assert (found.failed, unknown_name(found.failure) is not None) == (Stage.DNS, True)
    assert found.addresses == ()


async def test_what_does_not_speak_tls_is_no_matter_of_certificates() -> None:
    """TRA-3: https to a port that speaks http."""
    async with Small(always(answer())) as server:
        found = await walked(f"https://mcp.test:{server.port}/mcp")
    assert (found.failed, refusal(found.failure), found.certificate) == (Stage.TLS, None, None)


async def test_a_proxy_is_where_the_way_leads() -> None:
    """TRA-3: with a proxy the name is its to resolve; the way to itself is walked."""
    async with Small(always(answer())) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        found = await walk(http.target("https://elsewhere.test/mcp"), Policy(), proxies=Proxies.everywhere(url))
        assert (found.proxy, found.failed, stages(found)) == (url, None, [Stage.GUARD, Stage.TCP])


async def test_a_proxy_that_has_no_address_is_mended_where_it_is_set() -> None:
    """H14, TRA-3: `url` is right."""
    found = await walk(http.target("https://elsewhere.test/mcp"), Policy(), proxies=Proxies.everywhere("socks5://proxy.test:1080"))
    said = verdict(found.failure)
    assert found.failed is Stage.GUARD
    assert said is not None
    assert said.cause.startswith("the address socks5://proxy.test:1080 cannot be used")
    assert said.mend == "set an http one in HTTP_PROXY and HTTPS_PROXY"


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reading_of_a_certificate(data: bytes) -> None:
    """TRA-3: what a server shows may be anything."""
    assert certificates.read(data) is None


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_a_certificate_with_a_changed_byte_is_read_or_is_none(place: int, byte: int) -> None:
    """TRA-3: as above, close to a real one."""
    der = bytearray(DER)
    der[place % len(der)] = byte
    found = certificates.read(bytes(der))
    assert found is None or found.ends.tzinfo is dt.UTC


DER = ssl.PEM_cert_to_DER_cert(trustme.CA().issue_cert("mcp.test").cert_chain_pems[0].bytes().decode())
