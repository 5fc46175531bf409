"""The connection of an answer: clients that leave, several events in one write, a real server."""

import asyncio
import json

import openai
import pytest
from tests.support.asgi import Sender

from legato_gateway.errors import DeadlineExceeded, SuspectedPoison, WorkerFailed
from legato_gateway.request import Delta


class Connection(Sender):
    """A completion's client, and whether any of its answer has come."""

    def __init__(self, stream=True):
        super().__init__(json.dumps({"model": "tiny", "prompt": "hi", "stream": stream}).encode())
        self.something = asyncio.Event()

    async def send(self, message):
        await super().send(message)
        if message.get("body"):
            self.something.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_its_work_immediately(gateway, stream):
    hangs = gateway.gate()
    gateway.script(Delta(0, "a"), hangs, Delta(0, "b", finish="stop"))
    connection = Connection(stream)
    exchange = asyncio.create_task(connection.run(gateway.app))
    await hangs.reached.wait()
    (generation,) = gateway.relay.generations
    assert not generation.cancelled.is_set()
    connection.leave()
    await asyncio.wait_for(exchange, 60)
    assert generation.cancelled.is_set()
    assert not any(b'"b"' in message.get("body", b"") for message in connection.sent)


async def test_an_exchange_that_is_cancelled_by_the_server_cancels_its_work(gateway):
    gateway.script(Delta(0, "a"), gateway.gate())
    connection = Connection()
    exchange = asyncio.create_task(connection.run(gateway.app))
    await connection.something.wait()
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    assert gateway.relay.generations[0].cancelled.is_set()


async def test_a_slow_client_delays_the_stream(gateway):
    """Nothing is taken from the relay while the transport is full: its buffer is the bounded one."""
    gates = [gateway.gate() for _ in range(3)]
    gateway.script(*(step for gate in gates for step in (Delta(0, "x"), gate)), Delta(0, "", finish="stop"))
    connection = Connection()
    full, send = asyncio.Event(), connection.send

    async def slow(message):
        await send(message)
        if message.get("body"):
            await full.wait()

    connection.send = slow
    exchange = asyncio.create_task(connection.run(gateway.app))
    await connection.something.wait()
    for gate in gates:
        gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    usage = gateway.relay.generations[0].usage
    assert usage.completion_tokens == 1
    full.set()
    await asyncio.wait_for(exchange, 60)
    assert usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("error", "sent"), [(SuspectedPoison("x"), 1), (DeadlineExceeded("x"), 1), (WorkerFailed("x"), 2)]
)
async def test_what_must_not_be_tried_again_the_official_client_does_not_try_again(gateway, error, sent):
    gateway.script(error)
    with pytest.raises(openai.InternalServerError):
        await gateway.client.with_options(max_retries=1).completions.create(model="tiny", prompt="hi")
    assert len(gateway.relay.generations) == sent
