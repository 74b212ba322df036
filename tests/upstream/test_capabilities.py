"""A server's tools, resources and prompts as tools of an agent, called through real and scripted connections."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from servers.raw_http import RawHttp, Step
from support import servers
from support.connections import Link, linked, raw
from support.processes import eventually
from toolbay._redact import Secrets
from toolbay._text import clean
from toolbay.artifacts import Artifacts
from toolbay.errors import CallTimeout, ConnectionFailed, ConnectionLost, ServerError
from toolbay.types import CallContext, Json, Kind, Progress, Tool, ToolResult
from toolbay.upstream.capabilities import DESCRIPTION_LIMIT, Maker, Offers, get_prompt
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing
from toolbay.upstream.memory import MemoryServer, in_memory

pytestmark = pytest.mark.anyio


class Made:
    """The offers of a connection by their own names."""

    def __init__(self, link: Link, folder: Path, budget: int = 16_000) -> None:
        store = Artifacts(folder, max_bytes=10_000_000, max_files=100, max_age_days=1)
        self.offers = Maker(link.connection, store, budget).make(link.connection.listing or Listing())
        self.tools = {(offer.key.kind, offer.key.name): offer.tool for offer in self.offers.offers}

    async def call(self, name: str, arguments: Json | None = None, kind: Kind = Kind.TOOL, **more: Any) -> ToolResult:
        with anyio.fail_after(60):
            return await self.tools[kind, name].invoke(arguments or {}, CallContext(call_id="c", **more))


@asynccontextmanager
async def made(entry: servers.Entry, folder: Path, **more: Any) -> AsyncGenerator[tuple[Made, Link]]:
    async with linked(entry, **more) as link:
        assert link.state == "ready", link.connection.error
        yield Made(link, folder), link


async def test_the_arguments_of_a_prompt_are_text_and_others_their_json(tmp_path: Path) -> None:
    """SCH-2: the protocol knows only text here; what is none goes as JSON words, never as Python's."""
    taken: list[Json] = []

    def prompt(arguments: Json) -> str:
        taken.append(arguments)
        return "ok"

    server = MemoryServer()
    server.add_prompt("p", prompt)
    store = Artifacts(tmp_path, max_bytes=10_000_000, max_files=100, max_age_days=1)
    async with linked({"type": "stdio", "command": "x"}, name="s", open_engine=in_memory({"s": server})) as link:
        await get_prompt(link.connection, "p", {"a": "text", "b": None, "c": True, "d": 1.5, "e": ["ä"]}, store, 16_000)
    assert taken == [{"a": "text", "b": "null", "c": "true", "d": "1.5", "e": '["ä"]'}]


async def test_the_reference_servers_tools_resources_templates_and_prompts_are_callable(tmp_path: Path) -> None:
    """NAM-1, NAM-4, REN-2: all four kinds, each through its own wire name."""
    async with made(servers.everything_stdio(), tmp_path, name="every") as (server, _):
        assert {tool.name for tool in server.tools.values()} >= {
            "mcp_every_echo",
            "mcp_every_get-sum",
            "mcp_every_resource_architecture_md",
            "mcp_every_resource_Dynamic_Text_Resource",
            "mcp_every_prompt_args-prompt",
        }
        assert "Echo: hi" in (await server.call("echo", {"message": "hi"})).text
        assert "5" in (await server.call("get-sum", {"a": 2, "b": 3})).text
        picture = await server.call("get-tiny-image")
        assert [artifact.media_type for artifact in picture.artifacts] == ["image/png"]
        assert picture.artifacts[0].path.is_file()
        assert "iVBOR" not in picture.text
        structured = await server.call("get-structured-content", {"location": "New York"})
        assert set(structured.structured) == {"temperature", "conditions", "humidity"}
        assert "# " in (await server.call("architecture.md", kind=Kind.RESOURCE)).text
        template = server.tools[Kind.RESOURCE, "Dynamic Text Resource"]
        assert template.input_schema["required"] == ["resourceId"]
        assert "7" in (await server.call("Dynamic Text Resource", {"resourceId": 7}, Kind.RESOURCE)).text
        assert "Paris" in (await server.call("args-prompt", {"city": "Paris"}, Kind.PROMPT)).text


