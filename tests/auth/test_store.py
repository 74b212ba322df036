"""Where logins are kept: what two programs, a crash, a full disk and strange files do to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.logins import a_login
from support.processes import end_tree, eventually
from toolbay import testing
from toolbay.auth import store as module
from toolbay.auth.records import Login
from toolbay.auth.store import LIMIT, Damaged, Files, Memory, Store, canonical, key
from toolbay.config.models import ServerConfig
from toolbay.errors import ConfigError, LoginFailed

pytestmark = pytest.mark.anyio

KEY = key("s", ServerConfig.model_validate({"type": "streamableHttp", "url": "https://example.org/mcp"}))
OTHER = "0" * 64


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Files(tmp_path / "logins") if request.param == "files" else Memory()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "logins")


def path(tmp_path: Path) -> Path:
    return tmp_path / "logins" / f"{KEY}.json"


def put(tmp_path: Path, content: bytes) -> Path:
    """A file of ours that holds something else."""
    file = path(tmp_path)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)
    return file


def mode(file: Path) -> int:
    return stat.S_IMODE(file.lstat().st_mode)


async def test_what_was_saved_is_there_until_it_is_removed(store: Store) -> None:
    """G4: the record comes back as it was, each under its own key."""
    assert await store.load(KEY) is None
    await store.save(KEY, a_login())
    await store.save(OTHER, a_login(access="canary-other"))
    assert await store.load(KEY) == a_login()
    await store.save(KEY, a_login(tokens=None, ended="it was taken back"))
    assert await store.load(KEY) == a_login(tokens=None, ended="it was taken back")
    assert await store.remove(KEY)
    assert not await store.remove(KEY)
    assert await store.load(KEY) is None
    assert await store.load(OTHER) == a_login(access="canary-other")


async def test_who_is_cancelled_has_saved(store: Store) -> None:
    """H4: what an authorization server gave once it may not give twice."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.save(KEY, a_login())
    assert await store.load(KEY) == a_login()


async def test_files_are_for_their_owner_only_whatever_was_there_and_whatever_the_umask(tmp_path: Path, files: Files) -> None:
    """SEC: checklist, token storage: the folder 0700, the record and its lock 0600."""
    (tmp_path / "logins").mkdir(mode=0o777)
    (tmp_path / "logins").chmod(0o777)
    put(tmp_path, b"{}").chmod(0o666)
    before = os.umask(0)
    try:
        async with files.locked(KEY):
            await files.save(KEY, a_login())
        await Files(tmp_path / "more" / "logins").save(KEY, a_login())
    finally:
        os.umask(before)
    for folder in (tmp_path / "logins", tmp_path / "more" / "logins"):
        assert mode(folder) == 0o700
        assert {mode(file) for file in folder.iterdir()} == {0o600}
    assert sorted(file.suffix for file in (tmp_path / "logins").iterdir()) == [".json", ".lock"], "and nothing else is left"


async def test_all_that_is_kept_is_listed(store: Store, tmp_path: Path) -> None:
    """SEC: attack 11: what is listed can be ended; other files in the folder are none of it."""
    assert list(await store.keys()) == []
    await store.save(KEY, a_login())
    await store.save(OTHER, a_login())
    async with store.locked(KEY):
        pass
    if isinstance(store, Files):
        (tmp_path / "logins" / "notes.json").write_text("{}")
    assert sorted(await store.keys()) == sorted((KEY, OTHER))
    await store.remove(OTHER)
    assert list(await store.keys()) == [KEY]


async def test_a_record_that_others_may_read_is_read_and_made_private(tmp_path: Path, files: Files) -> None:
    """SEC: checklist, token storage: a copy that was put back with other permissions."""
    put(tmp_path, json.dumps(RECORD).encode()).chmod(0o644)
    assert await files.load(KEY) == a_login()
    assert mode(path(tmp_path)) == 0o600


def config(url: str, **more: Any) -> ServerConfig:
    return ServerConfig.model_validate({"type": "streamableHttp", "url": url, **more})


def test_a_key_tells_two_logins_apart_and_shows_nothing() -> None:
    """SEC: attack 10: another server, another address, another client or kind is another login; another spelling is not."""
    url = "https://example.org/mcp"
    same = [config(url), config("HTTPS://Example.ORG:443/mcp"), config(url, auth={"type": "oauth"}), config(f"{url}#there")]
    assert len({key("s", one) for one in same}) == 1
    others = [
        config("https://example.org/mcp2"),
        config("https://example.org/mcp?tenant=1"),
        config("https://example.org/MCP"),
        config("http://example.org/mcp"),
        config("https://example.org:444/mcp"),
        config("https://user@example.org/mcp"),
        config(url, auth={"client_id": "mine"}),
        config(url, auth={"type": "client_credentials", "client_id": "mine", "client_secret": "canary-secret"}),
    ]
    keys = [key("s", one) for one in (same[0], *others)] + [key("t", same[0]), key("s/", same[0])]
    assert len(set(keys)) == len(keys)
    assert {len(one) for one in keys} == {64}
    assert key("s", config(f"{url}/")) != key("s", config(url)), "a path is the server's own"
    assert key("s", config("https://example.org")) == key("s", config("https://example.org/"))


