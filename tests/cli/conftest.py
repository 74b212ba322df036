"""What the tests of the command line share: a folder with a configuration, and a clean terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from cli.terminals import Terminal

Configure = Callable[..., Path]
Open = Callable[..., Terminal]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Write `toolbay.json` with these servers into the folder that the program is run in."""

    def write(**servers: dict[str, Any]) -> Path:
        path = tmp_path / "toolbay.json"
        path.write_text(json.dumps({"tools": {"mcpServers": servers}}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def at_terminal(tmp_path: Path) -> Generator[Open]:
    """Start the program at a pseudo-terminal; it is gone when the test ends."""
    import sys

    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 100, **env: str) -> Terminal:
        opened.append(Terminal([sys.executable, "-m", "toolbay", *arguments], cwd=tmp_path, env=env, columns=columns))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
