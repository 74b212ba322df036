"""The folder of artifacts, on a real disk."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from toolbay import artifacts as rooms
from toolbay.artifacts import Artifacts, tools
from toolbay.types import Artifact, CallContext, Kind

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4) + (480).to_bytes(4) + bytes(9)
CONTEXT = CallContext(call_id="1")


def store(folder: Path, *, max_bytes: int = 1_000_000, max_files: int = 100, max_age_days: float = 30) -> Artifacts:
    return Artifacts(folder, max_bytes=max_bytes, max_files=max_files, max_age_days=max_age_days)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def age(artifact: Artifact, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(artifact.path, (then, then))


async def test_a_file_is_stored_privately_under_a_name_of_ours(tmp_path: Path) -> None:
    """REN-5: folder 0700, file 0600, a name that sorts by time, the kind from the bytes and not from the claim."""
    folder = tmp_path / "deep" / "artifacts"
    artifact = await store(folder).save(PNG, media_type="text/html; ../../evil")
    assert artifact.path == folder / artifact.name
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{12}\.png", artifact.name)
    assert (artifact.media_type, artifact.size, artifact.path.read_bytes()) == ("image/png", len(PNG), PNG)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(artifact.path.stat().st_mode) == 0o600
    assert names(folder) == {artifact.name}


async def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    """REN-5: an existing folder is made private too."""
    tmp_path.chmod(0o755)
    await store(tmp_path).save(b"x")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


async def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """REN-5: nothing is written through a symbolic link."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(OSError, match="is a link"):
        await store(tmp_path / "link").save(b"x")
    assert names(real) == set()


async def test_the_oldest_files_make_room_by_count_and_by_bytes(tmp_path: Path) -> None:
    """REN-5: quotas hold after every save, and what was just written is never what goes."""
    for quota in ({"max_files": 3}, {"max_bytes": 30}):
        folder = tmp_path / next(iter(quota))
        artifacts = store(folder, **quota)
        saved = [await artifacts.save(b"0123456789") for _ in range(3)]
        for back, artifact in zip((30, 10, 20), saved, strict=True):
            age(artifact, back)
        newest = await artifacts.save(b"abcdefghij")
        assert names(folder) == {saved[1].name, saved[2].name, newest.name}
        bigger = await store(folder, max_bytes=30).save(b"x" * 25)
        assert names(folder) == {bigger.name}


async def test_a_file_of_the_future_does_not_outlive_the_one_just_written(tmp_path: Path) -> None:
    """REN-5: a clock that jumped back must not cost the file that a model is about to be told of."""
    artifacts = store(tmp_path / "a", max_files=1)
    future = await artifacts.save(b"old")
    age(future, -1000)
    newest = await artifacts.save(b"new")
    assert names(tmp_path / "a") == {newest.name}


async def test_old_files_go_and_strangers_stay(tmp_path: Path) -> None:
    """REN-5: age is a quota; a file that is not ours is neither removed nor counted; an abandoned write is cleared away."""
    folder = tmp_path / "a"
    artifacts = store(folder, max_files=2, max_age_days=1)
    old = await artifacts.save(b"old")
    age(old, 90_000)
    stranger = folder / "notes.txt"
    stranger.write_text("mine")
    abandoned, running = folder / f".{old.name}.part", folder / ".20200101-000000-aaaaaaaaaaaa.txt.part"
    abandoned.write_text("half")
    running.write_text("half")
    os.utime(abandoned, (1, 1))
    os.utime(stranger, (1, 1))
    new = await artifacts.save(b"new")
    assert names(folder) == {new.name, stranger.name, running.name}


async def test_a_file_over_the_whole_quota_is_refused_and_nothing_else_goes(tmp_path: Path) -> None:
    """REN-5: what could never be kept is not written at all."""
    artifacts = store(tmp_path / "a", max_bytes=10)
    kept = await artifacts.save(b"small")
    with pytest.raises(OSError, match="more than all artifacts"):
        await artifacts.save(b"x" * 11)
    assert names(tmp_path / "a") == {kept.name}


