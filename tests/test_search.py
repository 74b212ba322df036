"""The search among tools."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay import search
from toolbay.search import Index
from toolbay.search.words import stem, terms, words
from toolbay.types import CallContext, Json, Tool, ToolResult

FLOOR_AT_5 = 0.69
FLOOR_AT_10 = 0.73


async def nothing(arguments: Json, context: CallContext) -> ToolResult:
    return ToolResult(text="")


def make(name: str, description: str = "", server: str = "s", *, title: str = "", properties: Json | None = None) -> Tool:
    schema: Json = {"type": "object", "properties": properties or {}}
    return Tool(
        name=f"mcp_{server}_{name}",
        wire_name=name,
        description=description,
        server=server,
        title=title,
        input_schema=schema,
        parameters=schema,
        invoke=nothing,
    )


def found(index: Index, query: str, limit: int = 10) -> list[str]:
    return [tool.wire_name for tool, _ in index.search(query, limit)]


TOOLS = [
    make("readTextFile", "Reads a file as text", "fs", properties={"path": {"type": "string"}}),
    make("write_file", "Writes text to a file", "fs", properties={"path": {}, "content": {"description": "what to write"}}),
    make("get-current-time", "Current time in a zone", "clock", properties={"timezone": {"enum": ["Asia/Tokyo"]}}),
    make("send", "Send a message", "feishu"),
    make("op7", "", "x", title="Weather forecast"),
    make(
        "op8",
        "",
        "x",
        properties={"body": {"type": "object", "properties": {"list": {"type": "array", "items": {"properties": {"invoiceNo": {}}}}}}},
    ),
    make("chaxun", "查询数据库中的订单信息", "erp"),
]


@pytest.fixture(params=["fts5", "without fts5"])
def index(request: pytest.FixtureRequest) -> Index:
    return Index(TOOLS, descriptions={"x": "All about the harbour of Rotterdam"}, full_text=request.param == "fts5")


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("read text", "readTextFile"),
        ("reading TEXT files", "readTextFile"),
        ("writes", "write_file"),
        ("time in a zone", "get-current-time"),
        ("asia tokyo", "get-current-time"),
        ("Feishu", "send"),
        ("forecasts", "op7"),
        ("invoice no", "op8"),
        ("订单", "chaxun"),
        ("查一下订单的信息", "chaxun"),
        ("把文件读一下", "readTextFile"),
        ("现在几点", "get-current-time"),
        ("read notes.md", "readTextFile"),
    ],
)
def test_a_tool_is_found_by_what_it_is_called_says_and_takes(index: Index, query: str, first: str) -> None:
    """RUN-6: names in any style, titles, descriptions, parameters, servers, in English and Chinese, with and without FTS5."""
    assert found(index, query)[0] == first


def test_a_server_is_found_by_what_it_is_for(index: Index) -> None:
    """RUN-6: the description of a server in the configuration serves the search."""
    assert set(found(index, "Rotterdam")) == {"op7", "op8"}


@pytest.mark.parametrize("query", ["", "   ", "the of and", "???", "qwertyuiop", "12345"])
def test_nothing_is_found_where_nothing_is_meant(index: Index, query: str) -> None:
    """RUN-6: words without meaning find nothing."""
    assert index.search(query) == []


def test_a_limit_is_kept_and_scores_fall(index: Index) -> None:
    """RUN-6: the best ones, best first."""
    scores = [score for _, score in index.search("file text write message", 3)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert index.search("file", 0) == index.search("file", -1) == []


@pytest.mark.parametrize("query", ['" OR name:', "NEAR(file text)", "file*", "file AND", 'file"', "name : ^file", "-file", "(", "a' --"])
def test_a_request_is_never_read_as_query_syntax(index: Index, query: str) -> None:
    """RUN-6: a person's punctuation is punctuation."""
    assert ("readTextFile" in found(index, query)) == ("file" in query)


@given(st.text(max_size=60))
@settings(max_examples=80)
def test_no_request_breaks_the_search(query: str) -> None:
    """RUN-6: whatever is typed."""
    for tool, score in SHARED.search(query):
        assert tool in TOOLS
        assert score > 0


SHARED = Index(TOOLS)


def test_an_empty_index_finds_nothing() -> None:
    """RUN-6: no servers, no tools, no error."""
    assert Index([]).search("anything") == []


def test_words_and_terms() -> None:
    """RUN-6: identifiers in all styles give the same words; a request's addresses and files count as what they are."""
    assert list(words("readTextFile read-text_file v2Beta")) == [
        "read",
        "text",
        "file",
        "readtextfile",
        "read",
        "text",
        "file",
        "v",
        "2",
        "beta",
        "v2beta",
    ]
    assert list(words("东京时间 Größe")) == ["东京", "京时", "时间", "grosse"]
    assert {stem("stories"), stem("stopped"), stem("files"), stem("status")} == {"story", "stop", "fil", "status"}
    assert {term.word for term in terms("fetch https://example.com/a?b=c and src/report.docx")} >= {"fetch", "url", "file", "docx"}
    weights = {term.word: term.weight for term in terms('find "green apples" pears')}
    assert weights["green"] < weights["pears"]


def test_people_find_tools_among_fifteen_hundred(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RUN-6: 150 requests of people, in their own words and languages, over the tools of 70 real servers."""
    tools: list[Tool] = []
    for path in sorted((shared_data / "tools").glob("*.json")):
        for tool in json.loads(path.read_text("utf-8"))["tools"] or []:
            built = make(tool["name"], tool.get("description") or "", path.stem, title=tool.get("title") or "")
            tools.append(
                Tool(**{**{name: getattr(built, name) for name in Tool.__dataclass_fields__}, "input_schema": tool["inputSchema"]})
            )
    index = Index(tools)
    questions = json.loads((shared_data / "search" / "questions.json").read_text("utf-8"))
    ranks: list[int] = []
    for question in questions:
        relevant = {tuple(one) for one in question["relevant"]}
        hits = [(tool.server, tool.wire_name) in relevant for tool, _ in index.search(question["q"], 10)]
        ranks.append(hits.index(True) if True in hits else 10)
    at = {limit: sum(rank < limit for rank in ranks) / len(questions) for limit in (1, 5, 10)}
    with capsys.disabled():
        print(f"\n{len(tools)} tools, {len(questions)} requests: found at 1 {at[1]:.3f}, at 5 {at[5]:.3f}, at 10 {at[10]:.3f}")
    assert at[5] >= FLOOR_AT_5
    assert at[10] >= FLOOR_AT_10


def test_fts5_is_used_where_it_is_there() -> None:
    """RUN-6: BM25 by SQLite; the count is only a stand-in."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(a)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no FTS5")
    finally:
        connection.close()
    assert isinstance(SHARED._table, search.FullText)
