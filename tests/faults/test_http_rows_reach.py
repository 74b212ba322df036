"""The fault matrix, HTTP: the server cannot be reached, is not who it should be, or sends us elsewhere (H1 to H3, H12, H14, H16)."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import ssl
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
import trustme

from faults.harness import HEALTHY, Allowance, case
from faults.names import Names, scripted
from faults.web import AT_ONCE, ERAS, LOOPBACK, Era, Form, calls, suffer, timed, web
from servers.raw_http import RawHttp, Step
from support.processes import eventually
from support.servers import free_port
from support.toxics import Toxic, proxied, swallowing
from toolbay.types import Outcome

pytestmark = pytest.mark.anyio

NAME = "mcp.test"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    with scripted(monkeypatch) as known:
        known.of[NAME] = ["127.0.0.1"]
        yield known


@ERAS
async def test_h1_a_name_that_dns_loses_is_told_and_found_again(era: Era, names: Names) -> None:
    """H1: nothing was sent, the reason is said, and the server comes back with its name."""
    async with RawHttp(era=era) as server, web("H1", "DNS fails, flaps", server, url=server.at(NAME), toolTimeout=1.5) as bay:
        await bay.well("note")
        del names.of[NAME]
        server.hang_up()
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "not known to DNS")
        assert calls(server) == 1
        names.of[NAME] = ["127.0.0.1"]
        await bay.reaches("ready")
        await bay.well("note")


async def test_h1_a_name_that_was_never_known_is_said_so_at_once(names: Names) -> None:
    """H1: the server's state carries the reason; no call is waited for."""
    entry = {"type": "streamableHttp", "url": "http://nowhere.test/mcp"}
    async with case("H1", "DNS never knew the name", entry) as bay:
        assert names.asked["nowhere.test"] >= 1
        assert "not known to DNS" in bay.error()
        result, took = await timed(lambda: bay.call("note"))
        assert result.outcome is Outcome.NOT_EXECUTED
        assert took < AT_ONCE


async def test_h1_a_slow_name_holds_up_nobody(names: Names) -> None:
    """H1: while the look-up hangs, the loop and the other server go on; then the server is there."""
    names.answers.clear()
    async with (
        RawHttp() as server,
        web("H1", "DNS is slow", server, url=server.at(NAME), allowance=Allowance(started_late=True)) as bay,
        anyio.create_task_group() as group,
    ):
        group.start_soon(bay.start)
        await eventually(lambda: names.asked[NAME], "the look-up")
        for _ in range(50):
            await bay.well(server=HEALTHY)
        assert bay.state() == "connecting"
        names.answers.set()
        await bay.reaches("ready")
        await bay.well("note")


@ERAS
async def test_h1_a_name_that_comes_to_lead_inside_is_not_followed_there(era: Era, names: Names) -> None:
    """H1: DNS answers with a closed address in the middle of a session: nothing is sent, and the address is said."""
    async with RawHttp(era=era) as server, web("H1", "DNS leads inside", server, url=server.at(NAME), toolTimeout=1.5) as bay:
        await bay.well("note")
        names.of[NAME] = ["127.0.0.1", "10.0.0.1"]
        server.hang_up()
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, r"10\.0\.0\.1, a private address")
        await bay.reaches("failed")
        assert calls(server) == 1


@ERAS
async def test_h2_a_server_that_is_down_is_waited_for_within_the_deadline(era: Era) -> None:
    """H2: refused: not executed, told with its reason; it is back as soon as it listens."""
    async with RawHttp(era=era) as server, web("H2", "refused", server, toolTimeout=1.5) as bay:
        await bay.well("note")
        await server.stop()
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "refused the connection")
        await server.start()
        await bay.reaches("ready")
        await bay.well("note")


async def test_h2_an_address_that_swallows_everything_costs_the_deadline_and_nothing_more(names: Names) -> None:
    """H2: no connection comes about: the call ends with its deadline, and was not sent."""
    async with RawHttp() as server, web("H2", "connect timeout", server, url=server.at(NAME), toolTimeout=1.0) as bay:
        await bay.well("note")
        with swallowing("127.0.0.2", server.port):
            names.of[NAME] = ["127.0.0.2"]
            server.hang_up()
            result, took = await timed(lambda: bay.call("note"))
            bay.told(result, Outcome.NOT_EXECUTED, "not sent|not called|not carried out")
            assert took < 1.0 + AT_ONCE
            names.of[NAME] = ["127.0.0.1"]
        await bay.reaches("ready")
        await bay.well("note")


