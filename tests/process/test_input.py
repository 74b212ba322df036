"""What a child's input took of a message is known exactly, whatever becomes of the child."""

from __future__ import annotations

import gc
import os
import threading

import anyio
import pytest

from toolbay.upstream.pipes import Input, NothingTaken

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")]

LARGE = bytes(range(256)) * 8_000
"""More than a pipe holds."""


def reading(descriptor: int, size: int, taken: list[bytes]) -> threading.Thread:
    """Read so much in a thread, as a child would, and close the end."""

    def read() -> None:
        left = size
        while left and (piece := os.read(descriptor, min(left, 10_000))):
            taken.append(piece)
            left -= len(piece)
        os.close(descriptor)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


async def test_a_message_that_does_not_fit_is_written_as_it_is_read() -> None:
    """LIF-2: all of it, in order."""
    pipe, taken = Input(), list[bytes]()
    reader = reading(pipe.reads, len(LARGE), taken)
    with anyio.fail_after(10):
        await pipe.send(LARGE)
    pipe.close()
    reader.join(10)
    assert b"".join(taken) == LARGE


async def test_an_input_that_was_closed_before_has_taken_nothing() -> None:
    """CAL-3: provably not sent."""
    pipe = Input()
    pipe.given()
    with pytest.raises(NothingTaken):
        await pipe.send(b"x")
    assert pipe.send_now(b"x") == 0
    pipe.close()


async def test_an_input_that_was_closed_meanwhile_may_have_taken_some() -> None:
    """CAL-3: part of it was read, and so it may have been acted on."""
    pipe, taken = Input(), list[bytes]()
    reader = reading(pipe.reads, 100_000, taken)
    with pytest.raises(anyio.BrokenResourceError) as raised, anyio.fail_after(10):
        await pipe.send(LARGE)
    assert not isinstance(raised.value, NothingTaken)
    reader.join(10)
    pipe.close()


async def test_a_close_wakes_who_waits_for_the_child_to_read() -> None:
    """LIF-1: nobody waits for a descriptor that is gone, or is somebody else's by then."""
    pipe = Input()
    errors: list[BaseException] = []

    async def send() -> None:
        try:
            await pipe.send(LARGE)
        except anyio.ClosedResourceError as error:
            errors.append(error)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            pipe.close()
            pipe.close()
    assert len(errors) == 1
    assert pipe.send_now(b"x") == 0
    pipe.given()


async def test_an_input_that_is_forgotten_ends() -> None:
    """LIF-1: where the loop is torn down over it, the child sees the end all the same."""
    pipe = Input()
    reads = pipe.reads
    del pipe
    gc.collect()
    assert os.read(reads, 1) == b""
    os.close(reads)
