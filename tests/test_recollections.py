"""What is remembered of servers: for whom, for how long, and what never is."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import servers
from support.processes import eventually
from toolbay import recollections
from toolbay._redact import Secrets, mask
from toolbay.config.models import LoginConfig, ServerConfig
from toolbay.recollections import MAX_AGE, MAX_BYTES, MAX_FILES, Folder, Recollection, Recollections
from toolbay.reconcile import TOOLS
from toolbay.upstream.engine import ServerInfo, fresh_for
from toolbay.upstream.listing import Listing

LISTING = Listing(tools=({"name": "echo", "description": "Says it back.", "inputSchema": {"type": "object"}},), complaints=("one",))
INFO = ServerInfo(name="s", version="1", protocol="2025-11-25", instructions="Be kind.", capabilities={"tools": {}})
HTTP = ServerConfig.model_validate(
    {"type": "streamableHttp", "url": "https://example.org/mcp", "headers": {"Authorization": "canary-token"}}
)


def local(**more: Any) -> ServerConfig:
    return servers.config(servers.stdio(sys.executable, "server.py"), **more)


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Folder:
    return Folder(tmp_path / "listings", environ={"HOME": "/home/ann", "PATH": os.environ["PATH"], "TOKEN": "t1"}, now=clock)


def files(path: Path) -> list[Path]:
    return sorted((path / "listings").glob("*.json"))


def test_what_a_server_listed_is_there_again_as_it_was(folder: Folder, clock: Clock) -> None:
    """LIF-6: the listing and what the server says of itself, to another run."""
    assert folder.recall(HTTP) is None
    folder.keep(HTTP, LISTING, INFO)
    clock.now += 3600
    assert folder.recall(HTTP) == Recollection(listing=LISTING, info=INFO, received=1_000_000.0)


@pytest.mark.parametrize(
    "other",
    [
        local(env={"TOKEN": "other"}),
        local(args=("server.py", "--more")),
        local(roots=("/srv",)),
        local(protocol_version="legacy"),
        local(cwd="/"),
        HTTP,
        HTTP.model_copy(update={"headers": {"Authorization": "canary-other"}}),
        HTTP.model_copy(update={"url": "https://example.org/mcp?key=1"}),
        HTTP.model_copy(update={"auth": LoginConfig(client_id="bob")}),
    ],
)
def test_another_connection_is_another_server(folder: Folder, other: ServerConfig) -> None:
    """LIF-6, security.md 26: the signature is all that a connection is made with, credentials included."""
    mine = HTTP.model_copy(update={"headers": {}}) if other is HTTP else HTTP if other.url else local()
    folder.keep(mine, LISTING, INFO)
    assert folder.recall(mine) is not None
    assert folder.recall(other) is None


@pytest.mark.parametrize(
    "changed",
    [{"HOME": "/home/bob"}, {"TOKEN": "t2"}, {"PATH": "{folder}:{PATH}"}],
    ids=["another person", "a variable that it inherits", "another program of that name"],
)
def test_what_a_stdio_server_gets_from_around_it_tells_it_from_others(tmp_path: Path, changed: dict[str, str]) -> None:
    """LIF-6: an inherited variable, the person, and the program that the command's name means here."""
    (tmp_path / "bin").mkdir()
    for place in (tmp_path / "bin" / "launcher", tmp_path / "launcher"):
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    environ = {"HOME": "/home/ann", "TOKEN": "t1", "PATH": str(tmp_path / "bin")}
    config = servers.config(servers.stdio("launcher", "some-package"), inherit_env=("TOKEN",))
    Folder(tmp_path / "listings", environ=environ).keep(config, LISTING, INFO)
    other = {**environ, **{name: value.format(folder=tmp_path, PATH=environ["PATH"]) for name, value in changed.items()}}
    assert Folder(tmp_path / "listings", environ={**environ, "TERM": "dumb"}).recall(config) is not None
    assert Folder(tmp_path / "listings", environ=other).recall(config) is None


