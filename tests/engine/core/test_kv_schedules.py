"""Random schedules of all that moves KV: hand-offs, fetches from peers, evictions to slots and files, restores, deaths.

Workers with nearly full arenas ask each other for chats that they may have evicted, over a bad network or in memory of
their node, with disks that are full and files that are damaged. Tokens follow from what the arenas hold, so each one
that comes is right only if all blocks before it are. After each second the owners of blocks, slots, files and sessions
are checked; at the end also the bytes of every block in every tier.
"""

import os
from collections import deque
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from budget import times

from legato_engine.core.disk.block_folder import BadFile
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.kvcache.disk_tier import Outcome, ReadBlock, WriteBlock
from legato_engine.mailbox import Mailbox
from legato_engine.transfer.fakes.memory import Faults, Network
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Decode, Failed, Generate, KVSource, Prefill

BLOCK, LEASE = 4, 8.0  # tokens, seconds
TEXTS = 4
ANSWER, LONGEST = 12, 30  # tokens
QUIET = 200  # seconds until which everything has ended


class LateDisk(DiskThread):
    """Carries out some orders whenever it is asked for outcomes. Writes fail and files are damaged by chance."""

    def __init__(self, folder, slot, random, faults):
        self._folder, self._slot, self._random, self._faults = folder, slot, random, faults
        self._orders, self._done = deque(), Mailbox()

    def submit(self, orders, after):
        self._orders += orders

    def take(self):
        for _ in range(min(self._random.randrange(8), len(self._orders))):
            self._carry_out(self._orders.popleft())
        return super().take()

    @property
    def idle(self):
        return not self._orders

    def close(self):
        """Ends as its process does: the folder is free for another worker."""
        os.close(self._folder._lock)

    def _carry_out(self, order):
        if isinstance(order, WriteBlock) and self._random.random() < self._faults:
            self._done.put(Outcome(order, 0.1, "a KV block cannot be written: it is full"))
            return
        if isinstance(order, ReadBlock) and self._random.random() < self._faults:
            for path in self._folder.folder.glob(f"{order.content.group}-{order.content.block_hash.hex()}-*"):
                damage(path, self._folder._block_bytes, self._random)
        super()._carry_out(order)

    def verify(self, content, tokens):
        """The file has these tokens, or is known to be damaged when it is read."""
        block = bytearray(self._folder._block_bytes)
        try:
            self._folder.read(content, memoryview(block))
        except BadFile:
            assert self._faults
        else:
            assert tokens_in(block) == tokens, f"a wrong block of group {content.group} is in a file"


def tokens_in(block):
    return [int(number) for number in memoryview(block).cast("B").cast("f")[: 2 * BLOCK : 2]]


def damage(path, size, random):
    """Cuts the file off, or changes the whole block after its header."""
    data = path.read_bytes()
    changed = data[:-size] + bytes(255 - byte for byte in data[-size:])
    path.write_bytes(changed if random.random() < 0.7 else data[: random.randrange(len(data))])


class Chat:
    """A request to one worker, or to two that hand it over."""

    def __init__(self, id, prompt, here, prefill=None):
        self.id, self.prompt, self.here, self.prefill = id, prompt, here, prefill
        self.over = False  # it expects nothing more


