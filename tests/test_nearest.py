"""The name that somebody probably meant."""

from __future__ import annotations

from toolbay._nearest import nearest


def test_the_name_that_is_most_alike_is_found_or_none() -> None:
    """RUN-3: typing errors are forgiven, other names are not made up; endless names cost no endless time."""
    assert nearest("raed", ["read", "write"]) == "read"
    assert nearest("launch", ["read", "write"]) == ""
    assert nearest("read_it", ["read"], likeness=0.4) == "read"
    assert nearest("read", []) == ""
    long = "x" * 1_000_000
    assert nearest("x" * 500_000, [long, "y" * 1_000_000]) == long