def test_the_folder_that_a_server_runs_in_tells_it_from_others(tmp_path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-6: `args: [.]` is another server in another folder."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    folder.keep(local(), LISTING, INFO)
    monkeypatch.chdir(tmp_path / "a")
    assert folder.recall(local()) is None
    assert folder.recall(local(cwd=str(tmp_path))) is None  # as its entry has it, it is another one
    monkeypatch.chdir(tmp_path)
    assert folder.recall(local()) is not None


def test_what_is_done_with_the_tools_does_not_matter(folder: Folder) -> None:
    """LIF-6: filters, timeouts and the like are applied to what is remembered as to what is listed."""
    plain = local()
    folder.keep(plain, LISTING, INFO)
    changed = plain.model_copy(update={"tool_timeout": 1.0, "enabled_tools": ("x",), "approval": "always", "description": "other"})
    assert {"tool_timeout", "enabled_tools", "approval", "description"} <= TOOLS
    assert folder.recall(changed) is not None


def test_a_command_that_is_not_there_is_neither_known_nor_kept(tmp_path: Path, folder: Folder) -> None:
    """LIF-6: what cannot be launched has no signature."""
    missing = servers.config(servers.stdio("no-such-command"))
    folder.keep(missing, LISTING, INFO)
    folder.forget(missing)
    assert folder.recall(missing) is None
    assert files(tmp_path) == []


@pytest.mark.parametrize(("listed", "said"), [(60.0, None), (None, 60.0), (3600.0, 60.0), (60.0, 1e9)])
def test_what_its_server_lets_count_for_a_while_counts_no_longer(folder: Folder, clock: Clock, listed: float, said: float) -> None:
    """LIF-6, 2026-07-28 caching: `ttlMs` of the lists and of server/discover, whichever is less."""
    folder.keep(HTTP, replace(LISTING, fresh_for=listed), replace(INFO, fresh_for=said))
    clock.now += 59.9
    assert folder.recall(HTTP) is not None
    clock.now += 0.1
    assert folder.recall(HTTP) is None


def test_what_is_stale_at_once_is_not_kept(tmp_path: Path, folder: Folder) -> None:
    """2026-07-28 caching: `ttlMs` 0; and what was kept of a server before it said so goes."""
    folder.keep(HTTP, LISTING, INFO)
    folder.keep(HTTP, replace(LISTING, fresh_for=0.0), INFO)
    assert files(tmp_path) == []


@pytest.mark.parametrize("later", [MAX_AGE, -1.0])
def test_what_nobody_limits_counts_for_thirty_days(folder: Folder, clock: Clock, later: float) -> None:
    """LIF-6: our own limit; and what comes from the future has no age that anybody knows."""
    folder.keep(HTTP, LISTING, INFO)
    clock.now += later
    assert folder.recall(HTTP) is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [({}, None), ({"ttlMs": 1500}, 1.5), ({"ttlMs": 0}, 0), ({"ttlMs": -5}, 0), ({"ttlMs": "9"}, None), ({"ttlMs": True}, None)],
)
def test_how_long_a_result_is_fresh_is_read_leniently(said: dict[str, Any], seconds: float | None) -> None:
    """2026-07-28 caching: absent leaves it to us, negative is 0; what is no number says nothing."""
    assert fresh_for(said) == seconds


@given(st.one_of(st.integers(), st.floats(), st.integers(min_value=10**300)))
def test_no_number_of_a_server_breaks_the_reckoning(number: float) -> None:
    """2026-07-28 caching: a server can say any number, also one that JSON has no right to."""
    seconds = fresh_for({"ttlMs": number})
    assert seconds is not None
    assert 0 <= seconds < float("inf")


def test_nothing_that_is_kept_tells_a_secret(tmp_path: Path, folder: Folder) -> None:
    """LIF-6, CFG: neither names nor files have one, nor can be compared with a guess; others cannot read them."""
    folder.keep(HTTP, LISTING, INFO)
    path = tmp_path / "listings"
    (kept,) = files(tmp_path)
    assert "canary" not in kept.name + kept.read_text()
    assert "example.org" not in kept.read_text()
    elsewhere = Folder(tmp_path / "elsewhere" / "listings")
    elsewhere.keep(HTTP, LISTING, INFO)
    assert [other.name for other in files(tmp_path / "elsewhere")] != [kept.name]
    if os.name == "posix":
        assert [stat.S_IMODE(place.stat().st_mode) for place in (path, kept, path / "key")] == [0o700, 0o600, 0o600]