@ERAS
async def test_h2_a_line_that_goes_dead_leaves_an_outcome_that_nobody_knows(era: Era) -> None:
    """H2: black holes behind an open connection, in either direction; latency and crumbs are no fault."""
    async with (
        RawHttp(era=era) as server,
        proxied(server.port) as proxy,
        web("H2", "black holes, latency, crumbs", server, url=proxy.url(), toolTimeout=1.0) as bay,
    ):
        for toxic in (Toxic(toward="client", latency=0.2), Toxic(toward="server", slice=7), Toxic(toward="client", slice=3)):
            proxy.toxic = toxic
            await bay.well("note")
        for toxic in (Toxic(toward="server", blackhole=True), Toxic(toward="client", blackhole=True)):
            proxy.toxic = toxic
            result, took = await timed(lambda: bay.call("note"))
            bay.told(result, Outcome.UNKNOWN, "no answer")
            assert took < 1.0 + AT_ONCE
            proxy.toxic = Toxic()
            proxy.reset()
            await bay.reaches("ready")
            await bay.well("note")


# -- TLS ----------------------------------------------------------------------------------------------------------------


class Certificates:
    """An authority that the App trusts, and one that it does not."""

    def __init__(self, folder: Path) -> None:
        self.trusted, self.stranger = trustme.CA(), trustme.CA()
        self.file = folder / "trusted.pem"
        self.trusted.cert_pem.write_to_path(self.file)

    def good(self) -> ssl.SSLContext:
        return self._context(self.trusted.issue_cert(NAME))

    def expired(self) -> ssl.SSLContext:
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=3)
        return self._context(self.trusted.issue_cert(NAME, not_before=past - dt.timedelta(days=1), not_after=past))

    def wrong_name(self) -> ssl.SSLContext:
        return self._context(self.trusted.issue_cert("other.test"))

    def unknown(self) -> ssl.SSLContext:
        return self._context(self.stranger.issue_cert(NAME))

    def _context(self, issued: trustme.LeafCert) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(context)
        return context


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


async def test_h3_a_server_that_cannot_prove_its_name_gets_nothing(names: Names, certificates: Certificates) -> None:
    """H3: expired, another name, an unknown authority, TLS 1.0, plain HTTP: the reason is said, never a way around."""
    wrong = {
        "expired": (certificates.expired(), "expired"),
        "elsewhere": (certificates.wrong_name(), "match|not valid for"),
        "stranger": (certificates.unknown(), "self.signed|unable to get local issuer|unknown"),
        "old": (None, "TLS.*version|version.*TLS"),
        "plain": (None, "TLS"),
    }
    async with contextlib.AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(RawHttp(tls=tls)) for name, (tls, _) in wrong.items()}
        servers["old"].handshake = bytes.fromhex("15030100020246")  # of who speaks TLS 1.0 only: a fatal alert, protocol_version
        entries = {
            name: {"type": "streamableHttp", "url": f"https://{NAME}:{server.port}/mcp", "ssrfWhitelist": LOOPBACK}
            for name, server in servers.items()
        }
        async with case("H3", f"TLS: {', '.join(wrong)}", entries) as bay:
            bay.counted = lambda name: servers[name].effects
            for name, (_, words) in wrong.items():
                assert bay.state(name) == "failed", f"{name} is {bay.state(name)}: {bay.error(name)}"
                assert _says(words, bay.error(name)), f"{name}: {bay.error(name)}"
                result, took = await timed(lambda name=name: bay.call("note", server=name))
                assert (result.outcome, took < AT_ONCE) == (Outcome.NOT_EXECUTED, True), result.text
            assert {name: (server.posts, server.headers) for name, server in servers.items()} == dict.fromkeys(servers, ([], []))
            assert names.asked[NAME] <= 2 * len(servers), "no attempt after attempt"


def _says(words: str, text: str) -> bool:

    return re.search(words, text, re.IGNORECASE) is not None


