"""The first engine: the official SDK's dispatcher and transports, with a session of our own on top.

The SDK's client session validates whole results strictly and so loses 188 tools to one bad schema; here a result is a plain
dict, and whoever reads it is lenient item by item. Era negotiation, stamps and deadlines are ours as well.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from toolbay._lenient import as_object
from toolbay._text import clean
from toolbay._text import line as one_line
from toolbay.config.models import TransportType
from toolbay.errors import (
    AuthRequired,
    BadCall,
    CallError,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    HandshakeFailed,
    ServerError,
    ToolbayError,
)
from toolbay.types import Json, Progress
from toolbay.upstream.engine import Budget, Opening, ServerInfo, fresh_for
from toolbay.upstream.ledger import Entry, Ledger
from toolbay.upstream.logs import quiet
from toolbay.upstream.process import Child
from toolbay.upstream.transports import Line, connect

CLIENT_INFO: Json = {"name": "toolbay", "version": version("toolbay")}
DISCOVER_TIMEOUT = 12.0
"""Seconds for the probe of a server's era over HTTP: more than connecting may take, so that it is told where that fails."""
REJECTED = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, -32020, -32021, -32022})
"""Codes that say, by contract, that a request was refused before anything was done."""
SUBSCRIBED = ("tools", "prompts", "resources")
RELISTEN_DELAYS = (1.0, 5.0, 30.0)
"""Seconds before a change subscription that ended is asked for again."""

RELISTEN_STABLE = 60.0
"""Seconds after which a subscription that ended was a good one: the next one is asked for soon."""

_log = logging.getLogger("toolbay.upstream")
quiet()  # the SDK's modules are loaded by now


