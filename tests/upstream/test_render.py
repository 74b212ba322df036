"""Raw answers of servers, as models are shown them."""

from __future__ import annotations

import errno
import json
import re
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.results import PNG, PNG64, png, shown, text
from toolbay._redact import mask
from toolbay.artifacts import Artifacts
from toolbay.types import Artifact, ToolResult
from toolbay.upstream.render import Blob, Rendered, prompt_result, resource_result, settle, tool_result

pytestmark = pytest.mark.anyio

ESCAPES = "\x1b[31m\x07\u202e\U000e0041"
LONG_BASE64 = re.compile(r"[A-Za-z0-9+/]{201}")


def _is_image(artifact: Artifact) -> bool:
    return artifact.media_type.startswith("image/")


@pytest.fixture
def store(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "artifacts", max_bytes=10_000_000, max_files=100, max_age_days=1)


class FullDisk:
    """A store on a disk that takes no more than `takes` bytes at once."""

    def __init__(self, inner: Artifacts, takes: int = 0) -> None:
        self.inner = inner
        self.takes = takes

    async def save(self, data: bytes, *, media_type: str = "") -> Artifact:
        if len(data) > self.takes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await self.inner.save(data, media_type=media_type)


async def test_results_of_real_servers_are_readable_and_bounded(shared_data: Path, store: Artifacts) -> None:
    """REN-1 to REN-4: what real servers answered, each under a narrow and the default budget."""
    counts = dict.fromkeys(("results", "errors", "images", "other files", "structured shown", "structured dropped", "shortened"), 0)
    for path in sorted((shared_data / "results").glob("*.json")):
        for call in json.loads(path.read_text())["calls"]:
            raw = call["response"].get("result")
            if raw is None:
                continue
            rendered = tool_result(raw)
            whole = await settle(rendered, store, budget=1_000_000)
            assert whole.text.strip()
            assert not LONG_BASE64.search(whole.text), path.name
            assert "serverInfo" not in whole.text
            assert "resultType" not in whole.text
            said = json.dumps(raw, ensure_ascii=False)
            for dump in ("{'", "TextContent(", "None,", "True,"):
                assert dump not in whole.text or dump in said, path.name
            for budget in (700, 16_000):
                assert len((await settle(rendered, store, budget=budget)).text) <= budget
            texts = sum(len(block.get("text", "")) for block in raw.get("content", []))
            counts["results"] += 1
            counts["errors"] += whole.is_error
            counts["images"] += sum(_is_image(artifact) for artifact in whole.artifacts)
            counts["other files"] += sum(not _is_image(artifact) for artifact in whole.artifacts)
            if "structuredContent" in raw:
                repeated = not whole.text.endswith("}") or len(whole.text) <= texts + 1
                counts["structured dropped" if repeated else "structured shown"] += 1
            counts["shortened"] += len(whole.text) > 16_000
    print(counts)
    assert counts["results"] > 100
    assert min(counts.values()) >= 1


def test_text_joins_by_newline_and_nothing_is_said_to_be_nothing() -> None:
    """REN-1: blocks join by newline; an empty, absent or blank content is `(no output)`; `isError` is an error."""
    assert shown({"content": [text("one"), text("two")]}) == "one\ntwo"
    for nothing in ({}, {"content": []}, {"content": None}, {"content": [text("")]}, {"content": [text(" \n")]}):
        assert shown(nothing) == "(no output)"
    assert tool_result({"content": [], "isError": True}) == Rendered(("(no output)",), is_error=True, structured=None)
    assert not tool_result({"content": [text("Error: it says")], "isError": False}).is_error


def test_an_answer_of_before_the_first_release_is_unwrapped() -> None:
    """REN-1: `toolResult` holds the result, or in the oldest form any value."""
    assert shown({"toolResult": {"content": [text("inner")]}}) == "inner"
    assert tool_result({"toolResult": {"content": [], "isError": True}}).is_error
    assert shown({"toolResult": {"answer": 42}}) == '{"answer": 42}'
    assert shown({"content": [text("outer")], "toolResult": {"content": [text("inner")]}}) == "outer"


