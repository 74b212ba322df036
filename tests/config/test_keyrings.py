"""Secrets from the keyring."""

from __future__ import annotations

from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

from toolbay.config import parse
from toolbay.config.models import InvalidServer, ServerConfig


class Memory(KeyringBackend):
    """A keyring of the library's own kind that lives as long as the test."""

    priority = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def __init__(self, *, locked: bool = False) -> None:
        super().__init__()
        self._secrets: dict[tuple[str, str], str] = {}
        self._locked = locked

    def get_password(self, service: str, username: str) -> str | None:
        if self._locked:
            raise KeyringLocked("the collection is locked")
        return self._secrets.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._secrets[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self._secrets[service, username]


@pytest.fixture
def ring() -> Iterator[Memory]:
    before, made = keyring.get_keyring(), Memory()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def server(reference: str) -> tuple[ServerConfig | InvalidServer, frozenset[str]]:
    config = parse({"mcpServers": {"s": {"url": "https://example.com/mcp", "headers": {"Authorization": f"Bearer {reference}"}}}})
    return config.tools.mcp_servers["s"], config.secrets


def test_a_secret_comes_from_the_keyring_and_is_known_as_one(ring: Memory) -> None:
    """CFG-5, SEC: `${keyring:SERVICE/USER}`; what it gives is masked like any other secret."""
    ring.set_password("tracker/eu", "anna", "canary-from-the-ring")
    entry, secrets = server("${keyring:tracker/eu/anna}")
    assert isinstance(entry, ServerConfig)
    assert entry.headers["Authorization"] == "Bearer canary-from-the-ring"
    assert "canary-from-the-ring" in secrets


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize(
    ("reference", "mend"),
    [("${keyring:tracker/anna}", "keyring set tracker anna"), ("${keyring:tracker}", "SERVICE/USER"), ("${keyring:}", "SERVICE/USER")],
)
def test_a_secret_that_is_not_there_costs_its_server_only_and_says_the_mend(reference: str, mend: str) -> None:
    """CFG-5, G3: the server is invalid, the reason names the entry and what to do."""
    entry, _ = server(reference)
    assert isinstance(entry, InvalidServer)
    assert mend in entry.reason


def test_a_locked_keyring_costs_its_server_only() -> None:
    """G3: a keyring that cannot be opened is told as such."""
    before = keyring.get_keyring()
    keyring.set_keyring(Memory(locked=True))
    try:
        entry, _ = server("${keyring:tracker/anna}")
    finally:
        keyring.set_keyring(before)
    assert isinstance(entry, InvalidServer)
    assert "cannot be opened" in entry.reason
