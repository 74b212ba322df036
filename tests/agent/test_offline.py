"""The built-in stand-in for a language model, in conversations: questions, answers, results, a mend, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay.agent.offline import OfflineModel
from toolbay.agent.offline.answer import ASKING, NOTE
from toolbay.agent.offline.slots import fill
from toolbay.agent.offline.words import Sort, read, steps
from toolbay.agent.offline.zones import zones
from toolbay.types import (
    Artifact,
    CallContext,
    Hints,
    Json,
    Message,
    ModelRequest,
    Reply,
    Role,
    TextDelta,
    Tool,
    ToolResult,
)

pytestmark = pytest.mark.anyio

READS = Hints(read_only=True, destructive=False)
WRITES = Hints(read_only=False, destructive=True)


async def nothing(arguments: Json, context: CallContext) -> ToolResult:
    return ToolResult(text="")


def make(
    name: str, description: str, properties: Json, required: tuple[str, ...] = (), *, hints: Hints = READS, server: str = "fs"
) -> Tool:
    schema: Json = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(
        name=f"mcp_{server}_{name}" if server else name,
        wire_name=name if server else "",
        description=description,
        input_schema=schema,
        parameters=schema,
        invoke=nothing,
        hints=hints,
        server=server,
    )


TEXT: Json = {"type": "string"}
READ = make("read_file", "Read a file", {"path": {"type": "string", "description": "Which file to read. Nothing else."}}, ("path",))
WRITE = make("write_file", "Write text to a file", {"path": TEXT, "content": TEXT}, ("path", "content"), hints=WRITES)
DELETE = make("delete_file", "Delete a file", {"path": TEXT}, ("path",), hints=WRITES)
ALLOWED = make("list_allowed_directories", "Lists the directories that may be used", {})
LEVEL = make(
    "set_level",
    "Set the level of the log",
    {"level": {"enum": ["debug", "info"]}},
    ("level",),
    hints=Hints(destructive=False),
    server="log",
)
REPEAT = make("repeat", "Repeat a word some times", {"word": TEXT, "times": {"type": "integer"}}, ("word", "times"), server="toys")
SEARCH_TOOLS = make("search_tools", "Find more tools", {"query": TEXT}, ("query",), server="")
TOOLS = (READ, WRITE, DELETE, ALLOWED, LEVEL, REPEAT)


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def ask(*messages: Message, tools: tuple[Tool, ...] = TOOLS) -> Reply:
    return OfflineModel().reply(ModelRequest(instructions="", messages=messages, tools=tools))


def said(reply: Reply) -> Message:
    return Message(role=Role.ASSISTANT, text=reply.text, calls=reply.calls)


def answered(reply: Reply, *texts: str, is_error: bool = False) -> list[Message]:
    """The assistant's message and a result for each of its calls."""
    results = [
        Message(role=Role.TOOL, text=text, call_id=call.id, name=call.name, is_error=is_error)
        for call, text in zip(reply.calls, texts, strict=True)
    ]
    return [said(reply), *results]


def called(reply: Reply) -> list[tuple[str, Json | str]]:
    return [(call.name, call.arguments) for call in reply.calls]


async def test_it_streams_its_text_and_ends_with_the_reply() -> None:
    """RUN-5: it works without any network, through the same seam as any model."""
    model = OfflineModel()
    assert model.name == "offline"
    request = ModelRequest(instructions="", messages=(user("make me a sandwich"),), tools=TOOLS)
    pieces = [piece async for piece in model.stream(request)]
    assert isinstance(pieces[0], TextDelta)
    assert isinstance(pieces[-1], Reply)
    assert "".join(piece.text for piece in pieces[:-1]) == pieces[-1].text


def test_where_nothing_fits_it_is_told_which_servers_are_not_there() -> None:
    """RUN-5, H4: for want of a login there may be no tool; who gets an answer is not told."""
    lacking = ["notes: HTTP 401, it wants a login: log in with `toolbay login notes`"]
    model = OfflineModel(lambda: lacking)
    told = f"Servers that are not there, whose tools might fit:\n- {lacking[0]}"
    for text, tools in (("make me a sandwich", TOOLS), ("make me a sandwich", ()), ("what tools are there?", TOOLS)):
        reply = model.reply(ModelRequest(instructions="", messages=(user(text),), tools=tools))
        assert reply.text.endswith(told)
    first = model.reply(ModelRequest(instructions="", messages=(user("Read a.md"),), tools=TOOLS))
    messages = (user("Read a.md"), *answered(first, "# Title"))
    assert model.reply(ModelRequest(instructions="", messages=messages, tools=TOOLS)).text == "# Title"
    lacking.clear()
    assert "not there" not in model.reply(ModelRequest(instructions="", messages=(user("make me a sandwich"),), tools=TOOLS)).text


