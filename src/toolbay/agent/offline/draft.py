"""A call in the making: the request's pieces that are still free, and what has been filled so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolbay.agent.offline.values import Param, matched
from toolbay.agent.offline.words import Piece, Request, Sort
from toolbay.search.words import stem, words
from toolbay.types import Json, Tool

TEXTS = frozenset({"query", "q", "search", "keyword", "keywords", "term", "text", "message", "question", "prompt", "topic", "content"})
QUERIES = frozenset({"query", "q", "search", "keyword", "keywords", "term", "topic", "question", "prompt"})
BODIES = frozenset({"content", "contents", "message", "text", "body", "comment", "observation", "note", "description"})
PATHS = frozenset(
    {"path", "paths", "file", "files", "filename", "filepath", "directory", "dir", "folder", "repo", "repository", "root", "cwd"}
)
FOLDERS = frozenset({"directory", "dir", "folder", "repo", "repository", "root", "cwd", "tree"})
SOURCES = frozenset({"source", "src", "from", "origin", "old", "start"})
TARGETS = frozenset({"target", "destination", "dest", "dst", "to", "new", "output", "save", "end"})
URLS = frozenset({"url", "uri", "link", "href", "website"})
NAMES = frozenset({"name", "names", "id", "ids", "key", "title", "entity", "branch", "label", "symbol", "token", "user", "author"})


@dataclass(slots=True)
class Filled:
    """The arguments so far, the required parameters without a value, and which parts of the request were used."""

    arguments: Json = field(default_factory=dict[str, Any])
    missing: list[Param] = field(default_factory=list[Param])
    used: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    guessed: int = 0
    """How many values stand for something that the request does not say (this folder, the local time zone)."""


class Draft:
    """A piece is used once; what was used is kept, so that it can be seen what of the request became an argument."""

    def __init__(self, tool: Tool, request: Request, remembered: Mapping[str, Any]) -> None:
        self.tool = tool
        self.request = request
        self.remembered = remembered
        self.filled = Filled()
        self.free = list(request.pieces)
        self.tool_words = {stem(word) for word in words(f"{tool.wire_name or tool.name} {tool.title} {tool.description[:400]}")}

    def use(self, piece: Piece) -> str:
        self.free.remove(piece)
        self.filled.used.append((piece.start, piece.end))
        return piece.value

    def first(self, *sorts: Sort) -> str | None:
        piece = next((piece for piece in self.free if piece.sort in sorts), None)
        return None if piece is None else self.use(piece)

    def is_used(self, piece: Piece) -> bool:
        return any(start <= piece.start and piece.end <= end for start, end in self.filled.used)

    def near(self, param: Param) -> Piece | None:
        """The number that stands beside the parameter's own words, or beside what people say for them."""
        for piece in self.free:
            if piece.sort is not Sort.NUMBER:
                continue
            before = [stem(word) for word in words(self.request.text[max(0, piece.start - 24) : piece.start])][-2:]
            after = [stem(word) for word in words(self.request.text[piece.end : piece.end + 20])][:1]
            if matched(param, before, after):
                return piece
        return None
