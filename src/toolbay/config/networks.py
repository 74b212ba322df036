"""What a server may reach besides the public internet: its own ranges, and those of all servers. Pure."""

from __future__ import annotations

from toolbay.config.models import InvalidServer, ServerConfig, ToolsConfig


def with_network(entry: ServerConfig | InvalidServer, tools: ToolsConfig) -> ServerConfig | InvalidServer:
    """The entry with what every server may reach besides."""
    if isinstance(entry, InvalidServer) or not (tools.ssrf_whitelist or tools.fake_ip):
        return entry
    ranges = {"ssrf_whitelist": (*tools.ssrf_whitelist, *entry.ssrf_whitelist), "fake_ip": (*tools.fake_ip, *entry.fake_ip)}
    return entry.model_copy(update=ranges)
