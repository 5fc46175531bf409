"""The inputs of a step, flat: the tokens of all its rows one after another. What the runner gives to a backend."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from legato_engine.layers.low_rank import Adapter

if TYPE_CHECKING:
    import torch

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """Tokens of a step that one adapter counts for."""

    adapter: Adapter[Any]
    tokens: Ints  # their indexes, ascending


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Row r has the tokens `starts[r] … starts[r + 1] - 1`, the last of its `lengths[r]` positions."""

    tokens: Ints  # [tokens]; -1 - j is the j-th that the step before has drawn, see `drawn`
    positions: Ints  # [tokens]
    slots: Ints  # [tokens]: where each token's KV goes, block · block_size + place in the block
    starts: Ints  # [rows + 1]: index of each row's first token; the number of tokens at the end
    lengths: Ints  # [rows]: positions that a row's last token sees, itself among them
    tables: Ints  # [rows, blocks]: block tables, padded with the row's first block
    sampled: Ints  # index of the last token of each row that samples
    adapted: tuple[AdaptedTokens, ...] = ()  # by adapter; no token is in two of them
    drawn: "torch.Tensor | None" = None  # int32 [draws of the step before], on the device that drew them
