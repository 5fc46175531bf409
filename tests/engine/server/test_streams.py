"""Gateways and the core talk through the server, whoever comes first; listeners follow which blocks the core holds."""

from legato_engine.core.frames import ForGateway, IterationReport
from legato_protocol.wire import block_hash, stream
from legato_protocol.wire.kv_events import HOST, Removed, Snapshot, SnapshotRequest, Stored
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Failed, Greeting, Hello, TokenItem, Tokens


async def test_frames_pass_between_a_gateway_and_the_core(bench):
    core = await bench.core()
    async with bench.dial("/stream") as gateway:
        assert (await bench.greet(gateway)).epoch == core.epoch
        await gateway.send(stream.encode(bench.generate()))
        number, forwarded = await core.hear_frame()
        assert forwarded == bench.generate()
        tokens = Tokens((TokenItem("r", 1, 0, 0, (5,)),))
        answer = ForGateway(number, stream.encode(tokens))
        await core.say(
            IterationReport(frames=(answer,), everyone=(stream.encode(bench.status().load),), status=bench.status())
        )
        assert await bench.heard(gateway) == tokens
        await bench.heard(gateway, Load)
    assert (await core.hear()).left == (number,)


async def test_a_gateway_that_came_early_is_greeted_when_the_core_is_ready(bench):
    async with bench.dial("/stream") as gateway:
        await gateway.send(stream.encode(Greeting("g0")))
        await gateway.send(stream.encode(bench.generate()))
        early = await bench.heard(gateway, Failed)
        assert (early.code, early.retry) == ("stale", True)
        core = await bench.core()
        await bench.heard(gateway, Hello)
        inbox = await core.hear()
        assert (len(inbox.joined), inbox.frames) == (1, ())


def hashes(*numbers):
    return block_hash.join([number.to_bytes(block_hash.HASH_BYTES, "little") for number in numbers])


async def test_a_listener_gets_a_snapshot_and_then_what_follows_on_it(bench):
    core = await bench.core()
    events = (Stored(core.epoch, 1, hashes(1, 2, 3)), Removed(core.epoch, 2, hashes(2)))
    await core.say(IterationReport(events=tuple(map(stream.encode, events))))
    await bench.until(lambda: bench.worker.hub.core.stored[0].number == 2)
    async with bench.listener() as listener:
        assert await bench.event(listener) == Snapshot(core.epoch, 2, 0, True, hashes(1, 3))
        await core.say(IterationReport(events=(stream.encode(Stored(core.epoch, 3, hashes(4))),)))
        assert await bench.event(listener) == Stored(core.epoch, 3, hashes(4))
        await listener.send(stream.encode(SnapshotRequest()))
        assert await bench.event(listener) == Snapshot(core.epoch, 3, 0, True, hashes(1, 3, 4))


async def test_a_slower_tier_of_kv_has_events_and_snapshots_of_its_own(bench):
    core = await bench.core(tiers=(HOST,))
    events = (Stored(core.epoch, 1, hashes(1)), Stored(core.epoch, 1, hashes(1, 2), HOST))
    await core.say(IterationReport(events=tuple(map(stream.encode, events))))
    await bench.until(lambda: bench.worker.hub.core.stored[HOST].number == 1)
    async with bench.listener() as listener:
        snapshots = [await bench.event(listener) for _ in range(2)]
        assert snapshots == [
            Snapshot(core.epoch, 1, 0, True, hashes(1)), Snapshot(core.epoch, 1, 0, True, hashes(1, 2), HOST),
        ]  # fmt: skip


async def test_a_large_snapshot_comes_in_pages(bench):
    core = await bench.core()
    everything = hashes(*range(70_000))
    await core.say(IterationReport(events=(stream.encode(Stored(core.epoch, 1, everything)),)))
    await bench.until(lambda: bench.worker.hub.core.stored[0].number == 1)
    async with bench.listener() as listener:
        pages = [await bench.event(listener) for _ in range(3)]
    assert [(type(page), page.page, page.last) for page in pages] == [
        (Snapshot, number, number == 2) for number in range(3)
    ]
    assert b"".join(page.hashes for page in pages) == everything
