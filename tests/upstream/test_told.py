"""What a model is told of a call that failed: bounded, without secrets, with the outcome and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.connections import started
from support.servers import stdio
from toolbay.artifacts import Artifacts
from toolbay.errors import BadCall, Busy, CallTimeout, ConnectionLost, Refused, ServerError, ToolbayError
from toolbay.events import Events
from toolbay.registry import Registry, Snapshot
from toolbay.types import MAY_HAVE_RUN, CallContext, Json, Outcome
from toolbay.upstream.capabilities import ERROR_LIMIT, Maker
from toolbay.upstream.memory import MemoryServer, in_memory

pytestmark = pytest.mark.anyio


async def told(error: ToolbayError, folder: Path, name: str = "note") -> tuple[str, Outcome]:
    """The text and the outcome of a call that ends in `error` beneath the connection."""

    def fail(_arguments: Json) -> Json:
        raise error

    server = MemoryServer()
    server.add_tool(name, fail)
    async with started(stdio("x"), open_engine=in_memory({"s": server}), secrets=["hunter2-hunter2"]) as link:
        await link.reaches("ready")
        store = Artifacts(folder, max_bytes=1000, max_files=10, max_age_days=1)
        assert link.connection.listing is not None
        (offer,) = Maker(link.connection, store, 10_000).make(link.connection.listing).offers
        registry = Registry(events=Events())
        registry.swap(Snapshot.of([offer.tool]))
        result = await registry.call(offer.tool.name, {}, CallContext(call_id="c"))
        assert result.is_error
        return result.text, result.outcome


CASES = [
    (ConnectionLost("gone", sent=True), Outcome.UNKNOWN),
    (ConnectionLost("gone", sent=False), Outcome.NOT_EXECUTED),
    (CallTimeout("late", sent=True), Outcome.UNKNOWN),
    (CallTimeout("late", sent=False), Outcome.NOT_EXECUTED),
    (ServerError("no", code=-32602, ran=False), Outcome.NOT_EXECUTED),
    (ServerError("it broke", code=-32603, ran=True), Outcome.EXECUTED),
    (ServerError("HTTP 502", code=502, ran=None), Outcome.UNKNOWN),
    (Busy("HTTP 429 (it asks to wait 90 s)", code=429, retry_after=90, ran=False), Outcome.NOT_EXECUTED),
    (Busy("HTTP 503 (it asks to wait 90 s)", code=503, retry_after=90, ran=None), Outcome.UNKNOWN),
    (Refused("nobody there"), Outcome.NOT_EXECUTED),
    (BadCall("it cannot be sent"), Outcome.NOT_EXECUTED),
]


@pytest.mark.parametrize(("error", "outcome"), CASES, ids=lambda value: type(value).__name__)
async def test_every_outcome_that_nobody_knows_is_told_as_such_and_no_other(error: ToolbayError, outcome: Outcome, tmp_path: Path) -> None:
    """CAL-3, CAL-6: what failed, at which tool, why, whether it may have run."""
    text, said = await told(error, tmp_path)
    assert said is outcome
    assert (MAY_HAVE_RUN in text) is (outcome is Outcome.UNKNOWN)
    assert "'note'" in text
    assert str(error) in text
    if outcome is Outcome.NOT_EXECUTED:
        assert "not carried out" in text or "was not called" in text


@given(
    reason=st.builds(lambda text, words: f"{text} hunter2-hunter2{' word' * words} hunter2-hunter2", st.text(), st.integers(0, 300)),
    case=st.sampled_from(CASES),
    name=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=300),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_error_is_longer_than_its_bound_or_holds_a_secret(
    reason: str, case: tuple[ToolbayError, Outcome], name: str, tmp_path: Path
) -> None:
    """CAL-6: at most 500 characters, one line; what is cut is the reason, never what follows from it."""
    error, outcome = case
    before, error.args = error.args, (reason,)
    try:
        text, _ = await told(error, tmp_path, name)
    finally:
        error.args = before
    assert len(text) <= ERROR_LIMIT
    assert "\n" not in text
    assert "hunter2" not in text
    assert (MAY_HAVE_RUN in text) is (outcome is Outcome.UNKNOWN)
