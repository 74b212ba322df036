"""What is known of a login, as values: how they show."""

from __future__ import annotations

from support.canaries import found
from support.logins import a_login


def test_a_login_shows_no_secret_in_a_traceback_or_a_debugger() -> None:
    """SEC: attack 32: `repr` is what an assertion, a log and a debugger show, of each value and of what holds it."""
    login = a_login()
    assert login.tokens is not None
    assert len(login.secrets) == 3
    for value in (login, login.client, login.tokens):
        assert not found(repr(value))
        assert not found(str(value))
    assert "client-1" in repr(login.client), "the rest is shown"
    assert "read" in repr(login.tokens)
