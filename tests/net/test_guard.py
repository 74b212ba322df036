"""The network policy by itself: no socket, no resolver."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.errors import BlockedAddress, ConfigError
from toolbay.net import guard
from toolbay.net.guard import Parts, Policy, Target, check_addresses, check_redirect, check_url, consent

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "ssrf" / "cases.json"
CASES: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else []


def parse(text: str) -> Parts:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ValueError(str(error)) from None
    return Parts(url.scheme, url.userinfo.decode(), url.raw_host.decode(), url.port)


def target(text: str) -> Target:
    return check_url(text, parse)


def judged(case: dict[str, Any]) -> str:
    """The verdict on one case: of the first look-up, for later ones are the dialler's affair."""
    policy = Policy(tuple(case.get("whitelist", ())))
    try:
        start = target(case["url"])
        check_addresses(start.host, [start.host] if start.literal else case.get("resolves_to", []), policy)
        if "redirects_to" in case:
            check_redirect(start, target(str(httpx2.URL(case["url"]).join(case["redirects_to"]))))
    except (BlockedAddress, httpx2.InvalidURL):
        return "blocked"
    return "allowed"


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES if "resolves_to_sequence" not in case])
def test_real_urls_get_the_right_verdict(case: dict[str, Any]) -> None:
    """Attacks 8 and 9: the collected URLs, judged without any network."""
    assert judged(case) == case["verdict"], case["why"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:8000/mcp", r'127\.0\.0\.1 is this machine itself \(127\.0\.0\.0/8\), .*add "127.0.0.1/32" to `ssrfWhitelist`'),
        ("http://[::ffff:10.0.0.1]/", '10.0.0.1 is a private address .*"10.0.0.1/32"'),
        ("http://169.254.169.254/", 'metadata service, .* exactly "169.254.169.254/32"'),
        ("http://metadata.google.internal/", "metadata service, .*stays closed"),
        ("http://0.0.0.0:8000/", "write 127.0.0.1 if this machine is meant"),
        ("http://0x7f.1/", "write it as four decimal numbers"),
        ("https://user:canary-hunter2@example.com/", "put credentials into `headers`"),
        ("http://exa mple.com/", "holds a space"),
        ("http://example.com:0/", "port is not between"),
        ("http://[127.0.0.1]/", "malformed"),
        ("http://a..b/", "a..b is no host name"),
        ("http://-a.com/", "no host name"),
        ("/relative", "no http or https address"),
    ],
)
def test_a_refusal_names_the_cause_and_the_mend(url: str, says: str) -> None:
    """Attack 9: one sentence a person can act on, without the credentials of the URL."""
    with pytest.raises(BlockedAddress, match=says) as caught:
        check_addresses(target(url).host, [target(url).host], Policy())
    assert "canary-hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "answer", "mend"),
    [
        ("http://intranet/", "10.1.2.3", 'if this is meant, add "10.1.2.3/32" to `ssrfWhitelist` of this server'),
        ("http://intranet/", "http://10.1.2.3: 80", "correct its DNS entry"),
        ("http://0.0.0.0/", "0.0.0.0", "write 127.0.0.1 if this machine is meant"),
        ("http://a..b/", "", "correct `url`"),
        ("http://exa mple.com/", "", "correct `url`"),
        ("http://metadata.google.internal/", "", ""),
        ("http://169.254.169.254/", "169.254.169.254", ""),
    ],
)
def test_the_cause_and_the_mend_can_be_had_apart(url: str, answer: str, mend: str) -> None:
    """Attack 9: who shows them one by one need not take a sentence apart, in which a name from outside may stand."""
    with pytest.raises(BlockedAddress) as caught:
        check_addresses(target(url).host, [answer], Policy())
    error = caught.value
    assert error.mend == mend
    assert str(error) == (f"{error.cause}: {mend}" if mend else error.cause)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.cause, again.mend) == (str(error), error.cause, error.mend)