@pytest.mark.parametrize("kind", ["image", "audio"])
async def test_files_are_stored_and_described_by_their_bytes(store: Artifacts, kind: str) -> None:
    """REN-2: path, kind, dimensions and size, in the place where the file was; the server's claim decides nothing."""
    raw = {"content": [text("before"), {"type": kind, "data": PNG64, "mimeType": "application/x-evil"}, text("after")]}
    result = await settle(tool_result(raw), store, budget=16_000)
    (artifact,) = result.artifacts
    assert artifact.path.read_bytes() == PNG
    assert _is_image(artifact)
    assert result.text == f"before\n[image saved: {artifact.path} (image/png, 640x480, 624 bytes)]\nafter"
    assert not result.is_error


async def test_a_picture_of_a_billion_pixels_is_not_kept(store: Artifacts) -> None:
    """REN-6: whoever shows it would have to decode it; its header is enough to refuse."""
    raw = {"content": [text("here"), {"type": "image", "data": b64encode(png(40_000, 40_000)).decode()}]}
    result = await settle(tool_result(raw), store, budget=16_000)
    assert result.artifacts == ()
    assert "40000x40000 pixels are more than 50,000,000" in result.text
    assert result.text.startswith("here\n")


def test_departures_from_the_output_schema_are_told_with_the_content() -> None:
    """REN-3: the content stays, the problems follow, bounded and clean."""
    problems = tuple(f"/field{number} is {ESCAPES}wrong {'x' * 900}" for number in range(9))
    told = shown({"content": [text("data")]}, output_problems=problems)
    assert told.startswith("data\n[this result does not match the tool's output schema: /field0 is wrong")
    assert told.endswith("; and 4 more]")
    assert len(told) < 2000


async def test_a_long_result_is_stored_whole_and_can_be_read_on(store: Artifacts) -> None:
    """REN-4: head, tail, sizes and the name; reading on from the offset that is named gives the rest, gapless."""
    whole = "".join(f"row {number}\n" for number in range(20_000))
    result = await settle(tool_result({"content": [text(whole)]}), store, budget=16_000)
    (artifact,) = result.artifacts
    assert artifact.path.read_text() == whole
    assert 15_900 <= len(result.text) <= 16_000
    head, notice, tail = re.split(r"\n(\[….*…\])\n", result.text)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert "read_artifact" in notice
    assert f'name="{artifact.name}", offset={len(head)}' in notice
    assert f"{len(whole) - len(head) - len(tail):,} of {len(whole):,} characters (20,001 lines)" in notice
    read_on = (await store.read(artifact.name, offset=len(head), length=50)).partition("\n")[2]
    assert whole[len(head) :].startswith(read_on)
    assert not result.is_error


async def test_a_result_that_just_fits_is_shown_whole(store: Artifacts) -> None:
    """REN-4: the budget itself is not over it."""
    result = await settle(tool_result({"content": [text("x" * 500)]}), store, budget=500)
    assert (result.text, result.artifacts) == ("x" * 500, ())
    over = await settle(tool_result({"content": [text("x" * 501)]}), store, budget=500)
    assert (len(over.text), len(over.artifacts)) == (500, 1)


async def test_a_full_disk_is_an_error_that_costs_only_the_file(store: Artifacts) -> None:
    """REN-5: the text stays, a line says what could not be kept and that the call went through."""
    raw = {"content": [text("answer"), {"type": "image", "data": PNG64}, text("more")]}
    result = await settle(tool_result(raw), FullDisk(store), budget=16_000)
    assert result == ToolResult(
        text="answer\n[image (image/png, 624 bytes) could not be saved: No space left on device; the call itself went through]\nmore",
        is_error=True,
    )
    long = await settle(tool_result({"content": [text("a" * 9000), {"type": "image", "data": PNG64}]}), FullDisk(store, 1000), budget=2000)
    assert long.is_error
    assert [_is_image(artifact) for artifact in long.artifacts] == [True]
    assert len(long.text) <= 2000
    assert "characters left out" in long.text
    assert long.text.endswith("[the whole result could not be saved: No space left on device; the call itself went through]")


