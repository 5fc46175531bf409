"""Memory for the results of layers, sized for the largest step so far."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step with padding. Padded tokens are written nowhere, padded rows have no tokens."""

    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Room:
    """The largest step: tokens, rows, and blocks of one row, each with `block_size` tokens; adapters, and the ranks of
    one."""

    tokens: int
    rows: int
    blocks: int
    block_size: int
    adapters: int = 8
    ranks: int = 64

    @property
    def max_length(self) -> int:
        """The tokens of the longest sequence."""
        return self.blocks * self.block_size

    def holds(self, size: Size) -> bool:
        return size.tokens <= self.tokens and size.rows <= self.rows

    def enlarged(self, size: Size) -> "Room":
        """This room, or more where the step needs it."""
        return replace(self, tokens=max(self.tokens, size.tokens), rows=max(self.rows, size.rows))


class Buffer:
    """Memory of one intermediate result. Its address stays the same until `make_room`."""

    __slots__ = ("_dtype", "_place", "_tensor", "_width")

    def __init__(self, width: int, dtype: torch.dtype, place: torch.device) -> None:
        self._width = width
        self._dtype = dtype
        self._place = place
        self._tensor = torch.empty(0, width, dtype=dtype, device=place)

    def make_room(self, rows: int) -> None:
        self._tensor = torch.zeros(rows, self._width, dtype=self._dtype, device=self._place)

    def take(self, rows: int) -> torch.Tensor:
        """Returns the first rows, [rows, width]."""
        assert rows <= len(self._tensor), f"{rows} rows of {len(self._tensor)}"
        return self._tensor[:rows]


class Workspace:
    """Buffers by operator, width and dtype, shared by all layers of a model.

    A result is valid until the operator computes another one of the same width.
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._buffers: dict[tuple[str, int, torch.dtype], Buffer] = {}
        self._by_row: set[Buffer] = set()  # have a row for each row of the step, not for each token

    def buffer(self, operator: str, width: int, dtype: torch.dtype, sampled: bool = False) -> Buffer:
        """A buffer with a row for each token of a step, or with `sampled` for each row of the step."""
        key = operator, width, dtype
        if key not in self._buffers:
            self._buffers[key] = Buffer(width, dtype, self._place)
            if sampled:
                self._by_row.add(self._buffers[key])
        return self._buffers[key]

    def make_room(self, room: Room) -> None:
        for buffer in self._buffers.values():
            buffer.make_room(room.rows if buffer in self._by_row else room.tokens)
