"""A server's raw answers -> what a model is shown.

`tool_result`, `resource_result` and `prompt_result` are pure: raw JSON of any protocol version in, text and bytes out, never
an exception. `settle` then puts the bytes into files and keeps the text within its budget. `_meta` and `resultType` are the
protocol's business and are never shown. URIs are names that only their server understands: nothing here opens one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

from toolbay import _media
from toolbay._lenient import as_object
from toolbay._redact import redacted
from toolbay._text import clean, excerpt, line
from toolbay._weight import HEAVY, aside, heavy
from toolbay.types import Artifact, ArtifactStore, Json, ToolResult
from toolbay.upstream.blocks import Blob, Parts, Unreadable
from toolbay.upstream.structured import as_text, repeats

__all__ = ["Blob", "Rendered", "prompt_result", "resource_result", "settle", "tool_result"]

MAX_PIXELS = 50_000_000
"""Pixels of a picture that is kept. 194 kB of PNG can claim 1.6 billion, and whoever shows it must pay for them."""
_MAX_PROBLEMS = 5

Safe: TypeAlias = Callable[[str], str]
"""Text without the secrets in it."""


class Rendered(NamedTuple):
    """An answer, ready to be shown. The text among `parts` is clean; `structured` is the server's, as it came."""

    parts: tuple[str | Blob, ...]
    is_error: bool
    structured: Any


def tool_result(result: Json, *, output_problems: tuple[str, ...] = (), safe: Safe = str) -> Rendered:
    """The result of `tools/call`, as on the wire. `output_problems` is how it departs from the tool's `outputSchema`.

    `safe` masks what is cut to a length already here; the rest is masked by `settle`.
    """
    result = _unwrapped(result)
    parts = Parts(safe)
    content = _listed(result.get("content"))
    for block in content:
        parts.block(block)
    structured = result.get("structuredContent")
    if structured is not None and not _empty(structured, parts) and not repeats(structured, content):
        _add_structured(structured, parts)
    if output_problems:
        shown = "; ".join(line(problem, 300) for problem in output_problems[:_MAX_PROBLEMS])
        more = f"; and {len(output_problems) - _MAX_PROBLEMS} more" if len(output_problems) > _MAX_PROBLEMS else ""
        parts.note(f"this result does not match the tool's output schema: {shown}{more}")
    return Rendered(parts.finished(), result.get("isError") is True, structured)


def resource_result(result: Json, uri: str, *, safe: Safe = str) -> Rendered:
    """The result of `resources/read` for `uri`. An answer without `contents` is an error."""
    contents = as_object(result).get("contents")
    parts = Parts(safe)
    if not isinstance(contents, list):
        parts.note(f"the server's answer for {parts.said(uri, 500)} holds no contents")
        return Rendered(parts.finished(), is_error=True, structured=None)
    for content in cast("list[Any]", contents):
        try:
            parts.contents(content, of=uri)
        except Unreadable as problem:
            parts.note(f"a piece of this resource could not be read: {problem}")
    return Rendered(parts.finished(), as_object(result).get("isError") is True, None)


def prompt_result(result: Json, *, safe: Safe = str) -> Rendered:
    """The result of `prompts/get`: each message under its role, but for one that is the user's own and the only one.

    An answer without `messages` is an error.
    """
    messages = as_object(result).get("messages")
    parts = Parts(safe)
    if not isinstance(messages, list):
        parts.note("the server's answer holds no messages")
        return Rendered(parts.finished(), is_error=True, structured=None)
    listed = cast("list[Any]", messages)
    alone = len(listed) == 1 and as_object(listed[0]).get("role") == "user"
    for message in listed:
        _add_message(message, parts, Parts(safe), named=not alone)
    return Rendered(parts.finished(), as_object(result).get("isError") is True, None)