async def test_nothing_hidden_reaches_the_model(store: Artifacts) -> None:
    """REN-7: in texts, names, URIs, roles, types and structures; and an escape cannot swallow the block that follows."""
    dirty = f"a{ESCAPES}b"
    resource = {"uri": dirty, "mimeType": dirty, "text": dirty}
    raw = {
        "content": [
            text(dirty),
            {"type": dirty},
            {"type": "resource", "resource": resource},
            {"type": "resource", "resource": {"uri": f"x://{dirty}", "blob": PNG64}},
            {"type": "resource_link", "uri": dirty, "name": dirty, "description": dirty},
            text("\x1b]0;open"),
            text("kept"),
            text("\x07end"),
        ],
        "structuredContent": {dirty: dirty, "other": "\U000e0041"},
    }
    results = [tool_result(raw), resource_result({"contents": [resource]}, "x"), resource_result({}, dirty)]
    results.append(prompt_result({"messages": [{"role": dirty, "content": text(dirty)}]}))
    for rendered in results:
        shown_text = (await settle(rendered, store, budget=16_000)).text
        assert not set(shown_text) & set("\x1b\x07\u202e\U000e0041")
        assert "ab" in shown_text
    assert "kept" in (await settle(results[0], store, budget=16_000)).text


def test_a_resource_is_its_text_and_a_part_of_another_bears_its_name() -> None:
    """REN-3: what was asked for needs no heading."""
    contents = [
        {"uri": "demo://a", "text": "A"},
        {"uri": "demo://a/b", "mimeType": "text/plain", "text": "B"},
        {"uri": "demo://c", "blob": "?"},
        5,
    ]
    assert resource_result({"contents": contents}, "demo://a").parts == (
        "A",
        "[resource demo://a/b (text/plain)]",
        "B",
        "[a piece of this resource could not be read: its base64 is damaged]",
        "[a piece of this resource could not be read: it is not an object]",
    )
    assert resource_result({"contents": []}, "demo://a") == Rendered(("(no output)",), is_error=False, structured=None)


def test_a_prompt_is_its_messages_under_their_roles() -> None:
    """REN-1: roles are shown, one message after the other; a file follows its role."""
    messages = [
        {"role": "user", "content": text("Hi")},
        {"role": "assistant", "content": [text("Hello"), {"type": "image", "data": PNG64, "mimeType": "image/png"}]},
        {"role": "user", "content": {"type": "image", "data": PNG64, "mimeType": "image/png"}},
        {"content": "bare"},
        "broken",
    ]
    picture = Blob(PNG, "image/png", "image")
    expected = ("user: Hi", "assistant: Hello", picture, "user:", picture, "unknown: bare", "unknown: (no output)")
    assert prompt_result({"messages": messages}).parts == expected


@pytest.mark.parametrize("answer", [{}, {"contents": None}, {"contents": "x"}, {"messages": 3}, [], None])
def test_an_answer_without_what_was_asked_for_is_an_error(answer: Any) -> None:
    """CAL-7: failures of resources and prompts are failures too."""
    assert resource_result(answer, "demo://a").is_error
    assert prompt_result(answer).is_error
    assert resource_result({"contents": [], "isError": True}, "demo://a").is_error
    assert prompt_result({"messages": [], "isError": True}).is_error


KEYS = st.sampled_from(
    [
        "type",
        "text",
        "data",
        "mimeType",
        "resource",
        "uri",
        "blob",
        "content",
        "contents",
        "messages",
        "role",
        "structuredContent",
        "isError",
        "result",
        "toolResult",
        "name",
        "size",
        "_meta",
        "x",
    ]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["text", "image", "audio", "resource", "resource_link", PNG64, PNG64[:301], "data:image/png;base64," + PNG64]),
)
ANYTHING = st.recursive(
    VALUES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=12
)


