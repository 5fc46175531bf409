"""What one step computes: made by the scheduler, run by the runner. Plain data, no torch.

Structs, since dozens are made in each step and a frozen dataclass takes five times as long.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from legato_engine.scheduler.token_counts import TokenCounts
from legato_protocol.packed_logprobs import PackedLogprobs
from legato_protocol.sampling_params import SamplingParams
from legato_protocol.stream import TokenLogprobs


class DeadEnd(Exception):
    """No token may follow. The text says why."""


class Constraint(Protocol):
    """What one sequence's output has to match. It follows from the output alone, and remembers it only to be quick."""

    def allowed(self, output: Sequence[int], stops: Sequence[int], early: bool) -> bytes:
        """Tokens that may follow `output`, a bit for each id, lowest first, in words of 32 bits: of `stops` all where
        it is a whole answer, else none, and with `early` only if nothing else may follow. Empty where all may. Raises
        DeadEnd."""
        ...

    def at_start(self) -> "Constraint":
        """The same for another sequence."""
        ...


class Adapter(Protocol):
    """What is added to a model's linear layers for some sequences, as the runner that made it takes it."""

    @property
    def nbytes(self) -> int: ...


class Draw(msgspec.Struct, frozen=True, gc=False):
    """One token to sample from a row's last logits.

    `position` is the absolute position that the sampled token will have: random numbers are keyed by
    (seed, choice, position), never by batch or step. `tokens` are all ids known before it (the first `prompt_len` are
    the prompt) – a live list, valid until the step is processed. One that the step before is sampling is missing at
    first: no parameter of such a draw reads tokens. Penalties follow from `counts`, those of the sequence, which read
    of `tokens` what they have not read yet.
    """

    choice: int
    position: int
    params: SamplingParams
    tokens: Sequence[int]
    prompt_len: int
    constraint: Constraint | None = None
    counts: TokenCounts = msgspec.field(default_factory=TokenCounts)


class Targets(msgspec.Struct, frozen=True, gc=False):
    """Tokens of a prompt whose logprobs are asked for, with so many alternatives: that of the i-th follows from the
    logits after the row's i-th token."""

    tokens: Sequence[int]
    alternatives: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step: computes `tokens` at positions `start, start+1, …`.

    `blocks` is its block table and covers positions `0 … start + len(tokens) - 1`; KV of positions before `start` is in
    those blocks already, KV of `tokens` is written there. With `draws`, tokens are sampled from the logits of the last
    position (several where the sequence is about to fork into choices); without, no logits are computed but those that
    `targets` ask for. A row of a step that is launched before the one before it is processed may name its one token as
    -1 - j: what the j-th draw of the step before samples.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draws: tuple[Draw, ...] = ()
    targets: Targets | None = None
    adapter: Adapter | None = None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One step. `copies` are (from, to) blocks to copy whole before anything is computed (copy-on-write)."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """A sampled token; `logprobs` where its request asked for them.

    With `fault` there is none, and it says why: `token` means nothing then."""

    token: int
    logprobs: TokenLogprobs | None = None
    fault: str = ""


class Scored(msgspec.Struct, frozen=True, gc=False):
    """What a row with targets came to: their logprobs and, as for any row, one Sampled per draw.

    `seconds` of the step were spent on the logprobs. With `fault` there are none, and it says why."""

    logprobs: PackedLogprobs
    sampled: tuple[Sampled, ...]
    seconds: float
    fault: str = ""


# What a runner returns for a batch: for each row, one Sampled per draw; more for rows with targets.
StepOutput = tuple[tuple[Sampled, ...] | Scored, ...]
