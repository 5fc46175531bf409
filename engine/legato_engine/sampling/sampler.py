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
from legato_protocol.stream import SamplingParams, TokenLogprobs, TopLogprob

GREEDY_BELOW = 1e-5  # temperatures too small to divide by


def sample(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> list[Sampled]:
    """One token for each draw, from row `rows[i]` of `logits` (float32 [R, vocab], left as it is) for draw i.

    A batch whose draws are all greedy and plain costs one argmax. Logprobs are those of the logits as given, before
    penalties, temperature or filters, as OpenAI and vLLM report them.
    """
    if all(_greedy(draw.params) and not adjusts(draw) for draw in draws):
        best = logits.argmax(1).tolist()
        tokens = [best[row] for row in rows]
    else:
        tokens = _choose(logits[torch.tensor(rows, device=logits.device)], draws)
    reporting = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None]
    if not reporting:
        return [Sampled(token) for token in tokens]
    return _with_logprobs(logits, draws, rows, tokens, reporting)


def _greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def _choose(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Tokens from each draw's own logits, which are changed."""
    changing = [i for i, draw in enumerate(draws) if adjusts(draw)]
    if changing:
        where = torch.tensor(changing, device=logits.device)
        changed = logits[where]
        adjust(changed, [draws[i] for i in changing])
        logits[where] = changed
    drawing = [i for i, draw in enumerate(draws) if not _greedy(draw.params)]
    if len(drawing) == len(draws):
        return _drawn(logits, draws).tolist()
    tokens = logits.argmax(1)
    if drawing:
        where = torch.tensor(drawing, device=logits.device)
        tokens[where] = _drawn(logits[where], [draws[i] for i in drawing])
    return tokens.tolist()


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


def _with_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], tokens: Sequence[int], reporting: Sequence[int]
) -> list[Sampled]:
    sampled = [Sampled(token) for token in tokens]
    logprobs = logits[torch.tensor([rows[i] for i in reporting], device=logits.device)].log_softmax(1)
    chosen = torch.tensor([[tokens[i]] for i in reporting], device=logits.device)
    own = logprobs.gather(1, chosen)[:, 0].tolist()
    most = min(max(draws[i].params.logprobs or 0 for i in reporting), logits.shape[1])
    best = torch.topk(logprobs, most, sorted=True)
    ids, values = best.indices.tolist(), best.values.tolist()
    for place, i in enumerate(reporting):
        count = draws[i].params.logprobs or 0
        pairs = zip(ids[place][:count], values[place][:count], strict=True)
        top = tuple(TopLogprob(token, value) for token, value in pairs)
        sampled[i] = Sampled(tokens[i], TokenLogprobs(own[place], top))
    return sampled