async def settle(rendered: Rendered, store: ArtifactStore, *, budget: int, safe: Safe = str) -> ToolResult:
    """Put the files of `rendered` into `store`, and the whole text too where it has more than `budget` characters.

    `safe` masks secrets: before anything is stored or shortened, for what is cut off in the middle of a secret is no longer
    found. A file that cannot be stored becomes a line that says so and makes the result an error; all the rest stays.
    """
    lines: list[str] = []
    artifacts: list[Artifact] = []
    failed = False
    for part in rendered.parts:
        if isinstance(part, str):
            lines.append(await aside(safe, part) if len(part) > HEAVY else safe(part))
            continue
        blob = await aside(_masked, part, safe, when=len(part.data) > HEAVY)
        try:
            notice, artifact = await _keep(blob, store)
        except OSError as problem:
            failed = True
            lines.append(safe(f"[{_described(blob)} could not be saved: {_reason(problem)}; the call itself went through]"))
        else:
            lines.append(safe(notice))
            artifacts += artifact
    text = "\n".join(lines) if any(shown.strip() for shown in lines) else "(no output)"
    if len(text) > budget:
        try:
            whole = await store.save(await aside(_encoded, text, when=len(text) > HEAVY), media_type="text/plain")
        except OSError as problem:
            failed = True
            notice = f"\n[the whole result could not be saved: {_reason(problem)}; the call itself went through]"
            text = await aside(excerpt, text, budget - len(notice), when=len(text) > HEAVY) + notice
        else:
            artifacts.append(whole)
            text = _shortened(text, whole.name, budget)
    structured = rendered.structured
    if structured is not None:
        structured = await aside(_safe_structure, structured, safe, when=heavy(structured))
    return ToolResult(text=text, is_error=rendered.is_error or failed, artifacts=tuple(artifacts), structured=structured)


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _masked(blob: Blob, safe: Safe) -> Blob:
    """A file that is text is masked like all text; in other files nothing is looked for."""
    text = _media.decoded(blob.data)
    if text is None or (masked := safe(text)) == text:
        return blob
    return replace(blob, data=masked.encode())


def _safe_structure(structured: Any, safe: Safe) -> Any:
    try:
        return redacted(structured, safe)
    except RecursionError:
        return None  # nested too deeply to be of use to anybody


def _unwrapped(result: Any) -> Json:
    """The result itself: servers from before the first release of the protocol put it into `toolResult`."""
    fields = as_object(result)
    inner = fields.get("toolResult")
    if inner is None or "content" in fields or "structuredContent" in fields:
        return fields
    if isinstance(inner, dict) and "content" in inner:
        return {"isError": fields.get("isError"), **cast("Json", inner)}
    return {"content": [], "structuredContent": inner, "isError": fields.get("isError")}


def _listed(content: Any) -> list[Any]:
    """The content blocks. Some servers give a bare text or a single block instead of a list."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return cast("list[Any]", content) if isinstance(content, list) else [content]


def _empty(structured: Any, parts: Parts) -> bool:
    """An empty structure adds nothing to content."""
    return structured in ({}, []) and bool(parts.parts)


def _add_structured(structured: Any, parts: Parts) -> None:
    try:
        parts.text(as_text(structured))
    except ValueError as problem:
        parts.note(f"the structured content of this result could not be read: {problem}")


def _add_message(message: Any, parts: Parts, inner: Parts, *, named: bool) -> None:
    fields = as_object(message)
    for block in _listed(fields.get("content")):
        inner.block(block)
    if not named:
        parts.parts += inner.finished()
        return
    role = inner.said(fields.get("role"), 40) or "unknown"
    first, *rest = inner.finished()
    parts.parts += [f"{role}: {first}", *rest] if isinstance(first, str) else [f"{role}:", first, *rest]


async def _keep(blob: Blob, store: ArtifactStore) -> tuple[str, list[Artifact]]:
    """Store one file; the line that tells the model, and the artifact if there is one."""
    pixels = _media.dimensions(blob.data)
    if pixels and pixels[0] * pixels[1] > MAX_PIXELS:
        return f"[{_described(blob)} was not saved: {pixels[0]}x{pixels[1]} pixels are more than {MAX_PIXELS:,}]", []
    artifact = await store.save(blob.data, media_type=blob.media_type)
    shape = f", {pixels[0]}x{pixels[1]}" if pixels else ""
    family = artifact.media_type.partition("/")[0]
    word = family if family in {"image", "audio", "video"} else "file"
    of = f" of {blob.label}" if "://" in blob.label else ""
    return clean(f"[{word}{of} saved: {artifact.path} ({artifact.media_type}{shape}, {_media.size(artifact.size)})]"), [artifact]


def _described(blob: Blob) -> str:
    return f"{line(blob.label, 500)} ({_media.media_type(blob.data)}, {_media.size(len(blob.data))})"


def _reason(problem: OSError) -> str:
    return line(problem.strerror or str(problem) or "the disk refused it", 160)


def _shortened(text: str, name: str, budget: int) -> str:
    """Head and tail of `text` with a notice between them, in at most `budget` characters where the notice fits."""

    count = text.count("\n") + 1
    lines = f" ({count:,} lines)" if count > 1 else ""

    def notice(left: int, head: int) -> str:
        return clean(
            f"\n[… {left:,} of {len(text):,} characters{lines} are left out here. The whole result is "
            f'saved: read on with the tool read_artifact, name="{name}", offset={head} (length and search are optional) …]\n'
        )

    room = max(budget - len(notice(len(text), len(text))), 0)
    tail = room // 3
    head = room - tail
    return text[:head] + notice(len(text) - room, head) + text[len(text) - tail :]
