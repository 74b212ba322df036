"""Raw answers of servers, made up, and how they are shown."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from toolbay.upstream.render import tool_result


def png(width: int = 640, height: int = 480, padding: int = 600) -> bytes:
    """Bytes that begin as a PNG of that size does; no picture."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes(range(200)) * (padding // 200)


PNG = png()
PNG64 = b64encode(PNG).decode()


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def shown(result: Any, **options: Any) -> str:
    """What a model sees of a result of `tools/call`; files by what their server says of them."""
    return "\n".join(
        part if isinstance(part, str) else f"<{part.label} {part.media_type}>" for part in tool_result(result, **options).parts
    )
