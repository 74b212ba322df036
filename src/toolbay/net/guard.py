"""The network policy: which URLs and addresses may be reached. Pure; it knows neither sockets nor an HTTP library.

Three questions, in the order in which they come up: is this URL clear about its host (`check_url`), may all of the addresses be
dialled that its name has (`check_addresses`), and may this redirect be followed (`check_redirect`). Each raises
`BlockedAddress` with one sentence that names the cause and the mend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, TypeAlias

from toolbay._redact import url as shown_url
from toolbay._text import line
from toolbay.errors import BlockedAddress, ConfigError
from toolbay.net.addresses import METADATA_NAMES, Address, Network, canonical, metadata, special

MAX_REDIRECTS = 5
DEFAULT_PORTS = {"http": 80, "https": 443}
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

_URL = re.compile(r"(?i:(https?))://([^/?#]*)")
_PORT = re.compile(r":([0-9]{0,5})\Z")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
"""Letters, digits and hyphens; the underscore is against the rules and seen in the wild."""
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that some parsers take for a part of an IPv4 address (WHATWG URL, "ends in a number")."""


class Parts(NamedTuple):
    """What the HTTP client's parser makes of a URL: the host in ASCII, without brackets."""

    scheme: str
    userinfo: str
    host: str
    port: int | None


Parse: TypeAlias = Callable[[str], Parts]
"""The HTTP client's own parser; raises ValueError for what it refuses. Two parsers that differ are a way around a guard."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads: `host` as the client will give it to DNS, TLS and the Host header."""

    scheme: str
    host: str
    port: int
    literal: Address | None = None
    """The address, where the host is one; canonical (mapped IPv6 is IPv4)."""

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}")


@dataclass(frozen=True)
class Policy:
    """What is open beside the public internet. Raises ConfigError for an entry that is no address range."""

    whitelist: tuple[str, ...] = ()
    """Ranges (CIDR) that may be reached. A metadata service is only opened by its exact address."""
    fake_ip: tuple[str, ...] = ()
    """Ranges from which a local proxy answers DNS in place of the real addresses (198.18.0.0/15): open to names, not to literals."""
    home: Target | None = None
    """The configured server: if its URL names this machine, that is consent for exactly this origin (`consent`)."""
    _open: tuple[Network, ...] = field(init=False, repr=False, compare=False)
    _fake: tuple[Network, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_open", tuple(_network(entry, "ssrfWhitelist") for entry in self.whitelist))
        object.__setattr__(self, "_fake", tuple(_network(entry, "fakeIp") for entry in self.fake_ip))

    def toward(self, host: str, port: int) -> Policy:
        """This policy for one connection: with what the configured URL consents to, if that is where it goes."""
        home = self.home
        if home is None or (home.host, home.port) != (host, port):
            return self
        return replace(self, whitelist=(*self.whitelist, *consent(home)))

    def opens(self, address: Address) -> bool:
        return any(address in network for network in self._open)

    def opens_exactly(self, address: Address) -> bool:
        return any(network.num_addresses == 1 and address in network for network in self._open)

    def fakes(self, address: Address) -> bool:
        return any(address in network for network in self._fake)


def is_here(target: Target) -> bool:
    """Whether a URL names this machine in so many words: a loopback literal or `localhost`."""
    if target.literal is None:
        return target.host.removesuffix(".") == "localhost"
    return any(target.literal in network for network in LOOPBACK)


def consent(target: Target) -> tuple[str, ...]:
    """The whitelist entries that a configured URL implies: a loopback literal its own address, `localhost` both families'.

    A private or link-local address is no consent: configurations are copied between networks.
    """
    if not is_here(target):
        return ()
    return ("127.0.0.1/32", "::1/128") if target.literal is None else (_exactly(target.literal),)


def check_url(text: str, parse: Parse) -> Target:
    """The one place where a URL leads, or BlockedAddress if programs may differ about that.

    `text` is checked as it is written, then `parse` must agree with what is plain to see in it.
    """
    if not text.isprintable() or " " in text or "\\" in text:
        raise _unclear(text, "it holds a space, a control character or a backslash")
    match = _URL.match(text)
    if match is None:
        raise _unclear(text, "it is no http or https address")
    scheme, authority = match[1].lower(), match[2]
    if "@" in authority:
        raise _unclear(text, "it holds a user name or password; put credentials into `headers`")
    if "%" in authority:
        raise _unclear(text, "its host holds a percent sign")
    port_text = _PORT.search(authority)
    host_text = authority[: port_text.start()] if port_text else authority
    if ":" in host_text and not (host_text.startswith("[") and host_text.endswith("]")):
        raise _unclear(text, "its host or port is malformed")
    port = int(port_text[1]) if port_text and port_text[1] else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65535:
        raise _unclear(text, "its port is not between 1 and 65535")
    try:
        parts = parse(text)
    except ValueError:
        raise _unclear(text, "it is malformed") from None
    if (parts.scheme, parts.userinfo, parts.port or DEFAULT_PORTS[scheme]) != (scheme, "", port):
        raise _unclear(text, "it can be read in more than one way")
    if host_text.startswith("[") != (":" in parts.host):
        raise _unclear(text, "only an IPv6 address may stand in brackets")
    return Target(scheme, parts.host, port, check_host(parts.host))


def check_host(host: str) -> Address | None:
    """The canonical address that a host in ASCII is, None for a name; BlockedAddress for what is neither or never allowed."""
    shown = line(host, 80) or "an empty host"
    if ":" in host:
        try:
            if "%" not in host:
                return canonical(IPv6Address(host))
        except ValueError:
            pass
        raise BlockedAddress(f"{shown} is no IPv6 address that can be dialled", "correct `url`")
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return IPv4Address(host)
        except ValueError:
            text = f"{shown} is an IPv4 address in a form that programs read differently"
            raise BlockedAddress(text, "write it as four decimal numbers") from None
    if len(name) > 253 or not all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels):
        raise BlockedAddress(f"{shown} is no host name", "correct `url`")
    if any(name == denied or name.endswith(f".{denied}") for denied in METADATA_NAMES):
        raise BlockedAddress(f"{shown} is a cloud's metadata service, which hands out credentials: it stays closed")
    return None


