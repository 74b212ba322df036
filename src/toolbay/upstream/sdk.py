"""The first engine: the official SDK's dispatcher over transports of our own, with a session of our own on top.

The SDK's client session validates whole results strictly and so loses 188 tools to one bad schema; here a result is a plain
dict, and whoever reads it is lenient item by item. Era negotiation, stamps and deadlines are ours as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import HEADER_MISMATCH, METHOD_NOT_FOUND

from toolbay._lenient import as_object
from toolbay._text import line as one_line
from toolbay._weight import plain
from toolbay.errors import (
    AuthRequired,
    BadCall,
    BlockedAddress,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    ToolbayError,
)
from toolbay.types import Json, Progress
from toolbay.upstream.deadlines import Deadlines
from toolbay.upstream.engine import AT_ONCE, Budget, Opening, ServerInfo
from toolbay.upstream.floods import Flood
from toolbay.upstream.greeting import Greeting, said
from toolbay.upstream.inputs import further
from toolbay.upstream.ledger import Entry, Ledger
from toolbay.upstream.logs import quiet
from toolbay.upstream.process import Child
from toolbay.upstream.stamps import Stamps
from toolbay.upstream.statuses import REJECTED
from toolbay.upstream.streams import INITIALIZED, NotFollowed
from toolbay.upstream.subscription import Subscription
from toolbay.upstream.transports import Line, connect

LIST_PAGES = 100
"""Pages of tools that are read to learn the headers of one anew."""
SUBSCRIBED = ("tools", "prompts", "resources")
PROGRESS_BURST, PROGRESS_PER_SECOND = 100, 20.0
"""Progress of one call that is passed on at once, and then in a second. All of it extends the deadline."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_log = logging.getLogger("toolbay.upstream")
quiet()  # the SDK's modules are loaded by now


class Session:
    """One live session over a pair of streams: the `Engine` of a connection."""

    def __init__(
        self, opening: Opening, dispatcher: JSONRPCDispatcher[TransportContext], ledger: Ledger, line: Line, deadlines: Deadlines
    ) -> None:
        self._opening = opening
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._subscription = Subscription(opening.name, opening.on_gap)
        self._line = line
        self._info = ServerInfo()
        self._progress: dict[int, Callable[[Progress], None]] = {}
        self._deadlines = deadlines
        self._clock = asyncio.get_running_loop().time  # found once: each request looks at it three times
        self._roots = [{"uri": Path(root).expanduser().resolve().as_uri(), "name": Path(root).name} for root in opening.config.roots]
        self._stamps = Stamps(opening, self._capabilities())

    @property
    def info(self) -> ServerInfo:
        return self._info

    @property
    def died(self) -> anyio.Event:
        return self._line.died

    def last_words(self) -> ToolbayError | None:
        return self._line.reason

    async def request(
        self,
        method: str,
        params: Json,
        *,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Json:
        """See `Engine.request`. What the server asks for meanwhile is part of it, and so is learning a tool's headers anew."""
        if self.died.is_set():
            raise self._lost(sent=False)
        _check(params)
        began, left, rounds, learnt = self._clock(), budget, 0, False
        while True:
            stamped, options = self._stamps.request(self._info, method, params)
            try:
                result = await self._exchange(method, stamped, options, left, (on_progress, on_sent))
            except ServerError as error:
                if error.code != HEADER_MISMATCH or learnt or method != "tools/call" or not self._stamps.learns(self._info):
                    raise
                learnt = True
                await self._learn_again(str(params.get("name")), _rest(budget, began))
                left = _rest(budget, began)
                continue
            if result.get("resultType") != "input_required":
                return self._stamps.learn(self._info, result) if method == "tools/list" else result
            params, pause = further(params, result, roots=self._roots, rounds=(rounds := rounds + 1))
            await anyio.sleep(pause)
            left = _rest(budget, began)

    async def _learn_again(self, tool: str, budget: Budget) -> None:
        """Read the tools anew as far as `tool`: the server says that its headers are not those of its schema (-32020)."""
        params: Json = {}
        for _ in range(LIST_PAGES):
            result = await self.request("tools/list", params, budget=budget)
            if tool in [as_object(item).get("name") for item in result["tools"]] or not isinstance(result.get("nextCursor"), str):
                return
            params = {"cursor": result["nextCursor"]}

    async def _exchange(
        self,
        method: str,
        params: Json,
        options: CallOptions,
        budget: Budget,
        told: tuple[Callable[[Progress], None] | None, Callable[[], None] | None] = (None, None),
    ) -> Json:
        on_progress, on_sent = told
        entry = self._ledger.open()
        options["request_id"] = entry.id
        started = self._clock()
        scope = anyio.CancelScope()
        self._deadlines.put(entry.id, started + budget.first, scope.cancel)

        def written() -> None:
            now = self._clock()
            if now - started > AT_ONCE:
                self._deadlines.put(entry.id, min(now + budget.first, started + budget.ceiling), scope.cancel)
            if on_sent is not None:
                on_sent()

        flood: Flood | None = None

        def progressed(progress: Progress) -> None:
            nonlocal flood
            now = self._clock()
            self._deadlines.put(entry.id, min(now + budget.timeout, started + budget.ceiling), scope.cancel)
            if on_progress is None:
                return
            flood = flood or Flood(PROGRESS_BURST, PROGRESS_PER_SECOND)
            if flood.passes(now):
                on_progress(progress)
            else:
                self._opening.diagnostics.dropped += 1

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
            self._deadlines.drop(entry.id)
        # Only the scope's own cancellation gets here: a deadline, or a fault that was noted while no answer could come.
        if entry.fault is not None:
            raise self._told(entry.fault, entry)
        waited = self._clock() - started
        raise CallTimeout(f"it gave no answer within {waited:.0f} s" if waited >= 1 else "it gave no answer in time", sent=entry.sent)

    def _judge(self, error: MCPError, entry: Entry) -> ToolbayError:
        """What an error of the SDK was, by the facts that were noted beneath it."""
        if entry.fault is not None:
            return self._told(entry.fault, entry)
        if entry.cut is not None:
            return self._told(entry.cut, entry)
        if not entry.answered:
            return self._lost(sent=entry.sent)
        return _refusal(error, self._opening.safe)

    def _told(self, fault: ToolbayError, entry: Entry) -> ToolbayError:
        if isinstance(fault, NotFollowed) and self._info.protocol:
            return ServerError(str(fault), code=fault.status, ran=fault.ran)
        if isinstance(fault, AuthRequired) or (isinstance(fault, ConnectionFailed | BlockedAddress) and not self._info.protocol):
            return fault
        if isinstance(fault, ConnectionLost | ConnectionFailed | BlockedAddress):
            return ConnectionLost(str(fault), server=self._opening.name, sent=entry.sent)
        return fault

    def _lost(self, *, sent: bool) -> ConnectionLost | ConnectionFailed:
        return _gone(self._line.reason, self._opening.name, sent=sent, greeted=bool(self._info.protocol))

    # -- the handshake ------------------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """See `Greeting.agree`."""
        greeting = Greeting(self._opening, self._stamps, self._capabilities(), self._exchange)
        self._info = await greeting.agree()
        if not self._info.modern:
            headers = {MCP_PROTOCOL_VERSION_HEADER: self._info.protocol}
            await self._dispatcher.notify(INITIALIZED, None, {"headers": headers})

    def _capabilities(self) -> Json:
        return {"roots": {}} if self._roots else {}

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
                        message=said(message, 200, self._opening.safe) if isinstance(message, str) else None,
                    )
                )
        elif method == "notifications/subscriptions/acknowledged":
            self._subscription.acknowledged()
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

        async def listen(request_id: str) -> bool:
            params, options = self._stamps.request(self._info, "subscriptions/listen", {"notifications": wanted})
            options["request_id"] = request_id
            try:
                await self._dispatcher.send_raw_request("subscriptions/listen", params, options)
            except MCPError as error:
                return error.code != METHOD_NOT_FOUND
            return True

        await self._subscription.hold(listen)


