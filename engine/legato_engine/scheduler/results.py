"""What the scheduler tells its caller. Plain data."""

from dataclasses import dataclass, field

import msgspec

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.transfers import IncomingTransfer
from legato_protocol.load import DecodeCoefficients, PrefillCoefficients
from legato_protocol.packed_logprobs import PackedLogprobs
from legato_protocol.stream import Finish


class Emission(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one choice: `index` is the output index of the first. With `finish` there will be no more."""

    request: Request
    choice: int
    index: int
    sampled: tuple[Sampled, ...]
    finish: Finish | None = None


class ScoredTokens(msgspec.Struct, frozen=True, gc=False):
    """Logprobs of a prompt's tokens from place `start` on."""

    request: Request
    start: int
    logprobs: PackedLogprobs


@dataclass(slots=True)
class StepResult:
    """What a step came to.

    `advanced` are the prefills for a hand-off and the migrating sequences that completed more blocks:
    `request.blocks[: request.full_blocks(block_size)]` can be pushed as soon as there is a grant.
    `prefilled` are prefills for a hand-off whose KV is complete and whose `first` holds every choice's token: in state
    COMPUTED (granted: hand over what is left, the partial last block included) or PARKED (no grant yet; after
    `OutgoingHandoffs.grant` it appears here once more, COMPUTED).
    `faulted` are requests that ended because nothing could be sampled for them, and why.
    """

    emissions: list[Emission] = field(default_factory=list)
    scored: list[ScoredTokens] = field(default_factory=list)
    faulted: list[tuple[Request, str]] = field(default_factory=list)
    advanced: list[Request] = field(default_factory=list)
    prefilled: list[Request] = field(default_factory=list)
    prompt_tokens: int = 0  # computed in rows that were not plain decodes, for the prefill rate
    prompts: list[tuple[Request, int]] = field(default_factory=list)  # and the tokens of each that nobody had computed
    decode_rows: int = 0


@dataclass(frozen=True, slots=True)
class SequenceKV:
    """What is handed over: `token_ids` are all known tokens, KV of the first `computed` lies in `blocks`."""

    token_ids: tuple[int, ...]
    computed: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """What `cancel` or `expire` ended, for the caller to abort the hand-offs among it.

    A request with `sending` keeps its blocks until `OutgoingHandoffs.abort`; an incoming transfer is abandoned
    already, and blocks that its source may write to are quarantined until `IncomingHandoffs.released`.
    """

    requests: tuple[Request, ...] = ()
    incoming: tuple[IncomingTransfer, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """Numbers for `Load`, which says what those of the same name are."""

    queue_tokens: int  # known tokens that are not computed and not cached, of all that wait or are being prefilled
    waiting: int  # requests and incoming transfers without blocks
    running: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    quarantined_blocks: int
    kv_utilization: float  # share of the used blocks' slots that hold KV; 1 without used blocks
    tokens_by_tenant: dict[str, int]  # computed so far, of some: see `tenants`
    parked: int
    parked_tokens: int
    granted_blocks: int
    pending_blocks: int
    growth_blocks: int
    decoding: int
    context_tokens: int
    preemptions: int
    shared_prompt_tokens: int
    paused_blocks: int
    prompts: int
    prompt_tokens: int
    prefill_cost: PrefillCoefficients | None
    decode_cost: DecodeCoefficients | None
