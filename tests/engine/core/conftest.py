"""Cores in virtual time, frame by frame: a runner that reads the tokens it decodes from its arena, and the
in-memory link (or one that a test opens) between two cores. What a core emits is therefore right only if its KV is."""

import socket
import zlib
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from adapted_cores import Adapted, shifting
from staged_arena import StagedArena

from legato_engine.adapters.catalog import AdapterCatalog
from legato_engine.adapters.offer import AdapterOffer
from legato_engine.adapters.resident import OfferedAdapter, ResidentAdapters
from legato_engine.core import frames
from legato_engine.core.channel import ServerChannel
from legato_engine.core.compute import Compute
from legato_engine.core.disk.block_folder import BlockFolder
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.core.frames import CoreStatus, FromGateway, Inbox, IterationReport, Splitter
from legato_engine.core.loop import Core, CoreParts
from legato_engine.core.profiling import Profiling
from legato_engine.core.reporting.heartbeat import Pulse
from legato_engine.core.slices.slices import OwnCores, TimeSlices
from legato_engine.grammars.compilations import Compilations
from legato_engine.kvcache.block_pool import BlockPool, TierSizes
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.layout import KVLayout
from legato_engine.mailbox import Mailbox
from legato_engine.runner.arena import Arena
from legato_engine.runner.interface import NoProfiler, StepProfiler, StepRunner
from legato_engine.scheduler.batch import Batch, Draw, Row, Sampled, Scored, StepOutput
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.fakes.late_device import LateStream
from legato_engine.transfer.fakes.late_node import LateNeighbours, LatePulls
from legato_engine.transfer.fakes.memory import MemoryLink, Network
from legato_engine.transfer.identity import TransferArena, TransferIdentity, TransferPolicy
from legato_engine.transfer.link import Link
from legato_engine.transfer.node.interface import NodeMemory
from legato_protocol.model_files.adapter_list import AdapterEntry
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire import stream
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import (
    Decode,
    Failed,
    Generate,
    Handoff,
    HandoffReport,
    Peer,
    Prefill,
    Sequence,
    TokenItem,
    TokenLogprobs,
    Tokens,
)

