"""Real children: whatever they do, nothing of them is left, and nobody waits for them for ever."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest

from support import servers
from support.connections import linked, raw, started
from support.processes import MARK, alive, children, eventually, leftovers, marked
from toolbay.errors import LaunchFailed
from toolbay.upstream.launch import prepare
from toolbay.upstream.process import spawn

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="process groups and signals are POSIX")]

SAYS_READY = "import sys, time; print('ready', flush=True); "


def python(code: str, env: dict[str, str]) -> servers.Entry:
    return servers.stdio(sys.executable, "-IS", "-c", code, env=env)


async def gone(env: dict[str, str]) -> None:
    await eventually(lambda: not leftovers(env[MARK]), f"the end of {leftovers(env[MARK])}")


async def test_a_child_that_ends_with_its_input_is_ended_by_that_alone(tmp_path: Path) -> None:
    """LIF-1: a good server sees the end of its input and leaves by itself, with its own exit code."""
    env = marked()
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python(SAYS_READY + "sys.stdin.read(); sys.exit(5)", env)))) as child:
            assert await child.receive() == b"ready\n"
        assert child.returncode == 5
    await gone(env)


async def test_a_child_that_ignores_the_end_of_its_input_is_terminated() -> None:
    """LIF-1: SIGTERM comes after the end of input."""
    env = marked()
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python(SAYS_READY + "time.sleep(3600)", env)))) as child:
            await child.receive()
        assert child.returncode == -signal.SIGTERM
    await gone(env)


async def test_a_child_that_ignores_sigterm_as_well_is_killed() -> None:
    """LIF-1: terminated, then killed."""
    env = marked()
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SAYS_READY + "time.sleep(3600)"
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python(code, env)))) as child:
            await child.receive()
        assert child.returncode == -signal.SIGKILL
    await gone(env)


GRANDCHILD = """
import subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(3600)"
subprocess.Popen([sys.executable, "-IS", "-c", code])
"""


@pytest.mark.parametrize("end", ["time.sleep(3600)", "sys.stdin.read()", "pass"])
async def test_a_stubborn_grandchild_that_holds_the_pipes_is_gone(end: str) -> None:
    """LIF-1: the whole tree, whether the child itself stays, leaves with its input, or has long left."""
    env = marked()
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python(GRANDCHILD + end, env)))) as child:
            assert await child.receive() == b"ready\n", "it is the grandchild that says so, through our pipe"
    await gone(env)


async def test_the_group_of_a_killed_server_is_gone_too(tmp_path: Path) -> None:
    """LIF-1, LIF-2: a server that is killed leaves a grandchild behind; it is ended before the server is started again."""
    env, effects = marked(), tmp_path / "effects"
    async with linked(raw("--spawn-child", "--effects", effects, env=env)) as link:
        first, grandchild = link.pid, int(effects.read_text().split()[1])
        assert alive(grandchild)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: link.state == "ready" and link.pid != first, "a restart")
        assert not alive(grandchild)
        assert await link.call("echo", {"text": "back"}) == "back"
    await gone(env)


async def test_a_server_that_ignores_everything_is_gone_after_the_close() -> None:
    """LIF-1: through the whole connection, while a call is under way."""
    env = marked()
    with anyio.fail_after(60):
        async with linked(raw("--ignore-eof", "--ignore-sigterm", env=env)) as link, anyio.create_task_group() as group:
            group.start_soon(link.outcome, "slow", {"steps": 1000, "seconds": 1})
            await eventually(lambda: link.connection._engine is not None, "a session")
            link.connection.stop()
            await link.connection.wait_closed()
    assert link.state == "closed"
    await gone(env)


async def test_a_flood_on_stderr_blocks_nobody() -> None:
    """TRA-6: far more than a pipe holds, before and while it answers; the last lines are kept."""
    code = (
        "import sys\n"
        "for number in range(50_000): print(f'noise {number}', file=sys.stderr)\n"
        "sys.stderr.flush(); print('ready', flush=True); sys.stdin.read()"
    )
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python(code, {})))) as child:
            assert await child.receive() == b"ready\n"
            await eventually(lambda: child.stderr.lines[-1:] == ("noise 49999",), "the last line")
            assert len(child.stderr.lines) <= 201


async def test_a_flood_on_stdout_that_nobody_reads_does_not_hold_up_the_end() -> None:
    """LIF-1: a child that is stuck in a write to us is ended all the same."""
    env = marked()
    with anyio.fail_after(30):
        async with spawn(prepare(servers.config(python("import sys\nwhile True: sys.stdout.write('x' * 65536)", env)))) as child:
            await child.receive()
    await gone(env)


async def test_a_child_that_reads_nothing_does_not_hold_up_the_end() -> None:
    """LIF-1: our own full pipe is given up."""
    env = marked()
    with anyio.fail_after(30):
        async with (
            spawn(prepare(servers.config(python(SAYS_READY + "time.sleep(3600)", env)))) as child,
            anyio.create_task_group() as group,
        ):
            await child.receive()
            group.start_soon(child.send, b"x" * 10_000_000)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    await gone(env)


async def test_closing_in_the_middle_of_the_handshake_does_not_wait_for_it() -> None:
    """LIF-1, TRA-2: a server that hangs in its handshake is closed at once, not after its startupTimeout."""
    env = marked()
    with anyio.fail_after(30):
        async with started(raw("--hang", "initialize", env=env), startup_timeout=3600) as link:
            await eventually(lambda: leftovers(env[MARK]), "the start")
            assert link.state == "connecting"
            link.connection.stop()
            link.connection.stop()
            await link.connection.wait_closed()
    assert link.heard.states == ["connecting", "closed"]
    await gone(env)


async def test_cancelling_the_owner_in_the_middle_of_the_handshake_leaves_nothing() -> None:
    """LIF-1: cancellation is a way to close as well."""
    env = marked()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def own() -> None:
                async with started(raw("--hang", "initialize", env=env), startup_timeout=3600):
                    await anyio.sleep_forever()

            group.start_soon(own)
            await eventually(lambda: leftovers(env[MARK]), "the start")
            group.cancel_scope.cancel()
    await gone(env)
    assert not children()


TORN_DOWN = """
import asyncio, sys
from toolbay.config.models import ServerConfig
from toolbay.upstream.launch import prepare
from toolbay.upstream.process import spawn

