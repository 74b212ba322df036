"""A call against what its server lists at the moment it is sent.

Arguments are judged by the definition that a tool had when it was chosen. Until it is sent, its server may come up (LIF-6),
be brought back, or be waited for a person's word; what it lists then is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from toolbay import arguments as args
from toolbay._lenient import as_object
from toolbay._text import line
from toolbay.errors import BadCall
from toolbay.registry import parameters
from toolbay.types import Json, Subject
from toolbay.upstream.connection import Connection
from toolbay.upstream.listing import Listing

REMEMBERED = 2_000
"""Tools that a server lists no more whose schemas are still known; of more the oldest are forgotten."""


@dataclass(kw_only=True)
class _Seen:
    """The newest listing of a server: its tools' schemas, and which of them were others once."""

    listing: Listing | None = None
    names: frozenset[str] = frozenset()
    schemas: dict[str, Json] = field(default_factory=dict[str, Json])
    changed: set[str] = field(default_factory=set[str])


class Freshness:
    """Notes which schemas have changed, so that only calls of those tools are judged once more."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def see(self, connection: Connection) -> None:
        """To be called for each new listing."""
        seen, listing = self._seen.setdefault(connection.name, _Seen()), connection.listing
        if listing is None or seen.listing is listing:
            return
        schemas = {item["name"]: as_object(item.get("inputSchema")) for item in listing.tools}
        seen.changed |= {name for name, schema in schemas.items() if name in seen.schemas and seen.schemas[name] != schema}
        # What is gone for now is still compared when it comes back.
        seen.schemas |= schemas
        gone = [name for name in seen.schemas if name not in schemas]
        for name in gone[: max(len(gone) - REMEMBERED, 0)]:
            del seen.schemas[name]
            seen.changed.discard(name)
        seen.listing, seen.names = listing, frozenset(schemas)

    def forget(self, server: str) -> None:
        """A server is closed: one of that name that comes later is another one."""
        self._seen.pop(server, None)

    def admit(self, connection: Connection, subject: Subject | None, params: Json, nearest: Callable[[str], str | None]) -> None:
        """Judge a call by what its server lists now. `nearest` gives the tool that is probably meant by a name.

        Raises:
            BadCall: the tool is not there any more, or the arguments do not fit it any more.
        """
        if subject is None or subject[0] != "tools" or connection.listing is None:
            return
        self.see(connection)
        seen, name = self._seen[connection.name], subject[1]
        if name not in seen.names:
            near = nearest(name)
            raise BadCall(f"it was not sent: {connection.name} does not list it any more{f'; did you mean {near}?' if near else ''}")
        if name in seen.changed and (problems := _problems(seen.schemas[name], as_object(params.get("arguments")))):
            told = "; ".join(line(problem, 300) for problem in problems)
            raise BadCall(
                f"it was not sent: what it takes has changed since it was chosen, and the arguments do not fit any more ({told}). "
                f"Its parameters are now: {parameters(seen.schemas[name])}"
            )


def _problems(schema: Json, given: Json) -> tuple[str, ...]:
    try:
        validator = args.compile(schema)
    except args.BadSchema:
        return ()  # the server judges
    # What is much work is judged by the server too: nothing waits here.
    return args.check(validator, given) if validator.quick(given) else ()
