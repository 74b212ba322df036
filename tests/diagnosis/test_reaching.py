"""What an address that is no MCP server answers, over real sockets: status, page, redirect, lock, silence; and the mend for each."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import pytest
import trustme

from diagnosis.patients import only, the_error
from net.wires import Handler, Script, Small, always, answer
from servers.raw_http import RawHttp, Step
from support import servers
from support.processes import Footprint
from toolbay.config.models import ServerConfig
from toolbay.diagnosis import reaching, ways
from toolbay.diagnosis.findings import Notes, Report, Verdict
from toolbay.net import http
from toolbay.net.guard import Policy
from toolbay.net.proxy import Proxies
from toolbay.net.steps import Stage, Walk, walk

pytestmark = pytest.mark.anyio

PAGE = answer(b"<html><h1>Welcome</h1></html>", "Content-Type: text/html")
GONE = answer(b"", status="404 Not Found")


def entry(server: Small, path: str = "/", **more: Any) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{server.port}{path}", **more}


async def answered(response: bytes, path: str = "/mcp", **more: Any) -> Report:
    async with Small(always(response)) as server:
        return await only(entry(server, path, **more))


def by_path(pages: Mapping[str, bytes]) -> Handler:
    """Answers by the method and path of a request."""

    async def handler(first: str, _headers: dict[str, str], _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(pages.get(" ".join(first.split()[:2]), GONE))

    return handler


async def test_a_server_that_works_shows_the_way_to_it_too() -> None:
    """TRA-1: the steps of the network before those of the session, and nothing is asked besides."""
    async with RawHttp() as server:
        report = await only(server.entry)
        assert server.sessions == 1
    assert report.verdict is Verdict.FINE
    assert [step.name for step in report.trace] == ["guard", "TCP", "server/discover", "initialize", "tools/list"]
    assert report.offered == ("2026-07-28", "2025-11-25")
    assert (report.era, report.protocol) == ("initialize", "2025-11-25")
    async with RawHttp(era="modern") as server:
        report = await only(server.entry)
    assert (report.era, report.offered, report.protocol) == ("discover", ("2026-07-28",), "2026-07-28")


async def test_a_tool_that_never_gets_into_a_listing_is_told() -> None:
    """SEC-30: invalid marks for headers cost the tool, which would else just not be there."""
    marked = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "not a header\r\n"}}}
    tools = [{"name": "forecast", "inputSchema": marked}, {"name": "echo", "inputSchema": {"type": "object"}}]
    listed = {"jsonrpc": "2.0", "id": None, "result": {"resultType": "complete", "tools": tools}}
    async with RawHttp(era="modern") as server:
        headers = {"Content-Type": "application/json"}
        server.steps = {"tools/list": [Step(kind="status", status=200, headers=headers, body=json.dumps(listed).encode())]}
        report = await only(server.entry)
    (finding,) = report.findings
    assert "its tool forecast is left out" in finding.what
    assert report.tools == 1


async def test_a_server_of_the_older_transport_that_works() -> None:
    """TRA-1: SSE: the way, the handshake, the lists."""
    with servers.sdk2_serving("sse") as server:
        report = await only(server.entry)
    assert report.ready, report.findings
    assert report.type == "sse"
    assert [step.name for step in report.trace][:3] == ["guard", "TCP", "initialize"]


async def test_a_refused_connection_is_no_page_and_no_status() -> None:
    """TRA-3: nothing listens there."""
    report = await only({"url": f"http://127.0.0.1:{servers.free_port()}/mcp"})
    finding = the_error(report)
    assert "nothing listens there" in finding.why
    assert "start the server" in finding.mend


async def test_a_name_that_dns_does_not_know() -> None:
    """TRA-3: .invalid never has an address (RFC 6761)."""
    finding = the_error(await only({"url": "https://mcp.invalid/mcp", "startupTimeout": 15}))
    assert "https://mcp.invalid was not found" in finding.what
    assert "DNS" in finding.why
    assert "check the name in `url`" in finding.mend


@pytest.mark.parametrize(
    ("url", "why", "mend"),
    [
        ("http://10.1.2.3/mcp", "10.1.2.3 is a private address (10.0.0.0/8)", '"10.1.2.3/32" to `ssrfWhitelist`'),
        ("http://169.254.169.254/mcp", "a cloud's metadata service", '"169.254.169.254/32"'),
        ("http://[fd00::1]/mcp", "fd00::1 is a private address (fc00::/7)", '"fd00::1/128" to `ssrfWhitelist`'),
    ],
)
async def test_a_closed_address_names_the_rule_and_the_entry_that_would_open_it(url: str, why: str, mend: str) -> None:
    """SEC-28: which address, which rule, which entry of the whitelist."""
    finding = the_error(await only({"url": url}))
    assert "network guard" in finding.what
    assert why in f"{finding.why} {finding.mend}"
    assert mend in f"{finding.why} {finding.mend}"


def test_what_a_name_server_answers_is_not_taken_for_the_mend() -> None:
    """SEC-28: whoever answers for a name writes no advice."""
    notes = Notes(server="s")
    walked = Walk(addresses=("10.1.2.3: switch the guard off",), failed=Stage.GUARD)
    ways.tell(servers.config({"type": "streamableHttp", "url": "http://intranet.example/mcp"}), walked, Policy(), notes)
    finding = notes.findings[0]
    assert finding.why == "intranet.example leads to 10.1.2.3: switch the guard off, which is no address that can be dialled"
    assert finding.mend == "correct its DNS entry"


@pytest.mark.parametrize(
    ("url", "why", "mend"),
    [
        ("http://0x7f.1/mcp", "0x7f.1 is an IPv4 address in a form that programs read differently", "write it as four decimal numbers"),
        ("http://a-.test/mcp", "a-.test is no host name", "correct `url`"),
        (
            "http://metadata.google.internal/mcp",
            "metadata.google.internal is a cloud's metadata service, which hands out credentials: it stays closed",
            "correct `url`",
        ),
    ],
)
async def test_a_url_that_is_refused_whatever_it_resolves_to(url: str, why: str, mend: str) -> None:
    """SEC-28: the guard's own words, and one mend."""
    finding = the_error(await only({"url": url}))
    assert (finding.what, finding.why, finding.mend) == ("its address may not be used", why, mend)


