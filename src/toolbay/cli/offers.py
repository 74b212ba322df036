"""What `toolbay prompts` and `toolbay resources` have in common: a list of what the servers offer, for people or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from toolbay.cli.invocation import DONE, SERVER_FAILED, Invocation
from toolbay.cli.servers import known_server

if TYPE_CHECKING:
    from toolbay.app import App
    from toolbay.offerings import PromptInfo, ResourceInfo

Offer = TypeVar("Offer", "PromptInfo", "ResourceInfo")


@dataclass(frozen=True, kw_only=True)
class Shelf(Generic[Offer]):
    """One kind of what servers offer, and how it is shown as a table."""

    kind: str
    find: Callable[[App], Sequence[Offer]]
    columns: tuple[str, ...]
    row: Callable[[Offer], tuple[str, ...]]


async def listed(invoked: Invocation, shelf: Shelf[Offer], server: str, *, as_json: bool) -> int:
    """List what all servers, or one, have on this shelf; the exit code."""
    from toolbay.cli.running import Opening, all_failed, failed, given_up, opened  # noqa: PLC0415
    from toolbay.cli.tools import NO_SERVERS, refuse_disabled  # noqa: PLC0415

    config = invoked.config()
    only = {known_server(config, server)} if server else None
    refuse_disabled(config, only or ())
    terminal = invoked.terminal
    async with opened(invoked, Opening(only=only), config) as app:
        if as_json and all_failed(app):
            return given_up(app, terminal, as_json=True)
        found = shelf.find(app)
        if as_json:
            terminal.json([asdict(one) for one in found])
        elif not config.tools.mcp_servers:
            terminal.say(NO_SERVERS)
        elif not found:
            terminal.say(f"No server {'that is up ' if failed(app) else ''}offers a {shelf.kind}.")
        else:
            terminal.table(shelf.columns, [shelf.row(one) for one in found])
        return SERVER_FAILED if failed(app) else DONE
