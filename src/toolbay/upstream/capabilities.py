"""A server's tools, resources and prompts as tools of an agent: what it listed, and a connection to call it through.

Everything here is read leniently: what one capability has wrong costs that capability, and is said.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast
from uuid import uuid4

from toolbay import arguments
from toolbay._lenient import as_object, as_objects, as_text
from toolbay._redact import redacted, trace
from toolbay._text import clean, line
from toolbay._weight import aside, heavy
from toolbay.errors import BadCall, Busy, CallError, CallTimeout, ConnectionFailed, ConnectionLost, ServerError
from toolbay.types import (
    MAY_HAVE_RUN,
    ArtifactStore,
    CallContext,
    Hints,
    Json,
    Kind,
    Outcome,
    Subject,
    Tool,
    ToolResult,
    outcome_of,
)
from toolbay.upstream import render, templates
from toolbay.upstream.attempts import Repeat
from toolbay.upstream.connection import Connection
from toolbay.upstream.engine import Budget
from toolbay.upstream.hygiene import hygienic
from toolbay.upstream.listing import Listing
from toolbay.upstream.naming import Key, wrapped
from toolbay.upstream.repeats import Terms, budget_of, terms_of
from toolbay.upstream.schema import UntranslatableSchema, normalise

_log = logging.getLogger(__name__)

DESCRIPTION_LIMIT = 4_000
"""Characters of one description; the longest seen has 14,000, and every model request would carry it."""
_LIGHT_SCHEMA = 20_000
"""Weight up to which an output schema is made ready beside the rest of the program."""
_ANY_CODE = 10**9
"""Beyond it a code is no code, and its digits would take the room of the words."""
ERROR_LIMIT = 500
"""Characters of an error that a model is told (I5)."""
IDEMPOTENCY_KEY = "io.toolbay/idempotencyKey"
_RUN, _CALLS = uuid4().hex, itertools.count(1)
"""In `_meta` of a call: the same for all attempts of it and for no other call, so that a server can tell a repetition."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One capability. `tool` has the plain name until the fleet, which sees all servers, gives it its own."""

    key: Key
    tool: Tool


@dataclass(frozen=True, kw_only=True)
class Offers:
    offers: tuple[Offer, ...]
    complaints: tuple[str, ...]