async def test_a_url_that_is_refused_is_told_without_its_password() -> None:
    """SEC-28: as written it is a credential."""
    finding = the_error(await only({"url": "http://user:hush-hush@127.0.0.1/mcp"}))
    assert "user name or password" in finding.why
    assert "hush-hush" not in finding.text


async def test_a_proxy_that_cannot_be_used_is_told_with_its_own_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """H14, TRA-3: and no other beside it."""
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    finding = the_error(await only({"url": "http://weather.example/mcp"}))
    assert "no http or https address (it is the proxy that is set)" in finding.why
    assert finding.mend == "set an http one in HTTP_PROXY and HTTPS_PROXY"


@pytest.mark.parametrize(
    ("challenge", "headers", "why", "mend"),
    [
        ('WWW-Authenticate: Bearer realm="weather", scope="read write"', {}, "Bearer (realm weather, scope read write)", "Bearer ${TOKEN}"),
        ('WWW-Authenticate: Bearer error="invalid_token"', {"Authorization": "Bearer old-old-old"}, "invalid_token", "renew the token"),
        (
            'WWW-Authenticate: Bearer resource_metadata="https://weather.example/.well-known/oauth-protected-resource"',
            {},
            "it asks for Bearer",
            "log in: toolbay login s",
        ),
        ("X-Nothing: here", {}, "does not say what for", "Bearer ${TOKEN}"),
    ],
)
async def test_a_lock_says_what_it_asks_for(challenge: str, headers: dict[str, str], why: str, mend: str) -> None:
    """TRA-3: 401, what WWW-Authenticate asks for, and where to put it."""
    report = await answered(answer(b"", challenge, status="401 Unauthorized"), headers=headers)
    finding = the_error(report)
    assert "wants credentials" in finding.what
    assert "HTTP 401" in finding.why
    assert why in finding.why
    assert mend in finding.mend
    assert any(step.said.startswith("401") for step in report.trace)


async def test_a_door_that_stays_closed_with_credentials() -> None:
    """TRA-3: 403 is another matter than 401."""
    finding = the_error(await answered(answer(b"", status="403 Forbidden"), headers={"Authorization": "Bearer good-good"}))
    assert "refuses access" in finding.what
    assert "ask for the right" in finding.mend


async def test_a_web_page_says_so_and_names_the_neighbour_that_answers() -> None:
    """TRA-3: the address of a site in the place of its endpoint; the usual neighbours are asked, on the same origin, and that is said."""
    speaks = answer(b'{"jsonrpc": "2.0", "id": 1, "result": {}}', "Content-Type: application/json", "Mcp-Session-Id: seen")
    async with Small(by_path({"POST /": PAGE, "GET /": PAGE, "POST /mcp": speaks, "DELETE /mcp": answer()})) as server:
        finding = the_error(await only(entry(server)))
        assert server.requests[-1].startswith("DELETE /mcp"), "what was begun only to look is ended"
    assert f"http://127.0.0.1:{server.port} is a web page, not an MCP endpoint" in finding.what
    assert finding.mend == f"set `url` to http://127.0.0.1:{server.port}/mcp"
    assert "asked as well, through the guard" in finding.shown[0]