def test_results_are_shown_and_beside_them_the_honest_sentence() -> None:
    """RUN-5: shows the result, and says plainly that it is no language model; who wants the answer gets the answer."""
    first = ask(user("Read a.md"))
    assert ask(user("Read a.md"), *answered(first, "# Title\nBody")) == Reply(text="# Title\nBody", note=NOTE)
    assert first.note == ""
    assert "no language model" in NOTE
    assert "TOOLBAY_MODEL" in NOTE
    assert "agent.model" in NOTE


def test_several_results_are_told_apart_and_errors_are_said() -> None:
    """RUN-5: each result under the name of its tool; an error as one."""
    text = "Read a.md, then read /b.md"
    first = ask(user(text))
    assert called(first) == [("mcp_fs_read_file", {"path": "a.md"}), ("mcp_fs_read_file", {"path": "/b.md"})]
    one = Message(role=Role.TOOL, text='{"zone": "Asia/Tokyo", "hours": 3}', call_id=first.calls[0].id, name="mcp_fs_read_file")
    two = Message(role=Role.TOOL, text="No such file.", call_id=first.calls[1].id, name="mcp_fs_read_file", is_error=True)
    shown = ask(user(text), said(first), one, two).text
    assert shown.startswith("read_file (fs):\nzone: Asia/Tokyo\nhours: 3\n\nread_file (fs) did not work: No such file.")


def test_files_are_named_and_long_results_are_cut() -> None:
    """RUN-5: shows the result: artifacts by their paths, text within bounds."""
    first = ask(user("Read a.png"))
    picture = Artifact(name="x.png", path=Path("/kept/x.png"), media_type="image/png", size=12)
    call = first.calls[0]
    result = Message(role=Role.TOOL, text="y" * 9_000, call_id=call.id, name=call.name, artifacts=(picture,))
    shown = ask(user("Read a.png"), said(first), result).text
    assert "File: /kept/x.png (image/png, 12 bytes)" in shown
    assert "(5000 more characters)" in shown
    assert len(shown) < 5_000


def test_what_is_missing_is_asked_for_and_taken_from_the_answer() -> None:
    """RUN-5: asks for what is missing; the next message is the answer."""
    question = ask(user("Read a file"))
    assert question.text.startswith("I would use read_file (fs), but it needs `path` (Which file to read). What should it be?")
    conversation = [user("Read a file"), said(question), user("docs/plan.md")]
    assert called(ask(*conversation)) == [("mcp_fs_read_file", {"path": "docs/plan.md"})]
    assert "I leave it" in ask(*conversation[:2], user("never mind")).text


def test_questions_follow_one_another_until_all_is_known() -> None:
    """RUN-5: two values are missing, two questions come; a wrong answer brings the question again."""
    messages = [user("repeat a word")]
    for answer, expected in (("hello world", "`word`"), ("many", "`times`"), ("3", "`times`")):
        question = ask(*messages)
        assert expected in question.text
        messages += [said(question), user(answer)]
    assert called(ask(*messages)) == [("mcp_toys_repeat", {"word": "hello world", "times": 3})]


def test_a_question_offers_the_choices() -> None:
    """RUN-5: where only some values are allowed, the question says which, and takes only those."""
    question = ask(user("set the log level"))
    assert "debug, info" in question.text
    assert called(ask(user("set the log level"), said(question), user("make it Debug"))) == [("mcp_log_set_level", {"level": "debug"})]
    assert "`level`" in ask(user("set the log level"), said(question), user("loud")).text


def test_a_new_request_is_not_taken_for_an_answer() -> None:
    """RUN-5: only an answer to its own question is one."""
    other = Message(role=Role.ASSISTANT, text="What should it be?")
    assert called(ask(user("Read a file"), other, user("Read b.md"))) == [("mcp_fs_read_file", {"path": "b.md"})]


def test_a_step_without_its_argument_does_not_hold_up_the_others() -> None:
    """RUN-5: what can be called is called; the question comes with the results, and can still be answered."""
    text = "Read a.md. Then set the log level."
    first = ask(user(text))
    assert called(first) == [("mcp_fs_read_file", {"path": "a.md"})]
    rest = ask(user(text), *answered(first, "content"))
    assert rest.text.startswith("content\n\nI would use set_level (log), but it needs `level`.")
    final = ask(user(text), *answered(first, "content"), said(rest), user("info"))
    assert called(final) == [("mcp_log_set_level", {"level": "info"})]
    assert final.calls[0].id != first.calls[0].id


