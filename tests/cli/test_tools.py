"""`tools`, `call`, `prompts`, `resources` against real servers."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from cli.conftest import Configure, Open
from cli.terminals import PATIENCE, started, toolbay
from support import servers
from support.processes import wait_until
from toolbay.cli.tools import chosen, likely_servers
from toolbay.errors import BadCall
from toolbay.types import CallContext, Json, Tool, ToolResult

USING = "(using ./toolbay.json)\n"
"""What a command says that starts the servers of a file that it only found in the working folder."""


def test_tools_are_listed_for_people_and_for_programs(tmp_path: Path, configure: Configure) -> None:
    """CLI: `tools`, with `--json`; patterns and --server narrow it."""
    configure(time=servers.time(), raw=servers.raw("--tools", "echo"))
    table = toolbay("tools", cwd=tmp_path).stdout.splitlines()
    assert table[0].split() == ["tool", "server", "r/o", "what"]
    assert [line.split()[:3] for line in table[1:4]] == [
        ["mcp_raw_echo", "raw", "r/o"],
        ["mcp_time_convert_time", "time", "r/o"],
        ["mcp_time_get_current_time", "time", "r/o"],
    ]
    done = toolbay("tools", "time.*", "--json", "--server", "time", cwd=tmp_path)
    listed = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, USING)
    assert [tool["wire_name"] for tool in listed] == ["convert_time", "get_current_time"]
    assert set(listed[0]) >= {"name", "server", "wire_name", "description", "parameters", "hints"}
    assert listed[0]["parameters"]["required"] == ["source_timezone", "time", "target_timezone"]
    assert listed[0]["hints"]["read_only"] is True


def test_full_descriptions_name_the_parameters(tmp_path: Path, configure: Configure) -> None:
    """CLI: `tools --full`."""
    configure(time=servers.time())
    said = toolbay("tools", "current", "--full", cwd=tmp_path).stdout
    assert said.startswith("mcp_time_get_current_time  (time, r/o)\n")
    assert "    timezone: string (required)  IANA timezone name" in said


def test_at_a_terminal_each_tool_is_one_line(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """CLI: `tools` is cut to the width, `--full` and a pipe are not."""
    said = f"Begins here and {'goes on ' * 60}to the end"
    (tmp_path / "definitions.json").write_text(json.dumps({"echo": {"description": said}}), encoding="utf-8")
    configure(raw=servers.raw("--tools", "echo,note", "--definitions", tmp_path / "definitions.json"))
    shown = at_terminal("tools", "--server", "raw")
    assert shown.end() == 0
    rows = [line.rstrip() for line in shown.seen.splitlines() if "mcp_raw_" in line or "goes on" in line]
    assert [row.split()[0] for row in rows] == ["mcp_raw_echo", "mcp_raw_note"]
    assert 90 < len(rows[0]) <= 100
    assert "Begins here and goes on" in rows[0]
    assert rows[0].endswith("…")
    assert said in toolbay("tools", "--server", "raw", cwd=tmp_path).stdout
    full = at_terminal("tools", "echo", "--full")
    assert full.end() == 0
    assert said in full.seen.replace("\r\n", "")


def test_odd_schemas_are_shown_as_far_as_they_say_something(tmp_path: Path, configure: Configure) -> None:
    """CLI: `tools --full` with keywords of the wrong type; the tool is shown, and its type in words."""
    odd: Json = {
        "a": None,
        "b": {"type": ["string", "null"], "description": 5},
        "c": [1],
        "d": {"type": "array", "items": {"type": "number"}},
    }
    definitions = {"echo": {"inputSchema": {"type": "object", "properties": odd, "required": "a"}}}
    (tmp_path / "definitions.json").write_text(json.dumps(definitions), encoding="utf-8")
    configure(raw=servers.raw("--tools", "echo", "--definitions", tmp_path / "definitions.json"))
    done = toolbay("tools", "echo", "--full", cwd=tmp_path)
    assert done.returncode == 0
    assert "mcp_raw_echo" in done.stdout
    assert "    d: array of number\n" in done.stdout


def test_tools_are_found_by_what_they_are_for(tmp_path: Path, configure: Configure) -> None:
    """CLI: where no name holds the words, the tools that fit them are shown, best first; a pattern stays one."""
    configure(time=servers.time())
    found = json.loads(toolbay("tools", "between time zones", "--json", cwd=tmp_path).stdout)
    assert found[0]["wire_name"] == "convert_time"
    assert 'No tool matches "zz*".' in toolbay("tools", "zz*", cwd=tmp_path).stderr


@pytest.mark.parametrize("words", [["tools"], ["call", "x"], ["prompts"], ["resources"]])
def test_without_servers_the_way_to_one_is_told(words: list[str], tmp_path: Path) -> None:
    """CLI: a helpful sentence where nothing is configured."""
    done = toolbay(*words, cwd=tmp_path)
    assert "toolbay add" in done.stderr
    assert "pinned" not in done.stderr
    assert done.returncode == (1 if words[0] == "call" else 0)


def test_where_every_server_failed_that_is_the_exit_code(tmp_path: Path, configure: Configure) -> None:
    """CLI, decision 0016: exit code 3, also where some work: what they have is told, and the failure in one short line."""
    configure(dead={"command": "no-such-command"})
    done = toolbay("tools", cwd=tmp_path)
    assert done.returncode == 3
    assert "✗ dead could not be started" in done.stderr
    configure(dead={"command": "no-such-command"}, raw=servers.raw())
    done = toolbay("tools", "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert "✗ dead could not be started" in done.stderr
    assert "PATH searched" not in done.stderr, "that is for the doctor"
    assert toolbay("prompts", "--json", cwd=tmp_path).returncode == 3
    assert {tool["server"] for tool in json.loads(done.stdout)} >= {"raw"}


def test_a_call_reads_its_arguments_by_the_schema(tmp_path: Path, configure: Configure) -> None:
    """CLI: `call server.tool KEY=VALUE`; only that server is started."""
    configure(dead={"command": "no-such-command"}, sdk=servers.sdk2())
    done = toolbay("call", "sdk.add", "a=2", "b=3", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", USING)
    done = toolbay("call", "sdk/weather", "--args", '{"city": "Rome"}', "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["structured"] == {"city": "Rome", "celsius": 11.5, "rain": True}
    assert (told["is_error"], told["outcome"], told["artifacts"]) == (False, "executed", [])


def test_a_raw_name_is_enough_where_one_server_has_it(tmp_path: Path, configure: Configure) -> None:
    """CLI: `call` finds the tool among all servers; an unknown one gets the nearest name."""
    configure(sdk=servers.sdk2(), raw=servers.raw("--tools", "speak"))
    assert toolbay("call", "speak", "text=x y", cwd=tmp_path).stdout == "x y\n"
    done = toolbay("call", "speek", "text=x", cwd=tmp_path)
    assert done.returncode == 1
    assert "did you mean raw.speak?" in done.stderr


def test_an_error_of_the_tool_is_exit_code_1(tmp_path: Path, configure: Configure) -> None:
    """CLI: an error result goes to stderr."""
    configure(sdk=servers.sdk2())
    done = toolbay("call", "mcp_sdk_fail", "reason=the reason", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{USING}error: Error executing tool fail\n"
    assert "Traceback" not in done.stderr


def test_progress_is_shown_while_the_call_runs(tmp_path: Path, configure: Configure) -> None:
    """CAL-8: progress is visible, on stderr; stdout has the result alone."""
    configure(sdk=servers.sdk2())
    done = toolbay("call", "sdk.slow", "steps=3", "seconds=0.01", cwd=tmp_path)
    assert done.stdout == "3 steps\n"
    assert "· mcp_sdk_slow 67 %, step 2 of 3\n" in done.stderr


def test_what_a_server_says_is_cleaned_and_never_markup(tmp_path: Path, configure: Configure) -> None:
    """REN-7, CLI: escape sequences do not reach the terminal, and brackets are brackets."""
    configure(raw=servers.raw())
    done = toolbay("call", "raw.echo", r'--args={"text": "[bold]x[/bold] \u001b[31mred\u001b[0m [/]"}', cwd=tmp_path)
    assert done.stdout == "[bold]x[/bold] red [/]\n"
    done = toolbay("call", "raw.echo", r'--args={"text": "\u001b[31mred \u202e"}', "--json", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_prompts_are_listed_and_rendered(tmp_path: Path, configure: Configure) -> None:
    """CLI, RUN-9: `prompts` and `prompts get`."""
    configure(sdk=servers.sdk2())
    listed = json.loads(toolbay("prompts", "--json", cwd=tmp_path).stdout)
    assert [(one["server"], one["name"]) for one in listed] == [("sdk", "review")]
    assert [(one["name"], one["required"]) for one in listed[0]["arguments"]] == [("code", True), ("language", False)]
    assert "code=… [language=…]" in toolbay("prompts", cwd=tmp_path).stdout
    done = toolbay("prompts", "get", "sdk", "review", "code=1 + 1", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("Please review this Python code:\n\n1 + 1\n")
    assert toolbay("prompts", "get", "sdk.review", "code=1 + 1", cwd=tmp_path).stdout == done.stdout, "with a dot, as in call"
    assert toolbay("prompts", "get", "sdk", cwd=tmp_path).returncode == 2
    done = toolbay("prompts", "get", "sdk", "reviw", "code=1", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{USING}error: ")


def test_a_prompt_that_fails_is_exit_code_1(tmp_path: Path, configure: Configure) -> None:
    """CAL-7: what the server answers in the place of a prompt is an error, on stderr, or says so in JSON."""
    configure(raw=servers.raw("--mute-prompt"))
    done = toolbay("prompts", "get", "raw", "mute", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: " in done.stderr
    assert "holds no messages" in done.stderr
    done = toolbay("prompts", "get", "raw", "mute", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["is_error"]) == (1, True)


def test_resources_are_listed_and_read(tmp_path: Path, configure: Configure) -> None:
    """CLI, RUN-9: `resources` and `resources read`."""
    configure(sdk=servers.sdk2())
    listed = json.loads(toolbay("resources", "--json", "--server", "sdk", cwd=tmp_path).stdout)
    assert ("notes://greeting", False) in {(one["uri"], one["template"]) for one in listed}
    assert ("notes://about/{topic}", True) in {(one["uri"], one["template"]) for one in listed}
    assert toolbay("resources", "read", "sdk", "notes://greeting", cwd=tmp_path).stdout == "Good morning from a resource.\n"
    done = toolbay("resources", "read", "sdk", "notes://nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{USING}error: ")
    done = toolbay("resources", "read", "sdkk", "notes://greeting", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, 'error: There is no server "sdkk": did you mean "sdk"?\n')


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.x", {"a"}),
        ("a.b.x", {"a", "a.b"}),
        ("a/x", {"a"}),
        ("mcp_a_x", {"a"}),
        ("mcp_a_b_x", {"a", "a.b"}),
        ("x", set()),
        ("mcp_c_x", set()),
    ],
)
def test_the_servers_of_a_name_are_told_by_it(name: str, found: set[str]) -> None:
    """CLI: `call` starts only the servers it needs."""
    assert likely_servers(name, ["a", "a.b", "other"]) == found


def test_a_name_that_two_servers_have_is_asked_back() -> None:
    """CLI: the raw name, where it is not ambiguous."""

    async def invoke(_arguments: Json, _context: CallContext) -> ToolResult:
        return ToolResult(text="")

    def tool(server: str, wire: str) -> Tool:
        return Tool(
            name=f"mcp_{server}_{wire}", description="", input_schema={}, parameters={}, invoke=invoke, server=server, wire_name=wire
        )

    tools = [tool("a", "x"), tool("b", "x"), tool("b", "y")]
    assert [chosen(name, tools) for name in ("mcp_a_x", "b.x", "b/y", "y", "z")] == [tools[0], tools[1], tools[2], tools[2], None]
    with pytest.raises(BadCall, match=r"write a\.x or b\.x"):
        chosen("x", tools)


def test_what_is_redirected_is_whole_and_a_terminal_is_told_the_place(tmp_path: Path, configure: Configure, at_terminal: Open) -> None:
    """CLI, REN-4: a model is shown a part; a pipe gets everything, a terminal the file's path, with --full everything."""
    path = configure(raw=servers.raw("--tools", "speak"))
    data = json.loads(path.read_text())
    data["tools"]["resultBudget"] = 1000
    path.write_text(json.dumps(data))
    long = "".join(f"line {number} " for number in range(2000))
    call = ("call", "raw.speak", f"text={long}")
    assert toolbay(*call, cwd=tmp_path).stdout == f"{long}\n"
    told = json.loads(toolbay(*call, "--json", cwd=tmp_path).stdout)
    assert (told["text"], len(told["artifacts"])) == (long, 1)
    shown = at_terminal(*call)
    assert shown.end() == 0
    assert "line 1000 " not in shown.seen
    assert "read_artifact" not in shown.seen
    place = next((tmp_path / "home" / "data" / "artifacts").iterdir()).parent
    assert str(place) in shown.seen.replace("\r\n", "")
    full = at_terminal(*call, "--full")
    assert full.end() == 0
    assert "line 1000 " in full.seen.replace("\r\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ["call", "off.x"],
        ["call", "off/x"],
        ["call", "mcp_off_x"],
        ["tools", "off"],
        ["tools", "--server", "off"],
        ["prompts", "get", "off.x"],
    ],
)
def test_a_server_that_is_disabled_is_named_as_such(words: list[str], tmp_path: Path, configure: Configure) -> None:
    """CLI: not "no such tool", but what to do about it."""
    configure(off={"command": "no-such-command", "disabled": True}, dead={"command": "no-such-command"})
    done = toolbay(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: off is disabled: toolbay enable off\n")


def test_a_server_that_is_named_is_the_only_one_that_starts(tmp_path: Path, configure: Configure) -> None:
    """CLI: `tools SERVER` and `call server.tool`, for a tool that is not there too."""
    configure(dead={"command": "no-such-command"}, raw=servers.raw("--tools", "speak"))
    listed = toolbay("tools", "raw", "--json", cwd=tmp_path)
    assert (listed.stderr, [tool["wire_name"] for tool in json.loads(listed.stdout)]) == (USING, ["speak"])
    missed = toolbay("call", "raw.speek", cwd=tmp_path)
    assert (missed.returncode, missed.stderr) == (1, f"{USING}error: There is no tool raw.speek: did you mean raw.speak?\n")
    assert toolbay("call", "mcp_raw_speek", cwd=tmp_path).stderr.count(USING) == 1, "a second look at all servers is not told again"


def test_which_tools_are_left_out_is_told_to_who_looks_at_tools(tmp_path: Path, configure: Configure) -> None:
    """CLI: `tools`, `test` and -v tell it, once; a call does not."""
    configure(raw={**servers.raw("--tools", "speak"), "enabledTools": ["speak", "nothing-like-it"]})
    for words in (["tools"], ["test", "raw"], ["call", "raw.speak", "text=x", "-v"]):
        assert toolbay(*words, cwd=tmp_path).stderr.count("nothing-like-it") == 1
    for words in (["call", "raw.speak", "text=x"], ["prompts"], ["resources"], ["run", "hi", "--model", "offline"]):
        done = toolbay(*words, cwd=tmp_path)
        assert done.returncode == 0
        assert "nothing-like-it" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["call", "no.tool", "--json"], 1, "There is no tool no.tool"),
        (["call", "dead.tool", "--json"], 3, "no-such-command"),
        (["tools", "--server", "deed", "--json"], 1, 'did you mean "dead"'),
        (["tools", "dead", "--json"], 3, "no-such-command"),
        (["test", "deed", "--json"], 1, 'did you mean "dead"'),
        (["test", "dead", "--json"], 3, "no-such-command"),
        (["prompts", "--json", "--server", "dead"], 3, "no-such-command"),
        (["prompts", "get", "dead", "x", "--json"], 3, "no-such-command"),
        (["resources", "read", "dead", "x:y", "--json"], 3, "no-such-command"),
        (["run", " ", "--json"], 2, "question is empty"),
        (["run", "x", "--json", "--server", "dead"], 2, "--server"),
        (["run", "x", "--json", "--config", "none.yaml"], 1, "none.yaml"),
        (["config", "check", "--json", "--config", "none.yaml"], 1, "none.yaml"),
    ],
)
def test_an_error_is_json_where_json_was_asked_for(words: list[str], code: int, says: str, tmp_path: Path, configure: Configure) -> None:
    """CLI: `--json`: stdout is one JSON object with `error`, whatever goes wrong; the exit code tells its kind."""
    configure(dead={"command": "no-such-command"}, raw=servers.raw())
    done = toolbay(*words, cwd=tmp_path)
    assert done.returncode == code
    told = json.loads(done.stdout)
    assert says in told["error"]
    if words[0] == "call" or words[1] in {"get", "read"}:
        assert (set(told), told["outcome"]) == ({"text", "is_error", "outcome", "error", "structured", "artifacts"}, "not_executed")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_call_that_is_stopped_under_way_may_have_run_and_that_is_said(
    number: signal.Signals, code: int, tmp_path: Path, configure: Configure
) -> None:
    """CAL-3, CLI: on stderr, and with its outcome in JSON; what only a model must be told is not said to a person."""
    journal = tmp_path / "journal"
    configure(raw=servers.raw("--hang", "tools/call", "--journal", journal))
    program = started("call", "raw.echo", "text=x", "--json", cwd=tmp_path)
    wait_until(lambda: journal.exists() and "tools/call" in journal.read_text(), "the call", PATIENCE)
    program.send_signal(number)
    out, err = program.communicate(timeout=PATIENCE)
    told = json.loads(out)
    assert (program.returncode, told["is_error"], told["outcome"]) == (code, True, "unknown")
    assert "may have taken effect" in told["error"]
    assert "may have taken effect" in err
    assert "blindly" not in out + err


