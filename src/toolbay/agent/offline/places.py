"""Where something is: time zones, addresses, paths, folders and patterns of names."""

from __future__ import annotations

import re

from toolbay.agent.offline.draft import FOLDERS, PATHS, SOURCES, TARGETS, Draft
from toolbay.agent.offline.values import Param, phrase_after
from toolbay.agent.offline.words import LEADING, Piece, Sort
from toolbay.agent.offline.zones import zones
from toolbay.search.thesaurus import STOP
from toolbay.search.words import fold, stem, words


def zone(draft: Draft, param: Param) -> str | None:
    """The zone of a place in the request; of two, the one that `from` or `to` stands before, else the first and the last."""
    left = [one for one in zones(draft.request.text) if (one[1], one[2]) not in draft.filled.used]
    leading = [one for one in left if re.search(r"\b(?:to|into)\s*$", draft.request.text[: one[1]], re.IGNORECASE)]
    if param.words & TARGETS:
        left = leading[-1:] or left[-1:]
    elif param.words & SOURCES:
        left = [one for one in left if one not in leading]
    if not left:
        return None
    draft.filled.used.append((left[0][1], left[0][2]))
    return left[0][0]


def url(draft: Draft, param: Param) -> str | None:
    found = draft.first(Sort.URL)
    if found is None:
        domain = draft.first(Sort.DOMAIN)
        found = None if domain is None else f"https://{domain}"
    if found is None and "uri" in param.words:
        absolute = next((piece for piece in draft.free if piece.sort is Sort.PATH and piece.value.startswith("/")), None)
        found = None if absolute is None else f"file://{draft.use(absolute)}"
    return found


def path(draft: Draft, param: Param) -> str | None:
    paths = [piece for piece in draft.free if piece.sort is Sort.PATH]
    own = {stem(word) for word in param.words - PATHS - TARGETS - SOURCES}
    spoken_of = [
        piece for piece in paths if own & {stem(word) for word in words(draft.request.text[max(0, piece.start - 40) : piece.start])}
    ]
    targets = [piece for piece in paths if _leads_to(draft, piece)]
    if not param.required and spoken_of and len(draft.request.of(Sort.PATH)) > 1:
        return draft.use(spoken_of[-1])
    if param.words & TARGETS:
        # An output is where the request says "to"; otherwise the second of two paths, and never the only one.
        if targets:
            return draft.use(targets[-1])
        return draft.use(paths[-1]) if paths and param.required and len(draft.request.of(Sort.PATH)) > 1 else None
    if not param.required:
        return None
    if "repo" in param.words:
        paths = [piece for piece in paths if re.match(r"[/~.\\]|[A-Za-z]:", piece.value) or piece.value.endswith("/")]
    if paths:
        rest = [piece for piece in paths if piece not in targets] or paths
        return draft.use(min(rest, key=lambda piece: is_file(piece.value)) if param.words & FOLDERS else rest[0])
    named = _named_folder(draft) if _wants_folder(draft, param) else None
    if named is None and not param.words & FOLDERS and len(draft.request.of(Sort.QUOTED)) == 1:
        named = draft.first(Sort.QUOTED)
    return named


def is_path(draft: Draft, param: Param) -> bool:
    """By its name, or as the `source` or `destination` of a tool for files."""
    if param.words & PATHS:
        return not param.words & {"type", "format"}
    return param.words <= SOURCES | TARGETS and bool(draft.tool_words & {stem(word) for word in ("file", "directory", "folder", "path")})


def _leads_to(draft: Draft, piece: Piece) -> bool:
    return bool(
        re.search(r"(?:\b(?:to|into|as|in|nach|vers|a)|=>|->|到|成|为)\s*[\"'`]?$", draft.request.text[: piece.start], re.IGNORECASE)
    )


