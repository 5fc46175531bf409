"""The deadline counts from the request's arrival, and preparing one request holds up no other for long."""

import asyncio
import json
import threading
from typing import Any

from tests.support import asgi

from legato_gateway.serving.preparation import AT_ONCE, LONG

JSON = {"content-type": "application/json"}
SOON = {"x-legato-deadline": "50ms"}


def seconds(gateway: Any, each: float) -> list[str]:
    """Every tokenizing takes so long; the texts it was asked for."""
    texts: list[str] = []

    def before(text: str) -> None:
        texts.append(text)
        gateway.clock.now += each

    gateway.tokens.before = before
    return texts


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
    sent: list[Any] = []
    pieces = [{"type": "http.request", "body": b'{"model": ', "more_body": True}]

    async def receive() -> Any:
        return pieces.pop() if pieces else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in (SOON | JSON).items()]
    await asyncio.wait_for(asgi.post(gateway.app, receive, send, headers=headers), 10)
    assert sent[0]["status"] == 504
    assert (b"connection", b"close") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["code"] == "deadline_exceeded"


class Gate:
    """Holds up the tokenizing of long texts until it is opened."""

    def __init__(self, gateway: Any) -> None:
        self.open = threading.Event()
        self.inside = 0
        self._lock = threading.Lock()
        self._loop, self._full = asyncio.get_running_loop(), asyncio.Event()
        gateway.tokens.before = self._pass

    def _pass(self, text: str) -> None:
        if len(text) < 100:
            return
        with self._lock:
            self.inside += 1
            if self.inside == AT_ONCE:
                self._loop.call_soon_threadsafe(self._full.set)
        assert self.open.wait(20)

    async def wait_full(self) -> None:
        await asyncio.wait_for(self._full.wait(), 10)


async def test_few_long_requests_are_prepared_at_once_and_short_ones_pass_them(gateway):
    gate = Gate(gateway)
    try:
        long = [asyncio.create_task(gateway.complete(prompt=["x" * 900] * 80)) for _ in range(AT_ONCE + 2)]
        assert len(json.dumps(["x" * 900] * 80)) > LONG
        await gate.wait_full()
        assert (await asyncio.wait_for(gateway.complete(), 10)).status_code == 200
        waited = await asyncio.wait_for(gateway.complete(SOON, prompt=["x" * 900] * 80), 10)
        assert (waited.status_code, waited.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert gate.inside == AT_ONCE
    finally:
        gate.open.set()
    assert [answer.status_code for answer in await asyncio.gather(*long)] == [200] * (AT_ONCE + 2)
    assert gate.inside == 80 * (AT_ONCE + 2)  # what was given up was never begun
