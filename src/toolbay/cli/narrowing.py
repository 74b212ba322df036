"""`--tools`: a run that knows a part of the tools only. What is not offered is not called either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from fnmatch import fnmatchcase

from toolbay.types import Invocation, Model, ModelRequest, Next, Outcome, Reply, TextDelta, Tool, ToolResult


class Selection:
    """The tools whose names match one of some globs: wrapped names, the server's own, or `server.tool`."""

    def __init__(self, globs: str) -> None:
        """`globs` are separated by commas; none at all selects everything."""
        self.globs = tuple(part.strip() for part in globs.split(",") if part.strip())

    def has(self, tool: Tool) -> bool:
        names = (tool.name, tool.wire_name, f"{tool.server}.{tool.wire_name}")
        return not self.globs or any(fnmatchcase(name, glob) for name in names for glob in self.globs)

    async def guard(self, invocation: Invocation, following: Next) -> ToolResult:
        """An interceptor: a model may call by heart what it was not offered."""
        if self.has(invocation.tool):
            return await following(invocation)
        text = f"The tool {invocation.tool.name} is not part of this run: use those that you were offered."
        return ToolResult(text=text, is_error=True, outcome=Outcome.NOT_EXECUTED)


class NarrowedModel:
    """A model that is offered the selected tools only."""

    def __init__(self, model: Model, selection: Selection) -> None:
        self._model = model
        self._selection = selection

    @property
    def name(self) -> str:
        return self._model.name

    def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        return self._model.stream(replace(request, tools=tuple(tool for tool in request.tools if self._selection.has(tool))))