def _gone(reason: ToolbayError | None, server: str, *, sent: bool, greeted: bool) -> ConnectionLost | ConnectionFailed:
    """What a request met whose session is over, for `reason`. An error of its own for each."""
    if isinstance(reason, ConnectionFailed) and not greeted:
        return type(reason)(str(reason), server=server, retriable=reason.retriable)
    return ConnectionLost(str(reason) if reason else "the connection was closed", server=server, sent=sent)


def _refusal(error: MCPError, safe: Callable[[str], str]) -> ServerError:
    """A server's own error. Its code says whether the call was refused, or carried out and failed."""
    return ServerError(said(error.message, 500, safe) or "no message", code=error.code, data=error.data, ran=error.code not in REJECTED)


def _rest(budget: Budget, began: float) -> Budget:
    """What is left of a budget for what follows in the same request."""
    spent = anyio.current_time() - began
    return Budget(timeout=budget.timeout, ceiling=max(budget.ceiling - spent, 0.001), left=max(budget.first - spent, 0.001))


def _check(params: Json) -> None:
    """Refuse here what cannot be written: further down it would cost the whole connection.

    Raises:
        BadCall: nothing was sent.
    """
    if plain(params):
        return  # most calls: encoding them here and once more when they are written would be a tenth of a call's work
    try:
        _ENCODER.encode(params).encode()
    except UnicodeEncodeError:
        raise BadCall("its arguments hold half of a character (a lone surrogate), which cannot be sent: repair that text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadCall(f"its arguments cannot be sent as JSON ({one_line(str(error), 100)})") from None


@asynccontextmanager
async def session(opening: Opening, child: Child | None) -> AsyncGenerator[Session]:
    """A session with the server, greeted and ready. The child of a stdio server is running already and stays its owner's."""
    ledger, line, deadlines = Ledger(opening.ids), Line(), Deadlines()
    try:
        async with connect(opening, child, ledger, line) as (read, write):
            dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(read, write)
            made = Session(opening, dispatcher, ledger, line, deadlines)
            async with anyio.create_task_group() as group:
                await group.start(dispatcher.run, made.asked, made.unheard, made.notified, name=f"{opening.name}: dispatch")
                try:
                    await made.greet()
                    group.start_soon(made.follow_changes, name=f"{opening.name}: changes")
                    yield made
                finally:
                    group.cancel_scope.cancel()
    finally:
        deadlines.end()
