"""Draws tokens in torch, all rows in one batch. See `reference/sampling.md`."""

from collections.abc import Sequence

import torch

from legato_protocol.sampling.parameters import SamplingParams

FIRST_CANDIDATES = 256  # sorted at first; nearly every nucleus is smaller
_GROWTH = 16
LARGEST = torch.finfo(torch.float32).max


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: torch.Tensor) -> torch.Tensor:
    """A token for each row of `logits`, float32 [rows, vocab], with `numbers` float64 [rows]: int64 [rows]."""
    temperatures = torch.tensor([[p.temperature] for p in params], device=logits.device)
    logits = (logits / temperatures).clamp_(max=LARGEST)
    weights = (logits.double() - logits.amax(1, keepdim=True)).exp_()
    floor = thresholds(logits, weights, params)
    if floor is not None:
        weights.masked_fill_(logits < floor, 0)
    cumulative = weights.cumsum(1)
    return torch.searchsorted(cumulative, numbers.unsqueeze(1) * cumulative[:, -1:])[:, 0]


def thresholds(logits: torch.Tensor, weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor | None:
    """The least logit that each row may draw: float32 [rows, 1], or None if no row is filtered.

    `logits`: float32 [rows, vocab], after division by the temperature. `weights`: float64, e to the power of the
    difference to the row's largest logit.
    """
    floor = _min_p(logits, params)
    sorting = [row for row, p in enumerate(params) if 0 < p.top_k < logits.shape[1] or p.top_p < 1]
    size = min(FIRST_CANDIDATES, logits.shape[1])
    while sorting:
        if floor is None:
            floor = torch.full((len(params), 1), float("-inf"), device=logits.device)
        chosen = torch.tensor(sorting, device=logits.device)
        nearest, certain = _by_rank(
            logits[chosen], weights[chosen], [params[row] for row in sorting], floor[chosen], size
        )
        floor[chosen] = torch.where(certain, nearest, floor[chosen])
        sorting = [row for row, done in zip(sorting, certain[:, 0].tolist(), strict=True) if not done]
        size = min(size * _GROWTH, logits.shape[1])
    return floor


def _min_p(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor | None:
    """Tokens at least `min_p` times as likely as the likeliest one are kept."""
    if not any(p.min_p > 0 for p in params):
        return None
    share = torch.tensor([[p.min_p] for p in params], device=logits.device)
    return logits.amax(1, keepdim=True) + share.log()  # log(0) is -inf: no threshold


def _by_rank(
    logits: torch.Tensor, weights: torch.Tensor, params: Sequence[SamplingParams], floor: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds of top-k and top-p from the `size` largest logits, and True if these suffice: both [rows, 1]."""
    vocab = logits.shape[1]
    best = torch.topk(logits, size, sorted=True).values
    count = torch.tensor([[p.top_k if 0 < p.top_k < vocab else vocab] for p in params], device=logits.device)
    kth = best.gather(1, count.clamp(max=size) - 1)
    bounded = count <= size
    floor = torch.where(bounded, torch.maximum(floor, kth), floor)
    wanted = torch.tensor([[p.top_p] for p in params], dtype=torch.float64, device=logits.device)
    shares = (best.double() - best[:, :1]).exp_()
    before = shares.cumsum(1) - shares
    kept = weights.masked_fill(logits < floor, 0).cumsum(1)[:, -1:]
    nucleus = (before < wanted * kept) & (best >= floor)
    nucleus[:, 0] = True
    threshold = best.masked_fill(~nucleus, float("inf")).amin(1, keepdim=True)
    ends_inside = (~nucleus[:, -1:]) | (size == vocab)
    return threshold, (bounded | (count == vocab)) & (ends_inside | (bounded & (wanted >= 1)))


def mask(logits: torch.Tensor, rows: torch.Tensor, allowed: torch.Tensor) -> None:
    """Adds minus infinity to all tokens of `logits[rows[i]]`, float32 [R, vocab], whose bit in `allowed[i]`, uint8
    [rows, bytes], is 0; NaN stays NaN. Rows are unique."""
    bits = allowed.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8, device=allowed.device)
    kept = (bits & 1).flatten(1)[:, : logits.shape[1]].bool()
    added = torch.zeros((), device=logits.device).where(kept, float("-inf"))
    logits.index_add_(0, rows, added)
