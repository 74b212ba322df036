"""The page that a person is led to, who that person is, and the address that may be brought back from it by hand.

Mail, chats and terminals change what passes through them: an address is read for what was meant, and what remains unclear is
asked for again. Nothing of it is told of the authorization server, which may have said something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from toolbay.auth.callback import fields, same

_NEVER: Final = re.compile(r"[\"'<>]|[^!-~]")
"""What stands raw in no query that a browser shows (URL Standard, 1.3): there the address has ended."""
_BEFORE: Final = re.compile(r"^[^0-9A-Za-z?]+")
_BEHIND: Final = ".,;:!?)]}`*"
"""What a sentence or a mark-up may put behind an address, and an address may end in as well."""
_OF_A_PAGE: Final = frozenset({"client_id", "code_challenge", "redirect_uri", "response_type"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The page that a person is led to."""

    url: str = field(repr=False)
    """Judged, and safe to show; it is good for one login."""
    host: str
    """Whose page it is: for the person to look at before anything is typed there."""
    issuer: str
    """The authorization server, as `LoginStatus.issuer`."""
    server: str
    """The server's name in the configuration."""
    redirect_uri: str
    """Where the browser ends."""
    state: str = field(repr=False)
    """What the answer must bring along."""
    scopes: tuple[str, ...] = ()
    """What is asked for; empty where that is left to the authorization server."""
    begin: str = field(default="", repr=False)
    """An address on this machine that leads to `url` once: for programs that open it, whose arguments everybody here can read."""
    names_itself: bool = False
    """Whether its answers must say that they come from `issuer` (RFC 9207)."""

    @property
    def authority(self) -> str:
        """The host of the authorization server, with its port."""
        return urlsplit(self.issuer).netloc

    def fault(self, address: str) -> str:
        """Why `address` is not the one that the browser ended at, as a sentence's beginning; empty where it is."""
        return "" if self.brought(address) is not None else self._wrong(_joined(address))

    def brought(self, address: str) -> dict[str, str] | None:
        """The fields of the answer in `address`; None where it has a fault."""
        return next((found for found in _readings(_joined(address)) if not self._lacking(found)), None)

    def _wrong(self, text: str) -> str:
        found = next(_readings(text), None)
        if found is None:
            return "that is no address as a browser shows it: copy it once more, and nothing besides"
        if "code" in found or "error" in found:
            return self._lacking(found)
        before, _, query = text.partition("?")
        if before == self.url.partition("?")[0] and (not query or _OF_A_PAGE & found.keys()):
            return "that is the login page itself: open it, agree there, and paste the address that the browser ends at"
        here = self.redirect_uri.partition("://")[2]
        if before.removeprefix("http://") == here or (not query and here.startswith(before.removeprefix("http://") or "?")):
            return "that address was cut off: there is no answer in it; copy the whole of it"
        return f"that is not where the browser ended, which is {self.redirect_uri}?..."

    def _lacking(self, found: Mapping[str, str]) -> str:
        """What keeps the fields of an address from being the answer that is waited for; empty where nothing does."""
        if not ("code" in found or "error" in found):
            return "it is no answer"
        state = found.get("state", "")
        if not same(state, self.state):
            if not state or self.state.startswith(state):
                missing = "its `state` is not whole" if state else "there is no `state` in it"
                return f"that address was cut off: {missing}; copy the whole of it"
            return "that address belongs to another login: go on with the page that was opened last"
        if not comes_from(self.issuer, found, always_says=self.names_itself):
            return f"that address does not say that it comes from {self.authority}: copy the whole of it, to its last letter"
        return ""


def comes_from(issuer: str, answer: Mapping[str, str], *, always_says: bool) -> bool:
    """Whether an answer comes from `issuer`, by what it says of that (RFC 9207, 2.4). `always_says`: one that does not is not its own."""
    said = answer.get("iss")
    return not always_says if said is None else said == issuer


class Person(Protocol):
    """Who logs in."""

    async def go(self, page: Page) -> None:
        """Lead the person to `page.url`. It may return at once, or stay: it is cancelled when the browser has come back."""
        ...


@runtime_checkable
class Pasting(Person, Protocol):
    """A person whose browser may be at another machine, and who then brings the address that it ended at."""

    async def pasted(self) -> str:
        """That address, in which `page.fault` finds no fault; empty where none will come. Asked for once `go` has returned."""
        ...


def _joined(address: str) -> str:
    """Without white space and without what nobody sees: lines are broken on the way, and an address has none of it."""
    seen = "".join(char for char in address if not char.isspace() and char.isprintable())
    return _BEFORE.sub("", seen)


def _readings(text: str) -> Iterator[dict[str, str]]:
    """The fields of the query, as it stands there, then without what may not belong to it."""
    query = _NEVER.split(text.partition("?")[2].partition("#")[0].replace("&amp;", "&"))[0]
    for given in dict.fromkeys((query, query.rstrip(_BEHIND))):
        if (found := fields(given)) is not None:
            yield found
