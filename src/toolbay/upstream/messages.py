"""Messages as text, and the message in a text that came from a server, as far as there is one.

Some texts are JSON that the parser does not take, and one such place would cost a whole list or result: half of a character
(`"\\ud83d"`, which cutting a text in JavaScript leaves), values nested without end, numbers without end, bytes that are no UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from mcp_types import JSONRPCResponse, jsonrpc_message_adapter
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from toolbay._lenient import as_object
from toolbay._weight import aside
from toolbay.errors import BadCall

DEEPEST: Final = 150
"""Levels of a value; what lies deeper is taken as null. The parser ends at 200, and the deepest schema seen has 30."""
LONGEST_NUMBER: Final = 400
"""Characters of a number; a longer one is taken as null."""
MENDED_AT_MOST: Final = 2_000_000
"""Bytes of a text that is mended; of a larger one only what is no UTF-8. It takes a second at the worst."""
_LIGHT = 20_000

_BOM = b"\xef\xbb\xbf"
# Nothing in it is tried in two ways, so that it takes linear time: an unfinished string goes to the end.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]|[-+.0-9eE]{%d,}' % LONGEST_NUMBER, re.DOTALL)
_HALVES = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
"""Escapes in a string. The group is half of a character: a surrogate that no other half follows."""


def encoded(ours: BaseModel) -> bytes:
    """A message of ours as JSON.

    Raises:
        BadCall: it cannot be written. What else can be wrong with arguments is refused before they get here.
    """
    try:
        return ours.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except (ValueError, TypeError, RecursionError):
        raise BadCall("its arguments cannot be written as JSON, probably since they are nested too deeply; nothing was sent") from None


async def message(text: bytes | str) -> Any:
    """The JSON-RPC message in `text`; None where there is none."""
    try:
        found = from_json(text)
    except ValueError:
        found = await aside(mended, text, when=len(text) > _LIGHT)
    return as_message(found)


def meant_for(text: bytes | str) -> object:
    """The id of the request that a text means to answer, which is no message that can be read; None where it means none."""
    try:
        known = as_object(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return known.get("id") if "method" not in known else None


def as_message(value: Any) -> Any:
    """The JSON-RPC message that a JSON value is; None where it is none."""
    # What it can be by its names alone: that takes half the time of a look at all kinds.
    answers = isinstance(value, dict) and "result" in value and "method" not in value and "error" not in value
    try:
        if answers:
            return JSONRPCResponse.model_validate(value, by_name=False)
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        return None


def mended(text: bytes | str) -> Any:
    """The JSON value in `text`, which the parser did not take, with null or U+FFFD in each place that it stumbles over.

    None where it is no JSON for other reasons. It is nested 200 levels at the most.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    data = data.removeprefix(_BOM).lstrip()
    if not data.startswith((b"{", b"[")):
        return None  # a banner, a log line
    data = data.decode("utf-8", "replace").encode()
    try:
        return from_json(_mended(data) if len(data) <= MENDED_AT_MOST else data)
    except ValueError:
        return None


def _mended(data: bytes) -> bytes:
    """`data` with null or U+FFFD in each place that the parser stumbles over."""
    kept: list[bytes] = []
    at = depth = 0
    for token in _TOKEN.finditer(data):
        first, instead = data[token.start()], b""
        if first in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(data[at : token.start()])
                at = token.start()
            continue
        if first in b"]}":
            depth -= 1
            if depth != DEEPEST:
                continue
            instead = b"null"
        elif depth > DEEPEST:
            continue
        elif first == ord('"'):
            kept += (data[at : token.start()], _HALVES.sub(_whole, token[0]))
            at = token.end()
            continue
        else:
            kept.append(data[at : token.start()])
            instead = b"null"
        kept.append(instead)
        at = token.end()
    kept.append(data[at:])
    return b"".join(kept)


def _whole(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]