class Schedule:
    """Workers and what their gateway does, from one seed."""

    def __init__(self, make_world, make_runner, seed, folder):
        self.random = draw = Random(seed)
        faults = Faults(draw.choice([0.0, 1.0]), *(draw.choice([0.0, 0.0, 0.0, 0.1]) for _ in range(3)))
        faults.corrupt_put = draw.choice([0.0, 0.0, 0.3])
        faults.break_connection = draw.choice([0.0, 0.0, 0.0, 0.05])
        self.world = make_world(Network(draw, faults), LEASE)
        slots, files = draw.choice([(0, 0), (6, 0), (40, 0), (8, 20), (8, 100), (20, 100)])
        self.runner = type("Keeping", (make_runner,), {"host_slots": slots})
        self.root = block_hash.root(make_runner.kv_revision)
        self.disk_faults = draw.choice([0.0, 0.4])
        windows = make_runner.layout.windows
        self.settings = {"blocks": draw.choice([15, 20]) * (1 + len(windows)), "growth_tokens": 4, "max_waiting": 20}
        self.settings |= {"files": folder if files else None, "most_files": files, "on_node": draw.random() < 0.4}
        self.disks, self.started = {}, 0
        self.workers = [self.start() for _ in range(3)]
        self.chats, self.rooms = [], 100

    def start(self):
        """A worker, which adopts the files of one that has ended."""
        self.started += 1

        def open_disk(folder, slot):
            self.disks[name] = LateDisk(folder, slot, self.random, self.disk_faults)
            return self.disks[name]

        name = f"w{self.started}"
        return self.world.worker(name, runner=self.runner(), open_disk=open_disk, **self.settings)

    # What a gateway does, and what happens to workers

    def chat(self):
        """One of a few texts, up to somewhere, sometimes with the answer and a further question."""
        draw, world = self.random, self.world
        first = 50 * draw.randrange(TEXTS)
        prompt = [first + at for at in range(draw.randrange(5, LONGEST))]
        if draw.random() < 0.3:
            prompt += [*world.continuation(prompt, draw.randrange(1, ANSWER)), *range(7)]
        here, there, other = draw.sample(self.workers, 3)
        if draw.random() < 0.5:  # as in a gateway's index
            beginning = block_hash.chain(pack_tokens(prompt), BLOCK, self.root)[0]
            there, other = sorted((there, other), key=lambda worker: not worker.scheduler.pool.has(0, beginning))
        self.rooms += 2
        blocks = max(1, (len(prompt) - 1) // BLOCK)
        source = KVSource(there.peer, self.rooms, blocks, draw.choice([1.0, 6.0, 15.0]))
        source = source if draw.random() < 0.7 else None
        both = draw.random() < 0.5
        wanted = world.sequence(prompt, deadline=25.0 if both else 100.0, max_tokens=draw.randrange(1, ANSWER))
        id = f"r{self.rooms}"
        if not both:
            self.chats.append(Chat(id, prompt, here))
            here.send(Generate(id, 1, wanted, source))
            return
        decode = draw.choice([there, other])
        self.chats.append(Chat(id, prompt, decode, here))
        decode.send(Decode(id, 1, self.rooms + 1, wanted, here.peer))
        here.send(Prefill(id, 1, self.rooms + 1, wanted, decode.peer, source))

    def cancel(self, chat=None):
        live = [chat for chat in self.chats if not chat.over]
        chat = chat or (self.random.choice(live) if live else None)
        if chat:
            chat.over = True
            for worker in [worker for worker in self.workers if worker is chat.here or worker is chat.prefill]:
                worker.send(Cancel(chat.id, 1))

    def kill(self):
        """A worker ends, and another one starts in its place."""
        if self.started < 5:
            lost = self.workers.pop(self.random.randrange(3))
            if lost in self.world.workers:
                self.world.workers.remove(lost)
            lost.agent.close()
            if disk := self.disks.pop(lost.peer.worker, None):
                disk.close()
            for chat in [chat for chat in self.chats if not chat.over and lost in (chat.here, chat.prefill)]:
                self.cancel(chat)
            self.workers.append(self.start())

    def stop(self):
        """A worker stands still for a while; what it had under way arrives late."""
        worker = self.random.choice(self.workers)
        if worker in self.world.workers:
            self.world.workers.remove(worker)
            worker.agent._link.stop()
            self.world.network.after(self.random.choice([2.0, LEASE + 4]), lambda: self.resume(worker))

    def resume(self, worker):
        if worker in self.workers:
            self.world.workers.append(worker)
            worker.agent._link.resume()

    def run(self, seconds):
        for _ in range(seconds):
            self.world.run(1)
            for worker in self.workers:
                self.check(worker.scheduler.pool)
            for chat in [chat for chat in self.chats if not chat.over]:
                self.follow(chat)

    def follow(self, chat):
        """A hand-off may fail: its other side is notified then."""
        heard = [frame for worker in (chat.here, chat.prefill) if worker for frame in worker.heard]
        failed = [frame for frame in heard if isinstance(frame, Failed) and frame.id == chat.id]
        if failed:
            assert chat.prefill is not None, failed
            self.cancel(chat)
        chat.over |= chat.here.finished(chat.id)

    # Checks

    def check(self, pool):
        counts = pool.counts()
        assert counts.free + counts.cached + counts.used + counts.quarantined == pool.size
        for tier in pool.tier_counts().values():
            assert tier.blocks <= tier.slots

    def finish(self):
        for _ in range(QUIET):
            self.run(1)
            if all(chat.over for chat in self.chats) and all(map(self.is_quiet, self.workers)):
                break
        assert all(chat.over for chat in self.chats), "it hangs"
        for worker in self.workers:
            assert (worker.used, worker.agent.pending(), worker.scheduler.idle) == (0, 0, True)
            self.verify(worker)
        for chat in self.chats:
            tokens = chat.here.tokens(chat.id)
            assert tokens == self.world.continuation(chat.prompt, len(tokens))

    def close(self):
        for disk in self.disks.values():
            disk.close()
        self.world.close()

    def is_quiet(self, worker):
        disk = self.disks.get(worker.peer.worker)
        still = worker.used == worker.agent.pending() == 0 and worker.scheduler.idle and worker in self.world.workers
        return still and not worker.scheduler.pool.host.pending and (disk is None or disk.idle)

    def verify(self, worker):
        """Every block that is cached in any tier has the bytes of its tokens."""
        pool, arena = worker.scheduler.pool, worker.runner.arena
        expected = self.contents()
        for block, (hash, _, group) in pool.cache._hashes.items():
            assert tokens_in(arena.block(block)) == expected[hash], f"a wrong block of group {group}"
        for slot, (hash, _, group) in pool.host._contents.items():
            assert tokens_in(arena.host.slot(slot)) == expected[hash], f"a wrong slot of group {group}"
        if (disk := self.disks.get(worker.peer.worker)) is not None:
            for content in pool.disk._files.values():
                disk.verify(content, expected[content.block_hash])

    def contents(self):
        """The tokens of every block that a chat has, by hash."""
        contents = {}
        for prompt in {tuple(chat.prompt) for chat in self.chats}:
            tokens = [*prompt, *self.world.continuation(list(prompt), ANSWER)]
            hashes = block_hash.chain(pack_tokens(tokens), BLOCK, self.root)
            contents |= {hash: tokens[BLOCK * at :][:BLOCK] for at, hash in enumerate(hashes)}
        return contents


ACTS = {"chat": 10, "cancel": 1, "kill": 0.7, "stop": 0.7}


def run(make_world, make_runner, seed):
    with TemporaryDirectory() as folder:
        schedule = Schedule(make_world, make_runner, seed, Path(folder))
        try:
            for act in schedule.random.choices([*ACTS], [*ACTS.values()], k=12):
                getattr(schedule, act)()
                schedule.run(schedule.random.randrange(4))
            schedule.finish()
        finally:
            schedule.close()


@pytest.mark.parametrize("make_runner", ["plain", "windows"], indirect=True)
@pytest.mark.parametrize("seed", range(times(12)))
def test_any_schedule_ends_with_the_right_tokens_and_the_right_blocks_in_every_tier(make_world, make_runner, seed):
    run(make_world, make_runner, seed)
