"""The core's loop, frame by frame, in virtual time: a runner that reads the tokens it decodes from its arena, and the
in-memory link between two cores. What a core emits is therefore right only if its KV is."""

import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
import torch

from legato_engine.core import frames
from legato_engine.core.channel import Channel
from legato_engine.core.frames import FromGateway, Inbox, Splitter, Status, Turn
from legato_engine.core.loop import Core
from legato_engine.kvcache.arena import Arena
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.layout import KVLayout
from legato_engine.scheduler.batch import Batch, Draw, Row, Sampled, StepOutput
from legato_engine.scheduler.limits import Limits
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.memory import MemoryLink, Network
from legato_protocol import stream
from legato_protocol.stream import (
    Cancel,
    Decode,
    Failed,
    Generate,
    Handoff,
    HandoffReport,
    Pause,
    Peer,
    Prefill,
    SamplingParams,
    Sequence,
    TokenItem,
    TokenLogprobs,
    Tokens,
    pack_tokens,
)

BLOCK = 4
BLOCKS = 64
GATEWAY = 7
STOP = 0
PROMPT = list(range(10, 30))


def next_token(known: list[int], choice: int) -> int:
    """The token that follows; never STOP."""
    return 1 + zlib.crc32(pack_tokens([*known, choice])) % 1000


def continuation(prompt: list[int], count: int, choice: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, choice))
    return tokens[len(prompt) :]


