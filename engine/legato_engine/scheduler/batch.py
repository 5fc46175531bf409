"""Plain data of one step, which the scheduler plans and the runner computes. No torch.

Structs, since each step creates dozens: creating a frozen dataclass takes five times as long.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from legato_engine.kvcache.moves import Move
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.requests.token_counts import TokenCounts
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import TokenLogprobs


class DeadEnd(Exception):
    """The constraint allows no token. The text says why."""


class Constraint(Protocol):
    """A grammar that the output of a sequence has to match. Its state is a cache: it follows from the output."""

    def allowed(self, output: Sequence[int], stops: Sequence[int], early: bool) -> bytes:
        """Tokens that may follow `output`: a bit for each id, lowest first, in words of 32 bits; empty if all may.

        All `stops` are allowed if `output` is complete, else none; with `early` only if nothing else may follow. Raises
        DeadEnd if no token may follow. The last tokens of an earlier `output` may have been replaced: rejected drafts.
        """
        ...

    def accepted(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """Number of leading `drafts` that may follow `output`; fewer if that is not certain."""
        ...

    def at_start(self) -> "Constraint":
        """The same constraint for a new sequence."""
        ...


class LoadedAdapter(Protocol):
    """A LoRA adapter in memory, in the form of the runner that loaded it."""

    @property
    def nbytes(self) -> int: ...


class Draw(msgspec.Struct, frozen=True, gc=False):
    """One token to sample from a row's last logits.

    `position` is the absolute position that the sampled token will have: random numbers are keyed by
    (seed, choice, position), never by batch or step. `tokens` are all ids before it, of which the first `prompt_len`
    are the prompt: a live list, valid until the step is processed. It lacks drafts, and a token that the previous step
    is still sampling, where no parameter of the draw reads tokens. Penalties follow from `counts` of the sequence,
    which are brought up to date from `tokens` when they are needed.
    """

    choice: int
    position: int
    params: SamplingParams
    tokens: Sequence[int]
    prompt_len: int
    constraint: Constraint | None = None
    counts: TokenCounts = msgspec.field(default_factory=TokenCounts)


class Targets(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens whose logprobs are requested, with the number of alternatives.

    The logprob of the i-th follows from the logits after the row's i-th token.
    """

    tokens: Sequence[int]
    alternatives: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step: computes `tokens` at positions `start, start+1, …`.

    `blocks` is its block table and covers positions `0 … start + len(tokens) - 1`; KV of positions before `start` is in
    those blocks already, KV of `tokens` is written there. `windows` are the tables of further groups of layers, which
    cover all positions that `tokens` see. With `draws`, tokens are sampled from the logits of the last
    position (several if the sequence is about to fork into choices); without, logits are only computed for `targets`.
    In a step that is launched before the previous one is processed, a row's only token may be -1 - j: the token that
    the j-th draw of the previous step samples.

    The last `drafts` tokens of a row are guesses at its sequence's next ones. Such a row has one draw for the logits of
    its last known token and one for the logits of each draft, as if all drafts up to there were right.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draws: tuple[Draw, ...] = ()
    targets: Targets | None = None
    adapter: LoadedAdapter | None = None
    windows: tuple[WindowTable, ...] = ()
    drafts: int = 0

    @property
    def decodes(self) -> bool:
        """True if the row computes the KV of one known token, and samples the next."""
        return len(self.tokens) == 1 + self.drafts and len(self.draws) > 0


class DraftRow(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step of a draft model: computes known `tokens` at positions `start, start+1, …`, and
    drafts up to `count` tokens that follow them.

    The first one has the parameters of `draw`, the model's own draw of the next token. KV lies in the draft model's
    arena, in blocks with the numbers of the model's: `blocks` covers all these positions.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    count: int
    draw: Draw


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One step. First `moves` from and to slots of the host are done, in order, then `copies` of blocks (from, to), for
    copy-on-write; then rows are computed. A step of the draft model has no `rows`, but `drafting`."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()
    moves: tuple[Move, ...] = ()
    drafting: tuple[DraftRow, ...] = ()


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """A sampled token; with `logprobs` if its request asked for them.

    `fault` says why no token could be sampled; `token` is meaningless then.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    fault: str = ""


class Scored(msgspec.Struct, frozen=True, gc=False):
    """Output of a row with targets: their logprobs and, as for any row, one Sampled per draw.

    `seconds` of the step were spent on the logprobs. `fault` says why there are none.
    """

    logprobs: PackedLogprobs
    sampled: tuple[Sampled, ...]
    seconds: float
    fault: str = ""


# A runner's output for a batch: for each row, one Sampled per draw, or Scored if the row has targets. For a step of the
# draft model: the drafts of each row, with their logprobs by that model.
StepOutput = tuple[tuple[Sampled, ...] | Scored, ...]
