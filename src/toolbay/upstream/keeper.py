"""The keeper of one server: a program of its own, run by a bare interpreter (`-I -S`), that outlives us by seconds.

It starts the server with its own three standard streams and lets go of them. As the subreaper of all that the server ever
starts, nothing can leave it, neither by `setsid` nor by forking twice; when the server ends, when it is asked to, or when
we are gone in whatever way, it ends them all and then itself.

Arguments: the descriptors of the order, of the commands that it reads, of the report that it writes. Commands are single
bytes: `T` sends SIGTERM to all, `K` kills all, the end of input means that we are gone. The report is told in `keeping`.
It stands alone and imports next to nothing, because one runs for each server.
"""

import ctypes
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    # The C core of `signal`: the module itself builds enums, for a third of what this program costs in all.
    import _signal as signal

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38
PAUSE = 0.02
"""Seconds between looks for new processes while all are being ended."""
PATIENCE = 3.0
"""Seconds of killing after which what cannot be killed (it belongs to another user) is left."""
LOOK, LOOK_WELL, MORE_TASKS = 0.25, 5.0, 32
"""Seconds between looks at what a limited server uses; seconds, or new threads on the whole machine, until all of it is looked at."""
LINGER = 3.0
"""Seconds that what the server left behind may stay where nobody asks for its end."""
CORE, FILES = 0, 4096
"""Limits of a confined server: bytes of a core file, open files."""
OOM_SCORE = b"500"
"""How much sooner than others the kernel picks a confined server where memory runs out (-1000 to 1000)."""

prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


class Order:
    """What to start and how long to wait, as `keeping.order` wrote it: fields that end with a zero byte."""

    def __init__(self, data: bytes) -> None:
        parent, leave, term, rest, memory, processes, *others = data.split(b"\0")[:-1]
        self.confinement, self.folder, self.program, count, *values = others
        self.parent = int(parent)
        self.memory, self.processes = int(memory), int(processes)
        self.leave_grace, self.term_grace, self.rest_grace = float(leave), float(term), float(rest)
        self.argv = values[: int(count)]
        self.env = dict(value.split(b"=", 1) for value in values[int(count) :])


