"""Choosing tokens for a batch.

A random token is drawn by inverting the cumulative distribution at one number in (0, 1], in the order of token ids
and not of probability: two workers whose logits differ in the last bits then disagree only where the number lies that
close to a border, and tokens that tie cannot change places. Weights are summed one by one in float64, in an order that
no other row of the batch can change.
"""

from collections.abc import Sequence

import torch

from legato_engine.sampling import filters
from legato_engine.sampling.adjust import adjust, adjusts
from legato_engine.sampling.uniform import uniform
from legato_engine.scheduler.batch import Draw, Sampled
from legato_protocol.sampling_limits import GREEDY_BELOW
from legato_protocol.stream import SamplingParams, TokenLogprobs, TopLogprob

NO_NUMBERS = "the model's logits are not numbers"


def sample(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> list[Sampled]:
    """One token for each draw, from row `rows[i]` of `logits` (float32 [R, vocab], left as it is) for draw i.

    A batch whose draws are all greedy and plain costs one argmax. Logprobs are those of the logits as given, before
    penalties, temperature or filters, as OpenAI and vLLM report them. A draw from a row with NaN, or without a largest
    number, gets no token but a fault; the others are not touched by that.
    """
    if all(_greedy(draw.params) and not adjusts(draw) for draw in draws):
        best = logits.argmax(1)  # where there is a NaN it is found, so the value there judges the row
        tokens, sound = _told(best, logits.gather(1, best.unsqueeze(1))[:, 0])
        tokens, sound = [tokens[row] for row in rows], [sound[row] for row in rows]
    else:
        tokens, sound = _choose(logits[torch.tensor(rows, device=logits.device)], draws)
    sampled = [Sampled(token) for token in tokens]
    if not all(sound):
        sampled = [one if fine else Sampled(0, None, NO_NUMBERS) for one, fine in zip(sampled, sound, strict=True)]
    reporting = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None and sound[i]]
    if reporting:
        _add_logprobs(logits, draws, rows, sampled, reporting)
    return sampled


def _told(tokens: torch.Tensor, largest: torch.Tensor) -> tuple[list[int], list[bool]]:
    """Tokens, and whether the largest logit of their rows is a number."""
    return tokens.tolist(), largest.isfinite().tolist()


def _greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def _choose(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[bool]]:
    """Tokens from each draw's own logits, which are changed, and whether they could be chosen."""
    changing = [i for i, draw in enumerate(draws) if adjusts(draw)]
    if changing:
        where = torch.tensor(changing, device=logits.device)
        changed = logits[where]
        adjust(changed, [draws[i] for i in changing])
        logits[where] = changed
    largest = logits.amax(1)
    drawing = [i for i, draw in enumerate(draws) if not _greedy(draw.params)]
    if len(drawing) == len(draws):
        return _told(_drawn(logits, draws), largest)
    tokens = logits.argmax(1)
    if drawing:
        where = torch.tensor(drawing, device=logits.device)
        tokens[where] = _drawn(logits[where], [draws[i] for i in drawing])
    return _told(tokens, largest)


def _drawn(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    params = [draw.params for draw in draws]
    logits = logits / torch.tensor([[p.temperature] for p in params], device=logits.device)
    weights = (logits.double() - logits.amax(1, keepdim=True)).exp_()
    floor = filters.thresholds(logits, weights, params)
    if floor is not None:
        weights.masked_fill_(logits < floor, 0)
    cumulative = weights.cumsum(1)
    target = torch.from_numpy(uniform(draws)).to(logits.device).unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target)[:, 0]


def _add_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], sampled: list[Sampled], reporting: Sequence[int]
) -> None:
    logprobs = logits[torch.tensor([rows[i] for i in reporting], device=logits.device)].log_softmax(1)
    chosen = torch.tensor([[sampled[i].token] for i in reporting], device=logits.device)
    own = logprobs.gather(1, chosen)[:, 0].tolist()
    most = min(max(draws[i].params.logprobs or 0 for i in reporting), logits.shape[1])
    best = torch.topk(logprobs, most, sorted=True)
    ids, values = best.indices.tolist(), best.values.tolist()
    for place, i in enumerate(reporting):
        count = draws[i].params.logprobs or 0
        pairs = zip(ids[place][:count], values[place][:count], strict=True)
        top = tuple(TopLogprob(token, value) for token, value in pairs)
        sampled[i] = Sampled(sampled[i].token, TokenLogprobs(own[place], top))
