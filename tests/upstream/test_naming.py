"""Names that models see."""

from __future__ import annotations

import hashlib
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from toolbay.types import Kind
from toolbay.upstream.naming import Key, assign, wrapped

NAME = re.compile(r"mcp_[a-zA-Z0-9_-]{1,60}")


def tool(name: str, server: str = "files") -> Key:
    return Key(server, Kind.TOOL, name)


def test_names_say_server_kind_and_name() -> None:
    """NAM-1: the three forms; what models do not take becomes one underscore."""
    assert wrapped(tool("read_file")) == "mcp_files_read_file"
    assert wrapped(Key("files", Kind.RESOURCE, "readme", "file:///readme")) == "mcp_files_resource_readme"
    assert wrapped(Key("files", Kind.PROMPT, "review")) == "mcp_files_prompt_review"
    assert wrapped(tool("a.b//c  d", "my server")) == "mcp_my_server_a_b_c_d"
    assert wrapped(tool("a__b-c")) == "mcp_files_a_b-c"
    assert wrapped(tool("get_item", "1password")) == "mcp_1password_get_item"


def test_a_long_name_is_cut_and_told_by_a_hash() -> None:
    """NAM-2: exactly 64 characters stay; one more is 55, an underscore and 8 digits of SHA-1 of the sanitised name."""
    fits = "x" * (64 - len("mcp_files_"))
    assert wrapped(tool(fits)) == f"mcp_files_{fits}"
    full = f"mcp_files_{fits}y"
    name = wrapped(tool(f"{fits}y"))
    assert name == f"{full[:55]}_{hashlib.sha1(full.encode()).hexdigest()[:8]}"
    assert len(name) == 64


def test_names_that_do_not_clash_are_the_plain_ones() -> None:
    """NAM-1: assigning changes nothing where there is nothing to tell apart."""
    keys = [tool("read"), tool("write"), Key("files", Kind.PROMPT, "read")]
    assert assign(keys) == {key: wrapped(key) for key in keys}


def test_every_one_of_clashing_names_takes_a_hash_of_what_it_is() -> None:
    """NAM-3: none of them keeps the plain name, so none takes it over when another goes."""
    clashing = [tool("a.b"), tool("a/b"), tool("a_b")]
    names = assign([*clashing, tool("c")])
    assert names[tool("c")] == "mcp_files_c"
    assert all(re.fullmatch(r"mcp_files_a_b_[0-9a-f]{8}", names[key]) for key in clashing)
    assert len(set(names.values())) == 4


def test_long_names_that_clash_are_told_apart_within_64_characters() -> None:
    """NAM-3: also after the cut of NAM-2, and also where the servers' names are what differs."""
    keys = [tool(f"{'x' * 90}.y"), tool(f"{'x' * 90}/y"), tool("x_" * 45, "s.1"), tool("x_" * 45, "s/1")]
    names = assign(keys)
    assert len(set(names.values())) == 4
    assert all(len(name) <= 64 and name != wrapped(key) for key, name in names.items())


def test_a_server_and_a_tool_cannot_trade_parts_of_their_names() -> None:
    """NAM-3: `a` + `b_c` and `a_b` + `c`, a tool that is called like a resource, two resources of one name."""
    keys = [
        tool("b_c", "a"),
        tool("c", "a_b"),
        tool("resource_x", "s"),
        Key("s", Kind.RESOURCE, "x", "u:1"),
        Key("s", Kind.RESOURCE, "x", "u:2"),
    ]
    names = assign(keys)
    assert len(set(names.values())) == 5
    assert not {wrapped(key) for key in keys} & set(names.values())


def test_names_of_which_nothing_is_left_are_told_by_a_hash_even_alone() -> None:
    """NAM-3: an all-CJK name means the same whether or not another one is there."""
    search, weather = tool("搜索"), tool("天气")
    alone, both = assign([search])[search], assign([search, weather])
    assert re.fullmatch(r"mcp_files_[0-9a-f]{8}", alone)
    assert both[search] == alone != both[weather]
    assert re.fullmatch(r"mcp_read_[0-9a-f]{8}", assign([tool("read", "服务器")])[tool("read", "服务器")])
    assert NAME.fullmatch(assign([tool("搜", "服")])[tool("搜", "服")])


def test_a_plain_name_that_looks_like_anothers_hash_takes_nothing_from_it() -> None:
    """NAM-3: a server that guesses the hashed name of another's tool gets neither its name nor makes two alike."""
    clashing = [tool("a.b"), tool("a/b")]
    hashed = assign(clashing)[tool("a.b")]
    imitation = tool(hashed.removeprefix("mcp_files_"))
    assert wrapped(imitation) == hashed
    names = assign([*clashing, imitation])
    assert hashed not in names.values()
    assert len(set(names.values())) == 3
    assert all(NAME.fullmatch(name) for name in names.values())
    second = tool(names[tool("a.b")].removeprefix("mcp_files_"))
    assert len(set(assign([*clashing, imitation, second]).values())) == 4


PARTS = st.one_of(
    st.sampled_from(
        ["a", "b", "a_b", "a.b", "a/b", "a__b", "resource_a", "prompt_a", "_", "", "搜索", "天气", "x" * 60, "x" * 61, "x" * 60 + "."]
    ),
    st.text(max_size=70),
)
KEYS = st.builds(Key, PARTS, st.sampled_from([Kind.TOOL, Kind.RESOURCE, Kind.PROMPT]), PARTS, st.sampled_from(["", "u:1", "u:2"]))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(KEYS, max_size=12, unique=True), st.randoms(use_true_random=False), st.integers(0, 12))
def test_no_name_is_shared_depends_on_order_or_comes_to_mean_another(keys: list[Key], chance: random.Random, cut: int) -> None:
    """NAM-3: injective, whatever the order; a name that means one thing in some set means nothing else in a larger one."""
    names = assign(keys)
    assert len(set(names.values())) == len(keys)
    assert all(NAME.fullmatch(name) for name in names.values())
    shuffled = list(keys)
    chance.shuffle(shuffled)
    assert assign(shuffled) == names
    meaning = {name: key for key, name in names.items()}
    for key, name in assign(shuffled[:cut]).items():
        assert meaning.get(name, key) == key