def interrupt():
    raise KeyboardInterrupt

async def hold():
    config = ServerConfig(type="stdio", command=sys.executable, args=("-IS", "-c", sys.argv[1]), inherit_env=(sys.argv[2],))
    async with spawn(prepare(config)) as child:
        await child.receive()
        print("ready", flush=True)
        asyncio.get_running_loop().call_later(0.2, interrupt)

asyncio.run(hold())
"""


async def test_a_stubborn_child_is_killed_where_the_loop_itself_is_torn_down() -> None:
    """LIF-1: a second Ctrl-C ends the loop, and its cancellation passes every shield: no time is left to be polite."""
    env = marked()
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SAYS_READY + "time.sleep(3600)"
    with anyio.fail_after(60):
        argv = [sys.executable, "-c", TORN_DOWN, stubborn, MARK]
        ended = await anyio.run_process(argv, env={**os.environ, **env, "PYTHONPATH": str(servers.ROOT / "src")}, check=False)
    assert ended.stdout == b"ready\n", ended.stderr
    assert b"KeyboardInterrupt" in ended.stderr
    await gone(env)


async def test_an_exit_before_the_handshake_gives_the_exit_code_and_stderr() -> None:
    """TRA-8: exits at once: the exit code, the last lines of stderr."""
    async with linked(raw("--exit-at-start", "3", "--stderr", "DATABASE_URL is not set")) as link:
        assert link.state == "waiting"
        assert isinstance(link.connection.error, LaunchFailed)
        text = str(link.connection.error)
    assert "exit code 3" in text
    assert "DATABASE_URL is not set" in text
    assert "Traceback" not in text


async def test_a_program_that_is_none_is_told_by_the_operating_systems_words(tmp_path: Path) -> None:
    """TRA-8: not executable."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF this is none")
    program.chmod(0o700)
    with pytest.raises(LaunchFailed, match=r"program' could not be started: "):
        async with spawn(prepare(servers.config(servers.stdio(program)))):
            pass
    assert not children()
