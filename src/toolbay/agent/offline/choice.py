"""Which tool a step of a request is for: BM25 proposes, then what the words cover and how the arguments fit decide.

A tool that only reads goes before one that writes; one that writes is taken only where the request says so with a verb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from toolbay.agent.offline.draft import Filled
from toolbay.agent.offline.places import is_file
from toolbay.agent.offline.slots import fill
from toolbay.agent.offline.words import Request, Sort
from toolbay.agent.offline.zones import zones
from toolbay.search import Index
from toolbay.search.words import CJK, Term, fold, stem, terms, words
from toolbay.types import Hints, Tool

ENOUGH = 0.38
"""Below this score nothing fits."""
SURE = 0.55
"""What a tool that may destroy something must reach."""
PROPOSED = 30

_VERBS = """
delete remove erase drop wipe clear purge unset discard losche loschen supprime efface borra elimina 删除 删掉 删 清空 移除 削除
write save store put overwrite write_file schreibe speichere ecris enregistre escribe guarda 写入 写 保存 存
create make new add build generate erstelle cree crea anade 新建 创建 建立 添加 新增 生成
edit replace change modify update set fix insert append patch ersetze andere modifie remplace cambia 修改 替换 更新 改成 编辑
move rename relocate verschiebe deplace mueve 移动 重命名 改名
copy duplicate clone kopiere copie copia 复制
send post publish reply forward sende envoie envia 发送 发布 回复 发
commit 提交
stage add 暂存
reset unstage revert undo rollback 重置 撤销 回滚
checkout switch change 切换
push merge pull rebase stash 推送 合并
run execute start launch invoke trigger fuhre lance ejecuta 运行 执行 启动
stop kill cancel terminate abort 停止 取消
remember note record log jot create add 记住 记录 记下
close open lock unlock enable disable mute archive assign
convert transform export 转换 转成 转为
think reason
"""
_GROUPS: dict[str, frozenset[int]] = {}
for _at, _line in enumerate(_VERBS.strip().splitlines()):
    for _word in _line.split():
        _GROUPS[_word] = _GROUPS.get(_word, frozenset()) | {_at}
_LOUD = frozenset[int]().union(
    *(_GROUPS[word] for word in ("delete", "save", "replace", "rename", "send", "commit", "reset", "push", "kill", "remember"))
)
"""Actions that a tool which only reads cannot mean."""
_HARMLESS = _GROUPS["convert"] | _GROUPS["think"] | _GROUPS["remember"]
_NATIVE = sorted((word for word in _GROUPS if not word.isascii()), key=lambda word: (-len(word), word))
_POLITE_WORDS = """
please can could would will you i we want need like to just now then and also kindly lets let us me help bitte kannst du puedes
"""
_POLITE = frozenset(_POLITE_WORDS.split())


@dataclass(frozen=True, slots=True)
class Choice:
    """A tool for a step, its arguments, and how well it fits (0 to about 1)."""

    tool: Tool
    filled: Filled
    score: float


_OF_FILES = re.compile(
    r"\b(?:files?|folders?|director(?:y|ies)|repo(?:sitory)?|git|dateien|fichiers|archivos)\b|文件|目录|ファイル", re.IGNORECASE
)
"""Words that make it natural to mean this folder where none is named."""


_WRITTEN = re.compile(r"写(?:了|着|的是|的|有)(?:些|一些)?(?:什么|啥|哪些)|書いて(?:ある|あります)")
"""Asks what is written somewhere, though the word for writing is in it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, the words it is looked up by, and the kinds of action that it demands."""

    request: Request
    wanted: Sequence[Term]
    verbs: frozenset[int]


def choose(request: Request, index: Index, remembered: Mapping[str, Any]) -> list[Choice]:
    """The tools of `index` that come into question, best first; those that are not `is_enough` are only near."""
    asked = _Asked(request, _wanted(request), asked_verbs(request))
    query = " ".join([request.text, *(term.word for term in asked.wanted), *joined(request.rest)])
    found = index.search(query, PROPOSED)
    choices = [_judged(tool, score / found[0][1], asked, fill(tool, request, remembered)) for tool, score in found]
    return sorted(choices, key=lambda choice: (-round(choice.score, 4), not choice.tool.hints.read_only, choice.tool.name))


def is_enough(choice: Choice) -> bool:
    """Whether the tool may be called, or a question be asked for it."""
    return choice.score + 0.15 * len(choice.filled.missing) >= (SURE if writes(choice.tool) and choice.tool.hints.destructive else ENOUGH)


def writes(tool: Tool) -> bool:
    """Whether a tool changes something: its own word, or where it says nothing at all, the verbs of its name."""
    if tool.hints.read_only:
        return False
    if tool.hints != Hints():
        return True
    return bool(_tool_verbs(tool, with_description=False) - _HARMLESS)


def asked_verbs(request: Request) -> frozenset[int]:
    """The kinds of action that a request demands. In English a demand stands first, or after `to` or `and`."""
    groups: set[int] = set()
    said = [fold(word) for word in re.findall(rf"[^\W{CJK}]+", request.rest)]
    if len(said) > 1:
        groups |= _GROUPS.get(said[0] + said[1], frozenset())
    expected = True
    for word in said:
        if expected and word in _GROUPS:
            groups |= _GROUPS[word]
        if word not in _POLITE or word in {"to", "and", "then"}:
            expected = word in {"to", "and", "then"}
    rest = _WRITTEN.sub(" ", request.rest)
    for word in _NATIVE:
        if word in rest:
            groups |= _GROUPS[word]
            rest = rest.replace(word, " ")
    return frozenset(groups)


def _tool_verbs(tool: Tool, *, with_description: bool = True) -> frozenset[int]:
    said = f"{tool.wire_name or tool.name} {tool.title}"
    if with_description:
        said += " " + re.split(r"[.\n]", tool.description, maxsplit=1)[0]
    groups: frozenset[int] = frozenset()
    for word in words(said):
        if word.endswith("ed"):  # a state (staged, deleted), no action
            continue
        groups |= _GROUPS.get(word, frozenset()) | _GROUPS.get(stem(word), frozenset()) | _GROUPS.get(stem(word) + "e", frozenset())
    return groups


def _wanted(request: Request) -> list[Term]:
    """The request's words without its values, and a word for what each value is."""
    wanted = terms(_WRITTEN.sub("内容", request.rest))
    for piece in request.pieces:
        wanted.extend(_VALUES.get(piece.sort, ()))
        if piece.sort is Sort.PATH:
            wanted.extend(_about_path(piece.value))
    if re.search(
        r"\b(?:what|which)\b.{0,200}\b(?:are|exist|there|have)\b|\bwhat(?:'s| is) (?:in|inside|under)\b", request.rest, re.IGNORECASE
    ):
        wanted.append(Term("list", 0.5))
    if len(request.of(Sort.NUMBER)) > 1:
        wanted.append(Term("numbers", 0.5))
    unwanted = re.search(r"\bnot\s+(?:yet\s+)?([a-z]{4,})", request.rest, re.IGNORECASE)
    if unwanted is not None:
        plain = stem(fold(unwanted[1]))
        wanted = [term for term in wanted if stem(term.word) != plain] + [Term(f"un{plain}", 1.0), Term(plain, 0.2)]
    return wanted


