"""An address that is pasted at the terminal, while something else is waited for. What is pasted is never shown: it holds a code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from textwrap import wrap

from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout

_NARROWEST = 20
"""Columns that a fault is broken at, however narrow the terminal is."""
_PACE = 0.2
"""Seconds between two looks at what is waited for."""


class Pasted:
    """A line at the terminal that says what is waited for. By raw keys: a terminal's own lines are cut at 1,000 to 4,000 characters."""

    def __init__(self, waiting: Callable[[], str], fault: Callable[[str], str]) -> None:
        """`waiting`: what is waited for, now; `fault`: why a text is not what is wanted, empty where it is."""
        self._waiting = waiting
        self._judge = fault
        self._fault = ""
        self._session: PromptSession[str] = PromptSession(
            self._message,
            output=create_output(sys.stderr),
            input_processors=[_Counted()],
            key_bindings=self._bindings(),
            refresh_interval=_PACE,
            erase_when_done=True,
        )

    async def text(self) -> str | None:
        """What was pasted, without any white space, once it is what is wanted; None when the person says that nothing comes (Ctrl-D)."""
        with patch_stdout(raw=True):
            try:
                return _joined(await self._session.prompt_async(handle_sigint=False))
            except EOFError:
                return None

    def _message(self) -> str:
        # Not printed above: for that the terminal would show keys again, for a moment.
        # And broken here, for what stands above the last line is cut at the terminal's width.
        width = max(self._session.output.get_size().columns - 1, _NARROWEST)
        above = "".join(f"{line}\n" for line in wrap(f"! {self._fault}", width)) if self._fault else ""
        return f"{above}{self._waiting()}: "

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if text := _joined(buffer.text):
                self._fault = self._judge(text)
                if not self._fault:
                    buffer.validate_and_handle()
                    return
                event.app.renderer.erase()
            buffer.reset()

        def interrupt(event: KeyPressEvent) -> None:
            del event
            signal.raise_signal(signal.SIGINT)  # as from everywhere else: what is under way is closed first

        bindings.add("enter")(enter)
        bindings.add("c-c")(interrupt)
        return bindings


def _joined(text: str) -> str:
    return "".join(text.split())


class _Counted(Processor):
    """Shows how much was pasted in the place of it."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        count = len(transformation_input.document.text)
        shown = f"({count} characters; Enter)" if count else ""
        return Transformation([("", shown)], source_to_display=lambda _: len(shown), display_to_source=lambda _: count)
