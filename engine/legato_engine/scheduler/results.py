"""Results that the scheduler returns to its caller. Plain data."""

from dataclasses import dataclass, field

import msgspec

from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.transfers import IncomingTransfer
from legato_engine.scheduler.requests.request import Request
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import Finish


class Emission(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one choice; `index` is the output index of the first. With `finish` they are the last."""

    request: Request
    choice: int
    index: int
    sampled: tuple[Sampled, ...]
    finish: Finish | None = None


class ScoredTokens(msgspec.Struct, frozen=True, gc=False):
    """Logprobs of a prompt's tokens from position `start` on."""

    request: Request
    start: int
    logprobs: PackedLogprobs


@dataclass(slots=True)
class StepResult:
    """The results of a step.

    `advanced` are prefills for a hand-off and migrating sequences that completed more blocks:
    `request.blocks[: request.full_blocks(block_size)]` can be pushed as soon as there is a grant.
    `prefilled` are prefills for a hand-off whose KV is complete and whose `first` has every choice's token: in state
    COMPUTED (granted: the remaining blocks can be handed over, including the partial one) or PARKED (no grant yet;
    after `OutgoingHandoffs.grant` it appears here once more, COMPUTED).
    `faulted` are requests that ended because no token could be sampled for them, with the reason.
    """

    emissions: list[Emission] = field(default_factory=list)
    scored: list[ScoredTokens] = field(default_factory=list)
    faulted: list[tuple[Request, str]] = field(default_factory=list)
    advanced: list[Request] = field(default_factory=list)
    prefilled: list[Request] = field(default_factory=list)
    prompt_tokens: int = 0  # computed in rows that were not plain decodes, for the prefill rate
    prompts: list[tuple[Request, int]] = field(
        default_factory=list
    )  # and the tokens of each computed for the first time
    decode_rows: int = 0
    drafted: int = 0  # tokens that were verified
    accepted: int = 0  # of these: tokens that the model sampled, too
    drafting: float = 0.0  # seconds that a draft model computed before the step


@dataclass(frozen=True, slots=True)
class SequenceKV:
    """The sequence to hand over: `token_ids` are all known tokens, `blocks` has the KV of the first `computed`.

    `windows` has the blocks that the next token sees, in groups of layers with a window.
    """

    token_ids: tuple[int, ...]
    computed: int
    blocks: tuple[int, ...]
    windows: tuple[WindowTable, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedSequences:
    """Requests and transfers that `cancel` or `expire` ended; the caller aborts their hand-offs.

    A request with `sending` keeps its blocks until `OutgoingHandoffs.abort`. An incoming transfer is already abandoned;
    blocks that its source may write to are quarantined until `IncomingHandoffs.on_released`.
    """

    requests: tuple[Request, ...] = ()
    incoming: tuple[IncomingTransfer, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """The scheduler's part of `Load`, which explains the fields."""

    queue_tokens: int  # known tokens, neither computed nor cached, of waiting sequences and running prompts
    waiting: int  # requests and incoming transfers without blocks
    running: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    quarantined_blocks: int
    kv_utilization: float  # share of the used blocks' slots that hold KV; 1 without used blocks
    tokens_by_tenant: dict[str, int]  # computed tokens of some tenants, see `tenants`
    parked: int
    parked_tokens: int
    granted_blocks: int
    pending_blocks: int
    growth_blocks: int
    next_growth_blocks: int
    decoding: int
    context_tokens: int
    preemptions: int
    shared_prompt_tokens: int
    paused_blocks: int
    paused: int  # sequences, also waiting ones
    granted: int  # sequences of incoming transfers that have blocks and a slot
    prompts: int
    prompt_tokens: int
    prefill_cost: PrefillCoefficients | None
    decode_cost: DecodeCoefficients | None
    tiers: dict[str, TierCounts]  # by name, as in `kv_events.TIERS`
