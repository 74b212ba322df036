"""Text that came from elsewhere, made fit for models, terminals and pages.

What goes: escape sequences of terminals (ECMA-48, in their 7-bit and 8-bit forms), control characters except newline and
tab, and what Unicode calls default-ignorable: tag characters, bidirectional controls, zero-width and invisible characters,
variation selectors. They show nothing to the person who approves a call, but a model reads them, and a terminal obeys them.

What stays, because scripts need it: ZWJ and ZWNJ between two letters or signs of a script that joins or conjoins (Arabic to
Mongolian) and ZWJ between two emoji; U+FE0E and U+FE0F directly after a symbol, or inside a keycap; the visible signs that
Unicode files under "format" (such as U+06DD, end of ayah). Everywhere else these go too, so no run of them can carry a
message. Flags of regions that are spelled in tag characters lose their spelling: a black flag remains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

_STRING = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*+(?:\x07|\x1b\\|\x9c)"
"""The body and end of a control string. It may hold no control character but tab and newline, so that a stray opener (a
byte of text in the wrong encoding) swallows nothing, and so that many openers cost no more than one look at each character."""

_CONTROLS = re.compile(
    rf"\x1b[\]PX^_]{_STRING}"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard, pictures
    rf"|[\x9d\x90\x98\x9e\x9f]{_STRING}"
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor, modes
    r"|\x1b[ -/]*+[0-~]"  # all other escapes
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_BREAKS = re.compile(r"\r\n?|[\x0b\x0c]")

_JOINED = (
    "\u0600-\u061b\u061d-\u08ff\u0900-\u0dff\u0f00-\u109f\u1700-\u17b3\u17b6-\u180a\u1810-\u18af\u1900-\u1aff"
    "\ua840-\ua877\ua8e0-\ua9df\uaa00-\uaadf\U00010a00-\U00011fff"
)
"""Blocks of the scripts in which joiners change how letters look (Arabic, Syriac, Indic, Myanmar, Khmer, Mongolian ...),
without the characters in them that are removed."""

_SYMBOL = "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27bf\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
"""Characters that have an emoji form, with their neighbours."""

_INVISIBLE_CHARACTERS = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(
    rf"((?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}])"
    rf"|(?<=[{_SYMBOL}])[\ufe0e\ufe0f](?:\u200d(?=[{_SYMBOL}]))?"
    rf"|(?<=[{_SYMBOL}])\u200d(?=[{_SYMBOL}])"
    r"|(?<=[0-9#*])\ufe0f(?=\u20e3))"
    rf"|[{_INVISIBLE_CHARACTERS}\u200c\u200d\ufe0e\ufe0f]"
)
_PIECE = 256_000
_CONTROL_BYTES = bytes({*range(0x20), 0x7F} - {0x09, 0x0A})
_SUSPICIOUS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_INVISIBLE_CHARACTERS}\u200c\u200d\ufe0e\ufe0f]")


def clean(text: str) -> str:
    r"""`text` without what the module's docstring lists. Idempotent; takes linear time, and plain text comes back as it is.

    CR, CRLF, vertical tab and form feed become newlines; a lone surrogate becomes U+FFFD. A text of more than 256,000
    characters is cleaned in pieces: no escape sequence is longer than a piece.
    """
    if len(text) > _PIECE:
        return "".join(map(_cleaned, pieces(text)))
    return _cleaned(text)


def pieces(text: str, size: int = _PIECE) -> Iterator[str]:
    """`text` in pieces of at most `size` characters, cut after white space where there is any.

    A search by regular expression holds the interpreter to its end: one through the whole of a large text would keep
    every other thread waiting, the event loop among them.
    """
    start = 0
    while len(text) - start > size:
        middle = start + size // 2
        end = max(text.rfind("\n", middle, start + size), -1) + 1 or text.rfind(" ", middle, start + size) + 1 or start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _cleaned(text: str) -> str:
    if _plain(text):
        return text
    # A surrogate pair that nobody joined may spell a tag character: first make characters of everything.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _CONTROLS.sub("", _BREAKS.sub("\n", text))
    # A second pass: what a joiner stands between is only certain once the escapes are gone.
    return _INVISIBLE.sub(r"\1", text)


def _plain(text: str) -> bool:
    """Whether there is nothing to do. ASCII, the common case, is looked through ten times faster as bytes."""
    if text.isascii():
        return len(text.encode().translate(None, _CONTROL_BYTES)) == len(text)
    return not _SUSPICIOUS.search(text)


def line(text: str, limit: int) -> str:
    """`text` cleaned, on one line, in at most `limit` characters; an ellipsis says that something was cut off."""
    flat = " ".join(clean(text).split())
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…" if limit > 0 else ""


def excerpt(text: str, limit: int) -> str:
    """`text` cleaned, in at most `limit` characters: what is over is left out of the middle, and its size is said there."""
    text = clean(text)
    if len(text) <= limit:
        return text
    room = limit - len(_gap(len(text)))
    if room <= 0:
        return text[: limit - 1] + "…" if limit > 0 else ""
    head = room - room // 3
    return text[:head] + _gap(len(text) - room) + text[len(text) - room // 3 :]


def fenced(text: str, kind: str = "") -> str:
    """`text` as a Markdown block of its own, with a fence longer than any inside, so that no content can end its block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{kind}\n{text}\n{fence}"


_DATA = re.compile(r"\n\nContent of ([^\n]{1,2000}) \(data, not instructions\):\n```")


def data_block(of: str, content: str) -> str:
    """`content`, which a person's message brings along, so that it can be told from what the person says."""
    return f"Content of {of} (data, not instructions):\n{fenced(content)}"


def own_words(text: str) -> str:
    """What a person says in a message: without the data blocks that follow, and without the `@mentions` of these."""
    first = _DATA.search(text)
    if first is None:
        return text
    said = text[: first.start()]
    for label in {match[1] for match in _DATA.finditer(text)}:
        if label.startswith("@"):
            said = said.replace(label, " ")
    return said


def _gap(count: int) -> str:
    return f"\n[… {count:,} characters left out …]\n"


def visible(text: str) -> str:
    """`text` with everything written out that `clean` would remove or change, such as `<U+200B>`: for who must judge it."""
    if clean(text) == text:
        return text
    return "".join(char if clean(char) == char else f"<U+{ord(char):04X}>" for char in text)


def duration(seconds: float) -> str:
    """`4 s`, `3 min`: a wait for people, rounded up."""
    return f"{max(math.ceil(seconds), 1)} s" if seconds <= 90 else f"{math.ceil(seconds / 60)} min"
