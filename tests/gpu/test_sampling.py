"""Tokens drawn from logits against plain arithmetic, in the vocabulary of a real model."""

import math
from dataclasses import replace

import torch
from places import Place, over

from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.sampling import sample as sampling


def _draws(place: Place, count: int, temperature: float, top_k: int, top_p: float) -> sampling.Draws:
    def all_of(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=place.device)

    return sampling.Draws(
        rows=place.ints(range(count)),
        numbers=torch.rand(count, dtype=torch.float64, device=place.device).clamp_(min=1e-9),
        top_ps=all_of(top_p, torch.float64),
        temperatures=all_of(temperature, torch.float32),
        log_min_ps=all_of(-math.inf, torch.float32),
        repetitions=all_of(1, torch.float32),
        top_ks=all_of(top_k, torch.int32),
        tops=all_of(-1, torch.int32),
        changes=all_of(-1, torch.int32),
        restricted=all_of(0, torch.int32),
    )


@over(filtered=((1.0, 0, 0.9), (1.0, 40, 1.0), (0.7, 0, 1.0), (0.0, 0, 1.0)), count=(3, 64), vocab=(500, 49152, 128256))
def test_drawn_tokens(
    place: Place, dtype: torch.dtype, filtered: tuple[float, int, float], count: int, vocab: int
) -> None:
    """A greedy token is the likeliest; a drawn one is where the share of the tokens up to it, by id, ends."""
    temperature, top_k, top_p = filtered
    config = choose("sampling", {}, place.chip)
    if place.small:  # a vocabulary of 500 is several tiles, as those of models are
        config = replace(config, tiles={"TILE": 128, "CHUNK": 64, "PIVOTS": 8, "ENTRIES": 16})
    logits = torch.randn(count, vocab, device=place.device) * 2
    logits.scatter_(1, torch.randint(0, vocab, (count, 30), device=place.device), 8.0)
    draws, empty = _draws(place, count, temperature, top_k, top_p), place.ints([-1] * count)
    tops = place.ints([[0] * sampling.MOST_TOPS] * count)
    results = sampling.Results(empty, empty.clone(), empty.float(), tops, tops.float())
    work = sampling.SamplingMemory(count, vocab, place.device, config)
    narrow = bool(top_k or top_p < 1)
    sampling.pick(logits, draws, work, results, drawn=temperature > 0, filtered=narrow, config=config)

    assert results.states.tolist() == [sampling.FINE] * count
    for row, token in enumerate(results.tokens.tolist()):
        if not temperature:
            assert token == int(logits[row].argmax())
            continue
        before, upto, whole = _shares(logits[row].double().cpu() / temperature, top_k, top_p, token)
        number = float(draws.numbers[row]) * whole
        assert before - 1e-6 * whole <= number <= upto + 1e-6 * whole


def _shares(scaled: torch.Tensor, top_k: int, top_p: float, token: int) -> tuple[float, float, float]:
    """Weights of the tokens before `token`, of these and it, and of all that may be drawn."""
    weights = (scaled - scaled.max()).exp()
    if top_k:
        weights[scaled < scaled.topk(top_k).values[-1]] = 0
    if top_p < 1:
        ordered = weights.sort(descending=True).values
        kept = int((ordered.cumsum(0) - ordered < top_p * ordered.sum()).sum())
        weights[weights < ordered[kept - 1]] = 0
    assert weights[token] > 0
    sums = weights.cumsum(0)
    return float(sums[token] - weights[token]), float(sums[token]), float(sums[-1])
