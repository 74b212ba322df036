"""The demo keeps working: its files are what they claim, its configurations are read without a problem, and it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolbay.config import load

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "demo"


def run(*argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(arg) for arg in argv], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_the_report_is_what_its_program_writes(tmp_path: Path) -> None:
    """DEMO: the sample PDF can be made again, byte for byte."""
    code = (
        f"import runpy, pathlib; pathlib.Path({str(tmp_path / 'report.pdf')!r}).write_bytes(runpy.run_path('demo/make_report.py')['pdf']())"
    )
    assert run(sys.executable, "-c", code).returncode == 0
    assert (tmp_path / "report.pdf").read_bytes() == (DEMO / "sample" / "report.pdf").read_bytes()


@pytest.mark.parametrize("name", ["toolbay.yaml", "without-node.yaml"])
def test_its_configurations_have_no_problem(name: str) -> None:
    """CFG-6: nothing in them is unknown or invalid."""
    config = load(DEMO / name)
    assert config.problems == ()
    assert "time" in config.tools.mcp_servers


def test_it_answers_both_questions() -> None:
    """RUN-5: two real servers and the offline model, as `make run` shows them."""
    if not (ROOT / ".venv" / "bin" / "mcp-server-time").exists():
        pytest.skip("the demo's servers are not installed: make setup")
    answer = run(sys.executable, "demo/run.py")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "16:30" in answer.stdout + answer.stderr or "17:30" in answer.stdout + answer.stderr
    if shutil.which("node") and (DEMO / "node_modules").is_dir():
        assert "painted on its north side" in answer.stdout
    else:
        assert "Node.js 20 or newer is missing" in answer.stdout


@pytest.mark.skipif(os.name == "nt", reason="the set-up's scripts are for POSIX shells")
def test_the_set_up_says_plainly_that_python_is_too_old(tmp_path: Path) -> None:
    """SETUP: one sentence that names what is needed and what was found."""
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        fake = tmp_path / name
        fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n', encoding="utf-8")
        fake.chmod(0o755)
    answer = run("/bin/sh", "scripts/find_python.sh", PATH=str(tmp_path), PYTHON="")
    assert answer.returncode == 1
    assert "needs Python 3.11 or newer and found Python 3.9.2" in answer.stderr
