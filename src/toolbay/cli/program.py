"""The program: its options, its commands, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from toolbay._redact import Secrets, trace
from toolbay.cli import asking, chat, configuration, doctor, logging_in, logging_out, pinning, probing, prompts, resources, servers, tools
from toolbay.cli.invocation import FAILED, STOPPED, Invocation, code_of, leaves, sentence
from toolbay.cli.terminal import Terminal

_FLAGS: Final = frozenset({"--no-color", "--quiet", "--verbose", "-q", "-v", "-vv"})
_VALUED: Final = frozenset({"--config", "--model"})
_EPILOG: Final = (
    "The options above may stand after a command too. Exit codes: 0 done, 1 failed, 2 usage, 3 a server failed (what the others have "
    "is printed first; a question that was answered without it is 0), 130 stopped."
)

program = typer.Typer(
    name="toolbay",
    help="Dependable tools for an AI agent from any MCP server.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the coloured one costs a quarter of a second
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (asking, chat, tools, prompts, resources, probing, doctor, logging_in, logging_out, pinning, servers, configuration):
    part.register(program)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415

        sys.stdout.write(f"toolbay {version('toolbay')}\n")
        raise typer.Exit


@program.callback()
def options(  # noqa: PLR0917  (typer's form: one parameter an option)
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", metavar="PATH", help="The configuration file (also: TOOLBAY_CONFIG).")] = None,
    model: Annotated[str, typer.Option("--model", metavar="SPEC", help="The model: provider:name, or offline.")] = "",
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours (also: NO_COLOR).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only answers, data and errors.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice: tracebacks too.")] = 0,
    _version: Annotated[bool, typer.Option("--version", help="The version.", is_eager=True, callback=_print_version)] = False,
) -> None:
    terminal = Terminal(color=not no_color, verbosity=-1 if quiet else verbose)
    secrets = context.find_object(Secrets) or Secrets()
    context.obj = Invocation(config_path=config, model=model, terminal=terminal, secrets=secrets)


def hoisted(arguments: Sequence[str], valued: frozenset[str]) -> list[str]:
    """`arguments` with the program's own options moved to the front, so that they may be written after a command.

    `valued` are the options of commands that take a value: what follows one of them is that value, whatever it looks like.
    Nothing behind `--` is touched.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _FLAGS or word.split("=", 1)[0] in _VALUED:
            front.append(word)
            if word in _VALUED:
                front += _next(words)
        else:
            rest.append(word)
            if word in valued:
                rest += _next(words)
    return front + rest


def _next(words: Iterator[str]) -> list[str]:
    word = next(words, None)
    return [] if word is None else [word]


def _valued_options(command: Any) -> frozenset[str]:
    """The options of `command` and its sub-commands that take a value."""
    found = {
        name for parameter in command.params if not getattr(parameter, "is_flag", True) for name in parameter.opts if name.startswith("-")
    }
    for child in getattr(command, "commands", {}).values():
        found |= _valued_options(child)
    return frozenset(found - _VALUED - _FLAGS)


class _Interrupted(BaseException):
    """Ctrl-C outside of an event loop."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise _Interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit code is returned."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # a stand-in for a stream may not know how
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    before = signal.signal(signal.SIGINT, _interrupt)
    command: Any = typer.main.get_command(program)
    valued = _valued_options(command)
    secrets = Secrets()
    try:
        ended = command.main(args=hoisted(words, valued), prog_name="toolbay", standalone_mode=False, obj=secrets)
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):  # the framework makes a failure of it
            return _unread()
        return ending.code if isinstance(ending.code, int) else FAILED
    except _Interrupted:
        return STOPPED
    except Exception as error:
        debug = "-vv" in words or words.count("-v") > 1 or os.environ.get("TOOLBAY_DEBUG", "") not in {"", "0"}
        return _told(error, debug=debug, as_json=wants_json(words, valued), safe=secrets.mask)
    finally:
        signal.signal(signal.SIGINT, before)
    return ended if isinstance(ended, int) else 0


def wants_json(arguments: Sequence[str], valued: frozenset[str]) -> bool:
    """Whether `--json` is among the options: then an error is JSON too. The value of an option is no option."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            return False
        if word == "--json":
            return True
        if word in valued or word in _VALUED:
            next(words, None)
    return False


def _unread() -> int:
    """Who reads us has seen enough (`| head`). What Python still holds must not be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _told(error: Exception, *, debug: bool, as_json: bool, safe: Callable[[str], str]) -> int:
    """Say what went wrong, as sentences; a traceback is for those who ask. All of it passes through `safe`."""
    told = list(leaves(error))
    if any(isinstance(leaf, BrokenPipeError) for leaf in told):
        return _unread()
    terminal = Terminal()
    if debug:
        sys.stderr.write(f"{trace(error, safe)}\n")
    show: Any = getattr(error, "show", None)
    if show is not None:  # the framework's own, which knows how the command is used
        show()
        sentences, code = [str(error.format_message())], int(error.exit_code)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    else:
        sentences = [safe(sentence(leaf)) for leaf in told]
        code = code_of(told)
        for said in sentences:
            terminal.error(said)
    if as_json:
        terminal.json({"error": "\n".join(sentences)})
    return code
