"""A service in virtual time, simple: one queue for prefill, one pool of KV blocks, and decode steps of known cost.

What it tells is what gateways and workers would: so the autoscaler's decisions close the loop here.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.decision import Decision
from legato_operator.autoscaler.signals import (
    Blocks,
    DecodeCost,
    OutputLengths,
    Pool,
    PrefillCost,
    PromptLengths,
    Signals,
    Traffic,
    WorkerSignals,
)
from legato_operator.autoscaler.window import Window

DECIDE_EVERY = 2.0  # seconds


@dataclass
class Prompt:
    """A request on its way: times in seconds, lengths in tokens."""

    at: float
    uncached: int
    length: int
    output: int
    work: float = 0.0  # seconds of prefill left
    first: float | None = None  # its first token
    made: float = 0.0  # output so far
    done: float | None = None

    def is_good(self, spec: Spec) -> bool:
        """Whether it kept both objectives."""
        if self.first is None or self.done is None or self.first - self.at > spec.slo.ttft:
            return False
        return (self.done - self.first) / max(1, self.output - 1) <= spec.slo.tpot


@dataclass(frozen=True)
class Machine:
    """What one worker can do, and what it says of itself: `told` is the error of its measured prefill cost."""

    prefill: PrefillCost
    decode: DecodeCost
    blocks: int = 4000
    slots: int = 256
    start: float = 60.0
    told: float = 1.0  # rate told ÷ rate


@dataclass
class FluidService:
    """Times in seconds. `sizes` are desired replicas; workers begin to serve `machine.start` after they were wished."""

    spec: Spec
    machine: Machine
    sizes: dict[str, int]
    step: float = 0.25
    now: float = 0.0
    managed: bool = True
    worker_seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "decode": 0.0})
    decisions: list[tuple[float, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        started = -self.machine.start
        self._workers = {pool: [started] * size for pool, size in self.sizes.items()}
        self._queue: deque[Prompt] = deque()
        self._computing: list[Prompt] = []
        self._decoding: list[Prompt] = []
        self._parked: deque[Prompt] = deque()
        self._arrived: deque[Prompt] = deque()
        self._outputs: deque[int] = deque(maxlen=500)
        self._windows: dict[str, Window] = {}
        self._decided = -math.inf

    def run(self, prompts: Iterable[Prompt], until: float) -> None:
        """Serve what arrives, in order of time."""
        coming = deque(prompts)
        while self.now < until:
            while coming and coming[0].at <= self.now:
                self._arrive(coming.popleft())
            if self.managed and self.now - self._decided >= DECIDE_EVERY:
                self._decide()
            self._prefill()
            self._decode()
            for pool, workers in self._workers.items():
                self.worker_seconds[pool] += self.step * len(workers)
            self.now += self.step

    def _arrive(self, prompt: Prompt) -> None:
        prompt.work = self._work(prompt)
        self._arrived.append(prompt)
        self._queue.append(prompt)

    def _work(self, prompt: Prompt) -> float:
        """Seconds that all of its prefill takes."""
        return self.machine.prefill.seconds(prompt.uncached, prompt.length - prompt.uncached)

    def _serving(self, pool: str) -> int:
        return sum(self.now - created >= self.machine.start for created in self._workers[pool])

    def _prefill(self) -> None:
        """Each worker computes for a step, one prompt after the other."""
        ready = self._serving("prefill")
        unfinished: list[Prompt] = []
        for _ in range(ready):
            left = self.step
            while left > 0 and (self._computing or self._queue):
                prompt = self._computing.pop() if self._computing else self._queue.popleft()
                done = min(left, prompt.work)
                prompt.work, left = prompt.work - done, left - done
                if prompt.work > 0:
                    unfinished.append(prompt)
                else:
                    prompt.first = self.now + self.step - left
                    self._parked.append(prompt)
        self._computing += unfinished

    def _decode(self) -> None:
        ready = self._serving("decode")
        if not ready:
            return
        used = sum(self._blocks(prompt) for prompt in self._decoding)
        while self._parked and len(self._decoding) < ready * self.machine.slots:
            needed = self._blocks(self._parked[0]) + self._growth(self._parked[0])
            if used + needed > ready * self.machine.blocks and self._decoding:
                break
            used += needed
            self._decoding.append(self._parked.popleft())
        rows, context = len(self._decoding), sum(prompt.length + prompt.made for prompt in self._decoding)
        tokens = self.step / self.machine.decode.seconds(rows / ready, context / ready)
        for prompt in self._decoding:
            prompt.made += tokens
            if prompt.made >= prompt.output:
                prompt.done = self.now + self.step
                self._outputs.append(prompt.output)
        self._decoding = [prompt for prompt in self._decoding if prompt.done is None]

    def _blocks(self, prompt: Prompt) -> int:
        return math.ceil((prompt.length + prompt.made) / self.spec.engine.block_size)

    def _growth(self, prompt: Prompt) -> int:
        expected = statistics.fmean(self._outputs) if self._outputs else 32.0
        return math.ceil(max(0.0, expected - prompt.made) / self.spec.engine.block_size)

    def _decide(self) -> None:
        self._decided = self.now
        decision = decide(self.signals(), self._windows, self.spec, self.sizes, self.now)
        self._windows = dict(decision.windows)
        self.decisions.append((self.now, decision))
        for pool, made in decision.pools.items():
            self.resize(pool, made.wish)

    def resize(self, pool: str, size: int) -> None:
        """The newest go first; those which start may be among them."""
        workers = self._workers[pool]
        self.sizes[pool] = size
        self._workers[pool] = workers[:size] + [self.now] * (size - len(workers))

    def signals(self) -> Signals:
        """What is known now."""
        while self._arrived and self._arrived[0].at < self.now - 60.0:
            self._arrived.popleft()
        waiting = [*self._queue, *self._computing]
        recent = [prompt for prompt in self._arrived if prompt.at >= self.now - 10.0]
        output = None
        if len(self._outputs) > 1:
            output = OutputLengths(statistics.fmean(self._outputs), statistics.pstdev(self._outputs))
        traffic = Traffic(
            seconds=60.0,
            arrivals=_lengths(self._arrived),
            recent_seconds=10.0,
            recent=_lengths(recent),
            waiting=_lengths(waiting),
            output=output,
        )
        return Signals((*self._prefillers(waiting), *self._decoders()), traffic)

    def _prefillers(self, waiting: list[Prompt]) -> Iterable[WorkerSignals]:
        told = PrefillCost(
            self.machine.prefill.per_token / self.machine.told, self.machine.prefill.per_pair / self.machine.told
        )
        left = sum(
            prompt.uncached
            * prompt.work
            / self.machine.prefill.seconds(prompt.uncached, prompt.length - prompt.uncached)
            for prompt in waiting
        )
        serving = max(1, self._serving("prefill"))
        return (
            WorkerSignals(
                **self._common("prefill", i, created),
                queue_tokens=round(left / serving),
                parked_tokens=0,
                prefill_cost=told,
            )
            for i, created in enumerate(self._workers["prefill"])
        )

    def _decoders(self) -> Iterable[WorkerSignals]:
        serving = max(1, self._serving("decode"))
        used = math.ceil(sum(self._blocks(prompt) for prompt in self._decoding) / serving)
        growth = math.ceil(sum(self._growth(prompt) for prompt in (*self._decoding, *self._parked)) / serving)
        pending = math.ceil(sum(self._blocks(prompt) for prompt in self._parked) / serving)
        context = sum(prompt.length + prompt.made for prompt in self._decoding)
        for i, created in enumerate(self._workers["decode"]):
            common = self._common("decode", i, created)
            if not common["ready"]:
                yield WorkerSignals(**common)
                continue
            yield WorkerSignals(
                **common,
                queue_tokens=0,
                parked_tokens=0,
                decode_cost=self.machine.decode,
                blocks=Blocks(max(0, self.machine.blocks - used), 0, used, pending=pending, growth=growth),
                running=math.ceil(len(self._decoding) / serving),
                waiting=math.ceil(len(self._parked) / serving),
                slots=self.machine.slots,
                context_tokens=round(context / serving),
            )

    def _common(self, pool: Pool, number: int, created: float) -> dict:
        age = self.now - created
        ready = age >= self.machine.start
        return {
            "name": f"{pool}-{number}",
            "pool": pool,
            "ready": ready,
            "age": age,
            "start_seconds": self.machine.start if ready else None,
            "sample_age": 0.5 if ready else None,
        }


def _lengths(prompts: Iterable[Prompt]) -> tuple[PromptLengths, ...]:
    """By powers of two."""
    sums: dict[int, list[int]] = {}
    for prompt in prompts:
        found = sums.setdefault(1 << prompt.uncached.bit_length() - 1, [0, 0])
        found[0], found[1] = found[0] + 1, found[1] + prompt.uncached
    return tuple(PromptLengths(least, *sums[least]) for least in sorted(sums))