@pytest.mark.parametrize("text", ["a.md", "What is in a.md?", "I deleted a.md yesterday, what was in it?", "Show a.md"])
def test_nothing_is_written_or_deleted_without_a_verb_that_says_so(text: str) -> None:
    """RUN-5: never picks what may destroy on a weak sign."""
    assert not {call.name for call in ask(user(text)).calls} & {WRITE.name, DELETE.name}


def test_a_verb_that_deletes_deletes_and_never_reads() -> None:
    """RUN-5: a demand that no tool can meet is not met by another one."""
    assert called(ask(user("Please delete a.md"))) == [("mcp_fs_delete_file", {"path": "a.md"})]
    without = ask(user("Please delete a.md"), tools=(READ, WRITE, ALLOWED))
    assert without.calls == ()
    assert 'None of the tools clearly fits "Please delete a.md".' in without.text


def test_nothing_fitting_is_said_with_the_nearest_tools() -> None:
    """RUN-5: says so, lists the nearest tools."""
    reply = ask(user("write poems about file systems of the world and their inventors"))
    assert reply.text.startswith("None of the tools clearly fits")
    assert "- write_file (fs): Write text to a file" in reply.text
    assert reply.note == NOTE


def test_it_tells_what_it_can_do() -> None:
    """RUN-5: a person who does not know the tools gets their names."""
    text = ask(user("Which tools do you have?")).text
    assert "- fs: read_file, write_file" in text
    assert "- toys: repeat" in text


@pytest.mark.parametrize("text", ["hello", "read a.md", ""])
def test_without_tools_it_answers_in_text(text: str) -> None:
    """RUN-5: a request without tools is answered in text."""
    reply = ask(user(text), tools=())
    assert reply.calls == ()
    assert reply.text
    assert reply.note == NOTE


def test_a_relative_path_that_was_refused_is_tried_in_an_allowed_folder_once() -> None:
    """RUN-5: the path goes as written; where a server refuses it, it is looked for in the folder that the server allows."""
    messages = [user("Read a.md")]
    first = ask(*messages)
    messages += answered(first, "Access denied - path outside allowed directories", is_error=True)
    second = ask(*messages)
    assert called(second) == [("mcp_fs_list_allowed_directories", {})]
    messages += answered(second, "Allowed directories:\n/home/me/My Notes")
    third = ask(*messages)
    assert called(third) == [("mcp_fs_read_file", {"path": "/home/me/My Notes/a.md"})]
    assert ask(*messages, *answered(third, "the content")).text == "the content"
    assert "did not work" in ask(*messages, *answered(third, "no such file", is_error=True)).text
    assert len({call.id for reply in (first, second, third) for call in reply.calls}) == 3


def test_a_folder_in_which_the_server_has_looked_is_not_tried_again() -> None:
    """RUN-5: an error that names the very path is final."""
    messages = [user("Read a.md")]
    first = ask(*messages)
    messages += answered(first, "no such file: /home/me/a.md", is_error=True)
    messages += answered(ask(*messages), "/home/me")
    assert "did not work: no such file" in ask(*messages).text


def test_json_results_are_shown_as_an_outline() -> None:
    """RUN-5: shows the result plainly: no braces, nothing empty, texts of several lines as they are."""
    first = ask(user("Read a.md"))
    shown = ask(
        user("Read a.md"), *answered(first, '{"pages": [{"n": 1, "text": "one\\ntwo", "x": null}], "tags": ["a", "b"], "y": {}}')
    ).text
    assert shown == "pages:\n  -\n    n: 1\n    text:\n      one\n      two\ntags:\n  - a\n  - b"
    assert ask(user("Read a.md"), *answered(first, "[" * 60 + "]" * 60)).text
    assert ask(user("Read a.md"), *answered(first, '{"pages": 3}\nAnd its text')).text == "pages: 3\nAnd its text"
    assert ask(user("Read a.md"), *answered(first, "[broken")).text.startswith("[broken")


def test_only_a_relative_path_and_only_where_folders_can_be_asked_for_is_mended() -> None:
    """RUN-5: an absolute path is what the person meant."""
    for text, tools in (("Read /x/a.md", TOOLS), ("Read a.md", (READ, WRITE))):
        first = ask(user(text), tools=tools)
        assert "did not work: denied" in ask(user(text), *answered(first, "denied", is_error=True), tools=tools).text


