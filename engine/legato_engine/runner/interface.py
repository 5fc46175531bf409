"""The interface between the core and a runner, which may compute with torch or not at all. No torch in here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.errors import ProfileFailed
from legato_engine.kvcache.layout import KVLayout
from legato_engine.kvcache.moves import MoveTime
from legato_engine.ranges import Ranges
from legato_engine.scheduler.batch import Batch, StepOutput
from legato_engine.scheduler.speculation.drafter import Drafter
from legato_engine.scheduler.speculation.model_drafter import DraftLimits
from legato_engine.transfer.device.interface import DeviceEvent
from legato_engine.transfer.node.memory_file import MemoryFile
from legato_protocol.model_files.adapter_list import AdapterEntry

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float], None]  # the stage of a start, and its finished share (0 … 1)


class KVSlots(Protocol):
    """Memory of `count` blocks that the arena evicts, in the host's memory."""

    @property
    def count(self) -> int: ...
    def slot(self, index: int) -> memoryview:
        """The bytes of one slot, writable."""

    def take_times(self) -> tuple[MoveTime, ...]:
        """Returns the durations of moves that are done and were not returned before."""


class NoSlots:
    """Implements `KVSlots` for a runner that keeps no evicted blocks."""

    count = 0

    def slot(self, index: int) -> memoryview:
        raise IndexError(f"slot {index} of no slots")

    def take_times(self) -> tuple[MoveTime, ...]:
        return ()


class KVArena(Protocol):
    """Memory of all KV blocks, one allocation; block i begins at `address + i * layout.block_bytes`.

    Without `on_host`, only the device reads and writes it. `host` keeps evicted blocks. `file` is its memory if other
    processes may read it."""

    file: MemoryFile | None

    @property
    def parts(self) -> "Sequence[Sequence[torch.Tensor]]":
        """The parts of blocks on the GPUs of several ranks, see `RankCopies`; empty: `blocks` are all there is."""

    @property
    def host(self) -> KVSlots: ...
    @property
    def on_host(self) -> bool: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def blocks(self) -> Any:
        """All blocks, as `transfer.blocks.checksum.ArenaMemory` takes them."""

    def block(self, index: int) -> memoryview: ...


class StepRunner(Protocol):
    """Computes batches in their order. `kv_revision` is equal for workers that may exchange KV; `fallback` is the
    reason why kernels for its device are not used, and `weights_fallback` names quantized weights that are computed
    in a slower way; either may be empty. `ahead` is for devices that work asynchronously."""

    layout: KVLayout
    num_blocks: int
    kv_revision: str
    formats: str
    fallback: str
    weights_fallback: str

    @property
    def ahead(self) -> "AheadRunner | None": ...
    @property
    def written(self) -> DeviceEvent | None:
        """Completes with the last step that was launched; None if every step is complete when its call returns.

        A call may return sampled tokens before its KV is in the arena; a step without draws returns immediately."""

    @property
    def arena(self) -> KVArena: ...
    def step(self, batch: Batch) -> StepOutput: ...


class AheadRunner(Protocol):
    """Steps in two parts: a step may be launched before the last one is collected, and refer to tokens that only the
    device has, see `Row`."""

    def launch(self, batch: Batch) -> Any:
        """Starts a step; returns the argument for `collect`."""

    def collect(self, launched: Any) -> StepOutput:
        """Waits for a step. Steps are collected in the order in which they were launched."""


class StepProfiler(Protocol):
    """Records steps and their `ranges`. `start` and `stop` are called in the thread that computes, `write` in any after
    them; all raise ProfileFailed."""

    ranges: Ranges

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def write(self, path: Path) -> None:
        """Writes the last record as a Chrome trace, compressed."""


class NoProfiler:
    """Implements `StepProfiler` for a runner that computes nothing."""

    def __init__(self) -> None:
        self.ranges = Ranges()

    def start(self) -> None:
        raise ProfileFailed("a paced worker computes nothing that could be recorded")

    def stop(self) -> None:
        pass

    def write(self, path: Path) -> None:
        pass


def _ignore(_give_way: Callable[[], None]) -> None:
    """The runner's steps cannot stop."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner that is ready, with facts about its model. `weights` is equal for workers that may continue one
    another's sequences; `max_length` is the longest sequence in tokens, `max_running` the maximum number of sequences
    that run at the same time."""

    runner: StepRunner
    weights: str
    vocab_size: int
    max_length: int
    max_running: int
    adapters: tuple[OfferedAdapter, ...] = ()
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that compute
    profiler: StepProfiler = field(default_factory=NoProfiler)
    open_adapter: Callable[[AdapterEntry], OfferedAdapter] | None = None  # in any thread; raises EngineError, OSError
    drafter: Drafter | None = None  # instead of the method's own
    draft: DraftLimits | None = None  # of the draft model
    # Sets a function that steps with many tokens call between two layers.
    between_layers: Callable[[Callable[[], None]], None] = _ignore
