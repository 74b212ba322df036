"""A request taken apart: its steps, and in each step what looks like a value (addresses, paths, dates, numbers, quotes).

Values are found one sort after the other; what one sort took, the next does not see, so that the numbers in an address stay its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from toolbay.search.words import CJK, QUOTED, URL


class Sort(StrEnum):
    """What a piece of a request looks like."""

    PAIR = "pair"
    URL = "url"
    QUOTED = "quoted"
    GLOB = "glob"
    PATH = "path"
    DOMAIN = "domain"
    DATE = "date"
    TIME = "time"
    NUMBER = "number"
    IDENTIFIER = "identifier"


@dataclass(frozen=True, slots=True)
class Piece:
    """`value` is the text in its normal form (an ISO date, HH:MM, digits), `start` and `end` say where it stood."""

    sort: Sort
    value: str
    start: int
    end: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One step of what was asked. `rest` is `text` of the same length with spaces where a piece stood."""

    text: str
    rest: str
    pieces: tuple[Piece, ...] = field(default=())

    def of(self, *sorts: Sort) -> list[Piece]:
        """The pieces of these sorts, in their order in the text."""
        return [piece for piece in self.pieces if piece.sort in sorts]


MAX_STEPS = 4
MAX_TEXT = 8_000
"""Characters of a message that are taken apart."""

_LEADING = """
search find look up google please can could you me for about what who is are was the a an do does i want to need tell show get
give on web internet online with using use from and in of latest against between versus vs than last first next all every
"""
LEADING = frozenset(_LEADING.split())
"""Words before what a request is about, and between its parts."""

_NAME = r"[\w@+-][\w.@+-]*"
_PATHS = re.compile(
    rf"(?<![\w@/\\])(?:[A-Za-z]:[/\\]|~?/|\.{{1,2}}/|\\\\)(?:[\w.@+~-]+[/\\])*[\w.@+~-]*"  # absolute, ~/ or ./
    rf"|(?<![\w@/\\.+-])(?:{_NAME}[/\\])+(?:{_NAME})?"  # a/b
    rf"|(?<![\w@/\\.+-]){_NAME}\.[A-Za-z][A-Za-z0-9]{{0,9}}(?![\w/])"  # a.md
    r"|(?<![\w@/\\.])\.[A-Za-z][\w.-]+(?![\w/])",  # .env
    re.ASCII,
)
_NATIVE_PATHS = re.compile(rf"(?<=[\s:])[{CJK}][\w.-]*\.[A-Za-z][A-Za-z0-9]{{0,9}}(?![A-Za-z0-9])")
# A name begins where its run begins, and is taken whole: else a long run is looked through from each of its characters.
_QUOTED_PAIRS = re.compile(r"(?<![\w?&/\"'])(?<!\w[.-])([A-Za-z_][\w.-]*+)\s?=\s?(\"[^\"]*\"|'[^']*'|\[[^\]]*\])")
_PAIRS = re.compile(r"(?<![\w?&/])(?<!\w[.-])([A-Za-z_][\w.-]*+)\s?=\s?([^\s,;，；]+)")  # noqa: RUF001
_GLOBS = re.compile(r"(?<!\S)[\w./*?\[\]{},-]*\*[\w./*?\[\]{},-]*")
_ISO = re.compile(r"\b(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?)?")
_MONTHS = {name: at for at, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), start=1)}  # noqa: SIM905
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}\s+(\d{{4}})\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(rf"\b{_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+(\d{{4}})\b", re.IGNORECASE)
_CJK_DATE = re.compile(r"(\d{4})\s*年\s*(\d{1,2})\s*月\s*(\d{1,2})\s*[日号]")
_CLOCK = re.compile(r"(?<![\d:])([01]?\d|2[0-3]):([0-5]\d)(?:\s*([ap])\.?m\b\.?)?", re.IGNORECASE)
_HALF_DAY = re.compile(r"(?<![\d:.])(1[0-2]|[1-9])\s*([ap])\.?m\b\.?|\b(noon|midnight)\b", re.IGNORECASE)
_CJK_CLOCK = re.compile(r"(凌晨|早上|上午|中午|下午|傍晚|晚上|今晚)?([零一二两三四五六七八九十]{1,3}|\d{1,2})(?:点|點|時|时)(半|钟)?")
_NUMBERS = re.compile(r"(?<![\w.,/-])-?\d+(?:\.\d+)?(?![A-Za-z_]|\.\d)", re.ASCII)
_RANGES = re.compile(r"(?<![\w.,/-])(\d{1,6})\s?(?:-|\u2013|to|bis|到|至)\s?(\d{1,6})(?![\w-])", re.ASCII)
_CJK_NUMBERS = re.compile(r"(?<=[第前后])[零一二两三四五六七八九十]+")
_NUMBER_WORDS = {w: n for n, w in enumerate("two three four five six seven eight nine ten eleven twelve".split(), start=2)}  # noqa: SIM905
_SPELLED = re.compile(rf"\b({'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_IDENTIFIERS = re.compile(
    r"(?<![\w./-])(?=[A-Za-z0-9])(?=[\w:/~^.-]*[\d/:~^_])(?=[\w:/~^.-]*[A-Za-z])[A-Za-z0-9][\w]*(?:[:/~^.-][\w]+)*[~^]?\d*(?![\w/])|\bHEAD\b",
    re.ASCII,
)
_DIGITS = {char: at for at, char in enumerate("零一二三四五六七八九")}
_DOMAINS = frozenset({"com", "org", "net", "io", "dev", "app", "ai", "co", "de", "cn", "uk", "eu", "fr", "jp", "edu", "gov", "info"})
_ABBREVIATIONS = frozenset({"e.g", "i.e", "a.m", "p.m", "and/or", "n/a", "w/o", "tcp/ip"})

