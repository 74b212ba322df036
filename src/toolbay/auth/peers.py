"""Whose program is at the other end of a connection within this machine, as far as its system tells (Linux: proc(5), /proc/net/tcp)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import anyio.abc
from anyio.abc import SocketAttribute

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ROOT: Final = 0


class _End(NamedTuple):
    """One end of a connection. `inode` is 0 once its program has let go of it; `uid` says nothing then."""

    local: int
    remote: int
    uid: int
    inode: int


def is_foreign(stream: anyio.abc.SocketStream) -> bool:
    """Whether another user of this machine is there, or was; False where nobody can tell. Who is root needs no ways like this."""
    ports = stream.extra_attributes
    here, there = ports[SocketAttribute.local_port](), ports[SocketAttribute.remote_port]()
    ends = [end for end in _ends() if here in (end.local, end.remote)]
    theirs = [end for end in ends if (end.local, end.remote) == (there, here)]
    if not theirs:
        # It is not of this system, such as a browser outside of a virtual machine; or it left at once, and our end went with it.
        return bool(ends) and not any((end.local, end.remote) == (here, there) for end in ends)
    return any(not end.inode or end.uid not in (os.getuid(), _ROOT) for end in theirs)


def _ends() -> Iterator[_End]:
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9:
                yield _End(_port(words[1]), _port(words[2]), int(words[7]), int(words[9]))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