class Maker:
    """Makes the offers of one connection's listing. `store` takes the files, `budget` bounds the text of one result."""

    def __init__(self, connection: Connection, store: ArtifactStore, budget: int) -> None:
        self._connection = connection
        self._store = store
        self._budget = budget
        self._complaints: list[str] = []

    def make(self, listing: Listing) -> Offers:
        """All that a listing of the connection offers. Pure, and much work for large schemas: may be called in a thread."""
        self._complaints = list(listing.complaints)
        kinds = (
            ("tool", self._tool, listing.tools),
            ("resource", self._resource, listing.resources),
            ("resource template", self._template, listing.templates),
            ("prompt", self._prompt, listing.prompts),
        )
        made = [self._one(what, make, item) for what, make, items in kinds for item in items]
        return Offers(offers=tuple(offer for offer in made if offer is not None), complaints=tuple(self._complaints))

    def _one(self, what: str, make: Callable[[Json], Offer | None], item: Json) -> Offer | None:
        try:
            return make(item)
        except Exception as error:
            # Nothing is known to get here. What a stranger lists must never cost the other servers, so nothing may.
            _log.error("a %s of %s could not be offered\n%s", what, self._connection.name, trace(error, self._connection.safe))
            name = line(str(item.get("name")), 80)
            self._complaints.append(f"its {what} {name!r} is left out: it is of a form that was not foreseen (the log says more)")
            return None

    # -- the kinds ----------------------------------------------------------------------------------------------------

    def _tool(self, item: Json) -> Offer | None:
        name: str = item["name"]
        given = item.get("inputSchema")
        schema: Json = cast("Json", given) if isinstance(given, dict) else {"type": "object", "properties": {}}
        if as_object(item.get("execution")).get("taskSupport") == "required":
            self._complaints.append(f"its tool {line(name, 80)!r} can only be run as a task, which is not offered, and is left out")
            return None
        call = ToolInvocation(self._connection, self._store, self._budget, item)
        return self._offer(Key(self._connection.name, Kind.TOOL, name), item, schema, call, hints=call.hints)

    def _resource(self, item: Json) -> Offer | None:
        uri = item.get("uri")
        if not isinstance(uri, str) or not uri:
            self._complaints.append(f"its resource {line(item['name'], 80)!r} has no URI and is left out")
            return None

        async def call(_arguments: Json, context: CallContext) -> ToolResult:
            return await read_resource(self._connection, uri, self._store, self._budget, on_sent=context.on_sent)

        key = Key(self._connection.name, Kind.RESOURCE, item["name"], uri)
        said = f"Reads the resource {line(uri, 300)} of the server {self._connection.name!r}."
        return self._offer(key, item, {"type": "object", "properties": {}}, call, said=said)

    def _template(self, item: Json) -> Offer | None:
        text = item.get("uriTemplate")
        template = templates.parse(text) if isinstance(text, str) else None
        if template is None:
            self._complaints.append(f"its resource template {line(item['name'], 80)!r} cannot be read and is left out")
            return None

        async def call(given: Json, context: CallContext) -> ToolResult:
            uri, subject = template.expand(given), ("templates", template.text)
            return await read_resource(self._connection, uri, self._store, self._budget, subject, on_sent=context.on_sent)

        key = Key(self._connection.name, Kind.RESOURCE, item["name"], template.text)
        said = f"Reads a resource {line(template.text, 300)} of the server {self._connection.name!r}."
        return self._offer(key, item, template.schema, call, said=said)

    def _prompt(self, item: Json) -> Offer | None:
        name: str = item["name"]
        known = [entry for entry in as_objects(item.get("arguments")) if isinstance(entry.get("name"), str)]
        schema: Json = {
            "type": "object",
            "properties": {entry["name"]: {"type": "string", "description": as_text(entry.get("description"))} for entry in known},
            "required": [entry["name"] for entry in known if entry.get("required") is True],
        }

        async def call(given: Json, context: CallContext) -> ToolResult:
            return await get_prompt(self._connection, name, given, self._store, self._budget, on_sent=context.on_sent)

        said = f"Fills in the prompt {line(name, 100)!r} of the server {self._connection.name!r} and shows it."
        return self._offer(Key(self._connection.name, Kind.PROMPT, name), item, schema, call, said=said)

    def _offer(
        self,
        key: Key,
        item: Json,
        schema: Json,
        invoke: Callable[[Json, CallContext], Awaitable[ToolResult]],
        *,
        said: str = "",
        hints: Hints | None = None,
    ) -> Offer | None:
        title = line(as_text(item.get("title")) or as_text(as_object(item.get("annotations")).get("title")), 200)
        described = clean(as_text(item.get("description")))[:DESCRIPTION_LIMIT].strip()
        try:
            normalised = normalise(schema)
            parameters, lost = hygienic(normalised.parameters)
        except UntranslatableSchema as reason:
            self._complaints.append(f"its {key.kind} {line(key.name, 80)!r} is left out: its schema cannot be used ({reason})")
            return None
        if lost:
            self._complaints.append(
                f"its {key.kind} {line(key.name, 80)!r} has invisible or control characters in its schema ({', '.join(lost)}): "
                "what holds them is not told to the model"
            )
        tool = Tool(
            name=wrapped(key),
            description="\n".join(part for part in (described or title, said) if part) or f"The {key.kind} {line(key.name, 100)}.",
            input_schema=schema,
            parameters=parameters,
            invoke=invoke,
            server=key.server,
            wire_name=key.uri or key.name,
            kind=key.kind,
            title=title,
            hints=hints or Hints(read_only=True, destructive=False, idempotent=True),
            renamed=normalised.renamed,
            tells_sent=True,
        )
        return Offer(key=key, tool=tool)