async def test_an_endpoint_of_the_older_transport_is_found_at_its_place() -> None:
    """TRA-3: /sse answers a GET with events, and a POST with 405."""
    events = answer(b"event: endpoint\ndata: /messages\n\n", "Content-Type: text/event-stream")
    async with Small(by_path({"GET /api/sse": events})) as server:
        finding = the_error(await only(entry(server, "/api/mcp")))
    assert finding.mend == f"set `url` to http://127.0.0.1:{server.port}/api/sse and `type` to sse"
    async with Small(by_path({"GET /events": events})) as server:
        finding = the_error(await only(entry(server, "/events")))
    assert finding.mend == "set `type` to sse"


async def test_a_page_without_such_neighbours_says_what_was_asked() -> None:
    """TRA-3: five at the most."""
    async with Small(always(PAGE)) as server:
        finding = the_error(await only(entry(server, "/docs/")))
        asked = {request.split()[1] for request in server.requests}
    assert finding.mend == "ask whoever runs it for the address of its MCP endpoint", "what was asked is no advice"
    assert "none is one" in finding.shown[0]
    assert asked == {"/docs/", "/docs/mcp", "/docs/sse", "/mcp", "/sse"}
    async with Small(always(PAGE)) as server:
        finding = the_error(await only(entry(server, "/docs/of/weather")))
    origin = f"http://127.0.0.1:{server.port}"
    assert finding.mend.endswith(f"often that is {origin}/mcp or {origin}/sse")


@pytest.mark.parametrize("status", ["501 Unsupported method", "405 Method Not Allowed", "500 Oops", "404 Not Found", "403 Forbidden"])
async def test_a_site_that_takes_no_messages_is_a_web_page_all_the_same(status: str) -> None:
    """TRA-3: what it shows to a browser says so, whatever it says to a POST."""
    refusal = answer(b"<html>no</html>", "Content-Type: text/html", status=status)
    async with Small(by_path({"POST /": refusal, "GET /": PAGE})) as server:
        finding = the_error(await only(entry(server)))
    assert "is a web page, not an MCP endpoint" in finding.what
    assert f"HTTP {status[:3]}" in finding.why
    async with Small(by_path({"POST /": refusal, "GET /": refusal})) as server:
        finding = the_error(await only(entry(server)))
    assert "web page" not in finding.text


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("https://elsewhere.example/mcp", "ask whoever runs the server whether it is at https://elsewhere.example/mcp now"),
        ("https://127.0.0.1/mcp", "set `url` to https://127.0.0.1/mcp"),
        ("https://accounts.example/login?next=a-long-key-that-is-none", "logging in at that page does not help"),
    ],
)
async def test_a_redirect_names_its_target(location: str, words: str) -> None:
    """SEC-29: it is not followed; a login page is told from a new address."""
    finding = the_error(await answered(answer(b"", f"Location: {location}", status="307 Temporary Redirect")))
    assert "HTTP 307 to https://" in finding.why
    assert words in finding.mend
    assert "a-long-key" not in finding.text


@pytest.mark.parametrize(
    ("status", "header", "why", "mend"),
    [
        ("500 Oops", "X: y", "HTTP 500", "the server's own log"),
        ("503 Busy", "Retry-After: 7", "HTTP 503; it asks to wait 7 s", "try again later"),
        ("429 Slow", "X: y", "HTTP 429", "try again later"),
        ("400 Bad", "X: y", "HTTP 400", "`protocolVersion`"),
    ],
)
async def test_an_error_says_whose_it_is(status: str, header: str, why: str, mend: str) -> None:
    """TRA-3: the status, in plain words, with what the body says."""
    finding = the_error(await answered(answer(b"no weather today", header, "Content-Type: text/plain", status=status)))
    assert finding.why == why
    assert mend in finding.mend
    assert finding.shown == ("no weather today",)


async def test_what_knows_no_post_is_no_endpoint() -> None:
    """TRA-3: 501 says so of the address, other than an error of the server."""
    finding = the_error(await answered(answer(b"", "Content-Type: text/html", status="501 Unsupported method")))
    assert "is no MCP endpoint" in finding.what
    assert "server's own log" not in finding.mend


