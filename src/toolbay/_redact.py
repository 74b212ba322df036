"""Text that is safe to log or show: URLs, headers, environments and command lines without the credentials in them.

Two ways lead here. `mask` takes out values that are known to be secret, in whatever coat they come (URL-encoded, base64,
JSON-escaped). The others know no values, only what credentials look like, and err towards hiding too much.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from toolbay import _coats

HIDDEN = "***"
_BATCH = 1_000
_SHORTEST_TOKEN = 8
_LAST_TOKENS = 24
"""Characters of a token that is masked; tokens of one owner that are remembered."""
_LIKE_NO_OTHER = 20
_FEWEST_LETTERS = 5
"""Characters of a token that nobody guesses (RFC 6749, 10.10: 128 bits), and different ones of them outside of words and numbers."""
_COMMON = re.compile(r"[A-Z]{3,}(?![a-z])|[A-Za-z][a-z]{2,}|(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])|[^A-Za-z0-9]")
"""Words, numbers, and what stands between them."""

_Spans: TypeAlias = list[tuple[int, int]]

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORD = re.compile(
    r"accesskey|auth|authkey|authorization|bearer|cookie|jwt|key|pass|pat|privatekey|pwd|sig|signature|\w*token",
)
_SECRET_PARTS = ("apikey", "credential", "passphrase", "passwd", "password", "secret")
_ABOUT_A_SECRET = re.compile(
    r"count|dir|directory|enabled|env|expiry|file|format|header|length|limit|method|mode|name|path|prefix|size|timeout|ttl|type|uri|url",
)
"""Last words of names that tell about a secret and are none: TOKEN_URL, KEY_PATH."""

_HARMLESS_HEADERS = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-type",
        "mcp-protocol-version",
        "user-agent",
    }
)

_PARTS = 12
_PART = 24
_SHORT_WORD = 8
"""Parts of a path and characters of one that are shown at the most; letters from which on a word must look like one."""
_VERSION = re.compile(r"v?\d{1,2}(?:\.\d{1,2})?|\d{4}-\d\d-\d\d")
_WORD = r"(?:[A-Za-z]?[a-z]{1,15}\d?|[A-Z][a-z]{1,11}[A-Z][a-z]{1,11}|[a-z]{2,11}[A-Z][a-z]{1,11}|[A-Za-z]|[A-Z]{2,4})"
_PLAIN = re.compile(rf"(?:{_WORD}(?:[._~-]{_WORD})*)?|\.well-known")
_UNSPEAKABLE = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}", re.IGNORECASE)
_HEX = re.compile(r"[a-f]+", re.IGNORECASE)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>|]+")
_QUERY_VALUE = re.compile(r"([^?&;=#]+)=([^&;#]*)")
_SCHEME_AND_TOKEN = re.compile(r"\b(?:bearer|basic|digest|token)\s+([A-Za-z0-9._~+/=:-]{6,})", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(?<![\w?&-])-{0,2}([A-Za-z_][\w.-]*)=(?:\"([^\"]*)\"|'([^']*)'|(\S+))")
_OPTION_IN_SCRIPT = re.compile(r"(?<!\S)--?([A-Za-z][\w-]+)\s+(?!-)(\S+)")
_HEADER_LINE = re.compile(r"^\s*([A-Za-z][\w-]*)\s*:\s*(\S.*)$", re.DOTALL)
_SHORT_PASSWORD = re.compile(r"^-p(?!ass|wd|w$)([^=\s]\S*)$")
_SHORT_USER = re.compile(r"^-u[^=\s]")
_OPTION = re.compile(r"^--?([A-Za-z][\w.-]+)$")
_TOKEN_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{8,}|(?:sk|pk|rk)_(?:live|test)_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[abeprs]-[\w-]{8,}"
    r"|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|figd_[\w-]{8,}|npm_\w{20,}|hf_\w{16,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*)"
)


def looks_secret(name: str) -> bool:
    """Whether a variable, header, option or parameter of this name usually holds a credential."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or _ABOUT_A_SECRET.fullmatch(words[-1]) or words[0] == "public":
        return False
    whole = "".join(words)
    return (
        any(_SECRET_WORD.fullmatch(word) for word in words) or whole.endswith("accesskeyid") or any(part in whole for part in _SECRET_PARTS)
    )


def harmless_header(name: str) -> bool:
    """Whether a header of this name holds no secret. Of all others nobody knows: services name their keys as they like."""
    return name.strip().lower() in _HARMLESS_HEADERS