def check_addresses(host: str, addresses: Iterable[str], policy: Policy) -> tuple[Address, ...]:
    """The canonical addresses to dial, in their order and once each.

    Raises BlockedAddress if there is none or a single one is closed: a fallback would find the closed one.
    """
    literal = check_host(host)
    checked: dict[Address, None] = {}
    for text in addresses:
        try:
            address = canonical(ip_address(text)) if "%" not in text else None
        except ValueError:
            address = None
        if address is None:
            raise BlockedAddress(f"{host} leads to {line(text, 80)}, which is no address that can be dialled", "correct its DNS entry")
        _judge(host, address, policy, named=literal is None)
        checked[address] = None
    if not checked:
        raise BlockedAddress(f"{host} has no address", "check the name in `url`")
    return tuple(checked)


def same_origin(one: Target, other: Target) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def within(home: Target, to: Target) -> bool:
    """Whether what was meant for `home` may go to `to`: the same origin, or its change from http to https on default ports."""
    upgrade = (home.scheme, home.port, to.scheme, to.port) == ("http", 80, "https", 443) and home.host == to.host
    return upgrade or same_origin(home, to)


def check_redirect(sent: Target, to: Target, *, followed: int = 0, same_method: bool = True) -> None:
    """Raise BlockedAddress unless a redirect may be followed; `followed` is how many were followed before it.

    Everything on a request (headers, credentials, arguments) was meant for its origin, so nothing else is followed (`within`).
    A changed method would lose the message. `to` comes from `check_url`, so it has no userinfo.
    """
    if not within(sent, to):
        raise BlockedAddress(
            f"{sent.origin} redirects to {to.origin}, another origin, which is not followed", "set that as `url` if it is right"
        )
    if not same_method:
        raise BlockedAddress(f"{sent.origin} answers with a redirect that would lose the message", "set the address it names as `url`")
    if followed >= MAX_REDIRECTS:
        raise BlockedAddress(f"{sent.origin} redirects more than {MAX_REDIRECTS} times", "set the last address as `url`")


def _judge(host: str, address: Address, policy: Policy, *, named: bool) -> None:
    where = f"{host} leads to {address}," if named else f"{address} is"
    service = metadata(address)
    if service is not None:
        if policy.opens_exactly(address):
            return
        inside = "" if service == address else f" ({service} inside)"
        raise BlockedAddress(
            f"{where} a cloud's metadata service{inside}, which hands out credentials, "
            f'and stays closed unless `ssrfWhitelist` of this server names exactly "{_exactly(address)}"',
        )
    if policy.opens(address) or (named and policy.fakes(address)):
        return
    found = special(address)
    if found is None:
        return
    network, what = found
    if int(address) == 0:
        raise BlockedAddress(f"{where} {what}, which cannot be connected to", "write 127.0.0.1 if this machine is meant")
    raise BlockedAddress(
        f"{where} {what} ({network}), closed to servers by default",
        f'if this is meant, add "{_exactly(address)}" to `ssrfWhitelist` of this server',
    )


def _exactly(address: Address) -> str:
    return f"{address}/{address.max_prefixlen}"


def _unclear(text: str, why: str) -> BlockedAddress:
    return BlockedAddress(f"the address {line(shown_url(text), 120)} cannot be used, because {why}", "correct `url`")


def _network(entry: str, key: str) -> Network:
    try:
        network = ip_network(entry.strip(), strict=False)
    except ValueError:
        raise ConfigError(f'"{line(entry, 60)}" in `{key}` is no address range: write it like "10.0.0.0/8"') from None
    inner = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return IPv4Network((inner, network.prefixlen - 96)) if inner is not None and network.prefixlen >= 96 else network