async def test_progress_and_the_servers_own_timeout_reach_a_call(tmp_path: Path) -> None:
    """CAL-8, CFG-3: progress is passed on; `toolTimeouts` are the servers' own names, `maxTimeout` the ceiling."""
    progress: list[Progress] = []
    more = {"tool_timeouts": {"slow": 0.4}, "tool_timeout": 20, "max_timeout": 30}
    async with made(raw(), tmp_path, **more) as (server, _):
        assert (await server.call("slow", {"steps": 4, "seconds": 0.15}, on_progress=progress.append)).text == "4 steps"
        assert [step.message for step in progress] == ["step 1", "step 2", "step 3", "step 4"]
        with pytest.raises(
            CallTimeout, match=r"the tool 'slow' of s failed: it gave no answer.*The server was told to stop. It may have taken"
        ):
            await server.call("slow", {"steps": 1, "seconds": 3})
        assert (await server.call("echo", {"text": "on"})).text == "on"


DYING = ("--die-on", "note", "--die-on", "echo", "--die-once")


@pytest.mark.parametrize(
    ("policy", "tool", "repeated"),
    [
        ({"trusted": True}, "echo", True),
        ({"trusted": True}, "note", False),
        ({}, "echo", False),
        ({"trusted": True, "retry": "never"}, "echo", False),
        ({"retry": "always"}, "note", True),
        ({"retry": {"note": "always"}}, "note", True),
        ({"retry": {"note": "always"}}, "echo", False),
        ({"retry": {"mcp_s_*": "always", "note": "never"}}, "note", False),
        ({"retry": {"mcp_s_*": "always", "note": "never"}}, "echo", True),
        ({"trusted": True, "retry": {"note": "always"}}, "echo", True),
    ],
)
async def test_what_is_repeated_is_said_by_the_user_or_by_a_trusted_server(
    policy: dict[str, Any], tool: str, repeated: bool, tmp_path: Path
) -> None:
    """CAL-3: the configuration's word, then `readOnlyHint` of a trusted server (`echo` has it), else never; the model is told."""
    effects = tmp_path / "effects"
    async with made(raw("--effects", effects, *DYING, tmp_path / "died"), tmp_path, **policy) as (server, _):
        if repeated:
            assert (await server.call(tool, {"text": "twice"})).text == "twice"
        else:
            with pytest.raises(ConnectionLost, match=r"was called: .*exit code 7.*It may have taken effect") as caught:
                await server.call(tool)
            assert caught.value.sent
    assert effects.read_text().split() == [tool] * (2 if repeated else 1)


async def test_a_change_of_the_terms_holds_for_the_next_call_of_the_same_tool(tmp_path: Path) -> None:
    """CFG-3, LIF-4: `toolTimeouts` and `retry` may change while the server is connected, and its tools were called before."""
    died, effects = tmp_path / "died", tmp_path / "effects"
    terms = {"tool_timeouts": {"slow": 0.1}, "retry": "never"}
    async with made(raw("--effects", effects, "--die-on", "note", "--die-once", died), tmp_path, **terms) as (server, link):

        def change(**terms: Any) -> None:
            link.connection.config = link.connection.config.model_copy(update=terms)

        with pytest.raises(CallTimeout):
            await server.call("slow", {"steps": 1, "seconds": 2})
        change(tool_timeouts={"slow": 30.0})
        assert (await server.call("slow", {"steps": 1, "seconds": 0.3})).text == "1 steps"
        with pytest.raises(ConnectionLost):
            await server.call("note")
        died.unlink()
        change(retry="always")
        assert (await server.call("note", {"text": "twice"})).text == "twice"
    assert effects.read_text().split().count("note") == 3


async def test_a_call_carries_one_idempotency_key_for_all_its_attempts_and_each_attempt_an_id_of_its_own(tmp_path: Path) -> None:
    """CAL-3: the key of a call is in `_meta`, the same in a repetition, another in another call; nothing else carries one."""
    seen = tmp_path / "seen"
    async with made(raw("--journal", seen, *DYING, tmp_path / "died"), tmp_path, retry="always") as (server, _):
        await server.call("note")
        await server.call("note")
    messages = [json.loads(line) for line in seen.read_text().splitlines()]
    calls = [message for message in messages if message["method"] == "tools/call"]
    first, again, other = [call["params"]["_meta"]["io.toolbay/idempotencyKey"] for call in calls]
    assert first == again != other
    ids = [message["id"] for message in messages if "id" in message]
    assert len(ids) == len(set(ids)) == 7, "initialize, list and call; initialize, list and two calls"
    assert all("_meta" not in message.get("params", {}) for message in messages if message not in calls)


