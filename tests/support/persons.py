"""A person with a browser, who agrees to every page of an authorization server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit


async def approve(url: str) -> str:
    """The person says yes to the page at `url`: the address that it leads to, which nobody asks for yet."""
    status, headers, body = await fetched(url)
    assert status == 302, f"HTTP {status}: {body.decode()}"
    return headers["location"]


async def visit(url: str) -> tuple[int, str]:
    """The person says yes, and the browser goes where that leads: the status and the page that came."""
    status, _, body = await fetched(await approve(url))
    return status, body.decode()


async def fetched(
    url: str, *, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """What comes from an address of this machine: status, headers, body."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        told = {"Host": parts.netloc, "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        got = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        length = got.get("content-length")
        return int(head[0].split(" ")[1]), got, await (reader.read() if length is None else reader.readexactly(int(length)))
    finally:
        writer.close()