class TokenRunner:
    """Its KV of a position is the token there; a draw hashes what the arena holds, not what the request says."""

    formats = "tokens"
    kv_revision = "tokens-1"

    def __init__(self) -> None:
        self.layout = KVLayout(layers=1, kv_heads=1, block_size=BLOCK, head_dim=2, dtype="float32")
        self.num_blocks = BLOCKS
        self.arena = Arena(self.layout, BLOCKS, torch.device("cpu"))
        self.steps = 0

    def step(self, batch: Batch) -> StepOutput:
        self.steps += 1
        for source, target in batch.copies:
            self.arena.copy(source, target)
        return tuple(self._row(row) for row in batch.rows)

    def warm_up(self) -> None: ...

    def _row(self, row: Row) -> tuple[Sampled, ...]:
        for position, token in enumerate(row.tokens, row.start):
            self.arena.blocks[row.blocks[position // BLOCK], 0, 0, 0, position % BLOCK, 0] = float(token)
        end = row.start + len(row.tokens)
        known = [int(self.arena.blocks[row.blocks[at // BLOCK], 0, 0, 0, at % BLOCK, 0]) for at in range(end)]
        return tuple(self._draw(known, draw) for draw in row.draws)

    def _draw(self, known: list[int], draw: Draw) -> Sampled:
        token = next_token(known, draw.choice)
        return Sampled(token, TokenLogprobs(-token / 1000) if draw.params.logprobs is not None else None)


@dataclass
class Worker:
    """A core and the far end of its channel: what the server would see."""

    core: Core
    end: socket.socket
    scheduler: Scheduler
    agent: TransferAgent | None
    runner: TokenRunner
    peer: Peer
    heard: list[msgspec.Struct] = field(default_factory=list)
    status: Status | None = None
    splitter: Splitter = field(default_factory=Splitter)

    def tell(self, *said: stream.ToWorker, **inbox: object) -> None:
        forwarded = tuple(FromGateway(GATEWAY, stream.encode(frame)) for frame in said)
        self.end.sendall(frames.encode(Inbox(forwarded, **inbox)))

    def turn(self) -> None:
        self.core.turn()
        while True:
            try:
                data = self.end.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for body in self.splitter.feed(data):
                turn = frames.decode_from_core(body)
                assert isinstance(turn, Turn)
                self.status = turn.status or self.status
                assert all(frame.gateway == GATEWAY for frame in turn.frames)
                self.heard += [stream.decode_from_worker(frame.data) for frame in turn.frames]

    def items(self, id: str = "r", attempt: int = 1, choice: int = 0) -> list[TokenItem]:
        told = [item for frame in self.heard if isinstance(frame, Tokens) for item in frame.items]
        return [item for item in told if (item.id, item.attempt, item.choice) == (id, attempt, choice)]

    def tokens(self, id: str = "r", attempt: int = 1, choice: int = 0) -> list[int]:
        """All tokens told, which must be without gap or repetition."""
        items = self.items(id, attempt, choice)
        for before, after in pairwise(items):
            assert after.index == before.index + len(before.token_ids)
        return [token for item in items for token in item.token_ids]

    def failures(self) -> list[Failed]:
        return [frame for frame in self.heard if isinstance(frame, Failed)]

    def reports(self) -> list[HandoffReport]:
        return [frame for frame in self.heard if isinstance(frame, HandoffReport)]

    def finished(self, **which: int) -> bool:
        items = self.items(**which)
        return bool(items) and items[-1].finish is not None

    @property
    def used(self) -> int:
        counts = self.scheduler.pool.counts()
        return counts.used + counts.quarantined

    def check(self) -> None:
        self.scheduler.check_integrity()
        if self.agent is not None:
            self.agent.check_integrity()


class World:
    """Workers that reach each other, and the time they share."""

    def __init__(self) -> None:
        self.network = Network()
        self.workers: list[Worker] = []

    def worker(self, name: str, *, link: bool = True, chunk: int = 8) -> Worker:
        ours, theirs = socket.socketpair()
        runner, events, epoch = TokenRunner(), EventLog(f"epoch-{name}"), f"epoch-{name}"
        limits = Limits("unified", BLOCK, max_length=200, chunk_tokens=chunk, max_running=8, max_waiting=4)
        scheduler = Scheduler(limits, BlockPool(BLOCKS, events), runner.kv_revision)
        agent = self._agent(name, epoch, runner) if link else None
        core = Core(
            Channel(theirs),
            runner,
            scheduler,
            events,
            agent,
            kv_revision=runner.kv_revision,
            clock=self.network.clock,
            max_waiting=limits.max_waiting,
        )
        worker = Worker(core, ours, scheduler, agent, runner, Peer(name, epoch, name.encode()))
        worker.tell(joined=(GATEWAY,))
        self.workers.append(worker)
        return worker

    def run(self, turns: int = 60) -> None:
        """Every worker's turns, a second apart, with everything checked after each."""
        for _ in range(turns):
            self.network.run(self.network.now + 1)
            for worker in self.workers:
                worker.turn()
                worker.check()

    def _agent(self, name: str, epoch: str, runner: TokenRunner) -> TransferAgent:
        link = MemoryLink(self.network, name, runner.arena.address, runner.arena.nbytes)
        return TransferAgent(
            link,
            ArenaMemory(runner.arena.blocks, BLOCKS),
            worker=name,
            epoch=epoch,
            kv_revision=runner.kv_revision,
            layout=str(runner.layout),
            block_size=BLOCK,
            token="secret",
            lease=1e6,
            clock=self.network.clock,
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for worker in made.workers:
        worker.end.close()


def sequence(
    prompt: list[int] = PROMPT, *, deadline: float = 1e6, choices: tuple[int, ...] = (0,), **params
) -> Sequence:
    wanted = SamplingParams(**{"max_tokens": 12, "seed": 1, "stop_token_ids": (STOP,)} | params)
    return Sequence(pack_tokens(prompt), len(prompt), wanted, deadline, choices)


def test_a_sequence_is_prefilled_and_decoded_here(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence()))
    world.run()
    assert worker.tokens() == continuation(PROMPT, 12)
    assert worker.items()[-1].finish == "length"
    assert worker.used == 0


def test_all_tokens_of_a_step_are_one_frame_for_a_gateway(world: World) -> None:
    worker = world.worker("u")
    worker.tell(*(Generate(f"r{n}", 1, sequence([n, n + 1])) for n in range(1, 5)))
    world.run(4)
    assert any(isinstance(frame, Tokens) and len(frame.items) == 4 for frame in worker.heard)


def test_choices_fork_after_the_prompt(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence(choices=(0, 1, 2))))
    world.run()
    for choice in range(3):
        assert worker.tokens(choice=choice) == continuation(PROMPT, 12, choice)


def test_a_cancelled_sequence_ends_and_gives_its_blocks_back(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence(max_tokens=150)))
    world.run(10)
    assert worker.used > 0
    worker.tell(Cancel("r", 1))
    world.run(2)
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made
    assert worker.used == 0
    assert worker.failures() == []


def test_the_sequences_of_a_gateway_that_left_are_over(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence(max_tokens=150)), Generate("s", 1, sequence([1, 2], max_tokens=150)))
    world.run(8)
    worker.tell(left=(GATEWAY,))
    world.run(2)
    assert worker.used == 0
    assert worker.status is not None
    assert worker.status.idle


def test_a_deadline_ends_a_sequence_with_a_typed_failure(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence(deadline=8.0, max_tokens=150)))
    world.run(12)
    (failed,) = worker.failures()
    assert (failed.id, failed.code, failed.retry) == ("r", "deadline", False)
    assert worker.used == 0


def test_a_paused_sequence_makes_no_tokens_until_it_goes_on(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence(max_tokens=20)))
    world.run(6)
    worker.tell(Pause("r", 1, True))
    world.run(2)
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made < 20
    worker.tell(Pause("r", 1, False))
    world.run(30)
    assert worker.tokens() == continuation(PROMPT, 20)


def test_what_cannot_be_served_is_refused_for_good_and_what_is_too_much_for_now(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("long", 1, sequence(list(range(300)))))
    worker.tell(*(Generate(f"r{n}", 1, sequence()) for n in range(20)))
    world.run(1)
    failures = {failed.id: failed for failed in worker.failures()}
    assert (failures["long"].code, failures["long"].retry) == ("invalid", False)
    overloaded = [failed for id, failed in failures.items() if id != "long"]
    assert overloaded
    assert {(failed.code, failed.retry) for failed in overloaded} == {("overloaded", True)}


def test_a_draining_worker_says_so_and_takes_nothing_new_but_finishes(world: World) -> None:
    worker = world.worker("u")
    worker.tell(Generate("r", 1, sequence()))
    world.run(3)
    worker.tell(drain=True)
    worker.tell(Generate("late", 1, sequence()))
    world.run(1)
    assert worker.status is not None
    assert worker.status.load.draining
    assert not worker.status.idle
    assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("late", "draining", True)]
    world.run()
    assert worker.tokens() == continuation(PROMPT, 12)
    assert worker.status.idle


