"""Logprobs of a prompt's given tokens.

Logits are processed a few rows at a time, since the logits of a whole chunk would be the largest result of its step.
"""

from collections.abc import Sequence

import numpy as np
import torch

from legato_engine.sampling.sampler import LEAST_LOGPROB, NOT_FINITE
from legato_protocol.wire.packed_logprobs import PackedLogprobs

SLICE_BYTES = 16 << 20  # of float32 logits at a time …
TILE = 32  # … in multiples of this many rows, which kernels compute together


def rows_per_slice(vocabulary: int) -> int:
    """Number of rows of logits that are processed together."""
    return max(1, SLICE_BYTES // (4 * vocabulary * TILE)) * TILE


class Scores:
    """Collects the logprobs of one row's targets, slice by slice."""

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._logprobs: list[torch.Tensor] = []
        self._ids: list[torch.Tensor] = []
        self._ranks: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, targets: Sequence[int]) -> None:
        """Adds the logprobs of these tokens from the `logits` before each (float32 [targets, vocab], not changed)."""
        chosen = torch.tensor(targets, device=logits.device).unsqueeze(1)
        own = logits.gather(1, chosen)
        best = torch.topk(logits, self._alternatives, sorted=True)
        logprobs = torch.cat((own, best.values), 1) - logits.logsumexp(1, keepdim=True)
        self._logprobs.append(logprobs.clamp_(LEAST_LOGPROB).cpu())
        self._ids.append(best.indices.cpu())
        self._ranks.append((logits > own).sum(1).cpu() + 1)

    def pack(self) -> tuple[PackedLogprobs, str]:
        """All logprobs, and the fault that makes them meaningless, or ""."""
        logprobs = torch.cat(self._logprobs)
        fault = "" if bool(logprobs.isfinite().all()) else NOT_FINITE
        kinds = ((logprobs, "<f4"), (torch.cat(self._ids), "<i4"), (torch.cat(self._ranks), "<i4"))
        numbers = [values.numpy().astype(np.dtype(kind)).tobytes() for values, kind in kinds]
        return PackedLogprobs(self._alternatives, *numbers), fault
