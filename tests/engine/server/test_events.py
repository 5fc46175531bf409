"""Listeners follow which blocks the core holds."""

from typing import Any

from legato_engine.core.frames import Turn
from legato_protocol import block_hash, stream
from legato_protocol.kv_events import Removed, Snapshot, SnapshotRequest, Stored


def hashes(*numbers: int) -> bytes:
    return block_hash.join([number.to_bytes(block_hash.HASH_BYTES, "little") for number in numbers])


async def test_a_listener_gets_a_snapshot_and_then_what_follows_on_it(bench: Any) -> None:
    core = await bench.core()
    told = (Stored(core.epoch, 1, hashes(1, 2, 3)), Removed(core.epoch, 2, hashes(2)))
    await core.say(Turn(events=tuple(map(stream.encode, told))))
    await bench.until(lambda: bench.worker.hub.core.stored.number == 2)
    async with bench.listener() as listener:
        assert await bench.event(listener) == Snapshot(core.epoch, 2, 0, True, hashes(1, 3))
        await core.say(Turn(events=(stream.encode(Stored(core.epoch, 3, hashes(4))),)))
        assert await bench.event(listener) == Stored(core.epoch, 3, hashes(4))
        await listener.send(stream.encode(SnapshotRequest()))
        assert await bench.event(listener) == Snapshot(core.epoch, 3, 0, True, hashes(1, 3, 4))


async def test_a_large_snapshot_comes_in_pages(bench: Any) -> None:
    core = await bench.core()
    everything = hashes(*range(70_000))
    await core.say(Turn(events=(stream.encode(Stored(core.epoch, 1, everything)),)))
    await bench.until(lambda: bench.worker.hub.core.stored.number == 1)
    async with bench.listener() as listener:
        pages = [await bench.event(listener) for _ in range(3)]
    assert [(type(page), page.page, page.last) for page in pages] == [
        (Snapshot, number, number == 2) for number in range(3)
    ]
    assert b"".join(page.hashes for page in pages) == everything
