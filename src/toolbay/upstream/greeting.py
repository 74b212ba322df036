"""The beginning of a session: an era and a version are agreed on, and each side says what it can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcp.shared.dispatcher import CallOptions
from mcp_types import METHOD_NOT_FOUND, SERVER_INFO_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from toolbay._lenient import as_object
from toolbay._text import clean, line
from toolbay.config.models import TransportType
from toolbay.errors import CallError, HandshakeFailed, ServerError
from toolbay.types import Json
from toolbay.upstream.engine import Budget, Opening, ServerInfo, fresh_for
from toolbay.upstream.stamps import CLIENT_INFO, Stamps

DISCOVER_TIMEOUT = 12.0
"""Seconds for the probe of a server's era over HTTP: more than connecting may take, so that it is told where that fails."""


class Greeting:
    """Greets a server. `exchange` sends one request and gives its result; `capabilities` is what is offered to the server."""

    def __init__(
        self,
        opening: Opening,
        stamps: Stamps,
        capabilities: Json,
        exchange: Callable[[str, Json, CallOptions, Budget], Awaitable[Json]],
    ) -> None:
        self._opening = opening
        self._stamps = stamps
        self._capabilities = capabilities
        self._exchange = exchange

    async def agree(self) -> ServerInfo:
        """Agree on an era and a version.

        A pipe is greeted with `initialize` first, since the probe of the later era kills many older servers; over HTTP the
        probe is a request like any other, and goes first.

        Raises:
            ConnectionFailed, ServerError: as the server answered.
        """
        wanted = self._opening.config.protocol_version
        if wanted in MODERN_PROTOCOL_VERSIONS:
            return await self._discover(wanted)
        if wanted == "auto" and self._opening.config.type is TransportType.HTTP:
            try:
                return await self._discover(MODERN_PROTOCOL_VERSIONS[-1])
            except (CallError, HandshakeFailed):
                # Whatever else an older server answers to a method that it does not know: no evidence of the later era.
                return await self._initialize()
        try:
            return await self._initialize()
        except ServerError as error:
            if wanted != "auto" or error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                raise
        return await self._discover(MODERN_PROTOCOL_VERSIONS[-1])

    async def _discover(self, wanted: str) -> ServerInfo:
        try:
            result = await self._discovered(wanted)
        except ServerError as error:
            named = _mutual(as_object(error.data).get("supported"))
            if error.code != UNSUPPORTED_PROTOCOL_VERSION or not named:
                raise
            result = await self._discovered(named[-1])  # once: it said itself that this will do
        offered = result.get("supportedVersions")
        mutual = _mutual(offered)
        if not mutual:
            raise HandshakeFailed(f"it offers the protocol versions {offered!r}, of which this client knows none", retriable=False)
        identity = as_object(as_object(result.get("_meta")).get(SERVER_INFO_META_KEY))
        return _server_info(mutual[-1], identity, result, self._opening.safe)

    async def _discovered(self, wanted: str) -> Json:
        params, options = self._stamps.discovery(wanted)
        budget = Budget(timeout=DISCOVER_TIMEOUT, ceiling=DISCOVER_TIMEOUT)
        return await self._exchange("server/discover", params, options, budget)

    async def _initialize(self) -> ServerInfo:
        timeout = self._opening.config.startup_timeout
        wanted = self._opening.config.protocol_version
        version = wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        params = {"protocolVersion": version, "capabilities": self._capabilities, "clientInfo": CLIENT_INFO}
        result = await self._exchange("initialize", params, {"cancel_on_abandon": False}, Budget(timeout=timeout, ceiling=timeout))
        agreed = result.get("protocolVersion")
        if agreed not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise HandshakeFailed(f"it chose the protocol version {agreed!r}, which this client does not know", retriable=False)
        return _server_info(str(agreed), as_object(result.get("serverInfo")), result, self._opening.safe)


def said(text: str, limit: int, safe: Callable[[str], str]) -> str:
    """What a server said, on one line. Secrets go before it is cut: a part of one would not be found again."""
    return line(safe(clean(text)), limit)


def _mutual(offered: object) -> list[str]:
    """Those versions of the later era among `offered` that this client knows, the newest last."""
    return [known for known in MODERN_PROTOCOL_VERSIONS if isinstance(offered, list) and known in offered]


def _server_info(protocol: str, identity: Json, result: Json, safe: Callable[[str], str]) -> ServerInfo:
    instructions = result.get("instructions")
    return ServerInfo(
        name=said(str(identity.get("title") or identity.get("name") or ""), 100, safe),
        version=said(str(identity.get("version") or ""), 50, safe),
        protocol=protocol,
        instructions=instructions if isinstance(instructions, str) else "",
        capabilities=as_object(result.get("capabilities")),
        fresh_for=fresh_for(result),
    )
