"""From a file's bytes to its data: YAML, TOML and JSON (with comments), each loaded only when it is needed.

What breaks is told with line, column and what was expected, and never with the text itself, which may hold a secret.
"""

from __future__ import annotations

import codecs
import datetime as dt
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, cast

from toolbay.config import jsonc
from toolbay.errors import ConfigError


class Kind(StrEnum):
    """The language of a configuration file."""

    YAML = "YAML"
    JSON = "JSON"
    TOML = "TOML"


_SUFFIXES = {".yaml": Kind.YAML, ".yml": Kind.YAML, ".json": Kind.JSON, ".jsonc": Kind.JSON, ".json5": Kind.JSON, ".toml": Kind.TOML}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file's text, and what is needed to write it back the same way. `newline` is what its lines end with."""

    text: str
    mark: bytes = b""
    encoding: str = "utf-8"
    newline: str = "\n"

    def encoded(self, text: str) -> bytes:
        """`text` (lines end with \\n) in this file's encoding and line ends."""
        return self.mark + text.replace("\n", self.newline).encode(self.encoding)


def kind_of(path: Path, text: str = "") -> Kind:
    """By the name's ending; where that says nothing, by the first character."""
    known = _SUFFIXES.get(path.suffix.lower())
    if known is None:
        return Kind.JSON if text.lstrip().startswith(("{", "//", "/*")) else Kind.YAML
    return known


def decode(data: bytes, path: Path) -> Source:
    """The text of a file, with \\n at the end of each line.

    Raises:
        ConfigError: it is not UTF-8 (or UTF-16 that says so).
    """
    mark, encoding = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    body = data[len(mark) :]
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        column = error.start - body.rfind(b"\n", 0, error.start)
        broken(path, line, column, "expected text in UTF-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    return Source(text=text.replace("\r\n", "\n"), mark=mark, encoding=encoding, newline=newline)


def parse(text: str, kind: Kind, path: Path) -> dict[str, Any]:
    """The data of a file: plain objects, lists, strings, numbers, bools and None; keys are strings.

    Raises:
        ConfigError: the text is empty, does not parse, or is no object; with line, column and what was expected.
    """
    if not text.strip():
        raise ConfigError(f"{path} is empty: expected an object with `tools`, such as {_EXAMPLES[kind]}.")
    try:
        data = _PARSERS[kind](text, path)
        if data is None and kind is Kind.YAML:
            return {}
        if not isinstance(data, Mapping):
            broken(path, 1, 1, f"expected an object with `tools`, such as {_EXAMPLES[kind]}")
        return cast("dict[str, Any]", _plain(cast("Any", data)))
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a configuration: make it flatter.") from None


def broken(path: Path, line: int, column: int, expected: str) -> NoReturn:
    """One way to say where a file breaks."""
    raise ConfigError(f"{path} cannot be read: line {line}, column {column}: {expected}.") from None


_EXAMPLES = {
    Kind.YAML: "`tools: {mcpServers: {}}`",
    Kind.JSON: '`{"tools": {"mcpServers": {}}}`',
    Kind.TOML: "`[tools.mcpServers]`",
}


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return jsonc.read(text).value
    except jsonc.BrokenText as error:
        line = text.count("\n", 0, error.position) + 1
        broken(path, line, error.position - text.rfind("\n", 0, error.position), str(error))


def _yaml(text: str, path: Path) -> Any:
    from ruamel.yaml import YAML  # noqa: PLC0415  # heavy, and for YAML files only
    from ruamel.yaml.constructor import DuplicateKeyError  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    try:
        return YAML(typ="safe", pure=True).load(text)  # pyright: ignore[reportUnknownMemberType]
    except MarkedYAMLError as failure:
        error = cast("Any", failure)  # the library has no types
        mark = error.problem_mark or error.context_mark
        # The library's sentence about a key that comes twice shows both values.
        twice = isinstance(failure, DuplicateKeyError)
        said = "this key was there before" if twice else error.problem or "expected YAML"
        lines = text.split("\n")
        place = lines[min(int(mark.line), len(lines) - 1)] if mark else ""
        if "\t" in place[: len(place) - len(place.lstrip())]:
            said = f"{said}; YAML takes no tabs there: indent with spaces"
        context = f"{error.context}, " if error.context and not twice else ""
        broken(path, int(mark.line) + 1 if mark else 1, int(mark.column) + 1 if mark else 1, f"{context}{said}")
    except YAMLError:
        position = next((at for at, char in enumerate(text) if not (char.isprintable() or char in "\n\r\t\x85")), 0)
        line = text.count("\n", 0, position) + 1
        broken(path, line, position - text.rfind("\n", 0, position), "expected no control characters")


def _toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, column = getattr(error, "lineno", 0), getattr(error, "colno", 0)
        said = str(getattr(error, "msg", "") or str(error).split(" (at ", 1)[0])
        if not line:
            line, column = _toml_place(text)
        broken(path, line, column, f"expected TOML ({said[:1].lower()}{said[1:]})")


def _toml_place(text: str) -> tuple[int, int]:
    """Python before 3.14 tells the place only in prose; the other parser has it as numbers."""
    from tomlkit import parse as parse_toml  # noqa: PLC0415  # heavy, and for broken files only
    from tomlkit.exceptions import ParseError, TOMLKitError  # noqa: PLC0415

    try:
        parse_toml(text)
    except ParseError as error:
        return error.line, error.col + 1
    except TOMLKitError:
        pass
    return text.count("\n") + 1, 1


_PARSERS = {Kind.YAML: _yaml, Kind.JSON: _json, Kind.TOML: _toml}


def _plain(value: Any) -> Any:
    """Keys as strings, dates as text: the rest of the program knows JSON only."""
    if isinstance(value, Mapping):
        return {_word(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _word(key: Any) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if isinstance(key, (bool, int, float)) or key is None else str(key)
