"""What changes logits before a token is chosen, also a greedy one: min_tokens, logit_bias and penalties.

Order and meaning are vLLM's: bias and masks first, then the repetition penalty (tokens of prompt and output), then
frequency and presence penalties (tokens of the output). Only the logits concerned are touched.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from legato_engine.scheduler.batch import Draw


def adjusts(draw: Draw) -> bool:
    """Whether `adjust` would change anything for this draw."""
    return bool(draw.params.logit_bias) or _penalized(draw) or _masked(draw)


def adjust(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Changes `logits` (float32 [draws, vocab]) in place."""
    vocab = logits.shape[1]
    flat = logits.view(-1)
    places: list[int] = []
    values: list[float] = []
    for row, draw in enumerate(draws):
        for token, bias in draw.params.logit_bias.items():
            if 0 <= token < vocab:
                places.append(row * vocab + token)
                values.append(bias)
        if _masked(draw):
            stops = [row * vocab + token for token in set(draw.params.stop_token_ids) if 0 <= token < vocab]
            places += stops
            values += [float("-inf")] * len(stops)
    if places:
        where = torch.tensor(places, device=flat.device)
        flat.index_add_(0, where, torch.tensor(values, dtype=torch.float32, device=flat.device))
    for row, draw in enumerate(draws):
        if _penalized(draw):
            _penalize(logits[row], draw)


def _penalize(logits: torch.Tensor, draw: Draw) -> None:
    params = draw.params
    if params.repetition_penalty != 1:
        seen = torch.tensor(list(set(draw.tokens)), device=logits.device)
        value = logits[seen]
        logits[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    said = Counter(draw.tokens[draw.prompt_len :])
    if said and (params.frequency_penalty or params.presence_penalty):
        where = torch.tensor(list(said), device=logits.device)
        counts = torch.tensor(list(said.values()), dtype=torch.float32, device=logits.device)
        logits[where] -= params.frequency_penalty * counts + params.presence_penalty


def _penalized(draw: Draw) -> bool:
    params = draw.params
    return bool(params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty)


def _masked(draw: Draw) -> bool:
    params = draw.params
    return params.min_tokens > 0 and len(draw.tokens) - draw.prompt_len < params.min_tokens
