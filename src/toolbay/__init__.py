"""Toolbay turns any MCP server into dependable tools of an AI agent.

The names below are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolbay.agent.approvals import Answer, ApprovalRequest, Approver
    from toolbay.agent.runner import Limits, Runner, Turn
    from toolbay.app import App, PromptInfo, ResourceInfo
    from toolbay.config import load, parse
    from toolbay.config.models import Config, ServerConfig
    from toolbay.errors import (
        AgentStopped,
        ApprovalNeeded,
        AuthRequired,
        BadCall,
        BlockedAddress,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectionFailed,
        ConnectionLost,
        HandshakeFailed,
        LaunchFailed,
        LimitReached,
        ModelError,
        Refused,
        ServerError,
        ToolbayError,
    )
    from toolbay.fleet import Reloaded, ServerStatus
    from toolbay.sessions import MemoryConversation, Sessions
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
        Outcome,
        Progress,
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
    "toolbay.agent.runner": ("Limits", "Runner", "Turn"),
    "toolbay.app": ("App", "PromptInfo", "ResourceInfo"),
    "toolbay.config": ("load", "parse"),
    "toolbay.config.models": ("Config", "ServerConfig"),
    "toolbay.errors": (
        "AgentStopped",
        "ApprovalNeeded",
        "AuthRequired",
        "BadCall",
        "BlockedAddress",
        "CallError",
        "CallTimeout",
        "ConfigError",
        "ConnectionFailed",
        "ConnectionLost",
        "HandshakeFailed",
        "LaunchFailed",
        "LimitReached",
        "ModelError",
        "Refused",
        "ServerError",
        "ToolbayError",
    ),
    "toolbay.fleet": ("Reloaded", "ServerStatus"),
    "toolbay.sessions": ("MemoryConversation", "Sessions"),
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
        "Outcome",
        "Progress",
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
    "ApprovalNeeded",
    "ApprovalRequest",
    "Approver",
    "Artifact",
    "AuthRequired",
    "BadCall",
    "BlockedAddress",
    "CallContext",
    "CallError",
    "CallTimeout",
    "Config",
    "ConfigError",
    "ConnectionFailed",
    "ConnectionLost",
    "HandshakeFailed",
    "Hints",
    "Interceptor",
    "Invocation",
    "Kind",
    "LaunchFailed",
    "LimitReached",
    "Limits",
    "MemoryConversation",
    "Message",
    "Model",
    "ModelError",
    "ModelRequest",
    "Outcome",
    "Progress",
    "PromptInfo",
    "Refused",
    "Reloaded",
    "Reply",
    "ResourceInfo",
    "Role",
    "Runner",
    "ServerConfig",
    "ServerError",
    "ServerStatus",
    "Sessions",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSource",
    "ToolbayError",
    "Turn",
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