def test_tools_that_are_kept_back_are_searched_for() -> None:
    """RUN-6: where nothing fits and there is a search among tools, it is used; what it finds is called."""
    first = ask(user("Read a.md"), tools=(SEARCH_TOOLS,))
    assert called(first) == [("search_tools", {"query": "Read a.md"})]
    found = ask(user("Read a.md"), *answered(first, "mcp_fs_read_file"), tools=(SEARCH_TOOLS, READ))
    assert called(found) == [("mcp_fs_read_file", {"path": "a.md"})]


def test_a_long_run_of_anything_costs_no_more_than_its_length() -> None:
    """RUN-5: text from elsewhere (a pasted table, a log) must not keep the loop busy: ten times each, in a process that can be ended."""
    code = """
from toolbay.agent.offline import OfflineModel
from toolbay.types import Message, ModelRequest, Role
for text in ("a" + " " * 7990 + "b", "a-" * 4000, "a." * 4000, "what " * 1600, ":" * 8000, "~^" * 4000):
    for _ in range(10):
        OfflineModel().reply(ModelRequest(instructions="", messages=(Message(role=Role.USER, text=text),)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], timeout=45, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert ended.returncode == 0


async def test_a_thousand_tools_are_indexed_beside_the_loop() -> None:
    """RUN-5: others go on meanwhile; the answer is the same."""
    tools = tuple(make(f"tool_{number}", "Does one thing.", {f"p{number}": TEXT}) for number in range(1_000))
    turns = 0
    pieces: list[TextDelta | Reply] = []
    done = anyio.Event()

    async def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await anyio.lowlevel.checkpoint()

    request = ModelRequest(instructions="", messages=(Message(role=Role.USER, text="hello there"),), tools=tools)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(count, name="count")
            pieces += [piece async for piece in OfflineModel().stream(request)]
            done.set()
    assert pieces[-1] == OfflineModel().reply(request)
    assert turns > 50


def test_the_same_conversation_goes_on_the_same_way() -> None:
    """RUN-5: deterministic and without a memory of its own."""
    model = OfflineModel()
    request = ModelRequest(instructions="", messages=(user("Read a.md, then set the log level to info"),), tools=TOOLS)
    first = model.reply(request)
    model.reply(ModelRequest(instructions="", messages=(user("delete b.md"),), tools=(DELETE,)))
    assert model.reply(request) == first == OfflineModel().reply(request)


def test_a_message_during_a_turn_is_taken_next() -> None:
    """RUN-4: what arrives while calls run is answered at the next step."""
    first = ask(user("Read a.md"))
    assert called(ask(user("Read a.md"), *answered(first, "x"), user("Read b.md"))) == [("mcp_fs_read_file", {"path": "b.md"})]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_words_break_it(texts: list[str], has_tools: bool) -> None:
    """RUN-5: whatever is typed, there is an answer, and calls carry the tools' own parameters."""
    messages: list[Message] = []
    for text in texts:
        messages += [user(text), Message(role=Role.ASSISTANT, text=ASKING)]
    reply = ask(*messages[:-1], tools=TOOLS if has_tools else ())
    assert reply.text or reply.calls
    for call in reply.calls:
        assert isinstance(call.arguments, dict)
        assert set(call.arguments) <= set(next(tool for tool in TOOLS if tool.name == call.name).input_schema["properties"])


PAGES: Json = {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}
PDF = make(
    "read_pdf",
    "Reads PDF files",
    {
        "sources": {
            "type": "array",
            "items": {"type": "object", "properties": {"path": TEXT, "pages": PAGES}, "required": ["path"]},
        },
        "include_metadata": {"type": "boolean", "default": False},
        "recursive": {"type": "boolean"},
    },
    ("sources",),
)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("Read report.pdf", {"sources": [{"path": "report.pdf"}]}),
        ("Read page 3 of report.pdf", {"sources": [{"path": "report.pdf", "pages": [3]}]}),
        ("Read pages 1, 2 and 4-6 of report.pdf", {"sources": [{"path": "report.pdf", "pages": [1, 2, 4, 5, 6]}]}),
        ("read report.pdf recursively with metadata", {"sources": [{"path": "report.pdf"}], "include_metadata": True, "recursive": True}),
        ("read report.pdf without metadata", {"sources": [{"path": "report.pdf"}], "include_metadata": False}),
        ("读取 report.pdf 第三页", {"sources": [{"path": "report.pdf", "pages": [3]}]}),
        ('recursive=true sources=[{"path": "x"}]', {"sources": [{"path": "x"}], "recursive": True}),
    ],
)
def test_nested_and_flagged_arguments_are_filled(text: str, arguments: Json) -> None:
    """RUN-5: arrays of objects one level down, numbers beside their names, booleans by their words."""
    assert fill(PDF, read(text)).arguments == arguments


