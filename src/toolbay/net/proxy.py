"""Which proxy a request goes through, if any. Pure but for reading the environment.

Proxies come from settings or the environment alone, so their addresses may be private; the policy for URLs still holds for what
is asked of them. This machine itself is always reached directly: a proxy would take `localhost` for its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Self
from urllib.request import getproxies

from toolbay.net.addresses import canonical
from toolbay.net.guard import Target, is_here

_PORT = re.compile(r":([0-9]{1,5})\Z")


@dataclass(frozen=True)
class Proxies:
    """A proxy's URL by the scheme of what is asked of it, and who is reached without one."""

    by_scheme: Mapping[str, str] = field(default_factory=dict[str, str])
    without: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, found: Mapping[str, str] | None = None) -> Self:
        """HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in either case, on Windows and macOS also the system's settings."""
        found = getproxies() if found is None else found
        by_scheme = {scheme: found.get(scheme) or found.get("all") or "" for scheme in ("http", "https")}
        return cls(
            {scheme: url if "://" in url else f"http://{url}" for scheme, url in by_scheme.items() if url},
            tuple(re.split(r"[\s,]+", found.get("no", "").strip().lower())),
        )

    @classmethod
    def everywhere(cls, url: str) -> Self:
        """One proxy for all; an empty text for none."""
        return cls({"http": url, "https": url} if url else {})

    def choose(self, target: Target) -> str:
        """The proxy's URL; empty for the direct way."""
        url = self.by_scheme.get(target.scheme, "")
        return "" if not url or is_here(target) or any(_matches(entry, target) for entry in self.without) else url


def _matches(entry: str, target: Target) -> bool:
    """NO_PROXY as curl reads it: `*`, names with all below them, addresses, ranges, each also with a port."""
    if entry in ("", "*"):
        return entry == "*"
    entry = entry.partition("://")[2] or entry
    port = _PORT.search(entry)
    if port and (entry.count(":") == 1 or entry.startswith("[")):
        if int(port[1]) != target.port:
            return False
        entry = entry[: port.start()]
    entry = entry.removeprefix("[").removesuffix("]")
    if target.literal is not None:
        try:
            return target.literal in ip_network(entry, strict=False) if "/" in entry else target.literal == canonical(ip_address(entry))
        except ValueError:
            return False
    name = entry.removeprefix("*").removeprefix(".").removesuffix(".")
    host = target.host.removesuffix(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))
