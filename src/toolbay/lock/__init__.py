"""Pinned definitions (`toolbay.lock`): what a person has seen of a server is what is offered and called, and nothing else.

Without the file everything is as its server says. With it, a capability that is new or not as it was pinned is quarantined:
neither offered nor callable, until a person accepts it; so is everything of a server that is launched in another way, that
the file does not know, or whose entry cannot be read. Capabilities that are as they were go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from toolbay.config import writing
from toolbay.config.models import ServerConfig
from toolbay.errors import ConfigError
from toolbay.lock.definitions import LISTS, Listed, definitions, digest, identity, launch
from toolbay.lock.pins import INSTRUCTIONS_SHOWN, Mask, Pin, ServerPin, TextPin, diff, told
from toolbay.types import Json, Kind, Subject

__all__ = ["FILE_NAME", "UNPINNED", "Finding", "Lock", "Offered", "Pin", "ServerPin", "Verdicts", "diff", "identity", "told"]

FILE_NAME = "toolbay.lock"
VERSION = 1
MODE = 0o644
"""It holds no secret, and belongs into version control beside the configuration."""

_LISTS_OF = {Kind.TOOL: ("tools",), Kind.RESOURCE: ("resources", "templates"), Kind.PROMPT: ("prompts",), Kind.BUILTIN: ()}
_BY_HAND = "toolbay lock --check shows what it is about, toolbay lock --accept accepts it"


@dataclass(frozen=True, kw_only=True)
class Offered:
    """One server as it is now: what is judged, and what can be pinned."""

    name: str
    config: ServerConfig
    listing: Listed
    instructions: str = ""
    mask: Mask = str

    @property
    def definitions(self) -> dict[Subject, Json]:
        return dict(definitions(self.listing))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as it was pinned. `reason` is `changed`, `new`, `launch`, `unpinned` or `unreadable`."""

    server: str
    subject: Subject | None
    """The capability; None for the server's instructions."""
    reason: str
    pinned: Pin | None = field(default=None, repr=False, compare=False)
    definition: Json = field(default_factory=dict[str, Any], repr=False, compare=False)
    mask: Mask = field(default=str, repr=False, compare=False)

    @property
    def diff(self) -> str:
        """See `pins.diff`."""
        return diff(self.pinned, self.definition, self.mask)

    @property
    def what(self) -> str:
        """For people: `tool read_file`, `instructions`."""
        return "instructions" if self.subject is None else told(self.subject)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What a lock says of one server's present definitions."""

    everything: bool = False
    """Nothing is pinned at all: all that the server lists is good."""
    whole: str = ""
    """Why nothing of the server is accepted, as a sentence; empty where each capability is judged by itself."""
    accepted: frozenset[Subject] = frozenset()
    findings: tuple[Finding, ...] = ()
    gone: tuple[Subject, ...] = ()
    """Pinned, but not listed any more."""
    instructions: bool = True
    """Whether the server's instructions may be given to a model."""

    def allows(self, subject: Subject) -> bool:
        """Whether a capability may be offered and called. A resource that is not listed is judged with its server."""
        if self.everything or subject in self.accepted:
            return True
        if subject[0] != "resources" or self.whole:
            return False
        return not any(finding.subject == subject for finding in self.findings)

    def offers(self, kind: Kind, name: str) -> bool:
        """Whether a listed capability is good. A name that stands in two lists must be so in both."""
        if self.everything:
            return True
        subjects = [(which, name) for which in _LISTS_OF[kind]]
        refused = {finding.subject for finding in self.findings}
        return any(subject in self.accepted for subject in subjects) and not any(subject in refused for subject in subjects)

    def refusal(self, subject: Subject) -> str:
        """Why it may not be called, for a model and for people; empty where it may."""
        if self.allows(subject):
            return ""
        if self.whole:
            return f"nothing of this server may be used: {self.whole}"
        reasons = {finding.subject: finding.reason for finding in self.findings}
        if subject not in reasons:
            return f"the {told(subject)} is not listed any more"
        why = "has changed since it was pinned" if reasons[subject] == "changed" else "is new and not pinned"
        return f"the definition of the {told(subject)} {why} in {FILE_NAME}; a person must look at it first ({_BY_HAND})"

    @property
    def notice(self) -> str:
        """What a person should know, in one sentence; empty where everything is as it was pinned."""
        if self.whole:
            return f"nothing of it is offered: {self.whole}"
        if not self.findings:
            return ""
        listed = ", ".join(f"{finding.what} ({finding.reason})" for finding in self.findings[:20])
        more = f" and {len(self.findings) - 20} more" if len(self.findings) > 20 else ""
        return f"not offered, because not as pinned in {FILE_NAME}: {listed}{more}; {_BY_HAND}"


