"""Which addresses are special, and which carry others inside."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.net.addresses import METADATA, canonical, embedded, metadata, special

SERVICES = sorted(address for address in METADATA if isinstance(address, IPv4Address))
PUBLIC_PREFIX = "2606:4700:1234:5678"


def rfc6052(inner: IPv4Address, length: int) -> IPv6Address:
    """Figure 1 of RFC 6052, written with the octet numbers of its table."""
    octets = bytearray(IPv6Address(f"{PUBLIC_PREFIX}::").packed)
    places = {32: (4, 5, 6, 7), 40: (5, 6, 7, 9), 48: (6, 7, 9, 10), 56: (7, 9, 10, 11), 64: (9, 10, 11, 12), 96: (12, 13, 14, 15)}[length]
    octets[8] = 0
    for place, octet in zip(places, inner.packed, strict=True):
        octets[place] = octet
    return IPv6Address(bytes(octets))


@pytest.mark.parametrize("length", [32, 40, 48, 56, 64, 96])
@pytest.mark.parametrize("inner", SERVICES, ids=str)
def test_a_metadata_service_is_found_behind_every_prefix_of_rfc_6052(inner: IPv4Address, length: int) -> None:
    """Attack 9: NAT64 prefixes are the operator's choice, so every length is decoded."""
    assert metadata(rfc6052(inner, length)) == inner


@pytest.mark.parametrize("inner", SERVICES, ids=str)
def test_a_metadata_service_is_found_in_tunnels(inner: IPv4Address) -> None:
    """Attack 9: 6to4, Teredo (inverted), ISATAP, compatible, translated and mapped forms."""
    inverted = int(inner) ^ 0xFFFF_FFFF
    for outer in (
        IPv6Address((0x2002 << 112) | int(inner) << 80 | 1),
        IPv6Address((0x2001_0000 << 96) | 0x4136_E378_8000_63BF << 32 | inverted),
        IPv6Address(int(IPv6Address("2606:4700::5efe:0:0")) | int(inner)),
        IPv6Address(int(inner)),
        IPv6Address(int(IPv6Address("::ffff:0:0:0")) | int(inner)),
        canonical(IPv6Address(int(IPv6Address("::ffff:0:0")) | int(inner))),
    ):
        assert metadata(outer) == inner


@given(st.integers(0, 2**32 - 1))
def test_public_ipv4_is_what_python_calls_global_minus_what_we_refuse_by_policy(number: int) -> None:
    """Attack 9: nothing that the standard library calls private passes the table; what we refuse beside it is known."""
    address = IPv4Address(number)
    if special(address) is None:
        assert address.is_global
    elif address.is_global and not address.is_multicast:
        ours = ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24")
        assert any(address in ipaddress.ip_network(network) for network in ours)


@given(st.one_of(st.integers(0, 2**128 - 1), st.integers(0, 2**125 - 1).map(lambda low: low | 1 << 125)))
def test_public_ipv6_is_inside_the_global_unicast_range(number: int) -> None:
    """Attack 9: IPv6 goes by an allow list."""
    address = canonical(IPv6Address(number))
    if isinstance(address, IPv6Address) and special(address) is None:
        assert address in ipaddress.ip_network("2000::/3") or address in ipaddress.ip_network("64:ff9b::/96")
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")


@given(st.integers(0, 2**32 - 1))
def test_nat64_and_isatap_are_as_special_as_what_is_inside(number: int) -> None:
    """Attack 9: the network delivers to the address inside."""
    inner = IPv4Address(number)
    assert special(IPv6Address(int(IPv6Address("64:ff9b::")) | number)) == special(inner)
    assert special(IPv6Address(int(IPv6Address("2606:4700::200:5efe:0:0")) | number)) == special(inner)


def test_every_byte_of_an_address_is_looked_at() -> None:
    """Attack 9: thirteen places, four of them again around the octet that RFC 6052 leaves free, and the inverted end."""
    assert len(list(embedded(IPv6Address("2001:db8::1")))) == 18
