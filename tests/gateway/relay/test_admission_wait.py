"""Who waits for a request's admission is told of it, or of its end without."""

import asyncio

import pytest

from legato_gateway.errors import DeadlineExceeded


async def test_an_admitted_request_says_so_before_its_first_token(lab):
    async with lab.running(lab.unified(1)) as gateway:
        (worker,) = gateway.workers
        worker.hold("queued")
        generation = gateway.submit().generation
        assert await generation.wait_admitted()
        assert generation.completion_tokens == 0
        worker.release()


async def test_a_request_that_ends_in_the_queue_was_never_admitted(lab):
    async with lab.following([]) as gateway:
        reader = gateway.submit(deadline=0.2)
        waiting = asyncio.create_task(reader.generation.wait_admitted())
        with pytest.raises(DeadlineExceeded):
            await reader.read()
        assert not await waiting
