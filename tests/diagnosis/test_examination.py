"""Servers that are really started: what is found out about each, how long each step took, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from diagnosis.patients import errors, examined, only, program, the_error
from servers.raw_http import RawHttp
from support.connections import raw
from support.processes import MARK, Footprint, leftovers, marked
from support.servers import stdio
from toolbay.config import parse
from toolbay.diagnosis.examination import STAY, examine
from toolbay.diagnosis.findings import Level, Report, Verdict
from toolbay.lock import FILE_NAME, Lock
from toolbay.upstream.schema import MAX_DEPTH

pytestmark = pytest.mark.anyio


def python(code: str, *args: str, **more: Any) -> dict[str, Any]:
    return {**stdio(sys.executable, "-IS", "-c", code, *args), **more}


def warnings(report: Report) -> list[str]:
    return [finding.text for finding in report.findings if finding.level is Level.WARNING]


async def test_a_server_that_works_is_told_step_by_step() -> None:
    """TRA-1: the process, its first byte, the handshake, each list; versions offered and agreed, and what its definitions weigh."""
    report = await only(raw("--tools", "echo,note"))
    assert report.verdict is Verdict.FINE
    assert [step.name for step in report.trace] == ["spawn", "first byte", "initialize", "tools/list"]
    assert all(step.seconds is not None and 0 <= step.seconds < 30 for step in report.trace)
    assert (report.title, report.era, report.protocol) == ("raw 1.0", "initialize", "2025-11-25")
    assert report.offered == ("2025-11-25",)
    assert (report.tools, report.given) == (2, 2)
    assert 20 < report.tokens < 500
    assert "agreed on 2025-11-25" in report.trace[2].said
    assert "2 listed" in report.trace[3].said


async def test_servers_are_looked_at_side_by_side_and_the_slowest_bounds_it() -> None:
    """TRA-2: three that hang for 3 s each take 3 s and their ends, not nine."""
    hanging = python("import time; time.sleep(600)", startupTimeout=3)
    with anyio.fail_after(3 + 5 + 20):
        began = anyio.current_time()
        found = await examined(a=hanging, b=hanging, c=hanging, d=raw())
    assert anyio.current_time() - began < 3 * 3 + 5
    assert [report.verdict.value for report in found.reports] == ["failed", "failed", "failed", "ok"]
    finding = the_error(found.reports[0])
    assert "no answer within 3 s" in finding.why


async def test_a_server_that_ends_at_once_shows_its_exit_code_and_its_last_lines() -> None:
    """TRA-6, TRA-8: the code, the lines of stderr, and the command to run by hand."""
    report = await only(raw("--stderr", "the disk is full", "--exit-at-start", "3"))
    finding = the_error(report)
    assert "exit code 3" in finding.why
    assert "the disk is full" in finding.shown
    assert report.exit_code == 3
    assert report.trace[-1].said == "exit code 3"
    assert f"{sys.executable} -IS" in finding.mend


async def test_a_program_that_prints_its_usage_wants_arguments() -> None:
    """TRA-8: a real argument parser, on stderr; and one that prints help to stdout and ends well."""
    finding = the_error(await only(raw("--no-such-option")))
    assert "it wants other arguments" in finding.what
    assert finding.shown[0].startswith("usage: raw_server.py")
    report = await only(python("print('usage: weather CITY')"))
    assert "it wants other arguments" in the_error(report).what
    assert "exit code 0" in the_error(report).why


async def test_a_module_that_the_interpreter_lacks_is_named() -> None:
    """TRA-8: the commonest of all: python -m with the wrong python."""
    finding = the_error(await only(stdio(sys.executable, "-m", "mcp_server_that_nobody_wrote")))
    assert "lacks the module mcp_server_that_nobody_wrote" in finding.what
    assert sys.executable in finding.why
    assert f"{sys.executable} -m pip install" in finding.mend


async def test_the_environment_that_has_the_module_is_named(tmp_path: Path) -> None:
    """TRA-8: the wrong interpreter, and the right one: a virtual environment in the folder of the server."""
    (tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "mcp_server_of_a_project").mkdir(parents=True)
    right = program(tmp_path / ".venv" / "bin" / "python")
    finding = the_error(await only({**stdio(sys.executable, "-m", "mcp_server_of_a_project"), "cwd": str(tmp_path)}))
    assert f"{right} has it: write that as `command`" in finding.mend


@pytest.mark.node
async def test_a_script_that_node_does_not_find_is_named() -> None:
    """TRA-8: Node.js's own words."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is missing")
    finding = the_error(await only(stdio("node", "/srv/nowhere/index.js")))
    assert "/srv/nowhere/index.js cannot be opened" in finding.what