@ERAS
async def test_h3_a_handshake_that_breaks_off_is_told_and_tried_again(era: Era, names: Names, certificates: Certificates) -> None:
    """H3: reset in the middle of it: nothing was sent, and the server is back once TLS is."""
    async with (
        RawHttp(era=era, tls=certificates.good()) as server,
        proxied(server.port) as proxy,
        web("H3", "TLS: reset in the handshake", server, url=proxy.url("https", NAME), toolTimeout=1.5) as bay,
    ):
        await bay.well("note")
        proxy.toxic = Toxic(reset=10)
        proxy.reset()
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "TLS")
        proxy.toxic = Toxic()
        await bay.reaches("ready")
        await bay.well("note")
        assert names.asked[NAME]


@ERAS
async def test_h3_a_certificate_that_runs_out_ends_the_server(era: Era, names: Names, certificates: Certificates) -> None:
    """H3: in the middle of a session: nothing is sent to who cannot prove the name any more, and it is not asked again."""
    async with (
        RawHttp(era=era, tls=certificates.good()) as server,
        RawHttp(era=era, tls=certificates.expired()) as impostor,
        proxied(server.port) as proxy,
        web("H3", "TLS: the certificate runs out", server, url=proxy.url("https", NAME), toolTimeout=1.5) as bay,
    ):
        await bay.well("note")
        proxy.target = ("127.0.0.1", impostor.port)
        proxy.reset()
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "expired")
        await bay.reaches("failed")
        assert "expired" in bay.error()
        assert (impostor.posts, names.asked[NAME] < 8) == ([], True)


# -- elsewhere ----------------------------------------------------------------------------------------------------------


def redirect(status: int, location: str) -> Step:
    return Step(kind="status", status=status, headers={"Location": location})


@ERAS
async def test_h12_a_redirect_is_followed_within_the_origin_and_never_out_of_it(era: Era) -> None:
    """H12: loops, other origins, metadata, a lost method: refused, the target is named and sees nothing."""
    async with RawHttp() as elsewhere, RawHttp(era=era) as server:
        target = elsewhere.url
        forms = {
            "cross origin": Form(redirect(307, target), Outcome.NOT_EXECUTED, rf"redirects to http://127\.0\.0\.1:{elsewhere.port}"),
            "another host": Form(redirect(308, "https://evil.example/mcp"), Outcome.NOT_EXECUTED, r"redirects to https://evil\.example"),
            "metadata": Form(redirect(307, "http://169.254.169.254/latest"), Outcome.NOT_EXECUTED, r"169\.254\.169\.254"),
            "303": Form(redirect(303, "/mcp"), Outcome.UNKNOWN, r"lose the message"),
            "302": Form(redirect(302, "/mcp"), Outcome.UNKNOWN, r"lose the message"),
            "user info": Form(redirect(307, f"http://me:word@127.0.0.1:{server.port}/mcp"), Outcome.NOT_EXECUTED, r"user name or password"),
            "another scheme": Form(redirect(307, "file:///etc/passwd"), Outcome.NOT_EXECUTED, r"no http or https|redirects to"),
            "nowhere": Form(redirect(304, ""), Outcome.UNKNOWN, r"HTTP 304"),
        }
        async with web("H12", f"redirects: {', '.join(forms)}, loop", server) as bay:
            await suffer(bay, server, forms)
            server.steps["note"] = [redirect(307, "/mcp")]
            bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "redirects more than")
            assert calls(server) < 30
            server.steps["note"] = [redirect(308, "/mcp?again"), Step(effect=True)]
            await bay.well("note")
            assert elsewhere.connections == 0


@ERAS
async def test_h12_a_server_that_sends_everybody_elsewhere_is_not_followed(era: Era) -> None:
    """H12: from the first request on: its state names the other origin, which sees nothing."""
    async with RawHttp() as elsewhere:
        server = RawHttp(era=era)
        server.steps["server/discover"] = server.steps["initialize"] = [redirect(307, elsewhere.url)]
        async with web("H12", "a redirect from the start", server) as bay:
            assert f"redirects to http://127.0.0.1:{elsewhere.port}" in bay.error(), bay.error()
            assert bay.state() == "failed"
            result, took = await timed(lambda: bay.call("note"))
            assert (result.outcome, took < AT_ONCE) == (Outcome.NOT_EXECUTED, True)
            assert elsewhere.connections == 0