def _about_path(path: str) -> list[Term]:
    """What the end of a path says of it."""
    ending = re.search(r"\.([A-Za-z][A-Za-z0-9]*)$", path)
    if ending is None:
        return [Term("path", 0.3, (("directory", 0.9), ("repository", 0.9), ("repo", 0.9))), Term("text", 0.1)]
    kinds = next((kinds for endings, kinds in _ENDINGS.items() if ending[1].casefold() in endings.split()), ())
    about = [Term("file", 0.6, (("document", 0.5), ("path", 0.5)))]
    if kinds:
        about.append(Term(kinds[0], 0.15 if kinds[0] == "text" else 0.4, tuple((kind, 1.0) for kind in (*kinds[1:], ending[1].casefold()))))
    return about


_VALUES = {
    Sort.URL: (Term("url", 0.6, (("fetch", 0.6), ("web", 0.6), ("uri", 0.9))),),
    Sort.DOMAIN: (Term("url", 0.4, (("fetch", 0.6), ("web", 0.6), ("uri", 0.9))),),
    Sort.GLOB: (Term("search", 0.6, (("pattern", 0.8), ("find", 0.8))),),
}
_ENDINGS = {
    "png jpg jpeg gif webp bmp svg tif tiff": ("image", "media"),
    "mp3 wav ogg flac m4a": ("audio", "media"),
    "mp4 mov avi mkv webm": ("video", "media"),
    "pdf": ("pdf",),
    "doc docx odt": ("word", "document"),
    "xls xlsx ods": ("spreadsheet", "excel"),
    "ppt pptx odp": ("presentation", "powerpoint"),
    "db sqlite sqlite3": ("database", "sqlite"),
    "md markdown txt text log csv tsv json jsonl yaml yml toml ini cfg conf xml html htm css env": ("text",),
    "py js ts jsx tsx go rs java c h cpp sh sql rb php": ("text",),
}