def test_an_object_that_wants_one_of_several_parts_takes_the_one_that_is_there() -> None:
    """RUN-5: a source is a path or a URL; neither is required by itself."""
    item: Json = {"type": "object", "properties": {"path": TEXT, "url": TEXT, "pages": PAGES}}
    tool = make("read_pdf", "Reads PDFs", {"sources": {"type": "array", "items": item}}, ("sources",))
    assert fill(tool, read("read page 3 of report.pdf")).arguments == {"sources": [{"path": "report.pdf", "pages": [3]}]}
    assert fill(tool, read("read https://a.b/c.pdf")).arguments == {"sources": [{"url": "https://a.b/c.pdf"}]}
    assert [param.name for param in fill(tool, read("read a pdf")).missing] == ["sources"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("see https://a.b/c?d=1, ok", [(Sort.URL, "https://a.b/c?d=1")]),
        ("say \"a b\" to 'c d' and “e”", [(Sort.QUOTED, "a b"), (Sort.QUOTED, "c d"), (Sort.QUOTED, "e")]),
        ("don't and can't", []),
        (
            "in ~/x/y.txt or C:\\a\\b.txt or ../z or .env",
            [(Sort.PATH, "~/x/y.txt"), (Sort.PATH, "C:\\a\\b.txt"), (Sort.PATH, "../z"), (Sort.PATH, ".env")],
        ),
        ('open "my notes.md"', [(Sort.PATH, "my notes.md")]),
        ("读一下 笔记.md 吧", [(Sort.PATH, "笔记.md")]),
        ("at 3pm, 9:05, noon and 12 am", [(Sort.TIME, "15:00"), (Sort.TIME, "09:05"), (Sort.TIME, "12:00"), (Sort.TIME, "00:00")]),
        ("下午三点半", [(Sort.TIME, "15:30")]),
        (
            "on June 5, 2025 or 2025年6月7日 or 2025-01-02T03:04:05Z",
            [(Sort.DATE, "2025-06-05"), (Sort.DATE, "2025-06-07"), (Sort.DATE, "2025-01-02T03:04:05Z")],
        ),
        ("a=1 b = 'x y' c=[1, 2]", [(Sort.PAIR, "1"), (Sort.PAIR, "x y"), (Sort.PAIR, "[1, 2]")]),
        ("5 or 2.5 or -3 or 4-6 or three", [(Sort.NUMBER, text) for text in ("5", "2.5", "-3", "4-6", "3")]),
        ("commit abc123 HEAD~2 session:42", [(Sort.IDENTIFIER, "abc123"), (Sort.IDENTIFIER, "HEAD~2"), (Sort.IDENTIFIER, "session:42")]),
        ("docs.example.com", [(Sort.DOMAIN, "docs.example.com")]),
        ("e.g. this and/or that", []),
    ],
)
def test_values_are_seen_in_a_text(text: str, pieces: list[tuple[Sort, str]]) -> None:
    """RUN-5: quoted strings, paths, numbers, dates, times, URLs, key=value, each as what it is."""
    assert [(piece.sort, piece.value) for piece in read(text).pieces] == pieces


def test_steps_are_split_outside_of_quotes_and_names_only() -> None:
    """RUN-5: a request of several sentences, at most four."""
    assert steps("Read a.md. Then list b") == ["Read a.md.", "Then list b"]
    assert steps('Write "one. Then two; and then three" to x.txt') == ['Write "one. Then two; and then three" to x.txt']
    assert steps("Fetch https://a.b/then and then stop") == ["Fetch https://a.b/then", "stop"]
    assert steps("salt and pepper") == ["salt and pepper"]
    assert len(steps("A. B. C. D. E. F.")) == 4
    assert steps("  ") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in tokyo", ["Asia/Tokyo"]),
        ("from San Francisco to Mumbai", ["America/Los_Angeles", "Asia/Kolkata"]),
        ("Europe/London and UTC", ["Europe/London", "UTC"]),
        ("São Paulo", ["America/Sao_Paulo"]),
        ("东京和纽约", ["Asia/Tokyo", "America/New_York"]),
        ("a jersey that is easter green", []),
        ("the new york-based", []),
    ],
)
def test_places_become_time_zones(text: str, expected: list[str]) -> None:
    """RUN-5: a city or country stands for its IANA zone."""
    assert [zone for zone, _, _ in zones(text)] == expected