def _wants_folder(draft: Draft, param: Param) -> bool:
    name = {stem(word) for word in words(f"{draft.tool.wire_name or draft.tool.name} {draft.tool.title}")}
    return bool((param.words | name) & FOLDERS) or bool(name & {stem(word) for word in ("directory", "search", "find", "list")})


def _named_folder(draft: Draft) -> str | None:
    here = re.search(
        r"\bhere\b|\b(?:this|the current|current|working)\s+(?:folder|directory|dir|repo\w*)\b|当前目录|这里", draft.request.rest
    )
    if here is not None:
        draft.filled.used.append(here.span())
        return "."
    for form in _FOLDER_FORMS:
        for match in form.finditer(draft.request.rest):
            value = match[1]
            # At the end a little word such as `many` can only be a name, unless it points at something.
            is_last = not draft.request.rest[match.end() :].strip(" ?.!")
            is_known = fold(value) in (_POINTING if is_last else STOP | LEADING) | _NO_FOLDERS
            if not is_known and ((is_last and fold(value) in STOP) or stem(fold(value)) not in draft.tool_words):
                draft.filled.used.append(match.span(1))
                return value
    return None


_FOLDER = r"(?:folder|directory|dir|repo|repository)"
_FOLDER_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"\b{_FOLDER}\s+(?:named\s+|called\s+)([\w.-]+)",
        rf"\b{_FOLDER}\s+([\w.-]+)",
        rf"\b(?:in|of|under|inside|within)\s+(?:the\s+|my\s+)?([\w.-]+)\s+{_FOLDER}\b",
        r"\b(?:in|under|inside|within)\s+([\w.-]+)\s*[?.!]?$",
        r"([A-Za-z][\w.-]*)\s*(?:目录|文件夹)",
        r"(?:目录|文件夹)\s*([A-Za-z][\w.-]*)",
    )
)
_POINTING_WORDS = """
a an the my your our his her its their same it this that these those there here them they me us you all each every which what is are
please now use too full
"""
_POINTING = frozenset(_POINTING_WORDS.split())
_NO_FOLDERS = frozenset({"tree", "listing", "structure", "content", "contents", "size", "sizes", "current", "working", "detail"})


def pattern(draft: Draft, param: Param) -> str | None:
    glob = draft.first(Sort.GLOB)
    deep = "**/" if "**/" in draft.tool.description else ""
    if glob is not None:
        return glob if "/" in glob else deep + glob
    named = phrase_after(draft.request, r"(?:named|called|matching|like)", param, draft.filled.used)
    if named is not None:
        return named
    quoted = draft.first(Sort.QUOTED)
    if quoted is not None:
        return quoted
    kind = re.search(
        r"\b(pdf|md|markdown|txt|text|csv|json|ya?ml|python|py|html?|xml|png|jpe?g|docx?|xlsx?|log|toml)s?\s+files?\b",
        draft.request.rest,
        re.IGNORECASE,
    )
    if kind is None or not param.required:
        return None
    draft.filled.used.append(kind.span())
    ending = {"markdown": "md", "text": "txt", "python": "py"}.get(kind[1].casefold(), kind[1].casefold())
    return f"{deep}*.{ending}"


def assumed(draft: Draft, param: Param) -> str | None:
    """What goes without saying: the folder that was spoken of before, this folder, the time zone that the tool itself names."""
    if param.is_zone:
        named = re.search(r"[Uu]se '([\w/+-]+)' as local timezone", param.description)
        if named is None:
            return None
        draft.filled.guessed += 1
        return named[1]
    if param.kind != "string" or not param.words & PATHS or not _wants_folder(draft, param):
        return None
    if param.words & (TARGETS | SOURCES) or not (draft.tool.hints.read_only or "repo" in param.words):
        return None
    draft.filled.guessed += 1
    before = draft.remembered.get(param.name)
    return before if isinstance(before, str) and param.words & FOLDERS else "."


def is_file(path: str) -> bool:
    return "." in path.rstrip("/\\").rpartition("/")[2].strip(".") and not path.endswith(("/", "\\"))
