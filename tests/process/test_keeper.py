"""What a server starts, however it starts it, ends with the server, with its connection, and with us."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from support import servers
from support.connections import linked, raw
from support.processes import Footprint, alive, children, eventually, wait_until
from toolbay.errors import LaunchFailed
from toolbay.upstream import keeping
from toolbay.upstream.keeper import below
from toolbay.upstream.launch import Launch, prepare
from toolbay.upstream.process import Child, spawn

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not keeping.usable(), reason="keepers need Linux and /proc")]

ALL = ("plain", "holds", "session", "twice", "cleared")
SECONDS = 7.0
"""After which nothing may be left: 5, and what a busy machine adds."""


class Family:
    """The processes of one hostile server, as they told of themselves."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def entry(self, *hows: str, end: str) -> servers.Entry:
        return servers.stdio(sys.executable, "-IS", servers.SERVERS / "hostile.py", self.file, *hows, "--", end)

    @property
    def pids(self) -> dict[str, int]:
        return {how: int(pid) for how, pid in (line.split() for line in self.file.read_text().splitlines())}

    @property
    def living(self) -> dict[str, int]:
        return {how: pid for how, pid in self.pids.items() if alive(pid)}

    def end(self) -> None:
        for pid in self.living.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path / "family")
    yield made
    made.end()


async def ready(child: Child) -> None:
    assert await child.receive() == b"ready\n"


def keeper_of(child: Child) -> psutil.Process:
    parent = psutil.Process(child.pid).parent()
    assert parent is not None
    return parent


@pytest.mark.parametrize("end", ["ignores", "leaves", "stays"])
async def test_p14_p15_whatever_a_server_starts_is_gone_after_a_close(family: Family, end: str) -> None:
    """LIF-1: stubborn children, in sessions of their own, forked twice, with an environment of their own or with our pipes."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry(*ALL, end=end)))) as child:
            await ready(child)
            assert set(family.living) == {*ALL, "server"}
            started = anyio.current_time()
        assert anyio.current_time() - started < SECONDS
    assert not family.living
    assert not children()


async def test_p15_a_crash_of_the_server_ends_what_it_started(family: Family) -> None:
    """LIF-1, LIF-2: told at once with the server's own signal, though a child still holds its pipes; then all are ended."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry(*ALL, end="crashes")))) as child:
            await ready(child)
            await child.send(b"\n")
            await child.exited.wait()
            assert "SIGSEGV" in child.describe_end()
            assert "holds" in family.living
        assert child.returncode == -signal.SIGSEGV
    assert not family.living


