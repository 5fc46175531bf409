"""The deadline counts from the request's arrival, and preparing one request holds up no other for long."""

import asyncio
import json
import math
import threading

from tests.support.asgi import Sender

from legato_gateway.serving.bodies.preparation import CONCURRENT, LONG
from legato_protocol.settings.durations import LONGEST

JSON = {"content-type": "application/json"}
SOON = {"x-legato-deadline": "50ms"}


def seconds(gateway, each):
    """Lets every tokenizing take this time; returns the texts, which grow."""
    texts = []

    def before(text):
        texts.append(text)
        gateway.clock.now += each

    gateway.tokens.before = before
    return texts


async def test_a_request_without_a_deadline_is_bounded_by_its_progress(gateway):
    for headers in ({}, {"x-legato-deadline": "30s"}):
        await gateway.complete(headers)
    assert [(made.patience, made.deadline) for made in gateway.relay.requests] == [(600.0, LONGEST), (math.inf, 30.0)]


async def test_time_spent_tokenizing_is_the_requests_own(gateway):
    seconds(gateway, 2.0)
    assert (await gateway.complete({"x-legato-deadline": "5s"})).status_code == 200
    assert gateway.relay.requests[0].deadline == 3.0


async def test_after_the_deadline_no_further_prompt_is_tokenized(gateway):
    texts = seconds(gateway, 6.0)
    answer = await gateway.complete({"x-legato-deadline": "5s"}, prompt=["a", "b", "c"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert (texts, gateway.relay.generations) == (["a"], [])


async def test_an_upload_that_stalls_ends_by_the_deadline(gateway):
    client = Sender(b'{"model": ', ends=False)
    headers = [(name.encode(), value.encode()) for name, value in (SOON | JSON).items()]
    await asyncio.wait_for(client.run(gateway.app, headers=headers), 60)
    assert (client.status, client.error, client.headers[b"connection"]) == (504, "deadline_exceeded", b"close")


class Gate:
    """Blocks the tokenizing of long texts until it is opened."""

    def __init__(self, gateway):
        self.open = threading.Event()
        self.inside = 0
        self._lock = threading.Lock()
        gateway.tokens.before = self._pass

    def _pass(self, text):
        if len(text) >= 100:
            with self._lock:
                self.inside += 1
            assert self.open.wait(90)


async def test_few_long_requests_are_prepared_concurrently_and_short_ones_pass_them(gateway):
    gate, long = Gate(gateway), ["x" * 900] * 80
    assert len(json.dumps(long)) > LONG
    try:
        tasks = [asyncio.create_task(gateway.complete(prompt=long)) for _ in range(CONCURRENT + 2)]
        while gate.inside < CONCURRENT:  # noqa: ASYNC110 – a thread counts
            await asyncio.sleep(0.001)
        assert (await asyncio.wait_for(gateway.complete(), 60)).status_code == 200
        waited = await asyncio.wait_for(gateway.complete(SOON, prompt=long), 60)
        assert (waited.status_code, waited.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert gate.inside == CONCURRENT
    finally:
        gate.open.set()
    assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * (CONCURRENT + 2)
    assert gate.inside == 80 * (CONCURRENT + 2)  # what was given up was never begun
