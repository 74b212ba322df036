"""`--tools`: a run that knows a part of the tools only. What is not offered is not called either."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from toolbay.types import CallContext, Json, Outcome, Tool, ToolResult, ToolSource


class Selection:
    """The tools whose names match one of some globs: wrapped names, the server's own, or `server.tool`."""

    def __init__(self, globs: str) -> None:
        """`globs` are separated by commas; none at all selects everything."""
        self.globs = tuple(part.strip() for part in globs.split(",") if part.strip())

    def has(self, tool: Tool) -> bool:
        names = (tool.name, tool.wire_name, f"{tool.server}.{tool.wire_name}")
        return not self.globs or any(fnmatchcase(name, glob) for name in names for glob in self.globs)


class NarrowedTools:
    """A `ToolSource` that offers, and calls, the selected tools of another one only."""

    def __init__(self, source: ToolSource, selection: Selection) -> None:
        self._source = source
        self._selection = selection

    @property
    def tools(self) -> Mapping[str, Tool]:
        return MappingProxyType({name: tool for name, tool in self._source.tools.items() if self._selection.has(tool)})

    async def call(self, name: str, arguments: Json | str, context: CallContext) -> ToolResult:
        tool = self._source.tools.get(name)
        if tool is None or self._selection.has(tool):
            return await self._source.call(name, arguments, context)
        # A model may call by heart what it was not offered.
        text = f"The tool {name} is not part of this run: use those that you were offered."
        return ToolResult(text=text, is_error=True, outcome=Outcome.NOT_EXECUTED)
