"""Sums over the GPUs of a node in Triton: each rank writes its numbers to memory that all ranks can read, and reads the
numbers of all others. See one-shot all-reduce in TensorRT-LLM and vLLM.

A program has two slots, which it uses alternately; it writes to a slot again only after the same program of all ranks
has arrived at the sum in between. It counts its sums by itself, so that a CUDA graph can be replayed.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration


@triton.jit(do_not_specialize=["count", "most"])
def _add_ranks(
    x,  # [count]
    slots,  # int64 [RANKS]: addresses of each rank's slots, of 4 · TILE bytes, [2, most]
    arrivals,  # int64 [RANKS]: addresses of each rank's counters, int32 [programs]
    sums,  # int32 [programs]: this rank's sums so far
    count,
    most,  # programs
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    TILE: tl.constexpr,
):
    program = tl.program_id(0)
    at = program * TILE + tl.arange(0, TILE)
    inside = at < count
    number = tl.load(sums + program) + 1
    slot = ((number % 2) * most + program).to(tl.int64) * (4 * TILE)
    own = (tl.load(slots + RANK) + slot).to(tl.pointer_type(x.dtype.element_ty))
    tl.store(own + tl.arange(0, TILE), tl.load(x + at, mask=inside), mask=inside)
    tl.debug_barrier()  # all threads have written
    flag = tl.load(arrivals + RANK).to(tl.pointer_type(tl.int32)) + program
    tl.atomic_xchg(flag, number, sem="release", scope="sys")
    total = tl.zeros([TILE], tl.float32)
    for rank in tl.static_range(RANKS):
        other = tl.load(arrivals + rank).to(tl.pointer_type(tl.int32)) + program
        while tl.atomic_add(other, 0, sem="acquire", scope="sys") < number:
            pass
        tl.debug_barrier()
        numbers = (tl.load(slots + rank) + slot).to(tl.pointer_type(x.dtype.element_ty))
        total += tl.load(numbers + tl.arange(0, TILE), mask=inside, other=0.0, volatile=True).to(tl.float32)
    tl.store(x + at, total.to(x.dtype.element_ty), mask=inside)
    tl.store(sums + program, number)


def add_ranks(
    x: torch.Tensor, slots: torch.Tensor, arrivals: torch.Tensor, sums: torch.Tensor, rank: int, config: Configuration
) -> None:
    """Replaces x, contiguous and in floats, with the sum over ranks, which is computed in the order of ranks.

    sums int32 [most] has a counter for each program. slots, arrivals int64 [ranks] are addresses of each rank's memory:
    two slots of 4 · TILE bytes for each program, and int32 [most] counters. Counters are 0 at first. Tile: TILE, the
    numbers of a program.
    """
    programs = triton.cdiv(x.numel(), config.tiles["TILE"])
    assert programs <= len(sums)
    _add_ranks[(programs,)](
        x, slots, arrivals, sums, x.numel(), len(sums), RANK=rank, RANKS=len(slots), **config.options
    )
