"""A person's word at the terminal before a call, and what stands in its place where nobody can be asked (RUN-7)."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from toolbay._text import visible
from toolbay.agent.approvals import Answer, ApprovalRequest
from toolbay.cli.lines import overheard
from toolbay.cli.terminal import BOLD, YELLOW, one_line

if TYPE_CHECKING:
    from toolbay.agent.approvals import Approver
    from toolbay.cli.terminal import Terminal

_ANSWERS: Final = {
    "y": Answer.ONCE,
    "yes": Answer.ONCE,
    "once": Answer.ONCE,
    "s": Answer.SESSION,
    "session": Answer.SESSION,
    "a": Answer.ALWAYS,
    "always": Answer.ALWAYS,
    "n": Answer.NO,
    "no": Answer.NO,
    "": Answer.NO,
}
_CHOICES: Final = "y: once   s: for this session   a: always   n: no"
_TRIES: Final = 3


class AtTerminal:
    """Shows the call in full and waits for a line. `listens`: it hears the keyboard itself, where nobody else does."""

    def __init__(self, terminal: Terminal, *, listens: bool) -> None:
        self._terminal = terminal
        self._listens = listens
        self._heard: MemoryObjectSendStream[str] | None = None

    async def ask(self, request: ApprovalRequest) -> Answer:
        send, receive = anyio.create_memory_object_stream[str](100)
        with ExitStack() as stack:
            stack.enter_context(send)
            stack.enter_context(receive)
            _forget_typed()
            self._heard = send
            stack.callback(self._deaf)
            if self._listens:
                stack.enter_context(overheard(self._take))
            self._show(request)
            for _ in range(_TRIES):
                self._terminal.warn(_CHOICES, BOLD)
                answer = _ANSWERS.get((await receive.receive()).strip().lower())
                if answer is not None:
                    return answer
        return Answer.NO

    def hear(self, line: str) -> bool:
        """Take a line that was typed as the answer; False where nothing is asked."""
        if self._heard is None:
            return False
        self._take(line)
        return True

    def _take(self, line: str) -> None:
        if self._heard is not None:
            with suppress(anyio.WouldBlock):  # who types a hundred lines has said enough
                self._heard.send_nowait(line)

    def _deaf(self) -> None:
        self._heard = None

    def _show(self, request: ApprovalRequest) -> None:
        self._terminal.status("")
        tool, server = one_line(visible(request.tool)), one_line(visible(request.server))
        self._terminal.warn(f"? May {tool} of the server {server} be called? ({request.reason})", YELLOW)
        self._terminal.warn("\n".join(f"  {line}" for line in request.arguments.splitlines()))


class Nobody:
    """Says no, and how a yes can be given beforehand."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def ask(self, request: ApprovalRequest) -> Answer:
        call = f"{one_line(visible(request.tool))} of the server {one_line(visible(request.server))}"
        self._terminal.warn(
            f"! {call} needs approval, and nobody can be asked here: toolbay run --yes approves every call of one run, and "
            "`approval` in the server's configuration says which calls need it.",
            YELLOW,
        )
        return Answer.NO


class Yes:
    """`--yes`: approves each call of this run."""

    async def ask(self, request: ApprovalRequest) -> Answer:
        del request
        return Answer.ONCE


def approver(terminal: Terminal, *, yes: bool) -> Approver:
    """Who is asked during `toolbay run`."""
    if yes:
        return Yes()
    if sys.stdin.isatty() and sys.stderr.isatty():
        return AtTerminal(terminal, listens=True)
    return Nobody(terminal)


def _forget_typed() -> None:
    """What was typed before the question was seen is no answer to it."""
    try:
        import termios  # noqa: PLC0415  (there is none on Windows)
    except ImportError:
        return
    with suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