async def test_p15_what_a_server_left_behind_is_ended_though_nobody_asks(family: Family) -> None:
    """LIF-1: a program that is busy elsewhere does not keep the rest of a dead server alive."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry("session", "cleared", end="gone")))) as child:
            await child.exited.wait()
            await eventually(lambda: not family.living, f"the end of {family.living}")
        assert child.returncode == 0


HEADS = 40


def feed(tokens: Path, keeper: int, full: threading.Event) -> None:
    """Let a hydra grow to so many heads, and grow a new one for each that is cut off."""
    with tokens.open("wb", 0) as pipe, contextlib.suppress(BrokenPipeError):
        for _ in range(20_000):
            unread = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)
            living = len(below(keeper))
            if living >= HEADS:
                full.set()
            pipe.write(b"x" * max(HEADS - living - unread, 0))
            time.sleep(0.001)


async def test_p18_processes_that_fork_while_they_are_killed_are_ended(family: Family) -> None:
    """LIF-1, SEC-34: forty at a time, and a new one for each that is killed."""
    tokens, full = family.file.with_suffix(".tokens"), threading.Event()
    os.mkfifo(tokens)
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry("hydra", end="leaves")))) as child:
            keeper = keeper_of(child)
            feeder = threading.Thread(target=feed, args=(tokens, keeper.pid, full))
            feeder.start()
            await eventually(full.is_set, "forty heads")
        assert not keeper.is_running()
    assert not children()
    feeder.join(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_p16_nothing_is_left_where_our_whole_program_is_killed(family: Family, number: int) -> None:
    """LIF-1: SIGTERM, SIGKILL and Ctrl-C of a program that uses this library, while it holds a stubborn server."""
    argv = [sys.executable, str(servers.SERVERS / "holding.py"), str(family.file), *ALL]
    env = {**os.environ, "PYTHONPATH": str(servers.ROOT / "src")}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == b"ready\n"
            tree = psutil.Process(program.pid).children(recursive=True)
            assert len(tree) == len(ALL) + 2, "a keeper, the server, and what it started"
            program.send_signal(number)
            program.wait(30)
        finally:
            program.kill()
    wait_until(lambda: not [process for process in tree if process.is_running() and alive(process.pid)], f"the end of {tree}", SECONDS)
    assert not family.living


async def test_p16_a_copy_of_our_pipe_in_a_forked_process_does_not_keep_a_server_alive(family: Family) -> None:
    """LIF-1: a program forks itself, as process pools do, and dies: its fork holds every pipe, and the end is seen all the same."""
    code = (
        "import os, sys, time\n"
        "sys.argv[0] = sys.argv.pop(1)\n"
        "import runpy, threading\n"
        "def fork():\n"
        "    time.sleep(0.01)\n"
        "    while len(open(sys.argv[1]).readlines()) < 2: time.sleep(0.01)\n"
        "    if not os.fork():\n"
        "        open(sys.argv[1], 'a').write(f'fork {os.getpid()}\\n'); time.sleep(60); os._exit(0)\n"
        "threading.Thread(target=fork, daemon=True).start()\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    argv = [sys.executable, "-W", "ignore", "-c", code, str(servers.SERVERS / "holding.py"), str(family.file), "session"]
    env = {**os.environ, "PYTHONPATH": str(servers.ROOT / "src")}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        wait_until(lambda: "fork" in family.pids, "the fork")
        program.kill()
        program.wait(30)
    wait_until(lambda: set(family.living) == {"fork"}, f"the end of {family.living}", SECONDS)


async def test_p16_what_is_left_of_a_keeper_that_was_killed_is_found_by_its_mark(family: Family) -> None:
    """LIF-1: the kernel ends the server with its keeper, and we end the rest."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry("plain", "session", "twice", end="ignores")))) as child:
            await ready(child)
            keeper_of(child).kill()
            await child.exited.wait()
            assert "SIGKILL" in child.describe_end()
            await eventually(lambda: not alive(child.pid), "the server's end with its keeper")
            assert family.living
    assert not family.living
    assert not children()


