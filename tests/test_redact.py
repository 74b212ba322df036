"""Text that is safe to show (CFG-8): what credentials look like, and every coat that a known secret can wear."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from secrets import token_hex
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay import _coats, _redact


def encoded(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


SECRETS = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters="*xyz.:", exclude_categories=["Cs"]),
    min_size=6,
    max_size=30,
)
AROUND = st.text(alphabet="xyz .:\n", max_size=10)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "OPENAI_API_KEY",
            "GITHUB_TOKEN",
            "PGPASSWORD",
            "MYSQL_PWD",
            "MYSQL_PASS",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "GH_PAT",
        ),
        *("authToken", "clientSecret", "apiKey", "access_token", "X-API-Key", "Authorization", "x-functions-key", "Proxy-Authorization"),
        *("Cookie", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_names_of_credentials_are_known(name: str) -> None:
    """CFG-8: in every way of writing."""
    assert _redact.looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "MAX_TOKENS",
        "TOKEN_LIMIT",
        "SSH_KEY_PATH",
        "KEYBOARD",
        "monkey",
        "author",
        "public_key",
        "DATABASE_URL",
        "TOKEN_URL",
        "",
        "_",
    ],
)
def test_names_of_other_things_are_left_alone(name: str) -> None:
    """CFG-8: what hides everything helps nobody."""
    assert not _redact.looks_secret(name)


@given(SECRETS, AROUND, AROUND)
def test_a_secret_is_hidden_in_every_coat(secret: str, before: str, after: str) -> None:
    """CFG-8: plain, URL-encoded, JSON-escaped, base64 alone and in the middle of a longer base64."""
    raw = secret.encode()
    coats = [
        secret, quote(secret, safe=""), quote(secret), quote_plus(secret), quote(secret, safe="").lower() if secret.islower() else secret,
        json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1],
        base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), base64.b64encode(raw).decode().rstrip("="),
    ]  # fmt: skip
    for coat in coats:
        assert _redact.mask(f"{before}{coat}{after}", [secret]) == f"{before}***{after}"


@given(st.binary(min_size=0, max_size=8), SECRETS, st.binary(min_size=0, max_size=8))
def test_a_secret_is_hidden_inside_a_longer_base64(before: bytes, secret: str, after: bytes) -> None:
    """CFG-8: `Basic` credentials hold a secret at any of three alignments; what remains does not give it back."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = _redact.mask(encode(before + secret.encode() + after).decode(), [secret])
        assert "***" in shown
        remains = "".join(part for part in shown.split("***"))
        assert len(remains) <= len(encode(before)) + len(encode(after)) + 4


@given(st.lists(SECRETS, max_size=4), st.text(max_size=40))
def test_no_secret_is_left_however_they_overlap(secrets: list[str], text: str) -> None:
    """CFG-8: one secret that is part of, or overlaps, another."""
    joined = text + "".join(secrets) + "".join(secret[:-2] for secret in secrets)
    shown = _redact.mask(joined, secrets)
    assert not [secret for secret in secrets if secret in shown]
    assert _redact.mask("abcdefghi", ["abcdef", "defghi"]) == "***"


def test_text_without_secrets_is_unchanged() -> None:
    """CFG-8: nothing to hide, nothing hidden."""
    assert _redact.mask("a text", []) == "a text"
    assert _redact.mask("a text", ["", "other-secret"]) == "a text"


def slowly_masked(text: str, secrets: list[str]) -> str:
    """As `mask`, character by character."""
    hidden = [False] * len(text)
    for form in {form for secret in secrets for form in _coats.forms(secret)}:
        for start in range(len(text) - len(form) + 1):
            if text[start : start + len(form)] == form:
                hidden[start : start + len(form)] = [True] * len(form)
    return re.sub("\0+", "***", "".join("\0" if hide else letter for letter, hide in zip(text, hidden, strict=True)))


