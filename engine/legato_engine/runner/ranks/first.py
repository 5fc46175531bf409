"""The first rank: starts the processes of the others, and sends them each step before it computes its part."""

import os
import pickle
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Event, Lock, Thread
from typing import NoReturn

import torch

from legato_engine.backends.interface import Forward as ComputeForward
from legato_engine.backends.sharded.backend import ShardedBackend
from legato_engine.backends.sharded.collectives import OfGpuSteps
from legato_engine.errors import AdapterFailed, StartFailed
from legato_engine.kvcache.layout import KVLayout
from legato_engine.kvcache.moves import Move
from legato_engine.layers.inputs import AdaptedTokens, Ints, StepInputs
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.runner.arena import Arena
from legato_engine.runner.ranks import messages
from legato_engine.runner.ranks.parts import RankPart

LOST = 3  # exit status of a core that has lost a rank: it can start again
_ANSWER = 120.0  # seconds in which a rank takes an adapter over: no step is late meanwhile, so the server sees no stall


class OtherRanks:
    """The processes of all ranks but the first."""

    def __init__(self, loads: Sequence[messages.LoadPart]) -> None:
        """Starts a process for each of `loads`. It ends with the calling thread."""
        self._sending = Lock()
        self._closing = Event()
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for load in loads:
            mine, other = Pipe()
            arguments = [sys.executable, "-m", "legato_engine.runner.ranks", str(other.fileno()), str(os.getpid())]
            passed = [each for each in (other.fileno(), load.arena, load.memory) if each is not None]
            self._processes.append(subprocess.Popen(arguments, pass_fds=passed, stdin=subprocess.DEVNULL))
            other.close()
            self._connections.append(mine)
            self._send(len(self._connections), mine, pickle.dumps(load))
        self.close = weakref.finalize(self, _end, self._closing, self._processes, self._connections)

    def wait_loaded(self, beat: Callable[[], None]) -> Sequence[messages.Loaded]:
        """Returns the answers of these ranks once all have loaded. Calls `beat` only when one made progress: the server
        gives up a start in which a rank is stuck. Raises StartFailed."""
        answers = []
        for rank, connection in enumerate(self._connections, 1):
            while isinstance(answer := self._receive(rank, connection), messages.LoadProgress):
                beat()
            if isinstance(answer, messages.LoadFailed):
                raise StartFailed(f"rank {rank}: {answer.reason}")
            assert isinstance(answer, messages.Loaded)
            answers.append(answer)
        return answers

    def watch(self) -> None:
        """Ends this process when one of the others has ended: without it, no step can be computed."""
        for rank, process in enumerate(self._processes, 1):
            Thread(target=_watch, args=(rank, process, self._closing), name=f"rank {rank}", daemon=True).start()

    def send(self, message: messages.ToRank) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            for rank, connection in enumerate(self._connections, 1):
                self._send(rank, connection, data)

    def wait_answers(self) -> None:
        """Waits for an answer of every rank. Raises AdapterFailed."""
        answers = [self._receive(rank, connection, _ANSWER) for rank, connection in enumerate(self._connections, 1)]
        for rank, answer in enumerate(answers, 1):
            if isinstance(answer, messages.AddFailed):
                raise AdapterFailed(f"rank {rank}: {answer.reason}")

    def wait_joined(self) -> Sequence[str]:
        """Returns the reasons why these ranks have not joined the group, or not added with it."""
        answers = [self._receive(rank, connection, _ANSWER) for rank, connection in enumerate(self._connections, 1)]
        reasons = [answer.reason for answer in answers if isinstance(answer, messages.Joined)]
        return [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons, 1) if reason]

    def _send(self, rank: int, connection: Connection, data: bytes) -> None:
        try:
            connection.send_bytes(data)
        except OSError:
            _end_too(rank, self._processes[rank - 1].wait())

    def _receive(self, rank: int, connection: Connection, seconds: float | None = None) -> messages.FromRank:
        """Ends a rank without an answer in this time, and with it the core."""
        process = self._processes[rank - 1]
        if not connection.poll(seconds):
            print(f"rank {rank} has not answered for {seconds} s", file=sys.stderr, flush=True)
            process.kill()
        try:
            answer: messages.FromRank = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            _end_too(rank, process.wait())
        return answer


def _watch(rank: int, process: "subprocess.Popen[bytes]", closing: Event) -> None:
    status = process.wait()
    if not closing.is_set():
        _end_too(rank, status)


