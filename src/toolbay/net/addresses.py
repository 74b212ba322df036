"""What is special about an IP address: tables and the decoding of addresses that hide in others. Pure.

IPv4 goes by a deny table; IPv6 by an allow list (only 2000::/3 is handed out for global use), minus what is special inside it.
The tables follow IANA's "IPv4 Special-Purpose Address Registry", "IPv6 Special-Purpose Address Registry", "IPv4 Address Space
Registry" and "IPv6 Global Unicast Address Assignments" as they stood on 2026-09-17. They are written down here rather than
asked of `ipaddress`, whose answers change with the version of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

AS_OF = "2026-09-17"
"""The day on which the tables were compared with the registries."""

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_IPV4_SPECIAL: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), name)
    for network, name in (
        ("0.0.0.0/8", "an address of no host"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address shared behind a carrier or an overlay"),
        ("127.0.0.0/8", "this machine itself"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "an address reserved for protocols"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.31.196.0/24", "a sink for stray DNS queries (AS112)"),
        ("192.52.193.0/24", "a multicast relay"),
        ("192.88.99.0/24", "the retired 6to4 relay"),
        ("192.168.0.0/16", "a private address"),
        ("192.175.48.0/24", "a sink for stray DNS queries (AS112)"),
        ("198.18.0.0/15", "an address for benchmarks, which fake-IP proxies answer with"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)

_IPV6_GLOBAL = IPv6Network("2000::/3")
_IPV6_SPECIAL: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), name)
    for network, name in (
        # Inside 2000::/3, where they are refused; the others only lend their names to messages.
        ("2001::/32", "an address of a Teredo tunnel"),
        ("2001::/23", "an address reserved for protocols"),
        ("2001:db8::/32", "an address for documentation"),
        ("2002::/16", "an address of a 6to4 tunnel"),
        ("2620:4f:8000::/48", "a sink for stray DNS queries (AS112)"),
        ("3ffe::/16", "an address of the retired 6bone"),
        ("3fff::/20", "an address for documentation"),
        ("::/128", "an address of no host"),
        ("::1/128", "this machine itself"),
        ("::/96", "an IPv4 address in a retired form"),
        ("::ffff:0:0:0/96", "an IPv4 address in translated form"),
        ("64:ff9b:1::/48", "an address of a local NAT64"),
        ("100::/64", "an address that discards everything"),
        ("5f00::/16", "an address for segment routing"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    )
)

NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix (RFC 6052): how hosts without IPv4 reach all of IPv4, so what counts is the address inside."""

METADATA: frozenset[Address] = frozenset(
    {
        IPv4Address("169.254.169.254"),  # AWS, Google, Azure, OpenStack, DigitalOcean, Oracle and more
        IPv4Address("169.254.170.2"),  # AWS ECS task credentials
        IPv4Address("169.254.170.23"),  # AWS EKS pod identity
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("169.254.0.23"),  # Tencent
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("168.63.129.16"),  # Azure WireServer, on a public address
        IPv4Address("192.0.0.192"),  # Oracle Cloud Classic
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::23"),  # AWS EKS pod identity
        IPv6Address("fd20:ce::254"),  # Google
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
    },
)
"""Where clouds hand credentials to whoever asks from the machine itself."""

METADATA_NAMES = (
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "instance-data",
    "instance-data.ec2.internal",
    "rancher-metadata",
)
"""Names of the same services; they and all names below them are refused, whatever DNS says."""


def canonical(address: Address) -> Address:
    """The address that is really meant: an IPv4-mapped one (::ffff:0:0/96) is its IPv4 address on the wire."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def metadata(address: Address) -> Address | None:
    """The metadata service that a canonical address is, or carries inside in any known or conceivable embedding."""
    if address in METADATA:
        return address
    if isinstance(address, IPv6Address):
        return next((inner for inner in embedded(address) if inner in METADATA), None)
    return None


def special(address: Address) -> tuple[Network, str] | None:
    """Why a canonical address is not public: the range and what that is. None for a public one.

    The IPv4 address inside a NAT64 or ISATAP address is judged as well: the network delivers there.
    """
    if isinstance(address, IPv4Address):
        return next(((network, name) for network, name in _IPV4_SPECIAL if address in network), None)
    if address in NAT64 or _is_isatap(address):
        inner = special(IPv4Address(int(address) & 0xFFFF_FFFF))
        if inner is not None or address in NAT64:
            return inner
    for network, name in _IPV6_SPECIAL:
        if address in network:
            return network, name
    return (
        None
        if address in _IPV6_GLOBAL
        else (IPv6Network((int(address) >> 120 << 120, 8)), "an address that is not handed out for public use")
    )


def embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Every IPv4 address that an IPv6 address may carry.

    At every byte (mapped, compatible, translated, 6to4, ISATAP, NAT64 with /32 and /96 prefixes of any operator), around the
    zero byte that RFC 6052 puts into prefixes of /40 to /64, and inverted at the end (Teredo, RFC 4380).
    """
    packed = address.packed
    for start in range(13):
        yield IPv4Address(packed[start : start + 4])
    around = packed[:8] + packed[9:]
    for start in (5, 6, 7, 8):
        yield IPv4Address(around[start : start + 4])
    yield IPv4Address(bytes(byte ^ 0xFF for byte in packed[12:]))


def _is_isatap(address: IPv6Address) -> bool:
    """RFC 5214: the interface id is 0:5efe or 200:5efe and an IPv4 address."""
    return (int(address) >> 32) & 0xFDFF_FFFF == 0x0000_5EFE
