"""What a command was started with: the options that belong to all commands, and the terminal it speaks to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from toolbay._redact import Secrets
from toolbay.cli.terminal import Terminal
from toolbay.errors import ToolbayError
from toolbay.types import for_people

if TYPE_CHECKING:
    from toolbay.config.models import Config

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
SERVER_FAILED: Final = 3
STOPPED: Final = 130
"""Exit codes; `STOPPED` is 128 + SIGINT, as shells have it."""


class CommandFailed(ToolbayError):
    """A command cannot do what was asked; `code` is its exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in `error`: what happens side by side fails in groups."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            yield from leaves(part)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def sentence(error: BaseException) -> str:
    """What went wrong, for people."""
    if isinstance(error, ToolbayError):
        return for_people(str(error))
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    return f"unexpected {type(error).__name__}: {error} (a fault of toolbay; -v -v shows where)"


def code_of(errors: Iterable[BaseException]) -> int:
    """The exit code of a command that ended in these errors."""
    return max((error.code for error in errors if isinstance(error, CommandFailed)), default=FAILED)


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """The options of all commands. `config_path` is None where the file is to be found (CFG-1)."""

    config_path: Path | None = None
    model: str = ""
    terminal: Terminal = field(default_factory=Terminal)
    secrets: Secrets = field(default_factory=Secrets)
    """Those of every configuration that was read: what goes wrong is told without them."""

    def read(self) -> Config:
        """Read the configuration.

        Raises:
            ConfigError: the file cannot be read or parsed.
        """
        from toolbay.config import load  # noqa: PLC0415  (validation costs a quarter of a second)

        config = load(self.config_path)
        self.secrets.add(config.secrets)
        return config

    def config(self) -> Config:
        """`read` it and tell its problems."""
        config = self.read()
        for problem in config.problems:
            self.terminal.say(f"! {problem.where}: {problem.text}")
        return config

    def finish(self, job: Callable[[], Awaitable[int]]) -> NoReturn:
        """Run the command's work in an event loop and end with its exit code."""
        from toolbay.cli.stopping import perform  # noqa: PLC0415  (an event loop is not needed for help)

        raise typer.Exit(perform(job, lambda: self.terminal.say("stopping…")))


def invocation(context: typer.Context) -> Invocation:
    """What the running command was started with."""
    held: Any = context.obj
    if isinstance(held, Invocation):
        return held
    return Invocation()
