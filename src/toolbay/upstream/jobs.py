"""Windows: a job holds a server and all that it starts. The kernel ends everything in a job when its last handle is closed,
which our own end in whatever way does as well.

The calls are made through `Kernel`, so that everything but the calls themselves runs on every platform.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
from typing import Any, Protocol

import anyio.abc
from anyio.lowlevel import checkpoint

from toolbay.upstream.holds import KILL, exit_of

KILL_ON_JOB_CLOSE = 0x2000
"""JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE (winnt.h)."""
EXTENDED_LIMIT_INFORMATION = 9
"""JobObjectExtendedLimitInformation (winnt.h)."""
PROCESS_TERMINATE, PROCESS_SET_QUOTA = 0x0001, 0x0100
"""What AssignProcessToJobObject wants of a process's handle."""

_log = logging.getLogger("toolbay.upstream")


class _BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("per_process_user_time_limit", ctypes.c_int64),
        ("per_job_user_time_limit", ctypes.c_int64),
        ("limit_flags", ctypes.c_uint32),
        ("minimum_working_set_size", ctypes.c_size_t),
        ("maximum_working_set_size", ctypes.c_size_t),
        ("active_process_limit", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION; the six counters between are IO_COUNTERS."""

    _fields_ = (
        ("basic", _BasicLimits),
        ("io", ctypes.c_uint64 * 6),
        ("process_memory_limit", ctypes.c_size_t),
        ("job_memory_limit", ctypes.c_size_t),
        ("peak_process_memory_used", ctypes.c_size_t),
        ("peak_job_memory_used", ctypes.c_size_t),
    )


class Kernel(Protocol):
    """The functions of kernel32 that a job needs, by their own names. Zero is failure."""

    def CreateJobObjectW(self, attributes: None, name: None) -> int | None: ...  # noqa: N802
    def SetInformationJobObject(self, job: int, kind: int, information: Any, size: int) -> int: ...  # noqa: N802
    def OpenProcess(self, access: int, inherit: int, pid: int) -> int | None: ...  # noqa: N802
    def AssignProcessToJobObject(self, job: int, process: int) -> int: ...  # noqa: N802
    def TerminateJobObject(self, job: int, exit_code: int) -> int: ...  # noqa: N802
    def CloseHandle(self, handle: int) -> int: ...  # noqa: N802


def kernel32() -> Kernel:
    """The real ones. Handles are pointers: without their types ctypes would cut them to 32 bits."""
    assert sys.platform == "win32"
    loaded: Any = ctypes.WinDLL("kernel32", use_last_error=True)
    handle, word = ctypes.c_void_p, ctypes.c_uint32
    for name, result, arguments in (
        ("CreateJobObjectW", handle, (handle, ctypes.c_wchar_p)),
        ("SetInformationJobObject", ctypes.c_int, (handle, ctypes.c_int, handle, word)),
        ("OpenProcess", handle, (word, ctypes.c_int, word)),
        ("AssignProcessToJobObject", ctypes.c_int, (handle, handle)),
        ("TerminateJobObject", ctypes.c_int, (handle, word)),
        ("CloseHandle", ctypes.c_int, (handle,)),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Job:
    """A job whose members are ended when it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        """Raises OSError where the system makes none."""
        self._kernel = kernel
        self._handle = kernel.CreateJobObjectW(None, None) or 0
        if not self._handle:
            raise OSError("CreateJobObject failed")
        limits = ExtendedLimits()
        limits.basic.limit_flags = KILL_ON_JOB_CLOSE
        if not kernel.SetInformationJobObject(self._handle, EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)):
            self.close()
            raise OSError("SetInformationJobObject failed")

    def take(self, pid: int) -> None:
        """Make the process a member; all that it starts from then on is one as well.

        Raises:
            OSError: it has ended already, or is a member of a job that allows no other.
        """
        process = self._kernel.OpenProcess(PROCESS_TERMINATE | PROCESS_SET_QUOTA, 0, pid)
        if not process:
            raise OSError(f"OpenProcess failed for {pid}")
        taken = self._kernel.AssignProcessToJobObject(self._handle, process)
        self._kernel.CloseHandle(process)
        if not taken:
            raise OSError(f"AssignProcessToJobObject failed for {pid}")

    def end(self) -> None:
        """End all members."""
        if self._handle:
            self._kernel.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        """Idempotent."""
        if self._handle:
            self._kernel.CloseHandle(self._handle)
            self._handle = 0


class Held:
    """A child in a job: the `Hold` of Windows. There are no signals: a polite one ends the server alone, a hard one all.

    What the server starts in the moment before it is taken into the job is not in it.
    """

    def __init__(self, process: anyio.abc.Process, kernel: Kernel | None = None) -> None:
        self._process = process
        self._job: Job | None = None
        try:
            self._job = Job(kernel or kernel32())
            self._job.take(process.pid)
        except OSError as error:
            _log.warning("what process %d starts may outlive it: %s", process.pid, error)
            self._drop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def excess(self) -> tuple[str, int] | None:
        return None

    async def wait(self) -> None:
        await exit_of(self._process)

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._process.kill() if number == KILL else self._process.terminate()
        if number == KILL and self._job is not None:
            self._job.end()

    async def end_rest(self) -> None:
        await checkpoint()
        if self._job is not None:
            self._job.end()

    async def close(self) -> None:
        await checkpoint()
        self._drop()

    def _drop(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None
