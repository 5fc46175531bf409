"""Listeners follow which blocks the core holds."""

from typing import Any

from legato_engine.core.frames import (
    Turn,
)
from legato_protocol import block_hash, stream
from legato_protocol.kv_events import Removed, Snapshot, SnapshotRequest, Stored
from legato_protocol.stream import (
    Greeting,
)


def hashes(*numbers: int) -> bytes:
    return block_hash.join([number.to_bytes(block_hash.HASH_BYTES, "little") for number in numbers])


def test_a_listener_gets_a_snapshot_and_then_what_follows_on_it(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        told = (Stored(core.epoch, 1, hashes(1, 2, 3)), Removed(core.epoch, 2, hashes(2)))
        await core.say(Turn(events=tuple(map(stream.encode, told))))
        await bench.until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.stored.number == 2))
        async with bench.dial("/events") as listener:
            await listener.send(stream.encode(Greeting("g0")))
            assert await bench.event(listener) == Snapshot(core.epoch, 2, 0, True, hashes(1, 3))
            await core.say(Turn(events=(stream.encode(Stored(core.epoch, 3, hashes(4))),)))
            assert await bench.event(listener) == Stored(core.epoch, 3, hashes(4))
            await listener.send(stream.encode(SnapshotRequest()))
            assert await bench.event(listener) == Snapshot(core.epoch, 3, 0, True, hashes(1, 3, 4))

    run(test)


def test_a_large_snapshot_comes_in_pages(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        everything = hashes(*range(70_000))
        await core.say(Turn(events=(stream.encode(Stored(core.epoch, 1, everything)),)))
        await bench.until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.stored.number == 1))
        async with bench.dial("/events") as listener:
            await listener.send(stream.encode(Greeting("g0")))
            pages = [await bench.event(listener) for _ in range(3)]
        assert all(isinstance(page, Snapshot) for page in pages)
        assert [page.page for page in pages] == [0, 1, 2]
        assert [page.last for page in pages] == [False, False, True]
        assert b"".join(page.hashes for page in pages) == everything

    run(test)
