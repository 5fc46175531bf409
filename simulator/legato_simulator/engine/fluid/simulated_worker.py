"""One worker in virtual time: it computes the steps that the scheduler would, as fast as a profile says.

Prompts are computed in chunks, in the order of the scheduler's queue, and what decodes shortens them to keep the
objective. Steps that are all alike, those of a long prompt alone and those that only decode, are computed at once.
"""

import heapq
import math
from collections import deque

from legato_engine.policy import FORGET, ChunkBudget, pairs
from legato_operator.policy import Pool
from legato_simulator.engine.request import DEFAULTS, Answers, Ended, RecentPrefixes, Rows, SimulatedRequest
from legato_simulator.engine.simulated_pod import SimulatedPod, WorkerKind


class SimulatedWorker(SimulatedPod):
    """`ends` is when the next thing happens here, which `happens` then does."""

    def __init__(self, name: str, pool: Pool, number: int, kind: WorkerKind, created: float) -> None:
        super().__init__(name, pool, number, kind, created)
        self.prefixes = RecentPrefixes(kind.kv_tokens // kind.prefix_block)
        self.backlog = 0  # prompt tokens that wait or are being computed
        self.reserved: dict[SimulatedRequest, float] = {}  # tokens of sequences that are to decode here
        self.reserved_tokens = 0.0
        self.parked: deque[SimulatedRequest] = deque()  # of them, those whose prompts are computed: they need slots
        self.growth = 0.0  # tokens that all of them will still get, as was expected lately
        self.rows = Rows()
        self.ends = math.inf
        self.has_prefilled = self.has_decoded = False
        self._waiting: list[tuple[float, int, SimulatedRequest]] = []
        self._computing: deque[SimulatedRequest] = deque()
        self._chunks: list[tuple[SimulatedRequest, int]] = []  # of the steps until `ends`; none where it only decodes
        self._entering: list[SimulatedRequest] = []
        self._began = 0.0
        self._recent_steps = self._mean_tokens = self._mean_pairs = 0.0  # of steps with prompts, as workers fit them

    @property
    def in_flight(self) -> int:
        return self.running + len(self.reserved)

    @property
    def running(self) -> int:
        """Sequences that decode."""
        return len(self.rows) + len(self._entering)

    @property
    def waiting(self) -> int:
        """Sequences that it tells of as waiting: their prompts are to be computed here, or they have no slot yet."""
        return self.prompts + max(0, self.in_flight - self.prompts - self.kind.slots)

    @property
    def prompts(self) -> int:
        return len(self._waiting) + len(self._computing)

    @property
    def rate(self) -> float:
        """Prompt tokens a second that it tells: of full steps, at the context of late."""
        times, context = self.kind.times, self._mean_pairs / self._mean_tokens if self._mean_tokens else 0.0
        return 1 / (times.per_token + times.per_step / self.kind.chunk_tokens + times.per_pair * context)

    @property
    def used(self) -> float:
        """Tokens of KV that are taken. A sequence's last block is half empty."""
        return self.rows.context + self.reserved_tokens + self.in_flight * self.kind.block_size / 2

    def queue_tokens(self, now: float) -> int:
        """Prompt tokens left to compute."""
        return round(self.backlog - self._computed(now) * sum(count for _, count in self._chunks))

    def prompts_told(self, now: float) -> tuple[int, int]:
        """Sequences without a token yet, and their part of `queue_tokens`: others are computed again."""
        new = [request for request in self._prompts() if request.first is None]
        counts = sum(count for request, count in self._chunks if request.first is None)
        return len(new), round(sum(request.left for request in new) - self._computed(now) * counts)

    def fits(self, tokens: float, answers: Answers) -> bool:
        """Whether a sequence of so many tokens may come beside what is expected of the others. Alone, it may fill the
        worker, so that the next one can always start. It may come before there is a slot for it."""
        if self.in_flight >= self.kind.slots + DEFAULTS.max_waiting:
            return False
        growth = self.growth + answers.expected() if self.in_flight else 0.0
        return self.used + tokens + self.kind.block_size / 2 + growth <= self.kind.kv_tokens

    def reserve(self, request: SimulatedRequest, answers: Answers) -> None:
        """It is going to decode here."""
        self.reserved[request] = request.known
        self.reserved_tokens += request.known
        self.growth += answers.expected()

    def release(self, request: SimulatedRequest) -> None:
        """It is not, or does already."""
        self.reserved_tokens -= self.reserved.pop(request)
        if not self.reserved:
            self.reserved_tokens = 0.0

    def estimate_growth(self, answers: Answers) -> None:
        """As is expected now."""
        entering = (len(self.reserved) + len(self._entering)) * answers.expected()
        self.growth = self.rows.growth(answers) + entering

    def compute(self, request: SimulatedRequest, now: float) -> None:
        """A prompt is sent here."""
        order = now if self.pool == "decode" else now + request.left / self.rate
        heapq.heappush(self._waiting, (order, request.number, request))
        self.backlog += request.left
        self._changed(now)

    def decode(self, request: SimulatedRequest, now: float) -> None:
        """A sequence whose KV is here goes on."""
        self._entering.append(request)
        self._changed(now)

    def happens(self, now: float) -> Ended:
        """What was due at `ends`."""
        ended = Ended()
        self._advance(now)
        self._end_chunks(ended)
        ended.finished = self.rows.ended()
        self._enter()
        while self.used > self.kind.kv_tokens and len(self.rows) > 1:
            ended.preempted.append(self.rows.newest())
            self.rows.remove(ended.preempted[-1])
        self._begin(now)
        return ended

    def evict(self, now: float) -> list[SimulatedRequest]:
        """Takes away all sequences that decode here, with their KV."""
        self._advance(now)
        self._enter()
        rows = self.rows.all()
        for request in rows:
            self.rows.remove(request)
        if not self._chunks:
            self._begin(now)
        return rows

    def give_up(self, now: float) -> list[SimulatedRequest]:
        """Ends: what is computed, decodes or is to decode here now starts again elsewhere."""
        rows = self.evict(now)
        self.ends = math.inf
        return [*rows, *self.parked, *self._prompts()]

    def _prompts(self) -> list[SimulatedRequest]:
        return [*self._computing, *(entry[2] for entry in self._waiting)]

    def _computed(self, now: float) -> float:
        """As a part of `_chunks`."""
        if not self._chunks or self.ends <= self._began:
            return 0.0
        return (now - self._began) / (self.ends - self._began)

    def _changed(self, now: float) -> None:
        """Steps with prompts go on; those that only decode may become others now."""
        if self._chunks and self.ends < math.inf:
            return
        self._advance(now)
        self._enter()
        self._begin(now)

    def _enter(self) -> None:
        for request in self._entering:
            self.rows.add(request)
        self._entering.clear()

    def _advance(self, now: float) -> None:
        """Decode up to now."""
        if self._chunks:
            if now >= self.ends and len(self.rows):
                self.rows.advance(1.0)
        elif len(self.rows) and now > self._began:
            self.rows.advance(min(self._steps(now - self._began), self._most_steps()))
            self._began = now

    def _steps(self, seconds: float) -> float:
        """Steps in so many seconds, the positive root of `_seconds(steps) = seconds`."""
        rows, times = len(self.rows), self.kind.times
        step = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        return 2 * seconds / (step + math.sqrt(step * step + 2 * times.per_context * rows * seconds))

    def _seconds(self, steps: float) -> float:
        """Of so many steps, each with one token of context more for every row."""
        rows, times = len(self.rows), self.kind.times
        step = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        return steps * (step + times.per_context * rows * steps / 2)

    def _most_steps(self) -> float:
        """Until a row ends or the KV cache is full."""
        room = self.kind.kv_tokens - self.used
        return self.rows.until_end if len(self.rows) == 1 else min(self.rows.until_end, max(0.5, room / len(self.rows)))

    def _end_chunks(self, ended: Ended) -> None:
        self._measure_chunks()
        for request, count in self._chunks:
            request.computed += count
            self.backlog -= count
            if not request.left:
                self._computing.remove(request)
                self.prefixes.add(request.arrival.blocks)
                ended.prefilled.append(request)
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
        """Choose what prompts compute next; how long that takes."""
        kind, rows = self.kind, len(self.rows)
        times = kind.times
        decoding = times.seconds(rows, 0, 0, 0) + times.per_context * self.rows.context
        if self.pool == "prefill" and (alone := self._alone()):
            return alone
        left = kind.tpot - decoding if rows else math.inf
        budget = ChunkBudget(kind.chunk_tokens, left, decoding, times.per_token, times.per_pair)
        seconds = decoding
        for request in self._in_turn(budget):
            start = int(request.known) - request.left
            count = budget.count(start, request.left)
            if not count:
                break
            budget.spend(count, start)
            seconds += times.per_token * count + times.per_pair * pairs(count, start)
            self._chunks.append((request, count))
        return seconds

    def _in_turn(self, budget: ChunkBudget) -> "list[SimulatedRequest]":
        """Those begun, and as many that wait as the step has tokens for."""
        tokens = sum(request.left for request in self._computing)
        while self._waiting and tokens < budget.tokens:
            request = heapq.heappop(self._waiting)[2]
            self._computing.append(request)
            tokens += request.left
        return list(self._computing)

    def _alone(self) -> float:
        """All full steps of the prompt whose turn it is, which nobody else can join; 0 where there is none."""
        if not self._computing:
            self._computing.append(heapq.heappop(self._waiting)[2])
        first, times = self._computing[0], self.kind.times
        steps, start = first.left // self.kind.chunk_tokens, int(first.known) - first.left
        if not steps:
            return 0.0
        count = steps * self.kind.chunk_tokens
        self._chunks.append((first, count))
        return times.seconds(0, 0, count, pairs(count, start)) + (steps - 1) * times.per_step
