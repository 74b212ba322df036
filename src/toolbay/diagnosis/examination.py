"""All servers of a configuration, looked at side by side: each is started as it would be, and closed again.

An examination takes as long as the slowest start may (`startupTimeout`). It writes nothing, calls no tool and keeps nothing open.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.to_thread

from toolbay._redact import Secrets, argv
from toolbay._redact import url as shown_url
from toolbay.auth.logins import Logins, LoginStatus, takes_login
from toolbay.auth.store import Files, Store
from toolbay.config import data_home
from toolbay.config.launchers import unpinned
from toolbay.config.models import Config, InvalidServer, RestartPolicy, ServerConfig, TransportType
from toolbay.config.networks import with_network
from toolbay.diagnosis import evidence, fetched, launching, locks, offers, programs, reaching
from toolbay.diagnosis.findings import Examination, Notes, Report
from toolbay.diagnosis.reaching import Reach
from toolbay.diagnosis.session import Recording
from toolbay.events import Event, Events, Notice, ServerChanged
from toolbay.fleet import Fleet, ServerStatus
from toolbay.lock import FILE_NAME, Lock
from toolbay.lock import Finding as Quarantined
from toolbay.registry import Registry
from toolbay.types import Artifact, Tool
from toolbay.upstream.engine import OpenEngine
from toolbay.upstream.engines import load, official, with_credentials

TOKEN_BYTES = 4
"""Bytes of JSON that a token stands for, about, in any model."""
STAY = 0.5
"""Seconds for which a program that is ready is watched: some end as soon as they are. What is reached over HTTP runs already."""
_ONCE = RestartPolicy(enabled=False)


@dataclass(kw_only=True, slots=True)
class _Patient:
    """A server that is started, and what was found out about it so far."""

    name: str
    config: ServerConfig
    notes: Notes
    reach: Reach = field(default_factory=Reach)
    status: ServerStatus | None = None
    login: LoginStatus | None = None
    """None where it uses none."""
    tools: list[Tool] = field(default_factory=list[Tool])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    remarks: list[Notice] = field(default_factory=list[Notice])
    became_ready: float | None = None
    ended: float | None = None
    """When, on the loop's clock; it is ended here where nothing else did."""

    def take(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.remarks.append(event)
        elif isinstance(event, ServerChanged) and event.state == "ready":
            self.became_ready = anyio.current_time()
        elif isinstance(event, ServerChanged) and self.became_ready is not None and self.ended is None:
            self.ended = anyio.current_time()

    @property
    def runs_here(self) -> bool:
        return self.config.type is TransportType.STDIO

    @property
    def lived(self) -> float | None:
        """Seconds between both, for one that did not stay."""
        return None if self.ready or self.became_ready is None or self.ended is None else self.ended - self.became_ready

    @property
    def ready(self) -> bool:
        return self.status is not None and self.status.state == "ready"


class _Nowhere:
    """A store that keeps nothing: an examination calls no tool, so nothing comes that would be kept."""

    async def save(self, data: bytes, *, media_type: str = "") -> Artifact:
        del data, media_type
        raise OSError(errno.EROFS, "an examination keeps no files")


async def examine(
    config: Config,
    names: Collection[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    open_engine: OpenEngine = official,
    store: Store | None = None,
    stay: float = STAY,
) -> Examination:
    """Look at the servers of `config`: all that are not disabled, or just those in `names`, disabled or not.

    Each program that becomes ready is watched for `stay` seconds from then on. They are asked with the logins in `store` (default:
    those of this user); that renews them, as any use does.
    """
    around = os.environ if environ is None else environ
    secrets = Secrets(config.secrets)
    logins = Logins(store or Files(data_home(around) / "logins"), secrets=secrets)
    ward = _Ward(config, around, Recording(with_credentials(open_engine, logins.of)), logins, stay)
    return await ward.examine(names)


class _Ward:
    def __init__(self, config: Config, environ: Mapping[str, str], engine: Recording, logins: Logins, stay: float) -> None:
        self._config = config
        self._environ = environ
        self._engine = engine
        self._stay = stay
        self._logins = logins
        self._safe = logins.secrets.mask
        self._general = Notes(safe=self._safe)
        self._lock = Lock.load(config.path.parent / FILE_NAME if config.path else None)

    async def examine(self, names: Collection[str]) -> Examination:
        known = self._config.tools.mcp_servers
        chosen = {name: entry for name, entry in known.items() if not names or name in names}
        reports: dict[str, Report] = {}
        patients: dict[str, _Patient] = {}
        for name, entry in chosen.items():
            notes = Notes(server=name, safe=self._safe if isinstance(entry, InvalidServer) else self._logins.safe_of(name, entry))
            self._tell_problems(name, notes)
            if isinstance(entry, InvalidServer):
                self._tell_invalid(entry, notes)
                reports[name] = Report(server=name, findings=tuple(notes.findings))
            elif entry.disabled and name not in names:
                reports[name] = self._report(_Patient(name=name, config=entry, notes=notes))
            else:
                started = with_network(entry.model_copy(update={"disabled": False, "restart": _ONCE}), self._config.tools)
                assert isinstance(started, ServerConfig)
                patients[name] = _Patient(name=name, config=started, notes=notes)
        self._tell_general(names)
        if patients:
            await load()
        await self._look_at(patients)
        offers.tell_launchers(await anyio.to_thread.run_sync(self._loose, patients), self._general)
        offers.tell_clashes({name: patient.tools for name, patient in patients.items()}, self._general)
        reports |= {name: self._report(patient) for name, patient in patients.items()}
        return Examination(reports=tuple(reports[name] for name in chosen), findings=tuple(self._general.findings))

    # -- what the configuration says ----------------------------------------------------------------------------------

    def _tell_problems(self, name: str, notes: Notes) -> None:
        for problem in self._config.problems:
            if _is_of(problem.where, name):
                notes.warning(f"something is odd in its entry ({problem.where})", problem.text, "correct the configuration file")

    def _tell_invalid(self, entry: InvalidServer, notes: Notes) -> None:
        mend = f"correct its entry in {self._config.path}" if self._config.path else "correct its entry"
        for fault in entry.told:
            notes.error("its entry cannot be used", fault, f"{mend}; toolbay config check reads it without starting anything")

    def _tell_general(self, names: Collection[str]) -> None:
        servers = self._config.tools.mcp_servers
        for problem in self._config.problems:
            if not names and not any(_is_of(problem.where, name) for name in servers):
                self._general.warning(f"something is odd in the configuration ({problem.where})", problem.text, "correct the file")
        if self._lock.fault:
            self._general.error("the lock file cannot be used", self._lock.fault, "mend it, or remove it and run toolbay lock")

    # -- what happens -------------------------------------------------------------------------------------------------

    async def _look_at(self, patients: Mapping[str, _Patient]) -> None:
        """Start them all, while their commands and the ways to them are looked at."""
        async with anyio.create_task_group() as group:
            for patient in patients.values():
                if patient.config.type is TransportType.STDIO:
                    group.start_soon(launching.examine, patient.config, self._environ, patient.notes, name=f"{patient.name}: command")
                else:
                    group.start_soon(self._approach, patient, name=f"{patient.name}: way")
            group.start_soon(self._start, patients, name="sessions")
        async with anyio.create_task_group() as group:
            for patient in patients.values():
                if patient.config.type is not TransportType.STDIO and not patient.ready:
                    group.start_soon(self._listen, patient, name=f"{patient.name}: answer")
        for patient in patients.values():
            if takes_login(patient.config):
                patient.login = await self._logins.standing(patient.name, patient.config)
            self._judge(patient)

    async def _approach(self, patient: _Patient) -> None:
        patient.reach = await reaching.approach(patient.config, patient.notes)

    async def _listen(self, patient: _Patient) -> None:
        await reaching.listen(patient.name, patient.config, self._logins, patient.reach, patient.notes)

    async def _start(self, patients: Mapping[str, _Patient]) -> None:
        events = Events(self._safe)

        def take(event: Event) -> None:
            if isinstance(event, Notice | ServerChanged) and event.server in patients:
                patients[event.server].take(event)

        registry = Registry(events=events, mask=self._safe)
        fleet = Fleet(registry, events=events, artifacts=_Nowhere(), environ=self._environ, open_engine=self._engine)
        fleet.safe_of = self._logins.safe_of
        with events.listen(take):
            async with fleet:
                wanted = {name: patient.config for name, patient in patients.items()}
                await fleet.apply(wanted, lock=self._lock, wait=False)
                await fleet.settle(None)
                up = [patient.became_ready for patient in patients.values() if patient.runs_here and patient.ended is None]
                await anyio.sleep_until(max((at for at in up if at is not None), default=-math.inf) + self._stay)
                for name, patient in patients.items():
                    patient.status = fleet.servers[name]
                    patient.tools = [tool for tool in registry.tools.values() if tool.server == name]
                    patient.quarantined = [finding for finding in fleet.quarantine if finding.server == name]

    # -- what it means ------------------------------------------------------------------------------------------------

    def _judge(self, patient: _Patient) -> None:
        """What follows from the facts. A cause that was seen before the start is not told twice."""
        notes, status, start = patient.notes, patient.status, self._engine.starts.get(patient.name)
        assert status is not None
        if patient.ready:
            offers.tell(patient.config, status, patient.remarks, patient.quarantined, notes)
            offers.tell_weight(_tokens(patient.tools), len(patient.tools), notes)
            if patient.login is not None:
                locks.tell_login(patient.name, patient.login, notes)
            if start is not None:
                evidence.tell_stray(start.diagnostics.stray(), notes, answered=True)
                offers.tell_left_out(start.diagnostics.left_out, notes)
        elif not notes.failed and start is not None and patient.config.type is TransportType.STDIO:
            remains = evidence.Remains(
                config=patient.config,
                exit_code=start.diagnostics.exit_code(),
                stderr=tuple(self._safe(text) for text in start.diagnostics.stderr()),
                stray=tuple(self._safe(text) for text in start.diagnostics.stray()),
                spawned=start.diagnostics.spawned is not None,
                answered=start.answered,
                error=status.error,
                exceeded=start.diagnostics.exceeded(),
                lived=patient.lived,
                having=partial(programs.interpreter_with, environ=self._environ, cwd=patient.config.cwd),
            )
            evidence.judge(remains, notes)
        elif not notes.failed:
            notes.error(
                "it did not become ready", status.error or status.state, "look into the server's own log, and check `url` and `headers`"
            )

    def _loose(self, patients: Mapping[str, _Patient]) -> dict[str, tuple[str, str]]:
        """Of servers that work, those whose launcher takes any version: the package, and the version that ran."""
        found: dict[str, tuple[str, str]] = {}
        for name, patient in patients.items():
            package = unpinned(patient.config)
            if patient.ready and patient.status is not None and package:
                claimed = patient.status.title.rpartition(" ")[2]
                found[name] = package, fetched.version(patient.config, package, claimed, self._environ)
        return found

    def _report(self, patient: _Patient) -> Report:
        status, config = patient.status, patient.config
        start = self._engine.starts.get(patient.name)
        target = shlex.join([config.command, *argv(config.args)]) if config.type is TransportType.STDIO else shown_url(config.url)
        report = partial(
            Report,
            server=patient.name,
            type=config.type.value,
            target=self._safe(target),
            login=patient.login and replace(patient.login, ended=self._safe(patient.login.ended)),
            findings=tuple(patient.notes.findings),
            trace=tuple(replace(step, said=self._safe(step.said)) for step in (*patient.reach.steps, *(start.steps if start else ()))),
        )
        if status is None:
            return report(disabled=config.disabled)
        return report(
            ready=patient.ready,
            title=status.title,
            protocol=status.protocol,
            offered=tuple(start.offered) if start else (),
            tools=status.tools,
            given=len(patient.tools),
            resources=status.resources,
            prompts=status.prompts,
            tokens=_tokens(patient.tools),
            seconds=round(status.seconds, 3),
            watched=self._stay if patient.ready and patient.runs_here else 0.0,
            exit_code=start.diagnostics.exit_code() if start and not patient.ready else None,
            stderr=tuple(self._safe(text) for text in status.stderr[-evidence.SHOWN :]),
        )


def _tokens(tools: Collection[Tool]) -> int:
    """About how many tokens the definitions of `tools` take in a request to a model."""
    definitions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    return len(json.dumps(definitions, ensure_ascii=False).encode()) // TOKEN_BYTES if definitions else 0


def _is_of(where: str, name: str) -> bool:
    """Whether a key path is that of a server of this name, or below it."""
    return re.search(rf"(?:^|\.)(?:mcpServers|mcp_servers|servers)\.{re.escape(name)}(?:\.|\Z)", where) is not None