async def test_h12_https_is_not_left_for_http(names: Names, certificates: Certificates) -> None:
    """H12: a downgrade is refused, although it is the same host."""
    async with (
        RawHttp() as plain,
        RawHttp(tls=certificates.good()) as server,
        web("H12", "a downgrade", server, url=server.at(NAME)) as bay,
    ):
        server.steps["note"] = [redirect(307, plain.at(NAME)), Step(effect=True)]
        bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, rf"redirects to http://{NAME}")
        await bay.well("note")
        assert (plain.connections, names.asked[NAME]) == (0, names.asked[NAME])


# -- proxies and addresses ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_h14_a_proxy_is_used_where_it_is_set_and_its_failures_are_its_own(
    names: Names, certificates: Certificates, no_proxies: pytest.MonkeyPatch
) -> None:
    """H14: through the proxy of the environment; 407 and a dead proxy are told as the proxy's, and nobody goes around it."""
    async with RawHttp(tls=certificates.good()) as server, proxied(server.port) as proxy:
        proxy.status = 200
        no_proxies.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with web("H14", "a proxy is set, answers 407", server, url=server.at(NAME), toolTimeout=1.5) as bay:
            await bay.well("note")
            assert set(proxy.asked) == {f"CONNECT {NAME}:{server.port} HTTP/1.1"}
            assert names.asked[NAME] == 0, "the name is the proxy's to look up"
            proxy.status = 407
            proxy.reset()
            bay.told(await bay.call("note"), Outcome.NOT_EXECUTED, "proxy", "407")
            proxy.status = 200
            await bay.reaches("ready")
            await bay.well("note")
    no_proxies.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    async with RawHttp(tls=certificates.good()) as server, web("H14", "a dead proxy", server, url=server.at(NAME)) as bay:
        assert _says("proxy.*refused|refused.*proxy", bay.error()), bay.error()
        assert server.connections == 0


@pytest.mark.parametrize("without", [NAME, ".test", "*", f"{NAME}:{{port}}", "localhost, TEST"])
async def test_h14_whom_no_proxy_names_is_reached_directly(
    without: str, names: Names, certificates: Certificates, no_proxies: pytest.MonkeyPatch
) -> None:
    """H14: the forms of NO_PROXY."""
    async with RawHttp(tls=certificates.good()) as server, proxied(server.port) as proxy:
        proxy.status = 200
        no_proxies.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        no_proxies.setenv("NO_PROXY", without.format(port=server.port))
        async with web("H14", f"NO_PROXY={without}", server, url=server.at(NAME)) as bay:
            await bay.well("note")
            assert (proxy.asked, names.asked[NAME] > 0) == ([], True)


async def test_h14_this_machine_is_never_reached_through_a_proxy(no_proxies: pytest.MonkeyPatch) -> None:
    """H14: a dead proxy is set for everything."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        no_proxies.setenv(name, f"http://127.0.0.1:{free_port()}")
    server = RawHttp()
    async with web("H14", "a dead proxy, a server on this machine", server) as bay:
        await bay.well("note")


@ERAS
async def test_h16_a_broken_address_gives_way_to_the_next_one(era: Era, names: Names) -> None:
    """H16: IPv6 refuses, then swallows; the calls go over IPv4, well within their deadline."""
    try:
        with swallowing("::1"):
            pass
    except OSError:
        pytest.skip("this system has no IPv6")
    names.of[NAME] = ["::1", "127.0.0.1"]
    async with RawHttp(era=era) as server:
        async with web("H16", "IPv6 refuses", server, url=server.at(NAME)) as bay:
            await bay.well("note")
            assert bay.states() == ["connecting", "ready"]
        with swallowing("::1", server.port):
            async with web("H16", "IPv6 swallows", server, url=server.at(NAME)) as bay:
                assert bay.states() == ["connecting", "ready"]
                server.effects = Counter()
                server.hang_up()
                result, took = await timed(lambda: bay.call("note", {"text": "x"}))
                assert (result.is_error, took < AT_ONCE + 0.5) == (False, True), result.text
