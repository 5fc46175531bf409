"""A worker of the fluid engine: computes the scheduler's steps at the speed of a profile.

Prompts are computed in chunks, in the order of the scheduler's queue. Decoding sequences shorten the chunks, to keep
the objective. Equal steps, from a single long prompt or from decoding only, are computed in one event.
"""

import heapq
import math
from collections import deque

from legato_engine.policy import FORGET, REUSE_WINDOW, REUSED, ChunkBudget, StepTimes, pairs
from legato_operator.policy import Pool
from legato_protocol.step_target import STEP_TARGET
from legato_simulator.engine.request import DEFAULTS, Answers, Changed, RecentPrefixes, Rows, SimulatedRequest
from legato_simulator.engine.simulated_pod import SimulatedPod, WorkerKind


class SimulatedWorker(SimulatedPod):
    """A worker with its next event at `ends`: the end of steps.

    `end_step` and `begin_step` are separate, because a sequence whose prompt a step completed decodes in the next one.
    """

    def __init__(self, name: str, pool: Pool, kind: WorkerKind, created: float) -> None:
        super().__init__(name, pool, kind, created)
        self.prefixes = RecentPrefixes(kind.kv_tokens // kind.prefix_block)
        self.backlog = 0  # prompt tokens that are queued or computed
        self.reserved: dict[SimulatedRequest, float] = {}  # tokens of sequences that will decode here
        self.reserved_tokens = 0.0
        self.parked: deque[SimulatedRequest] = (
            deque()
        )  # reserved sequences whose prompts are computed and that need a slot
        self.rows = Rows()
        self._reuse = 0.0  # share of the latest sequences with a cached prefix
        self.ends = math.inf
        self.has_prefilled = self.has_decoded = False
        self._waiting: list[tuple[float, int, SimulatedRequest]] = []
        self._computing: deque[SimulatedRequest] = deque()
        self._chunks: list[tuple[SimulatedRequest, int]] = []  # of the steps until `ends`; empty if it only decodes
        self._entering: list[SimulatedRequest] = []
        self._began = 0.0
        self._between_steps = False
        self._recent_steps = self._mean_tokens = self._mean_pairs = (
            0.0  # statistics of steps with prompts, as in the step cost fit
        )

    @property
    def in_flight(self) -> int:
        return self.running + len(self.reserved)

    @property
    def running(self) -> int:
        """Number of decoding sequences."""
        return len(self.rows) + len(self._entering)

    @property
    def waiting(self) -> int:
        """Sequences reported as waiting: their prompts are queued or computed here, or they have no slot."""
        return self.prompts + max(0, self.in_flight - self.prompts - self.kind.slots)

    @property
    def prompts(self) -> int:
        return len(self._waiting) + len(self._computing)

    @property
    def rate(self) -> float:
        """Reported prompt tokens per second: in full steps, at the recent mean context."""
        times, context = self.kind.times, self._mean_pairs / self._mean_tokens if self._mean_tokens else 0.0
        return 1 / (times.per_token + times.per_step / self.kind.chunk_tokens + times.per_pair * context)

    @property
    def times(self) -> StepTimes:
        """Times of its steps that only decode, for each token of a sequence."""
        return self.kind.decoding(len(self.rows), self.rows.context)

    @property
    def used(self) -> float:
        """Tokens of KV in use. A sequence's last block is half empty on average."""
        return self.rows.context + self.reserved_tokens + self.in_flight * self.kind.block_size / 2

    def queue_tokens(self, now: float) -> int:
        """Returns the prompt tokens left to compute."""
        return round(self.backlog - self._computed(now) * sum(count for _, count in self._chunks))

    def new_prompts(self, now: float) -> tuple[int, int]:
        """Returns the number of prompts without a first token, and their part of `queue_tokens`.

        The other prompts are computed again.
        """
        new = [request for request in self._prompts() if request.first is None]
        counts = sum(count for request, count in self._chunks if request.first is None)
        return len(new), round(sum(request.left for request in new) - self._computed(now) * counts)

    def fits(self, tokens: float, answers: Answers) -> bool:
        """Returns True if a sequence of `tokens` has room until its end, given the growth of the others.

        A single sequence may fill the worker, so that the next request can always start. It needs no free slot.
        """
        if self.in_flight >= self.kind.slots + DEFAULTS.max_waiting:
            return False
        room = self.kind.kv_tokens - self.used - tokens - self.kind.block_size / 2
        if room < 0 or not self.in_flight:
            return room >= 0
        if (self.in_flight + 1) * answers.most_expected <= room:
            return True
        return self.growth(answers, 1) <= room

    def reserve(self, request: SimulatedRequest) -> None:
        """Reserves room for a request that will decode here."""
        self.reserved[request] = request.known
        self.reserved_tokens += request.known
        self._reuse += ((request.uncached < request.known) - self._reuse) / REUSE_WINDOW

    def release(self, request: SimulatedRequest) -> None:
        """Ends a reservation."""
        self.reserved_tokens -= self.reserved.pop(request)
        if not self.reserved:
            self.reserved_tokens = 0.0

    def growth(self, answers: Answers, more: int = 0) -> float:
        """Returns the most further tokens that all sequences and `more` new ones are expected to need at one time.

        That is the sum of all while prompts use cached prefixes; in production, those in use do not count.
        """
        entering = len(self.reserved) + len(self._entering) + more
        return self.rows.growth(answers, entering, ends=self._reuse <= REUSED)

    def compute(self, request: SimulatedRequest, now: float) -> None:
        """Queues a prompt."""
        order = now if self.pool == "decode" else now + request.left / self.rate
        heapq.heappush(self._waiting, (order, request.number, request))
        self.backlog += request.left
        self._changed(now)

    def decode(self, request: SimulatedRequest, now: float) -> None:
        """Starts decoding a sequence whose KV is here."""
        self._entering.append(request)
        self._changed(now)

    def end_step(self, now: float) -> Changed:
        """Ends the steps that are due at `ends`."""
        changed = Changed()
        self._advance(now)
        self._end_chunks(changed)
        changed.finished = self.rows.ended()
        self._enter()
        while self.used > self.kind.kv_tokens and len(self.rows) > 1:
            changed.preempted.append(self.rows.newest())
            self.rows.remove(changed.preempted[-1])
        self._between_steps = True
        return changed

    def begin_step(self, now: float) -> None:
        """Begins the next steps, also with the sequences that joined since `end_step`."""
        self._between_steps = False
        self._enter()
        self._begin(now)

    def evict(self, now: float) -> list[SimulatedRequest]:
        """Removes and returns all decoding sequences, with their KV."""
        self._advance(now)
        self._enter()
        rows = self.rows.all()
        for request in rows:
            self.rows.remove(request)
        if not self._chunks:
            self._begin(now)
        return rows

    def give_up(self, now: float) -> list[SimulatedRequest]:
        """Ends the worker and returns all its requests, which start again elsewhere."""
        rows = self.evict(now)
        self.ends = math.inf
        return [*rows, *self.parked, *self._prompts()]

    def _prompts(self) -> list[SimulatedRequest]:
        return [*self._computing, *(entry[2] for entry in self._waiting)]

    def _computed(self, now: float) -> float:
        """Returns the computed share of `_chunks`."""
        if not self._chunks or self.ends <= self._began:
            return 0.0
        return (now - self._began) / (self.ends - self._began)

    def _changed(self, now: float) -> None:
        """Starts other steps if the current ones only decode. Steps with prompts continue."""
        if self._between_steps or (self._chunks and self.ends < math.inf):
            return
        self._advance(now)
        self._enter()
        self._begin(now)

    def _enter(self) -> None:
        for request in self._entering:
            self.rows.add(request)
        self._entering.clear()

    def _advance(self, now: float) -> None:
        """Advances decoding until now."""
        if self._chunks:
            if now >= self.ends and len(self.rows):
                self.rows.advance(1.0)
        elif len(self.rows) and now > self._began:
            self.rows.advance(min(self._steps(now - self._began), self._most_steps()))
            self._began = now

    def _steps(self, seconds: float) -> float:
        """Returns the steps in `seconds`: the positive root of `_seconds(steps) = seconds`."""
        rows, times = len(self.rows), self.times
        step = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        return 2 * seconds / (step + math.sqrt(step * step + 2 * times.per_context * rows * seconds))

    def _seconds(self, steps: float) -> float:
        """Returns the duration of `steps`; in each, every row's context grows by one token."""
        rows, times = len(self.rows), self.times
        step = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        return steps * (step + times.per_context * rows * steps / 2)

    def _most_steps(self) -> float:
        """Returns the steps until a row ends or the KV cache is full."""
        room = self.kind.kv_tokens - self.used
        return self.rows.until_end if len(self.rows) == 1 else min(self.rows.until_end, max(0.5, room / len(self.rows)))

    def _end_chunks(self, changed: Changed) -> None:
        self._measure_chunks()
        for request, count in self._chunks:
            request.computed += count
            self.backlog -= count
            if not request.left:
                self._computing.remove(request)
                self.prefixes.add(request.arrival.blocks)
                changed.prefilled.append(request)
        self.has_prefilled |= bool(self._chunks)

    def _measure_chunks(self) -> None:
        if not self._chunks:
            return
        tokens = sum([count for _, count in self._chunks])
        attended = sum([pairs(count, int(request.known) - request.left) for request, count in self._chunks])
        self._recent_steps = self._recent_steps * (1 - FORGET) + 1
        self._mean_tokens += (tokens - self._mean_tokens) / self._recent_steps
        self._mean_pairs += (attended - self._mean_pairs) / self._recent_steps

    def _begin(self, now: float) -> None:
        self._began, self._chunks = now, []
        rows = len(self.rows)
        self.has_decoded |= rows > 0
        if self.prompts:
            self.ends = now + self._begin_chunks()
        else:
            self.ends = now + self._seconds(self._most_steps()) if rows else math.inf

    def _begin_chunks(self) -> float:
        """Chooses the next chunks and returns their duration."""
        kind, rows = self.kind, len(self.rows)
        times = kind.times
        decoding = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        if self.pool == "prefill" and (alone := self._alone()):
            return alone
        left = STEP_TARGET * kind.tpot - decoding if rows else math.inf
        budget = ChunkBudget(kind.chunk_tokens, left, decoding, times.per_token, times.per_pair)
        seconds = decoding
        for request in self._next_prompts(budget):
            start = int(request.known) - request.left
            count = budget.count(start, request.left)
            if not count:
                break
            budget.spend(count, start)
            seconds += times.per_token * count + times.per_pair * pairs(count, start)
            self._chunks.append((request, count))
        return seconds

    def _next_prompts(self, budget: ChunkBudget) -> "list[SimulatedRequest]":
        """Returns the prompts in progress, and as many queued ones as the step has tokens for."""
        tokens = sum(request.left for request in self._computing)
        while self._waiting and tokens < budget.tokens:
            request = heapq.heappop(self._waiting)[2]
            self._computing.append(request)
            tokens += request.left
        return list(self._computing)

    def _alone(self) -> float:
        """Computes all full steps of the first prompt in one event. Returns their duration; 0 without a full step."""
        if not self._computing:
            self._computing.append(heapq.heappop(self._waiting)[2])
        first, times = self._computing[0], self.kind.times
        steps, start = first.left // self.kind.chunk_tokens, int(first.known) - first.left
        if not steps:
            return 0.0
        count = steps * self.kind.chunk_tokens
        self._chunks.append((first, count))
        return times.seconds(0, 0, count, pairs(count, start)) + (steps - 1) * times.per_step
