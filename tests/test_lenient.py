"""JSON of strangers, read leniently."""

from __future__ import annotations

from toolbay._lenient import as_object, as_objects, as_text


def test_another_type_than_was_expected_is_nothing() -> None:
    """CFG-6: what one field has wrong costs that field."""
    assert [as_object(value) for value in ({"a": 1}, None, 5, "a", [])] == [{"a": 1}, {}, {}, {}, {}]
    assert [as_text(value) for value in ("a", None, 5, [])] == ["a", "", "", ""]
    assert [as_objects(value) for value in ([{"a": 1}, None, {}], {"a": 1}, "a")] == [[{"a": 1}, {}], [], []]