async def test_many_saves_at_once_all_succeed(tmp_path: Path) -> None:
    """REN-5: parallel calls, two stores on one folder, quotas that bite: every save has its own name and content."""
    stores = [store(tmp_path / "a", max_files=10) for _ in range(2)]
    saved: list[Artifact] = []

    async def save(number: int) -> None:
        saved.append(await stores[number % 2].save(f"{number}".encode()))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(save, number)
    assert len({artifact.name for artifact in saved}) == 60
    last = await stores[0].save(b"last")
    left = names(tmp_path / "a")
    assert last.name in left
    assert len(left) == 10


FULL_DISK = """
import resource, sys, os, anyio
from pathlib import Path
from toolbay.artifacts import Artifacts
folder = Path(sys.argv[1])
async def main():
    artifacts = Artifacts(folder, max_bytes=10**9, max_files=9, max_age_days=1)
    await artifacts.save(b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        await artifacts.save(b"x" * 1_000_000)
    except OSError as problem:
        print("refused", problem.errno is not None)
    print(len(os.listdir(folder)))
    await artifacts.save(b"after")
    print(len(os.listdir(folder)))
anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is POSIX")
async def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """REN-5: the kernel refuses in the middle of a write: an OSError, no half file, and the next save works."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = await anyio.run_process([sys.executable, "-c", FULL_DISK, str(tmp_path / "a")], env=environment, stderr=subprocess.STDOUT)
    assert ran.stdout.decode().split() == ["refused", "True", "1", "2"]


async def test_text_is_read_by_characters_and_says_how_to_go_on(tmp_path: Path) -> None:
    """REN-4: pieces, put together by their offsets, are the whole; the heading names the next offset and the end."""
    artifacts = store(tmp_path / "a")
    text = "".join(f"line {number}: äöü €\n" for number in range(2000))
    name = (await artifacts.save(text.encode())).name
    pieces, offset = "", 0
    while True:
        head, _, piece = (await artifacts.read(name, offset=offset, length=7000)).partition("\n")
        pieces += piece
        onward = re.search(r"next piece begins at offset (\d+)", head)
        if onward is None:
            assert head.endswith(f"of {len(text)}; this is the end]")
            break
        offset = int(onward[1])
    assert pieces == text
    assert len(await artifacts.read(name, length=10**9)) < 16_000


async def test_search_gives_places_with_offsets_that_can_be_read(tmp_path: Path) -> None:
    """REN-4: case does not matter, every place has its line and offset, and more than are shown can be searched on."""
    artifacts = store(tmp_path / "a")
    text = "İ start\n" + "".join(f"{'NEEDLE' if number % 10 == 0 else 'hay'} {number}\n" for number in range(1000))
    name = (await artifacts.save(text.encode())).name
    found: list[int] = []
    offset = 0
    while True:
        head, *places = (await artifacts.read(name, search="needle", offset=offset)).splitlines()
        assert all(re.fullmatch(r"offset \d+, line \d+: NEEDLE \d+", place) for place in places)
        found += [int(place.split(",")[0].removeprefix("offset ")) for place in places]
        onward = re.search(r"search again with offset (\d+)", head)
        if onward is None:
            break
        offset = int(onward[1])
    assert found == [at.start() for at in re.finditer("NEEDLE", text)]
    assert "line 22:" in await artifacts.read(name, search="needle 20")
    assert "does not occur" in await artifacts.read(name, search="(.*)")
    assert (await artifacts.read(name, offset=found[3], length=9)).endswith("NEEDLE 30")


async def test_search_in_one_endless_line_is_bounded(tmp_path: Path) -> None:
    """REN-4: minified JSON has one line; what is shown around a match is a piece of it."""
    artifacts = store(tmp_path / "a")
    name = (await artifacts.save(b"[" + b'"abc",' * 100_000 + b"1]")).name
    shown = await artifacts.read(name, search="abc")
    assert len(shown) < 16_000
    assert "search again" in shown


