"""The fan-out: who publishes is neither slowed nor stopped by who listens."""

from __future__ import annotations

import logging

import pytest

from toolbay._redact import Secrets
from toolbay.events import Event, Events, Notice


def test_a_listener_that_raises_costs_neither_the_publisher_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """OBS-1, OBS-2: it is logged, without secrets, and everybody else hears of the event."""
    events, heard = Events(Secrets({"canary-listener"}).mask), list[Event]()

    def broken(event: Event) -> None:
        raise BrokenPipeError("nobody reads this terminal any more: canary-listener")

    notice = Notice(server="s", text="hello")
    with events.listen(broken), events.listen(heard.append), events.subscribe() as subscription, caplog.at_level(logging.ERROR):
        events.publish(notice)
        assert heard == subscription.take_nowait() == [notice]
    (record,) = caplog.records
    assert record.exc_info is None
    assert "Traceback" in record.getMessage()
    assert record.getMessage().endswith("BrokenPipeError: nobody reads this terminal any more: ***")
