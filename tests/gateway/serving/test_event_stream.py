"""When a streamed response begins, and that it is never silent for long."""

import asyncio
import json
from typing import Any

import pytest
from tests.support import asgi

from legato_gateway.errors import Overloaded, WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving.event_stream import COMMENT, StreamPolicy

END = Delta(0, "", finish="stop")


class Exchange:
    """One streamed request at an application in virtual time; what was sent is kept with its time."""

    def __init__(self, gateway: Any, *steps: Any, admitted: bool = False, headers: Any = (), **body: Any) -> None:
        self.gateway = gateway
        self.gateway.script(*steps)
        self.sent: list[tuple[float, Any]] = []
        self._admitted = admitted
        self._headers = [(b"content-type", b"application/json"), *headers]
        self._half_closed = asyncio.Event()
        self._path = body.pop("path", "/v1/completions")
        asked = {"model": "tiny", "stream": True, **(body or {"prompt": "hi"})}
        self._body = [json.dumps(asked).encode()]
        submit = self.gateway.relay.submit

        def submitted(request: Any) -> Any:
            generation = submit(request)
            if self._admitted:
                generation.admitted.set()
            return generation

        self.gateway.relay.submit = submitted

    @property
    def generation(self) -> Any:
        return self.gateway.relay.generations[0]

    @property
    def said(self) -> bytes:
        return b"".join(message.get("body", b"") for _, message in self.sent)

    @property
    def times_of_comments(self) -> list[float]:
        return [when for when, message in self.sent if message.get("body") == COMMENT]

    def start(self) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        await asgi.post(self.gateway.app, self._receive, self._send, self._path, self._headers)

    async def _receive(self) -> Any:
        if not self._body:
            await self._half_closed.wait()
            self._half_closed.clear()
        body = self._body.pop() if self._body else b""
        return {"type": "http.request", "body": body, "more_body": False}

    def half_close(self) -> None:
        """The client sends nothing more: the server asks whether it is there."""
        self._half_closed.set()

    async def _send(self, message: Any) -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))


async def prepared(exchange: Exchange) -> "asyncio.Task[None]":
    """The exchange, once its request is with the relay: bodies are prepared in threads, in real time."""
    running = exchange.start()
    while not exchange.gateway.relay.generations:  # noqa: ASYNC110 - a thread prepares it
        await asyncio.sleep(0)
    return running


@pytest.mark.virtual_time
async def test_the_head_is_sent_at_admission_and_comments_whenever_it_is_silent(make):
    gateway = make(StreamPolicy(keep_alive=15))
    gate, second = gateway.gate(), gateway.gate()
    exchange = Exchange(gateway, gate, Delta(0, "a"), second, END)
    running = await prepared(exchange)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(5)
    assert exchange.sent == []  # it is held
    exchange.generation.admitted.set()
    await asyncio.sleep(0.5)
    assert [message["type"] for _, message in exchange.sent] == ["http.response.start"]
    await asyncio.sleep(31.5)  # 37: comments at 20 and 35
    gate.set()
    await asyncio.sleep(16)  # a token at 37, a comment at 52
    second.set()
    await running
    assert [when - began for when in exchange.times_of_comments] == pytest.approx([20, 35, 52])
    assert exchange.said.endswith(b"data: [DONE]\n\n")


