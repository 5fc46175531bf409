"""Mixture of experts in torch: any device, any sizes. Tokens are grouped by expert."""

from collections.abc import Callable, Iterator

import torch

from legato_engine.kernels.routing import ExpertRouting, Gating, Scoring

_ALPHA, _LIMIT = 1.702, 7.0  # of gpt-oss


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: ExpertRouting
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses experts as `reference.experts.route`.

    logits float32 [tokens, count], correction float32 [count] → numbers, int64, and weights, float32, both
    [tokens, active]."""
    scores = logits.softmax(1) if routing.scoring is Scoring.SOFTMAX else logits.sigmoid()
    ranks = scores if correction is None else scores + correction
    if routing.groups > 1:
        ranks = _within_groups(ranks, routing)
    chosen = ranks.topk(routing.active, 1).indices
    weights = scores.gather(1, chosen)
    if routing.normalize:
        weights = weights / weights.sum(1, keepdim=True)
    return chosen, weights * routing.scale if routing.scale != 1 else weights


def _within_groups(ranks: torch.Tensor, routing: ExpertRouting) -> torch.Tensor:
    groups = ranks.view(len(ranks), routing.groups, -1)
    best = groups.topk(2, 2).values.sum(2).topk(routing.active_groups, 1).indices
    excluded = torch.ones(groups.shape[:2], dtype=torch.bool, device=ranks.device).scatter_(1, best, False)
    return groups.masked_fill(excluded[:, :, None], -torch.inf).flatten(1)


def gated(gate_up: torch.Tensor, gating: Gating) -> torch.Tensor:
    """gate_up [rows, 2 · inner] (gate first) → [rows, inner]."""
    gate, up = gate_up.chunk(2, -1)
    if gating is Gating.SILU:
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
    return gate * torch.sigmoid(gate * _ALPHA) * (up + 1)


def by_expert(chosen: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The tokens of each expert that `chosen` [tokens, active] contains, in ascending order: the expert's number, the
    indices of tokens, and the expert's places among those that each token chose."""
    numbers, order = chosen.flatten().sort(stable=True)
    hit, counts = torch.unique_consecutive(numbers, return_counts=True)
    for number, pairs in zip(hit.tolist(), torch.split(order, counts.tolist()), strict=True):
        yield number, pairs // chosen.shape[1], pairs % chosen.shape[1]


def mixture(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    compute: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The weighted sums of experts, float32 [tokens, hidden]; `compute` returns an expert's results for rows of x."""
    sums = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number, tokens, places in by_expert(chosen):
        sums.index_add_(0, tokens, compute(number, x[tokens]).float() * weights[tokens, places, None])
    return sums
