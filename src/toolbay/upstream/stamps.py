"""What each request carries besides its own parameters, as its era wants it: `_meta` and headers.

Until 2025-11-25 that is the version header alone. Since 2026-07-28 every request says who we are and what we can, and some
of a tool's parameters go into headers as well.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY

from toolbay._lenient import as_object
from toolbay.config.models import TransportType
from toolbay.types import Json
from toolbay.upstream.engine import Opening, ServerInfo

CLIENT_INFO: Json = {"name": "toolbay", "version": version("toolbay")}

_log = logging.getLogger("toolbay.upstream")


class Stamps:
    """The stamps of one session. `capabilities` is what this client offers to the server; headers are only seen over HTTP."""

    def __init__(self, opening: Opening, capabilities: Json) -> None:
        self._name = opening.name
        self._capabilities = capabilities
        self._over_http = opening.config.type is TransportType.HTTP
        self._left_out = opening.diagnostics.left_out
        self._param_headers: dict[str, dict[tuple[str, ...], str]] = {}

    def discovery(self, wanted: str) -> tuple[Json, CallOptions]:
        """Of the probe for a server of the later era, before anything is agreed on."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: wanted, MCP_METHOD_HEADER: "server/discover"}
        return {"_meta": self._meta(wanted)}, {"cancel_on_abandon": False, "headers": headers}

    def request(self, info: ServerInfo, method: str, params: Json) -> tuple[Json, CallOptions]:
        """Of a request to a server that has said of itself what `info` holds."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: info.protocol}
        if not info.modern:
            return params, {"headers": headers}
        meta = {LOG_LEVEL_META_KEY: "info", **params.get("_meta", {}), **self._meta(info.protocol)}
        headers[MCP_METHOD_HEADER] = method
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if method == "tools/call" and name in self._param_headers:
                headers.update(mcp_param_headers(self._param_headers[name], as_object(params.get("arguments"))))
        return {**params, "_meta": meta}, {"headers": headers}

    def _meta(self, protocol: str) -> Json:
        return {
            PROTOCOL_VERSION_META_KEY: protocol,
            CLIENT_INFO_META_KEY: CLIENT_INFO,
            CLIENT_CAPABILITIES_META_KEY: self._capabilities,
        }

    def learns(self, info: ServerInfo) -> bool:
        """Whether parameters of tools go into headers."""
        return info.modern and self._over_http

    def learn(self, info: ServerInfo, result: Json) -> Json:
        """Which parameters of which listed tools go into headers; tools whose marks are invalid are dropped."""
        if not self.learns(info):
            return result
        kept: list[Any] = []
        tools: Any = result.get("tools")
        for item in tools if isinstance(tools, list) else ():  # pyright: ignore[reportUnknownVariableType]
            tool = as_object(item)  # pyright: ignore[reportUnknownArgumentType]
            schema: Any = tool.get("inputSchema")
            if (reason := find_invalid_x_mcp_header(schema)) is not None:
                _log.warning("%s: tool %r is left out: %s", self._name, tool.get("name"), reason)
                self._left_out[str(tool.get("name"))] = reason
                continue
            self._param_headers[str(tool.get("name"))] = x_mcp_header_map(schema)
            kept.append(tool)
        return {**result, "tools": kept}
