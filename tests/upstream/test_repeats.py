"""Whose word decides whether a call may be sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.connections import linked
from support.servers import config, stdio
from toolbay.artifacts import Artifacts
from toolbay.errors import ConnectionLost
from toolbay.types import Hints, Json, Kind
from toolbay.upstream.allow import select
from toolbay.upstream.attempts import Repeat
from toolbay.upstream.capabilities import get_prompt, read_resource
from toolbay.upstream.memory import MemoryServer, in_memory
from toolbay.upstream.naming import Key, assign
from toolbay.upstream.repeats import repeat_of

KEY = Key("files", Kind.TOOL, "delete_file")
BOTH = [Hints(read_only=True), Hints(idempotent=True)]


def of(retry: Any, *, trusted: bool = False, hints: Hints | None = None, key: Key = KEY) -> Repeat:
    return repeat_of(config(stdio("x"), retry=retry, trusted=trusted), key, hints or Hints())


@pytest.mark.parametrize("hints", BOTH)
def test_what_an_untrusted_server_says_of_its_tools_is_not_believed(hints: Hints) -> None:
    """CAL-3: annotations are the server's own words."""
    assert of("safe", hints=hints) is Repeat.NOT_RUN
    assert of("safe", hints=hints, trusted=True) is Repeat.ALL
    assert of("safe", trusted=True) is Repeat.NOT_RUN


@pytest.mark.parametrize("hints", [*BOTH, Hints()])
@pytest.mark.parametrize("trusted", [True, False])
def test_the_users_word_is_above_all_that_a_server_says(hints: Hints, trusted: bool) -> None:
    """CAL-3: `always` and `never` hold whatever the annotations are."""
    assert of("always", hints=hints, trusted=trusted) is Repeat.ALL
    assert of("never", hints=hints, trusted=trusted) is Repeat.UNSENT


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"delete_file": "always"}, Repeat.ALL),
        ({"mcp_files_delete_file": "always"}, Repeat.ALL),
        ({"delete_*": "always"}, Repeat.ALL),
        ({"Delete_*": "always"}, Repeat.NOT_RUN),
        ({"other": "always"}, Repeat.NOT_RUN),
        ({"*": "never", "delete_file": "always"}, Repeat.ALL),
        ({"delete_*": "always", "*_file": "never"}, Repeat.UNSENT),
        ({"delete_*": "always", "*_file": "safe"}, Repeat.NOT_RUN),
        ({}, Repeat.NOT_RUN),
    ],
)
def test_by_tool_a_name_counts_before_patterns_and_the_most_careful_pattern(entries: dict[str, str], expected: Repeat) -> None:
    """CAL-3: own names, wrapped names, patterns; what no entry names is `safe`."""
    assert of(entries) is expected


def test_a_tool_that_clashes_is_meant_by_the_name_that_it_has_then() -> None:
    """CAL-3, NAM-3: a person writes the name that is shown."""
    other = Key("files", Kind.TOOL, "delete.file")
    names = assign([KEY, other])
    assert names[KEY] != names[other]
    assert of({names[KEY]: "always"}) is Repeat.ALL
    assert of({names[KEY]: "always"}, key=other) is Repeat.NOT_RUN


@given(st.dictionaries(st.text(max_size=10), st.sampled_from(["safe", "always", "never"]), max_size=5), st.booleans())
def test_nothing_that_may_have_run_is_repeated_without_somebodys_word(entries: dict[str, str], trusted: bool) -> None:
    """CAL-3: a tool of which nobody said anything is repeated only where an entry says `always`."""
    if of(entries, trusted=trusted) is Repeat.ALL:
        assert "always" in entries.values()


@pytest.mark.parametrize(("field", "word"), [("retry", "never"), ("approval", "always")])
def test_an_entry_that_names_no_tool_is_told_with_the_nearest(field: str, word: str) -> None:
    """ALW-2, CAL-3: a misspelt entry of `retry` or `approval` is said, since it protects nothing."""
    policy = {field: {"delete_fiel": word, "delete_*": word, "mcp_files_delete_file": word}}
    selection = select(config(stdio("x"), **policy), [KEY], assign([KEY]))
    assert [entry.entry for entry in selection.unmatched] == ["delete_fiel"]
    assert f'{field}: "delete_fiel" matches no tool of this server; did you mean "delete_file"?' in selection.unmatched[0].text


class Dying(MemoryServer):
    """Dies in the middle of the first request of each kind, once it is at work on it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.add_tool("t", self._lost("tool"))
        self.add_prompt("p", self._lost("prompt"))
        self.resources["r"] = {"name": "r", "uri": "x://r"}
        self._handlers["resource x://r"] = self._lost("resource")

    def _lost(self, kind: str) -> Callable[[Json], Awaitable[Json]]:
        async def handle(_arguments: Json) -> Json:
            self.seen.append(kind)
            if self.seen.count(kind) == 1:
                self.die()
                await anyio.sleep_forever()
            text = {"type": "text", "text": "again"}
            return {"contents": [{"uri": "x://r", "text": "again"}], "messages": [{"role": "user", "content": text}], "content": [text]}

        return handle


@pytest.mark.anyio
async def test_readings_are_repeated_for_every_server_and_calls_of_tools_are_not(tmp_path: Path) -> None:
    """CAL-3, CAL-7: that resources and prompts change nothing is the protocol's word; `retry: never` is about tools."""
    server = Dying()
    entry = {**stdio("x"), "restart": {"first_delay": 0.01}}
    async with linked(entry, open_engine=in_memory({"s": server}), retry="never") as link:
        store = Artifacts(tmp_path, max_bytes=1000, max_files=10, max_age_days=1)
        with anyio.fail_after(30):
            assert "again" in (await read_resource(link.connection, "x://r", store, 1000)).text
            assert "again" in (await get_prompt(link.connection, "p", {}, store, 1000)).text
            error = await link.outcome("t")
    assert isinstance(error, ConnectionLost)
    assert error.sent
    assert server.seen == ["resource", "resource", "prompt", "prompt", "tool"]
