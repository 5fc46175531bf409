"""Memory for the results of layers, sized for the largest step so far."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step, which determines its launches. Padding tokens are not written, padding rows have no tokens,
    and padding samples are not used."""

    tokens: int
    rows: int
    samples: int  # tokens whose logits are computed
    prompts: bool  # a row has more tokens than kernels for decoding take
    adapted: bool = False  # a row has an adapter

    def covers(self, other: "Size") -> bool:
        """True if a step of the other size can be padded to this one."""
        return (
            self.tokens >= other.tokens
            and self.rows >= other.rows
            and self.samples >= other.samples
            and self.prompts >= other.prompts
            and self.adapted >= other.adapted
        )


@dataclass(frozen=True, slots=True)
class Room:
    """The largest step: tokens, rows, blocks of one row, adapters, and ranks of one adapter. A block has `block_size`
    tokens. Each row may sample once; `samples` exceeds `rows` if rows sample after several tokens."""

    tokens: int
    rows: int
    blocks: int
    block_size: int
    adapters: int = 8
    ranks: int = 64
    samples: int = 0

    @property
    def max_length(self) -> int:
        """The tokens of the longest sequence."""
        return self.blocks * self.block_size

    @property
    def largest(self) -> Size:
        return Size(self.tokens, self.rows, max(self.rows, self.samples), True, True)

    def enlarged(self, size: Size) -> "Room":
        """This room, enlarged where a step of `size` needs more. Tokens are a multiple of 16."""
        tokens = -(-max(self.tokens, size.tokens, size.rows) // 16) * 16
        return replace(self, tokens=tokens, rows=max(self.rows, size.rows), samples=max(self.samples, size.samples))


class Buffer:
    """Memory of one intermediate result. Its address stays the same until `make_room`."""

    __slots__ = ("_device", "_dtype", "_tensor", "_width")

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._width = width
        self._dtype = dtype
        self._device = device
        self._tensor = torch.empty(0, width, dtype=dtype, device=device)

    def make_room(self, rows: int) -> None:
        self._tensor = torch.zeros(rows, self._width, dtype=self._dtype, device=self._device)

    def take(self, rows: int) -> torch.Tensor:
        """Returns the first rows, [rows, width]."""
        assert rows <= len(self._tensor), f"{rows} rows of {len(self._tensor)}"
        return self._tensor[:rows]


class Workspace:
    """Buffers by operator, width and dtype, shared by all layers of a model.

    A result is valid until the operator computes another one of the same width.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[str, int, torch.dtype], Buffer] = {}
        self._sampled: set[Buffer] = set()  # buffers with a row for each sampled token

    def buffer(self, operator: str, width: int, dtype: torch.dtype, sampled: bool = False) -> Buffer:
        """A buffer with a row for each token of a step, or with `sampled` for each sampled token."""
        key = operator, width, dtype
        if key not in self._buffers:
            self._buffers[key] = Buffer(width, dtype, self._device)
            if sampled:
                self._sampled.add(self._buffers[key])
        return self._buffers[key]

    def make_room(self, room: Room) -> None:
        for buffer in self._buffers.values():
            buffer.make_room(room.largest.samples if buffer in self._sampled else room.tokens)
