"""Why a server could not be brought up, as one of our errors with one sentence: what happened, to whom, why, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from toolbay._redact import trace
from toolbay._text import clean, duration, excerpt, line
from toolbay.config.models import ServerConfig, TransportType
from toolbay.errors import (
    CallError,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    HandshakeFailed,
    LaunchFailed,
    ToolbayError,
)
from toolbay.upstream.engine import Diagnostics

_FOR_GOOD = frozenset({-32600, -32601, -32602, -32022})
"""Codes of answers that the same request will always get: invalid, unknown, wrong parameters, no version in common."""

_log = logging.getLogger("toolbay.upstream")


def explain(
    name: str,
    config: ServerConfig,
    failure: BaseException | None,
    diagnostics: Diagnostics,
    *,
    timed_out: bool,
    safe: Callable[[str], str],
) -> ToolbayError:
    """The error that people are shown. `safe` masks secrets; its kind is kept, since it decides what follows."""
    cause = _ours(failure)
    if timed_out:
        said = _said(diagnostics, safe)
        text = f"{name} was not ready within {config.startup_timeout:g} s{said}: raise `startupTimeout` if it only starts slowly"
        return HandshakeFailed(safe(text), server=name)
    if isinstance(cause, (ConnectionLost, CallTimeout)):
        is_program = config.type is TransportType.STDIO
        mend = "check `command`, `args` and `env`" if is_program else "check that `url` is an MCP endpoint"
        text = f"{name} did not complete the handshake: {cause}{_polluted(diagnostics, safe)}; {mend}"
        return (LaunchFailed if is_program else HandshakeFailed)(safe(text), server=name)
    if isinstance(cause, ConnectionFailed):
        return type(cause)(
            safe(
                (f"{name} could not be started: {cause}" if isinstance(cause, LaunchFailed) else f"{name}: {cause}")
                + _polluted(diagnostics, safe)
            ),
            server=name,
            retriable=cause.retriable,
        )
    if isinstance(cause, CallError):
        code = getattr(cause, "code", 0)
        # Codes of the protocol are negative; an HTTP status has said what to do.
        mend = "; check that it is an MCP server, and its `protocolVersion`" if code < 0 else ""
        text = safe(f"{name} refused the handshake: {cause}{_polluted(diagnostics, safe)}{mend}")
        return HandshakeFailed(text, server=name, retriable=code not in _FOR_GOOD)
    if cause is not None:
        return type(cause)(safe(f"{name}: {cause}"))
    if failure is not None:
        _log.error("%s: an unexpected error while connecting\n%s", name, trace(failure, safe))
        return ConnectionFailed(safe(f"{name} could not be connected: {line(safe(_innermost(failure)), 300)}"), server=name)
    return ConnectionFailed(f"{name} could not be connected", server=name)


def went_away(name: str, words: ToolbayError | None, failure: BaseException | None, safe: Callable[[str], str]) -> ConnectionLost:
    """A session ended that was ready. What an engine met meanwhile is no business as usual: it is logged."""
    reason = str(words or "")
    if failure is not None:
        _log.error("%s: an unexpected error ended its session\n%s", name, trace(failure, safe))
        reason = reason or str(_ours(failure) or f"an unexpected error ({line(safe(_innermost(failure)), 300)})")
    return ConnectionLost(safe(f"{name} went away{f': {reason}' if reason else ''}"), server=name)


def may_come_back(error: ToolbayError) -> bool:
    """Whether another attempt to connect, without any change, may end better."""
    return isinstance(error, ConnectionLost) or (isinstance(error, ConnectionFailed) and error.retriable)


def unavailable(name: str, error: ToolbayError | None, *, closed: bool, retry_after: float | None) -> ToolbayError:
    """Why nothing can be called, and when that may change.

    An error of its own for each caller: one that is raised again keeps all its callers' frames.
    """
    if closed:
        return ConnectionFailed(f"{name} has been closed", server=name)
    text = str(error) if error else f"{name} is not connected"
    if retry_after is not None:
        text = f"{text}; it is tried again in {duration(retry_after)}"
    if isinstance(error, ConnectionFailed):
        return type(error)(text, server=name, retriable=error.retriable, retry_after=retry_after)
    # A server that was lost: what was lost with it was another call, nothing of this one was sent.
    return ConnectionFailed(text, server=name, retry_after=retry_after)


def _ours(failure: BaseException | None) -> ToolbayError | None:
    """The first of our own errors in what an engine raised; task groups wrap theirs."""
    if isinstance(failure, ToolbayError):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if (found := _ours(inner)) is not None:  # pyright: ignore[reportUnknownArgumentType]
                return found
    return None


def _innermost(failure: BaseException) -> str:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return f"{type(failure).__name__}: {failure}"  # pyright: ignore[reportUnknownArgumentType]


def _said(diagnostics: Diagnostics, safe: Callable[[str], str]) -> str:
    lines = safe(clean(" | ".join(diagnostics.stderr()[-3:])))
    return (f"; its last words on stderr: {excerpt(lines, 500)}" if lines else "") + _polluted(diagnostics, safe)


def pollution(text: str, safe: Callable[[str], str]) -> str:
    """What is wrong with a server that writes `text` to its standard output."""
    shown = line(safe(clean(text)), 100)
    return f"it writes lines to stdout that are no protocol messages, such as {shown!r}: it must log to stderr"


def _polluted(diagnostics: Diagnostics, safe: Callable[[str], str]) -> str:
    lines = diagnostics.stray()
    if not lines:
        return ""
    return f"; {pollution(lines[0], safe)}"