async def test_a_signal_that_ended_it_is_named() -> None:
    """TRA-8: killed from outside, such as by the kernel when memory runs out."""
    report = await only(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert "SIGKILL" in the_error(report).why
    assert report.exit_code == -9


async def test_a_server_that_hangs_was_not_ended_by_itself() -> None:
    """TRA-8: the signal that we end it with is no exit code of its own."""
    report = await only(python("import time; time.sleep(600)", startupTimeout=1))
    assert report.exit_code is None
    assert [step.seconds for step in report.trace if step.name in {"first byte", "initialize"}] == [None, None]


async def test_lines_on_stdout_are_shown_with_the_advice() -> None:
    """TRA-7: beside a server that works, and beside one that logs and never answers."""
    report = await only(raw("--pollute", "2"))
    assert report.verdict is Verdict.WARNED
    (finding,) = report.findings
    assert "INFO: line 0 that is no message" in finding.shown
    assert "stderr" in finding.mend
    silent = await only(python("import time; print('listening', flush=True); time.sleep(600)", startupTimeout=2))
    assert "does not answer" in the_error(silent).what
    assert any("listening" in finding.shown for finding in silent.findings if finding.level is Level.WARNING)


async def test_a_refused_handshake_is_shown_with_the_code_of_the_server() -> None:
    """TRA-1: the server answers, and with an error."""
    code = (
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    number = json.loads(line).get('id')\n"
        "    error = {'code': -32000 - 11, 'message': 'not before the weekend'}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': number, 'error': error}), flush=True)\n"
    )
    report = await only(python(code))
    assert "not before the weekend" in the_error(report).why
    assert any("error -32011: not before the weekend" in step.said for step in report.trace)


async def test_a_version_that_nobody_knows_is_told_with_what_was_offered() -> None:
    """TRA-1: offered against chosen."""
    code = (
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    result = {'protocolVersion': '1999-01-01', 'capabilities': {}, 'serverInfo': {'name': 'old', 'version': '0'}}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': json.loads(line).get('id'), 'result': result}), flush=True)\n"
    )
    report = await only(python(code))
    assert "1999-01-01" in the_error(report).why
    assert report.offered[0] == "2025-11-25"
    assert any("agreed on 1999-01-01" in step.said for step in report.trace)


async def test_a_definition_that_is_not_in_order_is_told_with_its_tool(tmp_path: Path) -> None:
    """SCH-3: a schema that cannot be used costs its tool only, and the tool is named."""
    file = tmp_path / "definitions.json"
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "object", "properties": {"x": deep}}
    file.write_text(json.dumps({"note": {"inputSchema": deep}}))
    report = await only(raw("--tools", "echo,note", "--definitions", file))
    assert any("'note'" in text and "schema" in text for text in warnings(report)), report.findings
    assert report.ready


async def test_a_misspelt_entry_of_a_list_has_the_nearest_name() -> None:
    """ALW-3: with the names that there are."""
    report = await only({**raw("--tools", "echo,note"), "enabledTools": ["ehco"]})
    (text,) = warnings(report)
    assert 'did you mean "echo"?' in text
    assert "mcp_s_echo" in text
    assert (report.tools, report.given) == (2, 0)


async def test_names_that_several_servers_want_are_told_once() -> None:
    """NAM-3: the sanitised names are equal, so both are told by their hash; and tools that are called the same."""
    found = await examine(parse({"tools": {"mcpServers": {"a.b": raw("--tools", "echo"), "a_b": raw("--tools", "echo")}}}))
    (clash,) = (finding for finding in found.findings if finding.level is Level.WARNING)
    assert "mcp_a_b_echo is wanted more than once" in clash.what
    assert "echo of a.b" in clash.why
    assert "rename" in clash.mend
    (alike,) = (finding for finding in found.findings if finding.level is Level.NOTE)
    assert "(echo)" in alike.what


