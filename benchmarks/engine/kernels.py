"""Measures the kernels of a processor against its limits: attention of prompts and of decoding rows, and linear
layers, in the sizes of SmolLM2-135M. The limits, a loop of multiply-adds in registers and one that reads memory, are
measured in the same process; for kernels of AMX the first is a loop of products of tiles. The share of copying, which
reads and writes, is given in addition to the read bandwidth.

python benchmarks/engine/kernels.py --threads 2
python benchmarks/engine/kernels.py --threads 2 --amx

With one thread, times are its CPU time, which other work on the machine disturbs least; with more, wall clock.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch
from numba import njit, prange

from legato_engine import processor
from legato_engine.backends.cpu import kv_factors
from legato_engine.backends.cpu.linear_bf16 import LinearBf16
from legato_engine.backends.cpu.linear_float32 import LinearFloat32, Scratch
from legato_engine.backends.cpu.numerics import Float32, Tiles
from legato_engine.kernels import paths
from legato_engine.kernels.cpu.linear.bf16_tiles import SHAPES
from legato_engine.kernels.cpu.simd import tiles
from legato_engine.kernels.cpu.simd.vector import (
    add,
    address,
    load,
    multiply_add,
    store,
    tile_configure,
    tile_dot_0,
    tile_dot_1,
    tile_dot_2,
    tile_dot_3,
    tile_release,
    zero,
)
from legato_engine.kvcache.layout import DTYPE_BYTES, KVLayout
from legato_engine.runner import inputs
from legato_engine.runner.arena import Arena
from legato_engine.scheduler.batch import Row

HEADS, KV_HEADS, DIM, BLOCK = 9, 3, 64, 16
LINEAR = ((576, 960), (576, 576), (576, 3072), (1536, 576))  # of a layer: inputs, outputs
LAYERS = 12  # of an arena that no cache holds
TURNS = 1_000_000


@njit
def multiply_adds(at):
    """TURNS times 16 products of 16 lanes, none of which waits for another."""
    a, b, c, d, e, f, g, h = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
    i, j, k, m, n, o, p, q = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
    x, y = load(at), load(at + 64)
    for _ in range(TURNS):
        a, b, c, d = multiply_add(x, y, a), multiply_add(x, y, b), multiply_add(x, y, c), multiply_add(x, y, d)
        e, f, g, h = multiply_add(x, y, e), multiply_add(x, y, f), multiply_add(x, y, g), multiply_add(x, y, h)
        i, j, k, m = multiply_add(x, y, i), multiply_add(x, y, j), multiply_add(x, y, k), multiply_add(x, y, m)
        n, o, p, q = multiply_add(x, y, n), multiply_add(x, y, o), multiply_add(x, y, p), multiply_add(x, y, q)
    for value in (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q):
        x = add(x, value)
    store(at, x)


@njit(parallel=True)
def multiply_adds_everywhere(rooms):
    for thread in prange(len(rooms)):
        multiply_adds(address(rooms[thread]))


@njit(parallel=True)
def multiply_tiles_everywhere(shapes, rooms):
    """TURNS times products of tiles in registers, 16 × 16 × 32 for each of four sums."""
    for thread in prange(len(rooms)):
        tile_configure(address(shapes))
        room = address(rooms[thread])
        tiles.zero_32()
        tiles.add_32(room, room + 1024, 64, room, room + 1024)
        for _ in range(TURNS):
            tile_dot_0()
            tile_dot_1()
            tile_dot_2()
            tile_dot_3()
        tiles.store_32(room, 128)
        tile_release()


@njit(parallel=True)
def read(memory, rooms):
    """Each thread reads its part of `memory`."""
    part = memory.nbytes // len(rooms) // 256 * 256
    for thread in prange(len(rooms)):
        a, b, c, d = zero(), zero(), zero(), zero()
        begin = address(memory) + thread * part
        for at in range(begin, begin + part, 256):
            a, b = add(a, load(at)), add(b, load(at + 64))
            c, d = add(c, load(at + 128)), add(d, load(at + 192))
        store(address(rooms[thread]), add(add(a, b), add(c, d)))


@dataclass(frozen=True)
class Machine:
    threads: int
    repeats: int
    kv: str
    numerics: Float32 | Tiles

    @property
    def amx(self) -> bool:
        return isinstance(self.numerics, Tiles)

    def seconds(self, work: Callable[[], object]) -> float:
        """The shortest of some runs, after one that warms up."""
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        work()
        times = []
        for _ in range(self.repeats):
            begin = clock()
            work()
            times.append(clock() - begin)
        return min(times)

    def products(self) -> float:
        """Floating-point operations a second, of all threads."""
        if self.amx:
            sums = np.zeros((self.threads, 32, 32), np.float32)
            seconds = self.seconds(lambda: multiply_tiles_everywhere(SHAPES, sums))
            return TURNS * 2 * 32 * 32 * 32 * self.threads / seconds
        rooms = np.zeros((self.threads, 64), np.float32)
        return TURNS * 16 * 32 * self.threads / self.seconds(lambda: multiply_adds_everywhere(rooms))

    def bandwidth(self) -> float:
        """Bytes read a second, by all threads."""
        rooms, memory = np.zeros((self.threads, 64), np.float32), np.ones(1 << 26, np.float32)
        return memory.nbytes / self.seconds(lambda: read(memory, rooms))

    def copied(self) -> float:
        """Bytes read and written a second while memory is copied, by all threads."""
        source, target = torch.ones(1 << 26), torch.ones(1 << 26)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))

    def attention(self, rows: list[tuple[int, int]], layers: int) -> float:
        """Seconds for one layer; `rows` are (start, tokens)."""
        counts = [-(-(start + count) // BLOCK) for start, count in rows]
        arena = Arena(KVLayout(layers, KV_HEADS, BLOCK, DIM, self.kv), sum(counts), torch.device("cpu"))
        arena.blocks.uniform_(-1, 1)
        blocks = iter(torch.randperm(sum(counts)).tolist())
        batch = [
            Row([0] * row[1], row[0], [next(blocks) for _ in range(n)]) for row, n in zip(rows, counts, strict=True)
        ]
        step = inputs.build(batch, BLOCK)
        work, held = self.numerics.work(step, HEADS // KV_HEADS), self.numerics.arena_view(arena.blocks)
        qkv = np.random.default_rng(0).standard_normal((len(step.tokens), HEADS + 2 * KV_HEADS, DIM), np.float32)
        out = np.zeros((len(qkv), HEADS, DIM), self.numerics.inputs)
        factors, sinks = kv_factors.from_scales(layers, KV_HEADS, None).reading, np.empty(0, np.float32)

        def all_layers() -> None:
            for layer in range(layers):
                self.numerics.attend(qkv, work, step.tables, 0, held, layer, factors, sinks, out)

        return self.seconds(all_layers) / layers

    def linear(self, rows: int) -> float:
        """Seconds for the linear layers of one layer of the model."""
        total = 0.0
        for width, outputs in LINEAR:
            weight = torch.randn(outputs, width)
            layer = (
                LinearBf16(paths.TILES, weight, None, None) if self.amx else LinearFloat32([weight], Scratch(), None)
            )
            x, out = np.ones((rows, width), self.numerics.inputs), np.zeros((rows, outputs), np.float32)
            total += self.seconds(lambda layer=layer, x=x, out=out: layer(x, rows, out))
        return total


def _show(what: str, seconds: float, amount: float, unit: str, limit: float) -> None:
    rate = amount / seconds
    print(f"{what:34} {seconds * 1e3:8.2f} ms {rate / 1e9:7.1f} {unit} {rate / limit:5.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kv", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--pairs", action="store_true", help="attention multiplies pairs of bfloat16 KV (AVX512-BF16)")
    parser.add_argument("--amx", action="store_true", help="kernels of AMX, whose KV is bfloat16")
    chosen = parser.parse_args()
    if chosen.amx and not processor.detect().amx:
        parser.error("--amx: this processor has no AMX that programs may use")
    numba.set_num_threads(chosen.threads)
    torch.set_num_threads(chosen.threads)
    numerics = Tiles(paths.TILES) if chosen.amx else Float32(paths.INT8_BF16 if chosen.pairs else paths.FLOAT32)
    machine = Machine(chosen.threads, chosen.repeats, "bfloat16" if chosen.amx else chosen.kv, numerics)
    products, bandwidth, copied = machine.products(), machine.bandwidth(), machine.copied()
    limits = f"{products / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s read, {copied / 1e9:.1f} GB/s copied"
    print(f"{chosen.threads} threads: {limits}")
    for start, count in ((512, 512), (3584, 512), (7680, 512), (0, 1024), (0, 4096), (0, 8192)):
        seen = sum(range(start + 1, start + count + 1))
        seconds = machine.attention([(start, count)], layers=1)
        _show(f"attention, {count} tokens from {start}", seconds, 4 * DIM * HEADS * seen, "GFLOP/s", products)
    for rows in (512, 1024):
        amount = 2 * rows * sum(width * outputs for width, outputs in LINEAR)
        _show(f"linear layers, {rows} rows", machine.linear(rows), amount, "GFLOP/s", products)
    for rows, context in ((1, 1024), (32, 1024)):
        seconds = machine.attention([(context - 1, 1)] * rows, LAYERS)
        amount = rows * context * KV_HEADS * DIM * 2 * DTYPE_BYTES[machine.kv]
        _show(f"attention, {rows} rows at {context}", seconds, amount, "GB/s read", bandwidth)
        _show("", seconds, amount, "GB/s copied", copied)


if __name__ == "__main__":
    main()
