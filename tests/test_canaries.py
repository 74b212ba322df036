"""Secrets are planted everywhere a person may give one, servers do their best to spread them, and every output is searched.

SEC row 32. What is searched: standard output and error of every command, the files that they leave, the events of an app,
its errors, its log records, and what a model is sent.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from support.canary_http import Echo
from toolbay import App, MemoryConversation, ModelRequest, Reply, ToolCall, load, parse
from toolbay.config.models import Config
from toolbay.testing import FakeModel

SERVER = Path(__file__).parent / "servers" / "telltale_server.py"
CANARIES = {
    "CANARY_ENV": "7f3a91c2-canary-env-d0417be6",
    "CANARY_ARG": "0b66de18-canary-arg-92fa3c75",
    "CANARY_HEADER": "5d2c77aa-canary-header-1e88b0f4",
    "CANARY_QUERY": "e19044bf-canary-query-6ac35d29",
    "CANARY_MODEL": "93be21d0-canary-model-f7042e81",
    "CANARY_PLAIN": "4c81f6e7-canary-plain-b85d913a",
}
"""By the variable that each is given in; the last one stands in the file itself."""


PIECE = 12


def spellings(canary: str) -> Iterable[str]:
    """A secret as it is, as it is easily turned back, and what is left of it where a text was cut in the middle of it."""
    for whole in (canary, quote(canary, safe=""), base64.b64encode(canary.encode()).decode().rstrip("=")):
        yield from (whole, whole[:PIECE], whole[-PIECE:])


def assert_clean(text: str, where: str) -> None:
    for name, canary in CANARIES.items():
        for spelling in spellings(canary):
            at = text.find(spelling)
            assert at < 0, f"{name} is in {where}: ...{text[max(0, at - 120) : at + 80]!r}..."


def settings(echo: Echo) -> dict[str, Any]:
    return {
        "tools": {
            "mcpServers": {
                "telltale": {
                    "command": sys.executable,
                    "args": [str(SERVER), "--token", "${CANARY_ARG}"],
                    "env": {"SERVICE_TOKEN": "${CANARY_ENV}", "API_KEY": CANARIES["CANARY_PLAIN"]},
                },
                "dies": {
                    "command": sys.executable,
                    "args": [str(SERVER), "--die", "--token", "${CANARY_ARG}"],
                    "env": {"SERVICE_TOKEN": "${CANARY_ENV}"},
                },
                "echo": {
                    "url": f"{echo.url}?key=${{CANARY_QUERY}}",
                    "headers": {"Authorization": "Bearer ${CANARY_HEADER}"},
                    "ssrfWhitelist": ["127.0.0.0/8"],
                },
                "missing": {"url": "https://example.com/mcp", "headers": {"X-Key": "${NOT_THERE}", "Y-Key": "${CANARY_HEADER}"}},
            }
        },
        "agent": {"model": "offline"},
    }


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("tools", "--json"),
    ("tools", "-v", "-v"),
    ("test", "telltale"),
    ("test", "dies"),
    ("test", "echo", "-v"),
    ("call", "telltale.tell", "--json"),
    ("call", "telltale.fail"),
    ("call", "telltale.long", "--json"),
    ("call", "telltale.long"),
    ("call", "telltale.complain"),
    ("call", "telltale.log", "-v"),
    ("call", "echo.reflect"),
    ("resources", "--json"),
    ("resources", "read", "telltale", "tell://all"),
    ("prompts", "get", "telltale", "leak"),
    ("run", "--json", "tell everything with the tool tell"),
    ("config", "show", "--json"),
    ("config", "show"),
    ("config", "check"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_prints_or_keeps_a_secret(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """SEC, CFG-8, CAL-6: standard output, standard error and every file that is left."""
    home = tmp_path / "home"
    with Echo() as echo:
        file = tmp_path / "toolbay.json"
        file.write_text(json.dumps(settings(echo)))
        env = {**os.environ, **CANARIES, "TOOLBAY_HOME": str(home), "OPENAI_API_KEY": CANARIES["CANARY_MODEL"]}
        env.pop("CANARY_PLAIN")
        argv = [sys.executable, "-m", "toolbay", "--config", str(file), *arguments]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=100, env=env, stdin=subprocess.DEVNULL, check=False)
    assert ran.stdout + ran.stderr, "a command that says nothing shows nothing here"
    assert_clean(ran.stdout, "standard output")
    assert_clean(ran.stderr, "standard error")
    for left in (path for path in home.rglob("*") if path.is_file()):
        assert_clean(left.read_text(errors="replace"), str(left))


def configured(echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "toolbay.json"
    file.write_text(json.dumps(settings(echo)))
    return load(file)


@pytest.mark.anyio
async def test_no_event_error_log_or_model_request_holds_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC, OBS-2: a model calls what leaks; its requests, the events, the errors, the logs and the statuses are searched."""
    calls = [
        ("telltale", "tell"),
        ("telltale", "fail"),
        ("telltale", "error"),
        ("telltale", "log"),
        ("telltale", "long"),
        ("telltale", "complain"),
        ("echo", "reflect"),
        ("telltale", "die"),
    ]
    script = [Reply(calls=(ToolCall(id=str(at), name=f"mcp_{server}_{tool}", arguments={}),)) for at, (server, tool) in enumerate(calls)]
    model = FakeModel([*script, "That was all."])
    caplog.set_level(logging.DEBUG)
    conversation = MemoryConversation()
    with Echo() as echo, anyio.fail_after(90):
        async with App(configured(echo, tmp_path, monkeypatch), model=model) as app:
            with app.events.subscribe(10_000) as events:
                await app.settle(None)
                turn = await app.ask("Tell all.", conversation=conversation)
                seen = events.take_nowait()
                statuses = repr(app.servers)
    requested: list[ModelRequest] = model.requests
    assert turn.text == "That was all."
    assert len(requested) == len(calls) + 1
    assert_clean("".join(map(repr, seen)), "the events")
    assert_clean(repr(conversation.messages), "the conversation")
    assert_clean(repr(requested[-1]), "what a model is sent")
    assert_clean(statuses, "the statuses")
    assert_clean(caplog.text, "the log")


def test_the_search_finds_what_it_looks_for() -> None:
    """A search that finds nothing must be able to find something."""
    for canary in CANARIES.values():
        for spelling in spellings(canary):
            with pytest.raises(AssertionError):
                assert_clean(f"x {spelling} y", "here")


def test_the_telltale_server_tells_what_nobody_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canaries do come out of the servers: without masking they would be found."""
    monkeypatch.setenv("CANARY_ENV", CANARIES["CANARY_ENV"])
    config = parse(
        {"mcpServers": {"telltale": {"command": sys.executable, "args": [str(SERVER)], "env": {"SERVICE_TOKEN": "${CANARY_ENV}"}}}}
    )
    unmasked = config.model_copy(update={"secrets": frozenset()})

    async def tell() -> str:
        async with App(unmasked) as app:
            await app.settle()
            return (await app.call("mcp_telltale_tell", {})).text

    assert CANARIES["CANARY_ENV"] in anyio.run(tell)
