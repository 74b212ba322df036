"""How programs and people reach a running Toolbay from outside of it."""
