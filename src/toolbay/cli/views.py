"""Events as lines that a person reads: servers as they start, calls as they run."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from toolbay._text import duration
from toolbay.cli.terminal import DIM, GREEN, RED, YELLOW, Terminal, one_line, plural
from toolbay.config.models import Config, InvalidServer
from toolbay.events import (
    ApprovalAnswered,
    ApprovalAsked,
    CallFinished,
    CallProgressed,
    CallStarted,
    ConfigReloaded,
    Event,
    Notice,
    ServerChanged,
    ServerLog,
    TextArrived,
    TurnFinished,
)
from toolbay.types import Outcome, Progress, Reloaded
from toolbay.upstream.launch import SEARCHED

_HEAD_LINES: Final = 3
_LINE: Final = 200
_ERROR_LINE: Final = 600
"""More than one of our errors has: what may be cut off would be its end, which says whether the call took effect."""
_OUTCOMES: Final = {Outcome.UNKNOWN: " (it may have taken effect)", Outcome.NOT_EXECUTED: " (not carried out)"}
_QUIET_LEVELS: Final = frozenset({"debug"})
_NUMBERS: Final = re.compile(r"[0-9][0-9A-Fa-f_.:-]*")
"""What differs between two tellings of one reason: process ids, times, names of log files."""
_DOWN: Final = frozenset({"waiting", "paused", "failed", "needs_auth", "invalid"})
_IN_WORDS: Final = {"needs_auth": "needs a login"}
_LOUD_LEVELS: Final = frozenset({"warning", "error", "critical", "alert", "emergency"})


class Status(Protocol):
    """What this view needs of a server's status."""

    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def settled(self) -> bool: ...
    @property
    def remembered(self) -> bool: ...
    @property
    def retry_in(self) -> float | None: ...


class ServersView:
    """One line for each server that became ready or could not: `✓ time ready in 0.8 s, 2 tools`.

    After that only what changes for a person: that it is left alone for a while, given up, or back. No reason is told twice.
    """

    def __init__(
        self,
        terminal: Terminal,
        *,
        chatty: bool,
        asides: bool = True,
        whole: bool = False,
        offered: Callable[[str], int] | None = None,
    ) -> None:
        """`chatty`: tell of each server that becomes ready. `asides`: tell which of its tools are left out, and why.

        `whole`: tell why a server failed to the end, however long that is.
        `offered`: how many of a server's tools are not kept back, as those are that are not as they were pinned.
        """
        self._offered = offered
        self._terminal = terminal
        self._chatty = chatty
        self._asides = asides
        self._whole = whole
        self._down: dict[str, str] = {}
        self._reasons: dict[str, set[str]] = {}
        self._ready: set[str] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ServerChanged):
            self.tell(event.server, event.state, event.error, tools=event.tools, seconds=event.seconds, retry_in=event.retry_in)
        elif isinstance(event, Notice) and (self._asides or not event.aside):
            # What may have taken effect is told once, so quiet does not hide it.
            tell = self._terminal.warn if event.about == "unfinished" else self._terminal.say
            tell(f"! {event.server}: {event.text}" if event.server else f"! {event.text}", YELLOW)

    def tell(self, server: str, state: str, error: str, *, tools: int = 0, seconds: float = 0.0, retry_in: float | None = None) -> None:
        """A server's state, unless it says no more than what was told of it last."""
        name = one_line(server)
        if state == "ready":
            self._ready.add(server)
            if self._down.pop(server, None) is not None or self._chatty:
                offered = tools if self._offered is None else self._offered(server)
                kept_back = "" if offered >= tools else f" (and {tools - offered} kept back: toolbay lock --check {shlex.quote(name)})"
                self._terminal.say(f"✓ {name} ready in {seconds:.1f} s, {plural(min(offered, tools), 'tool')}{kept_back}", GREEN)
        elif state in _DOWN and self._down.get(server) != state and (state != "waiting" or server not in self._down):
            first = server not in self._down
            self._down[server] = state
            if state == "needs_auth":
                self._terminal.warn(f"✗ {self._wanted(server, name, error)}", RED)
                return
            reason = self._new_reason(server, name, error or state)
            if state == "paused":
                self._terminal.say(f"! {name} {standing(state, retry_in)}{f': {reason}' if reason else ''}", YELLOW)
            elif state == "waiting" and server in self._ready:
                again = f"next try{_in(retry_in)}" if retry_in else "it is started again"
                self._terminal.say(f"! {reason or f'{name} went away again'}; {again}", YELLOW)
            else:
                said = reason or f"{name} {'failed again' if first else 'is given up'}"
                self._terminal.warn(f"✗ {said} (toolbay doctor {shlex.quote(name)} says more)", RED)

    def _new_reason(self, server: str, name: str, error: str) -> str:
        """Why, in one line that is not too long; empty where that was told of this server before, whatever number it has in it."""
        told = self._reasons.setdefault(server, set())
        said = one_line(_said_of(name, error.partition(f" ({SEARCHED}")[0]))
        kind = _NUMBERS.sub("", said)[:_LINE]
        if kind in told:
            return ""
        told.add(kind)
        return one_line(said, 0 if self._whole else _LINE)

    def _wanted(self, server: str, name: str, error: str) -> str:
        """What a server wants that is not let in, and what to do, however often it was told: a login ends again and again.

        Of one that was ready, what more is known of the reason is told by the call that met it.
        """
        said = one_line(_said_of(name, error or standing("needs_auth", None)), 0 if self._whole else _LINE)
        return said.partition(" (")[0] if server in self._ready else said

    def unfinished(self, servers: Mapping[str, Status]) -> None:
        """Tell what no event told: servers that failed before anybody listened, and those that still start."""
        known = [one_line(name) for name, status in servers.items() if status.remembered and not status.settled]
        if known and self._chatty:
            self._terminal.say(f"… {', '.join(known)} still starting; what they listed last time is offered meanwhile", DIM)
        for name, status in servers.items():
            if status.state == "ready" or not name or (status.remembered and not status.settled):
                continue
            if status.settled:
                self.tell(name, "waiting" if status.state == "connecting" else status.state, status.error, retry_in=status.retry_in)
            else:
                self._terminal.say(f"… {one_line(name)} still starting, going on without it", YELLOW)


