"""Adjusts logits before a token is chosen, greedy or not: logit_bias, penalties and masks.

Order and meaning are vLLM's: bias first, then the repetition penalty (tokens of prompt and output), then frequency and
presence penalties (tokens of the output), then masks: min_tokens, allowed_token_ids and bad_words. Finite logits stay
finite unless they are masked, and tokens that a grammar has masked stay masked. Adjustments depend only on the tokens,
so they are the same after a hand-off, a preemption or on another worker.
"""

from collections.abc import Iterator, Sequence
from operator import eq

import numpy as np
import numpy.typing as npt
import torch

from legato_engine.scheduler.batch import Draw

Ids = npt.NDArray[np.int64]

LARGEST = torch.finfo(torch.float32).max


def adjusts(draw: Draw) -> bool:
    """True if `adjust` would change the logits of this draw."""
    params = draw.params
    chosen = params.logit_bias or params.allowed_token_ids or params.bad_words
    return bool(chosen) or penalized(draw) or _masked(draw)


def penalized(draw: Draw) -> bool:
    """True if the draw has penalties."""
    params = draw.params
    return bool(params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty)


def adjust(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Changes `logits` (float32 [draws, vocab]) in place."""
    vocab, flat = logits.shape[1], logits.view(-1)
    biases = {
        row * vocab + token: bias
        for row, draw in enumerate(draws)
        for token, bias in draw.params.logit_bias.items()
        if 0 <= token < vocab
    }
    if biases:
        where = torch.tensor(list(biases), device=flat.device)
        added = torch.tensor(list(biases.values()), dtype=torch.float32, device=flat.device)
        value = flat[where]
        flat[where] = _bounded(value + added, value)
    if rows := [row for row, draw in enumerate(draws) if penalized(draw)]:
        _penalize(logits, rows, [draws[row] for row in rows])
    for row, draw in enumerate(draws):
        if draw.params.allowed_token_ids:
            _allow_only(logits[row], draw.params.allowed_token_ids)
    masked = [row * vocab + token for row, draw in enumerate(draws) for token in forbidden(draw) if 0 <= token < vocab]
    if masked:
        flat[torch.tensor(masked, device=flat.device)] = float("-inf")


def _allow_only(logits: torch.Tensor, tokens: Sequence[int]) -> None:
    allowed = torch.tensor([token for token in tokens if 0 <= token < len(logits)], device=logits.device)
    kept = logits[allowed]
    logits.fill_(float("-inf"))
    logits[allowed] = kept


def forbidden(draw: Draw) -> Iterator[int]:
    """Tokens that must not be sampled: ones that end the output too early, and ones that complete a bad word."""
    if _masked(draw):
        yield from draw.params.stop_token_ids
    output = len(draw.tokens) - draw.prompt_len
    for *begin, last in draw.params.bad_words:
        recent = draw.tokens[len(draw.tokens) - len(begin) :]
        if len(begin) <= output and all(map(eq, recent, begin)):
            yield last


def penalties(draw: Draw) -> tuple[Ids, npt.NDArray[np.float32]]:
    """The penalized tokens, ascending, and the amounts that frequency and presence penalties subtract.

    A repetition penalty applies to all of these tokens.
    """
    params = draw.params
    tokens, counts = draw.counts.follow(draw.tokens, draw.prompt_len, with_prompt=params.repetition_penalty != 1)
    times = np.array(counts, np.float32)
    drops = np.float32(params.frequency_penalty) * times + np.float32(params.presence_penalty)
    drops[times == 0] = 0
    return np.array(tokens, np.int64), drops


def _penalize(logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> None:
    """Applies penalties; draw i uses row `rows[i]`.

    Uses numpy, since torch's threads would cost more than the few numbers, and computes all rows in one batch, since
    calls for each row would be slow.
    """
    tables = [penalties(draw) for draw in draws]
    places = np.concatenate([tokens + row * logits.shape[1] for row, (tokens, _) in zip(rows, tables, strict=True)])
    factors = np.array([draw.params.repetition_penalty for draw in draws], np.float32)
    repetitions, drops = np.repeat(factors, [len(tokens) for tokens, _ in tables]), [drops for _, drops in tables]
    flat, where = logits.view(-1), torch.from_numpy(places).to(logits.device)
    value = flat.index_select(0, where).cpu().numpy()
    with np.errstate(over="ignore"):
        scaled = np.where(value > 0, value / repetitions, value * repetitions)
    bounded = (scaled - np.concatenate(drops)).clip(-LARGEST, LARGEST)
    changed = np.where(value == -np.inf, value, bounded)  # see `_bounded`
    flat.scatter_(0, where, torch.from_numpy(changed).to(logits.device))


def _bounded(changed: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Clamps to finite values, except for tokens that were masked before."""
    return torch.where(before == float("-inf"), before, changed.clamp(-LARGEST, LARGEST))


def _masked(draw: Draw) -> bool:
    params = draw.params
    if draw.constraint is not None:  # it decides where an answer may end
        return False
    return params.min_tokens > 0 and len(draw.tokens) - draw.prompt_len < params.min_tokens