# Every alternative begins where a run of blanks begins, and takes it whole: text from elsewhere may hold thousands of them.
_BREAK = re.compile(
    r"(?<=[.!?])\s++(?=[A-Z\"'(])|(?<=[。！？；])\s*+|(?<!\s)\s*+;\s++|\n++"  # noqa: RUF001
    r"|(?:,|(?<!\s)(?=\s))\s++(?:(?:and\s++)?then\s++(?=\w)|and\s++also\s++|(?:and\s++)?after\s++that(?:,\s++|\s++))"
    r"|,\s++and\s++(?=(?:what|which|who|where|when|how|list|show|read|find|search|tell|give|open|get|convert|create|write|fetch|delete)\b)"
    r"|(?<!\s)\s++and\s++(?=(?:what|which|who|where|when|how|(?:tell|give|show)\s++me)\b)"
    r"|(?<!\s)\s++and\s++(?=(?:list|show|read|search|open|convert|create|write|fetch|delete|summari[sz]e)\s++\S)"
    r"|(?:[，,]|(?<!\s))\s*+(?:然后|接着|另外|还有|再(?=[读写查看列打搜]))[，,]?\s*+",  # noqa: RUF001
    re.IGNORECASE,
)


def steps(text: str) -> list[str]:
    """The parts of a request that each may be one call: sentences, and what `then`, `and also` and the like join. At most four."""
    text = text[:MAX_TEXT].strip()
    shield = _shield(text)
    cuts = [match.span() for match in _BREAK.finditer(shield)]
    parts: list[str] = []
    at = 0
    for start, end in cuts:
        if len(parts) == MAX_STEPS - 1:
            break
        parts.append(text[at:start])
        at = end
    parts.append(text[at:])
    return [part for part in (part.strip(" ,;，；\t\n") for part in parts) if part]  # noqa: RUF001


def _shield(text: str) -> str:
    """`text` with letters where quotes, addresses and paths stand, so that no break is found in them."""
    for pattern in (URL, QUOTED, _PAIRS, _PATHS):
        text = pattern.sub(lambda match: re.sub(r"[^.!?]|[.!?](?!$)", "x", match[0]), text)
    return text


def read(text: str) -> Request:
    """Take one step apart; what is beyond `MAX_TEXT` is not looked at."""
    text = text[:MAX_TEXT]
    finder = _Finder(text)
    finder.take(URL, _address)
    finder.take(_QUOTED_PAIRS, _pair)
    finder.take(QUOTED, _quoted)
    finder.take(_PAIRS, _pair)
    finder.take(_GLOBS, lambda m: Piece(Sort.GLOB, m[0].rstrip(",.?"), *m.span()) if m[0].strip("*") or len(m[0]) > 1 else None)
    for pattern in (_ISO, _DAY_FIRST, _MONTH_FIRST, _CJK_DATE):
        finder.take(pattern, _date)
    for pattern in (_CLOCK, _HALF_DAY, _CJK_CLOCK):
        finder.take(pattern, _time)
    finder.take(_NATIVE_PATHS, lambda m: Piece(Sort.PATH, m[0], *m.span()))
    finder.take(_PATHS, _path)
    finder.take(
        _IDENTIFIERS, lambda m: None if m[0].casefold() in _ABBREVIATIONS else Piece(Sort.IDENTIFIER, m[0].rstrip(".-:"), *m.span())
    )
    finder.take(_RANGES, lambda m: Piece(Sort.NUMBER, f"{m[1]}-{m[2]}", *m.span()))
    finder.take(_NUMBERS, lambda m: Piece(Sort.NUMBER, m[0], *m.span()))
    finder.take(_CJK_NUMBERS, lambda m: Piece(Sort.NUMBER, str(_number(m[0])), *m.span()))
    finder.take(_SPELLED, lambda m: Piece(Sort.NUMBER, str(_NUMBER_WORDS[m[0].casefold()]), *m.span()))
    return Request(text, finder.rest, tuple(sorted(finder.pieces, key=lambda piece: piece.start)))


