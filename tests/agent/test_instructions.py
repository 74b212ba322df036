"""What models and people are told of servers that are not there."""

from __future__ import annotations

from toolbay.agent.instructions import composed, lacking
from toolbay.fleet import ServerStatus

SERVERS = (
    ServerStatus(name="board", state="needs_auth", error="board: HTTP 401, it wants a login: log in with `toolbay login board`"),
    ServerStatus(name="files", state="ready"),
    ServerStatus(name="late", state="connecting"),
    ServerStatus(name="known", state="connecting", remembered=True),
    ServerStatus(name="old", state="failed", error="the command was not found" + "!" * 1_000),
    ServerStatus(name="odd", state="invalid"),
)


def test_a_model_is_told_who_is_not_there_and_who_waits_for_the_user() -> None:
    """RUN-9, H4: it can say so; what to do is the user's business."""
    told = composed("Be kind.", SERVERS)
    assert told.startswith("Be kind.\n\n")
    assert "Still starting, their tools may come later: late." in told
    assert "Not available, so their tools cannot be called: board (the user has to log in to it), old, odd." in told


def test_people_are_told_what_each_needs() -> None:
    """RUN-5, H4: a line of each, with what to do."""
    board, late, old, odd = lacking(SERVERS)
    assert board == SERVERS[0].error
    assert late == "late is still being started"
    assert old.startswith("old: the command was not found!")
    assert len(old) < 310
    assert odd == "odd: it cannot be used"
