"""Which addresses of an authorization server are used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.auth import trust
from toolbay.errors import LoginFailed

ISSUER = "https://auth.example.com"


@pytest.mark.parametrize(
    ("url", "secure"),
    [
        ("https://example.com/x", True),
        ("HTTPS://example.com", True),
        ("http://127.0.0.1:8000/x", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8000", True),
        ("http://localhost:1", True),
        ("http://example.com", False),
        ("http://10.0.0.1", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://127.0.0.1@example.com", False),
        ("file:///etc/passwd", False),
        ("javascript:alert(1)", False),
        ("", False),
    ],
)
def test_only_https_and_this_machine_are_private_on_the_way(url: str, secure: bool) -> None:
    """SEC: codes, secrets and tokens are sent over https; http is for this machine in so many words."""
    assert trust.secure(url) is secure


@pytest.mark.parametrize(
    ("url", "issuer"),
    [
        ("https://auth.example.com/token", ISSUER),
        ("https://AUTH.example.com/token?tenant=a", ISSUER),
        ("https://auth.example.com:8443/token", ISSUER),
        ("https://api.example.com/token", ISSUER),
        ("https://example.com/token", ISSUER),
        ("https://login.example.co.uk/token", "https://accounts.example.co.uk"),
        ("https://sso.corp.internal/token", "https://id.corp.internal"),
        ("https://oauth2.googleapis.com/token", "https://accounts.google.com"),
        ("https://login.microsoftonline.com/x/token", "https://sts.windows.net/x/"),
        ("https://mine.auth.eu-west-1.amazoncognito.com/oauth2/token", "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_x"),
        ("http://127.0.0.1:9/token", "http://localhost:9"),
        ("https://intranet/token", "https://intranet"),
        ("https://192.0.2.7/token", "https://192.0.2.7"),
    ],
)
def test_an_address_at_the_authorization_servers_own_domain_is_used(url: str, issuer: str) -> None:
    """SEC: attack 8: the same host, the same registered domain, or another one that is known to be the same owner's."""
    assert trust.check(url, what="token endpoint", issuer=issuer, hosts=()) == url


@pytest.mark.parametrize(
    ("url", "issuer"),
    [
        ("https://evil.example/token", ISSUER),
        ("https://auth.example.com.evil.example/token", ISSUER),
        ("https://auth-example.com/token", ISSUER),
        ("https://other.co.uk/token", "https://accounts.example.co.uk"),
        ("https://evil.github.io/token", "https://good.github.io"),
        ("https://oauth2.googleapis.com/token", "https://accounts.google.com.evil.example"),
        ("https://oauth2.googleapis.com/token", ISSUER),
        ("https://oauth2.googleapisxcom.example/token", "https://accounts.google.com"),
        ("https://loginxmicrosoftonline.com/x/token", "https://sts.windows.net"),
        ("https://x.auth.eu-west-1.amazoncognito.com/token", "https://cognito-idp.us-east-1.amazonaws.com/p"),
        ("https://192.0.2.7/token", "https://192.0.2.8"),
        ("https://1.2.0.7/token", "https://9.9.0.7"),
        ("https://b.internal/token", "https://a.internal"),
        ("https://other/token", "https://intranet"),
        ("http://127.0.0.1/token", ISSUER),
    ],
)
def test_attack_08_an_address_at_another_domain_is_refused_until_a_person_says_that_it_is_right(url: str, issuer: str) -> None:
    """SEC: attack 8: the error names both hosts and the mend, and the mend helps."""
    with pytest.raises(LoginFailed) as error:
        trust.check(url, what="token endpoint", issuer=issuer, hosts=("unrelated.example",))
    host = url.split("/")[2]
    assert host in str(error.value)
    assert issuer.split("/")[2] in str(error.value)
    assert f'auth: {{hosts: ["{host}"]}}' in str(error.value)
    assert not error.value.retriable
    assert trust.check(url, what="token endpoint", issuer=issuer, hosts=(host,)) == url


BAD = [
    "",
    "token",
    "//example.com/token",
    "http://auth.example.com/token",
    "http://10.0.0.1/token",
    "ftp://auth.example.com/token",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "https://user:canary-pass@auth.example.com/token",
    "https://auth.example.com/$(calc)",
    "https://auth.example.com/`id`",
    "https://auth.example.com/a|b",
    "https://auth.example.com/a b",
    "https://auth.example.com/a\nb",
    "https://auth.example.com/a\\b",
    'https://auth.example.com/"',
    "https://auth.example.com/#fragment",
    "https://auth.example.com/\u202ea",
    "https://auth.exa\u0440mple.com/token",
    "https://auth.example.com:99999/token",
    "https://auth.example.com%2f.evil.example/token",
    "https://0x7f000001/token",
    "https://metadata.google.internal/token",
    "https://auth.example.com/" + "a" * 3_000,
]


@pytest.mark.parametrize("url", BAD)
def test_attack_08_an_address_that_is_no_plain_https_one_is_refused_wherever_it_leads(url: str) -> None:
    """SEC: attack 8: not even a host that a person has allowed makes it right, and no secret of it is told."""
    with pytest.raises(LoginFailed) as error:
        trust.check(url, what="authorization endpoint", issuer=ISSUER, hosts=("evil.example", "10.0.0.1", "auth.example.com"))
    assert len(str(error.value)) < 500
    assert "canary-" not in str(error.value)


@given(st.text(max_size=60) | st.builds("https://{}".format, st.text(max_size=40)))
def test_any_text_is_judged(url: str) -> None:
    """SEC: attack 8: what strangers write raises nothing but LoginFailed, and nothing that is let through holds a blank."""
    try:
        assert trust.check(url, what="token endpoint", issuer=ISSUER, hosts=()) == url
    except LoginFailed:
        return
    assert url.isascii()
    assert not set(url) & set(" \t\n\r\\\"'<>`$(){}|^#!*")
