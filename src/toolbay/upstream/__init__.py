"""ONE connected MCP server: how it is started, spoken to, listed, called, and closed."""
