"""The HTTP library logs each request with its whole address; keys stand in queries. Its records keep the origin only."""

from __future__ import annotations

import logging

import httpx2

from toolbay import _redact


class OriginOnly(logging.Filter):
    """Shortens every address among a record's arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_redact.origin(str(value)) if isinstance(value, httpx2.URL) else value for value in record.args)
        return True


_FILTER = OriginOnly()


def shorten() -> None:
    """Have the library's logger shorten addresses from now on. Idempotent; nothing else about its logging changes."""
    logging.getLogger("httpx2").addFilter(_FILTER)
