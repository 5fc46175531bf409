"""Loads a model that several ranks compute."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.sharded import device_handles, shared_memory
from legato_engine.backends.sharded.peer_memory import ONE_SHOT
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.sum_group import nccl_version
from legato_engine.models import registry
from legato_engine.models.llama import Llama
from legato_engine.runner.arena import Arena
from legato_engine.runner.interface import Progress
from legato_engine.runner.plan import RunnerOptions, RunnerPlan
from legato_engine.runner.ranks import parts
from legato_engine.runner.ranks.first import FirstArena, FirstRank, OtherRanks
from legato_engine.runner.ranks.messages import Connect, Join, LoadPart, ToRank, TryGroup, UseGroup
from legato_engine.runner.ranks.parts import Exchange
from legato_engine.weights.checkpoint import Checkpoint


class ArenaSizes(NamedTuple):
    """Blocks of an arena, and of the host's memory for evicted ones."""

    num_blocks: int
    host_slots: int


class Ranked(NamedTuple):
    """The first rank's layers and arena. `sums` describes how GPUs add large tensors; empty if they have no choice."""

    backend: FirstRank
    model: Llama
    arena: Arena
    sums: str


def lead(
    checkpoint: Checkpoint, plan: RunnerPlan, options: RunnerOptions, room: Room, sizes: ArenaSizes, report: Progress
) -> Ranked:
    """Starts the other ranks, which load while this process loads the first rank's part.

    On CPUs, all ranks have one arena. Raises EngineError, also of other ranks."""
    rank, gpu, memory = Rank(0, options.tensor), plan.gpu, shared_memory.make(options.tensor)
    config = checkpoint.config.serving(plan.sizes.max_length)
    shared = None
    if gpu is None:
        shared = Arena(plan.layout, sizes.num_blocks, torch.device("cpu"), sizes.host_slots, for_ranks=True)
    try:
        others = OtherRanks(_loads(checkpoint, plan, options, room, sizes, shared, memory))
        exchange = parts.open_exchange(rank, memory, gpu, room, config.hidden_size)
    finally:
        os.close(memory)
    part = parts.make(checkpoint, plan.formats, rank, room, exchange, lambda share: report("weights", share))
    backend = FirstRank(part, others)
    model = registry.model_class(config)(config, backend)
    if gpu is not None:
        first = FirstArena(rank.layout(plan.layout), sizes.num_blocks, gpu.place, sizes.host_slots, others)
    answers = others.wait_loaded(lambda: report("weights", 1.0))
    backend.others_nbytes = sum(answer.nbytes for answer in answers)
    if shared is not None:
        shared.seal(shared=options.shared)
    others.watch()
    if exchange.peers is not None:
        handles = [exchange.peers.export(), *[answer.peer for answer in answers]]
        others.send(Connect(handles))
        exchange.peers.open(handles)
        arenas = [device_handles.opened(answer.arena) for answer in answers]
        first.connect(arenas, min(rank.count, config.kv_heads))
    return Ranked(backend, model, shared or first, join_group(exchange, others))


def join_group(exchange: Exchange, others: OtherRanks) -> str:
    """Lets a group add large tensors if all ranks can join it and then add. Describes the result, see `Ranked`."""
    if exchange.peers is None or exchange.group is None:
        return ""
    # Stays open: the group may read it later. No other pod or user can open it.
    store = f"/proc/{os.getpid()}/fd/{os.memfd_create('legato-group')}"
    steps: list[tuple[ToRank, Callable[[], str]]]
    steps = [(Join(store), partial(exchange.group.join, store)), (TryGroup(), exchange.group.try_sum)]
    for message, own in steps:
        others.send(message)
        reasons = [*filter(None, [own()]), *others.wait_joined()]
        if reasons:
            return f"sums of any size by one-shot kernels, as NCCL cannot be used: {'; '.join(reasons)}"
    others.send(UseGroup())
    exchange.peers.group = exchange.group
    return f"sums above {ONE_SHOT >> 10} KiB by NCCL {nccl_version()}"


def _loads(
    checkpoint: Checkpoint, plan: RunnerPlan, options: RunnerOptions, room: Room, sizes: ArenaSizes,
    shared: Arena | None, memory: int,
) -> Sequence[LoadPart]:  # fmt: skip
    on_gpus = plan.gpu is not None and plan.gpu.place.type == "cuda"
    return [
        LoadPart(
            path=checkpoint.path,
            quantization=options.quantization,
            formats=plan.formats,
            rank=Rank(index, options.tensor),
            threads=options.threads,
            room=room,
            max_length=plan.sizes.max_length,
            layout=plan.layout,
            num_blocks=sizes.num_blocks,
            memory=memory,
            versions=parts.versions(),
            arena=shared.file.fd if shared and shared.file else None,
            device=f"cuda:{index}" if on_gpus else "cpu",
            host_slots=sizes.host_slots,
            files=parts.files(checkpoint),
        )
        for index in range(1, options.tensor)
    ]
