"""Samples tokens for a batch.

A random token is drawn by inverting the cumulative distribution at a number in (0, 1], in the order of token ids, not
of probability. Two workers whose logits differ in the last bits then disagree only if the number is that close to a
boundary, and tied tokens cannot change places. `kernels/reference/sampling.md` has the rule.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from legato_engine.kernels.cpu import sampling as by_numba
from legato_engine.kernels.torch import sampling as by_torch
from legato_engine.sampling.adjust import adjust, adjusts
from legato_engine.sampling.uniform import uniform
from legato_engine.scheduler.batch import Draw, Sampled
from legato_protocol.sampling.limits import GREEDY_BELOW
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

NOT_FINITE = "the model's logits for it are not finite numbers"
NOTHING_LEFT = "its parameters leave no token to sample"
LEAST_LOGPROB = -9999.0  # of an impossible token, as OpenAI and vLLM report it


def sample(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> list[Sampled]:
    """Samples one token for each draw: draw i from row `rows[i]` of `logits` (float32 [R, vocab], not changed).

    A batch of plain greedy draws costs one argmax. Logprobs are from the given logits, before penalties, temperature or
    filters, as OpenAI and vLLM report them. A draw from a row with NaN, or whose largest logit is infinite, gets a
    fault instead of a token; parameters cannot cause that. Other draws are not affected.
    """
    tokens, faults = _choose(logits, draws, rows)
    sampled = [Sampled(token) for token in tokens]
    if any(faults):
        sampled = [Sampled(0, None, fault) if fault else one for one, fault in zip(sampled, faults, strict=True)]
    reporting = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None and not faults[i]]
    if reporting:
        _add_logprobs(logits, draws, rows, sampled, reporting)
    return sampled


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def _choose(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> tuple[list[int], list[str]]:
    """The token of each draw, and its fault or ""."""
    tokens, faults = [0] * len(draws), [""] * len(draws)
    changing = [i for i, draw in enumerate(draws) if adjusts(draw)]
    plain = [i for i, draw in enumerate(draws) if not adjusts(draw)]
    for i, token, sound in _picked(logits, [draws[i] for i in plain], [rows[i] for i in plain], plain):
        tokens[i], faults[i] = token, "" if sound else NOT_FINITE
    if changing:
        changed = logits[torch.tensor([rows[i] for i in changing], device=logits.device)]
        given = changed.amax(1).isfinite().tolist()  # as the model gave them
        adjust(changed, [draws[i] for i in changing])
        picked = _picked(changed, [draws[i] for i in changing], range(len(changing)), changing)
        fine = dict(zip(changing, given, strict=True))
        for i, token, sound in picked:
            tokens[i], faults[i] = token, "" if fine[i] and sound else NOTHING_LEFT if fine[i] else NOT_FINITE
    return tokens, faults


def _picked(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], names: Sequence[int]
) -> Iterator[tuple[int, int, bool]]:
    """Yields each draw's name, its token, and whether its row of logits is finite."""
    greedy = [i for i, draw in enumerate(draws) if is_greedy(draw.params)]
    drawing = [i for i, draw in enumerate(draws) if not is_greedy(draw.params)]
    for chosen, pick in ((greedy, _best), (drawing, _drawn)):
        if chosen:
            tokens, sound = pick(logits, [draws[i] for i in chosen], [rows[i] for i in chosen])
            yield from zip([names[i] for i in chosen], tokens, sound, strict=True)


def _best(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> tuple[list[int], list[bool]]:
    best = logits.argmax(1)  # the index of a NaN if there is one, so that value shows whether the row is finite
    tokens, sound = best.tolist(), logits.gather(1, best.unsqueeze(1))[:, 0].isfinite().tolist()
    return [tokens[row] for row in rows], [sound[row] for row in rows]


def _drawn(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> tuple[list[int], list[bool]]:
    params, numbers = [draw.params for draw in draws], uniform(draws)
    if logits.device.type != "cpu":
        given = logits[torch.tensor(rows, device=logits.device)]
        drawn = by_torch.draw(given, params, torch.from_numpy(numbers).to(logits.device))
        return drawn.tolist(), given.amax(1).isfinite().tolist()
    tokens, sound = np.zeros(len(draws), np.int64), np.zeros(len(draws), np.bool_)
    by_numba.draw(
        logits.numpy(),
        np.array(rows, np.int64),
        np.array([p.temperature for p in params], np.float32),
        np.array([max(p.top_k, 0) for p in params], np.int64),
        np.array([p.top_p for p in params], np.float64),
        np.array([p.min_p for p in params], np.float32),
        numbers,
        tokens,
        sound,
    )
    return tokens.tolist(), sound.tolist()


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
