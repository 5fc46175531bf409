"""Workers' control ports, as the operator asks them."""

import asyncio

import httpx

from legato_operator.observing.worker_api import AT_ONCE, HttpWorkers

WORKERS = 20 * AT_ONCE
STATE = {"draining": False, "running": 1, "waiting": 2, "idle": False, "transport": "tcp"}


class Fleet:
    """Answers when all whose turn it is have asked; remembers how many those were at most."""

    def __init__(self):
        self.under_way = 0
        self.most = 0

    async def answer(self, request):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return httpx.Response(200, json=STATE)


def test_thousands_of_workers_are_asked_by_turns_and_all_are_heard():
    """Two thousand requests at once kept an HTTP client busy for a minute and timed out, every one."""

    async def check():
        fleet = Fleet()
        async with httpx.AsyncClient(transport=httpx.MockTransport(fleet.answer)) as client:
            workers = HttpWorkers(client)
            states = await asyncio.gather(
                *(workers.state(f"10.0.{number >> 8}.{number & 255}:1", "t") for number in range(WORKERS))
            )
        assert all(state is not None and state.busy == 3 for state in states)
        assert 1 < fleet.most <= AT_ONCE

    asyncio.run(check())


def test_a_worker_at_no_possible_address_is_silent():
    async def check():
        async with httpx.AsyncClient() as client:
            workers = HttpWorkers(client)
            assert await workers.state("10.0.0.7:no", "t") is None
            await workers.drain("10.0.0.7:no", "t")

    asyncio.run(check())