def test_a_name_is_shown_with_the_address_that_it_leads_to() -> None:
    """Attack 9: who reads `intranet` must learn which address was the trouble."""
    with pytest.raises(BlockedAddress, match=r"^intranet leads to 10\.1\.2\.3, a private address \(10\.0\.0\.0/8\), closed"):
        check_addresses("intranet", ["93.184.215.14", "10.1.2.3"], Policy())


@pytest.mark.parametrize("answers", [[], ["fe80::1%eth0"], ["nonsense"], ["93.184.215.14", "::1"], ["::1", "93.184.215.14"]])
def test_all_answers_are_refused_for_one_that_is_bad_and_for_none(answers: list[str]) -> None:
    """Attack 9: falling back from a good address to a bad one would undo the guard."""
    with pytest.raises(BlockedAddress):
        check_addresses("example.com", answers, Policy())


def test_checked_addresses_come_back_in_order_and_once() -> None:
    """Attack 9: what is dialled is exactly what was checked."""
    found = check_addresses("example.com", ["2606:4700::1111", "8.8.8.8", "::ffff:8.8.8.8", "8.8.4.4"], Policy())
    assert [str(address) for address in found] == ["2606:4700::1111", "8.8.8.8", "8.8.4.4"]


@pytest.mark.parametrize(
    ("entry", "address", "opened"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.9.9.9/8", "10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "64:ff9b::10.1.2.3", False),
        ("10.0.0.0/8", "2002:a01:203::1", False),
        ("10.0.0.0/8", "2606:4700::5efe:10.1.2.3", False),
        ("169.254.0.0/16", "169.254.169.254", False),
        ("0.0.0.0/0", "169.254.169.254", False),
        ("169.254.169.254/32", "169.254.169.254", True),
        ("169.254.169.254/32", "::ffff:169.254.169.254", True),
        ("169.254.169.254/32", "64:ff9b::169.254.169.254", False),
        ("64:ff9b:1::/48", "64:ff9b:1:a9fe:a9:fe00::", False),
        ("64:ff9b:1:a9fe:a9:fe00::/128", "64:ff9b:1:a9fe:a9:fe00::", True),
        ("::/0", "fd00:ec2::254", False),
        ("::/0", "fd00::1", True),
        ("::/0", "127.0.0.1", False),
    ],
)
def test_a_whitelist_opens_the_addresses_it_names_and_no_other_form_of_them(entry: str, address: str, opened: bool) -> None:
    """Attack 9: mapped is the same address; translated and tunnelled ones are others; metadata needs its exact address."""
    try:
        check_addresses("name.test", [address], Policy((entry,)))
        found = True
    except BlockedAddress:
        found = False
    assert found is opened


def test_a_fake_ip_range_is_open_to_names_alone() -> None:
    """Attack 9: a fake-IP proxy answers for names; nobody has to write such an address."""
    policy = Policy(fake_ip=("198.18.0.0/15",))
    assert check_addresses("example.com", ["198.18.0.7"], policy)
    with pytest.raises(BlockedAddress):
        check_addresses("198.18.0.7", ["198.18.0.7"], policy)
    with pytest.raises(BlockedAddress):
        check_addresses("example.com", ["10.0.0.1"], policy)


def test_an_entry_that_is_no_range_is_said_so() -> None:
    """Attack 9: a whitelist with a slip opens nothing silently."""
    with pytest.raises(ConfigError, match=r'"10\.0\.0\.0/33" in `ssrfWhitelist` is no address range'):
        Policy(("10.0.0.0/33",))


@pytest.mark.parametrize(
    ("url", "implied"),
    [
        ("http://127.0.0.1:8000/mcp", ("127.0.0.1/32",)),
        ("http://127.1.2.3/", ("127.1.2.3/32",)),
        ("http://[::1]:8000/mcp", ("::1/128",)),
        ("http://[::ffff:127.0.0.1]/", ("127.0.0.1/32",)),
        ("http://localhost:8000/mcp", ("127.0.0.1/32", "::1/128")),
        ("http://LOCALHOST./mcp", ("127.0.0.1/32", "::1/128")),
        ("http://localtest.me/mcp", ()),
        ("http://10.0.0.1/mcp", ()),
        ("http://169.254.1.1/mcp", ()),
        ("https://example.com/mcp", ()),
    ],
)
def test_a_configured_loopback_url_is_consent_and_no_other_is(url: str, implied: tuple[str, ...]) -> None:
    """Attack 9: local servers work without configuration; private networks need a word."""
    assert consent(target(url)) == implied