@settings(max_examples=400)
@given(st.dictionaries(KEYS, ANYTHING, max_size=6) | ANYTHING)
def test_no_answer_is_too_strange(answer: Any) -> None:
    """REN-6: whatever JSON a server sends, there is something to show, and no base64 in its text."""
    for rendered in (tool_result(answer), resource_result(answer, "x://y"), prompt_result(answer)):
        assert rendered.parts
        for part in rendered.parts:
            if isinstance(part, str):
                assert part.strip()
                assert PNG64 not in part


def test_a_prompt_of_one_message_of_the_user_is_shown_without_a_role() -> None:
    """RUN-9: what a person puts into a conversation as a slash command is the text itself."""
    told = {"messages": [{"role": "user", "content": {"type": "text", "text": "Review this."}}]}
    assert prompt_result(told).parts == ("Review this.",)
    told["messages"][0]["role"] = "assistant"
    assert prompt_result(told).parts == ("assistant: Review this.",)


SECRET = "sup3rs3cr3t-token-value-0123456789"


def masked(text: str) -> str:
    return mask(text, [SECRET])


@pytest.mark.parametrize("place", [*range(500, 640, 7), *range(930, 1_000, 7), 5_000])
async def test_secrets_are_gone_before_a_result_is_stored_or_cut(store: Artifacts, place: int) -> None:
    """CAL-6, SEC-33: neither the file of the whole nor the two ends of a cut text hold a piece of one."""
    whole = "x" * place + SECRET + "y" * 10_000
    result = await settle(tool_result({"content": [text(whole)]}), store, budget=1_000, safe=masked)
    kept = result.artifacts[0].path.read_text()
    assert kept == "x" * place + "***" + "y" * 10_000
    assert not [piece for piece in (SECRET[:6], SECRET[-6:]) if piece in result.text + kept]


async def test_secrets_are_gone_from_structures_and_from_files_that_are_text(store: Artifacts) -> None:
    """CAL-6, SEC-33: in whatever part of a result a server hides them."""
    raw = {
        "content": [
            {"type": "resource", "resource": {"uri": f"a://{SECRET}", "blob": b64encode(f"KEY={SECRET}".encode()).decode()}},
            {"type": "image", "data": b64encode(f"KEY={SECRET}".encode()).decode()},
            text(f"data:text/csv;base64,{b64encode(f'KEY={SECRET},'.encode() * 20).decode()}"),
            {"type": "resource", "resource": {"uri": f"a://{SECRET}/picture", "blob": PNG64}},
        ],
        "structuredContent": {"k": [SECRET], SECRET: 1, "deep": {"json": json.dumps(SECRET)}},
    }
    for safe, secret_is_there in ((masked, False), (str, True)):
        result = await settle(tool_result(raw, safe=safe), store, budget=16_000, safe=safe)
        told = repr(result) + "".join(artifact.path.read_bytes().decode("latin-1") for artifact in result.artifacts)
        assert (SECRET in told) == secret_is_there
        assert len(result.artifacts) == 3
    assert result.structured == raw["structuredContent"]


@pytest.mark.parametrize(
    "raw",
    [
        {"content": [text("line of text é\n" * 30_000)]},
        {"content": [{"type": "resource", "resource": {"uri": "a://b", "blob": b64encode(b"plain text " * 40_000).decode()}}]},
        {"content": [], "structuredContent": [{"id": number} for number in range(20_000)]},
    ],
    ids=["text", "file", "structure"],
)
async def test_the_event_loop_does_not_wait_for_a_large_result(store: Artifacts, raw: Any) -> None:
    """REN-4, SEC-20: it is masked in another thread; a small one is not worth the way."""
    threads: list[int] = []

    def safe(text: str) -> str:
        if len(text) > 5_000:
            threads.append(threading.get_ident())
        return text

    await settle(tool_result(raw), store, budget=100_000_000, safe=safe)
    assert threads
    assert threading.get_ident() not in threads
    threads.clear()
    await settle(tool_result({"content": [text("x" * 6_000)]}), store, budget=16_000, safe=safe)
    assert set(threads) == {threading.get_ident()}
