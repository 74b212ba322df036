"""Verdicts on answers that strangers give: whatever stands in them, there is one error with a mend, and nothing secret in it."""

from __future__ import annotations

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diagnosis.patients import the_error
from support.servers import config
from toolbay.diagnosis.answers import Answer, tell_error, tell_no_endpoint, tell_redirect, tell_silence
from toolbay.diagnosis.findings import Notes
from toolbay.errors import BlockedAddress
from toolbay.net.steps import Walk

URL = "https://weather.example/mcp"
SERVER = config({"type": "streamableHttp", "url": URL})
TEXT = st.text(max_size=80)


@example("//[")
@example("https://[::1")
@given(TEXT)
def test_any_location_is_a_redirect(location: str) -> None:
    """TRA-3: Location too; a target that is no address is one that is not said."""
    notes = Notes(server="s")
    tell_redirect(SERVER, Answer(url=URL, status=302, headers={"location": location}), notes)
    assert "HTTP 302" in the_error(notes).why


@pytest.mark.parametrize("mend", ["check the network", ""])
def test_what_the_guard_said_in_the_place_of_an_answer_has_one_mend(mend: str) -> None:
    """SEC-28: such as of a name that leads elsewhere by now; without one of its own it is the address."""
    failure = httpx2.ConnectError("the whole sentence")
    failure.__cause__ = BlockedAddress("weather.example leads to 10.1.2.3", mend)
    notes = Notes(server="s")
    tell_silence(SERVER, Walk(), Answer(url=URL, failure=failure), notes)
    finding = the_error(notes)
    assert (finding.why, finding.mend) == ("weather.example leads to 10.1.2.3", mend or "correct `url`")


@given(st.integers(min_value=200, max_value=599), TEXT, TEXT)
def test_any_answer_that_is_none_of_a_server(status: int, kind: str, body: str) -> None:
    """TRA-3: any status, any content type, any body."""
    for tell in (
        lambda notes: tell_error(SERVER, Answer(url=URL, status=status, kind=kind, body=body), notes),
        lambda notes: tell_no_endpoint(SERVER, Answer(url=URL, status=status, kind=kind, body=body), None, {}, notes),
    ):
        notes = Notes(server="s")
        tell(notes)
        assert f"HTTP {status}" in the_error(notes).why
