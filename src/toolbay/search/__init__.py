"""Which tools fit a request: BM25 over names, descriptions and parameters, in a SQLite FTS5 table in memory.

A request is never read as query syntax. FTS5 is an option of SQLite's build, and Python takes whatever SQLite a system has: some
lack it. There a plain count of weighted words takes its place.
"""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from toolbay.search.words import Term, stem, terms, words
from toolbay.types import Kind, Tool

__all__ = ["Index"]

COLUMNS = ("name", "title", "server", "description", "parameters", "about")
WEIGHTS = (8.0, 4.0, 5.0, 2.5, 1.0, 1.0)
"""How much a word counts in each column."""
MAX_TEXT = 6_000
"""Characters of a description that are indexed: what a tool is for stands at its beginning."""


class Table(Protocol):
    """Scores of rows for one word; higher is better, rows without it are absent."""

    def scores(self, word: str) -> dict[int, float]: ...


class Index:
    """A search index over `tools`. Deterministic: equal scores are ordered by name. Use it from one thread at a time."""

    def __init__(self, tools: Iterable[Tool], *, descriptions: Mapping[str, str] | None = None, full_text: bool = True) -> None:
        """`descriptions` say what the servers are for, by their names; without `full_text` FTS5 is not used even if it is there."""
        self._tools = sorted(tools, key=lambda tool: tool.name)
        rows = [_row(tool, (descriptions or {}).get(tool.server, "")) for tool in self._tools]
        self._table: Table = FullText(rows) if full_text and _has_fts5() else Counted(rows)

    def search(self, query: str, limit: int = 10) -> list[tuple[Tool, float]]:
        """The tools that fit best with their scores (positive, comparable within one answer only), best first."""
        totals: dict[int, float] = {}
        wanted = terms(query)
        cache: dict[str, dict[int, float]] = {}
        for term in wanted:
            for row, score in self._best(term, cache).items():
                totals[row] = totals.get(row, 0.0) + score * term.weight
        ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
        return [(self._tools[row], score) for row, score in ranked[: max(limit, 0)]]

    def _best(self, term: Term, cache: dict[str, dict[int, float]]) -> dict[int, float]:
        """A word counts once for a tool: as itself, or as the best of what stands for it."""
        best: dict[int, float] = {}
        for word, weight in ((term.word, 1.0), *term.others):
            if word not in cache:
                cache[word] = self._table.scores(word)
            for row, score in cache[word].items():
                best[row] = max(best.get(row, 0.0), score * weight)
        return best


class FullText:
    """The rows in an FTS5 table, with English stemming."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.execute(
            f"CREATE VIRTUAL TABLE tools USING fts5({', '.join(COLUMNS)}, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        self._connection.executemany(
            f"INSERT INTO tools(rowid, {', '.join(COLUMNS)}) VALUES ({marks})",  # noqa: S608 - our own column names
            [(number, *row) for number, row in enumerate(rows)],
        )

    def scores(self, word: str) -> dict[int, float]:
        marks = ", ".join("?" * len(WEIGHTS))
        found = self._connection.execute(
            f"SELECT rowid, -bm25(tools, {marks}) FROM tools WHERE tools MATCH ?",  # noqa: S608 - nothing but placeholders
            (*WEIGHTS, '"' + word.replace('"', '""') + '"'),
        )
        return {int(row): float(score) for row, score in found}


class Counted:
    """The same without FTS5: how often a word's stem occurs, weighted by column and rarity, with diminishing returns."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._rows: dict[str, dict[int, float]] = {}
        self._count = len(rows)
        for number, row in enumerate(rows):
            for text, weight in zip(row, WEIGHTS, strict=True):
                parts = text.split()
                share = weight / (1.0 + len(parts) / 50)
                for word in parts:
                    holders = self._rows.setdefault(stem(word), {})
                    holders[number] = holders.get(number, 0.0) + share

    def scores(self, word: str) -> dict[int, float]:
        holders = self._rows.get(stem(word), {})
        rarity = math.log(1 + (self._count - len(holders) + 0.5) / (len(holders) + 0.5))
        return {row: rarity * weight / (weight + 1.2) for row, weight in holders.items()}


def _has_fts5() -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        connection.close()


def _row(tool: Tool, about: str) -> tuple[str, ...]:
    """The columns of one tool as words with spaces between."""
    own = tool.wire_name if tool.wire_name and tool.kind is not Kind.RESOURCE else tool.name.removeprefix(f"mcp_{tool.server}_")
    texts = (
        own,
        tool.title,
        tool.server,
        tool.description[:MAX_TEXT],
        " ".join(_parameters(tool.input_schema, 0)),
        about[:MAX_TEXT],
    )
    return tuple(" ".join(words(text)) for text in texts)


def _parameters(schema: Any, depth: int) -> Iterable[str]:
    """Names, titles, descriptions and choices of all parameters, three levels down."""
    if not isinstance(schema, dict) or depth > 3:
        return
    known = cast("dict[str, Any]", schema)
    properties = known.get("properties")
    if isinstance(properties, dict):
        for name, part in cast("dict[str, Any]", properties).items():
            yield name
            yield from _described(part)
            yield from _parameters(part, depth + 1)
    yield from _parameters(known.get("items"), depth + 1)


def _described(part: Any) -> Iterable[str]:
    if not isinstance(part, dict):
        return
    known = cast("dict[str, Any]", part)
    if isinstance(known.get("description"), str):
        yield known["description"][:500]
    if isinstance(known.get("enum"), list):
        yield " ".join(str(value)[:60] for value in known["enum"][:30])
