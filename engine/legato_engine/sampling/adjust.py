"""What changes logits before a token is chosen, also a greedy one: logit_bias, penalties, and what may not be said.

Order and meaning are vLLM's: bias first, then the repetition penalty (tokens of prompt and output), then frequency and
presence penalties (tokens of the output), and masks: min_tokens, allowed_token_ids and bad_words. Only the logits
concerned are touched, and those that are finite stay so, however large they become, but for masked ones; what a
grammar has masked before stays masked. All of it follows from the tokens alone, so it is the same after a hand-off, a
preemption or on another worker.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import eq

import torch

from legato_engine.scheduler.batch import Draw

LARGEST = torch.finfo(torch.float32).max


def adjusts(draw: Draw) -> bool:
    """Whether `adjust` would change anything for this draw."""
    params = draw.params
    chosen = params.logit_bias or params.allowed_token_ids or params.bad_words
    return bool(chosen) or _penalized(draw) or _masked(draw)


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
    for row, draw in enumerate(draws):
        if _penalized(draw):
            _penalize(logits[row], draw)
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
    """Tokens that may not come next: those that end the output too early, and each that would complete a bad word."""
    if _masked(draw):
        yield from draw.params.stop_token_ids
    output = len(draw.tokens) - draw.prompt_len
    for *begin, last in draw.params.bad_words:
        said = draw.tokens[len(draw.tokens) - len(begin) :]
        if len(begin) <= output and all(map(eq, said, begin)):
            yield last


def _penalize(logits: torch.Tensor, draw: Draw) -> None:
    params = draw.params
    if params.repetition_penalty != 1:
        seen = torch.tensor(list(set(draw.tokens)), device=logits.device)
        value = logits[seen]
        scaled = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
        logits[seen] = _bounded(scaled, value)
    said = Counter(draw.tokens[draw.prompt_len :])
    if said and (params.frequency_penalty or params.presence_penalty):
        where = torch.tensor(list(said), device=logits.device)
        counts = torch.tensor(list(said.values()), dtype=torch.float32, device=logits.device)
        value = logits[where]
        logits[where] = _bounded(value - (params.frequency_penalty * counts + params.presence_penalty), value)


def _bounded(changed: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Finite, but where the token was impossible before: it would be the most likely one where all others are."""
    return torch.where(before == float("-inf"), before, changed.clamp(-LARGEST, LARGEST))


def _penalized(draw: Draw) -> bool:
    params = draw.params
    return bool(params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty)


def _masked(draw: Draw) -> bool:
    params = draw.params
    if draw.constraint is not None:  # which says itself where an answer may end
        return False
    return params.min_tokens > 0 and len(draw.tokens) - draw.prompt_len < params.min_tokens
