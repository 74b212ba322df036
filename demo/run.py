"""What `make run` shows: two real servers, two questions, no key and no network. Each step is a command that you can type yourself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "demo" / "node_modules" / "@modelcontextprotocol" / "server-filesystem"

ABOUT_FILES = "What does notes.md say?"
ABOUT_TIME = "Convert 09:30 from Europe/Oslo to Asia/Tokyo"


def ask(config: str, question: str) -> int:
    """Run `toolbay run` as a person would and let it speak for itself; its exit code."""
    command = ["toolbay", "run", "--config", config, "--wait", "all", question]
    print(f"\n$ {shlex.join(command)}", flush=True)
    # What the demo stores stays in the project's folder.
    env = {**os.environ, "TOOLBAY_HOME": str(ROOT / ".cache" / "demo")}
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=env, check=False).returncode


def main() -> int:
    if shutil.which("node") and FILES.is_dir():
        print("Two servers: files (Node.js, over demo/sample) and time (Python). The built-in offline model picks their tools.")
        codes = [ask("demo/toolbay.yaml", question) for question in (ABOUT_FILES, ABOUT_TIME)]
    else:
        print("Node.js 20 or newer is missing, so the files server is left out: here is the time server (Python) alone.")
        codes = [ask("demo/without-node.yaml", ABOUT_TIME)]
    print("\nWith a language model, a question may be put in any words. Set the key of its provider, and name it:")
    command = ["toolbay", "run", "--config", "demo/toolbay.yaml", "--model", "openai:gpt-5-mini", "Which lights does Ingrid keep?"]
    print(f"$ OPENAI_API_KEY=... .venv/bin/{shlex.join(command)}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