@given(
    st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3), st.lists(st.text("abx", max_size=12), max_size=8), st.data()
)
def test_secrets_that_repeat_and_overlap_are_hidden_as_one_would_by_hand(secrets: list[str], texts: list[str], data: st.DataObject) -> None:
    """CFG-8: of few letters there are many occurrences, in one another and in rows."""
    rows = data.draw(st.lists(st.tuples(st.sampled_from(secrets), st.integers(1, 9)), max_size=4))
    text = "".join(texts) + "x".join(secret[: data.draw(st.integers(1, 9))] * times for secret, times in rows)
    assert _redact.mask(text, secrets) == slowly_masked(text, secrets)


class Counted(str):
    """A text that counts how often it is asked where something stands in it."""

    __slots__ = ()
    asked = 0

    def find(self, *args: Any) -> int:
        Counted.asked += 1
        return super().find(*args)

    def startswith(self, *args: Any) -> bool:
        Counted.asked += 1
        return super().startswith(*args)


@pytest.mark.parametrize(
    "token",
    ["A" * 20_000, "A" * 8, "Zk93hfAq8" * 2_000, "A" * 10_000 + "9" + "A" * 10_000, ("A" * 99 + "9") * 200],
)
def test_no_token_makes_a_text_cost_more_than_its_length(token: str) -> None:
    """SEC, OBS-2: whoever gives tokens chooses what is looked for, and whoever answers chooses where."""
    for text in ("A" * 200_000, token * (200_000 // len(token)), (token[:-1] + "A") * (200_000 // len(token))):
        Counted.asked = 0
        _redact.mask(Counted(text), [token])
        # Every question costs the length of the token at the most, and what it goes forward.
        assert Counted.asked * len(token) <= len(_coats.forms(token)) * (5 * len(text) + 50 * len(token))
    assert list(_coats.covered(token * 1000, token)) == [(0, 1000 * len(token))], "nor is there much to note"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h.com:8443/a/b?k=1#f", "https://h.com:8443/a/b?..."),
        ("https://h.com", "https://h.com"),
        ("https://h.com/", "https://h.com"),
        ("https://h.com/?k=1", "https://h.com?..."),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        (" http://h/x ", "http://h/x"),
        ("https://h/api/v1/mcp", "https://h/api/v1/mcp"),
        ("https://h/mcp/", "https://h/mcp/"),
        ("https://h/2025-11-25/streamableHttp/my-server.test_two", "https://h/2025-11-25/streamableHttp/my-server.test_two"),
        ("https://h/mcp/abc123def4567890abc123def4567890", "https://h/mcp/..."),
        ("https://h/s/Zk93hfAq82/mcp", "https://h/s/.../mcp"),
        ("https://h/s/Zk93hfAq82/4f8a9b2c/mcp", "https://h/s/.../mcp"),
        ("https://h/deadbeefdeadbeef/sse", "https://h/.../sse"),
        ("https://h/ZkhfAqBxTrWq", "https://h/..."),
        ("https://h/wqrtzpsdfghxk", "https://h/..."),
        ("https://h/SGVsbG8", "https://h/..."),
        ("https://h/api/token/hunter/mcp", "https://h/api/token/.../mcp"),
        ("https://h/a%2Fb/sk-proj-abcdefgh", "https://h/..."),
        ("https://h" + "/a" * 100, "https://h" + "/a" * 11 + "/..."),
        ("no address with secret", "***"),
        ("http://[bad", "***"),
        ("http://h:port/", "***"),
        ("", "***"),
    ],
)
def test_an_address_is_shown_with_the_plain_words_of_its_path(text: str, shown: str) -> None:
    """CFG-8, SEC-32: never userinfo or query, nor a part of the path that may be a key."""
    assert _redact.url(text) == shown


@given(st.text(alphabet="0123456789abcdef", min_size=16, max_size=64) | st.uuids().map(str) | st.binary(min_size=16).map(encoded))
def test_a_key_in_a_path_is_not_shown(key: str) -> None:
    """SEC-32: some services have their key in the path."""
    assert _redact.url(f"https://h/mcp/{key}/sse") == "https://h/mcp/.../sse"