BLOCK = 4
BLOCKS = 64
GATEWAY = 7
REVISION = "0123456789abcdef" * 2  # of KV in files
STOP = 0
LIMITS = {"max_length": 200, "max_running": 8, "max_waiting": 4}
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
    written = ahead = None
    layout = KVLayout(layers=1, kv_heads=1, block_size=BLOCK, head_dim=2, dtype="float32")
    num_blocks = BLOCKS
    host_slots = 0

    def __init__(self) -> None:
        self.arena = Arena(self.layout, self.num_blocks, torch.device("cpu"), self.host_slots)
        self._tokens = self.arena.blocks.numpy()[:, 0, 0, 0, :, 0]  # by block and position in it
        self.steps = 0

    def step(self, batch: Batch) -> StepOutput:
        self.steps += 1
        self.arena.host.move(batch.moves)
        for source, target in batch.copies:
            self.arena.copy(source, target)
        return tuple(self._row(row) for row in batch.rows)

    def warm_up(self) -> None: ...

    def write(self, row: Row) -> list[int]:
        """Write the row's KV; all tokens of its sequence, as the arena has them."""
        end = row.start + len(row.tokens)
        for table in (row.blocks, *row.windows):
            for position, token in enumerate(row.tokens, row.start):
                self._tokens[table[position // BLOCK], position % BLOCK] = token
        known = [self._read(row.blocks, at) for at in range(end)]
        for window, table in zip(self.layout.windows, row.windows, strict=True):
            first = max(0, end - window)
            assert [self._read(table, at) for at in range(first, end)] == known[first:], "a window has other tokens"
        return known

    def _read(self, table: Any, position: int) -> int:
        return int(self._tokens[table[position // BLOCK], position % BLOCK])

    def _row(self, row: Row) -> tuple[Sampled, ...] | Scored:
        known = self.write(row)
        drawn = tuple(self._draw(known, draw) for draw in row.draws)
        if row.targets is None:
            return drawn
        logprobs = array("f", [-float(token) for token in row.targets.tokens])
        return Scored(PackedLogprobs(0, logprobs.tobytes(), b"", bytes(4 * len(logprobs))), drawn, 0.0)

    def _draw(self, known: list[int], draw: Draw) -> Sampled:
        token = next_token(known, draw.choice)
        return Sampled(token, TokenLogprobs(-token / 1000) if draw.params.logprobs is not None else None)


class WindowRunner(TokenRunner):
    """The same with two groups of layers that keep a window."""

    kv_revision = "tokens-windows"
    layout = replace(TokenRunner.layout, windows=(6, 9))
    num_blocks = 3 * BLOCKS


class InlineCompute:
    """Computes a step when it is started, and reports it `turns()` iterations later than it could."""

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns
        self._left = 0
        self._done: Mailbox[StepOutput] = Mailbox()
        self.fileno = self._done.fileno

    def start(self, step: Callable[[], StepOutput]) -> None:
        self._left = self._turns()
        self._done.put(step())

    def run(self, work: Callable[[], None]) -> None:
        work()

    def result(self) -> StepOutput | None:
        self._left -= 1
        return None if self._left >= 0 else self._done.take()[0]


@dataclass
class Worker:
    """A core and the far end of its channel: all that the server would see."""

    core: Core
    end: socket.socket
    scheduler: Scheduler
    agent: TransferAgent | None
    runner: StepRunner
    peer: Peer
    pulse: Pulse
    heard: list[msgspec.Struct] = field(default_factory=list)
    others: dict[int, list[msgspec.Struct]] = field(default_factory=dict)  # what further gateways heard
    phases: list[frames.TracedPhase] = field(default_factory=list)
    status: CoreStatus | None = None
    offer: AdapterOffer | None = None  # the last one
    profiled: list[str] = field(default_factory=list)  # outcomes of profiles
    splitter: Splitter = field(default_factory=Splitter)

    def send(self, *said: stream.ToWorker, gateway: int = GATEWAY, **inbox: object) -> None:
        forwarded = tuple(FromGateway(gateway, stream.encode(frame)) for frame in said)
        self.end.sendall(frames.encode(Inbox(forwarded, **inbox)))

    def turn(self) -> None:
        self.core.run_once()
        while True:
            try:
                data = self.end.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for body in self.splitter.feed(data):
                turn = frames.decode_from_core(body)
                if isinstance(turn, frames.Profiled):
                    self.profiled.append(turn.reason)
                    continue
                assert isinstance(turn, IterationReport)
                self.status = turn.status or self.status
                self.offer = turn.offer or self.offer
                self.phases += turn.phases
                if turn.status is not None and turn.status.idle:
                    assert turn.status.load.used_blocks == 0, "metrics would call these leaked"
                for frame in turn.frames:
                    heard = self.heard if frame.gateway == GATEWAY else self.others.setdefault(frame.gateway, [])
                    heard.append(stream.decode_from_worker(frame.data))

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

    def finished(self, *id: str, **which: Any) -> bool:
        return any(item.finish is not None for item in self.items(*id, **which)[-1:])

    @property
    def used(self) -> int:
        counts = self.scheduler.pool.counts()
        return counts.used + counts.quarantined

    def check(self) -> None:
        self.scheduler.check_integrity()
        if self.agent is not None:
            self.agent.check_integrity()


def sequence(
    prompt: list[int] = PROMPT, *, deadline: float = 1e6, choices: tuple[int, ...] = (0,), **params
) -> Sequence:
    wanted = SamplingParams(**{"max_tokens": 12, "seed": 1, "stop_token_ids": (STOP,)} | params)
    return Sequence(pack_tokens(prompt), len(prompt), wanted, deadline, choices)


class World:
    """Workers that reach each other, the time they share, and what their gateway says."""

    prompt = PROMPT
    gateway = GATEWAY
    make_runner: Callable[[], StepRunner] = TokenRunner
    continuation = staticmethod(continuation)
    sequence = staticmethod(sequence)

    @staticmethod
    def known(output: list[int], **params: object) -> Sequence:
        """The sequence as its gateway knows it after these tokens."""
        return msgspec.structs.replace(sequence(**params), token_ids=pack_tokens([*PROMPT, *output]))

    def generate(
        self, worker: Worker, prompt: list[int] = PROMPT, *, id: str = "r", turns: int = 60, **params: Any
    ) -> None:
        """Requests a sequence, and runs the workers."""
        worker.send(Generate(id, 1, sequence(prompt, **params)))
        self.run(turns)

    def hand_off(self, prefill: Worker, decode: Worker, wanted: Sequence, turns: int = 0, **which: Any) -> None:
        """Sends both workers the frames of their gateway, and runs them."""
        which = {"id": "r", "attempt": 1, "room": 99} | which
        decode.send(Decode(**which, sequence=wanted, source=prefill.peer))
        prefill.send(Prefill(**which, sequence=wanted, to=decode.peer))
        self.run(turns)

    def migrate(
        self, old: Worker, new: Worker, known: Sequence, room: int = 55, attempt: int = 2, id: str = "r"
    ) -> None:
        """Sends both workers the frames of their gateway."""
        old.send(Handoff(id, attempt, room, new.peer))
        new.send(Decode(id, attempt, room, known, old.peer))

    def check_done(self) -> None:
        """Nothing failed, and nothing is left, which is reported a moment later."""
        for worker in self.workers:
            assert (worker.failures(), worker.used, worker.scheduler.idle) == ([], 0, True)
        self.run(3)
        assert all(worker.status.idle for worker in self.workers)

    def __init__(self, network: Network | None = None, lease: float = 1e6) -> None:
        self.network = network or Network()
        self.lease = lease
        self.workers: list[Worker] = []

    def worker(
        self,
        name: str,
        *,
        runner: StepRunner | None = None,
        link: Link | bool = True,
        chunk: int = 8,
        blocks: int | None = None,
        step_turns: Callable[[], int] = lambda: 0,
        grammars: Compilations | None = None,
        adapters: SequenceOf[OfferedAdapter] = (),
        adapters_in_memory: int = 8,
        open_adapter: Callable[[AdapterEntry], OfferedAdapter] | None = None,
        staged: tuple[int, int, float] | None = None,
        profiler: StepProfiler | None = None,
        slices: TimeSlices | None = None,
        files: Path | None = None,
        most_files: int = 64,
        open_disk: Callable[[BlockFolder, Callable[[int], memoryview]], DiskThread] = DiskThread,
        on_node: bool = False,
        compute: Compute | None = None,
        **limits: int,
    ) -> Worker:
        """`staged`, for an arena that its link does not reach: landing slots, the ring's, and how late copies are.
        Workers `on_node` read each other's arenas. Without `compute`, steps are computed when they are started."""
        ours, theirs = socket.socketpair()
        runner, epoch = runner or self.make_runner(), f"epoch-{name}"
        windows, block_size = runner.layout.windows, runner.layout.block_size
        given = {**LIMITS, "chunk_tokens": chunk, "windows": windows, **limits}
        chosen = SchedulerLimits("unified", block_size, **given)
        tiers = TierSizes(runner.arena.host.count, most_files if files else 0)
        pool = BlockPool(blocks or runner.num_blocks, EventLog(epoch), windows, block_size, tiers)
        scheduler = Scheduler(chosen, pool, runner.kv_revision)
        folder = BlockFolder.open(files, REVISION, runner.layout.block_bytes) if files else None
        if folder is not None:
            pool.disk.adopt(folder.contents(), folder.refused)
        memory = ArenaMemory(runner.arena.blocks, runner.num_blocks)
        slots = StagedArena(memory, self.network, Random(1), *staged) if staged else None
        if link is True:
            reached = slots.memory if slots else memory
            link = MemoryLink(self.network, name, reached.address, reached.length)
        staging, first_blocks = slots.staging if slots else None, chosen.sizes.first_blocks
        node = NodeMemory()
        if on_node:
            copies = LateStream(self.network, self.network.random, 2.0)
            neighbours = LateNeighbours(self.network, epoch, memory, closed=0.2)
            node = NodeMemory(neighbours, LatePulls(self.network, memory, copies))
        arena = TransferArena(memory, block_size, staging, first_blocks=first_blocks, node=node)
        identity = TransferIdentity(name, epoch, runner.kv_revision, str(runner.layout), "secret")
        policy = TransferPolicy(lease=self.lease)
        agent = TransferAgent(link, arena, identity, self.network.clock, policy) if link else None
        pulse, compute = Pulse(self.network.clock), compute or InlineCompute(step_turns)
        resident = ResidentAdapters(adapters, adapters_in_memory, scheduler.adapters)
        parts = CoreParts(
            compute,
            runner,
            scheduler,
            agent,
            grammars or Compilations(None),
            resident,
            AdapterCatalog(resident, open_adapter, self.network.clock) if open_adapter else None,
            Profiling(compute, profiler or NoProfiler(), self.network.clock),
            slices or OwnCores(),
            self.network.clock,
            open_disk(folder, runner.arena.host.slot) if folder is not None else None,
        )
        core = Core(ServerChannel(theirs), parts, pulse)
        peer = Peer(name, epoch, link.address if link else b"")
        worker = Worker(core, ours, scheduler, agent, runner, peer, pulse)
        worker.send(joined=(GATEWAY,))
        self.workers.append(worker)
        return worker

    def run(self, turns: int = 60) -> None:
        """Every worker's turns, a second apart, with everything checked after each."""
        for _ in range(turns):
            self.network.run(self.network.now + 1)
            for worker in self.workers:
                worker.turn()
                worker.check()

    def close(self) -> None:
        for worker in self.workers:
            worker.end.close()
            if worker.agent is not None:
                worker.agent.close()


@pytest.fixture(scope="session")
def make_token_runner() -> type[TokenRunner]:
    return TokenRunner


@pytest.fixture(scope="session")
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture
def make_runner(request: pytest.FixtureRequest) -> Callable[[], StepRunner]:
    """Runners of workers; indirectly "windows": with groups of layers that keep a window."""
    return WindowRunner if getattr(request, "param", "") == "windows" else TokenRunner


@pytest.fixture
def world(make_runner: Callable[[], StepRunner]) -> Iterator[World]:
    made = World()
    made.make_runner = make_runner
    yield made
    made.close()


@pytest.fixture(scope="session")
def shifting_runner(make_token_runner: type[TokenRunner]) -> type[TokenRunner]:
    return shifting(make_token_runner)


@pytest.fixture
def adapted(world: World, shifting_runner: type[TokenRunner]) -> Adapted:
    return Adapted(world, shifting_runner)
