"""What happens on the connection itself: clients that leave, several events in one write, probes, a real server."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from tests.support.asgi import Poster

from legato_gateway.errors import DeadlineExceeded, SuspectedPoison, WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving.event_stream import COMMENT, StreamPolicy


class Connection(Poster):
    """A client that leaves when told to."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.leave = asyncio.Event()
        self.something = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message.get("body"):
            self.something.set()


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_its_work_at_once(gateway, stream):
    hangs = gateway.gate()
    gateway.script(Delta(0, "a"), hangs, Delta(0, "b", finish="stop"))
    connection = Connection({"model": "tiny", "prompt": "hi", "stream": stream})
    exchange = asyncio.create_task(connection.run(gateway.app))
    await hangs.reached.wait()
    assert not gateway.relay.generations[0].cancelled.is_set()
    connection.leave.set()
    await asyncio.wait_for(exchange, 5)
    assert gateway.relay.generations[0].cancelled.is_set()
    assert not any(b'"b"' in message.get("body", b"") for message in connection.sent)


async def test_an_exchange_that_is_cancelled_by_the_server_cancels_its_work(gateway):
    gateway.script(Delta(0, "a"), gateway.gate())
    connection = Connection({"model": "tiny", "prompt": "hi", "stream": True})
    exchange = asyncio.create_task(connection.run(gateway.app))
    await connection.something.wait()
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    assert gateway.relay.generations[0].cancelled.is_set()


async def test_deltas_that_are_ready_share_one_write(gateway):
    gateway.script(*(Delta(0, str(i)) for i in range(50)), Delta(0, "", finish="stop"))
    connection = Connection({"model": "tiny", "prompt": "hi", "stream": True})
    await connection.run(gateway.app)
    bodies = [message["body"] for message in connection.sent if message["type"] == "http.response.body"]
    assert len(bodies) == 2
    assert bodies[0].count(b"data: ") == 51


async def test_a_slow_client_holds_the_stream_back(gateway):
    """Nothing is taken from the relay while the transport is full: its buffer is the bounded one."""
    gates = [gateway.gate() for _ in range(3)]
    gateway.script(*(step for gate in gates for step in (Delta(0, "x"), gate)), Delta(0, "", finish="stop"))
    connection = Connection({"model": "tiny", "prompt": "hi", "stream": True})
    full, send = asyncio.Event(), connection.send

    async def slow(message: Any) -> None:
        await send(message)
        if message.get("body"):
            await full.wait()

    connection.send = slow  # type: ignore[method-assign]
    exchange = asyncio.create_task(connection.run(gateway.app))
    await connection.something.wait()
    for gate in gates:
        gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert gateway.relay.generations[0].usage.completion_tokens == 1
    full.set()
    await asyncio.wait_for(exchange, 5)
    assert gateway.relay.generations[0].usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("error", "sent"), [(SuspectedPoison("x"), 1), (DeadlineExceeded("x"), 1), (WorkerFailed("x"), 2)]
)
async def test_what_must_not_be_tried_again_the_official_client_does_not_try_again(gateway, error, sent):
    gateway.script(error)
    with pytest.raises(openai.InternalServerError):
        await gateway.client.with_options(max_retries=1).completions.create(model="tiny", prompt="hi")
    assert len(gateway.relay.generations) == sent


@pytest.mark.parametrize("path", ["/state", "/metrics", "/demand"])
async def test_clients_are_told_nothing_of_workers_and_load(gateway, path):
    assert (await gateway.http.get(path)).status_code == 404


async def test_the_official_client_reads_over_comments(make):
    gateway = make(StreamPolicy(keep_alive=0.001))
    gate = gateway.gate()
    gateway.script(Delta(0, "a"), gate, Delta(0, "b", finish="stop"))
    server = Server(uvicorn.Config(gateway.app, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await server.up.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    commented = asyncio.Event()

    class Watching(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            inner = response.stream

            class Stream(httpx.AsyncByteStream):
                async def __aiter__(self) -> Any:
                    async for piece in inner:
                        if COMMENT in piece:
                            commented.set()
                        yield piece

            response.stream = Stream()
            return response

    async with httpx.AsyncClient(transport=Watching()) as http:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", http_client=http)
        stream = await client.completions.create(model="tiny", prompt="hi", stream=True)

        async def go_on() -> None:
            await asyncio.wait_for(commented.wait(), 10)
            gate.set()

        going = asyncio.create_task(go_on())
        assert [chunk.choices[0].text async for chunk in stream if chunk.choices] == ["a", "b"]
        await going
    server.should_exit = True
    await serving
