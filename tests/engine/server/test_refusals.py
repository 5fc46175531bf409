"""Frames and connections that are refused and counted; bystanders notice nothing."""

import asyncio
import contextlib

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from legato_engine.core.frames import IterationReport
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.messages import MAX_FRAME_BYTES
from legato_protocol.wire.stream import Cancel, Failed, Greeting, Handoff, Peer


async def test_a_bad_frame_with_an_id_is_answered_and_the_stream_goes_on(bench):
    async with bench.served() as (core, gateway):
        bad = msgspec.msgpack.encode(["gen", "broken", 3, {"no": "sequence"}])
        await gateway.send(bad)
        answer = await bench.heard(gateway, Failed)
        assert (answer.id, answer.attempt, answer.code, answer.retry) == ("broken", 3, "invalid", False)
        await gateway.send(stream.encode(bench.generate(tokens=(1, bench.vocabulary))))
        answer = await bench.heard(gateway, Failed)
        assert answer.code == "invalid"
        await gateway.send(stream.encode(bench.generate(top_p=float("nan"))))
        await bench.heard(gateway, Failed)
        await gateway.send(stream.encode(Handoff("x", 2, -1, Peer("w", "e", b""))))
        answer = await bench.heard(gateway, Failed)
        assert (answer.attempt, answer.code, answer.part) == (2, "invalid", "transfer")
        await gateway.send(stream.encode(Cancel("x", 1)))
        assert (await core.hear_frame())[1] == Cancel("x", 1)
    assert await bench.refused("malformed") == 1
    assert await bench.refused("invalid") == 3


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        (b"\xc1 no msgpack", 1002, "malformed"),
        (b"", 1002, "malformed"),
        ("text", 1003, "text"),
        (stream.encode(Greeting("again")), 1002, "malformed"),
        (bytes(MAX_FRAME_BYTES + 1), 1009, "oversized"),
    ],
)
@pytest.mark.parametrize("path", ["/stream", "/events"])
async def test_garbage_closes_the_offenders_connection_only(bench, path, frame, code, reason):
    await bench.core()
    async with bench.dial("/stream") as bystander, bench.dial(path) as offender:
        await bench.greet(bystander)
        await offender.send(stream.encode(Greeting("g1")))
        with contextlib.suppress(ConnectionClosed):
            await offender.send(frame)
        assert (await bench.closed(offender))[0] == code
        counted = "greeting" if path == "/events" and frame == stream.encode(Greeting("again")) else reason
        assert await bench.refused(counted) == 1
        await bystander.send(stream.encode(bench.generate(tokens=(-1,))))
        await bench.heard(bystander, Failed)


@pytest.mark.parametrize("path", ["/stream", "/events"])
async def test_a_frame_of_a_kind_that_only_a_later_version_knows_is_skipped_and_counted(bench, path):
    core = await bench.core()
    async with bench.dial(path) as gateway:
        await gateway.send(stream.encode(Greeting("g1", stream.VERSION + 1, stream.VERSION)))
        await gateway.recv()
        await gateway.send(msgspec.msgpack.encode(["later", "x", 1]))
        if path == "/stream":
            await gateway.send(stream.encode(Cancel("x", 1)))
            assert (await core.hear_frame())[1] == Cancel("x", 1)
        else:
            await gateway.send(stream.encode(kv_events.SnapshotRequest()))
            assert isinstance(kv_events.decode_event(await gateway.recv()), kv_events.Snapshot)
    assert await bench.refused("unknown_kind") == 1


async def test_a_first_frame_must_be_a_greeting_of_this_version(bench):
    await bench.core()
    async with bench.dial("/stream") as stranger:
        await stranger.send(stream.encode(Greeting("g", version=stream.VERSION + 1)))
        code, text = await bench.closed(stranger)
        assert code == 1008
        assert str(stream.VERSION + 1) in text
    async with bench.dial("/stream") as rude:
        await rude.send(stream.encode(bench.generate()))
        assert (await bench.closed(rude))[0] == 1002
    assert await bench.refused("version") == 1
    assert await bench.refused("greeting") == 1


async def test_a_gateway_that_does_not_read_is_cut_off(bench):
    core = await bench.core()
    async with bench.dial("/stream") as reader, bench.dial("/stream") as deaf:
        await bench.greet(reader)
        await bench.greet(deaf)
        deaf.transport.pause_reading()
        reading = asyncio.create_task(bench.closed(reader))
        big = bytes(1 << 20)
        for _ in range(64):
            await core.say(IterationReport(everyone=(big,)))
        await bench.until(lambda: bench.worker.hub.gateways == 1)
        assert not reading.done()
        reading.cancel()
        deaf.transport.abort()
    assert await bench.refused("slow") == 1
