"""Loads a model that several ranks compute."""

import os
from collections.abc import Sequence

from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.sharded import shared_memory
from legato_engine.backends.sharded.rank import Rank
from legato_engine.models import registry
from legato_engine.models.llama import Llama
from legato_engine.runner.arena import Arena
from legato_engine.runner.interface import Progress
from legato_engine.runner.plan import RunnerOptions, RunnerPlan
from legato_engine.runner.ranks import parts
from legato_engine.runner.ranks.first import FirstRank, OtherRanks
from legato_engine.runner.ranks.messages import LoadPart
from legato_engine.weights.checkpoint import Checkpoint


def lead(
    checkpoint: Checkpoint, plan: RunnerPlan, options: RunnerOptions, room: Room, arena: Arena, report: Progress
) -> tuple[FirstRank, Llama]:
    """Starts the other ranks, which load while this process loads the first rank's part, and seals the arena.

    Raises EngineError, also of other ranks."""
    memory, config = shared_memory.make(options.tensor), checkpoint.config.serving(plan.sizes.max_length)
    try:
        others = OtherRanks(_loads(checkpoint, plan, options, room, arena, memory))
        part = parts.make(
            checkpoint, plan.formats, Rank(0, options.tensor), room, memory, lambda share: report("weights", share)
        )
    finally:
        os.close(memory)
    backend = FirstRank(part, others)
    model = registry.model_class(config)(config, backend)
    backend.others_nbytes = others.wait_loaded(lambda: report("weights", 1.0))
    arena.seal(shared=options.shared)
    others.watch()
    return backend, model


def _loads(
    checkpoint: Checkpoint, plan: RunnerPlan, options: RunnerOptions, room: Room, arena: Arena, memory: int
) -> Sequence[LoadPart]:
    assert arena.file is not None
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
            num_blocks=arena.num_blocks,
            arena=arena.file.fd,
            memory=memory,
            versions=parts.versions(),
        )
        for index in range(1, options.tensor)
    ]
