"""Messages between the first rank and the others, pickled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.sharded.rank import Rank
from legato_engine.kvcache.layout import KVLayout
from legato_engine.kvcache.moves import Move
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.low_rank import Pair
from legato_engine.runner.formats import Formats


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Loads a rank's part of the model at `path`. `memory` is a descriptor that the process inherits, and so is
    `arena`; None: on its GPU, a rank has an arena of its own, whose evicted blocks take `host_slots`."""

    path: Path
    quantization: str
    formats: Formats
    rank: Rank
    threads: int | None
    room: Room
    max_length: int
    layout: KVLayout
    num_blocks: int
    memory: int
    versions: str
    arena: int | None = None
    device: str = "cpu"
    host_slots: int = 0
    files: tuple[tuple[str, int, int], ...] = ()  # as the first rank found them


@dataclass(frozen=True, slots=True)
class Connect:
    """The memory of all ranks' GPUs, see `PeerMemory`."""

    handles: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Join:
    """Joins the group of `SumGroup`, by the path of a file. Is answered with `Joined`."""

    store: str


@dataclass(frozen=True, slots=True)
class TryGroup:
    """Adds once with the group, which all ranks have joined. Is answered with `Joined`."""


@dataclass(frozen=True, slots=True)
class UseGroup:
    """All ranks have added with the group, which adds large tensors from now on."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Computes a step. `adapters` are the numbers of the adapters of `inputs.adapted`, which has none itself, and
    `drawn` is the number of tokens in `inputs.drawn`, which the first rank shares."""

    inputs: StepInputs
    adapters: tuple[tuple[int, Ints], ...]
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class Capture:
    """Captures steps as `Backend.capture`, or with `missing` as `capture_missing`."""

    missing: bool = False


@dataclass(frozen=True, slots=True)
class CopyBlocks:
    """Moves and copies blocks of this rank's arena."""

    moves: Sequence[Move] = ()
    copies: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class LogitsOf:
    """Computes the logits after these tokens of the last step."""

    tokens: Ints


@dataclass(frozen=True, slots=True)
class AddAdapter:
    """Is answered with the number once later steps may use the adapter."""

    number: int
    pairs: Mapping[str, Pair]


@dataclass(frozen=True, slots=True)
class DropAdapter:
    number: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rank computes steps from now on; its weights have `nbytes`. With a GPU, `peer` is its memory for sums, and
    `arena` its arena, as `device_handles` exports them."""

    nbytes: int
    peer: bytes = b""
    arena: bytes = b""


@dataclass(frozen=True, slots=True)
class Joined:
    """The rank has joined the group, or added with it, or has not for a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The rank has loaded a share of its weights."""

    share: float


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The rank cannot load its part, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class AddFailed:
    """The rank cannot hold an adapter, and computes on."""

    reason: str


ToRank = (
    LoadPart
    | Connect
    | Join
    | TryGroup
    | UseGroup
    | Forward
    | LogitsOf
    | Capture
    | CopyBlocks
    | AddAdapter
    | DropAdapter
)
FromRank = LoadProgress | Loaded | LoadFailed | Joined | AddFailed | int
