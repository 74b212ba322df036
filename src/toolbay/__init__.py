"""Toolbay turns any MCP server into dependable tools of an AI agent."""
