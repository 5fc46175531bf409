"""Reference for mixtures of experts, token by token and expert by expert: see `reference/experts.md`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from legato_engine.kernels.routing import ExpertRouting, Gating, Scoring

_ALPHA, _LIMIT = 1.702, 7.0  # of gpt-oss


class Expert(NamedTuple):
    """The weights of an expert; biases may be None."""

    gate_up: torch.Tensor  # [2 · inner, hidden], gate first
    down: torch.Tensor  # [hidden, inner]
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: ExpertRouting
) -> list[list[tuple[int, float]]]:
    """logits [tokens, count], correction [count] → the experts of each token and their weights, best first."""
    return [_route(row, correction, routing) for row in logits.double()]


def _route(logits: torch.Tensor, correction: torch.Tensor | None, routing: ExpertRouting) -> list[tuple[int, float]]:
    scores = logits.softmax(0) if routing.scoring is Scoring.SOFTMAX else logits.sigmoid()
    ranks = scores if correction is None else scores + correction
    groups = ranks.view(routing.groups, -1)
    if routing.groups > 1:
        sums = groups.topk(2, 1).values.sum(1)
        allowed = sums.topk(routing.active_groups).indices.tolist()
        groups = torch.stack([each if i in allowed else each * 0 - torch.inf for i, each in enumerate(groups)])
    chosen = groups.flatten().topk(routing.active).indices.tolist()
    total = sum(float(scores[each]) for each in chosen) if routing.normalize else 1.0
    return [(each, float(scores[each]) / total * routing.scale) for each in chosen]


def gated(gate_up: torch.Tensor, gating: Gating) -> torch.Tensor:
    """gate_up [2 · inner] (gate first) → [inner]."""
    gate, up = gate_up.chunk(2, -1)
    if gating is Gating.SILU:
        return gate * torch.sigmoid(gate) * up
    gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
    return gate * torch.sigmoid(_ALPHA * gate) * (up + 1)


def experts(
    x: torch.Tensor, chosen: Sequence[Sequence[tuple[int, float]]], weights: Sequence[Expert], gating: Gating
) -> torch.Tensor:
    """x [tokens, hidden], `chosen` as of `route` → the weighted sums of experts, float64 [tokens, hidden]."""
    sums = torch.zeros(x.shape, dtype=torch.float64)
    for token, pairs in enumerate(chosen):
        for number, weight in pairs:
            expert = weights[number]
            inner = gated(_linear(x[token], expert.gate_up, expert.gate_up_bias), gating)
            sums[token] += weight * _linear(inner, expert.down, expert.down_bias)
    return sums


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = weight.double() @ x.double()
    return out if bias is None else out + bias.double()
