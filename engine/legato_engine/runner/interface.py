"""What the core needs from a runner, whatever computes in it. No torch in here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.kvcache.layout import KVLayout
from legato_engine.scheduler.batch import Batch, StepOutput
from legato_engine.transfer.device import DeviceEvent
from legato_protocol.adapter_list import AdapterEntry

Progress = Callable[[str, float], None]  # what is being done, and how much of it is (0 … 1)


class KVArena(Protocol):
    """Memory of all KV blocks, one allocation; block i begins at `address + i * layout.block_bytes`.

    Where it is not `on_host`, only the device reads and writes it."""

    @property
    def on_host(self) -> bool: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def blocks(self) -> Any:
        """All of it, as `transfer.checksum.ArenaMemory` takes it."""

    def block(self, index: int) -> memoryview: ...


class StepRunner(Protocol):
    """Computes batches, in their order. `kv_revision` is equal for workers that may exchange KV; `fallback` says why
    kernels for its device are not used, or nothing. `ahead` is for those whose device works by itself."""

    layout: KVLayout
    num_blocks: int
    kv_revision: str
    formats: str
    fallback: str

    @property
    def ahead(self) -> "AheadRunner | None": ...
    @property
    def written(self) -> DeviceEvent | None:
        """Done when the device has ended every step that was launched; None where a step's end is its call's.

        With sampled tokens that a step returns, not all that it writes has to be in the arena: a step without draws
        returns at once."""

    @property
    def arena(self) -> KVArena: ...
    def step(self, batch: Batch) -> StepOutput: ...


class AheadRunner(Protocol):
    """Steps in two parts: the next one may be launched before the last one is collected, and name tokens that only the
    device knows, see `Row`."""

    def launch(self, batch: Batch) -> Any:
        """Starts a step; returns what `collect` takes."""

    def collect(self, launched: Any) -> StepOutput:
        """Waits for a step. They are collected in the order in which they were launched."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner that is ready, and what is known of its model. `weights` is equal for workers that may continue one
    another's sequences; `max_length` is the longest sequence in tokens, `max_running` the maximum number of sequences
    that run at the same time."""

    runner: StepRunner
    weights: str
    vocab_size: int
    max_length: int
    max_running: int
    adapters: tuple[OfferedAdapter, ...] = ()
    open_adapter: Callable[[AdapterEntry], OfferedAdapter] | None = None  # in any thread; raises EngineError, OSError