def _end_too(rank: int, status: int) -> NoReturn:
    print(f"rank {rank} ended with status {status}; the core ends, too", file=sys.stderr, flush=True)
    os._exit(LOST)


def _end(closing: Event, processes: Sequence["subprocess.Popen[bytes]"], connections: Sequence[Connection]) -> None:
    closing.set()
    for connection in connections:
        connection.close()
    for process in processes:
        process.kill()
        process.wait()


class RankedAdapter(LowRankAdapter):
    """An adapter by its number, and the first rank's part of it."""

    def __init__(self, number: int, own: LowRankAdapter, ranks: int) -> None:
        self.number = number
        self.own = own
        self.nbytes = own.nbytes * ranks


class FirstRank(ShardedBackend):
    """The first rank's part of a model."""

    def __init__(self, part: RankPart, others: OtherRanks) -> None:
        super().__init__(*part)
        self._others = others
        self._ranks = part.rank.count
        self._captures = isinstance(part.collectives, OfGpuSteps)
        self._numbers = count()
        self._adding = Lock()
        self._freed = deque[int]()  # numbers of adapters that the other ranks still have
        self.others_nbytes = 0

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.others_nbytes

    def adapter(self, pairs: Mapping[str, Pair]) -> RankedAdapter:
        with self._adding:
            number = next(self._numbers)
            self._drop_freed()
            self._others.send(messages.AddAdapter(number, pairs))
            with ExitStack() as failed:
                failed.callback(self._freed.append, number)
                try:
                    own = super().adapter(pairs)
                finally:
                    self._others.wait_answers()  # in any case: the next adapter must not take these answers for its own
                failed.pop_all()
        adapter = RankedAdapter(number, own, self._ranks)
        # Not sent here: a garbage collection may run in a thread that is sending.
        weakref.finalize(adapter, self._freed.append, number).atexit = False
        return adapter

    def _drop_freed(self) -> None:
        with suppress(IndexError):  # until it is empty, which another thread may do as well
            while True:
                self._others.send(messages.DropAdapter(self._freed.popleft()))

    def logits(self, forward: ComputeForward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        numbered = tuple([(_ranked(each.adapter).number, each.tokens) for each in inputs.adapted])
        drawn = inputs.drawn
        sent = replace(inputs, adapted=(), drawn=None)
        self._drop_freed()
        self._others.send(messages.Forward(sent, numbered, 0 if drawn is None else len(drawn)))
        if drawn is not None:
            drawn = self._collectives.share(drawn)
        own = tuple([AdaptedTokens(_ranked(each.adapter).own, each.tokens) for each in inputs.adapted])
        return super().logits(forward, replace(inputs, adapted=own, drawn=drawn), arena)

    def capture(self, forward: ComputeForward, arena: torch.Tensor) -> None:
        if self._captures:
            self._others.send(messages.Capture())
        super().capture(forward, arena)

    def capture_missing(self, forward: ComputeForward, arena: torch.Tensor) -> None:
        if self._captures:
            self._others.send(messages.Capture(missing=True))
        super().capture_missing(forward, arena)

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        self._others.send(messages.LogitsOf(tokens))
        return super().logits_of(tokens)


class FirstArena(Arena):
    """The first rank's part of an arena whose parts lie on several GPUs. What it copies, the other ranks copy, too."""

    def __init__(
        self, layout: KVLayout, num_blocks: int, device: torch.device, host_slots: int, others: OtherRanks
    ) -> None:
        super().__init__(layout, num_blocks, device, host_slots)
        self._others = others

    def connect(self, others: Sequence[torch.Tensor], parts: int) -> None:
        """`others` are the arenas of the other ranks, which together have `parts` different parts of each block."""
        arenas = [self.blocks, *others]
        copies = len(arenas) // parts
        self.parts = [arenas[first : first + copies] for first in range(0, len(arenas), copies)]

    def copy(self, source: int, target: int) -> None:
        self._others.send(messages.CopyBlocks(copies=[(source, target)]))
        super().copy(source, target)

    def move(self, moves: Sequence[Move]) -> None:
        self._others.send(messages.CopyBlocks(moves))
        super().move(moves)


def _ranked(adapter: LowRankAdapter) -> RankedAdapter:
    assert isinstance(adapter, RankedAdapter)
    return adapter
