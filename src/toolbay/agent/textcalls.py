"""Calls that a small model wrote as text, because it was never taught to call (RUN-10).

Recognised are JSON objects in a `<tool_call>` tag, in a fence, or as the whole text, and only where they name a known tool:
anything else is what the model said.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from toolbay.types import Json, Model, ModelRequest, Reply, TextDelta, ToolCall

LIMIT = 100_000
"""Characters of a reply that are looked through."""

_MARKED = re.compile(
    r"<tool_call>(.*?)(?:</tool_call>|\Z)|^[ \t]*```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)\n[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)


def extracted(text: str, known: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """What is left of `text` without the calls of `known` tools, and those calls; the ids are empty, for whoever numbers them."""
    if len(text) > LIMIT or not known:
        return text, ()
    whole = _calls(text, known)
    if whole:
        return "", whole
    found: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        calls = _calls(match[1] if match[1] is not None else match[2], known)
        found.extend(calls)
        return "" if calls else match[0]

    rest = _MARKED.sub(take, text)
    return (rest.strip(), tuple(found)) if found else (text, ())


def _calls(text: str, known: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls that `text` is: one object or a list of them, each naming a known tool; none where anything else is among them."""
    if not text.lstrip().startswith(("{", "[")):
        return ()
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    items = cast("list[Any]", data) if isinstance(data, list) else [data]
    calls = tuple(call for item in items for call in _call(item, known))
    return calls if len(calls) == len(items) else ()


def _call(item: Any, known: Collection[str]) -> Iterator[ToolCall]:
    if not isinstance(item, dict):
        return
    call = cast("Json", item)
    inner = call.get("function")
    call = cast("Json", inner) if isinstance(inner, dict) else call
    name = call.get("name")
    arguments: Any = call.get("arguments", call.get("parameters", {}))
    if isinstance(name, str) and name in known and isinstance(arguments, dict | str):
        yield ToolCall(id="", name=name, arguments=cast("Json | str", arguments))


class TextCalls:
    """A model whose written calls are taken for calls. For models on this machine only: others know how to call."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        """As the model's own; the reply that ends it has the calls that stood in its text."""
        known = {tool.name for tool in request.tools}
        async with aclosing(cast("AsyncGenerator[TextDelta | Reply]", self._model.stream(request))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reply) and not piece.calls:
                    text, calls = extracted(piece.text, known)
                    yield replace(piece, text=text, calls=calls)
                else:
                    yield piece

    async def aclose(self) -> None:
        """Close the model, if it can be."""
        close = getattr(self._model, "aclose", None)
        if close is not None:
            await close()