def test_a_listing_in_which_a_secret_stands_is_not_kept(tmp_path: Path, folder: Folder) -> None:
    """LIF-6: URIs and names are not masked when they are read, since they must be right."""

    def safe(text: str) -> str:
        return mask(text, {"s3cret-of-mine"})

    folder.keep(HTTP, LISTING, INFO, safe)
    assert len(files(tmp_path)) == 1
    told = replace(LISTING, resources=({"name": "r", "uri": "https://x/?key=s3cret-of-mine"},))
    folder.keep(HTTP, told, INFO, safe)
    assert files(tmp_path) == []
    folder.keep(HTTP, replace(LISTING, tools=({"name": "t", "description": "Sends canary-token."},)), INFO)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"null",
        b'{"format": 0}',
        b'{"format": 1, "received": "now", "freshFor": [null, null]}',
        b'{"format": 1, "received": 1, "freshFor": [null, null], "listing": {}, "info": {}}',
        b" " * (MAX_BYTES + 1),
        b"[" * 1_000_000,
        b'{"format": 1, "received": 1' + b"0" * 400 + b', "freshFor": [null, null], "listing": {"tools": [], "resources": [], '
        b'"templates": [], "prompts": [], "complaints": []}, '
        b'"info": {"name": "", "version": "", "protocol": "", "instructions": "", "capabilities": {}}}',
    ],
)
def test_a_file_that_is_damaged_or_of_others_is_ignored_and_logged(
    tmp_path: Path, folder: Folder, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """LIF-6: it costs the warmth, and is written anew."""
    folder.keep(HTTP, LISTING, INFO)
    (kept,) = files(tmp_path)
    kept.write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="toolbay.recollections"):
        assert folder.recall(HTTP) is None
    assert f"{kept} holds nothing that can be used" in caplog.text
    folder.keep(HTTP, LISTING, INFO)
    assert folder.recall(HTTP) is not None


@pytest.mark.skipif(os.name == "nt", reason="rights of folders are another matter there")
def test_a_folder_that_others_write_to_is_neither_believed_nor_filled(
    tmp_path: Path, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """LIF-6, security.md 26: whoever can put a file there could tell a model anything, or have a file of ours written over by a link."""
    folder.keep(HTTP, LISTING, INFO)
    (tmp_path / "listings").chmod(0o777)
    before = {path: path.read_bytes() for path in (tmp_path / "listings").iterdir()}
    with caplog.at_level(logging.WARNING, logger="toolbay.recollections"):
        assert folder.recall(HTTP) is None
        folder.keep(HTTP, replace(LISTING, tools=()), INFO)
        folder.forget(HTTP)
    assert "can be written to by others" in caplog.text
    assert {path: path.read_bytes() for path in (tmp_path / "listings").iterdir()} == before
    (tmp_path / "listings").chmod(0o700)
    assert folder.recall(HTTP) is not None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda part: st.lists(part) | st.dictionaries(st.text(), part)
    )
)
def test_no_content_of_a_file_breaks_its_reader(value: Any) -> None:
    """LIF-6: each part of a good file, with anything in its place, is either good or refused."""
    good = json.loads(recollections._encoded(Recollection(listing=LISTING, info=INFO, received=1.0), str) or b"")
    for key in good:
        for document in (
            {**good, key: value},
            {**good, key: {**good[key], **value}} if isinstance(good[key], dict) and isinstance(value, dict) else {},
        ):
            try:
                read = recollections._decoded(json.dumps(document).encode())
            except ValueError:
                continue
            assert all(item["name"] for item in read.listing.tools)
            read.counts(2.0)


def test_a_key_that_is_damaged_is_made_anew(tmp_path: Path, folder: Folder) -> None:
    """LIF-6: what was kept under the old one is not found, and goes when it is old."""
    folder.keep(HTTP, LISTING, INFO)
    (tmp_path / "listings" / "key").write_bytes(b"short")
    assert folder.recall(HTTP) is None
    folder.keep(HTTP, LISTING, INFO)
    assert folder.recall(HTTP) is not None
    assert len(files(tmp_path)) == 2


def test_what_did_not_change_is_not_written_again_until_it_is_a_day_old(tmp_path: Path, folder: Folder, clock: Clock) -> None:
    """LIF-6: a run costs no writing, and what is in use does not grow old."""
    folder.keep(HTTP, LISTING, INFO)
    (kept,) = files(tmp_path)
    written = kept.read_bytes()
    clock.now += 3600
    folder.keep(HTTP, LISTING, INFO)
    assert kept.read_bytes() == written
    folder.keep(HTTP, replace(LISTING, tools=()), INFO)
    changed = kept.read_bytes()
    assert changed != written
    clock.now += recollections.RENEWED
    folder.keep(HTTP, replace(LISTING, tools=()), INFO)
    assert kept.read_bytes() != changed


