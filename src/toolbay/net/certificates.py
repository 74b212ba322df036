"""What a certificate says of itself, whether or not it is trusted. Pure.

Python tells the contents of a certificate only once it has accepted it, and what a person wants to know is why it did not. So
the few fields that matter are read here from its DER form (X.690; RFC 5280, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address

_COMMON_NAME = bytes((0x55, 0x04, 0x03))
_ALTERNATIVE_NAMES = bytes((0x55, 0x1D, 0x11))
_IDENTIFIER, _UTC_TIME = 0x06, 0x17
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_DNS_NAME, _IP_ADDRESS = 0x82, 0x87


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The fields that people are shown. `names` are the DNS names and addresses that it is for."""

    subject: str
    issuer: str
    begins: datetime
    ends: datetime
    names: tuple[str, ...] = ()


def read(der: bytes) -> Certificate | None:
    """The certificate in `der`; None for what is none."""
    try:
        return _read(der)
    except (IndexError, StopIteration, UnicodeDecodeError, ValueError):
        return None


def _read(der: bytes) -> Certificate:
    ((_, outer),) = _parts(der)
    signed = next(_parts(outer))[1]
    fields = list(_parts(signed))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    # Serial number, algorithm, issuer, validity, subject; then the key and what is optional.
    issuer, validity, subject = (content for _, content in fields[2:5])
    begins, ends = (_time(tag, content) for tag, content in _parts(validity))
    extensions = next((content for tag, content in fields[5:] if tag == _EXTENSIONS), b"")
    return Certificate(subject=_name(subject), issuer=_name(issuer), begins=begins, ends=ends, names=tuple(_names(extensions)))


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and contents that stand one after another in `data`. Raises IndexError where it ends too early."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            at += size
        if at + length > len(data):
            raise IndexError("the data ends inside of a field")
        yield tag, data[at : at + length]
        at += length


def _name(data: bytes) -> str:
    """The common name, or the last part of a name that has none."""
    found = ""
    for _, group in _parts(data):
        for _, pair in _parts(group):
            (_, kind), (_, value) = _parts(pair)
            text = value.decode("utf-8", "replace")
            if kind == _COMMON_NAME:
                return text
            found = text
    return found


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _names(extensions: bytes) -> Iterator[str]:
    for _, listed in _parts(extensions):
        for _, extension in _parts(listed):
            fields = list(_parts(extension))
            if fields[0] != (_IDENTIFIER, _ALTERNATIVE_NAMES):
                continue
            ((_, names),) = _parts(fields[-1][1])
            for tag, value in _parts(names):
                if tag == _DNS_NAME:
                    yield value.decode("ascii")
                elif tag == _IP_ADDRESS:
                    yield str(ip_address(value))
