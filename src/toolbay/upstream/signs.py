"""Lines that launchers, interpreters and servers write when they end at once, and what each of them means. Pure.

They are texts of other programs as they are today. They only choose the words in which a person is told of a start that failed;
no call and no restart is decided by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

LINES: Final = 100
LOOKED_AT: Final = 500
"""Last lines of each stream, and characters of each line, that are looked through. Patterns take time with the square of a line."""
_COMPLAINT: Final = re.compile(r"(?i)(?:error|exception|fatal|panic|fail(?:ed|ure)|cannot|could not|unable|denied|invalid|missing|refused)")
_FRAME: Final = re.compile(r"\s|(?i:traceback|node\.js v)|npm (?:ERR!|error) A complete log")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What is so, `why`, and the `mend`, as one of the lines says it: `at` is its place."""

    what: str
    why: str
    mend: str
    at: int


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that says why. The texts are filled from the groups of `pattern`, and from `command`, `program` and `instead`."""

    pattern: str
    what: str
    why: str
    mend: str

    def find(self, lines: Sequence[str]) -> tuple[re.Match[str], int] | None:
        for at, text in enumerate(lines):
            found = re.search(self.pattern, text)
            if found is not None:
                return found, at
        return None


def looked_at(stderr: Sequence[str], stray: Sequence[str]) -> list[str]:
    """The lines of a program's two streams that are worth a look."""
    return [text[:LOOKED_AT] for text in (*stderr[-LINES:], *stray[-LINES:])]


def read(lines: Sequence[str], command: str, instead: Callable[[str], str] = lambda _module: "") -> Reading | None:
    """What the lines of a program that ended, or hangs, say by a sign that is known; None where none is.

    `instead` is asked for what else has a Python module that is missing, in words.
    """
    for sign in SIGNS:
        found = sign.find(lines)
        if found is not None:
            match, at = found
            given = {name: value or "" for name, value in match.groupdict().items()}
            words = {**given, "command": command, "program": PurePath(command).name.capitalize()}
            words["instead"] = instead(given.get("module", ""))
            return Reading(what=sign.what.format(**words), why=sign.why.format(**words), mend=sign.mend.format(**words), at=at)
    return None


def telling(lines: Sequence[str]) -> str:
    """What these lines tell, on one: both of two; of more the last that complains, else the last. Places in a program tell nothing."""
    written = [text for text in lines[-LINES:] if text.strip()]
    spoken = [text.strip() for text in written if not _FRAME.match(text[:LOOKED_AT])] or [text.strip() for text in written[-1:]]
    if len(spoken) <= 2:
        return " | ".join(spoken)
    return ([text for text in spoken if _COMPLAINT.search(text[:LOOKED_AT])] or spoken)[-1]