class ToolInvocation:
    """Runs one tool of a server: `(arguments, context) -> result`."""

    def __init__(self, connection: Connection, store: ArtifactStore, budget: int, item: Json) -> None:
        self._connection = connection
        self._store = store
        self._budget = budget
        self._name: str = item["name"]
        self._key = Key(connection.name, Kind.TOOL, self._name)
        self._terms: Terms | None = None
        promised = item.get("outputSchema")
        self._output_schema: Json | None = cast("Json", promised) if isinstance(promised, dict) else None
        self._promises_much = heavy(self._output_schema, _LIGHT_SCHEMA)
        self._kept_in: Listing | None = None
        self.hints = _hints(as_object(item.get("annotations")))

    async def __call__(self, given: Json, context: CallContext) -> ToolResult:
        terms = self._terms
        if terms is None or terms.config is not self._connection.config:
            terms = self._terms = terms_of(self._connection.config, self._key, self.hints)
        params: Json = {"name": self._name, "arguments": given, "_meta": {IDEMPOTENCY_KEY: f"{_RUN}-{next(_CALLS)}"}}
        try:
            result = await self._connection.request(
                "tools/call",
                params,
                budget=terms.budget,
                admit=partial(self._admit, params),
                repeat=terms.repeat,
                on_progress=context.on_progress,
                on_sent=context.on_sent,
            )
        except (CallError, ConnectionLost, ConnectionFailed) as error:
            raise _told(error, f"the tool {line(self._name, 80)!r}", self._connection) from error
        much = self._promises_much or heavy(result)
        rendered = await aside(self._rendered, result) if much else self._rendered(result)
        return await render.settle(rendered, self._store, budget=self._budget, safe=self._connection.safe)

    def _admit(self, params: Json) -> None:
        """Before each attempt: what a trusted server said of the tool may be why nobody was asked, or why it is repeated. It must hold.

        Raises:
            BadCall: it must not be sent, as the server is now.
        """
        connection = self._connection
        connection.admit(("tools", self._name), params)
        listing = connection.listing
        if listing is None or listing is self._kept_in or not connection.config.trusted:
            return
        now = next((_hints(as_object(item.get("annotations"))) for item in listing.tools if item["name"] == self._name), self.hints)
        if _promise(now) < _promise(self.hints):
            said = "that it only reads" if self.hints.read_only else "that it may be repeated"
            raise BadCall(
                f"it was not sent: {connection.name} said {said} when it was chosen, and does not any more; call it anew if it is wanted"
            )
        self._kept_in = listing

    def _rendered(self, result: Json) -> render.Rendered:
        return render.tool_result(result, output_problems=self._departures(result), safe=self._connection.safe)

    def _departures(self, result: Json) -> tuple[str, ...]:
        """How the structured content departs from what the tool promised (REN-3)."""
        structured = result.get("structuredContent")
        validator = None if structured is None or result.get("isError") is True else self._validator
        # What cannot be judged is not held against the result.
        if validator is None or validator.refusal(structured) is not None:
            return ()
        if not arguments.check(validator, structured):
            return ()
        # What is wrong names parts of the result, cut to a length: secrets must be gone before.
        return arguments.check(validator, redacted(structured, self._connection.safe))

    @cached_property
    def _validator(self) -> arguments.Validator | None:
        if self._output_schema is None:
            return None
        try:
            return arguments.compile(self._output_schema)
        except arguments.BadSchema:
            return None


async def read_resource(
    connection: Connection,
    uri: str,
    store: ArtifactStore,
    budget: int,
    subject: Subject | None = None,
    *,
    on_sent: Callable[[], None] | None = None,
) -> ToolResult:
    """Read one resource through its own server; the URI is a key of that server and nothing else.

    `subject` is the template that the URI was made from, if it was.

    Raises:
        CallError, ConnectionLost, ConnectionFailed: with a sentence for people.
    """
    params: Json = {"uri": uri}
    try:
        result = await connection.request(
            "resources/read",
            params,
            budget=_reading(connection),
            admit=partial(connection.admit, subject or ("resources", uri), params),
            repeat=Repeat.ALL,
            on_sent=on_sent,
        )
    except (CallError, ConnectionLost, ConnectionFailed) as error:
        raise _told(error, f"the resource {line(uri, 200)!r}", connection) from error
    rendered = await aside(partial(render.resource_result, result, uri, safe=connection.safe), when=heavy(result))
    return await render.settle(rendered, store, budget=budget, safe=connection.safe)


