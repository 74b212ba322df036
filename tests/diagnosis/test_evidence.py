"""What a program left that did not become a server: each sign with the words of its finding, and the line that shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.patients import errors, the_error
from support.servers import config, stdio
from toolbay.diagnosis.evidence import Remains, judge
from toolbay.diagnosis.findings import LINE, Finding, Level, Notes

SIGNS = [
    ("npx", "npm error 404  '@some/wether@*' is not in this registry.", "its package @some/wether cannot be fetched", "correct the name"),
    (
        "npx",
        "npm error 404  The requested resource 'wether@*' could not be found or you do not have permission to access it.",
        "its package wether cannot be fetched",
        "correct the name",
    ),
    ("npx", "npm ERR! code E404", "its package cannot be fetched", "correct the name"),
    ("npx", "npm error notarget No matching version found for weather@99.0.0.", "weather@99.0.0 cannot be fetched", "correct the version"),
    ("npx", "npm error could not determine executable to run", "has no program to run", "[-y, -p, PACKAGE, PROGRAM]"),
    ("npx", "npm error code ENOTFOUND", "cannot be fetched", "inheritEnv: [HTTPS_PROXY]"),
    ("npx", "npm warn EBADENGINE   required: { node: '>=22' },", "its Node.js does not fit", "install a Node.js that is >=22"),
    ("node", "SyntaxError: Unexpected token '??='", "its JavaScript does not run", "install Node.js 20"),
    ("node", "ReferenceError: fetch is not defined", "its JavaScript does not run", "install Node.js 20"),
    ("node", "Error: Cannot find module '/srv/dist/index.js'", "its script /srv/dist/index.js cannot be opened", "build the server first"),
    ("node", "Error: Cannot find module 'zod'", "its package zod is not installed", "run npm install"),
    ("node", "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /srv/a.js", "its package zod is", "run npm install"),
    (
        "uvx",
        "  ╰─▶ Because mcp-wether was not found in the package registry and you require mcp-wether, we can conclude",
        "its package mcp-wether cannot be fetched",
        "correct the name",
    ),
    ("uvx", "  ╰─▶ Because there is no version of mcp-weather==99.0 and you require", "mcp-weather==99.0 cannot be", "correct the version"),
    (
        "uvx",
        "An executable named `weather` is not provided by package `mcp-weather`.",
        "has no program weather",
        "[--from, PACKAGE, PROGRAM]",
    ),
    ("uvx", "Package `weather` does not provide any executables.", "its package weather has no program", "name a newer version"),
    ("uvx", "error: Failed to fetch: error sending request for url", "cannot be fetched", "inheritEnv: [HTTPS_PROXY]"),
    ("python3", "/usr/bin/python3: No module named mcp_weather", "lacks the module mcp_weather", "python3 -m pip install"),
    ("python3", "ModuleNotFoundError: No module named 'mcp'", "lacks the module mcp", "environment that has it"),
    ("python3", "python3: can't open file '/srv/wether.py': [Errno 2] No such file or directory", "/srv/wether.py cannot be", "set `cwd`"),
    ("docker", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "container cannot be started", "start Docker"),
    ("docker", "permission denied while trying to connect to the Docker daemon socket", "container cannot be", "group docker"),
    (
        "docker",
        "Error response from daemon: pull access denied for mcp/wether, repository does not exist",
        "image cannot be",
        "correct the image",
    ),
    (
        "weather",
        "Error: listen EADDRINUSE: address already in use :::3000",
        "wants a port that is taken",
        "needs `url` rather than `command`",
    ),
    ("weather", "env: 'node': No such file or directory", "starts a program that is not there", "install node"),
    ("sh", "sh: 1: weatherd: not found", "starts a program that is not there", "install weatherd"),
    (
        "weather",
        "Error: WEATHER_API_KEY environment variable is required",
        "environment variable WEATHER_API_KEY",
        "write WEATHER_API_KEY into its `env`",
    ),
    ("weather", "Missing environment variable: WEATHER_TOKEN", "environment variable WEATHER_TOKEN", "`inheritEnv`"),
    ("weather", "Please set WEATHER_TOKEN", "environment variable WEATHER_TOKEN", "`inheritEnv`"),
    ("weather", "weather: error: the following arguments are required: --city", "wants other arguments", "into `args`"),
    ("weather", "Usage: weather [OPTIONS] CITY", "wants other arguments", "into `args`"),
    ("weather", "/no/repo does not exist", "it wants /no/repo, which is not there", "correct the path"),
    ("weather", "ERROR:weather:/no/repo is not a valid Git repository", "it wants /no/repo", "correct the path"),
    ("weather", "FileNotFoundError: [Errno 2] No such file or directory: '/srv/a b.db'", "it wants /srv/a b.db, which", "correct the path"),
    ("node", "Error: ENOENT: no such file or directory, stat '/srv/none'", "it wants /srv/none, which", "correct the path"),
    ("weather", "PermissionError: [Errno 13] Permission denied: '/srv/data'", "may not do what it wants", "`sandboxPaths`"),
]


def found(command: str, *stderr: str, **more: object) -> Notes:
    notes = Notes(server="s")
    judge(Remains(config=config(stdio(command)), stderr=stderr, **{"exit_code": 1, **more}), notes)  # type: ignore[arg-type]
    return notes


def the(command: str, *stderr: str, **more: object) -> Finding:
    return the_error(found(command, *stderr, **more))


@pytest.mark.parametrize(("command", "line", "what", "mend"), SIGNS, ids=[line[:40] for _, line, _, _ in SIGNS])
def test_a_sign_is_read_and_its_line_is_shown(command: str, line: str, what: str, mend: str) -> None:
    """TRA-8: what is wrong and the mend, with the line that says so; whatever stands around it."""
    finding = the(command, "a line before", line, "a line after")
    assert what in finding.what
    assert "exit code 1" in finding.why
    assert mend in finding.mend
    assert finding.shown[0] == " ".join(line.split())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (127, "exit code 127, which shells give where a program is not found"),
        (-9, "ended by SIGKILL"),
        (-11, "SIGSEGV"),
    ],
)
def test_an_end_without_a_sign_tells_how_it_ended_and_the_last_lines(code: int, words: str) -> None:
    """TRA-8: exit code or signal, the last lines, and the command to run by hand."""
    finding = the("weather", *[f"line {number}" for number in range(20)], exit_code=code)
    assert words in finding.why
    assert finding.shown[-1] == "line 19"
    assert "run it by hand" in finding.mend


def test_a_limit_that_it_passed_is_the_cause_whatever_it_wrote() -> None:
    """TRA-8: by how much, and what to raise; never a guess at the machine's memory."""
    exceeded = ("it was 7 processes, with all that it had started, and its limit is 3", "raise `limits.processes`")
    finding = the("weather", "Error: WEATHER_KEY is required", exit_code=-9, exceeded=exceeded)
    assert "passed a limit" in finding.what
    assert (finding.why, finding.mend) == exceeded
    assert "memory ran out" not in finding.text


