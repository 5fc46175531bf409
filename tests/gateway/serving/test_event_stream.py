"""When a streamed response begins, and that it is never silent for long, in virtual time (but for threads)."""

import asyncio
import json

import pytest
from tests.support.asgi import Poster

from legato_gateway.errors import Overloaded, WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving.event_stream import COMMENT, StreamPolicy

pytestmark = pytest.mark.virtual_time
END = Delta(0, "", finish="stop")


class Exchange(Poster):
    """A streamed request at an application in virtual time; `times` are those of the messages `sent`."""

    def __init__(self, gateway, body):
        super().__init__()
        self.gateway, self.times = gateway, []
        self._body = [json.dumps({"model": "tiny", "stream": True, **body}).encode()]

    @property
    def generation(self):
        return self.gateway.relay.generations[0]

    @property
    def said(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def events(self):
        lines = self.said.decode().splitlines()
        return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]

    @property
    def times_of_comments(self):
        return [when for when, message in zip(self.times, self.sent, strict=True) if message.get("body") == COMMENT]

    async def receive(self):
        if not self._body:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._body.pop(), "more_body": False}

    async def send(self, message):
        self.times.append(asyncio.get_running_loop().time())
        await super().send(message)


COMPLETION = {"path": "/v1/completions", "prompt": "hi"}


async def begun(gateway, *steps, admitted=False, asked=COMPLETION, headers=()):
    """An exchange whose request is with the relay, its task, and the time."""
    gateway.script(*steps)
    exchange = Exchange(gateway, {key: value for key, value in asked.items() if key != "path"})
    headers = [(b"content-type", b"application/json"), *headers]
    running = asyncio.create_task(exchange.run(gateway.app, path=asked["path"], headers=headers))
    while not gateway.relay.generations:  # noqa: ASYNC110 - a thread prepares it
        await asyncio.sleep(0)
    if admitted:
        exchange.generation.admitted.set()
    return exchange, running, asyncio.get_running_loop().time()


async def test_the_head_is_sent_at_admission_and_comments_whenever_it_is_silent(make):
    gateway = make(StreamPolicy(keep_alive=15))
    gate, second = gateway.gate(), gateway.gate()
    exchange, running, start = await begun(gateway, gate, Delta(0, "a"), second, END)
    await asyncio.sleep(5)
    assert exchange.sent == []  # it is queued
    exchange.generation.admitted.set()
    await asyncio.sleep(0.5)
    assert [message["type"] for message in exchange.sent] == ["http.response.start"]
    await asyncio.sleep(31.5)  # 37: comments at 20 and 35
    gate.set()
    await asyncio.sleep(16)  # a token at 37, a comment at 52
    second.set()
    await running
    assert [when - start for when in exchange.times_of_comments] == pytest.approx([20, 35, 52])
    assert exchange.said.endswith(b"data: [DONE]\n\n")


RESPONSE = {"path": "/v1/responses", "input": "hi"}
MESSAGE = {"path": "/v1/messages", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
APIS = [
    pytest.param(RESPONSE, ["response.created", "response.in_progress"], ["response.failed"], id="responses"),
    pytest.param(MESSAGE, ["message_start"], ["error"], id="messages"),
]


@pytest.mark.parametrize("at_admission", [True, False])
@pytest.mark.parametrize(("asked", "first", "failed"), APIS)
async def test_the_known_part_of_an_answer_comes_with_the_head(make, asked, first, failed, at_admission):
    gateway = make(StreamPolicy(at_admission))
    gate = gateway.gate()
    exchange, running, _ = await begun(gateway, gate, Delta(0, "a"), END, admitted=True, asked=asked)
    await asyncio.sleep(1)
    assert exchange.events == (first if at_admission else [])
    assert len(exchange.sent) == 2 * at_admission
    gate.set()
    await running
    assert exchange.events[: len(first)] == first
    rest = exchange.events[len(first) :]
    assert not set(first) & set(rest)
    assert len(rest) > 2


@pytest.mark.parametrize(("asked", "first", "failed"), APIS)
async def test_a_stream_that_fails_before_its_first_token_begins_once(make, asked, first, failed):
    gateway = make(StreamPolicy())
    gate = gateway.gate()
    exchange, running, _ = await begun(gateway, gate, WorkerFailed("gone"), admitted=True, asked=asked)
    await asyncio.sleep(1)
    gate.set()
    await running
    assert exchange.events == first + failed


@pytest.mark.parametrize(
    ("admitted", "policy", "headers", "status"),
    [
        (True, StreamPolicy(), (), 200),
        (False, StreamPolicy(), (), 503),
        (True, StreamPolicy(at_admission=False), (), 502),
        (True, StreamPolicy(), [(b"x-legato-explain", b"true")], 502),
    ],
)
async def test_a_failure_before_the_head_has_a_status_of_its_own(make, admitted, policy, headers, status):
    error = WorkerFailed("lost") if admitted else Overloaded("full", reason="queue_full")
    gateway = make(policy)
    gate = gateway.gate()
    exchange, running, _ = await begun(gateway, gate, error, admitted=admitted, headers=headers)
    await asyncio.sleep(1)
    exchange.generation.admits = admitted
    exchange.generation.admitted.set()
    await asyncio.sleep(1)
    gate.set()
    await running
    assert exchange.sent[0]["status"] == status
    assert (b"event: error" in exchange.said) is (status == 200)
    assert (b'"worker_failed"' in exchange.said) is admitted