def test_a_worker_without_a_link_refuses_hand_offs_and_nothing_else(world: World) -> None:
    worker = world.worker("u", link=False)
    peer = Peer("other", "e", b"other")
    worker.tell(Prefill("p", 1, 5, sequence(), peer), Decode("d", 1, 6, sequence(), peer), Generate("r", 1, sequence()))
    world.run()
    assert {failed.id for failed in worker.failures()} == {"p", "d"}
    assert worker.tokens() == continuation(PROMPT, 12)


def hand_off(prefill: Worker, decode: Worker, wanted: Sequence, room: int = 99, attempt: int = 1) -> None:
    decode.tell(Decode("r", attempt, room, wanted, prefill.peer))
    prefill.tell(Prefill("r", attempt, room, wanted, decode.peer))


def test_a_prefilled_sequence_goes_on_elsewhere_with_exactly_its_tokens(world: World) -> None:
    prefill, decode = world.worker("p"), world.worker("d")
    hand_off(prefill, decode, sequence(logprobs=0))
    world.run()
    assert decode.tokens() == continuation(PROMPT, 12)
    assert [len(item.logprobs) for item in decode.items()] == [1] * 12
    assert prefill.tokens() == []
    (report,) = decode.reports()
    assert (report.id, report.room, report.source, report.blocks) == ("r", 99, "p", 5)
    assert prefill.used == decode.used == 0


def test_the_first_token_may_be_the_last_and_choices_travel_together(world: World) -> None:
    prefill, decode = world.worker("p"), world.worker("d")
    hand_off(prefill, decode, sequence(max_tokens=1))
    world.run(20)
    assert decode.tokens() == continuation(PROMPT, 1)
    assert decode.finished()
    hand_off(prefill, decode, sequence(choices=(0, 1)), room=100, attempt=2)
    world.run()
    for choice in (0, 1):
        assert decode.tokens(attempt=2, choice=choice) == continuation(PROMPT, 12, choice)
    assert decode.items(attempt=2)[0].cached_tokens > 0


def test_blocks_that_the_receiver_holds_do_not_travel(world: World) -> None:
    prefill, decode = world.worker("p"), world.worker("d")
    decode.tell(Generate("warm", 1, sequence()))
    world.run(20)
    hand_off(prefill, decode, sequence([*PROMPT, 5, 6]))
    world.run()
    assert decode.tokens() == continuation([*PROMPT, 5, 6], 12)
    (report,) = decode.reports()
    assert (report.blocks, report.cached_blocks) == (1, 5)


