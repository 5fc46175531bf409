"""Messages between the first rank and the others, pickled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.sharded.rank import Rank
from legato_engine.kvcache.layout import KVLayout
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.low_rank import Pair
from legato_engine.runner.formats import Formats


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Loads a rank's part of the model at `path`. `arena` and `memory` are descriptors that the process inherits."""

    path: Path
    quantization: str
    formats: Formats
    rank: Rank
    threads: int | None
    room: Room
    max_length: int
    layout: KVLayout
    num_blocks: int
    arena: int
    memory: int
    versions: str


@dataclass(frozen=True, slots=True)
class Forward:
    """Computes a step; `adapters` are the numbers of the adapters of `inputs.adapted`, which has none itself."""

    inputs: StepInputs
    adapters: tuple[tuple[int, Ints], ...]


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
    """The rank computes steps from now on; its weights have `nbytes`."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The rank cannot load its part, and ends."""

    reason: str


ToRank = LoadPart | Forward | LogitsOf | AddAdapter | DropAdapter
FromRank = Loaded | LoadFailed | int