async def test_p16_a_keeper_that_is_asked_to_end_ends_its_server(family: Family) -> None:
    """LIF-1: SIGTERM to every process of ours, as at a shutdown, is no way to lose one."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry("session", end="ignores")))) as child:
            await ready(child)
            keeper_of(child).terminate()
            await child.exited.wait()
            await eventually(lambda: not family.living, "the end of all")


async def test_a_keeper_is_no_more_than_a_watcher() -> None:
    """TRA-8, TRA-6: the pid is the server's; the keeper holds none of its pipes, and no terminal's signal reaches either."""
    with anyio.fail_after(30):
        async with linked(raw()) as link:
            server = psutil.Process(link.pid)
            keeper = server.parent()
            assert keeper is not None
            assert keeper.name() == "toolbay-keeper"
            assert "raw_server.py" in " ".join(server.cmdline())
            pipes = {Path(f"/proc/{server.pid}/fd/{number}").readlink() for number in range(3)}
            assert not pipes & {held.readlink() for held in Path(f"/proc/{keeper.pid}/fd").iterdir()}
            assert len({os.getsid(0), os.getsid(keeper.pid), os.getsid(server.pid)}) == 3
            assert keeper.environ().keys() <= {"PATH", "LC_CTYPE"}, "no secret of a server is in it"


async def test_a_keeper_costs_little() -> None:
    """TRA-8: one runs for each server, so it must stay small. What was measured stands in docs/decisions."""
    with anyio.fail_after(30):
        async with linked(raw()) as link:
            keeper = psutil.Process(link.pid).parent()
            assert keeper is not None
            assert keeper.memory_info().rss < 16_000_000
            assert keeper.num_threads() == 1
            before = sum(keeper.cpu_times()[:2])
            for _ in range(50):
                await link.call("echo", {"text": "x"})
            assert sum(keeper.cpu_times()[:2]) == before, "it has no part in what is said"


async def test_zombies_of_daemons_do_not_pile_up(family: Family) -> None:
    """LIF-1: what a server abandoned and what then ends is reaped while the server lives."""
    code = (
        "import os, sys\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        if not os.fork(): os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(servers.stdio(sys.executable, "-IS", "-c", code)))) as child:
            await ready(child)
            keeper = keeper_of(child)
            await eventually(lambda: [process.pid for process in keeper.children(recursive=True)] == [child.pid], "twenty reaped")


async def test_p16_a_start_that_is_cut_short_at_any_moment_leaves_nothing() -> None:
    """LIF-1: before the keeper is there, while it starts the server, after that."""
    launch = prepare(servers.config(servers.stdio("/bin/cat")))
    async with spawn(launch):
        pass  # the first start opens what is kept for all
    gc.collect()
    before, begun = Footprint.now(), 0
    for milliseconds in range(0, 60, 2):
        with anyio.move_on_after(milliseconds / 1000):
            async with spawn(launch):
                begun += 1
                await anyio.sleep_forever()
    await eventually(lambda: not before.grown(allowed_threads=2), f"nothing left: {before.grown()}")
    assert begun < 30


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [(b"#!/no/such/interpreter\n", 0o700, "No such file"), (b"\x7fELF none", 0o700, "Exec format error")],
)
async def test_p1_a_command_that_cannot_be_run_is_told_in_the_operating_systems_words(
    tmp_path: Path, content: bytes, mode: int, why: str
) -> None:
    """TRA-8: the same words whether a keeper ran it or not, and nothing is left open."""
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(mode)
    launch = prepare(servers.config(servers.stdio(program)))
    told: set[str] = set()
    for kept in (True, False, True):
        gc.collect()
        before = Footprint.now()
        with pytest.raises(LaunchFailed, match=why) as caught:
            async with spawn(launch, kept=kept):
                pass
        told.add(str(caught.value))
        assert not caught.value.retriable
        await eventually(lambda before=before: not before.grown(allowed_threads=2), "nothing left")
    assert len(told) == 1


@pytest.mark.parametrize("broken", ["args", "env", "name"])
@pytest.mark.parametrize("kept", [True, False])
async def test_p1_what_no_process_can_be_given_is_told(broken: str, kept: bool) -> None:
    """TRA-8: a zero character in an argument or a variable, a variable whose name has an equals sign."""
    entry = servers.stdio(sys.executable, "-c", "a\0b" if broken == "args" else "", env={"A=B" if broken == "name" else "A": "a\0b"})
    with pytest.raises(LaunchFailed, match="could not be started: "):
        async with spawn(prepare(servers.config(entry)), kept=kept):
            pass
    assert not children()


async def test_p1_a_folder_that_went_meanwhile_is_told(tmp_path: Path) -> None:
    """TRA-8: between the look and the start."""
    launch = Launch(argv=(sys.executable, "-c", ""), env={}, cwd=str(tmp_path / "gone"), shown="python")
    with pytest.raises(LaunchFailed, match="No such file or directory"):
        async with spawn(launch):
            pass


async def test_a_relative_folder_and_a_relative_command_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRA-5: the command is looked for from its own folder, however that folder was given."""
    (tmp_path / "here").mkdir()
    program = tmp_path / "here" / "server"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(servers.stdio("./server"), cwd="here"))) as child:
            assert await child.receive() == f"{tmp_path / 'here'}\n".encode()


