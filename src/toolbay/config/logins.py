"""What the values of a login must be (RFC 6749, appendix A; RFC 8414, 2), as clauses that finish "the key `x` ...".

They repeat no value: a token stands where it does not belong more often than not.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

SHORT = frozenset({"oauth", "client_credentials", "none"})
"""Types of logins; they may stand in the place of a whole object."""
_CALLBACK = re.compile(r"http://(?:localhost|127\.0\.0\.1|\[::1\]):([0-9]{1,5})(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")
_VISIBLE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_SCOPE = re.compile(r"[!#-\[\]-~]+")
_HOST = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9-]{1,63}(?:\.(?!-)[a-z0-9-]{1,63})*")


def whole(value: Any) -> Any:
    """The short forms: `oauth` and `none`, true and false."""
    if isinstance(value, bool):
        return {"type": "oauth" if value else "none"}
    if isinstance(value, str):
        if value in SHORT:
            return {"type": value}
        raise ValueError("must be oauth, none, or an object; a token belongs into `headers`, as Authorization: Bearer ${TOKEN}")
    if isinstance(value, int | float | list):
        raise ValueError("must be oauth, none, or an object")  # noqa: TRY004 - the words for whoever wrote it
    return value


def words(value: Any) -> Any:
    """Scopes as OAuth writes them, in one text with spaces between, are a list too."""
    return value.split() if isinstance(value, str) else value


def is_visible(value: str) -> bool:
    return _VISIBLE.fullmatch(value) is not None


def visible(value: str) -> str:
    if not is_visible(value):
        raise ValueError("must be one line of ASCII without spaces around it")
    return value


def scope(value: str) -> str:
    if not _SCOPE.fullmatch(value):
        raise ValueError("must be one scope, without spaces, quotes and backslashes")
    return value


def document(value: str) -> str:
    """The address of a document that stands for a client."""
    parts = _split(value)
    if value and not (parts and parts.scheme == "https" and parts.path.strip("/") and not parts.fragment):
        raise ValueError("must be an https address with a path, such as https://example.com/client.json")
    return value


def issuer(value: str) -> str:
    parts = _split(value)
    secure = parts is not None and (parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname or "")))
    if value and not (parts and secure and not parts.query and not parts.fragment):
        raise ValueError("must be an https address (or http on this machine) without query, such as https://login.example.com")
    return value


def callback(value: str) -> str:
    """An address of this machine that a browser comes back to (RFC 8252, 7.3)."""
    if value and not is_callback(value):
        raise ValueError("must be an http address of this machine with a port and without query, such as http://localhost:8765/callback")
    return value


def is_callback(value: str) -> bool:
    found = _CALLBACK.fullmatch(value)
    return found is not None and 0 < int(found[1]) < 65_536 and not {".", ".."} & set(value.split("/"))


def loopback(port: int) -> str:
    """The address that a browser comes back to where only its port was chosen."""
    return f"http://127.0.0.1:{port}/callback"


def host(value: str) -> str:
    folded = value.lower()
    if not _HOST.fullmatch(folded):
        raise ValueError("must be the name of a host, such as login.example.com, without scheme, port and path")
    return folded


def _split(value: str) -> SplitResult | None:
    """An address that names a host and holds no user; None for anything else."""
    try:
        parts = urlsplit(value)
        named = parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if named and "@" not in parts.netloc and _VISIBLE.fullmatch(value) and " " not in value else None


def _is_here(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
