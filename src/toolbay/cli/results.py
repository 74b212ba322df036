"""What a call, a prompt or a resource came to, as a person or a program wants it: whole, where nobody's patience is the limit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from toolbay._redact import mask
from toolbay.cli.invocation import code_of, leaves, sentence
from toolbay.errors import ToolbayError
from toolbay.types import Outcome, for_people, outcome_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from toolbay.cli.terminal import Terminal
    from toolbay.config.models import Config
    from toolbay.types import Artifact, Json, ToolResult

_SHOWN: Final = 4_000
"""Characters of a long result on a terminal: about a screen or two."""


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How a result is given. `full`: whole on a terminal too."""

    as_json: bool = False
    full: bool = False


async def give_result(terminal: Terminal, result: ToolResult, config: Config, how: Presentation) -> None:
    """A result to stdout; where it is an error and no JSON is wanted, to stderr.

    Models are shown a part of what is long, and how to read on. A file or a pipe gets the whole, a terminal the place of it.
    """
    text = await _text(result, config, whole=how.full or not sys.stdout.isatty())
    if result.is_error:
        text = for_people(text)
    if how.as_json:
        files = [{"path": str(item.path), "media_type": item.media_type, "size": item.size} for item in result.artifacts]
        told: dict[str, Any] = {"text": text, "is_error": result.is_error, "outcome": result.outcome}
        if result.is_error:
            told["error"] = text
        terminal.json({**told, "structured": result.structured, "artifacts": files})
    elif result.is_error:
        terminal.error(text)
    else:
        terminal.write(text)


def no_result(text: str, outcome: str = "not_executed") -> Json:
    """What is told as JSON where there is no result: the same shape, with why."""
    return {"text": text, "is_error": True, "outcome": outcome, "error": text, "structured": None, "artifacts": []}


async def in_one_shape(terminal: Terminal, how: Presentation, job: Callable[[], Awaitable[int]]) -> int:
    """The exit code of `job`; where JSON is wanted, what it raises is told as the result that it did not come to."""
    try:
        return await job()
    except (ToolbayError, ExceptionGroup) as error:
        told = list(leaves(error))
        ours = [leaf for leaf in told if isinstance(leaf, ToolbayError)]
        if not how.as_json or len(ours) != len(told):
            raise
        outcomes = {outcome_of(leaf) for leaf in ours}
        text = "\n".join(sentence(leaf) for leaf in ours)
        terminal.error(text)
        terminal.json(no_result(text, outcomes.pop() if len(outcomes) == 1 else Outcome.UNKNOWN))
        return code_of(told)


async def _text(result: ToolResult, config: Config, *, whole: bool) -> str:
    import anyio.to_thread  # noqa: PLC0415  (help needs none of it)

    file = saved_whole(result)
    if file is None:
        return result.text
    try:
        data = await anyio.to_thread.run_sync(file.path.read_bytes)
    except OSError:  # an old file may be gone already; what the model is shown is still there
        return result.text
    text = mask(data.decode(errors="replace"), config.secrets)
    if whole or len(text) <= _SHOWN:
        return text
    head, tail = _SHOWN - _SHOWN // 3, _SHOWN // 3
    left = f"{len(text) - head - tail:,} of {len(text):,} characters are left out here"
    return f"{text[:head]}\n[… {left}; the whole text is in {file.path} (--full shows it) …]\n{text[-tail:]}"


def saved_whole(result: ToolResult) -> Artifact | None:
    """The file that holds the whole text of a result of which models are shown a part; it is the last one that was saved."""
    last = result.artifacts[-1] if result.artifacts else None
    # The name is ours and made up at random: a server cannot have written it.
    return last if last is not None and f'read_artifact, name="{last.name}"' in result.text else None