def test_what_is_kept_is_bounded_and_what_is_not_ours_is_left_alone(tmp_path: Path, folder: Folder) -> None:
    """LIF-6: by number, by age, by size of each; the oldest go first."""
    folder.keep(HTTP, LISTING, INFO)
    path = tmp_path / "listings"
    (path / "notes.txt").write_text("mine")
    for number in range(MAX_FILES + 5):
        other = path / f"{number:064x}.json"
        other.write_text("{}")
        os.utime(other, (10_000 + number, 10_000 + number))
    folder.keep(local(), LISTING, INFO)
    left = files(tmp_path)
    assert len(left) == 2  # all others are of 1970
    assert folder.recall(HTTP) is not None
    for number in range(MAX_FILES + 5):
        (path / f"{number:064x}.json").write_text("{}")
    folder.keep(local(), replace(LISTING, tools=()), INFO)
    assert len(files(tmp_path)) == MAX_FILES
    assert (path / "notes.txt").read_text() == "mine"
    folder.keep(local(), replace(LISTING, tools=({"name": "big", "description": "x" * MAX_BYTES},)), INFO)
    assert folder.recall(local()) is None


def test_programs_that_keep_the_same_server_at_once_are_in_nobodys_way(tmp_path: Path, clock: Clock) -> None:
    """G2, LIF-6: eight of them, whose lists differ: none has anything to say, and what the last one kept is there, whole."""
    made = [Folder(tmp_path / "listings", environ={}, now=clock) for _ in range(8)]
    said = [replace(INFO, version=str(number)) for number in range(8)]
    start = Barrier(8)

    def run(number: int) -> None:
        start.wait()
        for _ in range(10):
            made[number].miss(HTTP)
            made[number].keep(HTTP, LISTING, said[number])

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(run, number) for number in range(8)]:
            done.result()
    known = made[0].recall(HTTP)
    assert known is not None
    assert known.info in said


def test_a_server_that_was_waited_for_in_vain_is_known_for_a_day_or_until_it_comes_up(folder: Folder, clock: Clock) -> None:
    """LIF-6: found by all that the connection is made with, as what is listed is."""
    assert not folder.missed(HTTP)
    folder.miss(HTTP)
    assert folder.missed(HTTP)
    assert not folder.missed(HTTP.model_copy(update={"url": "https://example.org/other"}))
    clock.now += recollections.MISSED_AGE - 1
    assert folder.missed(HTTP)
    clock.now += 2
    assert not folder.missed(HTTP)
    folder.miss(HTTP)
    folder.keep(HTTP, LISTING, INFO)
    assert not folder.missed(HTTP)
    folder.miss(HTTP)
    folder.forget(HTTP)
    assert not folder.missed(HTTP)


class Broken(Folder):
    """A folder in which nobody foresaw what happens."""

    def forget(self, config: ServerConfig) -> None:
        raise ZeroDivisionError(f"for {config.url} with canary-kept")


@pytest.mark.anyio
async def test_what_nobody_foresaw_while_keeping_is_logged_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LIF-6, OBS-2: with its traceback; what comes after it is kept."""
    kept = Recollections(Broken(tmp_path, environ={}), safe=Secrets({"canary-kept"}).mask)
    with anyio.fail_after(20):
        async with kept:
            kept.forget("s", HTTP)
            await eventually(lambda: "ZeroDivisionError" in caplog.text, "the log")
            kept.forget("t", HTTP)
    said = [record for record in caplog.records if record.name == "toolbay.recollections"]
    for name, record in zip("st", said, strict=True):
        assert record.getMessage().startswith(f"what {name} lists could not be kept\nTraceback")
        assert record.getMessage().endswith("ZeroDivisionError: for https://example.org/mcp with ***")
        assert record.exc_info is None


@pytest.mark.parametrize("text", [b"", b"soon", b"nan", b"9" * 50, b"1e999"])
def test_a_mark_that_was_damaged_says_nothing(folder: Folder, tmp_path: Path, text: bytes) -> None:
    """LIF-6: and neither does one from the future."""
    folder.miss(HTTP)
    (mark,) = (tmp_path / "listings").glob("*.missed")
    mark.write_bytes(text)
    assert not folder.missed(HTTP)
