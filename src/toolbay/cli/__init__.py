"""The command line: one module a command group.

Only names and signatures are loaded before a command is known, so that `toolbay --help` answers at once: what a command
needs (the configuration, the app, the tables) is imported when it runs.
"""

from __future__ import annotations

from toolbay.cli.program import main

__all__ = ["main"]
