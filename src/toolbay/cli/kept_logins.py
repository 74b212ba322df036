"""The logins that every program of this person shares, as commands use them."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from toolbay import _redact
from toolbay.cli.invocation import CommandFailed
from toolbay.errors import BlockedAddress, ConfigError, LoginFailed

if TYPE_CHECKING:
    from toolbay.auth.logins import Logins
    from toolbay.config.models import Config, ServerConfig


def logins_of(config: Config) -> Logins:
    from toolbay.auth.logins import Logins  # noqa: PLC0415
    from toolbay.auth.store import Files  # noqa: PLC0415
    from toolbay.config import data_home  # noqa: PLC0415

    return Logins(Files(data_home(os.environ) / "logins"), secrets=_redact.Secrets(config.secrets))


def entry_of(config: Config, name: str) -> ServerConfig:
    """The server's entry, with what every server may reach. Raises CommandFailed where it cannot be used."""
    from toolbay.config.models import InvalidServer  # noqa: PLC0415
    from toolbay.config.networks import with_network  # noqa: PLC0415

    server = with_network(config.tools.mcp_servers[name], config.tools)
    if isinstance(server, InvalidServer):
        raise CommandFailed(server.reason)
    return server


@contextmanager
def masked(logins: Logins) -> Generator[None]:
    """What others say of a login may say secrets of the configuration back."""
    try:
        yield
    except (LoginFailed, BlockedAddress) as error:
        raise CommandFailed(logins.secrets.mask(str(error))) from error


def forget_lists(server: ServerConfig) -> None:
    """What the server listed to who was logged in before is no beginning for who is now."""
    from toolbay.config import data_home  # noqa: PLC0415
    from toolbay.recollections import Folder  # noqa: PLC0415

    with suppress(OSError, ConfigError):  # then it is offered until the server is up, as after any change at its side
        Folder(data_home(os.environ) / "listings").forget(server)


async def is_kept(config: Config, name: str) -> bool:
    """Whether there is a login with this server."""
    try:
        status = await logins_of(config).standing(name, entry_of(config, name))
    except CommandFailed:
        return False  # whose it would be is not known
    return status.logged_in or bool(status.ended)