class Session:
    """One live session over a pair of streams: the `Engine` of a connection."""

    def __init__(self, opening: Opening, dispatcher: JSONRPCDispatcher[TransportContext], ledger: Ledger, line: Line) -> None:
        self._opening = opening
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._line = line
        self._info = ServerInfo()
        self._progress: dict[int, Callable[[Progress], None]] = {}
        self._param_headers: dict[str, dict[tuple[str, ...], str]] = {}
        self._roots = [{"uri": Path(root).expanduser().resolve().as_uri(), "name": Path(root).name} for root in opening.config.roots]

    @property
    def info(self) -> ServerInfo:
        return self._info

    @property
    def died(self) -> anyio.Event:
        return self._line.died

    def last_words(self) -> ToolbayError | None:
        return self._line.reason

    async def request(self, method: str, params: Json, *, budget: Budget, on_progress: Callable[[Progress], None] | None = None) -> Json:
        """See `Engine.request`."""
        if self.died.is_set():
            raise self._lost(sent=False)
        _check(params)
        params, options = self._stamped(method, params)
        result = await self._exchange(method, params, options, budget, on_progress)
        if result.get("resultType") == "input_required":
            raise CallError("the server asked for more input before it would go on, which this client does not give; the call has not run")
        if method == "tools/list":
            result = self._learn_headers(result)
        return result

    async def _exchange(
        self, method: str, params: Json, options: CallOptions, budget: Budget, on_progress: Callable[[Progress], None] | None = None
    ) -> Json:
        entry = self._ledger.open()
        options["request_id"] = entry.id
        started = anyio.current_time()
        scope = anyio.CancelScope(deadline=started + budget.first)

        def written() -> None:
            scope.deadline = min(anyio.current_time() + budget.first, started + budget.ceiling)

        def progressed(progress: Progress) -> None:
            scope.deadline = min(anyio.current_time() + budget.timeout, started + budget.ceiling)
            if on_progress is not None:
                on_progress(progress)

        entry.on_sent, entry.on_fault = written, scope.cancel
        self._progress[entry.id] = progressed
        if method == "tools/call":
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": entry.id}}
        try:
            with scope:
                return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            raise self._judge(error, entry) from error
        finally:
            self._ledger.close(entry)
            self._progress.pop(entry.id, None)
        # Only the scope's own cancellation gets here: a deadline, or a fault that was noted while no answer could come.
        if entry.fault is not None:
            raise self._told(entry.fault, entry)
        waited = anyio.current_time() - started
        raise CallTimeout(f"it gave no answer within {waited:.0f} s" if waited >= 1 else "it gave no answer in time", sent=entry.sent)

    def _judge(self, error: MCPError, entry: Entry) -> ToolbayError:
        """What an error of the SDK was, by the facts that were noted beneath it."""
        if entry.fault is not None:
            return self._told(entry.fault, entry)
        if entry.cut is not None:
            return self._told(entry.cut, entry)
        if not entry.answered:
            return self._lost(sent=entry.sent)
        if error.code == PARSE_ERROR and self._opening.config.type is not TransportType.STDIO:
            # The SDK's own words of an answer that it could not read are a validator's dump.
            return ServerError("its answer is no JSON-RPC message", code=error.code, ran=None)
        return ServerError(
            _line(error.message, 500, self._opening.safe) or "no message", code=error.code, data=error.data, ran=error.code not in REJECTED
        )

    def _told(self, fault: ToolbayError, entry: Entry) -> ToolbayError:
        if isinstance(fault, ConnectionFailed) and self._info.protocol and not isinstance(fault, AuthRequired):
            return ConnectionLost(str(fault), server=self._opening.name, sent=False)
        if isinstance(fault, ConnectionLost):
            return ConnectionLost(str(fault), server=self._opening.name, sent=entry.sent)
        return fault

    def _lost(self, *, sent: bool) -> ConnectionLost:
        reason = self._line.reason
        return ConnectionLost(str(reason) if reason else "the connection was closed", server=self._opening.name, sent=sent)

    # -- the handshake ------------------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Agree on an era and a version.

        A pipe is greeted with `initialize` first, since the probe of the later era kills many older servers; over HTTP the
        probe is a request like any other, and goes first.

        Raises:
            ConnectionFailed, ServerError: as the server answered.
        """
        wanted = self._opening.config.protocol_version
        stateless = self._opening.config.type is TransportType.HTTP
        if wanted in MODERN_PROTOCOL_VERSIONS:
            await self._discover(wanted)
        elif wanted == "auto" and stateless:
            if not await self._probe():
                await self._initialize()
        else:
            try:
                await self._initialize()
            except ServerError as error:
                if wanted != "auto" or error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                    raise
                await self._discover(MODERN_PROTOCOL_VERSIONS[-1])

    async def _probe(self) -> bool:
        try:
            await self._discover(MODERN_PROTOCOL_VERSIONS[-1])
        except (CallError, HandshakeFailed):
            # Whatever else an older server answers to a method that it does not know: no evidence of the later era.
            return False
        return True

    async def _discover(self, wanted: str) -> None:
        meta = {PROTOCOL_VERSION_META_KEY: wanted, CLIENT_INFO_META_KEY: CLIENT_INFO, CLIENT_CAPABILITIES_META_KEY: self._capabilities()}
        options: CallOptions = {
            "cancel_on_abandon": False,
            "headers": {MCP_PROTOCOL_VERSION_HEADER: wanted, MCP_METHOD_HEADER: "server/discover"},
        }
        budget = Budget(timeout=DISCOVER_TIMEOUT, ceiling=DISCOVER_TIMEOUT)
        result = await self._exchange("server/discover", {"_meta": meta}, options, budget)
        offered = result.get("supportedVersions")
        mutual = [known for known in MODERN_PROTOCOL_VERSIONS if isinstance(offered, list) and known in offered]
        if not mutual:
            raise HandshakeFailed(f"it offers the protocol versions {offered!r}, of which this client knows none", retriable=False)
        self._info = _server_info(mutual[-1], _identity(result), result, self._opening.safe)

    async def _initialize(self) -> None:
        timeout = self._opening.config.startup_timeout
        wanted = self._opening.config.protocol_version
        version = wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        params = {"protocolVersion": version, "capabilities": self._capabilities(), "clientInfo": CLIENT_INFO}
        result = await self._exchange("initialize", params, {"cancel_on_abandon": False}, Budget(timeout=timeout, ceiling=timeout))
        agreed = result.get("protocolVersion")
        if agreed not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise HandshakeFailed(f"it chose the protocol version {agreed!r}, which this client does not know", retriable=False)
        self._info = _server_info(str(agreed), as_object(result.get("serverInfo")), result, self._opening.safe)
        await self._dispatcher.notify("notifications/initialized", None, {"headers": {MCP_PROTOCOL_VERSION_HEADER: str(agreed)}})

    def _capabilities(self) -> Json:
        return {"roots": {}} if self._roots else {}

    def _stamped(self, method: str, params: Json) -> tuple[Json, CallOptions]:
        """The request as its era wants it: `_meta` and headers (2026-07-28), or the version header alone."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: self._info.protocol}
        if not self._info.modern:
            return params, {"headers": headers}
        meta = {
            LOG_LEVEL_META_KEY: "info",
            **params.get("_meta", {}),
            PROTOCOL_VERSION_META_KEY: self._info.protocol,
            CLIENT_INFO_META_KEY: CLIENT_INFO,
            CLIENT_CAPABILITIES_META_KEY: self._capabilities(),
        }
        headers[MCP_METHOD_HEADER] = method
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if method == "tools/call" and name in self._param_headers:
                headers.update(mcp_param_headers(self._param_headers[name], as_object(params.get("arguments"))))
        return {**params, "_meta": meta}, {"headers": headers}

    def _learn_headers(self, result: Json) -> Json:
        """Which parameters of which tools go into headers as well; tools whose marks are invalid are dropped (2026-07-28)."""
        if not self._info.modern or self._opening.config.type is not TransportType.HTTP:
            return result
        kept: list[Any] = []
        tools: Any = result.get("tools")
        for item in tools if isinstance(tools, list) else ():  # pyright: ignore[reportUnknownVariableType]
            tool = as_object(item)  # pyright: ignore[reportUnknownArgumentType]
            schema: Any = tool.get("inputSchema")
            if (reason := find_invalid_x_mcp_header(schema)) is not None:
                _log.warning("%s: tool %r is left out: %s", self._opening.name, tool.get("name"), reason)
                continue
            if found := x_mcp_header_map(schema):
                self._param_headers[str(tool.get("name"))] = found
            kept.append(tool)
        return {**result, "tools": kept}

    # -- what the server sends of itself ------------------------------------------------------------------------------

    def notified(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Take a notification in the order of arrival; True: nobody else needs to see it."""
        given = dict(params or {})
        if method == "notifications/progress":
            token, value = given.get("progressToken"), given.get("progress")
            listener = self._progress.get(token) if isinstance(token, int) else None
            if listener is not None and isinstance(value, int | float):
                total, message = given.get("total"), given.get("message")
                listener(
                    Progress(
                        progress=float(value),
                        total=float(total) if isinstance(total, int | float) else None,
                        message=_line(message, 200, self._opening.safe) if isinstance(message, str) else None,
                    )
                )
        else:
            self._opening.on_notification(method, given)
        return True

    async def asked(self, _context: DispatchContext[TransportContext], method: str, _params: Mapping[str, Any] | None) -> Json:
        """Answer a request of the server. What was not offered to it is refused."""
        await anyio.lowlevel.checkpoint()
        if method == "ping":
            return {}
        if method == "roots/list" and self._roots:
            return {"roots": self._roots}
        raise MCPError(METHOD_NOT_FOUND, f"{method} is not offered by this client")

    async def unheard(self, _context: DispatchContext[TransportContext], _method: str, _params: Mapping[str, Any] | None) -> None:
        """Never called: `notified` takes every notification."""
        await anyio.lowlevel.checkpoint()

    async def follow_changes(self) -> None:
        """Hold a change subscription open (2026-07-28); earlier servers send changes unasked."""
        offered = self._info.capabilities
        wanted = {f"{kind}ListChanged": True for kind in SUBSCRIBED if as_object(offered.get(kind)).get("listChanged")}
        if not self._info.modern or not wanted:
            return
        delays = iter(RELISTEN_DELAYS)
        for attempt in itertools.count(1):
            started = anyio.current_time()
            params, options = self._stamped("subscriptions/listen", {"notifications": wanted})
            options["request_id"] = f"listen-{attempt}"
            try:
                await self._dispatcher.send_raw_request("subscriptions/listen", params, options)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND or self.died.is_set():
                    return
            delays = iter(RELISTEN_DELAYS) if anyio.current_time() - started >= RELISTEN_STABLE else delays
            await anyio.sleep(next(delays, RELISTEN_DELAYS[-1]))


def _identity(discovered: Json) -> Json:
    return as_object(as_object(discovered.get("_meta")).get(SERVER_INFO_META_KEY))


def _line(text: str, limit: int, safe: Callable[[str], str]) -> str:
    """What a server said, on one line. Secrets go before it is cut: a part of one would not be found again."""
    return one_line(safe(clean(text)), limit)


def _server_info(protocol: str, identity: Json, result: Json, safe: Callable[[str], str]) -> ServerInfo:
    instructions = result.get("instructions")
    return ServerInfo(
        name=_line(str(identity.get("title") or identity.get("name") or ""), 100, safe),
        version=_line(str(identity.get("version") or ""), 50, safe),
        protocol=protocol,
        instructions=instructions if isinstance(instructions, str) else "",
        capabilities=as_object(result.get("capabilities")),
        fresh_for=fresh_for(result),
    )


def _check(params: Json) -> None:
    """Refuse here what cannot be written: further down it would cost the whole connection.

    Raises:
        BadCall: nothing was sent.
    """
    try:
        json.dumps(params, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise BadCall("its arguments hold half of a character (a lone surrogate), which cannot be sent: repair that text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadCall(f"its arguments cannot be sent as JSON ({one_line(str(error), 100)})") from None


@asynccontextmanager
async def session(opening: Opening, child: Child | None) -> AsyncGenerator[Session]:
    """A session with the server, greeted and ready. The child of a stdio server is running already and stays its owner's."""
    ledger, line = Ledger(), Line()
    async with connect(opening, child, ledger, line) as (read, write):
        dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(read, write)
        made = Session(opening, dispatcher, ledger, line)
        async with anyio.create_task_group() as group:
            await group.start(dispatcher.run, made.asked, made.unheard, made.notified, name=f"{opening.name}: dispatch")
            try:
                await made.greet()
                group.start_soon(made.follow_changes, name=f"{opening.name}: changes")
                yield made
            finally:
                group.cancel_scope.cancel()
