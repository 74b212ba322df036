"""What a server asks for in the middle of a request (2026-07-28, `input_required`), and how the request goes on.

It is one call in several requests: nothing has been carried out until the server says `complete`. What was offered to it
(`roots`) is answered; what was not is refused, and ends the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolbay._lenient import as_object, as_text
from toolbay._text import line
from toolbay.errors import CallError, ServerError
from toolbay.types import Json

ROUNDS = 10
"""How often one call may ask for more."""
PAUSES = (0.05, 0.1, 0.2, 0.25)
"""Seconds before a request goes on whose server only asked for time; the last one stays."""


def further(params: Json, result: Json, *, roots: Sequence[Json], rounds: int) -> tuple[Json, float]:
    """The parameters with which the request goes on after `result`, its `rounds`-th wish, and the seconds to wait before.

    Raises:
        CallError: the server asks for what was not offered to it.
        ServerError: it asks without end.
    """
    if rounds > ROUNDS:
        raise ServerError(f"the server asked for more input more than {ROUNDS} times", ran=None)
    wanted = as_object(result.get("inputRequests"))
    answers: Json = {}
    for key, request in wanted.items():
        method = as_text(as_object(request).get("method"))
        if method != "roots/list" or not roots:
            asked = line(method, 80) or "something"
            raise CallError(f"the server asked for {asked} before it would go on, which this client does not give; the call has not run")
        answers[key] = {"roots": list(roots)}
    gone_on = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        gone_on["inputResponses"] = answers
    if "requestState" in result:
        gone_on["requestState"] = result["requestState"]
    return gone_on, 0.0 if answers else PAUSES[min(rounds, len(PAUSES)) - 1]
