"""Everything that a server offers, as it listed it: paged to the end, with bounds, and read leniently item by item."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import anyio

from toolbay._aio import first_of
from toolbay._redact import trace
from toolbay._text import clean, line
from toolbay._weight import aside, heavy
from toolbay.errors import AuthRequired, CallError, ConnectionFailed, ConnectionLost, ServerError
from toolbay.types import Json
from toolbay.upstream.engine import Budget, Engine, fresh_for
from toolbay.upstream.floods import Pace

MAX_PAGES = 100
MAX_ITEMS = 20_000
LIST_BUDGET = Budget(timeout=30.0, ceiling=120.0)
RELIST_DEBOUNCE = 0.3
"""Seconds of quiet before a changed list is read again; servers announce each tool of a hundred one by one."""
RELIST_PATIENCE = 2.0
"""Seconds after which it is read without that quiet."""
RELIST_BURST, RELIST_EVERY = 5, 10.0
"""So many readings may follow each other closely; a server that always announces gets one in so many seconds."""
METHOD_NOT_FOUND = -32601

_LISTS = (
    ("tools", "tools/list", "tools"),
    ("resources", "resources/list", "resources"),
    ("resources", "resources/templates/list", "resourceTemplates"),
    ("prompts", "prompts/list", "prompts"),
)
"""Capability, method, and the key of the items in the result."""
_IDENTITY = frozenset({"name", "uri", "uriTemplate"})

_log = logging.getLogger("toolbay.upstream")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What one server offered at one moment: raw items that have a name, and what was wrong with the others."""

    tools: tuple[Json, ...] = ()
    resources: tuple[Json, ...] = ()
    templates: tuple[Json, ...] = ()
    prompts: tuple[Json, ...] = ()
    complaints: tuple[str, ...] = ()
    fresh_for: float | None = None
    """Seconds that the server lets it be taken as fresh, the fewest of all pages; None where it does not say."""


async def read(engine: Engine, safe: Callable[[str], str] = str, before: Listing | None = None) -> Listing:
    """List all that the server says it has, `masked`.

    A list that it advertises but cannot give, or does not end, costs that list only: what it listed `before` stays, and where
    there is nothing of before, what could be read counts.

    Raises:
        ConnectionLost: it went away meanwhile.
        CallError: its tools could not be listed, and it has nothing else.
    """
    held = _held(before)
    found: dict[str, tuple[Json, ...]] = {}
    complaints: list[str] = []
    fresh: list[float] = []
    failure: CallError | None = None
    for capability, method, key in _LISTS:
        if capability not in engine.info.capabilities:
            found[key] = ()
            continue
        try:
            found[key] = await _pages(engine, method, key, complaints, fresh)
        except _Unending as unending:
            found[key] = held.get(key) or unending.items
            kept = "what it listed before stays" if held.get(key) else "it was read up to there"
            complaints.append(f"its list of {key} {unending}: {kept}")
        except CallError as error:
            known = not (isinstance(error, ServerError) and error.code == METHOD_NOT_FOUND)
            found[key] = held.get(key, ()) if known else ()
            failure = failure or (error if key == "tools" and not found[key] else None)
            if known:
                kept = "; what it listed before stays" if found[key] else ""
                complaints.append(f"its {key} could not be listed: {line(safe(clean(str(error))), 200)}{kept}")
    if failure is not None and not any(found.values()):
        raise failure
    listing = Listing(
        tools=found["tools"],
        resources=found["resources"],
        templates=found["resourceTemplates"],
        prompts=found["prompts"],
        complaints=tuple(complaints),
        fresh_for=min(fresh, default=None),
    )
    weighty = heavy([listing.tools, listing.resources, listing.templates, listing.prompts])
    return await aside(masked, listing, safe, when=weighty)


def _held(before: Listing | None) -> dict[str, tuple[Json, ...]]:
    if before is None:
        return {}
    return {
        "tools": before.tools,
        "resources": before.resources,
        "resourceTemplates": before.templates,
        "prompts": before.prompts,
    }


