"""Gateways and the core talk through the server, whoever comes first."""

from typing import Any

from legato_engine.core.frames import ForGateway, Turn
from legato_protocol import stream
from legato_protocol.load import Load
from legato_protocol.stream import Failed, Greeting, Hello, TokenItem, Tokens


async def test_frames_pass_between_a_gateway_and_the_core(bench: Any) -> None:
    core = await bench.core()
    async with bench.dial("/stream") as gateway:
        assert (await bench.greet(gateway)).epoch == core.epoch
        await gateway.send(stream.encode(bench.generate()))
        number, forwarded = await core.hear_frame()
        assert forwarded == bench.generate()
        tokens = Tokens((TokenItem("r", 1, 0, 0, (5,)),))
        answer = ForGateway(number, stream.encode(tokens))
        await core.say(Turn(frames=(answer,), everyone=(stream.encode(bench.status().load),), status=bench.status()))
        assert await bench.heard(gateway) == tokens
        await bench.heard(gateway, Load)
    assert (await core.hear()).left == (number,)


async def test_a_gateway_that_came_early_is_greeted_when_the_core_is_ready(bench: Any) -> None:
    async with bench.dial("/stream") as gateway:
        await gateway.send(stream.encode(Greeting("g0")))
        await gateway.send(stream.encode(bench.generate()))
        early = await bench.heard(gateway, Failed)
        assert (early.code, early.retry) == ("stale", True)
        core = await bench.core()
        await bench.heard(gateway, Hello)
        inbox = await core.hear()
        assert (len(inbox.joined), inbox.frames) == (1, ())
