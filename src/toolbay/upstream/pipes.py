"""A child's input on POSIX: a pipe of ours, so that how much of a message the system took is a fact and not a guess.

An event loop's own pipe keeps what was not taken yet, and of a write that failed nobody is told how far it got.
"""

from __future__ import annotations

import os
import weakref

import anyio
import anyio.lowlevel


class NothingTaken(anyio.BrokenResourceError):
    """The other end is closed, and not one byte of this message got into the pipe."""


class Input:
    """The pipe. `reads` is the child's end, to be given to it and then closed with `given`."""

    def __init__(self) -> None:
        """Raises OSError: no descriptor is to be had."""
        self.reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)
        # Also where the loop is torn down before `close`: the child sees the end of its input.
        self._let_go = weakref.finalize(self, os.close, self._writes)

    def given(self) -> None:
        """The child has its end, or will never have it: close ours of it."""
        os.close(self.reads)

    async def send(self, data: bytes) -> None:
        """Write all of `data`, waiting where the child does not read. One sender at a time.

        Raises:
            NothingTaken: the child has closed its input, before any of this.
            anyio.BrokenResourceError: it has closed it meanwhile.
            anyio.ClosedResourceError: `close` was called.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(data)
        while rest:
            if not self._let_go.alive:
                raise anyio.ClosedResourceError
            try:
                rest = rest[os.write(self._writes, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._writes)
            except OSError as error:
                raise (NothingTaken if len(rest) == len(data) else anyio.BrokenResourceError) from error

    def send_now(self, data: bytes) -> int:
        """Write what the pipe takes at this moment; how many bytes that were: none where it is full, or takes no more."""
        try:
            return os.write(self._writes, data) if self._let_go.alive else 0
        except OSError:
            return 0

    def close(self) -> None:
        """The end of its input. Idempotent."""
        if self._let_go.alive:
            anyio.notify_closing(self._writes)
            self._let_go()