async def test_a_server_that_takes_a_connection_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRA-3: silence is told from a refusal, and bounded."""
    monkeypatch.setattr(reaching, "ANSWER_SECONDS", 1.0)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        finding = the_error(await only({"url": url, "startupTimeout": 2}))
    assert "gave no answer" in finding.why


async def test_a_server_that_hangs_up() -> None:
    """TRA-3: something else than HTTP listens there."""
    async with RawHttp() as server:
        server.steps = {"initialize": [Step(kind="reset")], "server/discover": [Step(kind="reset")]}
        finding = the_error(await only(server.entry))
    assert "hung up" in finding.why


@pytest.mark.parametrize(
    ("said", "why", "shown"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "what it sent is no HTTP", "illegal chunk header"),
        (answer(b"none", "Content-Encoding: gzip"), "a body that is not the gzip it is said to be", ""),
    ],
)
async def test_what_cannot_be_read_says_how_it_is_broken(said: bytes, why: str, shown: str) -> None:
    """TRA-3: it is told from a server that says nothing."""
    finding = the_error(await answered(said))
    assert why in finding.why
    assert shown in " ".join(finding.shown)


async def test_a_session_that_fails_though_the_address_answers() -> None:
    """TRA-1: then the session's own reason is what there is to say."""
    async with RawHttp() as server:
        refusal = {"code": -32011, "message": "not before the weekend"}
        server.steps = {method: [Step(error=refusal)] for method in ("initialize", "server/discover")}
        finding = the_error(await only(server.entry))
    assert "not before the weekend" in finding.why


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRA-3: HTTPS_PROXY of who runs us, which is easily forgotten."""
    proxy = f"http://127.0.0.1:{servers.free_port()}"
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    report = await only({"url": "https://mcp.example/mcp"})
    finding = the_error(report)
    assert report.trace[0].said == f"through {proxy}"
    assert "through the proxy http://127.0.0.1" in finding.what
    assert "check the proxy" in finding.mend


async def judged(url: str, tls: ssl.SSLContext) -> Notes:
    """The verdict on the way to `url`, where `tls` says what is trusted."""
    policy, notes = Policy(whitelist=("127.0.0.1/32",)), Notes(server="s")
    found = await walk(http.target(url), policy, proxies=Proxies(), resolver=Script().knows("mcp.test", ["127.0.0.1"]), tls=tls)
    ways.tell(ServerConfig.model_validate({"type": "streamableHttp", "url": url}), found, policy, notes)
    return notes


@pytest.mark.parametrize(
    ("name", "ends", "trusted", "why", "mend"),
    [
        ("mcp.test", dt.datetime(2021, 2, 3, tzinfo=dt.UTC), True, "expired", "renew it"),
        ("other.test", None, True, "mcp.test", "write the name into `url` that the certificate is for"),
        ("mcp.test", None, False, "issuer", "SSL_CERT_FILE"),
    ],
)
async def test_a_certificate_that_is_not_accepted_says_why_and_whose_it_is(
    name: str, ends: dt.datetime | None, trusted: bool, why: str, mend: str
) -> None:
    """TRA-3: expired, for another name, from an unknown authority: three reasons, three mends."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_after=ends).configure_cert(context)
    known = ssl.create_default_context()
    if trusted:
        authority.configure_trust(known)
    async with Small(always(answer()), tls=context) as server:
        finding = the_error(await judged(f"https://mcp.test:{server.port}/mcp", known))
    assert "the certificate of mcp.test was not accepted" in finding.what
    assert why in finding.why
    assert mend in finding.mend
    assert f"for {name}" in finding.shown[0]
    assert "good until" in finding.shown[1]
    assert ends is None or "2021-02-03" in finding.shown[1]


async def test_a_port_that_speaks_no_tls_is_told() -> None:
    """TRA-3: https in the place of http."""
    async with Small(always(answer())) as server:
        finding = the_error(await only({"url": f"https://127.0.0.1:{server.port}/mcp"}))
    assert "does not speak TLS" in finding.why
    assert "http://" in finding.mend


async def test_looking_leaves_no_connection_behind() -> None:
    """LIF-1: descriptors after an examination of servers that fail in many ways."""
    urls = [f"http://127.0.0.1:{servers.free_port()}/mcp", "http://10.0.0.1/mcp"]
    async with Small(always(PAGE)) as server:
        for url in (*urls, f"http://127.0.0.1:{server.port}/"):
            await only({"url": url})
        before = Footprint.now()
        for url in (*urls, f"http://127.0.0.1:{server.port}/"):
            await only({"url": url})
        assert before.grown(allowed_threads=8) == ""
