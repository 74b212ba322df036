"""Text into words that can be matched: identifiers are split, Chinese and Japanese become pairs of characters.

A request becomes terms: each word counts once, by itself or by the best of the words that stand for the same thing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from toolbay.search.thesaurus import PHRASES, STOP, SYNONYMS

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
URL = re.compile(rf"https?://[^\s<>\"'{CJK}\u3000-\u303f\uff01-\uff5e]+", re.IGNORECASE)
FILE = re.compile(
    r"(?<![\w@+/\\-])(?:~|\.{1,2})?(?:[\w.@+-]*[/\\])*[\w@+-][\w.@+-]*\.([A-Za-z][A-Za-z0-9]{0,7})\b|(?<!\w)(?:~|\.{1,2})?/[\w.@+/-]+",
    re.ASCII,
)
QUOTED = re.compile(
    r"\"([^\"]*)\"|“([^”]*)”|„([^“”]*)[“”]|«([^»]*)»|「([^」]*)」|『([^』]*)』|`([^`]*)`"
    r"|(?<!\w)'([^']*)'(?!\w)|\u2018([^\u2019]*)\u2019(?!\w)"
)
_PIECE = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+", re.UNICODE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_IS_CJK = re.compile(rf"[{CJK}]")


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a request, `weight` of it, and what else may stand for it, each with a weight of its own."""

    word: str
    weight: float = 1.0
    others: tuple[tuple[str, float], ...] = ()


def fold(text: str) -> str:
    """Lower case, compatibility forms unified, Latin accents off."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if text.isascii():
        return text
    split = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", re.sub(r"(?<=[a-z])[\u0300-\u036f]+", "", split))


def words(text: str) -> Iterator[str]:
    """The words of `text`, folded: `readTextFile` gives read, text, file; a run of Chinese its pairs of characters."""
    for piece in _PIECE.findall(unicodedata.normalize("NFKC", text)):
        if _IS_CJK.match(piece):
            yield from pairs(piece)
            continue
        parts = [part for part in _HUMP.split(piece) if part]
        yield from (fold(part) for part in parts)
        if len(parts) > 1:
            yield fold(piece)


def pairs(run: str) -> Iterator[str]:
    """Neighbouring characters of a run without spaces; a single character stands alone."""
    if len(run) == 1:
        yield run
    yield from (run[at : at + 2] for at in range(len(run) - 1))


def stem(word: str) -> str:
    """A word without its commonest English endings: for exact matches of our own, not for the index (which has its own)."""
    for end, least, instead in (("ies", 5, "y"), ("sses", 6, "ss"), ("ing", 6, ""), ("ed", 5, ""), ("es", 5, ""), ("s", 4, "")):
        if word.endswith(end) and len(word) >= least and not word.endswith(("ss", "us", "is")):
            cut = word[: -len(end)] + instead
            return (
                cut[:-1] if len(cut) > 3 and end in {"ing", "ed"} and cut[-1] == cut[-2] and cut[-1] not in "ls" else cut.removesuffix("e")
            )
    return word.removesuffix("e") if len(word) > 3 else word


def terms(query: str) -> list[Term]:
    """What to look for. Addresses and files count as what they are, what stands in quotes counts little."""
    found: dict[str, Term] = {}

    def add(word: str, weight: float) -> None:
        if word in STOP or word.isdigit() or len(word) > 40:
            return
        if word not in found or found[word].weight < weight:
            found[word] = Term(word, weight, tuple(SYNONYMS.get(word, SYNONYMS.get(stem(word), {})).items()))

    text = query[:4_000]
    if URL.search(text):
        add("url", 0.7)
        text = URL.sub(" ", text)
    for match in FILE.finditer(text):
        add("file", 0.7)
        if match[1]:
            add(match[1].casefold(), 0.7)
    text = FILE.sub(" ", text)
    for match in QUOTED.finditer(text):
        for word in words(match[0]):
            add(word, 0.25)
    text = QUOTED.sub(" ", text)
    for phrase, stands_for in _phrases(fold(text)):
        found[phrase] = Term(phrase, 1.0, tuple(stands_for.items()))
    for word in words(text):
        add(word, 0.5 if _IS_CJK.match(word) else 1.0)
    return list(found.values())


def _phrases(text: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Known phrases of several words, or of a script without spaces, longest first; none inside another."""
    for phrase, stands_for in PHRASES.items():
        if phrase not in text:
            continue
        if _IS_CJK.match(phrase):
            text = text.replace(phrase, " ")
            yield phrase, stands_for
        elif re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text):
            yield phrase, stands_for
