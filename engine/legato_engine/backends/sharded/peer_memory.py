"""Memory of the ranks' GPUs for sums, which all ranks reach: over NVLink or PCIe, or on one GPU."""

from collections.abc import Sequence

import torch

from legato_engine.backends.sharded import device_handles
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.sum_group import SumGroup
from legato_engine.kernels.gpu.configurations import chip_of, choose

ONE_SHOT = 512 << 10  # bytes of the largest tensor that the kernel adds if ranks have joined a group
_NUMBER = 4  # bytes of the widest type
_ALIGNED = 256  # bytes


class PeerMemory:
    """Adds tensors of at least `room` numbers in one operation, and longer ones in several."""

    def __init__(self, rank: Rank, place: torch.device, room: int) -> None:
        self._rank = rank
        self._config = choose("add_ranks", {}, chip_of(place))
        tile = self._config.tiles["TILE"]
        programs = -(-room // tile)
        self._room = programs * tile
        self._sums = torch.zeros(programs, dtype=torch.int32, device=place)
        self._first_slot = -(-programs * 4 // _ALIGNED) * _ALIGNED  # after the counters
        size = self._first_slot + 2 * self._room * _NUMBER
        self.memory = torch.zeros(size, dtype=torch.uint8, device=place)
        self.group: SumGroup | None = None  # which all ranks have joined
        self._all: Sequence[torch.Tensor] = ()
        self._slots = self._arrivals = torch.empty(0)

    def export(self) -> bytes:
        return device_handles.export(self.memory)

    def open(self, handles: Sequence[bytes]) -> None:
        """Connects to the exported memory of all ranks, by rank. Raises RuntimeError."""
        own, place = self._rank.index, self.memory.device
        memories = [self.memory if i == own else device_handles.opened(each, place) for i, each in enumerate(handles)]
        self.connect(memories)

    def connect(self, memories: Sequence[torch.Tensor]) -> None:
        """Uses the `memory` of all ranks, by rank."""
        self._all = memories
        addresses = torch.tensor([each.data_ptr() for each in memories], dtype=torch.int64)
        self._arrivals = addresses.to(self.memory.device)
        self._slots = (addresses + self._first_slot).to(self.memory.device)

    def add(self, x: torch.Tensor) -> None:
        """Replaces x, contiguous, with its sum over ranks, which all call this alike, after `connect`."""
        if self.group is not None and x.nbytes > ONE_SHOT and x.numel() % self._rank.count == 0:
            self.group.add(x)
            return
        from legato_engine.kernels.gpu.all_reduce import add_ranks  # imports triton, which takes a second

        for piece in torch.split(x.view(-1), self._room):
            add_ranks(piece, self._slots, self._arrivals, self._sums, self._rank.index, self._config)
