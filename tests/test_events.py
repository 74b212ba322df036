"""The fan-out: who publishes is neither slowed nor stopped by who listens."""

from __future__ import annotations

import logging

import pytest

from toolbay.events import Event, Events, Notice


def test_a_listener_that_raises_costs_neither_the_publisher_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """OBS-1: it is logged, and everybody else hears of the event."""
    events, heard = Events(), list[Event]()

    def broken(event: Event) -> None:
        raise BrokenPipeError("nobody reads this terminal any more")

    notice = Notice(server="s", text="hello")
    with events.listen(broken), events.listen(heard.append), events.subscribe() as subscription, caplog.at_level(logging.ERROR):
        events.publish(notice)
        assert heard == subscription.take_nowait() == [notice]
    assert [record.exc_info is not None for record in caplog.records] == [True]