def test_an_argument_that_is_not_known_is_named(tmp_path: Path, configure: Configure) -> None:
    """RUN-3, CLI: beside the one that is missing."""
    configure(time=servers.time())
    done = toolbay("call", "time.get_current_time", "tz=Asia/Tokyo", cwd=tmp_path)
    assert done.returncode == 1
    assert "- tz: is no parameter of it" in done.stderr


def test_a_tool_is_not_waited_for_where_only_others_still_start(tmp_path: Path, configure: Configure) -> None:
    """CLI, TRA-2: a raw name is called once a server that is up has it; a server that is not configured is nobody's to wait for."""
    configure(raw=servers.raw("--tools", "speak"), hang={**servers.raw("--hang", "initialize"), "startupTimeout": 600})
    assert toolbay("call", "speak", "text=x", cwd=tmp_path).stdout == "x\n"
    done = toolbay("call", "nosuch.foo", cwd=tmp_path)
    assert done.returncode == 1
    assert "no server nosuch (there are hang, raw)" in done.stderr


def test_a_tool_that_is_kept_back_is_not_said_to_be_missing(tmp_path: Path, configure: Configure) -> None:
    """CLI, SEC: it says what shows it and what accepts it, and how many are offered."""
    configure(raw=servers.raw("--tools", "speak"))
    assert toolbay("lock", cwd=tmp_path).returncode == 0
    configure(raw=servers.raw("--tools", "speak"), new=servers.raw("--tools", "echo"))
    done = toolbay("call", "new.echo", "text=x", cwd=tmp_path)
    assert done.returncode == 1
    assert "new.echo is there, but kept back" in done.stderr
    assert "toolbay lock --check new shows it, toolbay lock --accept new accepts it" in done.stderr
    ran = toolbay("run", "hello", "--model", "offline", "--wait", "all", cwd=tmp_path)
    assert "0 tools (and 1 kept back: toolbay lock --check new)" in ran.stderr
