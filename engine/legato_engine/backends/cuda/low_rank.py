"""Adapters on the device, and the tokens of a step that use them.

Steps with adapters launch the same, whatever adapters and rows there are: the addresses of matrices are in a table of
each adapter, and the addresses of tables in the step's memory, whose own addresses depend only on the step's size. So a
graph that is captured with any adapter computes all of them, also adapters that are loaded later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.low_rank import LinearShape, count, numbered
from legato_engine.kernels.gpu import low_rank as kernels
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.low_rank import AdaptedRows, LowRankLayer
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import LowRankAdapter, Pair

_BYTES = 16  # matrices begin at multiples of it


@dataclass(frozen=True, slots=True)
class CudaLowRank:
    """The update of one linear layer by the adapters of a step."""

    layer: LowRankLayer
    shrinking: Configuration
    expanding: Configuration

    def __call__(self, x: torch.Tensor, out: torch.Tensor, rows: AdaptedRows) -> None:
        kernels.add(x, out, self.layer, rows, self.shrinking, self.expanding)


def next_layer(before: Sequence[LinearShape], outputs: Sequence[int]) -> LowRankLayer:
    """The layer after those, with projections of these outputs."""
    return LowRankLayer(count(before), len(outputs), max(outputs), not any(each % kernels.ALIGNED for each in outputs))


class CudaAdapter(LowRankAdapter):
    """An adapter in one piece of memory: its table, then its matrices. Steps find it by its address only."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.address = memory.data_ptr()
        self.nbytes = memory.nbytes


def upload(pairs: Mapping[str, Pair], layers: Sequence[LinearShape], dtype: torch.dtype, device: Device) -> CudaAdapter:
    """Copies an adapter to the device, in any thread and without waiting for steps."""
    table, matrices = np.zeros((count(layers), kernels.MATRIX_FIELDS), np.int64), list[torch.Tensor]()
    end = _aligned(table.nbytes)
    for projection in numbered(layers):
        if (pair := pairs.get(projection.name)) is None:
            continue
        padded = -projection.outputs % kernels.ALIGNED
        b = torch.nn.functional.pad(pair.b.t(), (0, padded))
        addresses = []
        for matrix in (pair.a, b):
            matrices.append(matrix.to(dtype).contiguous())
            addresses.append(end)
            end += _aligned(matrices[-1].nbytes)
        table[projection.number] = *addresses, len(pair.a), projection.first, projection.outputs
    memory = device.allocate(end)
    table[:, :2] += memory.data_ptr()
    contents = torch.zeros(end, dtype=torch.uint8)
    contents[: table.nbytes] = torch.from_numpy(table).view(-1).view(torch.uint8)
    first = _aligned(table.nbytes)
    for matrix in matrices:
        contents[first : first + matrix.nbytes] = matrix.view(-1).view(torch.uint8)
        first += _aligned(matrix.nbytes)
    device.write(memory, contents)
    return CudaAdapter(memory)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _BYTES) * _BYTES


class AdapterMemory:
    """The tokens with adapters of one step at a time, on the host and on the device."""

    def __init__(self, room: Room, device: Device, layers: Sequence[LinearShape]) -> None:
        self._room = room
        self._device = device
        self._ranks = -(-room.ranks // kernels.RANKS) * kernels.RANKS
        _, size = self._sections(room.tokens)
        self._host = device.host(size)
        self._given = torch.zeros(size, dtype=torch.int32, device=device.place)
        projections = max(len(layer.names) for layer in layers)
        inner = kernels.inner_room(room.tokens, projections, self._ranks, device.processors)
        self._inner = torch.zeros(inner, device=device.place)
        self._wait_copied = device.mark()

    def fill(self, adapted: Sequence[AdaptedTokens], tokens: int) -> None:
        """Takes the adapters' tokens of a step of `tokens`, with padding."""
        assert len(adapted) <= self._room.adapters, f"{len(adapted)} adapters in a step, of {self._room.adapters}"
        self._wait_copied()
        split, end = self._sections(tokens)
        host = self._host.numpy()
        order, tiles = host[:tokens], host[split:end].view(np.int64).reshape(-1, kernels.FIELDS)
        tiles[:] = 0
        tile = place = 0
        for each in adapted:
            assert isinstance(each.adapter, CudaAdapter)
            order[place : place + len(each.tokens)] = each.tokens
            for first in range(0, len(each.tokens), kernels.ROWS):
                tiles[tile] = each.adapter.address, place + first, min(kernels.ROWS, len(each.tokens) - first)
                tile += 1
            place += len(each.tokens)
        self._given[:end].copy_(self._host[:end], non_blocking=True)
        self._wait_copied = self._device.mark()

    def rows(self, tokens: int) -> AdaptedRows:
        """The rows of the last `fill` with this number of tokens. Their addresses depend only on it."""
        split, end = self._sections(tokens)
        on_device = self._given[split:end].view(torch.int64).view(-1, kernels.FIELDS)
        return AdaptedRows(self._given[:tokens], on_device, self._inner, self._ranks, self._device.processors)

    def _sections(self, tokens: int) -> tuple[int, int]:
        """Begin and end of the tiles of a step, behind the order of its tokens, in int32."""
        begin = _aligned(tokens * 4) // 4
        return begin, begin + kernels.most_tiles(tokens, self._room.adapters) * kernels.FIELDS * 2
