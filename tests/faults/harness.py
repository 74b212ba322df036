"""One case of the fault matrix (security.md 4.3): a whole App with a faulty server and a healthy one, and what must hold after it.

    async with case("P4", "dies after the effect", raw("--die-on", "note")) as bay:
        result = await bay.call("note")
        bay.told(result, Outcome.UNKNOWN, "exit code 7")

When the block ends all invariants are checked, and a row is added to the report:

I1 no process is left          I2 effects, counted by the server, fit the calls and their outcomes
I3 memory, descriptors, tasks  I4 the healthy server's latency, the loop's stalls
I5 one error for the model     I6 state, events and results agree          I7 close() < 5 s
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import anyio

from faults import report
from faults.pulse import BEAT, Figures, Pulse, crowding, resident
from support.connections import raw
from support.processes import MARK, Footprint, eventually, leftovers, marked
from support.servers import Entry
from toolbay import App, parse
from toolbay.events import CallFinished, CallStarted, Event, ServerChanged
from toolbay.types import CallContext, Json, Outcome, ToolResult
from toolbay.upstream.state import State

SECRET = "canary-of-the-fault-matrix"
"""Given to each faulty server in its environment (`FAULT_SECRET`) or a header, for it to say where it can; nobody else may."""
HEALTHY, FAULTY = "healthy", "faulty"
GONE = 5.0
"""Seconds after a close in which the last process must be gone, and in which the close itself must be done."""
GROWTH = 64.0
"""MB."""
LATENCY, STALL = 0.050, 0.100
"""Seconds, on a quiet machine."""
QUIET = 0.25
"""Seconds of measuring before the fault."""
ERROR_LENGTH = 500
WORKERS = 40
"""Threads that the event loop keeps for the next work of that kind: at the most so many."""
MAY_HAVE_RUN = re.compile(r"may have (taken effect|run)", re.IGNORECASE)


@dataclass(frozen=True)
class Allowance:
    """What a case may do more than others, each for a reason that stands beside it."""

    peak: float = GROWTH
    """MB of memory while it runs."""
    growth: float = GROWTH
    """MB of memory that may stay."""
    latency: float = LATENCY
    stall: float = STALL
    logged: str = r"(?!)"
    """Errors in the log that belong to the case."""
    own_words: bool = False
    """Failed calls that have run say what their tools say, which need not name anybody and may be long."""
    started_late: bool = False
    """The faulty servers are started by the test itself, with `Bay.start`."""


class Bay:
    """The running App of a case, and shorter words for what its test asks."""

    def __init__(self, row: str, folder: Path, servers: Mapping[str, Entry], settings: Json) -> None:
        self.row = row
        self.folder = folder
        self.mark = marked()[MARK]
        self.servers = {name: self._entry(name, entry) for name, entry in servers.items()}
        self._settings = settings
        self._healthy = self._entry(HEALTHY, raw())
        self.app = App(self._config({}))
        self.heard: list[Event] = []
        self.results: list[tuple[str, str, str, ToolResult]] = []
        """Server, tool, id and result of every call that came back."""
        self.cut: Counter[tuple[str, str]] = Counter()
        """Calls that were cancelled, by server and tool: each may have had its effect."""
        self.counted: Callable[[str], Counter[str]] = self.lines
        """Effects by tool, as the server of that name counted them; give another one for servers that write no file."""
        self.quiet = Figures()

    def _entry(self, name: str, entry: Entry) -> Entry:
        if "command" not in entry:
            return {**entry, "headers": {**entry.get("headers", {}), "X-Fault-Secret": SECRET}}
        told = {MARK: self.mark, "RAW_EFFECTS": str(self.folder / f"{name}.effects"), "RAW_STARTS": str(self.folder / f"{name}.starts")}
        return {**entry, "env": {**entry.get("env", {}), **told, **({} if name == HEALTHY else {"FAULT_SECRET": SECRET})}}

    def _config(self, servers: Mapping[str, Entry]) -> Any:
        return parse({"mcpServers": {HEALTHY: self._healthy, **servers}, **self._settings})

    def lines(self, server: str) -> Counter[str]:
        """Effects that a program wrote down."""
        file = self.folder / f"{server}.effects"
        return Counter(file.read_text().split("\n")[:-1] if file.exists() else ())

    # -- what a test does ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the faulty servers, and wait until they are settled (or 15 s)."""
        await self.reload(self.servers)

    async def reload(self, servers: Mapping[str, Entry]) -> None:
        """Go on with these beside the healthy one; they are entries of `self.servers`, changed or left out."""
        await self.app.reload(self._config(servers))

    async def call(self, tool: str, arguments: Json | None = None, *, server: str = FAULTY, **more: Any) -> ToolResult:
        """Call a tool as the agent would. Its result is judged when the case ends."""
        call_id = uuid.uuid4().hex
        try:
            result = await self.app.registry.call(f"mcp_{server}_{tool}", arguments or {}, CallContext(call_id=call_id, **more))
        except asyncio.CancelledError:
            self.cut[server, tool] += 1
            raise
        # Of what went well the beginning is enough: in a long walk whole texts would look like a leak.
        kept = result if result.is_error else replace(result, text=result.text[:200], structured=None, artifacts=())
        self.results.append((server, tool, call_id, kept))
        return result

    async def well(self, tool: str = "echo", text: str = "still here", *, server: str = FAULTY) -> None:
        """A call that must go well."""
        result = await self.call(tool, {"text": text}, server=server)
        assert (result.is_error, result.text) == (False, text), result.text

    def state(self, server: str = FAULTY) -> str:
        return self.app.servers[server].state

    def error(self, server: str = FAULTY) -> str:
        return self.app.servers[server].error

    def pid(self, server: str = FAULTY) -> int:
        pid = self.app.servers[server].pid
        assert pid is not None, f"{server} is {self.state(server)}"
        return pid

    async def reaches(self, state: str, server: str = FAULTY, seconds: float = 15.0) -> None:
        await eventually(lambda: self.state(server) == state, f"{server} being {state}", seconds)

    def states(self, server: str = FAULTY) -> list[str]:
        """All that it was, in order, as the events told it."""
        return [event.state for event in self.heard if isinstance(event, ServerChanged) and event.server == server]

    def starts(self, server: str = FAULTY) -> int:
        """How many processes of it there were, as they noted themselves."""
        file = self.folder / f"{server}.starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def attempts(self, server: str = FAULTY) -> int:
        """How often it was tried to bring it up."""
        return self.states(server).count("connecting")

    def effects(self, server: str = FAULTY) -> Counter[str]:
        return self.counted(server)

    def told(self, result: ToolResult, outcome: Outcome, *causes: str) -> None:
        """The call failed with this outcome, and the model reads these causes."""
        assert result.is_error, result.text
        assert result.outcome is outcome, result.text
        for cause in causes:
            assert re.search(cause, result.text, re.IGNORECASE), f"{cause!r} is not said in: {result.text}"

    # -- what must hold -----------------------------------------------------------------------------------------------

    def errors(self, allowance: Allowance) -> list[str]:
        """I5: of each failed call."""
        broken: list[str] = []
        for server, tool, _, result in self.results:
            if not result.is_error:
                continue
            text = result.text
            theirs = allowance.own_words and result.outcome is Outcome.EXECUTED
            if len(text) > ERROR_LENGTH and not theirs:
                broken.append(f"I5 an error of {len(text)} characters: {text[:80]}")
            if server not in text and tool not in text and not theirs:
                broken.append(f"I5 an error that names neither {server} nor {tool}: {text}")
            if bool(MAY_HAVE_RUN.search(text)) is not (result.outcome is Outcome.UNKNOWN):
                broken.append(f"I5 the outcome is {result.outcome}, and the model is told: {text}")
            if SECRET in text:
                broken.append("I5 a secret is in what the model is told")
        for name, status in self.app.servers.items():
            if status.error and (len(status.error) > ERROR_LENGTH or name not in status.error or SECRET in status.error):
                broken.append(f"I5 the state's error of {name}: {status.error[:600]}")
        return broken

    def agreement(self) -> list[str]:
        """I6: states and events, results and events."""
        broken: list[str] = []
        for name in self.servers:
            last = next((event for event in reversed(self.heard) if isinstance(event, ServerChanged) and event.server == name), None)
            status = self.app.servers[name]
            if last is None:
                broken.append(f"I6 nothing was told of {name}, which is {status.state}")
            elif (last.state, last.error) != (status.state, status.error if status.state != State.CONNECTING else last.error):
                broken.append(f"I6 {name} is {status.state} ({status.error}), and was last told to be {last.state} ({last.error})")
        started = Counter(event.call_id for event in self.heard if isinstance(event, CallStarted))
        finished: dict[str, list[CallFinished]] = {}
        for event in self.heard:
            if isinstance(event, CallFinished):
                finished.setdefault(event.call_id, []).append(event)
        for server, tool, call_id, result in self.results:
            ends = finished.get(call_id, [])
            if started[call_id] != 1 or len(ends) != 1:
                broken.append(f"I6 a call of {server} {tool} was begun {started[call_id]} and ended {len(ends)} times in the events")
            elif (ends[0].outcome, ends[0].is_error) != (result.outcome, result.is_error):
                broken.append(f"I6 a call of {server} {tool} came to {result.outcome}, and the events say {ends[0].outcome}")
        if any(SECRET in repr(event) for event in self.heard):
            broken.append("I6 a secret is in an event")
        return broken

    def effects_agree(self) -> list[str]:
        """I2: per tool, as many effects as calls that were executed, and at most those besides of which nobody knows."""
        broken: list[str] = []
        for server in self.servers:
            seen = self.effects(server)
            for tool in {name for at, name, *_ in self.results if at == server} | {name for at, name in self.cut if at == server}:
                of = Counter(result.outcome for at, name, _, result in self.results if (at, name) == (server, tool))
                well = sum(1 for at, name, _, result in self.results if (at, name) == (server, tool) and not result.is_error)
                most = of[Outcome.EXECUTED] + of[Outcome.UNKNOWN] + self.cut[server, tool]
                if not well <= seen[tool] <= most:
                    broken.append(f"I2 {server} {tool} took effect {seen[tool]} times, and the calls came to {dict(of)}")
        return broken

    def quickness(self, during: Figures, allowance: Allowance) -> list[str]:
        """I4: bounds of a quiet machine, or what this one does without a fault, several times over; more where others crowd it."""
        broken = [f"I4 the healthy server failed {len(during.failures)} times: {during.failures[0]}"] if during.failures else []
        latency = max(allowance.latency, 4 * self.quiet.p99 + 0.02) * crowding()
        stall = max(allowance.stall, 4 * self.quiet.stall + 0.02) * crowding()
        if during.p99 > latency:
            broken.append(f"I4 p99 {during.p99 * 1000:.0f} ms, allowed {latency * 1000:.0f}")
        if during.stall > stall:
            broken.append(f"I4 the loop stood still for {during.stall * 1000:.0f} ms, allowed {stall * 1000:.0f}")
        return broken

    @property
    def outcome(self) -> str:
        counts = Counter(str(result.outcome) for *_, result in self.results if result.is_error)
        counts["answered"] = sum(1 for *_, result in self.results if not result.is_error)
        counts["cancelled"] = self.cut.total()
        return ", ".join(f"{name} x{count}" for name, count in counts.items() if count) or self.state_line

    @property
    def state_line(self) -> str:
        return ", ".join(f"{name} {self.state(name)}" for name in self.servers if name in self.app.servers)

    @property
    def said(self) -> str:
        """The first error of a call, else what the state says."""
        failed = [result.text for *_, result in self.results if result.is_error]
        return failed[0] if failed else next((self.error(name) for name in self.servers if name in self.app.servers), "")