def _judged(tool: Tool, rank: float, asked: _Asked, filled: Filled) -> Choice:
    covered = _covered(tool, asked, filled)
    score = 0.6 * covered + 0.2 * rank + _fit(tool, asked.request, filled)
    if filled.guessed and not _OF_FILES.search(asked.request.rest):
        score -= 0.12 if covered >= 0.6 else 0.32
    if re.search(r"\bdeprecated\b", tool.description, re.IGNORECASE):
        score -= 0.15
    mine = _tool_verbs(tool, with_description=writes(tool))
    if writes(tool):
        by_name = asked.verbs & _tool_verbs(tool, with_description=False)
        score = score + 0.1 if by_name else score - (0.1 if asked.verbs & mine else 0.6)
    elif asked.verbs & _LOUD and not asked.verbs & mine:
        score -= 0.5
    return Choice(tool, filled, score)


def _covered(tool: Tool, asked: _Asked, filled: Filled) -> float:
    """How much of what was said the tool's words answer; words that became an argument need no answer."""
    own = {stem(word) for word in words(tool.wire_name or tool.name)}
    names = own | {stem(word) for word in words(f"{tool.title} {tool.server}")}
    told = {stem(word) for word in words(tool.description[:800])}
    taken = {word for start, end in filled.used for word in words(asked.request.text[start:end])}
    got = total = 0.0
    answered = 0
    heard: set[str] = set()
    for term in asked.wanted:
        marks = [(stem(word), weight) for word, weight in ((term.word, 1.0), *term.others)]
        heard.update(mark for mark, _ in marks)
        hits = sorted((weight * (1.0 if mark in names else 0.5 if mark in told else 0.0) for mark, weight in marks), reverse=True)
        best = min(1.0, hits[0] + 0.2 * (hits[1] if len(hits) > 1 else 0.0))
        if best == 0.0 and (term.word in taken or _is_pair(term.word, taken)):
            continue
        got += best * term.weight
        total += term.weight
        if term.weight == 1.0:
            answered += 1 if best > 0.2 else -1
    one = {stem(word) for word in joined(asked.request.rest)}
    heard |= one
    if one & own:
        got, total = got + 1.0, total + 1.0
    precision = len({word for word in own if word in heard or len(word) < 3}) / max(1, len(own))
    covered = min(1.0, 1.3 * got / total) + 0.15 * (precision - 0.5) if total else 0.0
    return covered * 0.6 if answered < 0 and not filled.used else covered


def joined(text: str) -> set[str]:
    """Neighbouring words as one: "check out" is `checkout`."""
    said = [fold(word) for word in re.findall(r"[A-Za-z]+", text)]
    return {one + two for one, two in pairwise(said)}


def _is_pair(word: str, taken: set[str]) -> bool:
    return bool(re.fullmatch(f"[{CJK}]+", word)) and any(char in one for one in taken for char in word)


def _fit(tool: Tool, request: Request, filled: Filled) -> float:
    """What the request's values say: those used speak for the tool, those left over and those missing against it."""
    left = [
        piece
        for piece in request.of(Sort.URL, Sort.PATH, Sort.GLOB, Sort.PAIR, Sort.TIME, Sort.NUMBER, Sort.IDENTIFIER)
        if not any(start <= piece.start and piece.end <= end for start, end in filled.used)
    ]
    folders = {"directory", "folder"} & set(words(tool.wire_name or tool.name))
    misplaced = folders and any(is_file(piece.value) for piece in request.of(Sort.PATH))
    alone = sum(isinstance(value, list) and len(cast("list[Any]", value)) == 1 for value in filled.arguments.values())
    used = len(filled.used) > 0 or bool(zones(request.text) and filled.arguments)
    whole = 0.05 if used and not left and not filled.missing else 0.0
    return 0.2 * used + whole - (0.15 if misplaced else 0.0) - 0.15 * len(left) - 0.2 * len(filled.missing) - 0.03 * alone
