"""The fan-out: who publishes is neither slowed nor stopped by who listens."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError

import pytest

from toolbay._redact import Secrets
from toolbay.cli.views import what_changed
from toolbay.events import ConfigReloaded, Event, Events, Notice
from toolbay.types import Reloaded


def test_what_is_told_of_a_reload_is_what_it_did_and_more() -> None:
    """OBS-1: one list of names, so that who shows the one shows the other."""
    done = Reloaded(added=("a",), changed=("b",), removed=("c",), retried=("d",), connected=("e",), failed=("f",), tools_removed=("t",))
    told = ConfigReloaded(path="toolbay.yaml", seconds=1.5, **vars(done))
    assert isinstance(told, Reloaded)
    assert {name: getattr(told, name) for name in vars(done)} == vars(done)
    assert what_changed(told, {}) == what_changed(done, {}) == "added a; changed b; removed c; tried again d; connected e; failed f"
    assert told == ConfigReloaded(path="toolbay.yaml", seconds=1.5, at=told.at + 1, **vars(done)), "whenever it is told"
    with pytest.raises(FrozenInstanceError):
        told.path = "other.yaml"  # pyright: ignore[reportAttributeAccessIssue]


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
