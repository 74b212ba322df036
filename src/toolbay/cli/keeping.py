"""A conversation that is kept where that is possible. Where it is not, a person is told once and gets the answer all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio.to_thread

from toolbay.cli.terminal import YELLOW
from toolbay.errors import ConfigError, ToolbayError

if TYPE_CHECKING:
    from toolbay.agent.runner import Conversation
    from toolbay.app import App
    from toolbay.cli.terminal import Terminal
    from toolbay.types import Message


class KeptConversation:
    """A `Conversation` over another one, which holds its messages in memory whether or not it can write them."""

    def __init__(self, conversation: Conversation, terminal: Terminal, *, is_kept: bool = True) -> None:
        self._conversation = conversation
        self._terminal = terminal
        self.is_kept = is_kept
        """Whether it can be gone on with later."""

    @property
    def id(self) -> str:
        return self._conversation.id

    @property
    def messages(self) -> Sequence[Message]:
        return self._conversation.messages

    async def append(self, *messages: Message) -> None:
        try:
            await self._conversation.append(*messages)
        except ToolbayError as error:
            if self.is_kept:
                self._terminal.warn(f"! {error}", YELLOW)
            self.is_kept = False


async def conversation_of(app: App, session: str | None, terminal: Terminal) -> KeptConversation:
    """The conversation with this id, a new one (None), or the newest (empty). A new one is in memory where no file can be.

    Raises:
        ConfigError: there is none yet.
        ToolbayError: the one that was asked for cannot be read.
    """
    if session == "":
        known = await anyio.to_thread.run_sync(app.sessions.list)
        if not known:
            raise ConfigError("There is no conversation to go on with yet.")
        session = known[0].id
    try:
        return KeptConversation(await anyio.to_thread.run_sync(app.sessions.open, session), terminal)
    except ToolbayError as error:
        if session is not None:
            raise
        from toolbay.sessions import MemoryConversation  # noqa: PLC0415  (help needs none of it)

        terminal.warn(f"! {error} This conversation is only in memory.", YELLOW)
        return KeptConversation(MemoryConversation(), terminal, is_kept=False)
