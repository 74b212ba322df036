"""References to environment variables (CFG-5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.config.references import BadReference, resolve

ENVIRON = {"TOKEN": "abc", "EMPTY": "", "HOME": "/home/me", "TRICKY": "${TOKEN}"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${TOKEN}", "abc"),
        ("${env:TOKEN}", "abc"),
        ("Bearer ${TOKEN}!", "Bearer abc!"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${NONE:-}", ""),
        ("${NONE:-a b}", "a b"),
        ("${env:NONE:-d}", "d"),
        ("${NONE:-${HOME}/.kube/config}", "/home/me/.kube/config"),
        ("${NONE:-${OTHER:-${TOKEN}}}x", "abcx"),
        ("${TOKEN:-${NONE}}", "abc"),
        ("$${TOKEN}", "${TOKEN}"),
        ("a$${b} ${TOKEN}", "a${b} abc"),
        ("${TRICKY}", "${TOKEN}"),
        ("$TOKEN %TOKEN% {TOKEN}", "$TOKEN %TOKEN% {TOKEN}"),
    ],
)
def test_references_are_replaced_and_nothing_else(text: str, result: str) -> None:
    """CFG-5: `${VAR}`, `${env:VAR}`, `${VAR:-default}`, nested; a value is never read as a reference again."""
    assert resolve(text, ENVIRON).text == result


def test_the_variables_that_were_used_are_told() -> None:
    """CFG-5: what came from the environment is known, so that it can be masked; a default that was not used is not in it."""
    assert resolve("${TOKEN} ${HOME:-${EMPTY}} ${NONE:-${env:TOKEN}}", ENVIRON).used == (
        ("TOKEN", "abc"),
        ("HOME", "/home/me"),
        ("TOKEN", "abc"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x ${NONE} y", "NONE, which is not set"),
        ("${NONE:-${WORSE}}", "WORSE, which is not set"),
        ("${input:key}", "${input:...}"),
        ("${vault:a b}", "environment variable"),
        ("${}", "environment variable"),
        ("${TOKEN", "without its `}`"),
        ("${NONE:-${TOKEN}", "without its `}`"),
    ],
)
def test_what_cannot_be_resolved_says_what_to_do(text: str, said: str) -> None:
    """CFG-5: a missing variable, another client's reference, one that is not closed."""
    with pytest.raises(BadReference) as caught:
        resolve(text, ENVIRON)
    assert said in str(caught.value)


@given(st.text())
def test_any_text_can_be_written_by_escaping_its_references(text: str) -> None:
    """CFG-5: `$${` stands for `${`, so every text can be said."""
    assert resolve(text.replace("${", "$${"), {}).text == text


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text(), min_size=1), st.data())
def test_values_go_in_as_they_are_between_other_text(environ: dict[str, str], data: st.DataObject) -> None:
    """CFG-5: whatever a variable holds arrives unchanged, at its place."""
    names = data.draw(st.lists(st.sampled_from(sorted(environ)), min_size=1, max_size=4))
    gap = data.draw(st.text(alphabet="ab: /-}{"))
    text = gap.join(f"${{{name}}}" for name in names)
    assert resolve(text, environ).text == gap.join(environ[name] for name in names)
