"""Random schedules with scripted faults: never a wrong token, never a hang, never a leak.

Four workers with nearly full arenas send and receive over the link in memory, in virtual time: sequences of which the
receiver holds a part already, grants that are taken back and given again, rooms that are used again, steps whose
device writes later than they return. A freed block is overwritten at once, so that whoever reads too early, or reads or
writes too late, is found out by the bytes.
"""

import ctypes
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
import pytest
from budget import times
from handoff_pair import BLOCK, BLOCK_BYTES, BLOCKS, ROOT, Side
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from staged_arena import UNUSED

from legato_engine.transfer.fakes.late_device import LateStream
from legato_engine.transfer.fakes.memory import Faults, Network
from legato_engine.transfer.session.events import (
    Aborted,
    Arrived,
    BlocksAsked,
    Committed,
    Granted,
    GrantRevoked,
    Released,
)
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens

LONGEST, FREE = 5, 255  # blocks of a sequence; bytes of a block that nobody has
DEADLINE = 30.0  # virtual seconds: every session has ended by then


@dataclass
class Job:
    """One sequence to move: `computed` tokens, from a sender to a receiver."""

    room: int
    sender: int
    receiver: int
    tokens: list
    start_send: float
    start_receive: float
    attempt: int = 1
    acts: list = field(default_factory=list)  # (time, side, call): cancels and grants that are taken back
    prefill: float = 0.0  # seconds from the grant to the first push, in which it can be taken back
    granted: float | None = None  # when, at the sender, and nothing was pushed yet
    regrants: int = 0
    fetch: bool = False  # of full blocks that the sender has cached, or had until it was asked
    cached: float = 0.0  # share of its full blocks that the receiver holds already
    repeated: bool = False  # both sides are told again of a room that has committed
    sending: bool = False
    receiving: bool = False

    @property
    def packed(self):
        return pack_tokens(self.tokens)

    @property
    def blocks(self):
        return -(-len(self.tokens) // BLOCK)

    def content(self, index):
        """Bytes of a correct block, made from its tokens only."""
        part = self.packed[: (index + 1) * BLOCK * 4]
        return np.frombuffer((block_hash.child(ROOT, part) * 4)[:BLOCK_BYTES], np.uint8)


class WatchedLink:
    """Refuses a put of a block that was not written yet, or not copied to where it is sent from."""

    def __init__(self, link):
        self._link = link

    def __getattr__(self, name):
        return getattr(self._link, name)

    def put(self, connection, spans, tag):
        for span in spans:
            sent = ctypes.string_at(span.local, span.length)
            for at in range(0, span.length, BLOCK_BYTES):
                assert {*sent[at : at + BLOCK_BYTES]} not in ({FREE}, {UNUSED}), "a block was put before it was written"
        self._link.put(connection, spans, tag)


class Worker(Side):
    """A worker with an arena, a free list, and the least core that can be."""

    def __init__(self, network, name, epoch, random, device, checksum):
        self.free = list(range(BLOCKS))
        random.shuffle(self.free)
        self.held = {}
        slots = (random.randint(LONGEST, BLOCKS), random.randint(1, 3), random.choice([0.0, 0.1, 0.4]))
        late = {"staged": {"staged": (random, *slots)}, "direct": {"direct": (random, slots[-1])}}.get(device, {})
        if "node" in device:
            late = {"node": (random, slots[-1], random.choice([0.0, 0.0, 0.5]))}
        if device == "devices of a node":
            late["staged"] = (random, *slots)
        super().__init__(network, name, FREE, epoch=epoch, checksum=checksum, **late)
        self.bytes = self.arena.numpy()
        self.device = LateStream(network, random, random.choice([0.0, 0.3, 1.0]))
        self.agent._sender._queue._source._written._link = WatchedLink(self.link)

    def take(self, key, count):
        if len(self.free) < count:
            return None
        self.held[key] = [self.free.pop() for _ in range(count)]
        return self.held[key]

    def give(self, key):
        for block in self.held.pop(key, ()):
            self.bytes[block] = FREE
            self.free.append(block)

    def check(self):
        assert (self.bytes[self.free] == FREE).all(), "something wrote into a block that was free"
        self.agent.check_integrity()


class World:
    def __init__(self, seed, faults, device=""):
        """The KV is in memory of a `device`: "staged", which no link reaches, or "direct"; on a "node", workers read
        each other's memory, also from "devices of a node"."""
        self.random = Random(seed)
        self.device = device
        self.network = Network(self.random, faults)
        self.checksum = bool(faults.corrupt_put) or self.random.random() < 0.5 or "node" in device
        self.generation = 0
        self.workers = [self.start(i) for i in range(4)]
        self.jobs = [self.job(room) for room in range(1, self.random.randint(2, 6))]
        self.arrived = self.regranted = self.fetched = 0
        self.evicting = True

    def start(self, index):
        self.generation += 1
        return Worker(self.network, f"w{index}", f"e{self.generation}", self.random, self.device, self.checksum)

    def job(self, room):
        draw = self.random
        acts = [(draw.uniform(0, 3), side, "abort") for side in ("sender", "receiver") if draw.random() < 0.15]
        acts += [(draw.uniform(0, 4), "receiver", "revoke") for _ in range(draw.choice([0, 0, 1, 2, 3]))]
        fetch = draw.random() < 0.4
        return Job(
            room,
            *draw.sample(range(4), 2),
            [
                draw.randrange(1000)
                for _ in range(draw.randint(1, LONGEST) * BLOCK - (0 if fetch else draw.randrange(BLOCK)))
            ],
            draw.uniform(0, 1.5),
            draw.uniform(0, 1.5),
            acts=acts,
            prefill=draw.choice([0.0, draw.uniform(0, 2)]),
            cached=draw.choice([0.0, 0.0, draw.random(), 1.0]),
            repeated=draw.random() < 0.2 and not fetch,
            fetch=fetch,
        )

    def run(self, mischief):
        pending = sorted(mischief, key=lambda act: act[0])
        while self.network.now < DEADLINE:
            while pending and pending[0][0] <= self.network.now:
                _, kind, index = pending.pop(0)
                getattr(self, kind)(index)
            for job in self.jobs:
                self.drive(job)
            for worker in self.workers:
                for event in worker.agent.poll():
                    self.react(worker, event)
                worker.check()
            if not pending and self.idle():
                return
            self.network.run(self.network.now + 0.05)

    def idle(self):
        started = all(job.sending and job.receiving for job in self.jobs)
        return started and not any(worker.agent.pending() or worker.held for worker in self.workers)

    def drive(self, job):
        now, sender, receiver = self.network.now, self.workers[job.sender], self.workers[job.receiver]
        if not job.sending and now >= job.start_send and not sender.link.stopped:
            job.sending = True
            if job.fetch:
                return  # it is not notified
            sender.agent.expect(job.room, job.attempt, receiver.peer, ROOT)
        if not job.receiving and now >= job.start_receive and not receiver.link.stopped:
            self.offer(job, receiver, sender)
        sides = {"sender": sender, "receiver": receiver}
        for act in [act for act in job.acts if act[0] <= now and not sides[act[1]].link.stopped]:
            job.acts.remove(act)
            _, side, call = act
            agent = sides[side].agent
            agent.revoke(job.room) if call == "revoke" else agent.abort(job.room, "cancelled")
        if job.granted is not None and now >= job.granted + job.prefill and not sender.link.stopped:
            job.granted = None
            self.send(sender, job)
        if now > 12 and not sender.link.stopped:
            sender.agent.abort(job.room, "deadline")  # the core's own deadline
            job.sending = True
        if now > 12 and not job.receiving:
            job.receiving = True  # there never was room

    def offer(self, job, receiver, sender):
        blocks = receiver.take(("in", job.room, job.attempt), job.blocks)
        if blocks is not None:
            job.receiving = True
            self.grant(job, receiver, sender, blocks)

    def grant(self, job, receiver, sender, blocks):
        cached = int(job.cached * (len(job.tokens) // BLOCK))
        if job.fetch:
            cached = min(cached, job.blocks - 1)
        for index in range(cached):
            receiver.bytes[blocks[index]] = job.content(index)
        if job.fetch:
            hashes = block_hash.chain(job.packed, BLOCK, ROOT)
            receiver.agent.fetch(job.room, job.attempt, sender.peer, blocks, cached, hashes)
        else:
            receiver.agent.grant(job.room, job.attempt, sender.peer, blocks, cached, ROOT)

    def react(self, worker, event):
        job = self.jobs[event.room - 1]
        match event:
            case BlocksAsked():
                self.lend(worker, job, event)
            case Granted():
                if job.fetch:
                    return
                if event.attempt == job.attempt:
                    job.granted = self.network.now
            case Arrived():
                blocks = worker.held[("in", job.room, event.attempt)]
                for index in range(-(-event.final.computed // BLOCK)):
                    assert np.array_equal(worker.bytes[blocks[index]], job.content(index)), (
                        "a wrong block was committed"
                    )
                if not job.fetch:
                    assert (event.final.token_ids, event.final.computed) == (job.packed, len(job.tokens))
                self.fetched += job.fetch
                self.arrived += 1
                self.regranted += job.regrants > 0
                worker.give(("in", job.room, event.attempt))
                if job.repeated and event.attempt == job.attempt:
                    self.offer_again(job, worker)
            case GrantRevoked(side="receiver"):
                worker.give(("in", job.room, event.attempt))
                if event.attempt == job.attempt:
                    self.grant_again(job)
            case Released():
                worker.give(("in", job.room, event.attempt))
            case Committed():
                worker.give(("out", job.room, event.attempt))
                if job.repeated:
                    worker.agent.expect(job.room, event.attempt, self.workers[job.receiver].peer, ROOT)
            case Aborted(side="sender") | GrantRevoked(side="sender"):
                worker.give(("out", job.room, event.attempt))
                if event.attempt == job.attempt:
                    job.granted = None
            case Aborted(side="receiver"):
                assert ("in", job.room, event.attempt) in worker.held
                if (
                    not job.repeated
                    and event.attempt == job.attempt < 3
                    and self.network.now < 8
                    and self.random.random() < 0.5
                ):
                    self.retry(job)

    def offer_again(self, job, receiver):
        """A gateway that uses a room twice: refused, and the blocks come back."""
        blocks = receiver.take(("in", job.room, job.attempt), job.blocks)
        if blocks is not None:
            self.grant(job, receiver, self.workers[job.sender], blocks)

    def grant_again(self, job):
        """The same attempt, once its receiver has blocks for it."""
        job.receiving = False
        job.regrants += 1
        job.start_receive = self.network.now + self.random.choice([0.0, self.random.uniform(0, 1)])

    def retry(self, job):
        """The gateway dispatches again, perhaps while the old attempt is not over at the sender."""
        job.attempt += 1
        job.regrants, job.granted = 0, None
        job.sending = job.receiving = False
        job.start_send, job.start_receive = (self.network.now + self.random.uniform(0, 0.5) for _ in range(2))

    def lend(self, worker, job, event):
        """Sends the blocks that were not evicted: all, a leading part, or none."""
        key = ("out", job.room, event.attempt)
        whole = len(event.hashes)
        count = self.random.choice([whole, self.random.randint(0, whole)]) if self.evicting else whole
        blocks = worker.take(key, count) if count else None
        if blocks is None:
            worker.agent.abort(job.room, "evicted")
            return
        for number, block in enumerate(blocks, event.first):
            worker.bytes[block] = job.content(number)
        if not worker.agent.lend(job.room, event.attempt, blocks, event.hashes[:count]):
            worker.give(key)

    def send(self, worker, job):
        """Computes all, pushes in two parts, finishes. Without room of its own the sender gives up."""
        key = ("out", job.room, job.attempt)
        blocks = worker.take(key, job.blocks)
        if blocks is None:
            worker.agent.abort(job.room, "no blocks")
            return

        def write():
            if worker.held.get(key) is blocks:
                for index, block in enumerate(blocks):
                    worker.bytes[block] = job.content(index)

        worker.agent.after_step(worker.device.begin(write))
        full = len(job.tokens) // BLOCK
        hashes = block_hash.chain(job.packed, BLOCK, ROOT)
        part = full // 2
        worker.agent.push(job.room, 0, blocks[:part], hashes[:part])
        worker.agent.push(job.room, part, blocks[part:full], hashes[part:full])
        partial = blocks[full] if full < job.blocks else None
        worker.agent.finish(job.room, job.packed, len(job.tokens), (), partial)

    # mischief

    def stop(self, index):
        self.workers[index].link.stop()

    def resume(self, index):
        self.workers[index].link.resume()

    def restart(self, index):
        """The process is killed; another one, of a new epoch, takes its address."""
        self.workers[index].link.close()
        self.workers[index] = self.start(index)
        for job in self.jobs:
            if job.sender == index:
                job.sending, job.granted = True, None
            job.receiving |= job.receiver == index


def mischief_for(random):
    acts = []
    if random.random() < 0.5:
        index, start = random.randrange(4), random.uniform(0, 2)
        acts += [(start, "stop", index), (start + random.uniform(0.2, 4), "resume", index)]
    elif random.random() < 0.3:
        acts.append((random.uniform(0, 2.5), "restart", random.randrange(4)))
    return acts


def check_ended(world):
    for worker in world.workers:
        counts = worker.agent.counts()
        assert worker.agent.pending() == 0, f"{worker.peer.worker} hangs: {counts}"
        assert counts.quarantined_blocks == 0
        assert not worker.held, f"{worker.peer.worker} has lost {worker.held}"
        assert sorted(worker.free) == list(range(BLOCKS))
        if worker.staged:
            worker.staged.check_free()


def play(seed, faults, device=""):
    world = World(seed, faults, device)
    world.run(mischief_for(world.random))
    check_ended(world)
    return world


FEW = settings(
    max_examples=times(15),  # pairs of schedules
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.lists(st.integers(0, 2**48), min_size=2, max_size=2, unique=True)


def chance(top):
    return st.floats(0, top)


UNRELIABLE = st.builds(Faults, chance(0.5), chance(0.2), chance(0.3), chance(0.5))


DELAYED = partial(st.builds, Faults, chance(0.3))
FAULTS = {
    "deaths, stops and cancels": (DELAYED(), ""),
    "the network breaks": (DELAYED(break_connection=chance(0.1)), ""),
    "messages are lost, doubled and reordered": (UNRELIABLE, ""),
    "bytes change on the way": (DELAYED(corrupt_message=chance(0.2), corrupt_put=chance(0.5)), ""),
    "slots, few and late": (DELAYED(break_connection=chance(0.05), corrupt_put=chance(0.2)), "staged"),
    "slots of the host, unreliable": (UNRELIABLE, "staged"),
    "straight from and to a device": (
        st.builds(Faults, chance(0.5), chance(0.2), chance(0.3), chance(0.3), corrupt_put=chance(0.2)),
        "direct",
    ),
    "copied on one node": (DELAYED(break_connection=chance(0.05), corrupt_put=chance(0.2)), "node"),
    "copied on one node, with unreliable messages": (UNRELIABLE, "node"),
    "copied between devices of one node": (UNRELIABLE, "devices of a node"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_no_token_is_wrong_and_nothing_hangs_or_leaks_when(kind):
    faults, device = FAULTS[kind]

    @FEW
    @given(SEEDS, faults)
    def played(seeds, faults):
        for seed in seeds:
            play(seed, faults, device)

    played()


@pytest.mark.parametrize("device", ["", "staged", "direct", "node", "devices of a node"])
def test_undisturbed_hand_offs_all_arrive(device):
    """The schedules above are worth something only if hand-offs succeed when nothing disturbs them."""
    world = World(24, Faults(delay=0.05), device)
    for job in world.jobs:
        job.acts.clear()
    world.evicting = False
    world.run([])
    check_ended(world)
    assert world.arrived == len(world.jobs)
    assert any(worker.agent.counts().bytes_pulled for worker in world.workers) == ("node" in device)


def test_what_is_granted_again_after_it_was_taken_back_arrives():
    """The schedules above do take grants back and give them again, and fetch blocks."""
    worlds = [play(seed, Faults(delay=0.05)) for seed in range(40)]
    assert sum(world.regranted for world in worlds) >= 10
    assert sum(world.fetched for world in worlds) >= 10