async def test_a_call_to_a_server_that_was_given_up_says_that_it_was_not_called(tmp_path: Path) -> None:
    """CAL-3: nothing was sent, so nothing can have taken effect."""
    async with made(raw(), tmp_path, restart={"enabled": False}) as (server, link):
        os.kill(link.pid, signal.SIGKILL)
        await link.reaches("failed")
        with pytest.raises(
            ConnectionFailed, match="the tool 'note' was not called: s went away: its program was ended by SIGKILL"
        ) as caught:
            await server.call("note")
    assert "may have taken effect" not in str(caught.value)


async def test_errors_of_the_server_are_told_with_their_code(tmp_path: Path) -> None:
    """CAL-6, CAL-7: of tools, resources and prompts alike."""
    async with made(raw("--error", "note=-32000"), tmp_path) as (server, _):
        with pytest.raises(ServerError, match="s answered the tool 'note' with an error -32000: note is refused") as caught:
            await server.call("note")
        assert caught.value.code == -32000
    async with made(servers.sdk2(), tmp_path) as (server, _):
        assert (await server.call("fail", {"reason": "on purpose"})).is_error
        assert (await server.call("about", {"topic": "tea/../x y"}, Kind.RESOURCE)).text
        assert "Good morning" in (await server.call("greeting", kind=Kind.RESOURCE)).text
        assert (await server.call("logo", kind=Kind.RESOURCE)).artifacts[0].media_type == "image/png"
        assert "review this Python code" in (await server.call("review", {"code": "x = 1"}, Kind.PROMPT)).text
        with pytest.raises(ServerError, match="s answered the prompt 'review' with an error"):
            await server.call("review", {}, Kind.PROMPT)


async def test_secrets_are_masked_in_results_and_errors(tmp_path: Path) -> None:
    """CAL-6, OBS-2: what a server says back of our configuration."""
    async with RawHttp() as web, made(web.entry, tmp_path, secrets=["s3cr3t-value"]) as (server, _):
        assert "s3cr3t-value" not in (await server.call("echo", {"text": "key s3cr3t-value"})).text
        web.steps["note"] = [Step(kind="status", status=400, body=b"bad key s3cr3t-value")]
        with pytest.raises(ServerError, match="HTTP 400: bad key") as caught:
            await server.call("note")
        assert "s3cr3t-value" not in str(caught.value)


async def test_a_long_result_keeps_its_whole_as_a_file(tmp_path: Path) -> None:
    """REN-4: the budget is the one that the maker was given."""
    async with linked(servers.sdk2()) as link:
        result = await Made(link, tmp_path, budget=1000).call("big_text", {"characters": 50_000})
    assert len(result.text) < 2000
    assert result.artifacts[0].size == 50_000


# -- what a server lists, scripted ------------------------------------------------------------------------------------


class Scripted:
    """Stands where a connection stands: only its name and listing are read to make offers, and `safe` where that fails."""

    safe = staticmethod(Secrets({"canary-item"}).mask)

    def __init__(self, **lists: list[Json]) -> None:
        self.name = "s"
        self.listing = replace(Listing(), **{key: tuple(items) for key, items in lists.items()})


def offers(tmp_path: Path, **lists: list[Json]) -> Offers:
    store = Artifacts(tmp_path, max_bytes=1000, max_files=10, max_age_days=1)
    scripted = Scripted(**lists)
    return Maker(cast("Connection", scripted), store, 1000).make(scripted.listing)


def only(tmp_path: Path, **lists: list[Json]) -> Tool:
    found = offers(tmp_path, **lists)
    assert found.complaints == ()
    return found.offers[0].tool


async def test_what_one_capability_has_wrong_costs_only_it_and_is_said(tmp_path: Path) -> None:
    """SCH-3: one notice for each."""
    found = offers(
        tmp_path,
        tools=[
            {"name": "good", "inputSchema": {"type": "object"}},
            {"name": "none"},
            {"name": "task", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
            {"name": "remote", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "https://example.com/s.json"}}}},
        ],
        resources=[{"name": "no uri"}, {"name": "fine", "uri": "a://b"}],
        templates=[{"name": "broken", "uriTemplate": "a://{"}, {"name": "odd", "uriTemplate": 5}],
        prompts=[{"name": "p", "arguments": [None, {"name": "a", "required": True}, {"name": 5}, {"name": "b", "required": "yes"}]}],
    )
    names = {offer.key.name for offer in found.offers}
    assert {"good", "none", "fine", "p"} <= names
    assert not names & {"task", "no uri", "broken", "odd"}
    text = "\n".join(found.complaints)
    for word in ("task", "no uri", "broken", "odd"):
        assert text.count(f"'{word}'") == 1
    prompt = next(offer.tool for offer in found.offers if offer.key.name == "p")
    assert (prompt.input_schema["required"], list(prompt.input_schema["properties"])) == (["a"], ["a", "b"])


