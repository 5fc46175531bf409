"""Gateways and the core talk through the server, whoever comes first."""

from typing import Any

from legato_engine.core.frames import (
    ForGateway,
    Inbox,
    Turn,
)
from legato_protocol import stream
from legato_protocol.load import Load
from legato_protocol.stream import Failed, Greeting, Hello, TokenItem, Tokens


def test_frames_pass_between_a_gateway_and_the_core(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            assert (await bench.greet(gateway)).epoch == core.epoch
            await gateway.send(stream.encode(bench.generate()))
            (forwarded,) = await core.hear_frames()
            assert stream.decode_to_worker(forwarded.data) == bench.generate()
            tokens = Tokens((TokenItem("r", 1, 0, 0, (5,)),))
            answer = ForGateway(forwarded.gateway, stream.encode(tokens))
            await core.say(
                Turn(frames=(answer,), everyone=(stream.encode(bench.status().load),), status=bench.status())
            )
            assert await bench.heard(gateway) == tokens
            assert isinstance(await bench.heard(gateway), Load)
        inbox = await core.hear()
        assert isinstance(inbox, Inbox)
        assert inbox.left == (forwarded.gateway,)

    run(test)


def test_a_gateway_that_came_early_is_greeted_when_the_core_is_ready(run: Any) -> None:
    async def test(bench: Any) -> None:
        async with bench.dial("/stream") as gateway:
            await gateway.send(stream.encode(Greeting("g0")))
            await gateway.send(stream.encode(bench.generate()))
            early = await bench.heard(gateway)
            assert isinstance(early, Failed)
            assert (early.code, early.retry) == ("stale", True)
            core = await bench.core()
            greeting = await bench.heard(gateway)
            assert isinstance(greeting, Hello)
            inbox = await core.hear()
            assert isinstance(inbox, Inbox)
            assert len(inbox.joined) == 1
            assert inbox.frames == ()

    run(test)
