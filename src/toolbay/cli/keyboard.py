"""Lines for the chat from a person at a terminal: history, completion, editing. Loaded for chat alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from toolbay.cli.lines import Interrupted

Completions = Callable[[str], Iterable[tuple[str, int, str]]]
"""For the text before the cursor: what to insert, how far back it begins, what it is."""


class Keyboard:
    """An `Input`. What events print meanwhile appears above the line that is being written."""

    def __init__(self, history: Path, completions: Completions) -> None:
        """Without a `history` file that can be written, what was typed is remembered until the end only."""
        offered = _Offered(completions)
        self._session: PromptSession[str] = PromptSession(
            "> ",
            history=FileHistory(str(history)) if _is_private(history) else InMemoryHistory(),
            completer=offered,
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            key_bindings=_bindings(offered),
        )

    async def line(self) -> str | None:
        with patch_stdout(raw=True):
            try:
                return await self._session.prompt_async(handle_sigint=False)
            except EOFError:
                return None


def _is_private(path: Path) -> bool:
    """Make the file, for its owner only, where it is not there; whether it can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return False
    return True


class _Offered(Completer):
    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        for text, start, meaning in self._completions(document.text_before_cursor):
            yield Completion(text, start_position=start, display_meta=meaning)


def _bindings(completer: Completer) -> KeyBindings:
    bindings = KeyBindings()

    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=Interrupted())

    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def complete(event: KeyPressEvent) -> None:
        # At once: the usual way starts a search that is lost where another one, for what was typed in the same moment, runs.
        buffer = event.current_buffer
        if buffer.complete_state is not None:
            buffer.complete_next()
            return
        found = list(completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        common = get_common_complete_suffix(buffer.document, found)
        if len(found) == 1:
            buffer.apply_completion(found[0])
        elif common:
            buffer.insert_text(common)
        elif found:
            buffer.start_completion()

    bindings.add("c-c")(interrupt)
    bindings.add("tab")(complete)
    bindings.add("escape", "enter")(new_line)
    return bindings