UNPINNED = Verdicts(everything=True)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The lock file at one moment; a value. Without a file (`is_present` False) it accepts everything."""

    path: Path | None = None
    is_present: bool = False
    fault: str = ""
    """Why the file as a whole cannot be used; then nothing of any server is offered."""
    servers: Mapping[str, ServerPin] = field(default_factory=dict[str, ServerPin])
    broken: frozenset[str] = frozenset()
    """Servers whose entries cannot be read; nothing of them is offered."""
    data: bytes | None = field(default=None, repr=False)
    """The file as it was read."""

    @classmethod
    def load(cls, path: Path | None) -> Lock:
        """The lock of this file. One that is there and cannot be read accepts nothing."""
        if path is None:
            return cls()
        try:
            data = writing.read(path)
        except ConfigError as error:
            return cls(path=path, is_present=True, fault=str(error))
        if data is None:
            return cls(path=path)
        made = cls(path=path, is_present=True, data=data)
        try:
            entries = _entries(data)
        except (ValueError, RecursionError) as error:
            mend = "put the right one back, or delete it and run toolbay lock"
            return replace(made, fault=f"the lock file {path} cannot be read ({str(error)[:200]}): {mend}")
        servers: dict[str, ServerPin] = {}
        broken: set[str] = set()
        for name, entry in entries.items():
            try:
                servers[name] = ServerPin.model_validate(entry)
            except ValidationError:
                broken.add(name)
        return replace(made, servers=servers, broken=frozenset(broken))

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self, offered: Offered) -> Verdicts:
        """What of a server is as it was pinned."""
        if not self.is_present:
            return UNPINNED
        reason, whole = self._whole(offered)
        pinned = self.servers.get(offered.name)
        present = offered.definitions
        if whole or pinned is None:
            findings = tuple(self._finding(offered, subject, item, reason) for subject, item in present.items())
            return Verdicts(whole=whole, findings=findings, instructions=False)
        accepted = frozenset(
            subject for subject, item in present.items() if (pin := pinned.pin(subject)) is not None and pin.sha256 == digest(item)
        )
        findings = [self._finding(offered, subject, item, "") for subject, item in present.items() if subject not in accepted]
        instructions = pinned.instructions.sha256 == digest(offered.instructions)
        if not instructions:
            pin = Pin(sha256=pinned.instructions.sha256, description=pinned.instructions.begins)
            said = {"description": offered.instructions[:INSTRUCTIONS_SHOWN]}
            findings.append(Finding(server=offered.name, subject=None, reason="changed", pinned=pin, definition=said, mask=offered.mask))
        gone = tuple(subject for subject in _subjects(pinned) if subject not in present)
        return Verdicts(accepted=accepted, findings=tuple(findings), gone=gone, instructions=instructions)

    def _whole(self, offered: Offered) -> tuple[str, str]:
        """Why nothing of a server is accepted: a word and a sentence, or nothing."""
        name = offered.name
        if self.fault:
            return "unreadable", self.fault
        if name in self.broken:
            mend = f"put the right one back, or run toolbay lock --accept {name}"
            return "unreadable", f"its entry in the lock file {self.path} cannot be read: {mend}"
        pinned = self.servers.get(name)
        if pinned is None:
            return (
                "unpinned",
                f"it is not pinned in {self.path} yet; toolbay lock --check {name} shows it, toolbay lock --accept {name} accepts it",
            )
        if pinned.identity != identity(offered.config):
            now = offered.mask(launch(offered.config))
            told_launch = f"is now {now!r}, pinned was {pinned.launch!r}" if now != pinned.launch else f"({now!r}) differs in its details"
            return "launch", f"how it is launched or reached has changed since it was pinned: it {told_launch}; {_BY_HAND}"
        return "", ""

    def _finding(self, offered: Offered, subject: Subject, item: Json, reason: str) -> Finding:
        pinned = self.servers.get(offered.name)
        pin = pinned.pin(subject) if pinned else None
        reason = reason or ("changed" if pin else "new")
        return Finding(server=offered.name, subject=subject, reason=reason, pinned=pin, definition=item, mask=offered.mask)

    # -- accepting ----------------------------------------------------------------------------------------------------

    def accept(self, offered: Offered, only: Subject | None = None) -> Lock:
        """A lock in which a server, or `only` one capability of it, is pinned as it is now. Nothing is written.

        Raises:
            ConfigError: the file cannot be read, the server has no such capability, or it is launched in another way than
                was pinned (then it must be accepted whole).
        """
        if self.fault:
            raise ConfigError(f"Nothing was accepted: {self.fault}.")
        if only is None:
            made = _pinned(offered, offered.definitions, TextPin.of(offered.instructions, offered.mask))
        else:
            made = self._with(offered, only)
        servers = {**self.servers, offered.name: made}
        return replace(self, servers=servers, broken=self.broken - {offered.name}, is_present=True)

    def accept_all(self, offered: Mapping[str, Offered | None], only: Subject | None = None) -> Lock:
        """`accept` for each of these servers. None stands for one that is not ready.

        Raises:
            ConfigError: as `accept`, and where a server is not ready.
        """
        lock = self
        for name, one in offered.items():
            if one is None:
                raise ConfigError(f"The server {name!r} is not ready, so what it offers cannot be pinned; nothing was written.")
            lock = lock.accept(one, only)
        return lock

    def _with(self, offered: Offered, only: Subject) -> ServerPin:
        item = offered.definitions.get(only)
        if item is None:
            raise ConfigError(f"The server {offered.name!r} lists no {told(only)}, so it cannot be accepted.")
        pinned = self.servers.get(offered.name)
        if offered.name in self.broken or (pinned and pinned.identity != identity(offered.config)):
            raise ConfigError(
                f"The server {offered.name!r} is not launched as it was pinned, so one {told(only)} alone cannot be accepted: "
                f"look at the whole server, then run toolbay lock --accept {offered.name}."
            )
        added = _pinned(offered, {only: item}, TextPin.of("", offered.mask))
        if pinned is None:
            return added
        before: Mapping[str, Pin] = getattr(pinned, only[0])
        return pinned.model_copy(update={only[0]: {**before, **getattr(added, only[0])}})

    def save(self) -> Lock:
        """Write the file, whole or not at all, and give the lock as it is read back.

        Raises:
            ConfigError: it cannot be written, or somebody else changed it since it was read.
        """
        if self.path is None:
            raise ConfigError("There is no configuration file, and so no place for a lock file beside it: toolbay add makes one.")
        servers = {name: pin.model_dump(mode="json", exclude_defaults=True) for name, pin in self.servers.items()}
        text = json.dumps({"version": VERSION, "servers": servers}, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
        data = text.encode("utf-8", "replace")
        if data != self.data:
            writing.replace(self.path, data, expected=self.data, mode=MODE)
        return Lock.load(self.path)


def _entries(data: bytes) -> Json:
    """
    Raises:
        ValueError: it is no lock file of a version that is known.
    """
    document: Any = json.loads(data, object_pairs_hook=_unique)
    known = cast("Json", document) if isinstance(document, dict) else {}
    servers = known.get("servers")
    if known.get("version") != VERSION or not isinstance(servers, dict):
        raise ValueError(f'it is no object with "version": {VERSION} and "servers"')
    return cast("Json", servers)


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    """What two readers could understand in two ways is understood in none."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands in it twice")
    return made


def _pinned(offered: Offered, items: Mapping[Subject, Json], instructions: TextPin) -> ServerPin:
    lists: dict[str, dict[str, Pin]] = {name: {} for name in LISTS}
    for (which, name), item in items.items():
        try:
            lists[which][name] = Pin.of(item, offered.mask)
        except ValidationError:
            continue  # nested too deep for a digest: it stays in quarantine
    shown = offered.mask(launch(offered.config))
    return ServerPin(identity=identity(offered.config), launch=shown, instructions=instructions, **lists)


def _subjects(pinned: ServerPin) -> Iterable[Subject]:
    for which in LISTS:
        yield from ((which, name) for name in getattr(pinned, which))