def test_an_end_after_it_was_ready_says_when() -> None:
    """TRA-8: it worked, and does not any more."""
    finding = the("weather", "fatal: database is gone", exit_code=7, answered=True, lived=1.04)
    assert finding.what == "it ended 1.0 s after it was ready"
    assert finding.why == "exit code 7"
    assert finding.shown == ("fatal: database is gone",)
    assert "run it by hand" in finding.mend


def test_what_was_never_started_says_once_what_is_to_be_done() -> None:
    """TRA-8: the reason has its own advice."""
    error = "s could not be started: its sandbox `strict` needs bubblewrap: install it, or choose another `sandbox`"
    finding = the("weather", exit_code=None, spawned=False, error=error)
    assert finding.why == "its sandbox `strict` needs bubblewrap: install it, or choose another `sandbox`"
    assert finding.mend == "set right what is named there, and try again"


def test_an_end_without_an_error_is_no_server() -> None:
    """LIF-1: a program that does its work and ends."""
    finding = the("weather", exit_code=0, stray=("22 degrees",))
    assert "ended by itself, without an error" in finding.why
    assert "whether it wants arguments" in finding.mend


def test_silence_is_told_with_the_patience_that_was_had() -> None:
    """LIF-3: it runs and says nothing; a launcher may be fetching."""
    finding = the("weather", exit_code=None)
    assert "no answer within 30 s, and nothing at all" in finding.why
    assert "wait for arguments" in finding.mend
    assert "raise `startupTimeout`" in the("uvx", exit_code=None).mend


def test_lines_on_stdout_are_shown_beside_the_cause() -> None:
    """TRA-7: pollution, its lines, and where to log."""
    notes = found("weather", exit_code=None, stray=("starting up", "listening"))
    (warning,) = (finding for finding in notes.findings if finding.level is Level.WARNING)
    assert "2 lines to stdout" in warning.what
    assert warning.shown == ("starting up", "listening")
    assert "log to stderr" in warning.mend


def test_a_server_that_answered_is_not_judged_by_what_it_logs() -> None:
    """TRA-8: a log line about a missing module is no cause where the handshake was refused."""
    finding = the("weather", "warning: No module named 'extras'", answered=True, error="it chose the version 1999")
    assert finding.why == "it chose the version 1999"


@given(st.lists(st.text(max_size=200), max_size=8), st.one_of(st.none(), st.integers(min_value=-70, max_value=300)), st.booleans())
def test_whatever_a_program_leaves_there_is_one_error_with_a_mend(stderr: list[str], code: int | None, answered: bool) -> None:
    """TRA-8: any lines, any code; what is shown is bounded and on one line."""
    notes = found("weather", *stderr, exit_code=code, answered=answered, error="it was refused")
    (finding,) = errors(notes)
    assert finding.mend
    assert all(len(line) <= LINE and "\n" not in line for line in finding.shown)


def test_a_secret_in_a_line_is_not_shown() -> None:
    """SEC-32: what a finding says and shows is masked."""
    notes = Notes(server="s", safe=lambda text: text.replace("hush-hush", "***"))
    judge(Remains(config=config(stdio("weather")), stderr=("WEATHER_KEY=hush-hush is required",), exit_code=1), notes)
    assert "hush-hush" not in repr(notes.findings)
