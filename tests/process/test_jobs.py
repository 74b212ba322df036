"""Windows jobs, as far as they can be seen elsewhere: what the kernel is asked for, in which order, and what is given back."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

import anyio
import pytest

from toolbay.upstream.holds import KILL
from toolbay.upstream.jobs import (
    EXTENDED_LIMIT_INFORMATION,
    KILL_ON_JOB_CLOSE,
    PROCESS_SET_QUOTA,
    PROCESS_TERMINATE,
    ExtendedLimits,
    Held,
    Job,
)
from toolbay.upstream.launch import Launch
from toolbay.upstream.process import Child

pytestmark = pytest.mark.anyio

JOB, PROCESS = 100, 200


class Kernel:
    """Notes each call; the one that is named fails. What it was told of limits is read back from the bytes that it was given."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []
        self.open: list[int] = []

    def _answer(self, value: int, *call: Any) -> int:
        self.calls.append(call)
        return 0 if call[0] == self.fails else value

    def CreateJobObjectW(self, attributes: None, name: None) -> int:  # noqa: N802
        made = self._answer(JOB, "CreateJobObjectW", attributes, name)
        self.open += [made] if made else []
        return made

    def SetInformationJobObject(self, job: int, kind: int, information: Any, size: int) -> int:  # noqa: N802
        flags = int.from_bytes(ctypes.string_at(ctypes.cast(information, ctypes.c_void_p).value or 0, size)[16:20], sys.byteorder)
        return self._answer(1, "SetInformationJobObject", job, kind, flags, size)

    def OpenProcess(self, access: int, inherit: int, pid: int) -> int:  # noqa: N802
        opened = self._answer(PROCESS, "OpenProcess", access, inherit, pid)
        self.open += [opened] if opened else []
        return opened

    def AssignProcessToJobObject(self, job: int, process: int) -> int:  # noqa: N802
        return self._answer(1, "AssignProcessToJobObject", job, process)

    def TerminateJobObject(self, job: int, exit_code: int) -> int:  # noqa: N802
        return self._answer(1, "TerminateJobObject", job, exit_code)

    def CloseHandle(self, handle: int) -> int:  # noqa: N802
        self.open.remove(handle)
        return self._answer(1, "CloseHandle", handle)


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
def test_the_limits_are_laid_out_as_windows_reads_them() -> None:
    """LIF-1: sizes and offsets of winnt.h; a wrong one is silently another limit."""
    assert ctypes.sizeof(ExtendedLimits) == 144
    assert (ExtendedLimits.io.offset, ExtendedLimits.process_memory_limit.offset) == (64, 112)


def test_a_job_kills_when_its_last_handle_is_closed() -> None:
    """LIF-1: our end in whatever way closes it."""
    kernel = Kernel()
    job = Job(kernel)
    job.take(4711)
    assert kernel.calls == [
        ("CreateJobObjectW", None, None),
        ("SetInformationJobObject", JOB, EXTENDED_LIMIT_INFORMATION, KILL_ON_JOB_CLOSE, ctypes.sizeof(ExtendedLimits)),
        ("OpenProcess", PROCESS_TERMINATE | PROCESS_SET_QUOTA, 0, 4711),
        ("AssignProcessToJobObject", JOB, PROCESS),
        ("CloseHandle", PROCESS),
    ]
    assert kernel.open == [JOB]
    job.end()
    job.close()
    job.close()
    job.end()
    assert kernel.calls[5:] == [("TerminateJobObject", JOB, 1), ("CloseHandle", JOB)]
    assert not kernel.open


@pytest.mark.parametrize("fails", ["CreateJobObjectW", "SetInformationJobObject", "OpenProcess", "AssignProcessToJobObject"])
async def test_a_server_without_a_job_is_still_ended_by_its_own_handle(fails: str) -> None:
    """LIF-1: whatever Windows refuses, no handle is left and the server is held as far as it can be."""
    kernel = Kernel(fails)
    async with await anyio.open_process([sys.executable, "-IS", "-c", "import sys; sys.stdin.read()"]) as process:
        held = Held(process, kernel)
        assert not kernel.open
        assert held.pid == process.pid
        held.signal(KILL)
        with anyio.fail_after(10):
            await held.wait()
            await held.end_rest()
            await held.close()
        assert held.returncode == process.returncode != 0


async def test_a_stubborn_server_without_a_job_is_killed() -> None:
    """LIF-1: the whole way of a stop, where the job could not be had."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(3600)"
    launch = Launch(argv=(sys.executable, "-IS", "-c", code), env={}, cwd=None, shown="python")
    async with await anyio.open_process(launch.argv) as process:
        child = Child(process, launch, Held(process, Kernel("CreateJobObjectW")))
        assert await child.receive() == b"ready\n"
        with anyio.fail_after(30):
            await child.stop()
            await child.release()
        assert child.returncode == -KILL


async def test_a_polite_end_is_the_servers_and_a_hard_one_the_jobs() -> None:
    """LIF-1: what is left behind goes with the job, and the handle is closed at last."""
    kernel = Kernel()
    async with await anyio.open_process([sys.executable, "-IS", "-c", "import sys; sys.stdin.read()"]) as process:
        held = Held(process, kernel)
        held.signal(signal.SIGTERM)
        assert "TerminateJobObject" not in [call[0] for call in kernel.calls]
        with anyio.fail_after(10):
            await held.wait()
            await held.end_rest()
            assert kernel.calls[-1][0] == "TerminateJobObject"
            held.signal(KILL)
            await held.close()
            await held.close()
    assert not kernel.open