async def test_search_folds_every_letter_to_one_letter() -> None:
    """REN-4: offsets are of the text as it is, so no letter may grow when its case is folded."""
    assert all(len(rooms._fold(chr(code))) == 1 for code in range(0x110000))


async def test_what_is_read_is_clean(tmp_path: Path) -> None:
    """REN-7: a stored file may hold escapes; what a model reads of it does not."""
    artifacts = store(tmp_path / "a")
    name = (await artifacts.save(b"\x1b[31mred\x1b[0m \xe2\x80\xae")).name
    assert (await artifacts.read(name)).endswith("\nred ")
    assert "\x1b" not in await artifacts.read(name, search="red")


async def test_bytes_that_are_no_text_are_described(tmp_path: Path) -> None:
    """REN-2: a picture is not read as text; the answer says what and where it is."""
    artifacts = store(tmp_path / "a")
    saved = await artifacts.save(PNG)
    assert await artifacts.read(saved.name) == f"{saved.name} is not text but image/png, 640x480, 33 bytes; it is stored at {saved.path}."


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../secret",
        "/etc/passwd",
        "notes.txt",
        "20200101-000000-aaaaaaaaaaaa.txt/../../notes.txt",
        "20200101-000000-aaaaaaaaaaaa.txt\n",
        "\x00",
    ],
)
async def test_only_names_of_ours_are_read(tmp_path: Path, name: str) -> None:
    """REN-5: no path, no other file, and a sentence that says which names there are."""
    (tmp_path / "notes.txt").write_text("secret")
    with pytest.raises(ValueError, match="not the name of an artifact") as caught:
        await store(tmp_path).read(name)
    assert "\n" not in str(caught.value)


async def test_links_folders_and_pipes_under_our_names_are_not_read(tmp_path: Path) -> None:
    """REN-5: a name of ours that is not a file of ours gives nothing, and nothing hangs."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link, folder, pipe = (f"20200101-000000-aaaaaaaaaaa{number}.txt" for number in range(3))
    (tmp_path / link).symlink_to(secret)
    (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / pipe)
    artifacts = store(tmp_path)
    with anyio.fail_after(10):
        for name in (link, folder, pipe):
            with pytest.raises((OSError, ValueError)) as caught:
                await artifacts.read(name)
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("offset", "length", "why"), [(-1, 5, "offset must"), (0, 0, "length"), (99, 5, "behind the end")])
async def test_an_offset_that_makes_no_sense_is_explained(tmp_path: Path, offset: int, length: int, why: str) -> None:
    """REN-4: the model is told what is wrong with its arguments."""
    artifacts = store(tmp_path / "a")
    name = (await artifacts.save(b"short")).name
    with pytest.raises(ValueError, match=why):
        await artifacts.read(name, offset=offset, length=length)


async def test_the_tool_reads_and_its_failures_are_results(tmp_path: Path) -> None:
    """REN-4: `read_artifact` is a read-only built-in tool; a missing or unreadable file is an error result, not an exception."""
    artifacts = store(tmp_path / "a")
    saved = await artifacts.save(b"hello world")
    (tool,) = tools(artifacts)
    assert (tool.name, tool.kind, tool.hints.read_only, tool.hints.destructive) == ("read_artifact", Kind.BUILTIN, True, False)
    assert set(tool.input_schema["properties"]) == {"name", "offset", "length", "search"}
    read = await tool.invoke({"name": saved.name, "offset": 6}, CONTEXT)
    assert (read.text.splitlines()[-1], read.is_error) == ("world", False)
    saved.path.unlink()
    gone = await tool.invoke({"name": saved.name}, CONTEXT)
    assert gone.is_error
    assert "call the tool again" in gone.text
    saved.path.symlink_to(tmp_path)
    blocked = await tool.invoke({"name": saved.name}, CONTEXT)
    assert blocked.is_error
    assert "cannot be read" in blocked.text