class ReloadsView:
    """What is wrong with each new configuration; and of a reload that nobody asked for here what it did, or why it could not."""

    def __init__(self, terminal: Terminal, faults: Callable[[], Collection[str]], servers: Callable[[], Mapping[str, Status]]) -> None:
        """`faults`: what is wrong with the configuration at this moment. What is so from the beginning is told elsewhere.

        `servers`: how they are at this moment.
        """
        self._terminal = terminal
        self._faults = faults
        self._servers = servers
        self._told = faults()
        self.asked = False
        """Whether a person asked for one just now, and is answered elsewhere."""

    def __call__(self, event: Event) -> None:
        if not isinstance(event, ConfigReloaded):
            return
        told, self._told = self._told, self._faults()
        for fault in self._told:
            if fault not in told:
                self._terminal.say(f"! {fault}", YELLOW)
        if self.asked:
            return
        if event.error:
            self._terminal.warn(f"! not reloaded: {event.error}", YELLOW)
        elif done := what_changed(event, self._servers()):
            self._terminal.say(f"(reloaded: {done})", DIM)


def faults_of(config: Config) -> list[str]:
    """What people should know of a configuration that can be used as a whole: its problems, and servers that cannot be used."""
    told = [f"{problem.where}: {problem.text}" for problem in config.problems]
    invalid = [entry for entry in config.tools.mcp_servers.values() if isinstance(entry, InvalidServer)]
    return [*told, *(fault for entry in invalid for fault in entry.told)]


def what_changed(done: Reloaded, servers: Mapping[str, Status]) -> str:
    """`added time; changed files`, or empty; `servers` as they are since."""
    locked = [name for name in done.failed if name in servers and servers[name].state == "needs_auth"]
    parts = {
        "added": done.added,
        "changed": done.changed,
        "removed": done.removed,
        "tried again": done.retried,
        "connected": done.connected,
        "failed": [name for name in done.failed if name not in locked],
        standing("needs_auth", None): locked,
    }
    return "; ".join(f"{what} {', '.join(map(one_line, names))}" for what, names in parts.items() if names)


def standing(state: str, retry_in: float | None) -> str:
    """A server's state in words: `ready`, `waiting, next try in 4 s`, `paused until 14:03:22, then tried once more`."""
    if retry_in is None:
        return _IN_WORDS.get(state, state)
    if state == "paused":
        return f"paused until {time.strftime('%H:%M:%S', time.localtime(time.time() + retry_in))}, then tried once more"
    return f"{state}, next try{_in(retry_in)}"


def _in(seconds: float | None) -> str:
    return f" in {duration(seconds)}" if seconds else ""