_NPM = r"npm (?:ERR!|error) "
SIGNS: Final = (
    Sign(
        _NPM + r"404 .*'(?P<package>@?[^'@\s]+)(?:@[^']*)?'",
        "its package {package} cannot be fetched",
        "npm finds no package of that name (404)",
        "correct the name in `args`, or log in to npm where it is private",
    ),
    Sign(
        _NPM + r"(?:notarget )?No matching version found for (?P<package>\S+?)\.?$",
        "its package {package} cannot be fetched",
        "there is no such version of it",
        "correct the version in `args`",
    ),
    Sign(
        _NPM + r"(?:code E404|404\b)",
        "its package cannot be fetched",
        "npm finds no package of that name (404)",
        "correct the name in `args`, or log in to npm where it is private",
    ),
    Sign(
        _NPM + r"could not determine executable to run",
        "its package has no program to run",
        "npx does not know which of its files is meant",
        "check the name in `args`; where the program has another name than the package, write [-y, -p, PACKAGE, PROGRAM]",
    ),
    Sign(
        _NPM + r"(?:code|errno) (?P<code>ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNREFUSED|ECONNRESET|SELF_SIGNED_CERT_IN_CHAIN)",
        "its package cannot be fetched",
        "npm does not reach the registry ({code})",
        "check the network; behind a proxy the server needs its address: inheritEnv: [HTTPS_PROXY]",
    ),
    Sign(
        r"required: \{ node: '(?P<wanted>[^']+)'",
        "its Node.js does not fit",
        "the package wants {wanted}",
        "install a Node.js that is {wanted}, or name one by its full path",
    ),
    Sign(
        r"SyntaxError: Unexpected (?:token|identifier)|(?:fetch|Headers|ReadableStream|structuredClone|File) is not defined"
        r"|ERR_REQUIRE_ESM|does not provide an export named",
        "its JavaScript does not run",
        "this Node.js does not know something that it uses, and is probably too old",
        "install Node.js 20 or newer, or name a newer one by its full path",
    ),
    Sign(
        r"(?P<package>[A-Za-z0-9][\w.-]*) was not found in the (?:package registry|provided package locations|cache)",
        "its package {package} cannot be fetched",
        "uv finds no package of that name",
        "correct the name in `args`",
    ),
    Sign(
        r"there (?:is|are) no versions? of (?P<package>[\w.-]+(?:[=<>!~]=?[\w.]+)?)",
        "its package {package} cannot be fetched",
        "there is no such version of it",
        "correct the version in `args`",
    ),
    Sign(
        r"[Ee]xecutable (?:named )?`(?P<name>[^`]+)` (?:is not provided by|was not found|not found)",
        "its package has no program {name}",
        "uvx takes the program that has the package's name",
        "write [--from, PACKAGE, PROGRAM] as `args`",
    ),
    Sign(
        r"Package `(?P<package>[^`]+)` does not provide any executables",
        "its package {package} has no program to run",
        "it is a library, or the version that was fetched is too old",
        "check the name in `args`, or name a newer version",
    ),
    Sign(
        r"error sending request for url|dns error: failed to lookup",
        "its package cannot be fetched",
        "uv does not reach the index",
        "check the network; behind a proxy the server needs its address: inheritEnv: [HTTPS_PROXY]",
    ),
    Sign(
        r"No module named '?(?P<module>[\w.]+)'?",
        "its Python lacks the module {module}",
        "{command} is an interpreter in which that is not installed",
        "{instead}install it there ({command} -m pip install PACKAGE), or name the python of the environment that has it as `command`",
    ),
    Sign(
        r"can't open file '(?P<file>[^']+)'",
        "its script {file} cannot be opened",
        "there is no such file, as seen from the folder that it runs in",
        "correct the path in `args`, write it in full, or set `cwd`",
    ),
    Sign(
        r"Cannot find package '(?P<package>[^']+)'",
        "its package {package} is not installed",
        "Node.js does not find it from the script's folder",
        "run npm install in the folder of the script",
    ),
    Sign(
        r"Cannot find module '(?P<file>(?:[A-Za-z]:)?[/\\.][^']*)'",
        "its script {file} cannot be opened",
        "there is no such file, as seen from the folder that it runs in",
        "correct the path in `args`, build the server first, or set `cwd`",
    ),
    Sign(
        r"Cannot find module '(?P<package>[^']+)'",
        "its package {package} is not installed",
        "Node.js does not find it from the script's folder",
        "run npm install in the folder of the script",
    ),
    Sign(
        r"Cannot connect to the Docker daemon|failed to connect to the docker API|error during connect",
        "its container cannot be started",
        "{program} does not run in the background here",
        "start {program}, then try again",
    ),
    Sign(
        r"permission denied while trying to connect to the (?:Docker daemon|docker API)",
        "its container cannot be started",
        "you may not use {program}",
        "add yourself to the group docker, or use it rootless",
    ),
    Sign(
        r"pull access denied for (?P<image>[^\s,]+)|manifest (?:for (?P<tag>\S+) not found|unknown)|repository does not exist",
        "its image cannot be fetched",
        "there is none of that name, or it is private",
        "correct the image in `args`, or log in to its registry",
    ),
    Sign(
        r"EADDRINUSE|[Aa]ddress already in use",
        "it wants a port that is taken",
        "another program listens there, or it runs a second time",
        "end the other one, or give it another port; where it serves HTTP, its entry needs `url` rather than `command`",
    ),
    Sign(
        r"(?:^|: )env: ['\u2018\"]?(?P<name>[^'\u2019\":]+)['\u2019\"]?: No such file",
        "it starts a program that is not there",
        "{name} is on no folder of the server's PATH",
        "install {name}, or add its folder to PATH in `env`",
    ),
    Sign(
        r"(?:^|: )(?P<name>[\w./+-]+): (?:command )?not found|exec: \"?(?P<other>[\w./+-]+)\"?: executable file not found",
        "it starts a program that is not there",
        "{name}{other} is on no folder of the server's PATH",
        "install {name}{other}, or add its folder to PATH in `env`",
    ),
    Sign(
        r"ENOENT: .*?'(?P<file>[^']+)'|No such file or directory: ['\"](?P<named>[^'\"]+)['\"]"
        r"|(?<![\w/.])(?P<place>(?:/(?!/)|~/|\.{1,2}/|[A-Za-z]:[/\\])[^\s'\":,]+)['\"]?[:,]? (?i:does not exist|doesn't exist|not found"
        r"|no such (?:file|directory)|is not an? (?:valid )?(?:git repository|directory|folder|file))",
        "it wants {file}{named}{place}, which is not there, or is something else",
        "there is none such, as seen from the folder that it runs in",
        "correct the path in `args` or `env`, write it in full, or make what is missing",
    ),
    Sign(
        r"(?i:environment variable|env(?:ironment)? var).*?\b(?P<variable>(?-i:(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+))"
        r"|\b(?P<named>(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b.*"
        r"(?i:environment|required|not set|missing|must be|undefined|not (?:provided|found))"
        r"|(?i:missing|required|set|provide)\b.*\b(?P<wanted>(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b",
        "it wants the environment variable {variable}{named}{wanted}",
        "a server gets a minimal environment and what its entry names",
        "write {variable}{named}{wanted} into its `env`, or name it in `inheritEnv`",
    ),
    Sign(
        r"(?i:the following (?:required )?arguments (?:are required|were not provided)|missing (?:required )?(?:positional )?argument"
        r"|requires? at least|too few arguments|not enough arguments)|^\s*[Uu](?:sage|SAGE)\b:?",
        "it wants other arguments",
        "it printed how it is used, and ended",
        "write what it asks for into `args`",
    ),
    Sign(
        r"EACCES|[Pp]ermission denied|Operation not permitted",
        "it may not do what it wants",
        "the system refused it something",
        "check the rights of the file that it names; a `sandbox` allows only what `sandboxPaths` names",
    ),
)
