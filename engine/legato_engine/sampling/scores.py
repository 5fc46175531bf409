"""Logprobs of a prompt's tokens: of given tokens, not of sampled ones.

Logits come a few rows at a time, since those of a whole chunk would be the largest result of its step.
"""

from collections.abc import Sequence

import numpy as np
import torch

from legato_engine.sampling.sampler import LEAST_LOGPROB, NOT_FINITE
from legato_protocol.packed_logprobs import PackedLogprobs

SLICE_BYTES = 16 << 20  # of float32 logits at a time …
TILE = 32  # … in multiples of so many rows, which kernels compute together


def rows_at_once(vocabulary: int) -> int:
    """How many rows of logits are looked at together."""
    return max(1, SLICE_BYTES // (4 * vocabulary * TILE)) * TILE


class Scores:
    """Gathers what is known of one row's targets, slice by slice."""

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._logprobs: list[torch.Tensor] = []
        self._ids: list[torch.Tensor] = []
        self._ranks: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, targets: Sequence[int]) -> None:
        """`logits` (float32 [targets, vocab], left as they are) before each of these tokens."""
        chosen = torch.tensor(targets, device=logits.device).unsqueeze(1)
        own = logits.gather(1, chosen)
        best = torch.topk(logits, self._alternatives, sorted=True)
        found = torch.cat((own, best.values), 1) - logits.logsumexp(1, keepdim=True)
        self._logprobs.append(found.clamp_(LEAST_LOGPROB).cpu())
        self._ids.append(best.indices.cpu())
        self._ranks.append((logits > own).sum(1).cpu() + 1)

    def packed(self) -> tuple[PackedLogprobs, str]:
        """All of them, and why they mean nothing, if so."""
        logprobs = torch.cat(self._logprobs)
        fault = "" if bool(logprobs.isfinite().all()) else NOT_FINITE
        kinds = ((logprobs, "<f4"), (torch.cat(self._ids), "<i4"), (torch.cat(self._ranks), "<i4"))
        numbers = [values.numpy().astype(np.dtype(kind)).tobytes() for values, kind in kinds]
        return PackedLogprobs(self._alternatives, *numbers), fault