class _Finder:
    def __init__(self, text: str) -> None:
        self.rest = text
        self.pieces: list[Piece] = []

    def take(self, pattern: re.Pattern[str], make: Callable[[re.Match[str]], Piece | None]) -> None:
        for piece in list(self._made(pattern, make)):
            self.pieces.append(piece)
            self.rest = self.rest[: piece.start] + " " * (piece.end - piece.start) + self.rest[piece.end :]

    def _made(self, pattern: re.Pattern[str], make: Callable[[re.Match[str]], Piece | None]) -> Iterator[Piece]:
        for match in pattern.finditer(self.rest):
            piece = make(match) if match[0].strip() else None
            if piece is not None:
                yield piece


def _address(match: re.Match[str]) -> Piece:
    value = match[0].rstrip(".,;:!?)]}")
    return Piece(Sort.URL, value, match.start(), match.start() + len(value))


def _pair(match: re.Match[str]) -> Piece:
    return Piece(Sort.PAIR, match[2].strip("\"'"), *match.span(), key=match[1])


def _quoted(match: re.Match[str]) -> Piece | None:
    inner = next((group for group in match.groups() if group is not None), "")
    if not inner:
        return None
    if URL.fullmatch(inner):
        return Piece(Sort.URL, inner, *match.span())
    looks_like_path = re.fullmatch(r"(?:[^\s]*[/\\])?[^/\\\n]{1,100}\.[A-Za-z][A-Za-z0-9]{0,9}|[~.]{0,2}/[^\n]{0,200}", inner)
    return Piece(Sort.PATH if looks_like_path else Sort.QUOTED, inner, *match.span())


def _path(match: re.Match[str]) -> Piece | None:
    value = match[0].rstrip(".,;:!?") if match[0].strip("./~") else match[0]
    if not value or value.casefold() in _ABBREVIATIONS:
        return None
    is_domain = "/" not in value and "\\" not in value and value.rpartition(".")[2].casefold() in _DOMAINS
    return Piece(Sort.DOMAIN if is_domain else Sort.PATH, value, match.start(), match.start() + len(value))


def _date(match: re.Match[str]) -> Piece:
    if match.re is _ISO:
        value = match[0]
    elif match.re is _DAY_FIRST:
        value = f"{match[3]}-{_MONTHS[match[2][:3].casefold()]:02}-{int(match[1]):02}"
    elif match.re is _MONTH_FIRST:
        value = f"{match[3]}-{_MONTHS[match[1][:3].casefold()]:02}-{int(match[2]):02}"
    else:
        value = f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}"
    return Piece(Sort.DATE, value, *match.span())


def _time(match: re.Match[str]) -> Piece | None:
    minute = 0
    if match.re is _CJK_CLOCK:
        hour = _number(match[2])
        afternoon = match[1] in {"下午", "傍晚", "晚上", "今晚"} or (match[1] == "中午" and hour < 11)
        minute = 30 if match[3] == "半" else 0
    elif match.re is _HALF_DAY and match[3]:
        hour, afternoon = (12 if match[3].casefold() == "noon" else 0), False
    else:
        hour = int(match[1])
        minute = int(match[2]) if match.re is _CLOCK else 0
        half = match[3 if match.re is _CLOCK else 2]
        afternoon = bool(half) and half.casefold() == "p"
        hour = 0 if half and half.casefold() == "a" and hour == 12 else hour
    hour += 12 if afternoon and hour < 12 else 0
    return Piece(Sort.TIME, f"{hour:02}:{minute:02}", *match.span()) if hour < 24 else None


def _number(text: str) -> int:
    """A number up to 99 in Chinese numerals, or in digits."""
    if text.isdigit():
        return int(text)
    text = text.replace("两", "二")
    tens, ten, ones = text.rpartition("十")
    if ten:
        return (_DIGITS.get(tens, 1) if tens else 1) * 10 + _DIGITS.get(ones, 0)
    return _DIGITS.get(text[-1], 0)