@pytest.mark.parametrize(("text", "shown"), [("https://u:p@h/a?k=1", "https://h/..."), ("https://h/", "https://h"), ("a b", "***")])
def test_where_nobody_masks_an_address_is_its_origin(text: str, shown: str) -> None:
    """CFG-8: a library's log, a lock file."""
    assert _redact.origin(text) == shown


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--access-token", "abc", "x"], ["--access-token", "***", "x"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["--api-key=zzz"], ["--api-key=***"]),
        (["-e", "GITHUB_TOKEN=ghx", "-e", "PORT=1"], ["-e", "GITHUB_TOKEN=***", "-e", "PORT=1"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: ***"]),
        (["X-Api-Key:abc"], ["X-Api-Key:***"]),
        (["say Bearer abcdef.ghi now"], ["say Bearer *** now"]),
        (["redis://:pw@h:6379/0"], ["redis://:***@h:6379/0"]),
        (["postgresql://u:p%40w@h/db?sslmode=x"], ["postgresql://u:***@h/db?sslmode=x"]),
        (["https://h/mcp?apiKey=1&z=2"], ["https://h/mcp?apiKey=***&z=2"]),
        (["-uUSER", "-pPASS", "jdbc:mariadb://h/x"], ["-uUSER", "-p***", "jdbc:mariadb://h/x"]),
        (["-p", "8080:80", "-port"], ["-p", "8080:80", "-port"]),
        (["-c", "TOKEN='a b' npx --token yy z"], ["-c", "TOKEN='***' npx --token *** z"]),
        (["ghp_0123456789abcdef"], ["***"]),
        (["-y", "@scope/pkg@1.2", "C:\\path", "/a/key", "git+https://github.com/a/b.git@4.1"],) * 2,
    ],
)
def test_a_command_line_is_shown_without_its_credentials(args: list[str], shown: list[str]) -> None:
    """CFG-8: options, assignments, headers, addresses, tokens; the rest as it is."""
    assert _redact.argv(args) == shown


def test_what_a_command_line_hides_can_be_gathered() -> None:
    """CFG-8: so that it is masked elsewhere too."""
    assert _redact.credentials(["--token", "abc", "redis://:pw@h", "plain"]) == {"abc", "pw"}
    assert _redact.url_credentials("https://u:p%40w@h/?token=t1&x=2") == {"p%40w", "p@w", "t1"}


def test_headers_and_environments_are_shown_by_name_and_by_look() -> None:
    """CFG-8: a secret-looking name hides the value; so does a value that looks like one; of headers only harmless ones are shown."""
    assert _redact.headers({"Authorization": "Bearer x", "X-User": "me", "Accept": "text/html", "User-Agent": "https://u:p@h/"}) == {
        "Authorization": "***",
        "X-User": "***",
        "Accept": "text/html",
        "User-Agent": "https://u:***@h/",
    }
    assert _redact.env({"A_TOKEN": "x", "EMPTY_TOKEN": "", "DSN": "pg://u:p@h", "LANG": "C"}) == {
        "A_TOKEN": "***",
        "EMPTY_TOKEN": "",
        "DSN": "pg://u:***@h",
        "LANG": "C",
    }


SECRET = 'a "quoted" \\ secret'


def safe(text: str) -> str:
    return _redact.mask(text, [SECRET])


def test_every_text_of_a_value_is_masked_and_what_holds_no_secret_comes_back_as_it_is() -> None:
    """CAL-6, SEC-33: names too, also where a text is JSON that holds the secret; other values are not touched."""
    inner = json.dumps({"k": SECRET})
    value = {"a": [1, None, True, SECRET, {"b": f"x{SECRET}"}], SECRET: 2.5, "json": inner, "plain": "text"}
    assert _redact.redacted(value, safe) == {
        "a": [1, None, True, "***", {"b": "x***"}],
        "***": 2.5,
        "json": '{"k": "***"}',
        "plain": "text",
    }
    clean = {"a": ["b", {"c": 1}]}
    assert _redact.redacted(clean, safe) is clean


