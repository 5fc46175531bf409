"""Inputs of the autoscaler for one service: measurements, summed over all gateways.

`None` always means unknown: nobody answered, or nothing was measured yet; it keeps a pool from shrinking. Zero is a
measurement: without traffic a pool shrinks. Each worker is listed once, however many gateways reported it.

Units: tokens, blocks of KV cache, seconds, requests. A rate is per second.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from legato_protocol.wire.demand import WaitCause

Pool = Literal["prefill", "decode"]  # without a prefill pool, the decode pool holds `unified` workers


@dataclass(frozen=True)
class PrefillCost:
    """Seconds of prompt tokens on this worker, fitted to its steps without cold ones.

    A prompt of n tokens after c cached ones takes about `per_token` x n + `per_pair` x n (c + (n + 1) / 2).
    """

    per_token: float  # in a full step: includes the token's share of `per_step`
    per_pair: float = 0.0  # for each pair of a token and a token that it attends to
    per_step: float = 0.0  # fixed cost of a step
    chunk_tokens: int = 1  # of a full step

    def seconds(self, tokens: float, cached: float = 0.0) -> float:
        """Returns the seconds of a prompt's uncached tokens after `cached` ones."""
        return tokens * (self.per_token + self.per_pair * (cached + (tokens + 1) / 2))

    def steps(self, tokens: int) -> int:
        """Returns the steps of a prompt computed by itself."""
        return math.ceil(tokens / self.chunk_tokens)

    def alone(self, tokens: int) -> float:
        """Returns the seconds of a prompt computed by itself: nothing else fills its last step."""
        unused = self.steps(tokens) * self.chunk_tokens - tokens
        return self.seconds(tokens) + unused * self.per_step / self.chunk_tokens


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of a step that decodes, fitted: `fixed` + `per_row` x rows + `per_context` x tokens of their context.

    `only_rows` is the number of rows if all steps had the same: `fixed` then includes their cost. 0 once it varied.
    """

    fixed: float
    per_row: float
    per_context: float = 0.0
    only_rows: int = 0

    def seconds(self, rows: float, context: float) -> float:
        """Returns the seconds of a step, given its rows and the context tokens of all rows together."""
        return self.fixed + self.per_row * rows + self.per_context * context


@dataclass(frozen=True)
class Blocks:
    """The KV cache of a worker, in blocks of `size` tokens. free + cached + used + quarantined = all of them."""

    free: int
    cached: int  # unused, kept for later prompts, and available like free ones
    used: int  # of running sequences, and granted to sequences whose KV is in transfer
    quarantined: int = 0
    granted: int = 0  # part of `used`
    pending: int = 0  # needed by accepted sequences without blocks
    growth: int = 0  # further blocks that running and waiting sequences are expected to need, at most at one time
    size: int = 16

    @property
    def total(self) -> int:
        """Number of all blocks."""
        return self.free + self.cached + self.used + self.quarantined


@dataclass(frozen=True)
class WorkerSignals:
    """The last report of one worker. `sample_age` None: no report."""

    name: str
    pool: Pool
    ready: bool  # it serves; a worker that is neither ready nor draining is starting
    draining: bool = False
    age: float = 0.0  # seconds since its pod was created
    start_seconds: float | None = None  # from its creation until it was ready
    sample_age: float | None = None  # seconds
    queue_tokens: int | None = None  # uncached prompt tokens that wait or are being prefilled
    parked_tokens: int | None = None  # the part of `queue_tokens` that waits for blocks of a decode worker
    prefill_cost: PrefillCost | None = None
    decode_cost: DecodeCost | None = None
    blocks: Blocks | None = None
    running: int | None = None  # sequences that decode
    waiting: int | None = None  # accepted sequences that do not decode yet
    prompts: int = 0  # waiting sequences whose prompt is computed on this worker
    prompt_tokens: int | None = None  # the part of `queue_tokens` of `prompts`; the rest is of preempted sequences
    slots: int | None = None  # sequences that can decode concurrently
    context_tokens: int | None = None  # of all decoding rows together


@dataclass(frozen=True)
class PromptLengths:
    """Requests of similar length: at least `least` uncached prompt tokens, and less than twice as many."""

    least: int  # tokens; a power of two
    requests: int
    tokens: int  # uncached, of all these requests together


@dataclass(frozen=True)
class OutputLengths:
    """Output tokens of recently finished requests."""

    mean: float
    deviation: float  # standard deviation


@dataclass(frozen=True)
class Traffic:
    """Sums of all gateways' reports. An empty tuple means zero."""

    seconds: float  # the duration of `arrivals`; about 60
    arrivals: tuple[PromptLengths, ...]  # requests admitted or queued, without refused ones
    recent_seconds: float  # about 10
    recent: tuple[PromptLengths, ...]  # arrivals within `recent_seconds`
    waiting: tuple[PromptLengths, ...] = ()  # requests without a first token, in gateways and workers
    queued: int = 0  # requests queued in gateways
    queued_tokens: int = 0  # uncached prompt tokens of queued requests
    queued_prompt_tokens: int = 0  # all prompt tokens of queued requests, which need blocks in decode workers
    output: OutputLengths | None = None  # None before any request has finished
    head_wait: Mapping[WaitCause, float] = field(
        default_factory=dict
    )  # recent seconds of the queue head's wait, by cause
    newest_seconds: float = 0.0  # about 4; 0 if unknown
    newest: tuple[PromptLengths, ...] = ()  # arrivals within `newest_seconds`


@dataclass(frozen=True)
class Signals:
    """All inputs of a decision."""

    workers: tuple[WorkerSignals, ...]
    traffic: Traffic | None = None  # None: not all gateways answered

    def of_pool(self, pool: Pool) -> tuple[WorkerSignals, ...]:
        """Returns the workers of one pool that are not draining."""
        return tuple(worker for worker in self.workers if worker.pool == pool and not worker.draining)
