"""When a `toolbay run` asks its model, with five servers behind `npx`: a cold run (nothing is known) beside a warm one.

    python bench/warm_start.py [--rounds 3]

The model is a scripted server on this machine that notes when it is asked. It calls one tool of each server, so that a run ends
only after all were ready. Fails where a warm run asked its model after the slowest server was ready.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

scripted: Any = importlib.import_module("support.openai_server")
"""The model server of the tests."""

SERVERS = ROOT / "tests" / "servers"
SAMPLE = ROOT / "demo" / "sample"
ASKED = "the model is asked"
BINARIES: dict[str, tuple[str, ...]] = {
    "everything": ("mcp-server-everything", "stdio"),
    "files": ("mcp-server-filesystem", str(SAMPLE)),
    "tests": ("mcp-server-filesystem", str(SERVERS)),
    "memory": ("mcp-server-memory",),
    "pdf": ("pdf-reader-mcp",),
}
CALLS = {
    "mcp_everything_echo": {"message": "here"},
    "mcp_files_list_allowed_directories": {},
    "mcp_tests_list_allowed_directories": {},
    "mcp_memory_read_graph": {},
    "mcp_pdf_read_pdf": {"sources": [{"path": str(SAMPLE / "report.pdf"), "pages": [1]}]},
}
PATIENCE = 120.0
"""Seconds after which a run is taken as hanging."""


@dataclass
class Run:
    """Seconds from the start of the program: of each server's readiness, and of the first model request."""

    times: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def asked(self) -> float:
        return self.times[ASKED]

    @property
    def slowest(self) -> float:
        return max(self.times[name] for name in BINARIES)


def measure(home: Path, folder: Path) -> Run:
    """One run of the program, in its own process, as a person would start it."""
    run = Run()
    started = time.monotonic()

    def first(_body: dict[str, Any]) -> object:
        run.times[ASKED] = time.monotonic() - started
        return scripted.Say(calls=[(f"c{number}", name, json.dumps(given)) for number, (name, given) in enumerate(CALLS.items())])

    with scripted.OpenAIServer([first, scripted.Say(text="done")]) as model:
        env = {**os.environ, "TOOLBAY_HOME": str(home), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "-m", "toolbay", "--model", "openai:scripted", "run", "Is everybody there?"]
        started = time.monotonic()
        with subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            told: list[str] = []
            for line in process.stderr:
                told.append(line)
                words = line.split()
                if words[:1] == ["✓"] and words[2:3] == ["ready"]:
                    run.times[words[1]] = time.monotonic() - started
            code = process.wait(PATIENCE)
    answers = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"] if model.requests else []
    wrong = [answer for answer in answers if "not called" in answer or "not sent" in answer]
    if code or len(answers) != len(CALLS) or wrong or set(run.times) != {*BINARIES, ASKED}:
        sys.exit(f"the run failed with code {code}: {wrong or ''.join(told)}")
    return run


def show(title: str, runs: list[Run]) -> None:
    """The medians, in their order."""
    print(f"\n{title}")
    median = {name: statistics.median(run.times[name] for run in runs) for name in runs[0].times}
    for name, seconds in sorted(median.items(), key=lambda entry: entry[1]):
        print(f"  {seconds:6.2f} s  {name if name == ASKED else f'{name} is ready'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("npx") is None or not (SERVERS / "node_modules").is_dir():
        sys.exit("npx, or the servers of the tests, are missing: install Node.js, then run make setup")
    entries = {
        name: {
            "command": "npx",
            "args": ["--offline", "--prefix", str(SERVERS), *words],
            "env": {"MEMORY_FILE_PATH": os.devnull},
            "startupTimeout": PATIENCE,
        }
        for name, words in BINARIES.items()
    }
    cold: list[Run] = []
    warm: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "toolbay.json").write_text(json.dumps({"tools": {"mcpServers": entries}}), encoding="utf-8")
        measure(folder / "first", folder)  # fills the caches of the disk and of compiled files
        for number in range(max(options.rounds, 1)):
            cold.append(measure(folder / f"home-{number}", folder))
            warm.append(measure(folder / f"home-{number}", folder))
    print(f"{len(cold)} rounds, medians, from the start of the program")
    show("cold: nothing is known of the servers", cold)
    show("warm: the run after it", warm)
    late = [run for run in warm if run.asked >= run.slowest]
    saved = statistics.median(run.asked for run in cold) - statistics.median(run.asked for run in warm)
    print(f"\nA warm run asks its model {saved:.2f} s earlier than a cold one.")
    print(
        "FAILED: in a warm run the slowest server was ready first"
        if late
        else "passed: in every warm run the model was asked before the slowest server was ready"
    )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