async def test_a_server_is_given_exactly_its_environment_and_default_signals() -> None:
    """TRA-5: not what the keeper's interpreter made of it; a large one as well."""
    program = "cat /proc/self/environ | tr '\\0' '\\n'; grep -E 'SigIgn|SigBlk' /proc/self/status"
    launch = Launch(
        argv=("/bin/sh", "-c", program), env={"PATH": "/usr/bin:/bin", "BIG": "x" * 100_000, "ODD": "a=b\nc"}, cwd=None, shown="sh"
    )
    text = b""
    with anyio.fail_after(30):
        async with spawn(launch) as child:
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    text += await child.receive()
    lines = text.decode().splitlines()
    assert f"BIG={'x' * 100_000}" in lines
    assert lines[lines.index("ODD=a=b") + 1] == "c"
    assert {line.partition("=")[0] for line in lines if "=" in line} - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "PATH",
        "BIG",
        "ODD",
        keeping.MARK,
    }
    # Those that a program can set: what is above them belongs to the C library and comes from whoever started us. So may
    # what a shell ignores for what runs in its background.
    ours = sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN)
    blocked, ignored = (int(line.split()[1], 16) & 0x7FFFFFFF for line in lines if line.startswith("Sig"))
    assert (blocked, ignored & ~ours) == (0, 0)


async def test_r1_a_machine_that_is_out_of_descriptors_is_told_and_recovers() -> None:
    """TRA-8: it says nothing about the server, so it is tried again; nothing leaks while it lasts."""
    launch = prepare(servers.config(servers.stdio(sys.executable, "-IS", "-c", "print('ready', flush=True)")))
    async with spawn(launch) as child:
        await ready(child)  # the first start opens what is kept for all
    refused: list[LaunchFailed] = []
    for spare in range(1, 40):
        gc.collect()
        before = Footprint.now()
        with only(spare):
            try:
                async with spawn(launch) as child:
                    await ready(child)
                break
            except LaunchFailed as error:
                refused.append(error)
        await eventually(lambda before=before: not before.grown(allowed_threads=2), f"nothing left: {before.grown()}")
    assert len(refused) > 5
    assert all(error.retriable and "Too many open files" in str(error) for error in refused)
    async with spawn(launch) as child:
        await ready(child)
    assert not children()


@contextlib.contextmanager
def only(spare: int) -> Generator[None]:
    """This process may open so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name.name) for name in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    filled: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.open(os.devnull, os.O_RDONLY))
        for descriptor in filled[-spare:]:
            os.close(descriptor)
        del filled[-spare:]
        yield
    finally:
        for descriptor in filled:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_keeper_a_server_and_its_group_are_ended(family: Family) -> None:
    """LIF-1: where keepers cannot be used, what stays in the group goes with it."""
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(family.entry("plain", "holds", end="ignores"))), kept=False) as child:
            await ready(child)
        assert child.returncode == -signal.SIGKILL
    assert not family.living


async def test_a_process_names_itself_as_it_likes() -> None:
    """SEC-34: the walk through the processes is not led astray by a name that looks like the line it stands in."""
    code = "import sys; open('/proc/self/comm', 'w').write(') S 1 1 ('); print('ready', flush=True); sys.stdin.read()"
    async with spawn(prepare(servers.config(servers.stdio(sys.executable, "-IS", "-c", code)))) as child:
        await ready(child)
        assert child.pid in below(keeper_of(child).pid)
        assert child.pid in below(os.getpid())


async def test_the_order_is_no_argument() -> None:
    """SEC-17: arguments can be read by everybody on the machine; what a server is given in its environment cannot."""
    entry = raw(env={"API_KEY": "canary-4711"})
    with anyio.fail_after(30):
        async with linked(entry) as link:
            keeper = psutil.Process(link.pid).parent()
            assert keeper is not None
            assert "canary-4711" not in json.dumps([keeper.cmdline(), psutil.Process(link.pid).cmdline(), keeper.environ()])
            assert psutil.Process(link.pid).environ()["API_KEY"] == "canary-4711"
