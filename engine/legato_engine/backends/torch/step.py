"""One step as tensors on the device, and its rows as groups of similar shape for attention."""

from collections import defaultdict

import torch

from legato_engine.backends.torch.low_rank import TorchAdapter
from legato_engine.kernels.torch.attention import Group, causal_mask
from legato_engine.layers.inputs import StepInputs, WindowInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.low_rank import LowRankAdapter
from legato_engine.layers.rotation import Rotation

MASK_ENTRIES = 1 << 22  # of one mask of a prompt, which would otherwise grow with chunk · context


class TorchStep:
    """The inputs of layers. Rows are grouped once for all layers with the same window."""

    def __init__(self, inputs: StepInputs, arena: torch.Tensor) -> None:
        device, size = arena.device, arena.shape[4]
        self.arena = arena
        self.tokens = torch.from_numpy(inputs.tokens).to(device)
        self.sampled = torch.from_numpy(inputs.sampled).to(device)
        self.hidden: torch.Tensor | None = None  # the head's inputs
        by_group = inputs.slots, *[window.slots for window in inputs.windows]
        slots = [torch.from_numpy(each).to(device) for each in by_group]
        self.written = [(each // size, each % size) for each in slots]  # blocks and places of tokens, by group
        self._positions = torch.from_numpy(inputs.positions).to(device)
        self._angles: dict[Rotation | None, tuple[torch.Tensor, torch.Tensor]] = {}
        self.adapted = [(_of_torch(each.adapter), torch.from_numpy(each.tokens).to(device)) for each in inputs.adapted]
        self._inputs = inputs
        self._groups: dict[tuple[int, int | None, int], tuple[Group, ...]] = {}

    def angles(
        self, rotation: Rotation | None, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step's tokens, from `tables` of every position, [positions, 1, pairs]."""
        if rotation not in self._angles:
            cos, sin = tables
            self._angles[rotation] = cos[self._positions], sin[self._positions]
        return self._angles[rotation]

    def groups(self, shape: AttentionShape, of_layers: int, dtype: torch.dtype) -> tuple[Group, ...]:
        """The rows, for attention of that shape in a group of layers, with queries of `dtype`."""
        shared = shape.heads // shape.kv_heads
        key = shared, shape.window, of_layers
        if key not in self._groups:
            size, device = self.arena.shape[4], self.arena.device
            moving = self._inputs.windows[of_layers - 1] if of_layers else None
            self._groups[key] = group_rows(self._inputs, size, shared, shape.window, dtype, device, moving=moving)
        return self._groups[key]


def _of_torch(adapter: LowRankAdapter) -> TorchAdapter:
    assert isinstance(adapter, TorchAdapter)
    return adapter


def group_rows(
    inputs: StepInputs,
    block_size: int,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    entries: int = MASK_ENTRIES,
    moving: WindowInputs | None = None,
) -> tuple[Group, ...]:
    """Groups rows whose numbers of queries and of blocks differ by less than a factor of 2. `shared` heads use one KV
    head. No mask has more than `entries`, except a mask of one query of each row. `moving` are tables that have only
    the blocks of the window."""
    counts = inputs.starts[1:] - inputs.starts[:-1]
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (count, length) in enumerate(zip(counts.tolist(), inputs.lengths.tolist(), strict=True)):
        alike[count.bit_length(), (-(-length // block_size)).bit_length()].append(row)
    return tuple(
        _group(inputs, rows, block_size, shared, window, dtype, device, entries, moving) for rows in alike.values()
    )


def _group(
    inputs: StepInputs,
    rows: list[int],
    block_size: int,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    entries: int,
    moving: WindowInputs | None,
) -> Group:
    first = torch.from_numpy(inputs.starts[:-1][rows])
    count = torch.from_numpy(inputs.starts[1:][rows]) - first
    end = torch.from_numpy(inputs.lengths[rows])
    start = end - count
    skipped, widest = 0, -(-int(end.max()) // block_size)
    if moving is not None and window is not None:
        skipped = max(0, int(start.min()) - window + 1) // block_size
    query = torch.arange(int(count.max()))
    inside = torch.minimum(query, count[:, None] - 1)
    take = first[:, None] + inside
    at = (start[:, None] + inside - skipped * block_size).to(device)
    held = (widest - skipped) * block_size
    piece = min(len(query), max(1, entries // (len(rows) * shared * held)))
    position = torch.arange(skipped * block_size, widest * block_size)
    end = end[:, None]
    if moving is not None and window is not None:
        beyond = (position >= end) | (position <= start[:, None] - window)
    else:
        unused = (position < end + block_size) | (end < block_size)  # later positions are of a row's first block
        beyond = (position >= end) & unused
    lines, places = beyond.nonzero(as_tuple=True)
    given = (query < count[:, None]).flatten().nonzero().squeeze(1)
    return Group(
        take=take.to(device),
        at=at,
        blocks=torch.from_numpy((moving or inputs).tables[rows, skipped:widest]).to(device),
        window=window,
        piece=piece,
        mask=causal_mask(at, held, window, shared, dtype) if piece == len(query) else None,
        beyond=(lines.to(device), places.to(device)),
        given=given.to(device),
        put=take.flatten()[given].to(device),
    )