@given(st.one_of(st.text(), st.text().map("https://".__add__), st.from_regex(r"https?://[a-zA-Z.\[\]:@%0-9]{1,20}(:[0-9]{1,6})?(/\S*)?")))
def test_any_text_has_one_spelling(text: str) -> None:
    """SEC: attack 10: the spelling of a spelling is itself, and nothing raises."""
    assert canonical(canonical(text)) == canonical(text)
    assert len(key("s", config(text))) == 64


RECORD: dict[str, Any] = {"key": KEY, **a_login().as_json()}
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5), st.lists)
DAMAGES: dict[str, bytes] = {
    "empty": b"",
    "half": json.dumps(RECORD).encode()[:200],
    "of another version": json.dumps({**RECORD, "version": 99}).encode(),
    "a list": b"[]",
    "no text": b"\xff\xfe{}",
    "a token that is none": json.dumps({**RECORD, "tokens": {"access": 5}}).encode(),
    "a time beyond all numbers": json.dumps({**RECORD, "tokens": {**RECORD["tokens"], "ends_at": 10**400}}).encode(),
    "half a character": json.dumps({**RECORD, "client": {**RECORD["client"], "secret": "canary-\ud800"}}).encode(),
    "half a character in a list": json.dumps({**RECORD, "wanted": ["\ud800"]}).encode(),
    "another login's": json.dumps({**RECORD, "key": OTHER}).encode(),
    "nobody's": json.dumps(a_login().as_json()).encode(),
    "nested without end": b"[" * 100_000,
    "too large": json.dumps(RECORD).encode() + b" " * LIMIT,
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=list(DAMAGES))
async def test_a_damaged_record_is_told_and_left_until_another_login_replaces_it(content: bytes, tmp_path: Path, files: Files) -> None:
    """G4: a token file that is corrupt: which, why, what to do; nothing is guessed and nothing is lost."""
    file = put(tmp_path, content)
    with pytest.raises(Damaged) as caught:
        await files.load(KEY)
    assert str(file) in str(caught.value)
    assert "`toolbay login NAME`" in str(caught.value)
    assert "canary-" not in str(caught.value)
    assert caught.value.why
    assert file.read_bytes() == content
    await files.save(KEY, a_login())
    assert await files.load(KEY) == a_login()


async def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, files: Files) -> None:
    """G4: what is there stays, and who keeps it is told."""
    await files.save(KEY, a_login())
    with pytest.raises(ConfigError, match=r"cannot be kept: it has \d+ bytes") as caught:
        await files.save(KEY, a_login(ended="é" * LIMIT))
    assert "canary-" not in str(caught.value)
    assert await files.load(KEY) == a_login()


@given(st.one_of(st.binary(max_size=200), VALUES.map(json.dumps).map(str.encode)))
def test_no_content_of_a_file_breaks_its_reader(data: bytes) -> None:
    """G4: whatever stands in the file, it is no record."""
    _read(data)


@given(st.sampled_from(sorted(RECORD)), VALUES)
def test_a_record_with_one_field_that_is_wrong_is_none_or_still_one(field: str, value: object) -> None:
    """G4: a field of another kind is found; one that may be so comes back as it is."""
    found = _read(json.dumps({**RECORD, field: value}).encode())
    assert found is None or Login.from_json(json.loads(json.dumps(found.as_json()))) == found


def _read(data: bytes) -> Login | None:
    async def read() -> Login | None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"{KEY}.json").touch(mode=0o600)
            (Path(folder) / f"{KEY}.json").write_bytes(data)
            try:
                return await Files(Path(folder)).load(KEY)
            except Damaged:
                return None

    return anyio.run(read)