def trace(error: BaseException, safe: Callable[[str], str]) -> str:
    """The traceback of `error` for a log: what an exception says may hold what it was given, so it goes through `safe`."""
    return safe("".join(traceback.format_exception(error)).rstrip())


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` with every occurrence of every secret hidden, also where it is URL-encoded, JSON-escaped or in base64."""
    return _without(text, {form for secret in secrets if secret for form in _coats.forms(secret)})


class Secrets:
    """What must not be shown, as far as it is known. It only grows, for what was a secret once must not be shown later.

    Tokens are others every few minutes, and worth nothing soon after: of each owner the last ones are known. They are what
    somebody else chose, who must not choose what all others say: what may stand in any text is hidden in its owner's only.
    Any thread may use it.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lasting: frozenset[str] = frozenset()
        self._passing: dict[str, dict[str, frozenset[str]]] = {}
        self._forms: frozenset[str] = frozenset()
        self._own: dict[str, frozenset[str]] = {}
        self._growing = threading.Lock()
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        with self._growing:
            self._lasting = self._lasting.union(*(_coats.forms(value) for value in values if value))
            self._collect()

    def add_passing(self, owner: str, values: Iterable[str]) -> None:
        """Add what `owner` has now. What is short stands in too many harmless words, and is no token of anybody who means well."""
        with self._growing:
            known = self._passing.setdefault(owner, {})
            for value in values:
                if len(value) >= _SHORTEST_TOKEN:
                    forms = known.pop(value, None)
                    known[value] = _coats.forms(value) if forms is None else forms
            for oldest in tuple(known)[:-_LAST_TOKENS]:
                del known[oldest]
            self._own[owner] = frozenset[str]().union(*(forms for value, forms in known.items() if not _like_no_other(value)))
            self._collect()

    def mask(self, text: str) -> str:
        """`text`, whoever it is of, without any of them (`mask`)."""
        return _without(text, self._forms)

    def mask_of(self, owner: str, text: str) -> str:
        """`text` that comes from `owner`, without any of them."""
        return _without(text, self._forms | own if (own := self._own.get(owner)) else self._forms)

    def _collect(self) -> None:
        passing = (forms for known in self._passing.values() for value, forms in known.items() if _like_no_other(value))
        self._forms = self._lasting.union(*passing)


def _like_no_other(token: str) -> bool:
    """Whether a text that holds it can hardly have it by chance: it is long, and not made of words, numbers or few letters."""
    return len(token) >= _LIKE_NO_OTHER and len(set(_COMMON.sub(_unlikely, token))) >= _FEWEST_LETTERS


def _unlikely(common: re.Match[str]) -> str:
    """What looks like a word and cannot be said is none."""
    return common[0] if len(common[0]) >= _SHORT_WORD and _UNSPEAKABLE.search(common[0]) else ""


def redacted(value: Any, safe: Callable[[str], str]) -> Any:
    """A JSON value with every text in it, names too, passed through `safe`; the value itself where that changes none.

    Raises:
        RecursionError: it nests deeper than Python calls may.
    """
    texts: list[str] = []
    _gather(value, texts)
    safe_texts: list[str] = []
    # Most texts hold no secret, which is seen on many of them together.
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        together = "\n".join(batch)
        safe_texts += batch if safe(together) == together else map(safe, batch)
    return value if safe_texts == texts else _refilled(value, iter(safe_texts))


def _gather(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for name, part in cast("dict[str, Any]", value).items():
            texts.append(name)
            _gather(part, texts)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            _gather(part, texts)


def _refilled(value: Any, texts: Iterator[str]) -> Any:
    """A copy of `value` with other texts, in the order in which they were gathered."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, dict):
        return {next(texts): _refilled(part, texts) for part in cast("dict[str, Any]", value).values()}
    if isinstance(value, list):
        return [_refilled(part, texts) for part in cast("list[Any]", value)]
    return value


def origin(text: str) -> str:
    """The origin of a URL, and `/...` where a path or query follows it: for what is kept, and for what nobody masks."""
    parts = _split(text)
    return HIDDEN if parts is None else f"{parts[0]}/..." if parts[1].strip("/") or parts[2] else parts[0]


def url(text: str) -> str:
    """A URL without its userinfo and query. Of its path the plain words are shown; what may be a key is `...`."""
    parts = _split(text)
    if parts is None:
        return HIDDEN
    shown: list[str] = []
    before = ""
    for part in parts[1].split("/"):
        word = part if _is_plain(part) and not looks_secret(before) else "..."
        before = part
        if word != "..." or shown[-1:] != ["..."]:
            shown.append(word)
    path = "/".join(shown[:_PARTS] + ["..."] * (len(shown) > _PARTS))
    return f"{parts[0]}{path if path.strip('/') else ''}{'?...' if parts[2] else ''}"


def _split(text: str) -> tuple[str, str, bool] | None:
    """Origin, path, and whether something follows that; None for what is no address."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if not parts.scheme or not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else ""), parts.path, bool(parts.query or parts.fragment)


def _is_plain(part: str) -> bool:
    """Whether a part of a path is made of words, which a key is not: few letters each, such as a tongue can say."""
    if len(part) > _PART or _TOKEN_SHAPES.search(part):
        return False
    if _VERSION.fullmatch(part):
        return True
    long_words = [word for word in re.split(r"[^A-Za-z]+", part) if len(word) >= _SHORT_WORD]
    unlikely = any(_UNSPEAKABLE.search(word) or _HEX.fullmatch(word) for word in long_words)
    return _PLAIN.fullmatch(part) is not None and not unlikely


def headers(mapping: Mapping[str, str]) -> dict[str, str]:
    """HTTP headers for showing: nothing but names, and values that are harmless by the header's name."""
    return {name: _hide(value, _in_text(value)) if harmless_header(name) or not value else HIDDEN for name, value in mapping.items()}


def env(mapping: Mapping[str, str]) -> dict[str, str]:
    """An environment for showing."""
    return _named(mapping)


def argv(sequence: Sequence[str]) -> list[str]:
    """A command line for showing: options, assignments, headers, URLs and tokens without their credentials."""
    return [_hide(text, spans) for text, spans in _scan(sequence)]


def credentials(sequence: Sequence[str]) -> set[str]:
    """The credentials that `argv` would hide."""
    return {text[start:end] for text, spans in _scan(sequence) for start, end in spans}


def url_credentials(text: str) -> set[str]:
    """Userinfo and secret-looking query values of the URLs in `text`, as written and decoded."""
    found = {text[start:end] for start, end in _in_urls(text)}
    return found | {unquote(value) for value in found}


def _named(mapping: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if value and looks_secret(name) else _hide(value, _in_text(value)) for name, value in mapping.items()}


def _scan(sequence: Sequence[str]) -> list[tuple[str, _Spans]]:
    found: list[tuple[str, _Spans]] = []
    after_option = False
    # `-pPASSWORD` is how database clients take it; beside a `-uUSER` it is no `-port`.
    like_database = any(_SHORT_USER.match(text) for text in sequence)
    for text in sequence:
        if after_option and not text.startswith("--"):
            found.append((text, [(0, len(text))]))
            after_option = False
            continue
        short = _SHORT_PASSWORD.match(text) if like_database else None
        option = None if short else _OPTION.match(text)
        after_option = option is not None and looks_secret(option[1])
        found.append((text, [short.span(1)] if short else _in_text(text)))
    return found


def _in_text(text: str) -> _Spans:
    """Where credentials seem to be in a piece of free text."""
    spans = _in_urls(text)
    spans += [match.span(1) for match in _SCHEME_AND_TOKEN.finditer(text)]
    spans += [match.span() for match in _TOKEN_SHAPES.finditer(text)]
    for match in _ASSIGNMENT.finditer(text):
        if looks_secret(match[1]):
            spans += [match.span(group) for group in (2, 3, 4) if match[group]]
    spans += [match.span(2) for match in _OPTION_IN_SCRIPT.finditer(text) if looks_secret(match[1])]
    header = _HEADER_LINE.match(text)
    if header and looks_secret(header[1]):
        spans.append(header.span(2))
    return spans


def _in_urls(text: str) -> _Spans:
    spans: _Spans = []
    for match in _URL.finditer(text):
        begin = match.start() + match[0].index("://") + 3
        rest = match[0][begin - match.start() :]
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
        userinfo, at, _ = authority.rpartition("@")
        if at:
            user, colon, _ = userinfo.partition(":")
            spans.append((begin + (len(user) + 1 if colon else 0), begin + len(userinfo)))
        query = rest.find("?")
        if query >= 0:
            for pair in _QUERY_VALUE.finditer(rest, query + 1):
                if looks_secret(unquote(pair[1])):
                    spans.append((begin + pair.start(2), begin + pair.end(2)))
    return [span for span in spans if span[0] < span[1]]


def _without(text: str, forms: Iterable[str]) -> str:
    return _hide(text, [span for form in forms for span in _coats.covered(text, form)])


def _hide(text: str, spans: _Spans) -> str:
    """Spans may touch and overlap: what two of them cover together becomes one."""
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            if start > done or not pieces:
                pieces.append(text[done:start])
                pieces.append(HIDDEN)
            done = end
        else:
            done = max(done, end)
    return "".join(pieces) + text[done:]
