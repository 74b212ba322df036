"""A lock applied to connections: what each of them may offer, and whether a use of it may be sent, as it is now."""

from __future__ import annotations

from dataclasses import replace

from toolbay.errors import BadCall
from toolbay.lock import UNPINNED, Lock, Offered, Verdicts
from toolbay.types import Subject
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing


class Quarantine:
    """Judges each listing once, when it is first asked about. Setting `lock` judges everything anew."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, tuple[Listing, Verdicts]] = {}

    @property
    def lock(self) -> Lock:
        return self._lock

    @lock.setter
    def lock(self, lock: Lock) -> None:
        self._lock = lock
        self._known.clear()

    def of(self, connection: Connection) -> Verdicts:
        """What is said of a server's present definitions."""
        listing, known = connection.listing, self._known.get(connection.name)
        if known is not None and known[0] is listing:
            return known[1]
        offered = self.offered(connection)
        if offered is None or listing is None:
            return UNPINNED
        verdicts = self._lock.judge(offered)
        self._known[connection.name] = (listing, verdicts)
        return verdicts

    def offered(self, connection: Connection) -> Offered | None:
        """A server as it is now, for `Lock.accept`; None while it is not there."""
        if connection.listing is None:
            return None
        return Offered(
            name=connection.name,
            config=connection.config,
            listing=connection.listing,
            instructions=connection.info.instructions,
            mask=connection.safe,
        )

    def admit(self, connection: Connection, subject: Subject | None) -> None:
        """Judge a use by what the server lists when it is sent, whatever snapshot it was chosen from.

        Raises:
            BadCall: it is quarantined.
        """
        refusal = self.of(connection).refusal(subject) if subject else ""
        if refusal:
            raise BadCall(f"it was not sent: {refusal}")

    def listing(self, connection: Connection) -> Listing | None:
        """What a server listed, as it came, without what is quarantined."""
        listing, verdicts = connection.listing, self.of(connection)
        if listing is None or verdicts.everything:
            return listing
        return replace(
            listing,
            tools=tuple(item for item in listing.tools if verdicts.allows(("tools", item["name"]))),
            resources=tuple(item for item in listing.resources if verdicts.allows(("resources", str(item.get("uri"))))),
            templates=tuple(item for item in listing.templates if verdicts.allows(("templates", str(item.get("uriTemplate"))))),
            prompts=tuple(item for item in listing.prompts if verdicts.allows(("prompts", item["name"]))),
        )
