"""The agent: a model, a loop, a conversation. It knows tools, and nothing of where they come from."""