class CallsView:
    """A turn as it runs: the answer's text to stdout; calls, their progress and servers' log messages to stderr."""

    def __init__(
        self, terminal: Terminal, *, session: str = "", answer: bool = False, calls: bool = True, stop: Callable[[], None] | None = None
    ) -> None:
        """`answer`: stream the text of this `session`; `calls`: show calls and results, besides progress and logs.

        `stop` is called when who reads us has gone away (`| head`): nobody needs the rest.
        """
        self._stop = stop
        self._terminal = terminal
        self._session = session
        self._answer = answer
        self._show_calls = calls
        self._steps: dict[str, tuple[int, str | None]] = {}
        self._running: dict[str, str] = {}
        self._writing = False
        self._asking = False
        self.text = ""
        """All that was streamed."""
        self.calls: list[CallFinished] = []
        self.steps = 0
        """Of the turn, once it is over."""
        self._broken = False

    @property
    def status(self) -> str:
        """What is being waited for; empty while text arrives, and while a person is asked."""
        if self._asking:
            return ""
        if self._running:
            return "; ".join(self._running.values())
        return "" if self._writing else "thinking"

    def check(self) -> None:
        """
        Raises:
            BrokenPipeError: nobody reads us any more.
        """
        if self._broken:
            raise BrokenPipeError

    def __call__(self, event: Event) -> None:
        try:
            self._show(event)
        except BrokenPipeError:
            self._broken = True
            if self._stop is not None:
                self._stop()

    def _show(self, event: Event) -> None:
        match event:
            case TextArrived() if not self._session or event.session == self._session:
                self._writing = True
                self.text += event.text
                if self._answer:
                    self._terminal.stream(event.text)
            case CallStarted():
                self._writing = False
                self._running[event.call_id] = event.tool
                if self._answer:
                    self._terminal.end_line()
                if self._show_calls:
                    self._terminal.say(f"→ {event.tool} {one_line(event.arguments, _LINE)}", DIM)
            case ApprovalAsked() | ApprovalAnswered():
                self._asking = isinstance(event, ApprovalAsked)
            case CallProgressed():
                self._progress(event.call_id, event.tool, event.progress)
            case CallFinished():
                self._steps.pop(event.call_id, None)
                self._running.pop(event.call_id, None)
                self.calls.append(event)
                if self._show_calls:
                    self._finished(event)
            case ServerLog():
                self._log(event)
            case TurnFinished() if not self._session or event.session == self._session:
                self.steps = event.steps
            case _:
                pass

    def _finished(self, event: CallFinished) -> None:
        lines = [line for line in event.text.splitlines() if line.strip()]
        outcome = f"error{_OUTCOMES.get(event.outcome, '')}" if event.is_error else plural(len(lines), "line")
        self._terminal.say(f"← {outcome}, {event.seconds:.1f} s", RED if event.is_error else DIM)
        for line in _head(lines, _ERROR_LINE if event.is_error else _LINE):
            self._terminal.say(f"  {line}", DIM)

    def _progress(self, call: str, tool: str, progress: Progress) -> None:
        told = f"{tool} {told_progress(progress)}"
        self._running[call] = told
        # Where nothing moves every line stays: only steps that a reader would miss.
        step = int(10 * progress.progress / progress.total) if progress.total else 0
        if not self._terminal.live and self._steps.get(call) != (step, progress.message):
            self._steps[call] = (step, progress.message)
            self._terminal.say(f"· {told}")

    def _log(self, event: ServerLog) -> None:
        if event.level in _QUIET_LEVELS and self._terminal.verbosity < 1:
            return
        self._terminal.say(f"[{event.server}] {event.level}: {one_line(event.text, _LINE)}", YELLOW if event.level in _LOUD_LEVELS else DIM)


def _said_of(name: str, error: str) -> str:
    """`error`, with the server's name before it unless it begins with that itself."""
    return error if name in {word.strip("\"'`:") for word in error.split()[:2]} else f"{name}: {error}"


def told_progress(progress: Progress) -> str:
    """`40 %, copying` or `3, copying`."""
    amount = f"{100 * progress.progress / progress.total:.0f} %" if progress.total else f"{progress.progress:g}"
    return f"{amount}, {one_line(progress.message, _LINE)}" if progress.message else amount


def _head(lines: list[str], width: int) -> Iterable[str]:
    for line in lines[:_HEAD_LINES]:
        indent = len(line) - len(line.lstrip(" "))
        yield " " * indent + one_line(line, width)
    if len(lines) > _HEAD_LINES:
        yield "…"