class Keeper:
    """The watch over one server and all below it."""

    def __init__(self, order: Order, commands: int, report: int) -> None:
        self.order = order
        self.commands = commands
        self.report = report
        self.server = 0
        self.ended = self.empty = False
        self.term_at = self.kill_at = self.give_up_at = float("inf")
        self.look_at = time.monotonic() + LOOK if order.memory or order.processes else float("inf")
        self.look_well_at = 0.0
        self.tasks = 0
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_end, False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        # Each signal's number becomes a byte here; that is all that a handler does.
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def say(self, text: str) -> None:
        try:  # noqa: SIM105 - contextlib costs as much as all else that is imported
            os.write(self.report, f"{text}\n".encode())
        except OSError:
            pass  # nobody is left to read it

    def start(self) -> bool:
        """Start the server; whether it runs."""
        reading, writing = os.pipe()
        keeper = os.getpid()
        self.server = os.fork()
        if not self.server:
            try:
                become(self.order, keeper)
            except OSError as error:
                os.write(writing, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(writing)
        failed = os.read(reading, 16)
        os.close(reading)
        if failed:
            os.waitpid(self.server, 0)
            self.say(f"error {failed.decode()}")
            return False
        self.say(f"pid {self.server}")
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.close(null)
        os.chdir("/")
        return True

    def keep(self) -> None:
        """Watch until nothing is left, or until nothing more can be done."""
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        parent = watch(self.order.parent)
        if parent is not None:
            poll.register(parent, select.POLLIN)
        while not self.empty and time.monotonic() < self.give_up_at:
            for descriptor, _ in poll.poll(self.pause()):
                if descriptor == self.wake:
                    self.heard(os.read(self.wake, 512))
                elif descriptor == parent or not (asked := os.read(self.commands, 64)):
                    poll.unregister(descriptor)
                    self.abandoned()
                else:
                    self.asked(asked)
            self.reap()
            self.act()
        if self.empty:
            self.say("gone")

    def pause(self) -> float | None:
        """Milliseconds until something is due; None: for ever."""
        due = min(self.term_at, self.kill_at, self.look_at)
        if due == float("inf"):
            return None
        return max(due - time.monotonic(), PAUSE) * 1000

    def asked(self, commands: bytes) -> None:
        if b"K" in commands:
            self.kill_at = time.monotonic()
        elif b"T" in commands:
            self.term_at = time.monotonic()
            if self.ended:
                self.kill_at = min(self.kill_at, self.term_at + self.order.rest_grace)

    def heard(self, numbers: bytes) -> None:
        if set(numbers) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            self.abandoned()

    def abandoned(self) -> None:
        """Nobody watches any more: the server sees the end of its input, then SIGTERM, then SIGKILL."""
        now = time.monotonic()
        self.term_at = min(self.term_at, now + self.order.leave_grace)
        self.kill_at = min(self.kill_at, now + self.order.leave_grace + self.order.term_grace)

    def reap(self) -> None:
        """Take note of every process that ended. The server's end is reported, and sets a term to all others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if not pid:
                return
            if pid == self.server:
                self.ended = True
                self.say(f"ended {os.waitstatus_to_exitcode(status)}")
                # Who reads the report may still want what the rest writes, and asks for its end; this is if nobody does.
                self.term_at = min(self.term_at, time.monotonic() + LINGER)
                self.kill_at = min(self.kill_at, self.term_at + self.order.rest_grace)

    def act(self) -> None:
        now = time.monotonic()
        if now >= self.kill_at:
            self.give_up_at = min(self.give_up_at, now + PATIENCE)
            self.look_at = float("inf")
            self.signal_all(signal.SIGKILL)
        elif now >= self.term_at:
            self.term_at = float("inf")
            self.signal_all(signal.SIGTERM)
        elif now >= self.look_at:
            self.look_at = now + LOOK
            self.look(now)

    def look(self, now: float) -> None:
        """End everything where it uses more than it may. A look at all of it is only taken where something may have changed."""
        tasks = tasks_of_machine()
        self.tasks = min(self.tasks, tasks)
        if not self.order.memory and now < self.look_well_at and tasks - self.tasks < MORE_TASKS:
            return
        self.tasks, self.look_well_at = tasks, now + LOOK_WELL
        pids = descendants(os.getpid())
        if 0 < self.order.processes < len(pids):
            self.over("processes", len(pids))
        elif self.order.memory and (used := memory_of(pids, self.order.memory)) > self.order.memory:
            self.over("memory", used)

    def over(self, what: str, used: int) -> None:
        self.say(f"over {what} {used}")
        self.kill_at = time.monotonic()
        self.act()

    def signal_all(self, number: int) -> None:
        """Signal everything below, as far as we may."""
        for pid in below(os.getpid()) if not self.empty else ():
            try:  # noqa: SIM105 - as in `say`
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass


def become(order: Order, keeper: int) -> None:
    """In the forked child: turn into the server. This program has one thread, so all of Python may be used here.

    Raises:
        OSError: the operating system would not run it.
    """
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(127)  # the keeper had ended before its end could be told
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # Python ignores them, and `exec` would keep that
    if order.confinement:
        confine(no_new_privileges=order.confinement == b"soft")
    if order.folder:
        os.chdir(order.folder)
    os.execve(order.program, order.argv, order.env)  # noqa: S606 - no shell is what is wanted


def confine(*, no_new_privileges: bool) -> None:
    """Limits that a tool server has no use to pass. Not of memory or processes: Node reserves GBs, and the latter count by user."""
    import resource  # noqa: PLC0415 - only confined servers pay for it

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_CORE, (CORE, CORE))
    try:
        with open("/proc/self/oom_score_adj", "wb", 0) as score:  # noqa: PTH123 - pathlib costs more than all of this
            score.write(OOM_SCORE)
    except OSError:
        pass  # where an outer sandbox forbids it
    if no_new_privileges and prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def below(root: int) -> set[int]:
    """Every process below `root`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", 0) as file:  # noqa: PTH123 - as above
                # A process chooses its own name, which may have parentheses: the last one ends it.
                parent = int(file.read(1024).rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
        children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def descendants(root: int) -> set[int]:
    """What is below `root` as the kernel lists it, for a tenth of what `below` costs; what forks meanwhile may be missed."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
                with open(f"/proc/{pid}/task/{task}/children", "rb", 0) as file:  # noqa: PTH123 - as above
                    new = set(map(int, file.readall().split())) - found
                found |= new
                waiting += new
        except (OSError, ValueError):
            if pid == root:
                return below(root)  # a kernel that was built without these lists
    return found


def memory_of(pids: set[int], enough: int) -> int:
    """Bytes of memory of all `pids`: exact, what is shared counted in parts, only where a quick sum is more than `enough`."""
    quick = sum(pages(f"/proc/{pid}/statm") for pid in pids) * os.sysconf("SC_PAGE_SIZE")
    return quick if quick <= enough else sum(map(own_memory, pids))


def pages(place: str) -> int:
    try:
        with open(place, "rb", 0) as file:  # noqa: PTH123 - as above
            return int(file.read(128).split()[1])
    except (OSError, IndexError, ValueError):
        return 0  # it has ended meanwhile


def own_memory(pid: int) -> int:
    """Bytes of memory of one process, its part of what it shares included."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", 0) as file:  # noqa: PTH123 - as above
            for line in file.read(4096).splitlines():
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return pages(f"/proc/{pid}/statm") * os.sysconf("SC_PAGE_SIZE")


def tasks_of_machine() -> int:
    """How many threads there are on this machine, in one read: where a server starts many processes, so many more."""
    try:
        with open("/proc/loadavg", "rb", 0) as file:  # noqa: PTH123 - as above
            return int(file.read(128).split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return 0


def watch(pid: int) -> int | None:
    """A descriptor that is readable once `pid` has ended; a copy of the commands' pipe in a forked process does not fool it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def read(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    pieces: list[bytes] = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    os.close(descriptor)
    return b"".join(pieces)


def main() -> None:
    """What the program does; its arguments are told above."""
    order_file, commands, report = map(int, sys.argv[-3:])
    order = Order(read(order_file))
    for descriptor in (commands, report):
        os.set_inheritable(descriptor, False)
    prctl(PR_SET_NAME, ctypes.cast(ctypes.c_char_p(b"toolbay-keeper"), ctypes.c_void_p).value or 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = Keeper(order, commands, report)
    if os.getppid() == order.parent and keeper.start():
        keeper.keep()
