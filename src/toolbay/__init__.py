"""Toolbay turns any MCP server into dependable tools of an AI agent.

The names below are loaded when they are first used, so that importing the package costs next to nothing. Public besides are
the modules `toolbay.events` (what happens, as it happens: `App.events`) and `toolbay.testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolbay.agent.approvals import Answer, ApprovalRequest, Approver
    from toolbay.agent.runner import Conversation, Limits, Runner, Turn
    from toolbay.app import App, AppOptions
    from toolbay.auth.logins import LoginStatus
    from toolbay.auth.pages import Page, Pasting, Person
    from toolbay.auth.store import Store
    from toolbay.config import load, parse
    from toolbay.config.models import Config, InvalidServer, LoginConfig, ServerConfig
    from toolbay.errors import (
        AgentStopped,
        ApprovalNeeded,
        AuthRequired,
        BadCall,
        BlockedAddress,
        Busy,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectionFailed,
        ConnectionLost,
        Crowded,
        HandshakeFailed,
        LaunchFailed,
        LimitReached,
        LoginFailed,
        ModelError,
        NotAnswered,
        Refused,
        ServerError,
        ToolbayError,
    )
    from toolbay.fleet import ServerStatus
    from toolbay.gateway.bus import Bus, Control, LocalBus
    from toolbay.journal import UnfinishedCall
    from toolbay.offerings import PromptInfo, ResourceInfo
    from toolbay.registry import Registry
    from toolbay.sessions import MemoryConversation, Session, Sessions
    from toolbay.types import (
        Artifact,
        CallContext,
        Hints,
        Interceptor,
        Invocation,
        Kind,
        Message,
        Model,
        ModelRequest,
        Next,
        Outcome,
        Progress,
        Reloaded,
        Reply,
        Role,
        TextDelta,
        Tool,
        ToolCall,
        ToolResult,
        ToolSource,
        Usage,
    )

_HOMES = {
    "toolbay.agent.approvals": ("Answer", "ApprovalRequest", "Approver"),
    "toolbay.agent.runner": ("Conversation", "Limits", "Runner", "Turn"),
    "toolbay.app": ("App", "AppOptions"),
    "toolbay.auth.pages": ("Page", "Pasting", "Person"),
    "toolbay.auth.logins": ("LoginStatus",),
    "toolbay.auth.store": ("Store",),
    "toolbay.journal": ("UnfinishedCall",),
    "toolbay.offerings": ("PromptInfo", "ResourceInfo"),
    "toolbay.config": ("load", "parse"),
    "toolbay.config.models": ("Config", "InvalidServer", "LoginConfig", "ServerConfig"),
    "toolbay.errors": (
        "AgentStopped",
        "ApprovalNeeded",
        "AuthRequired",
        "BadCall",
        "BlockedAddress",
        "Busy",
        "CallError",
        "CallTimeout",
        "ConfigError",
        "ConnectionFailed",
        "ConnectionLost",
        "Crowded",
        "HandshakeFailed",
        "LaunchFailed",
        "LimitReached",
        "LoginFailed",
        "ModelError",
        "NotAnswered",
        "Refused",
        "ServerError",
        "ToolbayError",
    ),
    "toolbay.fleet": ("ServerStatus",),
    "toolbay.gateway.bus": ("Bus", "Control", "LocalBus"),
    "toolbay.registry": ("Registry",),
    "toolbay.sessions": ("MemoryConversation", "Session", "Sessions"),
    "toolbay.types": (
        "Artifact",
        "CallContext",
        "Hints",
        "Interceptor",
        "Invocation",
        "Kind",
        "Message",
        "Model",
        "ModelRequest",
        "Next",
        "Outcome",
        "Progress",
        "Reloaded",
        "Reply",
        "Role",
        "TextDelta",
        "Tool",
        "ToolCall",
        "ToolResult",
        "ToolSource",
        "Usage",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentStopped",
    "Answer",
    "App",
    "AppOptions",
    "ApprovalNeeded",
    "ApprovalRequest",
    "Approver",
    "Artifact",
    "AuthRequired",
    "BadCall",
    "BlockedAddress",
    "Bus",
    "Busy",
    "CallContext",
    "CallError",
    "CallTimeout",
    "Config",
    "ConfigError",
    "ConnectionFailed",
    "ConnectionLost",
    "Control",
    "Conversation",
    "Crowded",
    "HandshakeFailed",
    "Hints",
    "Interceptor",
    "InvalidServer",
    "Invocation",
    "Kind",
    "LaunchFailed",
    "LimitReached",
    "Limits",
    "LocalBus",
    "LoginConfig",
    "LoginFailed",
    "LoginStatus",
    "MemoryConversation",
    "Message",
    "Model",
    "ModelError",
    "ModelRequest",
    "Next",
    "NotAnswered",
    "Outcome",
    "Page",
    "Pasting",
    "Person",
    "Progress",
    "PromptInfo",
    "Refused",
    "Registry",
    "Reloaded",
    "Reply",
    "ResourceInfo",
    "Role",
    "Runner",
    "ServerConfig",
    "ServerError",
    "ServerStatus",
    "Session",
    "Sessions",
    "Store",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSource",
    "ToolbayError",
    "Turn",
    "UnfinishedCall",
    "Usage",
    "load",
    "parse",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'toolbay' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
