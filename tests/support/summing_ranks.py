"""Ranks in processes that add tensors by a group, over Gloo."""

import os
from functools import partial
from multiprocessing import get_context
from select import select
from threading import Event, Thread
from types import SimpleNamespace

import torch
import torch.distributed as dist

from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.sum_group import SumGroup
from legato_engine.runner.ranks import first

RANKS, ROOM = 3, 20_000
SUMS = (  # and the operations of the group, which has room for 20,004 numbers of 2 bytes
    (3, "float32", 1),
    (10_002, "float32", 1),
    (10_005, "float32", 2),
    (20_004, "float16", 1),
    (60_000, "bfloat16", 3),
)
PATIENCE = 60  # seconds


def run():
    """Returns all ranks' reports of `join` and of each of SUMS, the exit status of the first one, which adds while the
    last one dies, and the reports of the other one, which adds afterwards."""
    torch.set_num_threads(1)  # a fork has no other threads
    store = f"/proc/{os.getpid()}/fd/{os.memfd_create('group')}"
    context = get_context("fork")
    lines = [context.Pipe() for _ in range(RANKS)]
    pipes = [ours for ours, _ in lines]
    ranks = [
        context.Process(target=_compute, args=(index, store, theirs), daemon=True)
        for index, (_, theirs) in enumerate(lines)
    ]
    try:
        for rank in ranks:
            rank.start()
        joined = [_received(pipe) for pipe in pipes]
        sums = [[_received(pipe) for pipe in pipes] for _ in SUMS]
        pipes[0].send(ranks[-1].pid)
        _received(pipes[0])
        ranks[-1].kill()
        ranks[0].join(PATIENCE)
        pipes[1].send(None)
        return joined, sums, ranks[0].exitcode, [_received(pipes[1]) for _ in range(2)]
    finally:
        for rank in ranks:
            rank.kill()


def _compute(index, store, pipe):
    """Joins, adds SUMS, and adds again when asked; the first rank watches the process whose number it receives."""
    group = SumGroup(Rank(index, RANKS), torch.device("cpu"), ROOM)
    pipe.send(group.join(store) or group.try_sum())
    operations, move = [], dist.all_to_all_single
    dist.all_to_all_single = lambda *given: (operations.append(1), move(*given))
    with torch.inference_mode():
        for kind in SUMS:
            x = _numbers(index, *kind)
            group.add(x)
            pipe.send((torch.equal(x.view(torch.uint8), _total(*kind).view(torch.uint8)), len(operations)))
            operations.clear()
        if other := pipe.recv():
            process = SimpleNamespace(wait=partial(select, [os.pidfd_open(other)], [], []))
            Thread(target=first._watch, args=(RANKS - 1, process, Event())).start()
        pipe.send("adds")
        try:
            group.add(_numbers(index, RANKS, "float32"))
        except RuntimeError as error:
            pipe.send(type(error).__name__)
        Event().wait()  # as a kernel of NCCL waits


def _received(pipe):
    assert pipe.poll(PATIENCE), "a rank hangs"
    return pipe.recv()


def _numbers(rank, size, dtype, *_):
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(10 * size + rank))
    numbers[0] = -0.0
    return numbers.to(getattr(torch, dtype))


def _total(size, dtype, *_):
    """Added to 0.0 in the order of ranks, and rounded once."""
    sums = torch.zeros(size)
    for rank in range(RANKS):
        sums += _numbers(rank, size, dtype)
    return sums.to(getattr(torch, dtype))
