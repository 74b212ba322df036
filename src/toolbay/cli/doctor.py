"""`toolbay doctor`: why a server does not work, and what to do about it. It changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolbay.cli.invocation import DONE, SERVER_FAILED, Invocation, invocation
from toolbay.cli.servers import known_server
from toolbay.cli.terminal import BOLD, DIM, GREEN, RED, YELLOW, one_line, plural

if TYPE_CHECKING:
    from toolbay.cli.terminal import Terminal
    from toolbay.config.models import Config
    from toolbay.diagnosis.findings import Examination, Finding, Report

_MARKS: Final = {"ok": "ok", "warned": "!", "failed": "x", "disabled": "-"}
_STYLES: Final = {"ok": GREEN, "warned": YELLOW, "failed": RED, "disabled": DIM, "error": RED, "warning": YELLOW, "note": DIM}
_SIGNS: Final = {"error": "x", "warning": "!", "note": "·"}
_INDENT: Final = " " * 4
_BEGIN: Final = "toolbay add NAME -- COMMAND ARGS, or toolbay add NAME --url URL, such as toolbay add time -- uvx mcp-server-time"


def register(program: typer.Typer) -> None:
    program.command("doctor", help="Find out why a server does not work, and say how to mend it. Changes nothing.")(doctor)


def doctor(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[SERVER]...", help="Only these servers.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    invoked = invocation(context)
    invoked.finish(lambda: _doctor(invoked, names or [], as_json=as_json))


async def _doctor(invoked: Invocation, names: list[str], *, as_json: bool) -> int:
    from toolbay.cli.running import moving, tell_place  # noqa: PLC0415
    from toolbay.diagnosis.examination import examine  # noqa: PLC0415

    terminal = invoked.terminal
    config = invoked.read()
    for name in names:
        known_server(config, name)
    if not as_json:
        tell_place(terminal, config, named=invoked.config_path is not None)
    looked_at = ", ".join(map(one_line, names)) or plural(len(config.tools.mcp_servers), "server")
    async with moving(terminal, lambda: f"looking at {looked_at}"):
        found = await examine(config, names)
    if as_json:
        terminal.json({"path": str(config.path) if config.path else None, **found.as_json()})
    else:
        _tell(terminal, config, found)
    return SERVER_FAILED if found.failed else DONE


def _tell(terminal: Terminal, config: Config, found: Examination) -> None:
    if not config.tools.mcp_servers:
        terminal.write(
            f"There is no server yet: {'no configuration file was found' if config.path is None else f'{config.path} has none'}."
        )
        terminal.write(f"Begin with {_BEGIN}")
    width = max((len(one_line(report.server)) for report in found.reports), default=0)
    for report in found.reports:
        _tell_report(terminal, report, width)
    _tell_findings(terminal, found.findings)
    if found.reports:
        terminal.write(_summary(found), RED if found.failed else "")


def _tell_report(terminal: Terminal, report: Report, width: int) -> None:
    verdict = report.verdict.value
    terminal.write(f"{_MARKS[verdict]:<3} {one_line(report.server):<{width}}  {one_line(report.target)}".rstrip(), _STYLES[verdict])
    if terminal.verbosity >= 0:
        for line in _facts(report):
            terminal.write(f"{_INDENT}{line}")
        names = max((len(step.name) for step in report.trace), default=0)
        for step in report.trace:
            took = "     -  " if step.seconds is None else f"{step.seconds:7.2f} s"
            terminal.write(f"{_INDENT}{step.name:<{names}} {took}  {one_line(step.said)}".rstrip(), DIM)
    _tell_findings(terminal, report.findings)


def _facts(report: Report) -> Iterator[str]:
    if report.disabled:
        yield f"disabled: toolbay doctor {shlex.quote(report.server)} looks at it all the same"
    from toolbay.diagnosis.locks import described  # noqa: PLC0415 - as in `_doctor`

    if report.login is not None and (login := described(report.login)):
        yield one_line(login)
    if not report.ready:
        return
    offered = f", offered {', '.join(report.offered)}" if report.offered and report.offered[-1] != report.protocol else ""
    yield f"{one_line(report.title) or 'a server without a name'}, MCP {one_line(report.protocol)} by {report.era}{offered}"
    watched = f", still there {report.watched:g} s later" if report.watched else ""
    counted = f"{plural(report.tools, 'tool')}, {plural(report.resources, 'resource')}, {plural(report.prompts, 'prompt')}"
    yield f"{counted}; a model is given {report.given} of them, about {report.tokens:,} tokens; ready in {report.seconds:.1f} s{watched}"


def _tell_findings(terminal: Terminal, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        level = finding.level.value
        if terminal.verbosity < 0 and level != "error":
            continue
        terminal.write(f"{_INDENT}{_SIGNS[level]} {one_line(finding.what)}", _STYLES[level])
        terminal.write(f"{_INDENT}  why   {one_line(finding.why)}")
        for line in finding.shown:
            terminal.write(f"{_INDENT}        | {one_line(line)}", DIM)
        terminal.write(f"{_INDENT}  mend  {one_line(finding.mend)}", BOLD)


def _summary(found: Examination) -> str:
    verdicts = [report.verdict.value for report in found.reports]
    words = {"ok": "fine", "warned": "with warnings", "failed": "failed", "disabled": "disabled"}
    counted = [f"{verdicts.count(verdict)} {word}" for verdict, word in words.items() if verdict in verdicts]
    return f"{plural(len(verdicts), 'server')}: {', '.join(counted)}"
