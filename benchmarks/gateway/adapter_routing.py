"""Measures how often a request finds its adapter in memory, and its wait, by the weight of loaded adapters in routing.

Workers with room for a few adapters, more adapters than that, some asked for far more often than others (Zipf), at a
share of what the fleet can compute. Routing is the gateway's own; workers are a queue of prompts, a load where the
adapter is not there (least recently used out), and nothing else. Virtual time:

    python benchmarks/gateway/adapter_routing.py
"""

import random
import statistics
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from legato_gateway.routing.choose import Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Weights

RATE = 1000.0  # prompt tokens a second, of each worker
PROMPT = 300  # tokens
LOAD = 0.5  # seconds that an adapter takes to load


@dataclass(slots=True)
class Worker:
    """`free` is when its queue is done."""

    name: str
    room: int
    free: float = 0.0
    loaded: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def view(self, now: float, adapters: Sequence[str]) -> WorkerView:
        return WorkerView(
            name=self.name,
            role="unified",
            epoch="e",
            kv_revision="r",
            block_size=16,
            num_blocks=100_000,
            max_length=8192,
            free_blocks=100_000,
            prefill_rate=RATE,
            queue_tokens=int(max(0.0, self.free - now) * RATE),
            adapters={name: name for name in adapters},
            loaded_adapters=tuple(self.loaded),
        )

    def take(self, adapter: str, now: float) -> tuple[bool, float]:
        """Returns whether the adapter was loaded, and the seconds until the prompt is computed."""
        there = adapter in self.loaded
        self.loaded[adapter] = None
        self.loaded.move_to_end(adapter)
        if len(self.loaded) > self.room:
            self.loaded.popitem(last=False)
        self.free = max(self.free, now) + (0.0 if there else LOAD) + PROMPT / RATE
        return there, self.free - now


def replay(
    weight: float, *, adapters: int = 32, workers: int = 4, room: int = 8, load: float = 0.6, requests: int = 4000
) -> tuple[float, float, float]:
    """Share of requests that found their adapter, median and 99th percentile of the seconds until the first token."""
    source = random.Random(7)
    names = [f"a{i}" for i in range(adapters)]
    chances = [1 / (i + 1) for i in range(adapters)]
    fleet = [Worker(f"u{i}", room) for i in range(workers)]
    policy = Policy(weights=Weights(adapter=weight))
    now, hits, waits = 0.0, 0, list[float]()
    for number in range(requests):
        now += source.expovariate(load * workers * RATE / PROMPT)
        (adapter,) = source.choices(names, chances)
        snapshot = FleetSnapshot(tuple(worker.view(now, names) for worker in fleet))
        route = choose(Need(str(number), PROMPT, 16, adapter=adapter), snapshot, {}, policy)
        assert isinstance(route, Route)
        there, seconds = next(worker for worker in fleet if worker.name == route.decode).take(adapter, now)
        hits += there
        waits.append(seconds)
    return hits / requests, statistics.median(waits), statistics.quantiles(waits, n=100)[98]


def main() -> None:
    print("| load | routing.weights.adapter | in memory | median | p99 |\n| --- | --- | --- | --- | --- |")
    for load in (0.3, 0.6):
        for weight in (0.0, 0.25, 0.5, 1.0, 2.0):
            hits, median, tail = replay(weight, load=load)
            print(f"| {load:.0%} | {weight:g} | {hits:.0%} | {median:.2f} s | {tail:.2f} s |")


if __name__ == "__main__":
    main()
