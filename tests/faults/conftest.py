"""The report of the fault matrix: written when the session ends, in short in the terminal."""

from __future__ import annotations

import pytest

from faults import report


def pytest_sessionfinish() -> None:
    if report.rows:
        report.write(report.rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := report.summary(report.rows):
        terminalreporter.section("fault matrix")
        for line in lines:
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"the table: {report.FILE.relative_to(report.ROOT)}")