@contextmanager
def in_its_place(kind: str, file: Path, elsewhere: Path) -> Generator[None]:
    """Something that is no plain file of ours, where a record is expected."""
    file.parent.mkdir(mode=0o700)
    if kind == "a folder":
        file.mkdir()
    elif kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a link":
        elsewhere.write_text(json.dumps(RECORD))
        elsewhere.chmod(0o600)
        file.symlink_to(elsewhere)
    elif kind == "a link that leads nowhere":
        file.symlink_to(elsewhere)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            before = Path.cwd()
            os.chdir(file.parent)  # such names are short
            server.bind(file.name[-60:])
            os.chdir(before)
            (file.parent / file.name[-60:]).rename(file)
            yield
        return
    else:
        file.write_text(json.dumps(RECORD))
        file.chmod(0o666)
    yield


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link", "a link that leads nowhere", "a socket", "others may write it"])
async def test_what_is_no_file_of_ours_is_not_read_and_nothing_is_written_through_it(kind: str, tmp_path: Path, files: Files) -> None:
    """G4, SEC: attack 18: at once, without waiting for a pipe's other end; a new login takes its place, but for a folder."""
    with in_its_place(kind, path(tmp_path), tmp_path / "elsewhere"):
        with anyio.fail_after(10), pytest.raises(Damaged, match=r"no plain file|may write"):
            await files.load(KEY)
        if kind == "a folder":
            with pytest.raises(ConfigError, match="cannot be written"):
                await files.save(KEY, a_login())
            with pytest.raises(ConfigError, match="cannot be removed"):
                await files.remove(KEY)
            return
        await files.save(KEY, a_login(access="canary-new"))
        assert stat.S_ISREG(path(tmp_path).lstat().st_mode)
        assert mode(path(tmp_path)) == 0o600
        assert await files.load(KEY) == a_login(access="canary-new")
        assert (tmp_path / "elsewhere").exists() == (kind == "a link")
        assert kind != "a link" or (tmp_path / "elsewhere").read_text() == json.dumps(RECORD)


async def test_a_folder_that_cannot_be_is_told_in_a_sentence(tmp_path: Path) -> None:
    """G4: there is a file where the folder should be."""
    (tmp_path / "logins").write_text("")
    files = Files(tmp_path / "logins")
    for use in (lambda: files.save(KEY, a_login()), lambda: files.locked(KEY).__aenter__()):
        with pytest.raises(ConfigError, match="where logins are kept, cannot be used"):
            await use()
    assert files.stamp(KEY) is None


BEGIN = """
import asyncio, json, os, sys
from pathlib import Path
import anyio, filelock, anyio._backends._asyncio
from support.logins import a_login
from toolbay.auth.store import Files, Damaged
from toolbay.errors import ConfigError, LoginFailed
folder, key = Path(sys.argv[1]), sys.argv[2]
files = Files(folder)
"""
READ_ONLY = """
async def main():
    filelock.FileLock("/dev/null")
    if os.getuid() == 0:  # root may write everywhere
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
    assert (await files.load(key)).tokens.access == "canary-access"
    for use in (lambda: files.save(key, a_login()), lambda: files.remove(key), lambda: files.locked(key).__aenter__()):
        try:
            await use()
        except ConfigError as error:
            print(error)
anyio.run(main)
"""
FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
async def main():
    try:
        await files.save(key, a_login(access="canary-new" * 1000))
    except ConfigError as error:
        print(error)
anyio.run(main)
"""
HOLD = """
async def main():
    async with files.locked(key):
        print("in", flush=True)
        await anyio.sleep(600)
anyio.run(main)
"""
COUNT = """
async def main():
    for _ in range(40):
        async with files.locked(key):
            number = int((folder / "number").read_text())
            await anyio.sleep(0.001)
            (folder / "number").write_text(str(number + 1))
anyio.run(main)
"""
SAVE = """
anyio.run(files.save, key, a_login(access="canary-new"))
"""


def program(code: str, folder: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-c", BEGIN + code, str(folder), KEY]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


@contextmanager
def running(code: str, folder: Path) -> Generator[subprocess.Popen[str]]:
    process = program(code, folder)
    try:
        yield process
    finally:
        end_tree(process.pid)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def said(process: subprocess.Popen[str]) -> str:
    """All that it prints until it ends well."""
    out, _ = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 0
    return out


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are other ones there")
async def test_a_folder_that_may_only_be_read_is_read_and_told() -> None:
    """G4: a home that is read-only: the login counts, and what cannot be changed is said each time."""
    home = Path(tempfile.mkdtemp())
    try:
        await Files(home / "logins").save(KEY, a_login())
        if os.getuid() == 0:
            for one in (home, home / "logins", home / "logins" / f"{KEY}.json"):
                os.chown(one, 65534, 65534)
        (home / "logins").chmod(0o500)
        with running(READ_ONLY, home / "logins") as process:
            lines = (await said(process)).splitlines()
    finally:
        (home / "logins").chmod(0o700)
        shutil.rmtree(home)
    assert [next(word for word in ("written", "removed", "locked", "other") if word in line or word == "other") for line in lines] == [
        "written",
        "removed",
        "locked",
    ]
    assert all("Permission denied" in line and str(home) in line for line in lines)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
async def test_a_write_that_breaks_off_leaves_what_was_there(tmp_path: Path, files: Files) -> None:
    """G4: a full disk in the middle of a record: the old one stays whole, and nothing else stays."""
    await files.save(KEY, a_login())
    with running(FULL, tmp_path / "logins") as process:
        assert "cannot be written (File too large)" in await said(process)
    assert await files.load(KEY) == a_login()
    assert [file.name for file in (tmp_path / "logins").iterdir()] == [f"{KEY}.json"]


async def test_a_write_that_was_killed_leaves_nothing_for_long(tmp_path: Path, files: Files) -> None:
    """G4: what a killed program had begun is gone with the next record."""
    await files.save(KEY, a_login())
    (tmp_path / "logins" / f".{KEY}.json.abc.tmp").write_text("half of a record")
    await files.save(KEY, a_login())
    assert [file.name for file in (tmp_path / "logins").iterdir()] == [f"{KEY}.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_a_lock_holds_off_another_program_and_ends_with_who_held_it(tmp_path: Path, files: Files) -> None:
    """G4: two processes; the waiting one's loop goes on, other keys are free, and SIGKILL of the holder lets it in."""
    entered = anyio.Event()

    async def enter() -> None:
        async with files.locked(KEY):
            entered.set()

    with running(HOLD, tmp_path / "logins") as holder:
        assert holder.stdout is not None
        assert await anyio.to_thread.run_sync(holder.stdout.readline) == "in\n"
        async with anyio.create_task_group() as group:
            group.start_soon(enter)
            async with files.locked(OTHER):
                pass
            for _ in range(50):
                await anyio.sleep(module.PAUSE / 10)
            assert not entered.is_set()
            os.kill(holder.pid, signal.SIGKILL)
            await eventually(entered.is_set, "the lock")