ODD: tuple[Any, ...] = (
    None, 5, -1, 10**400, True, "", "a", "\ud800x", [], [1], [None], {}, {"a": 1}, {"title": 5}, [{"name": "x"}], [{"name": 5}],
    [{"name": "a", "description": 5, "required": "x"}], {"properties": 5}, {"type": "object", "properties": {"a": "string"}, "required": 5},
    {"type": "object", "properties": {"a": {"enum": [1, None, "x"], "type": 5}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/properties/a"}}}},
    {"taskSupport": ["required"]}, {"readOnlyHint": {}},
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("tools", "description title inputSchema outputSchema annotations execution icons _meta"),
        ("resources", "uri title description annotations mimeType size _meta"),
        ("templates", "uriTemplate title description annotations _meta"),
        ("prompts", "title description arguments _meta"),
    ],
)
async def test_any_field_may_hold_any_json(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, fields: str) -> None:
    """SCH-3, CFG-6: whatever stands in a field costs at most what it stands in."""
    for field, value in itertools.product(fields.split(), ODD):
        odd = {"name": "odd", "uri": "u://odd", "uriTemplate": "u://{odd}", field: value}
        found = offers(tmp_path, **{kind: [odd, {"name": "good", "uri": "u://good", "uriTemplate": "u://good/{x}"}]})
        assert found.offers[-1].key.name == "good", (field, value)
        assert len(found.offers) == 2 or found.complaints, (field, value)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_nobody_foresaw_costs_its_item_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CFG-6, OBS-2: the last guard; it is logged, so that somebody mends it, without secrets."""

    class Unforeseen(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            if key == "inputSchema":
                raise RuntimeError("nobody foresaw this canary-item")
            return super().get(key, default)

    found = offers(tmp_path, tools=[Unforeseen(name="odd"), {"name": "good"}])
    assert [offer.key.name for offer in found.offers] == ["good"]
    assert found.complaints == ("its tool 'odd' is left out: it is of a form that was not foreseen (the log says more)",)
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "Traceback" in record.getMessage()
    assert record.getMessage().endswith("RuntimeError: nobody foresaw this ***")
    assert record.exc_info is None


async def test_a_tool_without_a_description_has_one(tmp_path: Path) -> None:
    """NAM-1: models choose by it, so it is never empty; a title stands in."""
    assert only(tmp_path, tools=[{"name": "x"}]).description == "The tool x."
    assert only(tmp_path, tools=[{"name": "x", "annotations": {"title": "Fetch it"}}]).description == "Fetch it"
    assert "a://b" in only(tmp_path, resources=[{"name": "r", "uri": "a://b"}]).description


async def test_descriptions_are_cleaned_and_bounded(tmp_path: Path) -> None:
    """REN-7: no escapes, no invisible characters, no endless text."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": f"x\x1b[31m{hidden}y"}}}
    tool = only(tmp_path, tools=[{"name": "x", "description": f"do\x1b[31m it{hidden}" + "z" * 20_000, "inputSchema": schema}])
    assert tool.description.startswith("do itz")
    assert len(tool.description) <= DESCRIPTION_LIMIT
    assert tool.parameters["properties"]["a"]["description"] == "xy"


