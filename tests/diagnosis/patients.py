"""Servers that are looked at, and shorter words for what tests ask of an examination."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from toolbay.auth.store import Store
from toolbay.config import parse
from toolbay.diagnosis.examination import examine
from toolbay.diagnosis.findings import Examination, Finding, Level, Notes, Report


async def examined(
    *names: str,
    environ: Mapping[str, str] | None = None,
    base: Path | None = None,
    store: Store | None = None,
    stay: float = 0,
    **servers: Mapping[str, Any],
) -> Examination:
    """The examination of a configuration with these servers."""
    config = parse({"tools": {"mcpServers": servers}}, environ=environ, base=base)
    with anyio.fail_after(90):
        return await examine(config, names, environ=environ, store=store, stay=stay)


async def only(entry: Mapping[str, Any], **more: Any) -> Report:
    """The report of one server, named `s`."""
    (report,) = (await examined(s=entry, **more)).reports
    return report


def errors(report: Report | Notes) -> list[Finding]:
    return [finding for finding in report.findings if finding.level is Level.ERROR]


def the_error(report: Report | Notes) -> Finding:
    """The one finding that says why a server does not work; whom it concerns, and what to do, are said in it."""
    (finding,) = errors(report)
    assert finding.server
    assert finding.text.startswith(f"{finding.server}: ")
    assert finding.why
    assert finding.mend
    return finding


def program(file: Path, text: str = "#!/bin/sh\n", *, mode: int = 0o755) -> Path:
    """A program of a few lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file
