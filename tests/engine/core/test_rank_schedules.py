"""Random schedules of workers with one, two and four ranks, of which some die or stand still at any message or sum.

Chats of a tiny model are handed over between unequal degrees, fetch cached blocks, and use adapters. The core of a
rank that died ends, and its chats continue on other workers: each has the tokens of one worker without ranks. At the
end, blocks and hand-offs are free, and ranks have ended with their cores.
"""

import gc
import threading
from dataclasses import dataclass
from random import Random

import mortal_ranks
import msgspec
import pytest
import torch
from budget import times
from mortal_ranks import CoreLost, Fate, Group
from ranked_workers import ADAPTERS, BLOCK, LENGTH, Ranked, TinyModel

from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.transfer.fakes.memory import Faults, Network
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Decode, Failed, Generate, KVSource, Prefill

LEASE = 8.0  # seconds
DEGREES = (1, 2, 2, 4)
LONGEST, ANSWER = 24, 9  # tokens
QUIET = 300  # seconds until which everything has ended


@dataclass
class Chat:
    """A request to one worker, or to two that hand it over. `known` are the tokens of earlier attempts."""

    id: str
    prompt: list[int]
    count: int
    adapter: str
    attempt: int = 0
    known: tuple[int, ...] = ()
    here: "Ranked | None" = None
    prefill: "Ranked | None" = None
    over: bool = False  # it expects nothing more

    @property
    def tokens(self):
        return [*self.known, *(self.here.worker.tokens(self.id, self.attempt) if self.here else ())]

    def needs(self, ranked):
        """True if the attempt is lost with this worker."""
        begun = self.here is not None and self.here.worker.items(self.id, self.attempt)
        return self.here is ranked or (self.prefill is ranked and not begun)


