"""Which capabilities are offered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from toolbay.config.models import ServerConfig, TransportType
from toolbay.types import Kind
from toolbay.upstream.allow import Selection, select
from toolbay.upstream.naming import Key, assign

READ, WRITE, DOTTED = Key("files", Kind.TOOL, "read_file"), Key("files", Kind.TOOL, "write_file"), Key("files", Kind.TOOL, "a.b")
README, REVIEW = Key("files", Kind.RESOURCE, "readme", "file:///readme.md"), Key("files", Kind.PROMPT, "review")
ALL = (READ, WRITE, DOTTED, README, REVIEW)
TOOLS = {READ, WRITE, DOTTED}


def selected(keys: tuple[Key, ...] = ALL, names: Mapping[Key, str] | None = None, **lists: Any) -> Selection:
    config = ServerConfig(type=TransportType.STDIO, command="files", **lists)
    return select(config, keys, assign(keys) if names is None else names)


def test_everything_is_offered_by_default() -> None:
    """ALW-1, ALW-2: `enabledTools` is `["*"]` where it is not said."""
    assert selected() == Selection(frozenset(ALL), ())


def test_an_empty_list_offers_nothing() -> None:
    """ALW-1: no tool, and so no resource and no prompt either."""
    assert selected(enabled_tools=()) == Selection(frozenset(), ())


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("read_file", {READ}),
        ("mcp_files_read_file", {READ}),
        ("*_file", {READ, WRITE}),
        ("mcp_files_*_file", {READ, WRITE}),
        ("a.b", {DOTTED}),
        ("mcp_files_a_b", {DOTTED}),
        ("[rw]*", {READ, WRITE}),
        ("?.b", {DOTTED}),
        ("*", TOOLS | {README, REVIEW}),
    ],
)
def test_tools_are_named_by_raw_and_wrapped_names_and_patterns(entry: str, expected: set[Key]) -> None:
    """ALW-1: each way of naming, without another being left over as unmatched."""
    assert selected(enabled_tools=(entry,)) == Selection(frozenset(expected), ())


def test_patterns_tell_capitals_apart() -> None:
    """ALW-1: the same on every system."""
    assert selected(enabled_tools=("READ*",)).allowed == frozenset()


def test_a_tool_is_found_under_its_assigned_and_its_plain_name() -> None:
    """ALW-1: where a clash gave it a hash, both work."""
    names = {**assign(ALL), READ: "mcp_files_read_file_0badcafe"}
    for entry in ("mcp_files_read_file_0badcafe", "mcp_files_read_file"):
        assert selected(names=names, enabled_tools=(entry,)).allowed == {READ}


def test_disabled_wins_over_enabled() -> None:
    """ALW-1: also over `"*"` and over the same name; and `"*"` is all tools."""
    assert selected(disabled_tools=("write_*",)).allowed == set(ALL) - {WRITE}
    assert selected(enabled_tools=("read_file",), disabled_tools=("mcp_files_read_file",)).allowed == frozenset()
    assert selected(disabled_tools=("*",)).allowed == {README, REVIEW}


def test_disabled_takes_resources_and_prompts_away_by_the_name_that_people_see() -> None:
    """ALW-1: there is no other list for it, and a name that was to be off must not stay on."""
    assert selected(disabled_tools=("mcp_files_resource_readme", "mcp_files_prompt_*")) == Selection(frozenset(TOOLS), ())


def test_resources_and_prompts_need_the_star_or_their_own_lists() -> None:
    """ALW-2: naming tools alone offers tools alone; a list of their own decides, also against the star."""
    assert selected(enabled_tools=("read_file",)).allowed == {READ}
    assert selected(enabled_tools=(), enabled_resources=("readme",)).allowed == {README}
    assert selected(enabled_tools=(), enabled_resources=("file:///*",)).allowed == {README}
    assert selected(enabled_tools=("read_file",), enabled_prompts=("*",)).allowed == {READ, REVIEW}
    assert selected(enabled_resources=(), enabled_prompts=("mcp_files_prompt_review",)).allowed == TOOLS | {REVIEW}


def test_an_entry_that_matches_nothing_is_reported_once_with_the_nearest() -> None:
    """ALW-3: what there is under both names, and the likely one; the entries that match still count."""
    found = selected(enabled_tools=("read_fil", "read_fil", "write_file"))
    assert found.allowed == {WRITE}
    (unmatched,) = found.unmatched
    assert (unmatched.entry, unmatched.field) == ("read_fil", "enabledTools")
    for part in ('"read_fil"', 'did you mean "read_file"?', "read_file (mcp_files_read_file)", "write_file (mcp_files_write_file)"):
        assert part in unmatched.text


def test_every_list_reports_its_own_entries() -> None:
    """ALW-3: with the name of the list as it stands in the file."""
    found = selected(disabled_tools=("delete",), enabled_resources=("nope",), enabled_prompts=("none",))
    assert {entry.field for entry in found.unmatched} == {"disabledTools", "enabledResources", "enabledPrompts"}


def test_a_resource_among_the_tools_is_told_where_it_belongs() -> None:
    """ALW-3: it is there, only in another list."""
    (unmatched,) = selected(enabled_tools=("mcp_files_resource_readme",)).unmatched
    assert "enabledResources" in unmatched.text


def test_a_long_list_is_told_in_part_and_clean() -> None:
    """ALW-3: ten names and how many more; nothing that steers a terminal."""
    keys = tuple(Key("files", Kind.TOOL, f"tool\x1b[31m{number}") for number in range(15))
    (unmatched,) = selected(keys, enabled_tools=("zzz",)).unmatched
    assert "and 5 more" in unmatched.text
    assert "\x1b" not in unmatched.text
    (none,) = selected((), enabled_tools=("zzz", "*")).unmatched
    assert "no tools" in none.text
