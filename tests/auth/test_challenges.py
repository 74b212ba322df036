"""What a server says in WWW-Authenticate."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.auth.challenges import LONGEST, Challenge, bearer, scopes

URL = "https://example.org/.well-known/oauth-protected-resource/mcp"
AT = f'resource_metadata="{URL}"'
SAID = 'error="invalid_token", error_description="it has ended"'
FULL = Challenge(error="invalid_token", description="it has ended", scopes=("read", "write"), resource_metadata=URL)


@pytest.mark.parametrize(
    "header",
    [
        f'Bearer error="invalid_token", error_description="it has ended", scope="read write", resource_metadata="{URL}"',
        f'bearer ERROR=invalid_token , error_description = "it has ended",scope="read write",resource_metadata="{URL}"',
        f'Bearer error="invalid_token" error_description="it has ended" scope="read  write" resource_metadata={URL}',
        rf'Basic realm="a, Bearer error=\"x\"", Bearer error="invalid_token", error_description="it\ has ended", scope="read write", {AT}',
        f'Negotiate YII==, Bearer, Bearer {SAID}, scope="read write", {AT}, DPoP algs="ES256", error="use_dpop_nonce"',
        f',, Bearer realm="", error="invalid_token", error="second", error_description="it has ended", scope="read write read", {AT[:-1]}',
    ],
)
def test_a_challenge_is_found_however_it_is_written(header: str) -> None:
    """H4: several challenges, joined headers, quoted pairs, blanks, missing commas, missing quotes, parameters that come twice."""
    assert bearer(header) == FULL


@pytest.mark.parametrize(
    "header", ["", "Basic realm=x", "Negotiate", "Negotiate YII==", "DPoP algs=ES256", "Digest a=b, c=Bearer", '"', ","]
)
def test_what_no_token_answers_is_no_challenge(header: str) -> None:
    """H4: other schemes, and a word that is only a value."""
    assert bearer(header) is None


@pytest.mark.parametrize("header", ["Bearer", "bearer ", "Basic x, Bearer", 'Bearer realm="x"', "Bearer scope="])
def test_a_challenge_may_say_nothing(header: str) -> None:
    """H4: a bare one."""
    assert bearer(header) == Challenge()


def test_another_scheme_counts_where_it_tells_where_to_log_in() -> None:
    """H4: RFC 9728 binds its parameter to no scheme; of several challenges the one that says most counts."""
    assert bearer(f"DPoP resource_metadata={URL}") == Challenge(resource_metadata=URL)
    assert bearer(f"Bearer error=a, error_description=b, scope=c, DPoP {AT}") == Challenge(resource_metadata=URL)
    assert bearer(f"Bearer, DPoP resource_metadata={URL}") == Challenge(resource_metadata=URL)


def test_what_it_says_is_cleaned_and_bounded() -> None:
    """REN-7: a server's words reach people and logs."""
    found = bearer(f'Bearer error="{"e" * 500}", error_description="\x1b[31m\u202ered {"d" * 500}", scope="{"s " * 20} \u00e9 a\\\\b ok"')
    assert found is not None
    assert len(found.error) == 60
    assert found.description.startswith("red d")
    assert len(found.description) == 200
    assert found.scopes == ("s", "ok")


def test_scopes_are_told_once_each_in_their_order() -> None:
    """H4: RFC 6749, 3.3."""
    assert scopes(' b a  b\tc "x" ') == ("b", "a", "c")
    assert len(scopes(" ".join(map(str, range(5_000))))) == 200


@given(st.text(alphabet='Bearer ,="\\\t\n;:/éx', max_size=80) | st.text(max_size=80))
def test_any_text_is_read(header: str) -> None:
    """H4: no header raises, and a challenge can be put before any other."""
    bearer(header)
    found = bearer(f'Bearer scope="a", resource_metadata="{URL}", {header}')
    assert found is not None
    assert found.resource_metadata


@given(st.text(max_size=40))
def test_a_quoted_value_comes_back_whole(value: str) -> None:
    """H4: RFC 9110, 5.6.4: whatever stands within quotes, with backslashes before quotes and backslashes."""
    written = value.replace("\\", "\\\\").replace('"', '\\"')
    found = bearer(f'Bearer a="b", resource_metadata="{written}", error=x')
    assert found is not None
    assert (found.resource_metadata, found.error) == (value.strip(), "x")


@pytest.mark.parametrize("piece", ['a="', "a ", "a=", 'a="\\', "(", " =", "a    ", '"a', "a=b "])
def test_a_long_header_takes_no_long_time(piece: str) -> None:
    """SEC: a header of 64 kB is cut and read in linear time; the limit here is a hundred times what it takes."""
    began = time.monotonic()
    bearer("Bearer " + piece * (65_536 // len(piece)))
    assert time.monotonic() - began < 2
    assert bearer("Bearer " + "a=b, " * (LONGEST // 5) + "scope=late") == Challenge()