class Schedule:
    """Workers with ranks and what their gateway does, from one seed."""

    def __init__(self, make_world, model, spare, seed):
        self.random = draw = Random(seed)
        faults = Faults(draw.choice([0.0, 1.0]), corrupt_put=draw.choice([0.0, 0.0, 0.2]))
        faults.break_connection = draw.choice([0.0, 0.0, 0.05])
        self.world, self.model, self.spare = make_world(Network(draw, faults), LEASE), model, spare
        self.on_node = draw.random() < 0.3
        self.started, self.lost, self.rooms, self.chats, self.patience = 0, 0, 100, [], {}
        self.workers = [self.start(degree) for degree in draw.sample(DEGREES, 3)]

    # Workers

    def start(self, degree):
        """A worker, whose ranks an earlier schedule may have left."""
        group = self.spare[degree].pop() if self.spare[degree] else self.load(degree)
        self.started += 1
        offered = [OfferedAdapter(name, name, self.adapter_loader(group, name)) for name in ADAPTERS]
        settings = {"max_length": LENGTH, "chunk": 16, "max_running": 8, "max_waiting": 20, "growth_tokens": 4}
        settings |= {"adapters": offered, "adapters_in_memory": 1, "on_node": self.on_node}
        worker = self.world.worker(f"w{self.started}", runner=group.runner, compute=group.compute, **settings)
        return Ranked(worker, group)

    def load(self, degree):
        """A rank may die or stand still before it has loaded; another core is started then."""
        fates = [self.fate(degree, 4)] if degree > 1 and self.random.random() < 0.3 else []
        group = Group(degree, fates)
        try:
            group.load(lambda: self.model.load(degree))
        except CoreLost:
            group.close()
            self.lost += 1
            return self.load(degree)
        return group

    def adapter_loader(self, group, name):
        return lambda: group.runner.adapter(self.model.pairs[name])

    def fate(self, degree, most):
        draw = self.random
        return Fate(draw.randrange(1, degree), int(most ** draw.random()), stalls=draw.random() < 0.3)

    def doom(self):
        """A rank will end or stand still: in a step, with an adapter, or before its next message."""
        group = self.random.choice([each.group for each in self.workers if each.group.degree > 1])
        group.fates.append(self.fate(group.degree, 150))

    def kill(self):
        """A rank ends now, maybe without anything to compute."""
        group = self.random.choice([each.group for each in self.workers if each.group.degree > 1])
        self.random.choice(group.ranks).kill()

    def turn(self, ranked):
        group = ranked.group
        try:
            ranked.turn()
        except CoreLost:
            self.replace(ranked)
        if group.lost or not group.is_standing:
            return
        patience = self.patience.setdefault(group, self.random.choice([1, 3, 12]))
        self.patience[group] = patience - 1
        if not patience:
            del self.patience[group]
            if self.random.random() < 0.5:
                group.go_on()
            else:  # its server ends a silent core
                self.replace(ranked)

    def replace(self, ranked):
        """The core has ended, and its server starts another one."""
        self.lost += 1
        self.workers.remove(ranked)
        self.world.workers.remove(ranked.worker)
        ranked.close()
        ranked.group.close()
        lost = [chat for chat in self.chats if not chat.over and chat.needs(ranked)]
        for chat in lost:
            self.stop(chat)
        self.workers.append(self.start(ranked.group.degree))
        for chat in lost:
            self.dispatch(chat)

    # What a gateway does

    def chat(self):
        """The beginning of one of a few texts."""
        draw, first = self.random, 15 * self.random.randrange(3)
        prompt = [(first + at) % 60 for at in range(draw.randrange(5, LONGEST))]
        chat = Chat(f"r{self.rooms}", prompt, draw.randrange(1, ANSWER), draw.choice(["", "", *ADAPTERS]))
        self.chats.append(chat)
        self.dispatch(chat)

    def dispatch(self, chat):
        """The next attempt, after the tokens of earlier ones."""
        draw, self.rooms = self.random, self.rooms + 2
        chat.over = len(chat.known) == chat.count
        if chat.over:
            return
        chat.attempt += 1
        wanted = self.world.sequence(chat.prompt, max_tokens=chat.count, temperature=0.0, stop_token_ids=())
        tokens = pack_tokens([*chat.prompt, *chat.known])
        wanted = msgspec.structs.replace(wanted, token_ids=tokens, adapter=chat.adapter)
        chat.here, there, other = draw.sample(self.workers, 3)
        chat.prefill = there if draw.random() < 0.5 else None
        blocks, seconds = max(1, (len(chat.prompt) - 1) // BLOCK), draw.choice([1.0, 6.0, 15.0])
        fetch = KVSource(other.worker.peer, self.rooms, blocks, seconds) if draw.random() < 0.5 else None
        if chat.prefill is None:
            chat.here.worker.send(Generate(chat.id, chat.attempt, wanted, fetch))
            return
        room, here = self.rooms + 1, chat.here.worker
        here.send(Decode(chat.id, chat.attempt, room, wanted, there.worker.peer))
        there.worker.send(Prefill(chat.id, chat.attempt, room, wanted, here.peer, fetch))

    def cancel(self):
        if live := [chat for chat in self.chats if not chat.over]:
            chat = self.random.choice(live)
            self.stop(chat)
            chat.over = True

    def stop(self, chat):
        """Ends the attempt."""
        chat.known = chat.tokens
        for ranked in [each for each in self.workers if each in (chat.here, chat.prefill)]:
            ranked.worker.send(Cancel(chat.id, chat.attempt))
        chat.here = chat.prefill = None

    def follow(self, chat):
        """A hand-off that failed begins again."""
        heard = [frame for each in (chat.here, chat.prefill) if each for frame in each.worker.heard]
        if any(isinstance(frame, Failed) and (frame.id, frame.attempt) == (chat.id, chat.attempt) for frame in heard):
            self.stop(chat)
            self.dispatch(chat)
        else:
            chat.over = chat.here.worker.finished(id=chat.id, attempt=chat.attempt)

    def run(self, seconds):
        for _ in range(seconds):
            self.world.network.run(self.world.network.now + 1)
            for ranked in list(self.workers):
                self.turn(ranked)
            for chat in [chat for chat in self.chats if not chat.over]:
                self.follow(chat)

    def finish(self):
        if not self.lost:
            self.kill()
        for _ in range(QUIET):
            self.run(1)
            if self.lost and all(chat.over for chat in self.chats) and all(each.is_quiet for each in self.workers):
                break
        assert all(chat.over for chat in self.chats), "it hangs"
        for each in self.workers:
            assert (each.worker.used, each.worker.agent.pending(), each.worker.scheduler.idle) == (0, 0, True)
        for chat in self.chats:
            assert chat.tokens == self.model.continuation(chat.prompt, chat.adapter, len(chat.tokens))
            assert len(chat.tokens) == chat.count or chat.here is None

    def close(self):
        for each in self.workers:
            each.close()
            each.group.fates.clear()
            self.spare[each.group.degree].append(each.group)


ACTS = {"chat": 10, "cancel": 1, "doom": 2, "kill": 0.3}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    threads = torch.get_num_threads()
    yield TinyModel(tmp_path_factory.mktemp("model"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def spare():
    """Groups of ranks that wait for the next schedule. No rank and no shared memory is left when all have ended."""
    groups, before = {degree: [] for degree in DEGREES}, mortal_ranks.shared_memory_files()
    with mortal_ranks.in_threads():
        yield groups
        for each in groups.values():
            while each:
                each.pop().close()
    for _ in range(2):  # the first one calls the finalizers of first ranks, which have the others
        gc.collect()
    assert mortal_ranks.shared_memory_files() <= before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("follower", "rank"))]


@pytest.mark.parametrize("seed", range(times(12)))
def test_any_schedule_ends_with_all_tokens_and_without_leaks(make_world, model, spare, seed):
    schedule = Schedule(make_world, model, spare, seed)
    try:
        for act in ["doom", "chat", *schedule.random.choices([*ACTS], [*ACTS.values()], k=8)]:
            getattr(schedule, act)()
            schedule.run(schedule.random.randrange(4))
        schedule.finish()
    finally:
        schedule.close()