class Refresh:
    """Reads a server's lists again once it has announced that they changed: one reading at a time. What goes wrong costs that one.

    However many announcements come, one more reading follows the one that is under way; and not too many in a row, for there
    are servers that announce a change each time they are asked.
    """

    def __init__(self, name: str, safe: Callable[[str], str]) -> None:
        self._name = name
        self._safe = safe
        self._due = anyio.Event()
        self._last = 0.0
        self._pace = Pace(RELIST_BURST, RELIST_EVERY)
        self._denied: AuthRequired | None = None
        self._refused = anyio.Event()
        self._engine: Engine | None = None

    def announce(self) -> None:
        """The lists are not what they were, or may not be."""
        self._last = anyio.current_time()
        self._due.set()

    def deny(self, error: AuthRequired, engine: Engine) -> None:
        """A request on `engine` was denied: where the credentials hold for nothing, they do not hold for the lists either."""
        if error.of_all and engine is self._engine:
            self._denied = error
            self._refused.set()

    async def during(
        self, engine: Engine, stop: anyio.Event, *, held: Callable[[], Listing | None], took: Callable[[Listing], Awaitable[None]]
    ) -> AuthRequired | None:
        """Give each listing that is another one than `held` to `took`, until the engine dies or `stop`.

        Or until it wants credentials: that is returned.
        """
        self._engine, self._denied, self._refused = engine, None, anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow, engine, held, took, name=f"{self._name}: lists")
            await first_of(stop, engine.died, self._refused)
            group.cancel_scope.cancel()
        return self._denied

    async def _quiet(self) -> None:
        """Wait for an announcement, for the quiet after it, and for a turn."""
        await self._due.wait()
        latest = anyio.current_time() + RELIST_PATIENCE
        while (now := anyio.current_time()) < (until := min(self._last + RELIST_DEBOUNCE, latest)):  # noqa: ASYNC110 - a time, no event
            await anyio.sleep(until - now)
        await anyio.sleep(self._pace.wait(anyio.current_time()))
        self._pace.take(anyio.current_time())

    async def _follow(self, engine: Engine, held: Callable[[], Listing | None], took: Callable[[Listing], Awaitable[None]]) -> None:
        while True:
            await self._quiet()
            # Whatever is announced from now on sets a new event: at most one more listing follows.
            self._due = anyio.Event()
            try:
                before = held()
                if (listing := await read(engine, self._safe, before)) != before:
                    await took(listing)
            except (CallError, ConnectionFailed, ConnectionLost) as error:
                if isinstance(error, AuthRequired):
                    self.deny(error, engine)
                _log.warning("%s: its changed lists could not be read: %s", self._name, self._safe(str(error)))
            except Exception as error:
                _log.error("%s: its changed lists could not be read\n%s", self._name, trace(error, self._safe))


def masked(listing: Listing, safe: Callable[[str], str]) -> Listing:
    """The listing without the secrets that `safe` knows: a server may tell of what it was given. Names and URIs stay."""
    items = (listing.tools, listing.resources, listing.templates, listing.prompts)
    whole = json.dumps(items, ensure_ascii=False)
    complaints = tuple(safe(text) for text in listing.complaints)
    if safe(whole) == whole:
        return replace(listing, complaints=complaints)
    tools, resources, templates, prompts = (tuple(_masked(item, safe) for item in listed) for listed in items)
    return replace(listing, tools=tools, resources=resources, templates=templates, prompts=prompts, complaints=complaints)


def _masked(item: Json, safe: Callable[[str], str]) -> Json:
    return {key: value if key in _IDENTITY else redacted(value, safe) for key, value in item.items()}


def redacted(value: Any, safe: Callable[[str], str]) -> Any:
    """`value` with every text in it passed through `safe`; keys stay."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, list):
        return [redacted(item, safe) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: redacted(item, safe) for key, item in cast("Json", value).items()}
    return value


class _Unending(Exception):
    """A list has no end; `items` is what was read of it. The text says why, as the end of a sentence."""

    def __init__(self, why: str, items: tuple[Json, ...]) -> None:
        super().__init__(why)
        self.items = items


async def _pages(engine: Engine, method: str, key: str, complaints: list[str], fresh: list[float]) -> tuple[Json, ...]:
    items: list[Json] = []
    names: set[str] = set()
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        result = await engine.request(method, {} if cursor is None else {"cursor": cursor}, budget=LIST_BUDGET)
        if (seconds := fresh_for(result)) is not None:
            fresh.append(seconds)
        for item in _items(result.get(key), key, complaints):
            name = str(item.get("uri") or item.get("uriTemplate") or item["name"])
            if name in names:
                complaints.append(f"it lists {line(name, 80)!r} twice among its {key}: the first one counts")
                continue
            names.add(name)
            items.append(item)
        cursor = result.get("nextCursor")
        # An empty string is a valid cursor; only its absence ends the list.
        if not isinstance(cursor, str):
            return tuple(items)
        if cursor in seen:
            raise _Unending("repeats a cursor", tuple(items))
        if len(items) > MAX_ITEMS:
            raise _Unending(f"is longer than {MAX_ITEMS} items", tuple(items))
        seen.add(cursor)
    raise _Unending(f"has more than {MAX_PAGES} pages", tuple(items))


def _items(value: Any, key: str, complaints: list[str]) -> list[Json]:
    if not isinstance(value, list):
        complaints.append(f"its list of {key} is none")
        return []
    good: list[Json] = []
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(item, dict) and isinstance(item.get("name"), str) and item["name"]:  # pyright: ignore[reportUnknownMemberType]
            good.append(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            complaints.append(f"one of its {key} has no name and is left out")
    return good