def test_cancelling_while_blocks_travel_frees_both_sides(world: World) -> None:
    prefill, decode = world.worker("p", chunk=4), world.worker("d")
    hand_off(prefill, decode, sequence())
    world.run(3)
    assert prefill.used > 0
    assert decode.used > 0
    prefill.tell(Cancel("r", 1))
    decode.tell(Cancel("r", 1))
    world.run(6)
    assert prefill.used == decode.used == 0
    assert prefill.failures() == decode.failures() == []


def test_a_prefill_that_ends_is_told_to_the_receiver_and_its_gateway(world: World) -> None:
    prefill, decode = world.worker("p", chunk=4), world.worker("d")
    hand_off(prefill, decode, sequence())
    world.run(3)
    prefill.tell(Cancel("r", 1))
    world.run(6)
    (failed,) = decode.failures()
    assert (failed.code, failed.part, failed.retry) == ("transfer", "transfer", True)
    assert prefill.used == decode.used == 0


def test_a_running_sequence_moves_and_every_token_is_made_once(world: World) -> None:
    old, new = world.worker("a"), world.worker("b")
    wanted = sequence(max_tokens=40, logprobs=0)
    old.tell(Generate("r", 1, wanted))
    world.run(12)
    sent = old.tokens()
    assert 0 < len(sent) < 40
    known = Sequence(pack_tokens([*PROMPT, *sent]), len(PROMPT), wanted.params, 1e6)
    old.tell(drain=True)
    old.tell(Handoff("r", 2, 55, new.peer))
    new.tell(Decode("r", 2, 55, known, old.peer))
    world.run(60)
    truth = continuation(PROMPT, 40)
    before, after = old.tokens(attempt=1), new.tokens(attempt=2)
    assert new.items(attempt=2)[0].index == len(sent)
    assert [*sent, *after] == truth
    assert before == truth[: len(before)]
    assert all(len(item.logprobs) == len(item.token_ids) for item in new.items(attempt=2))
    assert not old.finished(attempt=1)
    assert old.failures() == new.failures() == []
    assert len(new.reports()) == 1
    assert old.used == new.used == 0
    assert old.status is not None
    assert old.status.idle


@pytest.mark.parametrize("granted", [True, False])
def test_a_sequence_that_cannot_move_goes_on_under_its_old_attempt(world: World, granted: bool) -> None:
    old, new = world.worker("a"), world.worker("b")
    old.tell(Generate("r", 1, sequence(max_tokens=40)))
    world.run(10)
    known = Sequence(pack_tokens([*PROMPT, *old.tokens()]), len(PROMPT), sequence(max_tokens=40).params, 1e6)
    old.tell(Handoff("r", 2, 55, new.peer))
    new.tell(Decode("r", 2, 55, known, old.peer))
    if granted:
        while not any(request.sending for request in old.scheduler.requests(f"{GATEWAY}/r")):
            world.run(1)
    new.tell(Cancel("r", 2))
    world.run(60)
    assert old.tokens(attempt=1) == continuation(PROMPT, 40)
    assert [(failed.attempt, failed.code) for failed in old.failures()] == [(2, "transfer")] * granted
    assert old.used == new.used == 0
    assert old.status is not None
    assert old.status.idle


def test_an_unknown_sequence_cannot_be_moved(world: World) -> None:
    worker = world.worker("a")
    worker.tell(Handoff("nobody", 3, 55, Peer("b", "e", b"b")))
    world.run(2)
    assert [(failed.id, failed.attempt, failed.retry) for failed in worker.failures()] == [("nobody", 3, True)]


def test_prefix_events_are_numbered_without_gaps(world: World) -> None:
    worker = world.worker("u")
    numbers: list[int] = []
    worker.tell(Generate("r", 1, sequence()))
    for _ in range(20):
        world.network.run(world.network.now + 1)
        worker.core.turn()
        for body in worker.splitter.feed(worker.end.recv(1 << 16)):
            turn = frames.decode_from_core(body)
            assert isinstance(turn, Turn)
            numbers += [msgspec.msgpack.decode(event)[2] for event in turn.events]
    assert numbers == list(range(1, len(numbers) + 1)) != []
