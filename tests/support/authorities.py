"""A server and its authorization server, and what a login's modules need of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from servers.raw_http import RawHttp, Step
from servers.raw_oauth import RawOAuth
from toolbay.auth.records import Authority
from toolbay.auth.web import Web, web
from toolbay.config.models import LoginConfig, ServerConfig

HERE = ("127.0.0.0/8",)


def entry(url: str, *, type: str = "streamableHttp", auth: LoginConfig | None = None, **more: Any) -> ServerConfig:  # noqa: A002
    return ServerConfig.model_validate({"type": type, "url": url, "ssrf_whitelist": HERE, "auth": auth, **more})


@dataclass(frozen=True)
class Place:
    oauth: RawOAuth
    server: RawHttp
    web: Web

    def entry(self, *, auth: LoginConfig | None = None, **more: Any) -> ServerConfig:
        return entry(self.server.url, auth=auth, **more)

    def authority(self, **more: Any) -> Authority:
        """As discovery finds it."""
        issuer = self.oauth.issuer
        fields: dict[str, Any] = {
            "issuer": issuer,
            "resource": self.server.url,
            **{f"{what}_endpoint": f"{issuer}/{path}" for what, path in (("authorization", "authorize"), ("registration", "register"))},
            **{f"{what}_endpoint": f"{issuer}/{path}" for what, path in (("token", "token"), ("revocation", "revoke"))},
            "methods": self.oauth.auth_methods,
        }
        return Authority(**{**fields, **more})


@asynccontextmanager
async def place(*, path: str = "", itself: bool = False) -> AsyncGenerator[Place]:
    """`itself`: the server is its own authorization server, as in the era of 2025-03."""
    async with RawOAuth(path=path) as oauth, RawHttp() as server:
        oauth.protect(server, itself=itself)
        async with web(entry(server.url)) as way:
            yield Place(oauth, server, way)


def told(status: int, body: bytes = b"", **headers: str) -> Step:
    """An answer of this status; `Content_Type` is a header's name."""
    return Step(kind="status", status=status, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})
