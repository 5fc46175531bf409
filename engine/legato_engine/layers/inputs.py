"""The flat inputs of a step, which the runner passes to a backend: the tokens of all rows, concatenated."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from legato_engine.layers.low_rank import LowRankAdapter

if TYPE_CHECKING:
    import torch

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """The tokens of a step that use one adapter."""

    adapter: LowRankAdapter
    tokens: Ints  # their indexes, ascending


@dataclass(frozen=True, slots=True)
class WindowInputs:
    """Slots and tables of a group of layers with a window, as in `StepInputs`.

    Entries of a table for positions before the row's window repeat the first block that the row has in this group.
    """

    slots: Ints
    tables: Ints


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Row r has the tokens `starts[r] … starts[r + 1] - 1`; they are the last of its `lengths[r]` positions.

    `slots` and `tables` are of the first group of layers, `windows` of the further ones.
    """

    tokens: Ints  # [tokens]; -1 - j is the j-th token that the previous step drew, see `drawn`
    positions: Ints  # [tokens]
    slots: Ints  # [tokens]: where each token's KV is written, block · block_size + position in the block
    starts: Ints  # [rows + 1]: index of each row's first token; the number of tokens at the end
    lengths: Ints  # [rows]: positions that a row's last token attends to, including itself
    tables: Ints  # [rows, blocks]: block tables, padded with the row's first block
    sampled: Ints  # indexes of the tokens whose logits are sampled: the last one of a row, and those before its drafts
    adapted: tuple[AdaptedTokens, ...] = ()  # by adapter, disjoint
    drawn: "torch.Tensor | None" = None  # int32 [draws of the previous step], on the device that drew them
    windows: tuple[WindowInputs, ...] = ()