async def get_prompt(
    connection: Connection, name: str, given: Json, store: ArtifactStore, budget: int, *, on_sent: Callable[[], None] | None = None
) -> ToolResult:
    """Have a server fill in one of its prompts.

    Raises:
        CallError, ConnectionLost, ConnectionFailed: with a sentence for people.
    """
    params: Json = {
        "name": name,
        "arguments": {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in given.items()},
    }
    try:
        result = await connection.request(
            "prompts/get",
            params,
            budget=_reading(connection),
            admit=partial(connection.admit, ("prompts", name), params),
            repeat=Repeat.ALL,
            on_sent=on_sent,
        )
    except (CallError, ConnectionLost, ConnectionFailed) as error:
        raise _told(error, f"the prompt {line(name, 200)!r}", connection) from error
    rendered = await aside(partial(render.prompt_result, result, safe=connection.safe), when=heavy(result))
    return await render.settle(rendered, store, budget=budget, safe=connection.safe)


def _reading(connection: Connection) -> Budget:
    return budget_of(connection.config, connection.config.tool_timeout)


def _told(error: CallError | ConnectionLost | ConnectionFailed, what: str, connection: Connection) -> Exception:
    """The same error, in the words of this call: what failed, whether it may have run, whether to repeat it (CAL-1, CAL-3, CAL-6)."""
    server, outcome = connection.name, outcome_of(error)
    ending = MAY_HAVE_RUN if outcome is Outcome.UNKNOWN else "It was not carried out." if outcome is Outcome.NOT_EXECUTED else ""

    reason = connection.standing.parting if isinstance(error, ConnectionLost) else ""

    def say(head: str, *endings: str) -> str:
        return _within_limit(connection.safe(head), connection.safe(reason or str(error)), " ".join(part for part in endings if part))

    if isinstance(error, ConnectionLost):
        head = (
            f"The connection to {server} was lost after {what} was called" if error.sent else f"{server} went away before {what} was called"
        )
        return ConnectionLost(say(head, ending), server=server, sent=error.sent)
    if isinstance(error, CallTimeout):
        return CallTimeout(say(f"{what} of {server} failed", "The server was told to stop." if error.sent else "", ending), sent=error.sent)
    if isinstance(error, ServerError):
        code = f" {error.code}" if error.code and abs(error.code) < _ANY_CODE else ""
        text = say(f"{server} answered {what} with an error{code}", ending)
        if isinstance(error, Busy):
            return Busy(text, code=error.code, data=error.data, ran=error.ran, retry_after=error.retry_after)
        return ServerError(text, code=error.code, data=error.data, ran=error.ran)
    if isinstance(error, ConnectionFailed):
        text = say(f"{what} was not called")
        return type(error)(text, server=server, retriable=error.retriable, retry_after=error.retry_after)
    return type(error)(say(f"{what} of {server} failed", ending))


def _within_limit(head: str, reason: str, ending: str) -> str:
    """One error of bounded length; what is cut is the reason, never what follows from it."""
    left = ERROR_LIMIT - len(head) - len(ending) - 4
    return f"{head}: {line(reason, max(left, 40)).rstrip('.')}. {ending}".rstrip()


def _promise(hints: Hints) -> int:
    """How harmless a tool is by its hints: 2 where it only reads, 1 where a second call changes nothing more."""
    return 2 if hints.read_only else int(hints.idempotent)


def _hints(annotations: Json) -> Hints:
    def flag(name: str, default: bool) -> bool:
        value = annotations.get(name)
        return value if isinstance(value, bool) else default

    read_only = flag("readOnlyHint", False)
    return Hints(
        read_only=read_only,
        destructive=flag("destructiveHint", True) and not read_only,
        idempotent=flag("idempotentHint", False),
        open_world=flag("openWorldHint", True),
    )