async def test_two_programs_take_turns(tmp_path: Path, files: Files) -> None:
    """G4: what two processes do under the lock is done one after the other."""
    async with files.locked(KEY):
        (tmp_path / "logins" / "number").write_text("0")
    with running(COUNT, tmp_path / "logins") as one, running(COUNT, tmp_path / "logins") as other:
        await said(one)
        await said(other)
    assert (tmp_path / "logins" / "number").read_text() == "80"


async def test_tasks_of_one_program_take_turns(store: Store, tmp_path: Path) -> None:
    """G4: with one store, and with two on the same folder."""
    stores = [store, Files(tmp_path / "logins") if isinstance(store, Files) else store]
    within = most = 0

    async def work(one: Store) -> None:
        nonlocal within, most
        for _ in range(5):
            async with one.locked(KEY):
                within += 1
                most = max(most, within)
                await anyio.lowlevel.checkpoint()
                within -= 1

    async with anyio.create_task_group() as group:
        for one in stores * 3:
            group.start_soon(work, one)
    assert most == 1


async def test_who_waits_for_too_long_is_told_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4: a lock that is never given back costs an error that says so, and the next one can be had all the same."""
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    async with store.locked(KEY):
        with pytest.raises(LoginFailed, match="another program has been at work on the same login for") as caught:
            async with store.locked(KEY):
                pass
        assert caught.value.retriable
        with anyio.move_on_after(0.01):
            async with store.locked(KEY):
                pytest.fail("two are within")
    async with store.locked(KEY):
        pass


async def test_an_error_within_gives_the_lock_back(store: Store) -> None:
    """G4: whatever ends the block."""
    with pytest.raises(ValueError, match="within"):
        async with store.locked(KEY):
            raise ValueError("within")
    async with store.locked(KEY):
        pass


async def test_a_stamp_tells_that_another_program_has_logged_in_or_out(tmp_path: Path, files: Files) -> None:
    """G4: it changes with the record, by whomever, and with nothing else."""
    stamps = [files.stamp(KEY)]
    await files.save(KEY, a_login())
    stamps.append(files.stamp(KEY))
    with running(SAVE, tmp_path / "logins") as process:
        await said(process)
    stamps.append(files.stamp(KEY))
    assert await files.load(KEY) == a_login(access="canary-new")
    async with files.locked(KEY):
        pass
    await files.save(OTHER, a_login())
    assert files.stamp(KEY) == stamps[-1]
    for access in ("canary-one", "canary-two"):  # of one size
        await files.save(KEY, a_login(access=access))
        stamps.append(files.stamp(KEY))
    assert len(set(stamps)) == len(stamps)
    await files.remove(KEY)
    assert files.stamp(KEY) == stamps[0]


async def test_a_stamp_of_memory_tells_the_same() -> None:
    """G4: as files do."""
    memory = testing.MemoryLogins()
    stamps = [memory.stamp(KEY)]
    await memory.save(KEY, a_login())
    stamps.append(memory.stamp(KEY))
    await memory.save(OTHER, a_login())
    assert memory.stamp(KEY) == stamps[-1]
    await memory.remove(KEY)
    stamps.append(memory.stamp(KEY))
    assert len(set(stamps)) == len(stamps)
