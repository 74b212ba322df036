"""Files of NAME=VALUE lines: comments, `export`, single and double quotes (also over several lines), no expansion."""

from __future__ import annotations

import re

from toolbay.errors import ConfigError

_LINE = re.compile(
    r"""[^\S\n]*(?:
        (?P<blank>(?:\#[^\n]*)?(?=\n|\Z)) |
        (?:export[^\S\n]+)?(?P<name>[A-Za-z_][\w.-]*)[^\S\n]*=[^\S\n]*
        (?:
            "(?P<double>(?:[^"\\]|\\.)*)"[^\S\n]*(?:\#[^\n]*)? |
            '(?P<single>[^']*)'[^\S\n]*(?:\#[^\n]*)? |
            (?P<plain>[^\n]*?)[^\S\n]*(?:(?<=\s)\#[^\n]*)?
        )
        (?=\n|\Z)
    )(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def parse(text: str) -> dict[str, str]:
    """The variables of a file's text; of two of the same name the later counts.

    Raises:
        ConfigError: a line is neither NAME=VALUE nor a comment. The message gives its number, not its text.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LINE.match(text, at)
        if match is None:
            raise ConfigError(f"line {text.count(chr(10), 0, at) + 1} is not NAME=VALUE")
        at = match.end()
        if match["name"] is None:
            continue
        if match["double"] is not None:
            found[match["name"]] = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match["double"], flags=re.DOTALL)
        else:
            found[match["name"]] = match["single"] if match["single"] is not None else match["plain"]
    return found