def test_a_large_value_is_looked_through_many_texts_at_a_time() -> None:
    """SEC-33: 300,000 rows cost no 600,000 searches; only the batch that holds a secret is looked at one by one."""
    asked: list[int] = []

    def counted(text: str) -> str:
        asked.append(len(text))
        return safe(text)

    rows = [{"id": number, "name": "x"} for number in range(50_000)]
    assert _redact.redacted(rows, counted) is rows
    assert len(asked) < 200
    rows[30_000]["name"] = SECRET
    masked = _redact.redacted(rows, counted)
    assert masked[30_000] == {"id": 30_000, "name": "***"}
    assert masked[:30_000] == rows[:30_000]
    assert len(asked) < 2_000


def test_what_was_a_secret_once_stays_one() -> None:
    """OBS-2: of configurations for good; of who gets other tokens all the time, the last ones, whatever others have."""
    secrets = _redact.Secrets({"of-the-start"})
    secrets.add({"of-a-reload"})
    tokens = [f"canary-token-{number}-{token_hex(16)}" for number in range(101)]
    for token in tokens[:100]:
        secrets.add_passing("one", {"canary-of-the-client-x7Kq92", token})
    secrets.add_passing("another", tokens[100:])
    assert secrets.mask("of-the-start, of-a-reload, canary-of-the-client-x7Kq92") == "***, ***, ***"
    assert secrets.mask(", ".join(tokens[i] for i in (99, 90, 100))) == "***, ***, ***"
    assert secrets.mask(tokens[10]) == tokens[10], "or a program that runs for a year would look for ten thousand"


def test_a_token_of_a_few_letters_hides_no_words() -> None:
    """OBS-2: whoever gives tokens could hide with one what other servers say."""
    secrets = _redact.Secrets()
    secrets.add_passing("one", {"e", "error"})
    assert secrets.mask("an error") == secrets.mask_of("one", "an error") == "an error"


@pytest.mark.parametrize(
    "token",
    [
        "https://",
        "function",
        "password",
        "a1B2c3D4e5F6",
        "https://bank.example/",
        "getUserByIdFromDatabase",
        "/usr/lib/python3.11/site-packages",
        "2026-01-01T00:00:00Z",
        "CONTENT_TYPE_JSON_ERROR",
        "12345678901234567890",
        "A" * 32_000,
    ],
)
def test_a_token_that_may_stand_in_any_text_is_hidden_in_its_owners_texts_only(token: str) -> None:
    """SEC, OBS-2: whoever gives tokens could hide with one what other servers say."""
    secrets = _redact.Secrets({"canary-configured"})
    secrets.add_passing("one", {token})
    said = f"see {token} and canary-configured"
    assert secrets.mask(said) == secrets.mask_of("another", said) == f"see {token} and ***"
    assert secrets.mask_of("one", said) == "see *** and ***"


@pytest.mark.parametrize(
    "token",
    [
        "gho_16C7e42F292c6912E7710c838347Ae178B4a",
        "eyJhbGciOiJSUzI1NiIsInR5cCI6ImF0K2p3dCJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "0e6f1c8a-41d7-4f0b-9c55-3f1d2ab8e901",
        *(encoded(hashlib.sha256(bytes([number])).digest()) for number in range(20)),
        *(hashlib.sha256(bytes([number])).hexdigest()[:40] for number in range(20)),
    ],
)
def test_a_token_as_they_are_given_is_hidden_in_all_texts(token: str) -> None:
    """OBS-2: also where a file server reads it from where logins are kept."""
    secrets = _redact.Secrets()
    secrets.add_passing("one", {token})
    assert secrets.mask(f"see {token}") == secrets.mask_of("another", f"see {token}") == "see ***"
