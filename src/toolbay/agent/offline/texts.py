"""What something is called or says: names, topics of a search, the text of a message."""

from __future__ import annotations

import re

from toolbay.agent.offline.draft import BODIES, NAMES, QUERIES, URLS, Draft
from toolbay.agent.offline.places import is_path
from toolbay.agent.offline.values import Param, phrase_after
from toolbay.agent.offline.words import LEADING, Sort
from toolbay.search.thesaurus import STOP, SYNONYMS
from toolbay.search.words import fold, stem, words

_ONLINE = re.compile(r"\b(?:on|in|from|over|using|with|via) (?:the )?(?:internet|web|google|duckduckgo)\b|\bonline\b", re.IGNORECASE)
_FOR = re.compile(r"\b(?:for|about|regarding|uber|nach|sobre|sur)\s+(?!me\b|us\b)(\S.*?)\s*[?.!]*$", re.IGNORECASE)
_FOR_NATIVE = re.compile(
    r"(?:关于|搜索一下|搜索|搜一下|查找|查询|查一下)\s*(.+?)\s*(?:的(?:信息|新闻|资料|文章|论文))?\s*[?.!\u3002\uff1f\uff01]*$"
)
_SEARCHING = frozenset({"search", "find", "look", "google", "lookup", "query", "ask", "suche", "cherche", "busca"})


def named(draft: Draft, param: Param) -> str | None:
    """A text that stands right behind its parameter's name: `branch feature/login`, `title "Plan"`."""
    if (
        param.kind != "string"
        or param.choices
        or param.is_zone
        or is_path(draft, param)
        or param.words & (URLS | {"pattern", "glob", "time"})
    ):
        return None
    found = phrase_after(draft.request, param.spoken_name, param, draft.filled.used)
    if found is not None:
        draft.free = [piece for piece in draft.free if not draft.is_used(piece)]
    return found


def text(draft: Draft, param: Param, *, many: bool) -> str | None:
    if not param.required:
        return None
    found = draft.first(Sort.QUOTED)
    if found is not None or many:
        return found
    if param.words & BODIES:
        said = phrase_after(
            draft.request,
            r"(?:saying|that says|reading|with the (?:text|content|words)|:|内容[是为])",
            param,
            draft.filled.used,
            to_end=True,
        )
        if said is not None:
            return said
    if param.words & QUERIES:
        return _topic(draft)
    if "type" not in param.words and param.words & (NAMES | {"revision", "commit", "ref", "target"}):
        found = draft.first(Sort.IDENTIFIER) or (draft.first(Sort.PATH) if param.words & {"branch"} else None)
        return found or _capitals(draft) or _leftover(draft)
    return None


def _topic(draft: Draft) -> str | None:
    """What a search is for: after `for` or `about`, else what is left when the tool's own words are gone."""
    rest = re.sub(_ONLINE, lambda match: " " * len(match[0]), draft.request.text)
    marked = _FOR.search(rest) or _FOR_NATIVE.search(rest)
    if marked is None:
        kept = list(re.finditer(r"[\w'-]+", re.sub(_ONLINE, lambda match: " " * len(match[0]), draft.request.rest)))
        is_search = False
        while kept and (fold(kept[0][0]) in LEADING or stem(fold(kept[0][0])) in draft.tool_words):
            is_search = fold(kept.pop(0)[0]) in _SEARCHING or is_search
        if not kept or not is_search:
            return None
        start, end = kept[0].start(), kept[-1].end()
    else:
        start, end = marked.span(1)
    inside = [piece for piece in draft.request.pieces if start <= piece.start < end]
    if any(piece.sort in {Sort.URL, Sort.PATH, Sort.PAIR} for piece in inside):
        return None
    draft.free = [piece for piece in draft.free if piece not in inside]
    draft.filled.used.append((start, end))
    return draft.request.text[start:end].strip()


def _capitals(draft: Draft) -> str | None:
    """A proper name: words with capitals that do not begin the sentence."""
    for match in re.finditer(r"(?<=[a-z,] )[A-Z][\w-]*(?: [A-Z][\w-]*)*", draft.request.rest):
        if not any(start <= match.start() < end for start, end in draft.filled.used) and stem(fold(match[0])) not in draft.tool_words:
            draft.filled.used.append(match.span())
            return match[0]
    return None


def _leftover(draft: Draft) -> str | None:
    """The one word that neither the tool nor the language accounts for: `main` in "check out main"."""
    own = {stem(word) for word in words(draft.tool.wire_name or draft.tool.name)} - {stem(word) for word in words(draft.tool.server)}
    found = list(re.finditer(r"[A-Za-z][\w-]*", draft.request.rest))
    for at, match in enumerate(found[1:], start=1):
        before = [
            fold(one[0]) for one in found[:at] if fold(one[0]) not in {"against", "between", "from", "the", "a", "to", "versus", "vs"}
        ][-2:]
        one, two = before[-1] if before else "", "".join(before)
        is_free = not any(start <= match.start() < end for start, end in draft.filled.used)
        is_new = stem(fold(match[0])) not in draft.tool_words and fold(match[0]) not in STOP | LEADING | SYNONYMS.keys()
        if is_free and is_new and (stem(one) in own or stem(two) in own):
            draft.filled.used.append(match.span())
            return match[0]
    return None
