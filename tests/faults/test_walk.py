"""S1: ten servers, all faults, a seeded walk. A short one is part of every test run; `make soak` walks for minutes."""

from __future__ import annotations

import os
import random
from contextlib import AsyncExitStack

import pytest

from faults import report, walk
from faults.harness import Allowance, case
from servers.raw_http import RawHttp

pytestmark = pytest.mark.anyio

SECONDS = float(os.environ.get("SOAK_SECONDS", "12"))
SEED = int(os.environ.get("SOAK_SEED") or (random.SystemRandom().randrange(10**6) if "SOAK_SECONDS" in os.environ else 1))
KEPT = 0.4
"""MB a second that a test keeps of a walk for its checks: every event, every error, every line that is logged."""
BUSY = Allowance(peak=256 + KEPT * SECONDS, growth=64 + KEPT * SECONDS, latency=0.25, stall=0.25)
"""Results of 2 MB and a score of calls at once are worked on meanwhile."""


@pytest.mark.timeout(3 * SECONDS + 120)
async def test_s1_all_invariants_hold_after_a_random_walk_over_all_faults() -> None:
    """S1: whatever comes together, I1 to I7 hold, and every server is there again in the end."""
    async with AsyncExitStack() as stack:
        web = {
            name: await stack.enter_async_context(RawHttp(era="modern" if number % 2 else "legacy", sse=number > 1))
            for number, name in enumerate(walk.ADDRESSES)
        }
        entries = walk.servers(web)
        bay = await stack.enter_async_context(case("S1", f"walk of {SECONDS:g} s, seed {SEED}", entries, allowance=BUSY))
        bay.counted = lambda name: web[name].effects if name in web else bay.lines(name)
        walked = walk.Walk(SEED, bay, web)
        try:
            await walked.go(SECONDS)
        finally:
            walk.folder_of(SEED, walked.steps, report.FILE.parent)
        assert len(walked.steps) > SECONDS, "it hardly moved"