async def test_a_changed_definition_is_shown_as_not_offered(tmp_path: Path) -> None:
    """SEC-14: pins apply, and what differs from them is said with the way to accept it."""
    path = tmp_path / "toolbay.json"
    entry = raw("--tools", "echo")
    path.write_text(json.dumps({"tools": {"mcpServers": {"s": entry}}}))
    from toolbay import App, load

    async with App(load(path)) as app:
        await app.settle(None)
        app.accept(["s"])
    changed = raw("--tools", "echo,note")
    path.write_text(json.dumps({"tools": {"mcpServers": {"s": changed}}}))
    assert Lock.load(tmp_path / FILE_NAME).is_present
    (report,) = (await examine(load(path))).reports
    assert any("not offered" in text and "toolbay lock --accept s" in text for text in warnings(report)), report.findings


async def test_a_lock_file_that_cannot_be_read_concerns_all(tmp_path: Path) -> None:
    """SEC-14: then nothing is offered, which looks like a server that has nothing."""
    path = tmp_path / "toolbay.json"
    path.write_text(json.dumps({"tools": {"mcpServers": {"s": raw()}}}))
    (tmp_path / FILE_NAME).write_text("{half")
    from toolbay import load

    found = await examine(load(path))
    (finding,) = (finding for finding in found.findings if finding.level is Level.ERROR)
    assert "lock file" in finding.what
    assert str(tmp_path / FILE_NAME) in finding.why
    assert "toolbay lock" in finding.mend
    assert found.failed


async def test_an_entry_that_cannot_be_used_and_one_that_is_odd() -> None:
    """CFG-5, CFG-6: an unset variable, an unknown key with the nearest; each at its server."""
    found = await examined(unset={"command": "x", "env": {"KEY": "${THERE_IS_NO_SUCH}"}}, odd={**raw(), "argz": []})
    unset, odd = found.reports
    assert "THERE_IS_NO_SUCH, which is not set" in the_error(unset).why
    assert "toolbay config check" in the_error(unset).mend
    assert any("argz" in text and "args" in text for text in warnings(odd))


async def test_launchers_that_take_any_version_are_noted_together(tmp_path: Path) -> None:
    """SEC-16: with the version that ran, where what was fetched says so; only servers that work, for others have other worries."""
    server = raw()
    for launcher in ("uvx", "npx"):
        program(tmp_path / launcher, f'#!/bin/sh\nexec "{server["command"]}" {" ".join(server["args"])}\n')
    for version in ("0.9", "1.0"):  # the server says that it is 1.0
        (tmp_path / f".cache/uv/archive-v0/{version}/my_weather-{version}.dist-info").mkdir(parents=True)
    package = tmp_path / ".npm/_npx/a1/node_modules/@scope/weather/package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"name": "@scope/weather", "version": "2026.1.2"}')
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    found = await examined(
        a=stdio(str(tmp_path / "uvx"), "my-weather"),
        b=stdio(str(tmp_path / "npx"), "-y", "@scope/weather"),
        c=stdio(str(tmp_path / "uvx"), "never-fetched"),
        d=stdio(str(tmp_path / "weatherd-that-is-not-there"), "x"),
        environ=environ,
    )
    assert [report.findings for report in found.reports[:3]] == [(), (), ()]
    note = found.findings[0]
    assert note.what == "the packages of a, b, c come in any version"
    assert "write what ran just now: my-weather@1.0, @scope/weather@2026.1.2; and a version" in note.mend
    assert note.mend.endswith("never-fetched@VERSION")


async def test_a_launcher_that_is_told_no_package_is_no_slow_start() -> None:
    """TRA-8: npx without a name has nothing to run."""
    finding = errors(await only({**stdio("npx", "-y"), "startupTimeout": 1}))[0]
    assert finding.what == "its entry cannot be used"
    assert "has arguments that name no package, so npx has nothing to run: name it in `args`, as in [-y, " in finding.why


async def test_a_server_that_ends_soon_after_it_was_ready_does_not_count_as_fine() -> None:
    """TRA-8: it is watched for a while; when it ended, how, and its last words are told."""
    found = await examined(short=raw("--exit-after", "0.2", "--stderr", "database is gone"), good=raw(), stay=STAY)
    short, good = found.reports
    assert (short.watched, good.watched) == (0.0, STAY)
    assert (short.verdict, good.verdict) == (Verdict.FAILED, Verdict.FINE)
    finding = the_error(short)
    assert re.fullmatch(r"it ended \d\.\d s after it was ready", finding.what)
    assert finding.why == "exit code 3"
    assert finding.shown == ("database is gone",)


