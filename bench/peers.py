"""Toolbay beside other clients of MCP, on the shared harness (`../shared/bench`): where it runs, what it runs, and its report.

    python bench/peers.py setup              copy the harness and make one environment a client (10 minutes; PyPI and npm)
    python bench/peers.py run [PART ...]     all parts of docs/figures.md, or some: cold calls payload tools long faults
    python bench/peers.py bench ARGUMENT ... one command of the harness, as its README has them
    python bench/peers.py report             write docs/figures.md from the last results

Everything lies in one scratch folder (`--at`, default `.cache/peers`). All clients, Toolbay too, and all servers run on one
interpreter (`--python`), for two builds of one Python differ by a third. Within a part the clients take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HARNESS = ROOT.parent / "shared" / "bench"
ADAPTER = Path(__file__).with_name("adapters") / "toolbay_adapter.py"
REGISTERED = """
REGISTRY["toolbay"] = ("adapters.toolbay_adapter", "Toolbay", "toolbay", {})
REGISTRY["toolbay-raw"] = ("adapters.toolbay_adapter", "Toolbay", "toolbay", {"path": "raw"})
"""
PACKAGES = {
    "floor": ("tools", ""),
    "sdk2": ("sdk2", "mcp"),
    "sdk1": ("sdk1", "mcp"),
    "fastmcp": ("fastmcp", "fastmcp"),
    "openai-agents": ("openai", "openai-agents"),
    "pydantic-ai": ("pydanticai", "pydantic-ai-slim"),
    "nanobot": ("nanobot", "nanobot-ai"),
    "toolbay": ("toolbay", "toolbay"),
}
"""The clients: their environment and the package whose version is told."""
CLIENTS = [name for name in PACKAGES if name != "floor"]
PATIENCE = 20
"""Seconds after which a start with a hanging server counts as blocked; the harness would wait 45."""
STARTED = f"""
import bench
for name, (count, http, delay, bad, limit) in bench.COLD.items():
    bench.COLD[name] = (count, http, delay, bad, {PATIENCE} if bad else limit)
bench.main()
"""


class Command(NamedTuple):
    """One command of the harness: its arguments, its clients, and how many rounds it makes (in a trial).

    `together`: all clients at once, each in a process of its own, where they do little but wait.
    """

    arguments: str
    clients: list[str]
    rounds: int
    trial: int = 1
    together: bool = False


ALL = list(PACKAGES)
RAW = [*ALL, "toolbay-raw"]
PARTS: dict[str, list[Command]] = {
    "calls": [
        Command("calls --transport stdio --spread no", RAW, 10, 2),
        Command("calls --transport http --response sse --spread no", RAW, 5, 2),
        Command("calls --transport http --response json --spread no", RAW, 5, 2),
    ],
    "cold": [
        Command("cold --cases stdio1 stdio5 stdio20", ALL, 2),
        Command("cold --cases stdio20-slow", ALL, 1),
        Command("cold --cases stdio5-dead", CLIENTS, 1),
        Command("cold --cases stdio5-hang", CLIENTS, 1, together=True),
    ],
    "payload": [
        Command("payload --transport stdio", ALL, 1),
        Command("payload --transport http --response sse", ALL, 1),
        Command("payload --transport http --response json", ALL, 1),
    ],
    "tools": [Command("tools --sizes 1000 10000", ALL, 1)],
    "long": [Command("long --transport stdio --n 20000", ALL, 1)],
    "faults": [Command("faults", CLIENTS, 1, together=True)],
}


class Place:
    """The scratch folder: the harness in `bench`, the environments in `venvs`, as the harness wants them."""

    def __init__(self, at: Path, python: str) -> None:
        self.at = at
        self.harness = at / "bench"
        self.results = self.harness / "results"
        self.python = python
        self.facts = at / "facts.json"
        """What is true of the last run: machine, versions, date."""

    def set_up(self) -> None:
        if not HARNESS.is_dir():
            sys.exit(f"The shared harness is not there: {HARNESS.relative_to(ROOT.parent)} beside this project")
        self.copy()
        environ = {**os.environ, "PYTHON": self.python}
        subprocess.run(["bash", "setup.sh"], cwd=self.harness, env=environ, check=True)
        ours = self.at / "venvs" / "toolbay"
        subprocess.run([self.python, "-m", "venv", str(ours)], check=True)
        subprocess.run([str(ours / "bin" / "pip"), "install", "-q", "-e", str(ROOT)], check=True)

    def copy(self) -> None:
        """The harness with our adapter among the others; results stay."""
        shutil.copytree(HARNESS, self.harness, dirs_exist_ok=True, copy_function=_copied)
        for folder in (self.harness, self.harness / "adapters"):
            folder.chmod(0o755)
        shutil.copy(ADAPTER, self.harness / "adapters")
        with (self.harness / "adapters" / "__init__.py").open("a", encoding="utf-8") as registry:
            registry.write(REGISTERED)

    def bench(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "BENCH_PY": self.python, "BENCH_VENVS": str(self.at / "venvs")}
        return subprocess.Popen([self.python, "-c", STARTED, *arguments], cwd=self.harness, env=environ)

    def run(self, parts: list[str], *, trial: bool) -> None:
        self.copy()
        self.facts.write_text(json.dumps(self.measured(trial=trial), indent=2), encoding="utf-8")
        for part in parts:
            began = time.monotonic()
            for stale in self.results.glob(f"{part}*.jsonl"):
                stale.unlink()
            for command in PARTS[part]:
                rounds = command.trial if trial else command.rounds
                turns = command.clients if command.together else [",".join(command.clients)]
                started = [self.bench([*command.arguments.split(), "--rounds", str(rounds), "--peers", peers]) for peers in turns]
                ended = [process.wait() for process in started]
                if any(ended):
                    sys.exit(f"{command.arguments} failed")
            print(f"-- {part}: {time.monotonic() - began:.0f} s", flush=True)

    def measured(self, *, trial: bool) -> dict[str, object]:
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "trial": trial,
            "machine": f"{os.cpu_count()} cores, {_processor()}",
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
            "python": subprocess.run([self.python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1],
            "versions": {client: self._version(*package) for client, package in PACKAGES.items() if package[1]},
        }

    def _version(self, environment: str, package: str) -> str:
        asked = f"import importlib.metadata as m; print(m.version({package!r}))"
        python = self.at / "venvs" / environment / "bin" / "python"
        said = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
        return f"{package} {said}"


def _copied(source: str, target: str) -> str:
    """The harness is read only; its copy is not."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o755)
    return target


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["setup", "run", "bench", "report"])
    parser.add_argument("--at", type=Path, default=ROOT / ".cache" / "peers", help="the scratch folder")
    parser.add_argument("--python", default=str(Path(sys.executable).resolve()), help="the interpreter of all clients and servers")
    parser.add_argument("--trial", action="store_true", help="run: few rounds, to see that everything works")
    options, rest = parser.parse_known_args()
    place = Place(options.at.resolve(), options.python)
    match options.command:
        case "setup":
            place.set_up()
        case "bench":
            place.copy()
            sys.exit(place.bench(rest).wait())
        case "report":
            import figures  # noqa: PLC0415 - beside this file

            (ROOT / "docs" / "figures.md").write_text(figures.page(place.results, json.loads(place.facts.read_text("utf-8"))), "utf-8")
        case _:
            if unknown := set(rest) - set(PARTS):
                parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
            place.run(rest or list(PARTS), trial=options.trial)


if __name__ == "__main__":
    main()
