"""Work that many want and one does: whoever asks while it is done waits for the same end, and may leave without breaking it off."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from toolbay._aio import bounded
from toolbay.errors import ToolbayError

LINGER, AT_STAKE = 2.0, 4.0
"""Seconds that work may take once the block has ended that its task belongs to; and where something would be lost with it."""
SPARE = 1.0
"""Seconds that are left to who ends the block, of those that it has for its end."""

_log = logging.getLogger("toolbay.auth")


class _Errand:
    """One piece of work, under way or done."""

    def __init__(self, subject: object, group: anyio.abc.TaskGroup | None) -> None:
        self.subject = subject
        self.group = group
        self.scope = anyio.CancelScope(shield=group is not None)
        self.over = anyio.Event()
        self.at_stake = False
        self.came_to_an_end = False
        self.failure: Exception | None = None


class Errands:
    """One errand at a time. Its task belongs to an `at_work` block; where there is none, to who asks for it."""

    def __init__(self) -> None:
        self._groups: list[anyio.abc.TaskGroup] = []
        self._current: _Errand | None = None

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Errands are carried to their end, though who wanted one has left, for as long as such a block runs, and somewhat longer."""
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            self._groups.append(group)
            try:
                yield
            except Exception as error:  # carried past the group, which would wrap it
                failure = error
            finally:
                self._groups.remove(group)
                if (errand := self._current) is not None and errand.group is group:
                    await _lingered(errand)
                    errand.scope.cancel()
        if failure is not None:
            raise failure

    def stake(self) -> None:
        """Called by work: what it does from here on cannot be had again where it is broken off."""
        if self._current is not None:
            self._current.at_stake = True

    async def run(self, subject: object, work: Callable[[], Awaitable[object]]) -> Exception | None:
        """Come back once `work` has been done, by whomever, and say how it failed. `subject` tells which work is the same."""
        while (errand := self._current) is not None:
            await errand.over.wait()
            if errand.subject == subject and errand.came_to_an_end:
                return errand.failure
        group = self._groups[-1] if self._groups else None
        errand = self._current = _Errand(subject, group)
        if group is None:
            await self._carry(errand, work)
        else:
            group.start_soon(self._carry, errand, work, name="a login's errand")
            await errand.over.wait()
        return errand.failure if errand.came_to_an_end else await self.run(subject, work)

    async def _carry(self, errand: _Errand, work: Callable[[], Awaitable[object]]) -> None:
        try:
            with errand.scope:
                await work()
                errand.came_to_an_end = True
        except Exception as error:  # told to each who waits
            errand.failure = error
            errand.came_to_an_end = True
            if not isinstance(error, ToolbayError):
                _log.warning("what was done for a login ended unexpectedly (%s)", type(error).__name__)
        finally:
            self._current = None
            errand.over.set()


async def _lingered(errand: _Errand) -> None:
    """Its end, or that of the time it has. Who ends the block may have less time than that: to close a session takes some too."""
    begun, ends_at = anyio.current_time(), anyio.current_effective_deadline()
    latest = math.inf if ends_at == -math.inf else ends_at - SPARE  # where the block was cancelled no time is set any more
    await bounded(min(begun + LINGER, latest) - anyio.current_time(), errand.over.wait)
    if errand.at_stake:
        await bounded(min(begun + AT_STAKE, latest) - anyio.current_time(), errand.over.wait)
