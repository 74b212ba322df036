"""What an examination has to say: findings with their mends, the steps of a start with their times, one report a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from toolbay._text import clean, line
from toolbay.types import Json

if TYPE_CHECKING:
    from toolbay.auth.logins import LoginStatus

LINE = 300
CLAUSE = 2_000
"""Characters of one line that is shown as evidence, and of what a finding says."""


class Level(StrEnum):
    ERROR = "error"
    """The server does not work."""
    WARNING = "warning"
    """It works, and something of it does not."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`what` is so, `why`, and the `mend`: clauses without a full stop. `server` is empty where it concerns all of them."""

    level: Level
    what: str
    why: str
    mend: str
    server: str = ""
    shown: tuple[str, ...] = ()
    """The lines that it was read from."""

    @property
    def text(self) -> str:
        """One line: who, what, why, and what to do."""
        return f"{self.server}: {self.what}: {self.why}; {self.mend}" if self.server else f"{self.what}: {self.why}; {self.mend}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step of a start: how long it took, in seconds (None: it was not passed), and what came of it."""

    name: str
    seconds: float | None
    said: str = ""


class Verdict(StrEnum):
    FINE = "ok"
    WARNED = "warned"
    FAILED = "failed"
    DISABLED = "disabled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All about one server. What it said of itself is its own claim."""

    server: str
    type: str = ""
    target: str = ""
    """Its command or address, without secrets."""
    disabled: bool = False
    ready: bool = False
    title: str = ""
    protocol: str = ""
    """The version that was agreed on."""
    offered: tuple[str, ...] = ()
    """The versions that were offered to it, in order."""
    tools: int = 0
    given: int = 0
    """How many of its capabilities are tools for a model, as the configuration lets them through."""
    resources: int = 0
    prompts: int = 0
    tokens: int = 0
    """About how many tokens the definitions of what is given take in each request to a model."""
    login: LoginStatus | None = None
    """How the login with it stands; None where it uses none."""
    seconds: float = 0.0
    watched: float = 0.0
    """Seconds for which it was watched once it was ready, and did not end."""
    exit_code: int | None = None
    trace: tuple[Step, ...] = ()
    findings: tuple[Finding, ...] = ()
    stderr: tuple[str, ...] = ()
    """Its last lines."""

    @property
    def verdict(self) -> Verdict:
        levels = {finding.level for finding in self.findings}
        if Level.ERROR in levels:
            return Verdict.FAILED
        if self.disabled:
            return Verdict.DISABLED
        return Verdict.WARNED if Level.WARNING in levels else Verdict.FINE

    @property
    def era(self) -> str:
        """How it was greeted, where that came to an end."""
        from toolbay.upstream.engine import MODERN_PROTOCOL  # noqa: PLC0415 - not before a server was asked

        return "" if not self.protocol else "discover" if self.protocol >= MODERN_PROTOCOL else "initialize"


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """The reports of the servers that were looked at, in the order of the configuration, and what concerns all of them."""

    reports: tuple[Report, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def failed(self) -> bool:
        return any(report.verdict is Verdict.FAILED for report in self.reports) or any(one.level is Level.ERROR for one in self.findings)

    def as_json(self) -> Json:
        return {
            "ok": not self.failed,
            "servers": [{**asdict(report), "verdict": report.verdict.value, "era": report.era} for report in self.reports],
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(kw_only=True, slots=True)
class Notes:
    """Gathers the findings of one server (or of all: no name). Whatever is put in comes out masked and bounded."""

    server: str = ""
    safe: Callable[[str], str] = str
    findings: list[Finding] = field(default_factory=list[Finding])

    def error(self, what: str, why: str, mend: str, shown: Iterable[str] = ()) -> None:
        self._add(Level.ERROR, what, why, mend, shown)

    def warning(self, what: str, why: str, mend: str, shown: Iterable[str] = ()) -> None:
        self._add(Level.WARNING, what, why, mend, shown)

    def note(self, what: str, why: str, mend: str, shown: Iterable[str] = ()) -> None:
        self._add(Level.NOTE, what, why, mend, shown)

    def _add(self, level: Level, what: str, why: str, mend: str, shown: Iterable[str]) -> None:
        told = Finding(
            level=level,
            server=self.server,
            what=self._clause(what),
            why=self._clause(why),
            mend=self._clause(mend),
            shown=tuple(line(self.safe(clean(text)), LINE) for text in shown),
        )
        if told not in self.findings:
            self.findings.append(told)

    def _clause(self, text: str) -> str:
        return line(self.safe(clean(text)), CLAUSE).rstrip(".")

    @property
    def failed(self) -> bool:
        return any(finding.level is Level.ERROR for finding in self.findings)