def test_consent_is_for_exactly_the_configured_origin() -> None:
    """Attack 9: what a local server redirects to or advertises is another port, and closed."""
    policy = Policy(home=target("http://localhost:8000/mcp"))
    assert check_addresses("localhost", ["127.0.0.1", "::1"], policy.toward("localhost", 8000))
    for host, port in (("localhost", 8001), ("127.0.0.1", 8000), ("localtest.me", 8000)):
        with pytest.raises(BlockedAddress):
            check_addresses(host, ["127.0.0.1"], policy.toward(host, port))


REDIRECTS = [
    ("https://example.com/mcp", "https://example.com/other", True),
    ("https://example.com/mcp", "https://example.com:443/other", True),
    ("http://example.com/mcp", "https://example.com/mcp", True),
    ("http://example.com:8080/mcp", "https://example.com:8443/mcp", False),
    ("http://example.com:8080/mcp", "https://example.com/mcp", False),
    ("http://example.com/mcp", "https://example.com:8443/mcp", False),
    ("https://example.com/mcp", "http://example.com/mcp", False),
    ("https://example.com/mcp", "https://www.example.com/mcp", False),
    ("https://example.com/mcp", "https://example.com./mcp", False),
    ("https://example.com/mcp", "https://example.com:8443/mcp", False),
]


@pytest.mark.parametrize(("sent", "to", "followed"), REDIRECTS)
def test_a_redirect_is_followed_within_its_origin_or_up_to_https(sent: str, to: str, followed: bool) -> None:
    """Attack 10: what is on a request was meant for one origin."""
    if followed:
        check_redirect(target(sent), target(to))
    else:
        with pytest.raises(BlockedAddress, match="another origin"):
            check_redirect(target(sent), target(to))


def test_a_redirect_that_loses_the_message_or_goes_round_is_not_followed() -> None:
    """Attack 10: the method is kept, and five are enough."""
    here = target("https://example.com/")
    check_redirect(here, here, followed=guard.MAX_REDIRECTS - 1)
    with pytest.raises(BlockedAddress, match="more than 5 times"):
        check_redirect(here, here, followed=guard.MAX_REDIRECTS)
    with pytest.raises(BlockedAddress, match="lose the message"):
        check_redirect(here, here, same_method=False)


AUTHORITY = st.text("aZ09.-_:@%[]\\/?# ï。．①\u200b", max_size=12)
URLS = st.one_of(
    st.builds(lambda scheme, rest: scheme + rest, st.sampled_from(["http://", "https://", "HTTP://", "http:/", "//", ""]), AUTHORITY),
    st.builds("http://{}:{}/{}".format, AUTHORITY, st.text("0123456789_ +٣", max_size=6), st.text("a@:/\\%", max_size=4)),
    st.builds("https://{}@{}".format, AUTHORITY, AUTHORITY),
)


@given(URLS)
def test_a_url_that_passes_is_read_alike_by_three_parsers(text: str) -> None:
    """Attack 9: the standard library, the HTTP client and the guard agree on host and port, or the URL is refused."""
    from urllib.parse import urlsplit

    try:
        found = target(text)
    except BlockedAddress:
        return
    other = urlsplit(text)
    client = httpx2.URL(text)
    assert (client.raw_host.decode(), client.port or guard.DEFAULT_PORTS[client.scheme]) == (found.host, found.port)
    assert (other.port or guard.DEFAULT_PORTS[other.scheme]) == found.port
    if (other.hostname or "").isascii() and found.literal is None:
        assert other.hostname == found.host


@given(st.text(max_size=40))
def test_any_text_is_a_target_or_a_refusal(text: str) -> None:
    """Attack 9: nothing that a server advertises makes the guard fail in another way."""
    try:
        found = target(f"http://{text}")
    except BlockedAddress:
        return
    assert found.host.isascii()
    assert target(found.origin) == found
