"""Ranges of versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.diagnosis.versions import parsed, satisfies

PART = st.integers(min_value=0, max_value=40)


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("v20.1.0", ">=20", True),
        ("v18.20.4", ">=20", False),
        ("v18.20.4", ">= 18.0.0", True),
        ("v18.1.0", "^18.2.0 || >=20", False),
        ("v20.0.0", "^18.2.0 || >=20", True),
        ("v19.0.0", "^18.2.0", False),
        ("v22.3.0", ">=18 <21", False),
        ("v20.3.0", ">=18 <21", True),
        ("v18.5.0", "18.x", True),
        ("v20.5.0", "18.x", False),
        ("v18.2.9", "~18.2", True),
        ("v18.3.0", "~18.2", False),
        ("v18.9.0", "16 - 18", True),
        ("v20.0.0", "<=20", True),
        ("v21.0.0", ">20", True),
        ("v20.9.0", ">20", False),
        ("v20.0.0", "*", True),
        ("v20.0.0", "", True),
        ("v20.0.0", "lts", True),
        ("nonsense", ">=20", True),
        ("v18.0.0", ">" * 1_000_000, True),
        ("v18.0.0", ">=" + "9" * 5_000, True),
        ("v" + "9" * 5_000, ">=20", True),
    ],
)
def test_a_version_is_in_a_range_or_not(version: str, wanted: str, fits: bool) -> None:
    """TRA-8: the forms that packages use; what is not understood says nothing against a version."""
    assert satisfies(version, wanted) is fits


@given(st.tuples(PART, PART, PART), st.tuples(PART, PART, PART))
def test_at_least_and_less_than_are_opposites(have: tuple[int, ...], floor: tuple[int, ...]) -> None:
    """TRA-8: every version is on one side of another."""
    version, other = (".".join(map(str, parts)) for parts in (have, floor))
    assert satisfies(version, f">={other}") is (have >= floor)
    assert satisfies(version, f">={other}") is not satisfies(version, f"<{other}")


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_breaks_a_comparison(version: str, wanted: str) -> None:
    """TRA-8: `engines` is written by strangers."""
    assert satisfies(version, wanted) in (True, False)
    assert parsed(version) is None or len(parsed(version) or ()) == 3