class _Errors(logging.Handler):
    """Errors in the log, and secrets at any level of ours."""

    def __init__(self, allowed: str) -> None:
        super().__init__(logging.DEBUG)
        self._allowed = re.compile(allowed)
        self.broken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR and not self._allowed.search(text):
            self.broken.append(f"I6 the log has an error of {record.name}: {text[:6000]} {record.exc_info and record.exc_info[1]!r}")
        if SECRET in text:
            self.broken.append(f"I6 a secret is in the log of {record.name}")


@asynccontextmanager
async def case(
    row: str,
    fault: str,
    servers: Entry | Mapping[str, Entry],
    *,
    allowance: Allowance = Allowance(),
    settings: Json | None = None,
) -> AsyncGenerator[Bay]:
    """Run a case; see above. `servers` is the faulty one's entry, or several by name; `settings` are further keys of the configuration."""
    named = cast("Mapping[str, Entry]", {FAULTY: servers} if isinstance(servers.get("type"), str) else servers)
    await _warm()
    errors = _Errors(allowance.logged)
    logging.getLogger().addHandler(errors)
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with _checked(Bay(row, Path(folder), named, settings or {}), fault, allowance, errors) as bay:
                yield bay
    finally:
        logging.getLogger().removeHandler(errors)


@asynccontextmanager
async def _checked(bay: Bay, fault: str, allowance: Allowance, errors: _Errors) -> AsyncGenerator[Bay]:
    gc.collect()
    before, tasks, memory = Footprint.now(), set(asyncio.all_tasks()), resident()
    broken: list[str] = []
    failure: BaseException | None = None
    seconds, state, told = 0.0, "", ""
    pulse = Pulse(lambda: _beat(bay))
    with bay.app.events.listen(bay.heard.append):
        await bay.app.__aenter__()
        try:
            status = await bay.app.ready(HEALTHY)
            assert status.state == State.READY, status.error
            async with anyio.create_task_group() as group:
                group.start_soon(pulse.beat)
                group.start_soon(pulse.call)
                await anyio.sleep(QUIET)
                bay.quiet, pulse.figures, began = pulse.figures, Figures(), time.perf_counter()
                try:
                    if not allowance.started_late:
                        await bay.start()
                    yield bay
                    broken += bay.errors(allowance) + bay.agreement()
                except BaseException as error:
                    failure = error
                seconds = time.perf_counter() - began
                await anyio.sleep(2 * BEAT)  # so that what held up the loop at the very end is seen
                state, told = bay.outcome, bay.said
                group.cancel_scope.cancel()
        finally:
            closing = time.perf_counter()
            await bay.app.__aexit__(None, None, None)
            close = time.perf_counter() - closing
    during = pulse.figures
    if close >= GONE:
        broken.append(f"I7 the close took {close:.1f} s")
    broken += await _left(bay, before, tasks)
    gc.collect()
    grown = resident() - memory
    if grown > allowance.growth:
        broken.append(f"I3 {grown:.0f} MB of memory stayed")
    if during.peak - memory > allowance.peak:
        broken.append(f"I3 {during.peak - memory:.0f} MB of memory at the most, allowed {allowance.peak:.0f}")
    broken += bay.effects_agree() + bay.quickness(during, allowance) + errors.broken
    shown = tuple(broken) if failure is None else (f"{type(failure).__name__}: {failure}"[:300], *broken)
    report.rows.append(
        report.Row(
            row=bay.row,
            fault=fault,
            outcome=state,
            seconds=seconds,
            told=told,
            starts=sum(bay.starts(name) for name in bay.servers),
            p99=(during.p99, bay.quiet.p99),
            stall=(during.stall, bay.quiet.stall),
            memory=(grown, during.peak - memory),
            close=close,
            broken=shown,
        )
    )
    if failure is not None:
        raise failure
    assert not broken, "\n".join(broken)


