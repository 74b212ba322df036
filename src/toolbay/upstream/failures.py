"""Why a server could not be brought up, as one of our errors with one sentence: what happened, to whom, why, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

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
from toolbay.upstream import signs
from toolbay.upstream.engine import Diagnostics

_FOR_GOOD = frozenset({-32600, -32601, -32602, -32022})
"""Codes of answers that the same request will always get: invalid, unknown, wrong parameters, no version in common."""

LONGEST = 500
"""Characters of an error of a start."""
TOLD = 200
SHOWN = 100
"""Characters of what a server wrote that are in it, alone and behind what that means."""

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
    bounded = partial(_bounded, safe=safe)
    read = _read(config, diagnostics, safe)
    if timed_out:
        said = f": {read}" if read else f"{_said(diagnostics, safe)}: raise `startupTimeout` if it only starts slowly"
        return HandshakeFailed(bounded(f"{name} was not ready within {config.startup_timeout:g} s{said}"), server=name)
    if isinstance(cause, (ConnectionLost, CallTimeout)):
        if config.type is TransportType.STDIO:
            said = read or f"{cause}{_polluted(diagnostics, safe)}"
            mend = "" if read or diagnostics.exceeded() else "; check `command`, `args` and `env`"
            return LaunchFailed(bounded(f"{name} did not start: {said}{mend}"), server=name)
        text = f"{name} did not complete the handshake: {cause}; check that `url` is an MCP endpoint"
        return HandshakeFailed(bounded(text), server=name)
    if isinstance(cause, ConnectionFailed):
        text = f"{name} could not be started: {cause}" if isinstance(cause, LaunchFailed) else f"{name}: {cause}"
        return type(cause)(bounded(text + _polluted(diagnostics, safe)), server=name, retriable=cause.retriable)
    if isinstance(cause, CallError):
        code = getattr(cause, "code", 0)
        # Codes of the protocol are negative; an HTTP status has said what to do.
        mend = "; check that it is an MCP server, and its `protocolVersion`" if code < 0 else ""
        text = f"{name} refused the handshake: {cause}{_polluted(diagnostics, safe)}{mend}"
        return HandshakeFailed(bounded(text), server=name, retriable=code not in _FOR_GOOD)
    if cause is not None:
        return type(cause)(bounded(f"{name}: {cause}"))
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


def _bounded(text: str, safe: Callable[[str], str]) -> str:
    """Masked before it is cut: of a secret that was cut, a part would stay."""
    return excerpt(safe(text), LONGEST)


def _read(config: ServerConfig, diagnostics: Diagnostics, safe: Callable[[str], str]) -> str:
    """What is known of the cause by a sign in what a program wrote that has not answered, and the mend; the doctor reads the same."""
    if config.type is not TransportType.STDIO or diagnostics.exceeded() or diagnostics.heard() > float("-inf"):
        return ""
    lines = signs.looked_at(diagnostics.stderr(), diagnostics.stray())
    read = signs.read(lines, config.command)
    if read is None:
        return ""
    code = diagnostics.exit_code()
    ended = "" if code is None else f" (exit code {code})"
    return f"{read.what}: {read.why}{ended}; {read.mend}; it wrote: {line(safe(lines[read.at]), SHOWN)}"


def _said(diagnostics: Diagnostics, safe: Callable[[str], str]) -> str:
    told = line(safe(signs.telling(diagnostics.stderr())), TOLD)
    return (f"; it wrote to stderr: {told}" if told else "") + _polluted(diagnostics, safe)


def pollution(text: str, safe: Callable[[str], str]) -> str:
    """What is wrong with a server that writes `text` to its standard output."""
    shown = line(safe(clean(text)), 100)
    return f"it writes lines to stdout that are no protocol messages, such as {shown!r}: it must log to stderr"


def _polluted(diagnostics: Diagnostics, safe: Callable[[str], str]) -> str:
    lines = diagnostics.stray()
    if not lines:
        return ""
    return f"; {pollution(lines[0], safe)}"
