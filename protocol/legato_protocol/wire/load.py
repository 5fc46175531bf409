"""The load of a worker, which it sends to every gateway."""

from legato_protocol.wire.messages import Count, Measure, Message, Size, Value

FASTEST = 1e12  # tokens per second; a higher rate is a measurement error


class PrefillCoefficients(Value, frozen=True):
    """A worker's cost of prompts, fitted to its steps: seconds per step, per token, and per pair of a token and a token
    that it attends to. A step has at most `chunk_tokens`; `context` is the recent mean number of tokens attended to."""

    per_step: Measure
    per_token: Measure
    per_pair: Measure
    chunk_tokens: Size
    context: Measure = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of full steps without decoding rows, at the recent mean context."""
        seconds = self.per_step / self.chunk_tokens + self.per_token + self.per_pair * self.context
        return min(1 / seconds, FASTEST) if seconds > 0 else 0.0


class DecodeCoefficients(Value, frozen=True):
    """A worker's cost of decoding, fitted to its steps: seconds per step, per sequence, and per token of context.

    Where steps give a sequence several tokens on average (speculation), it is the cost of a step by that number.
    While all steps had the same number of sequences, `only_rows` is that number and `per_step` includes their cost; 0
    once it has varied.
    """

    per_step: Measure
    per_row: Measure
    per_context: Measure
    only_rows: Count = 0


class TenantService(Value, frozen=True):
    """Tokens that a tenant was served: computed prompt tokens and emitted output tokens."""

    prompt: Count = 0
    output: Count = 0


class Load(Message, tag="load", frozen=True):
    """The load of this worker. free + cached + used + quarantined blocks = all blocks, always."""

    queue_tokens: Count  # queued prompt tokens that no cache covers
    waiting: Count
    running: Count
    free_blocks: Count
    cached_blocks: Count
    used_blocks: Count
    quarantined_blocks: Count
    prefill_rate: Measure = 0.0  # tokens per second, from `prefill_cost`; 0 before the first measurement
    step_time: Measure = 0.0  # seconds of a decoding step for each token that a sequence got in it, smoothed
    draining: bool = False
    tokens_by_tenant: dict[str, Count] = {}  # of release 0.1.0: no longer sent, and no gateway reads it
    credits: Count = 0  # number of further sequences that this gateway may send before the next Load
    parked: Count = 0  # computed prefills that wait for a receiver's blocks
    parked_tokens: Count = 0  # of `queue_tokens`: prompts that wait for a receiver's blocks before they start
    granted_blocks: Count = 0  # of `used_blocks`: granted to hand-offs that are not committed yet
    pending_blocks: Count = 0  # requested by sequences here that have no blocks yet
    growth_blocks: Count = 0  # most further blocks that all sequences here are expected to need at one time
    slots: Count = 0  # sequences that can run in one batch; 0: not reported
    decoding: Count = 0  # of `running`: sequences whose prompt is computed
    context_tokens: Count = 0  # sum over the decoding sequences
    preemptions: Count = 0  # since this epoch began
    prefill_age: Measure = 0.0  # seconds since the last step with prompts
    decode_age: Measure = 0.0  # seconds since the last step that decoded
    prefill_cost: PrefillCoefficients | None = None  # None before the first measurement
    decode_cost: DecodeCoefficients | None = None
    step_age: Measure = 0.0  # seconds since the running step began; 0: no step is running
    step_expected: Measure = 0.0  # seconds that the running step should take; 0: unknown
    core_silence: Measure = 0.0  # seconds without a report of the core, for which the server repeats its last Load
    served_elsewhere: dict[str, TenantService] = {}  # since its last Load, to tenants through other gateways
    paused_blocks: Count = 0  # of `used_blocks`: blocks of paused sequences, which are preempted first
    adapters: tuple[str, ...] = ()  # digests of the adapters in memory
    prompts: Count = 0  # of `waiting` and `running`: sequences whose prompt is not computed yet, but will be here
    prompt_tokens: Count = 0  # of `queue_tokens`: tokens of `prompts`; the others belong to preempted sequences
    paused: Count = 0  # of `waiting` and `running`: sequences that yield their slots and blocks to others
    granted: Count = 0  # sequences of hand-offs that have blocks and a slot here, but no KV yet
    restore_seconds: tuple[Measure, ...] = ()  # of a block, for each of `Hello.tiers`; 0 before the first measurement
    put_rate: Measure = 0.0  # KV blocks per second that its recent puts wrote to other workers; 0: not measured
    shares_cores: bool = False  # its steps take time slices of cores that other workers use, too
    next_growth_blocks: Count = 0  # by which one more sequence like those here would raise `growth_blocks`