RESPONSE = {"path": "/v1/responses", "input": "hi"}
MESSAGE = {"path": "/v1/messages", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("at_admission", [True, False])
@pytest.mark.parametrize(
    ("asked", "first"),
    [(RESPONSE, ["response.created", "response.in_progress"]), (MESSAGE, ["message_start"])],
    ids=["responses", "messages"],
)
@pytest.mark.virtual_time
async def test_what_is_known_of_an_answer_is_told_with_the_head(make, asked, first, at_admission):
    """Once, and before all that comes with tokens."""
    gateway = make(StreamPolicy(at_admission))
    gate = gateway.gate()
    exchange = Exchange(gateway, gate, Delta(0, "a"), END, admitted=True, **asked)
    running = await prepared(exchange)
    await asyncio.sleep(1)
    begun = first if at_admission else []
    assert events(exchange.said) == begun
    assert len(exchange.sent) == 2 * at_admission
    gate.set()
    await running
    told = events(exchange.said)
    assert told[: len(first)] == first
    assert not set(first) & set(told[len(first) :])
    assert len(told) > len(first) + 2


FAILED = [
    pytest.param(RESPONSE, ["response.created", "response.in_progress", "response.failed"], id="responses"),
    pytest.param(MESSAGE, ["message_start", "error"], id="messages"),
]


@pytest.mark.parametrize(("asked", "told"), FAILED)
@pytest.mark.virtual_time
async def test_a_stream_that_fails_before_its_first_token_begins_once(make, asked, told):
    gateway = make(StreamPolicy())
    gate = gateway.gate()
    exchange = Exchange(gateway, gate, WorkerFailed("gone"), admitted=True, **asked)
    running = await prepared(exchange)
    await asyncio.sleep(1)
    gate.set()
    await running
    assert events(exchange.said) == told


def events(said: bytes) -> list[str]:
    """Their types."""
    return [line.removeprefix("event: ") for line in said.decode().splitlines() if line.startswith("event: ")]


@pytest.mark.virtual_time
async def test_a_request_that_is_held_for_long_is_not_silent_either(make):
    gateway = make(StreamPolicy(keep_alive=15))
    exchange = Exchange(gateway, gateway.gate())
    running = await prepared(exchange)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(40)
    assert exchange.sent[0][1]["status"] == 200
    assert exchange.sent[0][0] - began == pytest.approx(15)
    assert len(exchange.times_of_comments) == 1
    running.cancel()


@pytest.mark.parametrize("keep_alive", [0, 15])
@pytest.mark.virtual_time
async def test_a_client_that_sends_nothing_more_is_asked_at_once_whether_it_is_there(make, keep_alive):
    gateway = make(StreamPolicy(keep_alive=keep_alive))
    exchange = Exchange(gateway, gateway.gate())
    running = await prepared(exchange)
    exchange.half_close()
    await asyncio.sleep(1)
    assert exchange.sent == []  # whoever waits for a head is asked by the server itself
    exchange.generation.admitted.set()
    await asyncio.sleep(1)
    for asked in range(1, 3):
        exchange.half_close()
        await asyncio.sleep(0.1)
        assert len(exchange.times_of_comments) == asked
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize("policy", [StreamPolicy(keep_alive=0), StreamPolicy(at_admission=False, keep_alive=15)])
@pytest.mark.virtual_time
async def test_nothing_is_said_before_its_time(make, policy):
    gateway = make(policy)
    gate = gateway.gate()
    exchange = Exchange(gateway, gate, Delta(0, "a"), END, admitted=True)
    running = await prepared(exchange)
    await asyncio.sleep(100)
    assert [message["type"] for _, message in exchange.sent] == ["http.response.start"] * policy.at_admission
    gate.set()
    await running
    assert COMMENT not in exchange.said


@pytest.mark.parametrize(
    ("admitted", "policy", "headers", "status"),
    [
        (True, StreamPolicy(), (), 200),
        (False, StreamPolicy(), (), 503),
        (True, StreamPolicy(at_admission=False), (), 502),
        (True, StreamPolicy(), [(b"x-legato-explain", b"true")], 502),
    ],
)
@pytest.mark.virtual_time
async def test_what_fails_before_it_begins_has_a_status_of_its_own(make, admitted, policy, headers, status):
    error = WorkerFailed("lost") if admitted else Overloaded("full", reason="queue_full")
    gateway = make(policy)
    gate = gateway.gate()
    exchange = Exchange(gateway, gate, error, admitted=admitted, headers=headers)
    running = await prepared(exchange)
    await asyncio.sleep(1)
    exchange.generation.admits = admitted
    exchange.generation.admitted.set()
    await asyncio.sleep(1)
    gate.set()
    await running
    assert exchange.sent[0][1]["status"] == status
    assert (b"event: error" in exchange.said) is (status == 200)
    assert (b'"worker_failed"' in exchange.said) is admitted
