"""Content blocks: what is taken out of them, and what a broken one costs."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.results import PNG, PNG64, png, shown, text
from toolbay.upstream import blocks
from toolbay.upstream.blocks import MAX_BASE64, Unreadable, decode
from toolbay.upstream.render import Blob, prompt_result, resource_result, tool_result


def test_content_that_is_no_list_is_read_all_the_same() -> None:
    """REN-6: a bare text or a single block costs nobody the result."""
    assert shown({"content": "bare"}) == "bare"
    assert shown({"content": text("single")}) == "single"


@pytest.mark.parametrize(
    "data",
    [
        PNG64.rstrip("="),
        "\n".join(PNG64[at : at + 76] for at in range(0, len(PNG64), 76)),
        PNG64.replace("+", "-").replace("/", "_"),
        f"data:image/png;base64,{PNG64}",
    ],
)
def test_base64_of_all_dialects_is_read(data: str) -> None:
    """REN-2: missing padding, line breaks, the URL-safe alphabet and a data URI are common and harmless."""
    assert tool_result({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}).parts == (Blob(PNG, "image/png", "image"),)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ({"type": "image", "data": "!!!"}, "[an image in this result could not be read: its base64 is damaged]"),
        ({"type": "image", "data": "AAAAA"}, "[an image in this result could not be read: its base64 is damaged]"),
        ({"type": "image", "data": "é" * 8}, "[an image in this result could not be read: its base64 is damaged]"),
        ({"type": "image"}, "[an image in this result could not be read: it holds no data]"),
        ({"type": "audio", "data": 7}, "[a sound in this result could not be read: it holds no data]"),
        ({"type": "text"}, "[a text in this result could not be read: it holds no text]"),
        ({"type": "resource", "resource": None}, "[a resource in this result could not be read: it is not an object]"),
        ({"type": "resource", "resource": {"uri": "x://y"}}, "[a resource in this result could not be read: it holds no data]"),
        ({"type": "resource_link", "name": "n"}, "[a resource link in this result could not be read: it holds no URI]"),
        ({"type": "hologram\n\x1b[1m"}, '[a piece of this result was left out: its type "hologram" is not known here]'),
        ({"type": 3}, "[a piece of this result was left out: it does not say its type]"),
        ("loose", "[a piece of this result could not be read: it is not an object]"),
        (None, "[a piece of this result could not be read: it is not an object]"),
    ],
)
def test_a_block_that_cannot_be_read_costs_only_itself(block: Any, why: str) -> None:
    """REN-6: one line says what is missing and why; the blocks around it stay, and the call is no error."""
    rendered = tool_result({"content": [text("before"), block, text("after")]})
    assert rendered.parts == ("before", why, "after")
    assert not rendered.is_error


def test_base64_beyond_the_limit_is_not_decoded() -> None:
    """REN-6: the size is judged before the work."""
    told = shown({"content": [text("here"), {"type": "image", "data": "A" * (MAX_BASE64 + 1)}]})
    assert told == "here\n[an image in this result could not be read: its base64 has 67,108,865 characters, the limit is 67,108,864]"


def test_resources_and_links_are_text_that_a_model_can_use() -> None:
    """REN-3: embedded text under its URI, a link on one line, binary contents as a file, text in base64 as text."""
    raw = {
        "content": [
            {"type": "resource", "resource": {"uri": "demo://a", "mimeType": "text/markdown", "text": "# A"}},
            {"type": "resource", "resource": {"uri": "demo://b", "mimeType": "image/png", "blob": PNG64}},
            {"type": "resource", "resource": {"uri": "demo://c", "blob": b64encode(b"plain").decode()}},
            {
                "type": "resource_link",
                "uri": "file:///etc/passwd",
                "name": "pass\nwd",
                "description": "all " + "x" * 900,
                "mimeType": "text/plain",
                "size": 2048,
            },
            {"type": "resource_link", "uri": "demo://bare"},
        ]
    }
    first, heading_c, *rest = [part for part in tool_result(raw).parts if isinstance(part, str) and not part.startswith("#")]
    assert first == "[resource demo://a (text/markdown)]"
    assert Blob(PNG, "image/png", "demo://b") in tool_result(raw).parts
    assert (heading_c, rest[0]) == ("[resource demo://c]", "plain")
    assert rest[1].startswith("[resource link: pass wd <file:///etc/passwd> (text/plain, 2 kB): all xxx")
    assert len(rest[1]) < 700
    assert rest[2] == "[resource link: <demo://bare>]"


def test_files_written_out_in_text_become_files() -> None:
    """REN-2: data URIs and bare base64 of pictures leave the text; long words, keys and hashes stay as they are."""
    raw = {"content": [text(f'<img src="data:image/png;base64,{PNG64}"> and <img src="data:image/png;base64,{PNG64}">')]}
    expected = '<img src="data:image/png;base64,(image/png: the file that follows)"> and <img src="data:image/png;base64,(the file above)">'
    assert tool_result(raw).parts == (expected, Blob(PNG, "image/png", "image"))
    for harmless in ("a" * 5000, "-" * 300, "0123456789abcdef" * 40, b64encode(bytes(range(256)) * 2).decode()):
        assert shown({"content": [text(harmless)]}) == harmless


def test_a_page_full_of_icons_is_not_a_gallery() -> None:
    """REN-2: after the first files of a text the rest is left out, and said to be."""
    page = " ".join(f"data:image/png;base64,{b64encode(png(number + 1)).decode()}" for number in range(40))
    parts = tool_result({"content": [text(page)]}).parts
    assert sum(isinstance(part, Blob) for part in parts) == 16
    assert str(parts[0]).count("left out") == 24


@pytest.mark.parametrize("width", [0, 76, 77])
def test_large_base64_is_read_piece_by_piece(width: int) -> None:
    """REN-2: wherever a piece ends, in the middle of four letters or at the end of a line."""
    data = png(padding=3_000_000)
    encoded = b64encode(data).decode()
    lines = "\r\n".join(encoded[at : at + width] for at in range(0, len(encoded), width)) if width else encoded
    assert decode(lines) == decode(lines.rstrip("=")) == data
    for damaged in (lines[: len(lines) // 2] + "=" + lines[len(lines) // 2 :], lines[:2_000_000] + "!" + lines[2_000_000:], "é" + lines):
        with pytest.raises(Unreadable, match="damaged"):
            decode(damaged)


def test_what_is_cut_to_a_length_is_masked_before() -> None:
    """SEC-33: the first half of a secret at the end of a cut name is found by nobody later."""
    secret = "s3cr3t-of-thirty-characters-long"

    def safe(text: str) -> str:
        return text.replace(secret, "***")

    for length in (150, 180, 199, 470, 490):
        told = "x" * length + secret + "y" * 500
        link = {"type": "resource_link", "uri": f"a://{told}", "name": told, "mimeType": told, "description": told, "title": told}
        inner = {"type": "resource", "resource": {"uri": told, "mimeType": told, "text": "t"}}
        picture = {"type": "resource", "resource": {"uri": told, "mimeType": told, "blob": PNG64}}
        parts = tool_result({"content": [link, inner, picture, {"type": told}]}, safe=safe).parts
        parts += resource_result({}, told, safe=safe).parts
        parts += prompt_result({"messages": [{"role": told}, {"role": told}]}, safe=safe).parts
        assert "s3cr3t" not in repr(parts)


@given(st.lists(st.one_of(st.text("aZ09+/_-=", min_size=90, max_size=210), st.text(max_size=3))).map("".join))
def test_no_run_is_missed_by_the_quick_look_for_one(text: str) -> None:
    """REN-2: what is not looked through has nothing in it that would be found."""
    assert blocks._may_hold_a_run(text) >= bool(blocks._RUN.search(text))
