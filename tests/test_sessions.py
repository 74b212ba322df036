"""Sessions on disk: what is written is there, whatever happens."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay import sessions as module
from toolbay.agent.context import validate
from toolbay.errors import ToolbayError
from toolbay.sessions import Session, Sessions
from toolbay.types import Artifact, Json, Message, Role, ToolCall

pytestmark = pytest.mark.anyio


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def says(text: str, *ids: str) -> Message:
    return Message(role=Role.ASSISTANT, text=text, calls=tuple(ToolCall(id=i, name="read", arguments={"n": 1}) for i in ids))


def result(call_id: str, text: str = "x") -> Message:
    return Message(role=Role.TOOL, text=text, call_id=call_id, name="read")


@pytest.fixture
def kept(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path / "sessions")


async def test_a_session_is_kept_and_resumed(kept: Sessions) -> None:
    """RUN-8: everything that a message holds comes back."""
    picture = Artifact(name="a.png", path=Path("/tmp/a.png"), media_type="image/png", size=3)
    messages = [
        user("Grüße\n\x00 \ud800 \u2028 🎉"),
        Message(
            role=Role.ASSISTANT,
            text="",
            calls=(ToolCall(id="1", name="a", arguments={"x": [1, None]}), ToolCall(id="2", name="b", arguments="{")),
        ),
        Message(role=Role.TOOL, text="one", call_id="1", name="a", artifacts=(picture,)),
        Message(role=Role.TOOL, text="no", call_id="2", name="b", is_error=True),
        says("Done."),
    ]
    session = kept.open()
    await session.append(messages[0])
    await session.append(*messages[1:])
    again = kept.open(session.id)
    assert list(again.messages) == messages
    await again.append(user("more"))
    assert list(kept.open(session.id).messages) == [*messages, user("more")]


async def test_files_are_private(kept: Sessions) -> None:
    """RUN-8: what was said is nobody else's."""
    kept.folder.mkdir(mode=0o755)
    session = kept.open()
    await session.append(user("secret"))
    assert stat.S_IMODE(session.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_opening_leaves_no_file_behind(kept: Sessions) -> None:
    """RUN-8: a session begins with its first message."""
    kept.open()
    assert not kept.folder.exists()
    assert kept.list() == []
    assert kept.latest() is None


async def test_a_crash_at_any_byte_loses_the_last_group_at_the_most(tmp_path: Path) -> None:
    """RUN-8: the file cut at every byte of its last two lines still loads, valid, repaired, and can be gone on with."""
    whole = Sessions(tmp_path / "whole").open("s")
    groups = [[user("one"), says("first")], [user("two"), says("", "a", "b")], [result("a"), result("b", "ä")]]
    for group in groups:
        await whole.append(*group)
    data = whole.path.read_bytes()
    lines = data.splitlines(keepends=True)
    cut = Sessions(tmp_path / "cut")
    cut.folder.mkdir()
    for length in range(len(lines[0]), len(data)):
        path = cut.folder / "s.jsonl"
        path.write_bytes(data[:length])
        session = cut.open("s")
        # A line is whole where only its end is missing.
        there = sum(length >= sum(map(len, lines[: n + 1])) - 1 for n in range(len(lines)))
        expected = [message for group in groups[:there] for message in group]
        assert list(session.messages)[: len(expected)] == expected
        assert validate(session.messages) == []
        added = list(session.messages)[len(expected) :]
        assert all("outcome is unknown" in message.text for message in added)
        assert len(added) == (2 if there == 2 else 0)
        assert path.read_bytes() == b"".join(lines[:there])
        await session.append(user("on"))
        assert list(cut.open("s").messages) == [*session.messages]
        assert validate(cut.open("s").messages) == []


async def test_a_line_that_cannot_be_read_costs_itself_only(kept: Sessions) -> None:
    """RUN-8: rot in the middle loses a group, not the session."""
    session = kept.open("s")
    await session.append(user("one"), says("", "a"))
    with session.path.open("ab") as file:
        file.write(
            b"\x00\xff rot\n[1]\n{}\n" + b'{"messages": [{"role": "robot", "text": ""}]}\n' + b'{"messages": [1]}\n' + b"[" * 9999 + b"\n"
        )
    await session.append(result("a"), says("two"))
    assert list(kept.open("s").messages) == [user("one"), says("", "a"), result("a"), says("two")]


async def test_many_at_once_keep_their_groups_together(kept: Sessions) -> None:
    """RUN-8: appends from many tasks; memory and disk agree."""
    session = kept.open("s")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(session.append, user(f"q{n}"), says(f"a{n}"))
    stored = list(kept.open("s").messages)
    assert stored == list(session.messages)
    assert all(stored[n + 1].text == "a" + stored[n].text[1:] for n in range(0, 100, 2))
    assert len(session.path.read_bytes().splitlines()) <= 50


async def test_a_cancelled_append_is_written_with_the_next(kept: Sessions) -> None:
    """RUN-8: what the conversation holds reaches the disk, in order."""
    session = kept.open("s")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await session.append(user("cancelled"))
    await session.append(says("on"))
    assert list(kept.open("s").messages) == [user("cancelled"), says("on")] == list(session.messages)


async def test_a_full_disk_is_a_sentence_and_leaves_the_file_whole(kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUN-8: half a line is taken back; when there is room again, all is written."""
    session = kept.open("s")
    await session.append(user("one"))
    before = session.path.read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", full)
        with pytest.raises(ToolbayError, match="No space left"):
            await session.append(says("two"))
    assert session.path.read_bytes() == before
    await session.append(user("three"))
    assert list(kept.open("s").messages) == [user("one"), says("two"), user("three")]


async def test_sessions_are_listed_newest_first(kept: Sessions) -> None:
    """RUN-8: with a title from the first words, and one that cannot be read left out."""
    for number, name in enumerate(["b", "a", "c"]):
        session = kept.open(name)
        await session.append(user(f"  Question {name}\nand " + "more " * 50), says("x"))
        os.utime(session.path, (number, number))
    (kept.folder / "folder.jsonl").mkdir()
    listed = kept.list()
    assert [info.id for info in listed] == ["c", "a", "b"] == [info.id for info in listed]
    assert kept.latest() == "c"
    assert listed[0].title.startswith("Question c and more")
    assert len(listed[0].title) <= 80
    assert (listed[0].size, listed[0].updated) == (kept.open("c").path.stat().st_size, 2.0)


async def test_a_list_reads_the_beginning_only_and_only_what_has_changed(kept: Sessions) -> None:
    """RUN-8: however long a conversation is, it costs a list nothing; a file that is as it was is not opened again."""
    session = kept.open("s")
    await session.append(user("Hello"))
    await session.append(says("x" * 1_000))
    whole = session.path.read_bytes()
    session.path.write_bytes(whole.partition(b"\n")[0] + b"\n" + b"\xff" * 1_000 + b"\n")
    assert [info.title for info in kept.list()] == ["Hello"]
    there = session.path.stat()
    session.path.write_bytes(b"y" * there.st_size)
    os.utime(session.path, ns=(there.st_atime_ns, there.st_mtime_ns))
    assert [info.title for info in kept.list()] == ["Hello"]
    session.path.write_bytes(whole.replace(b"Hello", b"Good day"))
    assert [(info.title, info.size) for info in kept.list()] == [("Good day", len(whole) + 3)]
    session.path.unlink()
    assert kept.list() == []


async def test_new_ids_sort_by_time_and_differ(kept: Sessions) -> None:
    """RUN-8: an id can be read and typed."""
    ids = [kept.open().id for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(kept.open(one).id == one for one in ids)
    assert [one[:8].isdigit() for one in ids] == [True] * 20


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "/etc/passwd", "x\n", "x\x00", "-x", ".x", "a" * 101, "ä", "c:x"])
def test_a_name_that_leaves_the_folder_is_refused(kept: Sessions, name: str) -> None:
    """RUN-8: for opening and for exporting."""
    with pytest.raises(ToolbayError, match="cannot be the name of a session"):
        kept.open(name)
    with pytest.raises(ToolbayError, match="cannot be the name of a session"):
        kept.export(name)


async def test_a_link_in_the_place_of_a_session_is_not_followed(kept: Sessions, tmp_path: Path) -> None:
    """RUN-8: what is written goes into the folder."""
    kept.folder.mkdir()
    target = tmp_path / "target"
    (kept.folder / "s.jsonl").symlink_to(target)
    session = Session("s", kept.folder / "s.jsonl", ())
    with pytest.raises(ToolbayError):
        await session.append(user("x"))
    assert not target.exists()


async def test_a_session_is_exported_for_people_and_for_programs(kept: Sessions) -> None:
    """RUN-8: Markdown that a tool's text cannot break out of, or JSON lines."""
    session = kept.open("s")
    await session.append(user("Read it."), says("Reading.", "1"), result("1", "```\n# not a heading\n````"), says("Done."))
    text = kept.export("s")
    assert text.startswith("# Session s\n")
    assert "`````text\n```\n# not a heading\n````\n`````" in text
    assert text.index("Read it.") < text.index("Calls **read**") < text.index("**read** answered") < text.index("Done.")
    lines = [json.loads(line) for line in kept.export("s", "jsonl").splitlines()]
    assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
    with pytest.raises(ToolbayError, match="There is no session"):
        kept.export("other")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1), st.dictionaries(st.text(), json_values) | st.text())
def test_any_text_and_any_arguments_come_back(text: str, arguments: Json | str) -> None:
    """RUN-8: what is encoded is decoded to the same."""
    messages = [user(text), Message(role=Role.ASSISTANT, text=text, calls=(ToolCall(id=text, name=text, arguments=arguments),))]
    line = module._encode(messages)
    assert line.count(b"\n") == 1
    assert module._decode(line) == messages
