"""What one step computes: made by the scheduler, run by the runner. Plain data, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_protocol.stream import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample from a row's last logits.

    `position` is the absolute position that the sampled token will have: random numbers are keyed by
    (seed, choice, position), never by batch or step. `tokens` are all ids known before it (penalties read them;
    the first `prompt_len` are the prompt) – a live list, valid until the step is processed.
    """

    choice: int
    position: int
    params: SamplingParams
    tokens: Sequence[int]
    prompt_len: int


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of a step: computes `tokens` at positions `start, start+1, …`.

    `blocks` is its block table and covers positions `0 … start + len(tokens) - 1`; KV of positions before `start` is in
    those blocks already, KV of `tokens` is written there. With `draws`, tokens are sampled from the logits of the last
    position (several where the sequence is about to fork into choices); without, no logits are computed.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draws: tuple[Draw, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. `copies` are (from, to) blocks to copy whole before anything is computed (copy-on-write)."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token; `logprobs` where its request asked for them."""

    token: int
    logprobs: TokenLogprobs | None = None


# What a runner returns for a batch: for each row, one Sampled per draw.
StepOutput = tuple[tuple[Sampled, ...], ...]
