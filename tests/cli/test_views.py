"""What people see of events, line by line; what a terminal is never made to obey."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.cli.narrowing import NarrowedTools, Selection
from toolbay.cli.terminal import Terminal, dumped, one_line
from toolbay.cli.views import CallsView, ServersView, standing, what_changed
from toolbay.events import CallFinished, CallProgressed, CallStarted, Event, ServerChanged, ServerLog, TextArrived
from toolbay.fleet import ServerStatus
from toolbay.testing import FakeTools
from toolbay.types import CallContext, Outcome, Progress, Reloaded, ToolResult

Captured = pytest.CaptureFixture[str]


def call(step: float, message: str | None = None) -> CallProgressed:
    return CallProgressed(call_id="1", server="s", tool="mcp_s_t", progress=Progress(progress=step, total=100, message=message))


STARTED = CallStarted(call_id="1", server="s", tool="mcp_s_t", arguments='{"a":\n1}')


def finished(text: str, *, is_error: bool = False) -> CallFinished:
    return CallFinished(
        call_id="1", server="s", tool="mcp_s_t", is_error=is_error, outcome=Outcome.EXECUTED, text=text, seconds=0.24, size=len(text)
    )


def test_text_is_on_stdout_as_soon_as_it_arrives(capsys: Captured) -> None:
    """RUN-4: streaming; text of other conversations is not shown, calls begin on a line of their own."""
    view = CallsView(Terminal(), session="mine", answer=True)
    shown: list[str] = []
    for event in (TextArrived(session="mine", text="Let me"), TextArrived(session="other", text="no"), STARTED):
        view(event)
        shown.append(capsys.readouterr().out)
    assert shown == ["Let me", "", "\n"]
    assert view.text == "Let me"


def test_a_call_is_told_with_the_beginning_of_its_result(capsys: Captured) -> None:
    """CLI: `→` and `←` lines; long results are cut, indentation stays."""
    view = CallsView(Terminal())
    view(STARTED)
    view(finished("{\n  a\n\nb\nc"))
    view(finished("no\x1b[31m", is_error=True))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == '→ mcp_s_t {"a": 1}\n← 4 lines, 0.2 s\n  {\n    a\n  b\n  …\n← error, 0.2 s\n  no\n'


def test_progress_without_a_terminal_is_told_in_steps(capsys: Captured) -> None:
    """CAL-8: a thousand notifications are not a thousand lines; what changed is told, and logs too."""
    view = CallsView(Terminal(), calls=False)
    view(STARTED)
    events: Iterable[Event] = (call(step / 10, "copying" if step < 500 else "packing") for step in range(1000))
    for event in events:
        view(event)
    view(ServerLog(server="s", level="debug", text="too much"))
    view(ServerLog(server="s", level="warning", text="low on\n\x1b[2Jdisk"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "· mcp_s_t 0 %, copying"
    assert len(lines) == 11
    assert lines[-1] == "[s] warning: low on disk"
    assert view.status == "mcp_s_t 100 %, packing"


def test_a_server_is_told_once_a_state(capsys: Captured) -> None:
    """TRA-2: ready and failed servers, each once; a return is told even where starts are not."""
    view = ServersView(Terminal(), chatty=False)
    for state, error in (
        ("connecting", ""),
        ("ready", ""),
        ("waiting", "it went away"),
        ("ready", ""),
        ("failed", "sub went away"),
        ("failed", "sub went away"),
    ):
        view(ServerChanged(server="sub", state=state, error=error, tools=1, seconds=1.25))
    assert capsys.readouterr().err.splitlines() == [
        "! sub: it went away; it is started again",
        "✓ sub ready in 1.2 s, 1 tool",
        "✗ sub went away (toolbay doctor sub says more)",
    ]


def test_a_server_that_is_being_brought_back_says_when_the_next_attempt_is(capsys: Captured) -> None:
    """LIF-2: why, and when; the same reason again and again is told once; a first failure is told even to the quiet."""
    view = ServersView(Terminal(verbosity=-1), chatty=False)
    view(ServerChanged(server="new", state="waiting", error="no database", retry_in=0.5))
    assert capsys.readouterr().err.startswith("✗ new: no database")
    view = ServersView(Terminal(), chatty=False)
    view(ServerChanged(server="sub", state="ready"))
    for _ in range(4):
        view(ServerChanged(server="sub", state="waiting", error="sub went away", retry_in=3.2))
        view(ServerChanged(server="sub", state="connecting"))
    view(ServerChanged(server="sub", state="paused", error="sub went away", retry_in=60))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("! sub went away; next try in 4 s")
    assert re.fullmatch(r"! sub paused until \d\d:\d\d:\d\d, then tried once more", lines[1])
    assert len(lines) == 2


def test_no_reason_is_told_twice_and_none_is_longer_than_a_line(capsys: Captured) -> None:
    """LIF-2: a server that fails again and again has one line; then only that it is left alone, given up, or back."""
    view = ServersView(Terminal(), chatty=False)
    for attempt in range(5):
        said = f"sub could not be started: its log is /tmp/run-{attempt}7.log{' and more' * 60}"
        view(ServerChanged(server="sub", state="waiting", error=said, retry_in=1.0))
        view(ServerChanged(server="sub", state="connecting"))
    view(ServerChanged(server="sub", state="failed", error="sub could not be started: its log is /tmp/run-9.log" + " and more" * 60))
    view(ServerChanged(server="sub", state="ready", tools=2, seconds=0.3))
    view(ServerChanged(server="sub", state="waiting", error="sub went away", retry_in=1.0))
    view(ServerChanged(server="sub", state="ready", tools=2, seconds=0.3))
    view(ServerChanged(server="sub", state="waiting", error="sub went away", retry_in=2.0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("✗ sub could not be started: its log is ")
    assert len(lines[0]) < 250
    assert lines[1:] == [
        "✗ sub is given up (toolbay doctor sub says more)",
        "✓ sub ready in 0.3 s, 2 tools",
        "! sub went away; next try in 1 s",
        "✓ sub ready in 0.3 s, 2 tools",
        "! sub went away again; next try in 2 s",
    ]


def test_what_a_server_wants_is_told_each_time(capsys: Captured) -> None:
    """H4, LIF-2: with what to do, and without the way to the doctor, who knows no more; while it was up, without the long reason."""
    view = ServersView(Terminal(), chatty=False)
    wants = "notes: HTTP 401, it wants a login: log in with `toolbay login notes`"
    ended = "notes: HTTP 401, the login has ended: log in again with `toolbay login notes`"
    for _ in range(2):
        view(ServerChanged(server="notes", state="needs_auth", error=f"{wants} (it says: who are you)"))
        view(ServerChanged(server="notes", state="connecting"))
    for _ in range(2):
        view(ServerChanged(server="notes", state="ready", tools=2, seconds=0.3))
        view(ServerChanged(server="notes", state="needs_auth", error=f"{ended} ({'it was taken back, ' * 9})"))
    ready = "✓ notes ready in 0.3 s, 2 tools"
    assert capsys.readouterr().err.splitlines() == [f"✗ {wants} (it says: who are you)", ready, f"✗ {ended}", ready, f"✗ {ended}"]


def test_a_reload_tells_who_needs_a_login() -> None:
    """LIF-4, H4: that is no failure like others."""
    status = ServerStatus(name="notes", state="needs_auth")
    done = Reloaded(retried=("notes", "old"), failed=("notes", "old"))
    assert what_changed(done, {"notes": status}) == "tried again notes, old; failed old; needs a login notes"


def test_of_an_error_it_is_told_whole_whether_the_call_took_effect(capsys: Captured) -> None:
    """CAL-3, CLI: its end is what counts, and is not cut off."""
    view = CallsView(Terminal())
    text = f"The connection was lost{' somewhere' * 30}. It may have taken effect: check before you repeat it."
    for outcome in Outcome:
        view(CallFinished(call_id="1", server="s", tool="t", is_error=True, outcome=outcome, text=text, seconds=0.2, size=9))
    marks = [line for line in capsys.readouterr().err.splitlines() if line != f"  {text}"]
    assert sorted(marks) == ["← error (it may have taken effect), 0.2 s", "← error (not carried out), 0.2 s", "← error, 0.2 s"]


def test_a_state_in_words_says_when_the_next_attempt_is() -> None:
    """LIF-2: as `/servers` shows it."""
    assert standing("ready", None) == "ready"
    assert standing("needs_auth", None) == "needs a login"
    assert standing("waiting", 3.2) == "waiting, next try in 4 s"
    assert re.fullmatch(r"paused until \d\d:\d\d:\d\d, then tried once more", standing("paused", 60.0))


@given(st.text())
def test_json_survives_and_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    """REN-7, CLI: `--json` is exact, and everything that is not printable is escaped."""
    written = dumped({"text": text})
    assert json.loads(written) == {"text": text}
    assert written.isprintable()


@given(st.text(), st.integers(1, 40))
def test_one_line_is_one_line(text: str, width: int) -> None:
    """CLI: cells and status lines fit."""
    line = one_line(text, width)
    assert len(line) <= width
    assert "\n" not in line
    assert "\x1b" not in line


def test_nothing_that_is_written_can_command_a_terminal(capsys: Captured) -> None:
    """REN-7: answers, data, notes and errors are cleaned where they leave us, whoever they came from."""
    terminal = Terminal()
    for write in (terminal.stream, terminal.write, terminal.say, terminal.warn, terminal.error):
        write("\x1b]0;title\x07a\x1b[31mb\u202ec")
    said = capsys.readouterr()
    assert said.out == "abc\nabc\n"
    assert said.err == "abc\nabc\nerror: abc\n"


def test_a_table_shows_cells_as_they_are(capsys: Captured) -> None:
    """CLI: no markup, no cutting where nobody watches, no spaces at the ends."""
    Terminal().table(("a", "b"), [("[red]x[/red] :smile:", "y" * 300), ("\x1b[31mz", "")])
    out = capsys.readouterr().out.splitlines()
    assert out == ["a" + " " * 21 + "b", "[red]x[/red] :smile:  " + "y" * 300, "z"]


@pytest.mark.anyio
async def test_a_tool_outside_of_the_selection_is_neither_offered_nor_called() -> None:
    """CLI: `--tools` also holds where a model calls by heart what it was not offered."""
    source = FakeTools({"mcp_fake_t": lambda: "done"})
    offered: dict[str, bool] = {}
    results: dict[str, ToolResult] = {}
    for globs in ("", "mcp_fake_t", "fake.*", "x, mcp_fake*", "x"):
        narrowed = NarrowedTools(source, Selection(globs))
        offered[globs] = "mcp_fake_t" in narrowed.tools
        results[globs] = await narrowed.call("mcp_fake_t", {}, CallContext(call_id="1"))
    assert [globs for globs, is_offered in offered.items() if not is_offered] == ["x"]
    assert [globs for globs, result in results.items() if result.is_error] == ["x"]
    assert results["x"].outcome is Outcome.NOT_EXECUTED
    assert len(source.calls) == 4
