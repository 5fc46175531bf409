"""One step on the device: its inputs, in memory whose address depends only on the step's size, as a CUDA graph needs
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.workspace import Room, Size
from legato_engine.backends.interface import Forward
from legato_engine.kernels.gpu.attention.attend import Work
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.low_rank import AdaptedRows
from legato_engine.kernels.gpu.step_inputs import expand
from legato_engine.layers.inputs import StepInputs

_Memory = TypeVar("_Memory", torch.Tensor, np.ndarray[Any, Any])

_ALIGNED = 4  # numbers; Triton compiles a kernel anew for a pointer that is not a multiple of 16 bytes


@dataclass(slots=True)
class CudaStep:
    """The inputs of layers. All arrays are int32."""

    size: Size
    tokens: torch.Tensor  # [tokens]
    positions: torch.Tensor  # [tokens]
    slots: torch.Tensor  # [groups, tokens], by group of layers; of padding −1
    starts: torch.Tensor  # [rows + 1]
    lengths: torch.Tensor  # [rows]
    sampled: torch.Tensor  # [samples]: indexes of tokens, then zeros
    tables: torch.Tensor  # [groups, rows, blocks]
    arena: torch.Tensor
    work: Work
    adapted: AdaptedRows | None  # None in steps without adapters, which launch fewer kernels
    planned: tuple[int | None] | None = None  # the window that `work` is planned for
    hidden: tuple[torch.Tensor, torch.Tensor] | None = None  # the head's inputs: last output, residual stream
    logits: torch.Tensor | None = None  # float32 [samples, vocab]

    def compute(self, forward: Forward) -> None:
        """Computes logits by `forward`, which calls all layers."""
        self.planned = None
        self.logits = forward(self)


class StepMemory:
    """The inputs of one step at a time, on the host and on the device: one copy transfers all of them, and the device
    derives positions, slots, and tokens that only it has."""

    def __init__(self, room: Room, device: Device, groups: int = 1) -> None:
        self._room = room
        self._groups = groups  # of layers
        size = _room_for(self._lengths(room.largest))
        self._device = device
        self._host = device.host(size)
        self._numpy = self._host.numpy()
        self._given = torch.zeros(size, dtype=torch.int32, device=device.place)
        self._derived = torch.zeros(_room_for([room.tokens] * (2 + groups)), dtype=torch.int32, device=device.place)
        self._drawn = torch.zeros(room.tokens, dtype=torch.int32, device=device.place)
        self._expanding = choose("step_inputs", {"block_size": room.block_size}, device.chip)
        self._wait_copied = device.mark()

    def fill(self, inputs: StepInputs, size: Size) -> None:
        """Takes the inputs of a step, which may be smaller than `size`."""
        self._wait_copied()
        tokens, starts, lengths, sampled, tables = self._given_in(self._numpy, size)
        count, rows, blocks = len(inputs.tokens), len(inputs.lengths), inputs.tables.shape[1]
        for array, values, padding in (
            (tokens, inputs.tokens, 0),
            (starts, inputs.starts, count),
            (lengths, inputs.lengths, 0),
            (sampled, inputs.sampled, 0),
        ):
            array[: len(values)] = values
            array[len(values) :] = padding
        by_group = self._by_group(tables, size.rows * self._room.blocks)
        for of_group, given in zip(by_group, (inputs.tables, *[each.tables for each in inputs.windows]), strict=True):
            of_group.reshape(size.rows, -1)[:rows, :blocks] = given
        used = _room_for(self._lengths(size))
        self._given[:used].copy_(self._host[:used], non_blocking=True)
        self._wait_copied = self._device.mark()
        if inputs.drawn is not None:
            self._drawn[: len(inputs.drawn)].copy_(inputs.drawn)

    def step(self, size: Size, arena: torch.Tensor, work: Work, adapted: AdaptedRows | None) -> CudaStep:
        """A step of that size. After `fill` and `expand`, it has their inputs."""
        tokens, positions, slots = self._expanded(size)
        _, starts, lengths, sampled, flat = self._given_in(self._given, size)
        tables = self._tables(flat, size)
        return CudaStep(size, tokens, positions, slots, starts, lengths, sampled, tables, arena, work, adapted)

    def expand(self, size: Size) -> None:
        """Derives the inputs that `fill` did not copy. Every step of a size launches the same."""
        given, starts, lengths, _, flat = self._given_in(self._given, size)
        tables = self._tables(flat, size)
        expand(
            given, starts, lengths, tables, self._drawn, *self._expanded(size), self._room.block_size, self._expanding
        )

    def _expanded(self, size: Size) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, positions, slots [groups, tokens]."""
        slots = self._groups * _aligned(size.tokens)
        tokens, positions, flat = _sections(self._derived, [size.tokens, size.tokens, slots])
        return tokens, positions, self._by_group(flat, size.tokens)

    def _given_in(self, memory: _Memory, size: Size) -> list[_Memory]:
        return _sections(memory, self._lengths(size))

    def _lengths(self, size: Size) -> list[int]:
        """The lengths of a step's arrays, in their order."""
        tables = self._groups * _aligned(size.rows * self._room.blocks)
        return [size.tokens, size.rows + 1, size.rows, size.samples, tables]

    def _tables(self, flat: torch.Tensor, size: Size) -> torch.Tensor:
        """Tables [groups, rows, blocks]."""
        by_group = self._by_group(flat, size.rows * self._room.blocks)
        return by_group.view(self._groups, size.rows, self._room.blocks)

    def _by_group(self, flat: _Memory, count: int) -> _Memory:
        """The first `count` numbers of each group, whose part begins at a multiple of 16 bytes."""
        return flat.reshape(self._groups, -1)[:, :count]


def _sections(memory: _Memory, lengths: Sequence[int]) -> list[_Memory]:
    """Arrays of these lengths, each beginning at a multiple of 16 bytes: steps of any size then launch the kernels
    that the warm-up compiled."""
    begins = accumulate(map(_aligned, lengths), initial=0)
    return [memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=False)]


def _room_for(lengths: Sequence[int]) -> int:
    """The count of numbers that such sections take."""
    return sum(map(_aligned, lengths))


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
