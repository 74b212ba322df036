"""The SDK logs every message of a peer that it drops, with a traceback; what matters of it reaches people as our own errors."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import mcp

_SDK = str(Path(mcp.__file__).parent) + os.sep


def _is_kept(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL or not record.pathname.startswith(_SDK)


def quiet() -> None:
    """Drop what the SDK's modules log that are loaded by now. Idempotent.

    The host's own records under the same names (`client`, `mcp`) pass, and nobody's level changes.
    """
    # A filter of a logger holds for its own records only, not for those of the loggers below it.
    for name in tuple(logging.root.manager.loggerDict):
        if name.split(".")[0] in {"client", "mcp"}:
            logging.getLogger(name).addFilter(_is_kept)
