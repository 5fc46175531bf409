"""How busy a worker is, as it tells every gateway."""

from legato_protocol.messages import Count, Measure, Message, Size, Value

FASTEST = 1e12  # tokens per second: a rate beyond it is an error of measurement


class PrefillCoefficients(Value, frozen=True):
    """What prompts cost a worker, fitted to its steps: seconds a step, a token, and a pair of a token and one that it
    attends to. A step has at most `chunk_tokens`; lately, each of its tokens attended to `context` on average."""

    per_step: Measure
    per_token: Measure
    per_pair: Measure
    chunk_tokens: Size
    context: Measure = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of full steps with nothing beside them, at the context of late."""
        seconds = self.per_step / self.chunk_tokens + self.per_token + self.per_pair * self.context
        return min(1 / seconds, FASTEST) if seconds > 0 else 0.0


class DecodeCoefficients(Value, frozen=True):
    """A worker's cost of decoding, fitted to its steps: seconds a step, a sequence in it, and a token of context.

    `only_rows` is the number of sequences that all steps had: `per_step` has all of their cost then. 0 once it varied.
    """

    per_step: Measure
    per_row: Measure
    per_context: Measure
    only_rows: Count = 0


class TenantService(Value, frozen=True):
    """Tokens that a tenant was served: of prompts, computed, and of answers, emitted."""

    prompt: Count = 0
    output: Count = 0


class Load(Message, tag="load", frozen=True):
    """How busy this worker is. free + cached + used + quarantined blocks = all blocks, always."""

    queue_tokens: Count  # prompt tokens waiting that no cache covers
    waiting: Count
    running: Count
    free_blocks: Count
    cached_blocks: Count
    used_blocks: Count
    quarantined_blocks: Count
    prefill_rate: Measure = 0.0  # tokens per second, of `prefill_cost`; 0 before there was any
    step_time: Measure = 0.0  # seconds, smoothed, of steps that decoded
    draining: bool = False
    tokens_by_tenant: dict[str, Count] = {}  # of release 0.1.0; not sent any more: no gateway reads it
    credits: Count = 0  # how many more sequences this gateway may send before it is told again
    parked: Count = 0  # prefills that are computed, and wait for a receiver's blocks
    parked_tokens: Count = 0  # of `queue_tokens`: of prompts that do not begin before a receiver has blocks
    granted_blocks: Count = 0  # of `used_blocks`: for hand-offs that are not committed yet
    pending_blocks: Count = 0  # that sequences here ask for which have none
    growth_blocks: Count = 0  # that all sequences here are expected to need beyond that until they end
    slots: Count = 0  # sequences that can run at once; 0: it did not say
    decoding: Count = 0  # of `running`: sequences whose prompt is computed
    context_tokens: Count = 0  # of these, all together
    preemptions: Count = 0  # since this epoch began
    prefill_age: Measure = 0.0  # seconds since the last step with prompts
    decode_age: Measure = 0.0  # seconds since the last step that decoded
    prefill_cost: PrefillCoefficients | None = None  # None before there was any
    decode_cost: DecodeCoefficients | None = None
    step_age: Measure = 0.0  # seconds for which the step under way has been computed; 0: none is
    step_expected: Measure = 0.0  # seconds that it should take, by the steps before it; 0: nothing is known yet
    core_silence: Measure = 0.0  # above 0, the server repeats this for a core that has said nothing for so many seconds
    served_elsewhere: dict[str, TenantService] = {}  # since its last Load, to tenants through other gateways than this
    paused_blocks: Count = 0  # of `used_blocks`: those of paused sequences, which give way to others
    adapters: tuple[str, ...] = ()  # digests of those in memory
    prompts: Count = 0  # of `waiting` and `running`: sequences whose prompt is to be computed here, and is not yet
    prompt_tokens: Count = 0  # of `queue_tokens`: those of `prompts`; the others are of preempted sequences
