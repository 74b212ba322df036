"""One chat: a conversation, who answers in it, and what a line that a person wrote comes to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import anyio

from toolbay._nearest import nearest
from toolbay.cli import mentions, slash
from toolbay.cli.invocation import Invocation
from toolbay.cli.lines import overheard
from toolbay.cli.running import moving
from toolbay.cli.stopping import caught
from toolbay.cli.terminal import DIM, YELLOW, one_line, plural
from toolbay.cli.views import CallsView, ReloadsView, faults_of
from toolbay.errors import BadCall, ToolbayError

if TYPE_CHECKING:
    from toolbay.agent.runner import Runner
    from toolbay.app import App
    from toolbay.cli.approving import AtTerminal
    from toolbay.cli.keeping import KeptConversation
    from toolbay.offerings import PromptInfo

_META: Final = 60


class Dialogue:
    """A chat over a running app. `over` is set by /quit."""

    def __init__(self, invoked: Invocation, app: App, conversation: KeptConversation, runner: Runner) -> None:
        self.invoked = invoked
        self.terminal = invoked.terminal
        self.app = app
        self.conversation = conversation
        self.runner = runner
        self.model_name = app.model_name
        self.over = False
        self._noted = False
        self.reloads = ReloadsView(invoked.terminal, lambda: faults_of(app.config), lambda: app.servers)
        self.asker: AtTerminal | None = None
        """Who waits for an answer while a call needs approval."""

    async def hear(self, line: str) -> None:
        """Do what a line says. What goes wrong is told; the chat goes on."""
        text = line.strip()
        try:
            if text.startswith("/"):
                await self._obey(text)
            elif text:
                await self._turn(await self._filled(text))
        except ToolbayError as error:
            self.terminal.error(str(error))
        except ExceptionGroup as errors:
            told, rest = errors.split(ToolbayError)
            if rest is not None:
                raise
            for error in told.exceptions if told else ():
                self.terminal.error(str(error))

    async def _obey(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        command = slash.COMMANDS.get(word)
        if command is not None:
            await command.run(self, rest.strip())
            return
        prompt, rest = self._prompt(text[1:])
        if prompt is None:
            near = nearest(word, [*slash.COMMANDS, *(f"/{one.server}:{one.name}" for one in self.app.prompts())])
            raise BadCall(f"There is no command {one_line(word, 80)}: {f'did you mean {near}?' if near else '/help lists them.'}")
        name = f"{prompt.server}:{prompt.name}"
        rendered = await self.app.prompt(prompt.server, prompt.name, mentions.prompt_arguments(name, rest, prompt.arguments))
        if rendered.is_error:
            raise BadCall(f"The prompt {one_line(name)} could not be filled in, so nothing was sent: {rendered.text}")
        self.terminal.say(f"(the prompt {one_line(name)}: {plural(len(rendered.text.splitlines()), 'line')})", DIM)
        await self._turn(rendered.text)

    def _prompt(self, text: str) -> tuple[PromptInfo | None, str]:
        """The prompt that `text` begins with, and what follows; the longest name wins."""
        found = [
            (len(name), one)
            for one in self.app.prompts()
            if text.startswith(name := f"{one.server}:{one.name}") and text[len(name) : len(name) + 1].strip() == ""
        ]
        if not found:
            return None, ""
        length, prompt = max(found, key=lambda pair: pair[0])
        return prompt, text[length:].strip()

    async def _filled(self, text: str) -> str:
        """`text` with the contents of the resources that it mentions."""
        contents: list[tuple[mentions.Mention, str]] = []
        for mention in mentions.mentions(text, self.app.servers, self.app.resources()):
            result = await self.app.resource(mention.server, mention.uri)
            if result.is_error:
                raise BadCall(f"{mention} could not be read, so nothing was sent: {result.text}")
            self.terminal.say(f"(with {mention}: {plural(len(result.text.splitlines()), 'line')})", DIM)
            contents.append((mention, result.text))
        return mentions.with_contents(text, contents)

    async def _turn(self, text: str) -> None:
        """One turn; Ctrl-C or /stop ends it and keeps the conversation. What is typed meanwhile is taken at its next step."""
        with ExitStack() as stack:
            scope = stack.enter_context(anyio.CancelScope())
            view = CallsView(self.terminal, session=self.conversation.id, answer=True, stop=scope.cancel)
            stack.enter_context(caught((signal.SIGINT,), lambda _: scope.cancel()))
            stack.enter_context(self.app.events.listen(view))
            if self.terminal.interactive:
                stack.enter_context(overheard(lambda line: self._interject(line.strip(), scope)))
            async with moving(self.terminal, lambda: view.status):
                turn = await self.runner.run(self.conversation, text)
            view.check()
            self.terminal.end_line()
            if turn.stopped == "error":
                self.terminal.error(turn.error)
            elif turn.text.strip() not in view.text:
                self.terminal.write(turn.text)
            if turn.note and not self._noted:
                self.terminal.say(turn.note, DIM)
                self._noted = True
            if turn.stopped == "limit":
                self.terminal.say("! this turn met its limit", YELLOW)
        view.check()
        if scope.cancelled_caught:
            self.terminal.end_line()
            self.terminal.say("(stopped; the conversation goes on)", YELLOW)

    def _interject(self, text: str, turn: anyio.CancelScope) -> None:
        """What a person says while a turn runs."""
        if text == "/stop":
            turn.cancel()
        elif self.asker is not None and self.asker.hear(text):
            pass
        elif text.startswith("/"):
            self.terminal.say("(meanwhile only /stop is understood)", DIM)
        elif text:
            self.runner.post(self.conversation, text)
            self.terminal.say("(will be taken up at the next step)", DIM)

    def completions(self, before: str) -> Iterator[tuple[str, int, str]]:
        """What may follow the text before the cursor: (what to insert, how far back it begins, what it is)."""
        if before.startswith("/") and " " not in before:
            for name, command in slash.COMMANDS.items():
                if name.startswith(before):
                    yield name, -len(before), command.help
            for one in self.app.prompts():
                name = f"/{one.server}:{one.name}"
                if name.startswith(before):
                    yield name, -len(before), one_line(one.description or one.title, _META)
            return
        word = before.rsplit(None, 1)[-1] if before.strip() and not before[-1].isspace() else ""
        if before.startswith("/resume "):
            for session in self.app.sessions.list():
                if session.id.startswith(word if word != "/resume" else ""):
                    yield session.id, -len(word), one_line(session.title, _META)
        elif word.startswith("@"):
            for resource in self.app.resources():
                name = f"@{resource.server}:{resource.uri}"
                if word[1:].lower() in name.lower() and not resource.template:
                    yield name, -len(word), one_line(resource.description or resource.name, _META)
