"""Files that are none, or without end, in the place of those that a person has written: nobody waits for them, and it is said."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest

from toolbay.config import load, parse, reading
from toolbay.config.models import InvalidServer
from toolbay.errors import ConfigError
from toolbay.lock import Lock
from toolbay.watching import Files

LIMIT = reading.LARGEST
pipes = pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes in the file system")


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A file that takes no room on the disk, and more than is read in memory."""
    path = tmp_path / "endless"
    with path.open("wb") as file:
        file.truncate(LIMIT + 1)
    return path


@pipes
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    """CFG-2, CFG-3, G1: whoever can put a pipe in the place of a file could hold up each start and reload."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match="it is a pipe that nobody writes to"):
        reading.read(tmp_path / "pipe", patience=3600)
    with pytest.raises(ConfigError, match=r"pipe cannot be read \(it is a pipe that nobody writes to\): check what it is"):
        load(tmp_path / "pipe")
    entry = parse({"mcpServers": {"a": {"command": "a", "envFile": "pipe"}}}, base=tmp_path).tools.mcp_servers["a"]
    assert isinstance(entry, InvalidServer)
    assert "cannot be read (it is a pipe that nobody writes to)" in entry.reason


@pipes
def test_a_pipe_whose_writer_is_slow_is_waited_for_so_long_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-1, CFG-2: such as a program that asks its user before it gives a secret."""
    monkeypatch.setattr(reading, "ABSENCE", 0.01)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(TimeoutError, match="it is a pipe whose end did not come"):
        reading.read(tmp_path / "pipe", patience=0.1)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(reading.read, tmp_path / "pipe", patience=60)
        with pytest.raises(FutureTimeoutError):
            waiting.result(0.2)
        os.write(writer, b"late")
        os.close(writer)
        assert waiting.result(60) == b"late"


@pipes
def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """CFG-1: as of a shell's `<(...)`."""
    path, data = tmp_path / "pipe", b"x" * 300_000
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    assert reading.read(path) == data
    writer.join()


@pipes
def test_what_has_no_end_and_no_size_is_left_at_the_limit() -> None:
    with pytest.raises(OSError, match="too large"):
        reading.read(Path("/dev/zero"), 100_000)
    assert reading.read(Path(os.devnull)) == b""


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert reading.read(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="too large"):
        reading.read(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        reading.read(tmp_path / "other")
    with pytest.raises(IsADirectoryError):
        reading.read(tmp_path)


def test_an_endless_configuration_says_so(endless: Path) -> None:
    """CFG-2."""
    with pytest.raises(ConfigError, match=r"cannot be read \(File too large\)"):
        load(endless)


def test_an_endless_env_file_costs_its_server(tmp_path: Path, endless: Path) -> None:
    """CFG-3."""
    path = tmp_path / "toolbay.json"
    path.write_text('{"mcpServers": {"a": {"command": "a", "envFile": "endless"}, "b": {"command": "b"}}}')
    servers = load(path).tools.mcp_servers
    assert isinstance(servers["a"], InvalidServer)
    assert "too large" in servers["a"].reason
    assert not isinstance(servers["b"], InvalidServer)
    assert endless.exists()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_costs_its_server(tmp_path: Path, name: str) -> None:
    """CFG-6: others start, and nobody who looks at the files stumbles over it."""
    config = parse({"mcpServers": {"a": {"command": "a", "envFile": name}, "b": {"command": "b"}}}, base=tmp_path)
    entry = config.tools.mcp_servers["a"]
    assert isinstance(entry, InvalidServer)
    assert "no file can have that name" in entry.reason
    assert not isinstance(config.tools.mcp_servers["b"], InvalidServer)
    assert list(Files().look(config.files).values()) == [""]


@pipes
def test_a_configuration_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    """CFG-1, LIF-5: what a shell hands over as `<(...)` does not change, and is gone when it was read."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        written = other.submit(pipe.write_text, '{"mcpServers": {"b": {"command": "b"}}}')
        config = load(pipe)
        written.result(10)
    assert list(config.tools.mcp_servers) == ["b"]
    assert Files().look(config.files) == config.files


def test_an_endless_lock_accepts_nothing(endless: Path) -> None:
    """SEC: what cannot be read is no lock that is not there."""
    lock = Lock.load(endless)
    assert lock.is_present
    assert "too large" in lock.fault


def test_an_endless_file_is_not_read_again_and_again(endless: Path) -> None:
    """LIF-5: files are looked at twice a second."""
    assert Files().look([endless]) == {endless: ""}
