"""What the servers offer, put together: the tools of all of them under their names, and what people should know of them.

What did not change is not made again: a tool keeps its identity from one assembly to the next, and whoever compares two
snapshots looks at what is new only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolbay._redact import trace
from toolbay._weight import aside, heavy
from toolbay.config.models import ServerConfig, ToolsConfig
from toolbay.events import About, Notice
from toolbay.lock import Verdicts
from toolbay.types import ArtifactStore, Tool
from toolbay.upstream.allow import select
from toolbay.upstream.capabilities import Maker, Offer, Offers
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing
from toolbay.upstream.naming import Key, assign, wrapped

SHOWN = 20
"""Complaints about one server's listing that people are told; of more they are told how many."""
REMEMBERED = 500
"""Sentences about one server that are remembered as told."""

LIGHT = 50_000
"""Weight of a listing up to which its offers are made at once: some 50 ordinary tools, a few milliseconds."""

_NOTHING = Offers(offers=(), complaints=())
_log = logging.getLogger("toolbay.fleet")


class Assembly:
    """The offers of each connection, and the names that they have beside those of the others."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._budget = ToolsConfig().result_budget
        self._made: dict[str, tuple[Listing, Offers]] = {}
        self._prepared: dict[str, tuple[Listing, Offers]] = {}
        self._tools: dict[Key, tuple[Offer, Tool]] = {}
        self._told: dict[str, dict[str, None]] = {}

    @property
    def budget(self) -> int:
        """Characters of one result's text. Another one makes every offer anew."""
        return self._budget

    @budget.setter
    def budget(self, budget: int) -> None:
        if budget != self._budget:
            self._budget = budget
            self._made.clear()
            self._prepared.clear()

    def forget(self, server: str) -> None:
        """A server is closed: one of that name that comes later is another one."""
        self._made.pop(server, None)
        self._prepared.pop(server, None)
        self._told.pop(server, None)

    async def prepare(self, connection: Connection, listing: Listing) -> None:
        """Make the offers of a listing that is about to be the connection's: beside the event loop where they are many or heavy."""
        items = [*listing.tools, *listing.resources, *listing.templates, *listing.prompts]
        offers = await aside(self._make, connection, listing, when=heavy(items, LIGHT))
        self._prepared[connection.name] = (listing, offers)

    def tools(self, connections: Mapping[str, Connection], judged: Mapping[str, Verdicts]) -> tuple[list[Tool], list[Notice]]:
        """All tools under their names, and what people were not told before."""
        offers = {name: self._offers_of(connection) for name, connection in connections.items()}
        keys = [offer.key for made in offers.values() for offer in made.offers]
        good = {key for key in keys if judged[key.server].offers(key.kind, key.uri or key.name)}
        # What is quarantined takes no name away from what is not.
        names = {**{key: wrapped(key) for key in keys}, **assign(good)}
        known, self._tools = self._tools, {}
        tools: list[Tool] = []
        news: list[Notice] = []
        for name, made in offers.items():
            config = connections[name].config
            allowed, unmatched = _selected(config, made, names)
            tools += [self._named(offer, names[offer.key], known) for offer in made.offers if offer.key in allowed and offer.key in good]
            left_out: dict[str, About] = {**dict.fromkeys(_bounded(made.complaints), "definition"), **dict.fromkeys(unmatched, "selection")}
            news += self._news(name, {**left_out, judged[name].notice: "pin"})
        return tools, news

    def _named(self, offer: Offer, name: str, known: Mapping[Key, tuple[Offer, Tool]]) -> Tool:
        before = known.get(offer.key)
        tool = before[1] if before and before[0] is offer and before[1].name == name else replace(offer.tool, name=name)
        self._tools[offer.key] = (offer, tool)
        return tool

    def _news(self, server: str, sentences: Mapping[str, About]) -> list[Notice]:
        """The sentences that are new, with what each is about. What is left out is an aside."""
        told = self._told.setdefault(server, {})
        new = [text for text in sentences if text and text not in told]
        told.update(dict.fromkeys(new))
        for text in list(told)[: max(len(told) - REMEMBERED, 0)]:
            del told[text]
        return [Notice(server=server, text=text, aside=sentences[text] != "pin", about=sentences[text]) for text in new]

    def _offers_of(self, connection: Connection) -> Offers:
        listing = connection.listing
        if listing is None:
            return _NOTHING
        known = self._made.get(connection.name)
        if known is None or known[0] is not listing:
            known = self._prepared.pop(connection.name, None)
            if known is None or known[0] is not listing:
                known = (listing, self._make(connection, listing))
            self._made[connection.name] = known
        return known[1]

    def _make(self, connection: Connection, listing: Listing) -> Offers:
        try:
            return Maker(connection, self._store, self._budget).make(listing)
        except Exception as error:
            # A server can list anything. What nobody foresaw in one listing must not take the tools of all others away.
            _log.error("the offers of %s could not be made\n%s", connection.name, trace(error, connection.safe))
            return Offers(offers=(), complaints=(f"nothing of it can be offered: its lists could not be read ({type(error).__name__})",))


def _selected(config: ServerConfig, made: Offers, names: Mapping[Key, str]) -> tuple[frozenset[Key], list[str]]:
    """What the configuration lets through, and its entries that name nothing (while there is nothing, none does)."""
    selection = select(config, [offer.key for offer in made.offers], names)
    return selection.allowed, [entry.text for entry in selection.unmatched] if made.offers else []


def _bounded(complaints: Sequence[str]) -> tuple[str, ...]:
    if len(complaints) <= SHOWN:
        return tuple(complaints)
    return (*complaints[:SHOWN], f"and {len(complaints) - SHOWN} more like these")