async def test_nothing_invisible_in_a_schema_reaches_a_model(tmp_path: Path) -> None:
    """REN-7, SEC-1, SEC-6: in names, values, defaults, references and words of its own; the server's own schema judges as it came."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    schema: Any = {
        "type": "object",
        "properties": {
            "a": {
                "type": "string",
                "default": f"x{hidden}",
                "examples": [f"y{hidden}", {f"k{hidden}": 1}],
                "enum": ["plain", f"v{hidden}"],
            },
            "b": {"const": f"c{hidden}", "format": "\x1b[31mred", "pattern": f"p{hidden}", "note": hidden, "minLength": 1},
            "c": {"type": "string", "pattern": "^[a-z]+$", "enum": ["x"], "format": "uri", "const": "x"},
            "o": {
                "type": "object",
                "properties": {f"k{hidden}": {"type": "string"}, "good": {"title": f"t{hidden}"}},
                "required": [f"k{hidden}", "good"],
                "dependentRequired": {"good": [f"k{hidden}"], f"k{hidden}": ["good"]},
                "patternProperties": {f"^x{hidden}": {}},
            },
            "r": {"$ref": f"#/$defs/d{hidden}"},
        },
        "$defs": {f"d{hidden}": {"type": "string", "description": f"e{hidden}\u202e"}},
    }
    found = offers(tmp_path, tools=[{"name": "x", "inputSchema": schema}])
    tool = found.offers[0].tool
    told = json.dumps(tool.parameters, ensure_ascii=False)
    assert clean(told) == told
    properties = tool.parameters["properties"]
    assert properties["a"] == {"type": "string", "default": "x", "examples": ["y", {"k": 1}]}
    assert properties["b"] == {"minLength": 1}
    assert properties["c"] == schema["properties"]["c"]
    assert (properties["o"]["properties"], properties["o"]["required"]) == ({"good": {"title": "t"}}, ["good"])
    assert [*tool.parameters["$defs"].values()] == [{"type": "string", "description": "e"}]
    assert properties["r"]["$ref"].removeprefix("#/$defs/") in tool.parameters["$defs"]
    assert tool.input_schema is schema
    (complaint,) = found.complaints
    assert "'x' has invisible or control characters in its schema" in complaint
    assert all(word in complaint for word in ("enum", "const", "format", "pattern", "properties"))


async def test_hints_are_the_protocols_defaults_where_they_are_absent_or_odd(tmp_path: Path) -> None:
    """CAL-3: what is no boolean is not believed; a read-only tool destroys nothing."""
    assert not only(tmp_path, tools=[{"name": "x", "annotations": {"readOnlyHint": "yes", "idempotentHint": 1}}]).hints.read_only
    hints = only(tmp_path, tools=[{"name": "x", "annotations": {"readOnlyHint": True, "destructiveHint": True}}]).hints
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (True, False, False, True)
    assert only(tmp_path, tools=[{"name": "x", "annotations": "odd"}]).hints.destructive


async def test_a_description_is_a_key_like_any_other_where_it_is_an_arguments_name(tmp_path: Path) -> None:
    """SCH-4: a tool argument may have any name."""
    schema = {"type": "object", "properties": {"description": {"type": "string"}, "title": {"type": "integer"}, "enum": {"type": "array"}}}
    tool = only(tmp_path, tools=[{"name": "x", "inputSchema": schema}])
    assert set(tool.parameters["properties"]) == {"description", "title", "enum"}
    assert tool.input_schema == schema


async def test_structured_content_that_breaks_its_promise_is_said_with_the_content(tmp_path: Path) -> None:
    """REN-3: validated against `outputSchema`; a mismatch is reported with the content."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    class Answering(Scripted):
        config = servers.config(servers.stdio("x"))

        async def request(self, *args: Any, **more: Any) -> Json:
            return {"content": [{"type": "text", "text": "the content"}], "structuredContent": {"n": "many"}}

        def safe(self, text: str) -> str:
            return text

    store = Artifacts(tmp_path, max_bytes=1000, max_files=10, max_age_days=1)
    connection = cast("Connection", Answering(tools=[{"name": "x", "outputSchema": schema}]))
    result = (
        await Maker(connection, store, 10_000).make(connection.listing or Listing()).offers[0].tool.invoke({}, CallContext(call_id="c"))
    )
    assert "the content" in result.text
    assert "integer" in result.text, "what was promised and not kept"
    assert result.structured == {"n": "many"}


async def test_a_cancelled_call_of_a_tool_is_cancelled_on_the_server(tmp_path: Path) -> None:
    """CAL-2: through the tool as well."""
    journal = tmp_path / "journal"
    async with made(raw("--no-reply", "note", "--journal", journal), tmp_path) as (server, _):
        async with anyio.create_task_group() as group:
            group.start_soon(server.call, "note")
            await eventually(lambda: "tools/call" in journal.read_text(), "the call")
            group.cancel_scope.cancel()
        await eventually(lambda: "notifications/cancelled" in journal.read_text(), "notifications/cancelled")
