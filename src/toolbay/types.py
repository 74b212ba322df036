"""The words that all rooms share: tools, calls, results, messages, and the Protocols between rooms.

Everything here is a frozen value or a Protocol. A `Tool` carries the function that runs it, so that who calls a tool
never needs to know where it comes from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from toolbay.errors import CallTimeout, ConnectionLost, ServerError, ToolbayError

Json: TypeAlias = dict[str, Any]
"""A JSON object."""
Subject: TypeAlias = tuple[str, str]
"""A capability of a server: the list that it stands in (`tools`, `resources`, `templates`, `prompts`), and its name there.

Resources are named by their URI, templates by their text.
"""


class Kind(StrEnum):
    """What a tool is on its server."""

    TOOL = "tool"
    RESOURCE = "resource"
    PROMPT = "prompt"
    BUILTIN = "builtin"


class Outcome(StrEnum):
    """Whether a call took effect, as far as can be known."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


MAY_HAVE_RUN = "It may have taken effect: do not repeat it blindly, check with a tool that only reads, or ask."
"""What a model reads of every call whose outcome is unknown."""
LEAVE_IT = "Do not call it again and do not reach the same end by another way: go on without it, or say what you wanted to do and why."
"""What a model reads of every call that a person did not approve."""
_TO_PEOPLE = {MAY_HAVE_RUN: "It may have taken effect: check before you repeat it.", LEAVE_IT: ""}


def for_people(text: str) -> str:
    """A result's text without what is said to models only."""
    for said, instead in _TO_PEOPLE.items():
        if said in text:
            text = text.replace(said, instead).rstrip()
    return text


def outcome_of(error: ToolbayError) -> Outcome:
    """Whether the call that ended in `error` took effect: by the facts that it carries, not by its words."""
    if isinstance(error, ConnectionLost | CallTimeout):
        return Outcome.UNKNOWN if error.sent else Outcome.NOT_EXECUTED
    if isinstance(error, ServerError) and error.ran is not False:
        return Outcome.EXECUTED if error.ran else Outcome.UNKNOWN
    return Outcome.NOT_EXECUTED


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """A tool's annotations (MCP `ToolAnnotations`), with the protocol's defaults for what is absent."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One progress notification of a running call. `total` and `message` may be absent."""

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """What a running call is told by its caller. `on_progress` and `on_sent` must not block.

    `on_sent` is called right before each attempt's first byte may leave this process, or a function of this process begins.
    `by_hand`: a person makes this very call, so that nobody needs to be asked for approval.
    """

    call_id: str
    on_progress: Callable[[Progress], None] | None = None
    by_hand: bool = False
    on_sent: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A file that a tool returned, stored on this machine. `name` is ours, `media_type` was read from its bytes."""

    name: str
    path: Path
    media_type: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a call came to. `text` is for the model; `structured` is the server's `structuredContent`, if any."""

    text: str
    is_error: bool = False
    artifacts: tuple[Artifact, ...] = ()
    structured: Any = None
    outcome: Outcome = Outcome.EXECUTED


Invoke: TypeAlias = Callable[[Json, CallContext], Awaitable[ToolResult]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """One thing that a model can call.

    `name` matches `^[a-zA-Z0-9_-]{1,64}$` and is unique in its snapshot. `input_schema` is the server's own JSON Schema,
    against which arguments are validated; `parameters` is the same schema in the form that model providers take.
    `server` is the name in the configuration (empty for built-in tools), `wire_name` the server's own name or URI.
    """

    name: str
    description: str
    input_schema: Json
    parameters: Json
    invoke: Invoke = field(repr=False, compare=False)
    server: str = ""
    wire_name: str = ""
    kind: Kind = Kind.TOOL
    title: str = ""
    hints: Hints = Hints()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of `parameters` that stand for others of `input_schema`, since no provider takes those."""
    tells_sent: bool = False
    """Whether `invoke` calls `on_sent` itself; for others it is called right before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call that a model asked for. `arguments` is an object, or the raw text where it was none."""

    id: str
    name: str
    arguments: Json | str


class Role(StrEnum):
    """Who a message is from. Instructions are no message: they are part of the request."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One entry of a conversation.

    An assistant's message may carry `calls`; each is answered by exactly one tool message with the same `call_id`, in
    the order of the calls, before anything else follows.
    """

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    is_error: bool = False
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one model request, 0 where the provider does not say."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """What a model is asked. Without `tools` it must answer in text."""

    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDelta:
    """A piece of a reply's text, as it arrives."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A model's whole reply: text, calls, or both. `note` is what it says of itself, to people: no part of the answer."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    note: str = ""


class Model(Protocol):
    """A language model, or what stands in for one."""

    @property
    def name(self) -> str:
        """`provider:model`, for people."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        """Any number of deltas, then exactly one `Reply` that holds the whole text.

        Raises:
            ModelError: the model could not be asked, or its answer could not be understood.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Invocation:
    """A call on its way through the interceptors: found, repaired and validated."""

    tool: Tool
    arguments: Json
    context: CallContext


Next: TypeAlias = Callable[[Invocation], Awaitable[ToolResult]]
Interceptor: TypeAlias = Callable[[Invocation, Next], Awaitable[ToolResult]]
"""What cuts across calls (approval, limits, tracing): `(invocation, next) -> result`, in a list, outermost first."""


@dataclass(frozen=True, kw_only=True)  # no slots: an event is one too, and has slots of its own
class Reloaded:
    """What a reload did, by names of servers; `tools_removed` are names of tools."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    connected: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()


class ArtifactStore(Protocol):
    """Where files go that tools return."""

    async def save(self, data: bytes, *, media_type: str = "") -> Artifact:
        """Store `data` under a name of ours; `media_type` is only a hint, the bytes decide.

        Raises:
            OSError: it cannot be stored (full disk, quota). Nothing is left behind.
        """
        ...


class ToolSource(Protocol):
    """Something that offers tools: the registry, or a fake of it."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools of this moment by name, sorted; an immutable snapshot."""
        ...

    async def call(self, name: str, arguments: Json | str, context: CallContext) -> ToolResult:
        """Find, repair, validate and run. Never raises but for cancellation: what went wrong is an error result."""
        ...