async def _beat(bay: Bay) -> str:
    """One call of the healthy server, whose events are nobody's business."""
    result = await bay.app.call(f"mcp_{HEALTHY}_echo", {"text": "x"})
    return result.text if result.is_error or result.text != "x" else ""


async def _left(bay: Bay, before: Footprint, tasks: set[asyncio.Task[Any]]) -> list[str]:
    """I1 and I3, after a close: processes, descriptors and tasks that are still there after a while."""

    def remains() -> list[str]:
        found = [f"I1 a process is left: {process}" for process in leftovers(bay.mark)]
        if grown := before.grown(allowed_threads=WORKERS):
            found.append(f"I3 {grown}")
        if more := [task for task in asyncio.all_tasks() - tasks if task is not asyncio.current_task()]:
            found.append(f"I3 tasks are left: {sorted(task.get_name() for task in more)}")
        return found

    try:
        await eventually(lambda: not remains(), seconds=GONE)
    except AssertionError:
        return remains()
    return []


_warmed = False


async def _warm() -> None:
    """Once in a process: load what an App loads late, so that it does not count as growth of the first case."""
    global _warmed  # noqa: PLW0603
    if _warmed:
        return
    async with App(parse({"mcpServers": {HEALTHY: raw()}})) as app:
        await app.ready(HEALTHY)
        await app.call(f"mcp_{HEALTHY}_echo", {"text": json.dumps("x")})
    _warmed = True
