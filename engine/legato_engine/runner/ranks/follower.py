"""A rank other than the first: computes its part of each step that it receives."""

import mmap
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import assert_never

import numba
import torch

from legato_engine import memory, processor
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.sharded import device_handles
from legato_engine.backends.sharded.backend import ShardedBackend
from legato_engine.errors import EngineError, StartFailed
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import LowRankAdapter
from legato_engine.models import registry
from legato_engine.runner import backends, cores
from legato_engine.runner.arena import Arena
from legato_engine.runner.ranks import messages, parts
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights

Answer = Callable[[messages.FromRank], None]


class Follower:
    """Computes with a part of the weights, and with the arena of all ranks, or its own on its GPU."""

    def __init__(
        self, load: messages.LoadPart, checkpoint: Checkpoint, answer: Answer, gpu: Device | None = None
    ) -> None:
        """Raises EngineError."""
        if load.versions != parts.versions():
            raise StartFailed(f"it has {parts.versions()}; the first rank has {load.versions}")
        if load.files != parts.files(checkpoint):
            raise StartFailed(f"{checkpoint.path} changed while the worker started; start it again")
        self._answer = answer
        self._adapters: dict[int, LowRankAdapter] = {}
        self._exchange = parts.open_exchange(load.rank, load.memory, gpu, load.room, checkpoint.config.hidden_size)
        part = parts.make(
            checkpoint,
            load.formats,
            load.rank,
            load.room,
            self._exchange,
            lambda share: answer(messages.LoadProgress(share)),
        )
        self._backend = ShardedBackend(*part)
        self._collectives = part.collectives
        config = checkpoint.config.serving(load.max_length)
        self._forward = registry.model_class(config)(config, self._backend).logits
        checkpoint.release()
        self._place = gpu.place if gpu else torch.device("cpu")
        self._own: Arena | None = None
        if load.arena is None:
            layout = load.rank.layout(load.layout)
            self._own = Arena(layout, load.num_blocks, self._place, load.host_slots)
            self._arena = self._own.blocks
        else:
            mapped = mmap.mmap(load.arena, load.num_blocks * load.layout.block_bytes)
            arena = torch.frombuffer(mapped, dtype=torch.uint8).view(getattr(torch, load.layout.dtype))
            self._arena = arena.view(load.num_blocks, *load.layout.block_shape)

    @property
    def loaded(self) -> messages.Loaded:
        if self._exchange.peers is None:
            return messages.Loaded(self._backend.nbytes)
        return messages.Loaded(self._backend.nbytes, self._exchange.peers.export(), device_handles.export(self._arena))

    def handle(self, message: messages.ToRank) -> None:
        if isinstance(message, messages.Forward):
            self._compute(message)
        elif isinstance(message, messages.LogitsOf):
            self._backend.logits_of(message.tokens)
        elif isinstance(message, messages.Capture):
            capture = self._backend.capture_missing if message.missing else self._backend.capture
            capture(self._forward, self._arena)
        elif isinstance(message, messages.CopyBlocks):
            assert self._own is not None
            if message.moves:
                self._own.host.move(message.moves)
            for source, target in message.copies:
                self._own.copy(source, target)
        elif isinstance(message, messages.AddAdapter):
            Thread(target=self._add, args=(message,)).start()  # steps go on
        elif isinstance(message, messages.DropAdapter):
            self._adapters.pop(message.number, None)
        elif isinstance(message, messages.Connect):
            assert self._exchange.peers is not None
            self._exchange.peers.open(message.handles)
        elif isinstance(message, messages.Join):
            assert self._exchange.group is not None
            self._answer(messages.Joined(self._exchange.group.join(message.store)))
        elif isinstance(message, messages.TryGroup):
            assert self._exchange.group is not None
            self._answer(messages.Joined(self._exchange.group.try_sum()))
        elif isinstance(message, messages.UseGroup):
            assert self._exchange.peers is not None
            self._exchange.peers.group = self._exchange.group
        elif isinstance(message, messages.LoadPart):
            raise AssertionError("a rank loads once")
        else:
            assert_never(message)

    def _compute(self, message: messages.Forward) -> None:
        adapted = tuple([AdaptedTokens(self._adapters[number], tokens) for number, tokens in message.adapters])
        drawn = None
        if message.drawn:
            drawn = self._collectives.share(torch.zeros(message.drawn, dtype=torch.int32, device=self._place))
        self._backend.logits(self._forward, replace(message.inputs, adapted=adapted, drawn=drawn), self._arena)

    def _add(self, message: messages.AddAdapter) -> None:
        try:
            self._adapters[message.number] = self._backend.adapter(message.pairs)
        except Exception as error:  # the first rank waits for an answer, whatever happens
            self._answer(messages.AddFailed(f"{type(error).__name__}: {error}"))
        else:
            self._answer(message.number)


def run(connection: Connection, load: messages.LoadPart) -> int:
    """Loads, and computes steps until the first rank ends. Returns the exit status."""
    processor.guard_onednn(processor.detect())
    if load.threads is not None:
        torch.set_num_threads(load.threads)
        numba.set_num_threads(min(load.threads, numba.config.NUMBA_NUM_THREADS))
    answering = Lock()

    def answer(message: messages.FromRank) -> None:
        with answering, suppress(OSError):  # once the first rank has ended, the next message says so
            connection.send_bytes(pickle.dumps(message))

    try:
        with torch.inference_mode():
            gpu = backends.gpu(load.device)
            if gpu is not None:
                torch.cuda.set_device(gpu.place)  # Triton launches kernels on the current one
            follower = Follower(load, open_weights(load.path, load.quantization), answer, gpu)
    except EngineError as error:
        answer(messages.LoadFailed(str(error)))
        return 2
    cores.bind(load.rank)
    memory.give_back()
    answer(follower.loaded)
    with torch.inference_mode():
        while True:
            try:
                message = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return 0
            follower.handle(message)
