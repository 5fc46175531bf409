"""What is known of one service when the autoscaler decides: measured, and summed over all gateways. No decisions.

`None` is always "not known": nobody answered, or nothing was measured yet. It holds a pool as it is. Zero is a
measurement: no traffic lets a pool shrink. Each worker stands here once, however many gateways told of it.

Units: tokens, blocks of KV cache, seconds, requests. A rate is per second.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from legato_protocol.demand import WaitCause

Pool = Literal["prefill", "decode"]  # without a prefill pool, the decode pool holds `unified` workers


@dataclass(frozen=True)
class PrefillCost:
    """Seconds that prompt tokens take on this worker, fitted to its steps without cold ones.

    A prompt of n tokens after c cached ones takes about `per_token` x n + `per_pair` x n (c + (n + 1) / 2).
    """

    per_token: float  # in a full step: with its share of what a step costs by itself
    per_pair: float = 0.0  # for each pair of a token and one that it attends to
    per_step: float = 0.0  # what a step costs by itself
    chunk_tokens: int = 1  # of a full step

    def seconds(self, tokens: float, cached: float = 0.0) -> float:
        """For a prompt with so many uncached tokens after `cached` ones."""
        return tokens * (self.per_token + self.per_pair * (cached + (tokens + 1) / 2))

    def steps(self, tokens: int) -> int:
        """For a prompt alone."""
        return math.ceil(tokens / self.chunk_tokens)

    def alone(self, tokens: int) -> float:
        """Seconds from the first step to the last one of a prompt beside which nothing is computed: nothing else
        fills up its last step."""
        unused = self.steps(tokens) * self.chunk_tokens - tokens
        return self.seconds(tokens) + unused * self.per_step / self.chunk_tokens


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of a step that decodes, fitted: `fixed` + `per_row` x rows + `per_context` x tokens of their context.

    `only_rows` is the number of rows that all steps had: `fixed` has all of their cost then. 0 once it varied.
    """

    fixed: float
    per_row: float
    per_context: float = 0.0
    only_rows: int = 0

    def seconds(self, rows: float, context: float) -> float:
        """Of a step with so many rows and tokens of context, of all rows together."""
        return self.fixed + self.per_row * rows + self.per_context * context


@dataclass(frozen=True)
class Blocks:
    """The KV cache of a worker, in blocks of `size` tokens. free + cached + used + quarantined = all of them."""

    free: int
    cached: int  # nobody's, kept for later prompts: as good as free
    used: int  # of running sequences, and granted ones, whose KV is on its way
    quarantined: int = 0
    granted: int = 0  # part of `used`
    pending: int = 0  # that sequences need which were accepted and have no blocks yet
    growth: int = 0  # expected beyond that, until those which run or wait have finished
    size: int = 16

    @property
    def total(self) -> int:
        """All blocks."""
        return self.free + self.cached + self.used + self.quarantined


@dataclass(frozen=True)
class WorkerSignals:
    """One worker, as it told last. `sample_age` None: it has not told anything that counts."""

    name: str
    pool: Pool
    ready: bool  # it serves; one that is not ready and not draining is starting
    draining: bool = False
    age: float = 0.0  # seconds since its pod was created
    start_seconds: float | None = None  # from its creation until it was ready
    sample_age: float | None = None  # seconds
    queue_tokens: int | None = None  # uncached prompt tokens that wait or are being prefilled
    parked_tokens: int | None = None  # of those, of prompts that wait for a decode worker's blocks
    prefill_cost: PrefillCost | None = None
    decode_cost: DecodeCost | None = None
    blocks: Blocks | None = None
    running: int | None = None  # sequences that decode
    waiting: int | None = None  # sequences accepted that do not decode yet
    prompts: int = 0  # of these, sequences whose prompt is to be computed on this worker
    prompt_tokens: int | None = None  # of `queue_tokens`, those of `prompts`; the others are of preempted sequences
    slots: int | None = None  # sequences that can decode at once
    context_tokens: int | None = None  # before the rows that decode, all together


@dataclass(frozen=True)
class PromptLengths:
    """Requests of similar length: those with `least` or more uncached prompt tokens, and less than twice as many."""

    least: int  # tokens; a power of two
    requests: int
    tokens: int  # uncached, of all of them together


@dataclass(frozen=True)
class OutputLengths:
    """Of finished requests, lately. Tokens."""

    mean: float
    deviation: float  # standard deviation


@dataclass(frozen=True)
class Traffic:
    """What gateways tell, all together. An empty tuple is zero."""

    seconds: float  # over which `arrivals` are counted, the last ones; about 60
    arrivals: tuple[PromptLengths, ...]  # requests admitted or held; refused ones are not served by any number
    recent_seconds: float  # about 10
    recent: tuple[PromptLengths, ...]  # what arrived in these
    waiting: tuple[PromptLengths, ...] = ()  # requests without a first token, wherever they are now
    held: int = 0  # requests that no worker has accepted
    held_tokens: int = 0  # uncached prompt tokens of these
    held_prompt_tokens: int = 0  # all of their prompt tokens: what they need room for in decode workers
    output: OutputLengths | None = None  # None before any request has finished
    head_wait: Mapping[WaitCause, float] = field(default_factory=dict)  # seconds, lately, that the head of the queue
    # waited, by what it waited for
    newest_seconds: float = 0.0  # about 4; 0 where it is not known
    newest: tuple[PromptLengths, ...] = ()  # what arrived in these


@dataclass(frozen=True)
class Signals:
    """All that a decision is made from."""

    workers: tuple[WorkerSignals, ...]
    traffic: Traffic | None = None  # None: not all gateways answered

    def of_pool(self, pool: Pool) -> tuple[WorkerSignals, ...]:
        """Workers of one pool that are not on their way out."""
        return tuple(worker for worker in self.workers if worker.pool == pool and not worker.draining)
