"""Choosing tokens for a batch.

A random token is drawn by inverting the cumulative distribution at one number in (0, 1], in the order of token ids
and not of probability: two workers whose logits differ in the last bits then disagree only where the number lies that
close to a border, and tokens that tie cannot change places. Weights are summed one by one in float64, in an order that
no other row of the batch can change.
"""

from collections.abc import Sequence

import torch

from legato_engine.sampling import filters
from legato_engine.sampling.adjust import LARGEST, adjust, adjusts
from legato_engine.sampling.uniform import uniform
from legato_engine.scheduler.batch import Draw, Sampled
from legato_protocol.sampling_limits import GREEDY_BELOW
from legato_protocol.stream import SamplingParams, TokenLogprobs, TopLogprob

NOT_FINITE = "the model's logits for it are not finite numbers"
NOTHING_LEFT = "its parameters leave no token to sample"
LEAST_LOGPROB = -9999.0  # of a token that cannot be, as OpenAI and vLLM report it


def sample(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> list[Sampled]:
    """One token for each draw, from row `rows[i]` of `logits` (float32 [R, vocab], left as it is) for draw i.

    A batch whose draws are all greedy and plain costs one argmax. Logprobs are those of the logits as given, before
    penalties, temperature or filters, as OpenAI and vLLM report them. A draw from a row with NaN, or without a largest
    number, gets no token but a fault, which no parameter can bring about; the others are not touched by that.
    """
    if all(_greedy(draw.params) and not adjusts(draw) for draw in draws):
        best = logits.argmax(1)  # where there is a NaN it is found, so the value there judges the row
        found, sound = best.tolist(), logits.gather(1, best.unsqueeze(1))[:, 0].isfinite().tolist()
        tokens, faults = [found[row] for row in rows], ["" if sound[row] else NOT_FINITE for row in rows]
    else:
        tokens, faults = _choose(logits[torch.tensor(rows, device=logits.device)], draws)
    sampled = [Sampled(token) for token in tokens]
    if any(faults):
        sampled = [Sampled(0, None, fault) if fault else one for one, fault in zip(sampled, faults, strict=True)]
    reporting = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None and not faults[i]]
    if reporting:
        _add_logprobs(logits, draws, rows, sampled, reporting)
    return sampled


def _greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def _choose(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[str]]:
    """Tokens from each draw's own logits, which are changed, and why one could not be chosen, or ""."""
    sound = logits.amax(1).isfinite().tolist()  # as the model gave them
    changing = [i for i, draw in enumerate(draws) if adjusts(draw)]
    left = [True] * len(draws)
    if changing:
        where = torch.tensor(changing, device=logits.device)
        changed = logits[where]
        adjust(changed, [draws[i] for i in changing])
        logits[where] = changed
        for i, fine in zip(changing, changed.amax(1).isfinite().tolist(), strict=True):
            left[i] = fine
    faults = [
        "" if fine and some else NOTHING_LEFT if fine else NOT_FINITE for fine, some in zip(sound, left, strict=True)
    ]
    drawing = [i for i, draw in enumerate(draws) if not _greedy(draw.params)]
    if len(drawing) == len(draws):
        return _drawn(logits, draws).tolist(), faults
    tokens = logits.argmax(1)
    if drawing:
        where = torch.tensor(drawing, device=logits.device)
        tokens[where] = _drawn(logits[where], [draws[i] for i in drawing])
    return tokens.tolist(), faults


def _drawn(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    params = [draw.params for draw in draws]
    temperatures = torch.tensor([[p.temperature] for p in params], device=logits.device)
    logits = (logits / temperatures).clamp_(max=LARGEST)
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
    logprobs = (
        logits[torch.tensor([rows[i] for i in reporting], device=logits.device)].log_softmax(1).clamp_(LEAST_LOGPROB)
    )
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
