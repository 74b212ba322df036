"""Every error that Toolbay raises, drawn once.

    ToolbayError
    ├── ConfigError                 names the file, the key and the mend
    ├── BlockedAddress              the network policy said no: never retried
    ├── ConnectionFailed            a server could not be brought up
    │   ├── LaunchFailed            its command could not be run, or ended at once
    │   ├── Refused                 its address could not be reached (refused, DNS, TLS, timeout)
    │   ├── HandshakeFailed         it was reached, but does not speak MCP with us
    │   └── AuthRequired            it wants credentials
    ├── ConnectionLost(sent)        it was up and went away; `sent` decides whether a call may be repeated
    ├── CallError                   one call failed; the connection lives on
    │   ├── ServerError(code)       the server answered with a JSON-RPC error
    │   │   └── Busy(retry_after)   it did not take the call, and may be asked again (HTTP 421, 425, 429, 503)
    │   ├── BadCall                 the call was wrong before it was sent
    │   ├── Crowded                 too many calls wait for this server: nothing was sent
    │   └── CallTimeout(sent)       no answer in time
    ├── LoginFailed                 a login with a server could not be completed, or ended
    ├── ModelError                  the language model could not be asked, or answered nonsense
    ├── NotAnswered                 a message on the bus got no answer
    └── AgentStopped
        ├── LimitReached            a turn used up its steps, time or tokens
        └── ApprovalNeeded          nobody answered a request for approval

A tool that answers `isError` is a result for the model, not an exception. Every message is one sentence that says what
happened, to which server or tool, why, and what to do.
"""

from __future__ import annotations

from typing import Any


class ToolbayError(Exception):
    """Root of the tree. `str(error)` is one sentence that is safe to show: it holds no secret."""


class ConfigError(ToolbayError):
    """A configuration, or one server in it, cannot be used."""


class BlockedAddress(ToolbayError):
    """The network policy refused an address. Never retried.

    `cause` and `mend` are the two parts of its sentence; `mend` is empty where nothing helps, or the cause says it.
    """

    def __init__(self, cause: str, mend: str = "") -> None:
        super().__init__(f"{cause}: {mend}" if mend else cause)
        self.cause = cause
        self.mend = mend


class ConnectionFailed(ToolbayError):
    """A server could not be brought up, or is not there now.

    `retriable`: another attempt may end better. `retry_after`: seconds until the next one is made, where one is planned.
    """

    def __init__(self, message: str, *, server: str = "", retriable: bool = True, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.server = server
        self.retriable = retriable
        self.retry_after = retry_after


class LaunchFailed(ConnectionFailed):
    """A server's command was not found, not executable, or ended before it answered."""


class Refused(ConnectionFailed):
    """A server's address could not be reached: refused, DNS, TLS, timeout, HTTP status."""


class HandshakeFailed(ConnectionFailed):
    """A server was reached but did not complete the MCP handshake."""


class AuthRequired(ConnectionFailed):
    """A server answered that it wants credentials (`code` 401), or that those it got do not allow this (403)."""

    def __init__(
        self, message: str, *, code: int = 401, server: str = "", retriable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message, server=server, retriable=retriable, retry_after=retry_after)
        self.code = code

    @property
    def of_all(self) -> bool:
        """Whether the credentials do not hold for anything (401); 403 is a word about one request."""
        return self.code == 401


class ConnectionLost(ToolbayError):
    """A server went away. `sent` is False only where the request provably never left this process."""

    def __init__(self, message: str, *, server: str = "", sent: bool = True) -> None:
        super().__init__(message)
        self.server = server
        self.sent = sent


class CallError(ToolbayError):
    """One call failed; the connection lives on."""


class ServerError(CallError):
    """The server answered with a JSON-RPC error: its `code`, its message (bounded, cleaned) and `data`.

    `ran` tells whether the call took effect: True, False where the answer says that it was refused before, None where nobody knows.
    """

    def __init__(self, message: str, *, code: int = 0, data: Any = None, ran: bool | None = True) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.ran = ran


class Busy(ServerError):
    """The server did not take the call, and may be asked again in `retry_after` seconds (HTTP 421, 425; 429, 503 with Retry-After)."""

    def __init__(self, message: str, *, code: int, retry_after: float, data: Any = None, ran: bool | None = False) -> None:
        super().__init__(message, code=code, data=data, ran=ran)
        self.retry_after = retry_after


class BadCall(CallError):
    """A call was wrong before anything was sent: an unknown tool, or arguments that do not fit."""


class Crowded(CallError):
    """More calls wait for one server than its configuration lets wait: nothing was sent."""


class CallTimeout(CallError):
    """No answer within the call's deadline. `sent` as in `ConnectionLost`."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class LoginFailed(ToolbayError):
    """A login with a server could not be completed: it, its authorization server, or the person said no, or one cannot be trusted.

    `retriable`: the same may end better later (the authorization server could not be reached, or was busy).
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class ModelError(ToolbayError):
    """The language model could not be asked (key, network, quota), or its answer could not be understood."""


class NotAnswered(ToolbayError):
    """A message on the bus got no answer: nobody answers such messages there, or not in time."""


class AgentStopped(ToolbayError):
    """A turn ended before the model had answered."""


class LimitReached(AgentStopped):
    """A turn used up its steps, time or tokens."""


class ApprovalNeeded(AgentStopped):
    """A call needs a person's approval and nobody is there to give it."""
