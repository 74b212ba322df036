"""Configuration: found, read, checked, and edited without losing a comment."""

from __future__ import annotations

from toolbay.config.loading import load, parse
from toolbay.config.models import (
    AgentConfig,
    ArtifactsConfig,
    Config,
    InvalidServer,
    Problem,
    RestartPolicy,
    ServerConfig,
    ToolsConfig,
    TransportType,
)
from toolbay.config.places import data_home, find, home
from toolbay.config.view import masked, schema

__all__ = [
    "AgentConfig",
    "ArtifactsConfig",
    "Config",
    "InvalidServer",
    "Problem",
    "RestartPolicy",
    "ServerConfig",
    "ToolsConfig",
    "TransportType",
    "data_home",
    "find",
    "home",
    "load",
    "masked",
    "parse",
    "schema",
]