async def test_a_server_over_http_is_not_watched() -> None:
    """TRA-8: it ran before it was looked at."""
    async with RawHttp() as server:
        with anyio.fail_after(60):
            report = await only(server.entry, stay=300)
    assert (report.ready, report.watched) == (True, 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a whole server are Linux's")
async def test_a_limit_that_was_passed_is_the_cause() -> None:
    """TRA-8: not the signal that ended it, nor a guess at the machine's memory."""
    code = "import subprocess, time; [subprocess.Popen(['sleep', '60']) for _ in range(6)]; time.sleep(60)"
    finding = the_error(await only(python(code, limits={"processes": 3}, startupTimeout=20)))
    assert "its limit is 3" in finding.why
    assert "raise `limits.processes`" in finding.mend
    assert "memory" not in finding.text


async def test_a_disabled_server_is_looked_at_only_where_it_is_named() -> None:
    """CFG-3: `disabled` keeps it from being started, and a person may ask."""
    entry = {**raw(), "disabled": True}
    (report,) = (await examined(s=entry)).reports
    assert (report.verdict, report.trace) == (Verdict.DISABLED, ())
    (report,) = (await examined("s", s=entry)).reports
    assert report.verdict is Verdict.FINE


async def test_a_server_that_offers_nothing_and_one_that_was_nearly_too_slow() -> None:
    """TRA-2: it works, and something is odd all the same."""
    report = await only(raw("--tools", ""))
    assert any("it offers nothing" in text for text in warnings(report))
    report = await only({**raw("--slow-start", "2.2"), "startupTimeout": 4})
    assert any("raise `startupTimeout`" in text for text in warnings(report)), report


async def test_no_secret_is_in_a_report() -> None:
    """SEC-32: of what an entry is given, nothing is shown; neither of its arguments, nor of what it says."""
    code = "import os, sys; print(os.environ['WEATHER_KEY'], file=sys.stderr); print(os.environ['WEATHER_KEY']); sys.exit(4)"
    entry = python(code, "--api-key", "hush-hush-argument", env={"WEATHER_KEY": "hush-hush-variable"})
    found = await examine(parse({"tools": {"mcpServers": {"s": entry}}}))
    assert "hush-hush" not in json.dumps(found.as_json())
    assert "***" in found.reports[0].target
    code = (
        "import os, sys, json\n"
        "for line in sys.stdin:\n"
        "    error = {'code': 1, 'message': 'the key ' + os.environ['WEATHER_KEY'] + ' is not good'}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': json.loads(line).get('id'), 'error': error}), flush=True)\n"
    )
    found = await examine(parse({"tools": {"mcpServers": {"s": python(code, env={"WEATHER_KEY": "hush-hush-variable"})}}}))
    assert "hush-hush" not in json.dumps(found.as_json())
    assert any("the key *** is not good" in step.said for step in found.reports[0].trace)


async def test_nothing_is_left_behind_and_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-1: no process of any server, no descriptor; no file in the home, the data folder or beside the configuration."""
    monkeypatch.setenv("TOOLBAY_HOME", str(tmp_path / "toolbay"))
    mark = marked()
    servers = {
        "good": raw("--spawn-child", env=mark),
        "hanging": {**raw("--hang", "initialize", "--ignore-eof", "--ignore-sigterm", env=mark), "startupTimeout": 2},
        "ending": raw("--exit-at-start", "1", env=mark),
    }
    (tmp_path / "toolbay.json").write_text(json.dumps({"tools": {"mcpServers": servers}}))
    from toolbay import load

    config = load(tmp_path / "toolbay.json")
    await examine(config)
    before = Footprint.now()
    files = sorted(tmp_path.rglob("*"))
    found = await examine(config)
    assert [report.verdict.value for report in found.reports] == ["ok", "failed", "failed"]
    assert before.grown(allowed_threads=8) == ""
    assert leftovers(mark[MARK]) == []
    assert sorted(tmp_path.rglob("*")) == files == [tmp_path / "toolbay.json"]


async def test_each_server_of_a_configuration_has_a_report_in_its_order() -> None:
    """CFG-6: the good and the bad, as they stand in the file."""
    found = await examined(z=raw(), a={"command": "weatherd-that-is-not-there"}, m={})
    assert [report.server for report in found.reports] == ["z", "a", "m"]
    assert found.failed
    assert [len(errors(report)) for report in found.reports] == [0, 1, 1]
