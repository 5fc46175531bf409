"""The data of the page at `/ui`, as plain JSON values without prompts and answers: the state and the recent load."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legato_gateway.relay.relay import RequestRelay
from legato_gateway.workers.fleet import Fleet, Worker

INTERVAL = 2.0  # seconds, as often as the autoscaler decides
KEPT = 450  # samples: a quarter of an hour


@dataclass(frozen=True, slots=True)
class PoolSample:
    """The load of all usable workers of a role. Blocks are KV blocks."""

    ready: int
    queue_tokens: int
    running: int
    used_blocks: int
    total_blocks: int


@dataclass(frozen=True, slots=True)
class LoadSample:
    """`time` is in Unix seconds; `queued` and `queued_tokens` count requests without a worker; `pools` are by role."""

    time: float
    active: int
    queued: int
    queued_tokens: int
    pools: dict[str, PoolSample]


class LoadSampler:
    """Keeps the last `KEPT` samples, oldest first. `wall` is the clock of their times, in Unix seconds."""

    def __init__(self, fleet: Fleet, relay: RequestRelay, wall: Callable[[], float] = time.time) -> None:
        self._fleet = fleet
        self._relay = relay
        self._wall = wall
        self._samples: deque[LoadSample] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(INTERVAL)

    def sample(self) -> None:
        """Takes a sample."""
        queued = self._relay.unplaced()
        by_role: dict[str, list[Worker]] = {}
        for worker in self._fleet:
            if worker.hello is not None:
                by_role.setdefault(worker.hello.role, []).append(worker)
        self._samples.append(
            LoadSample(
                time=self._wall(),
                active=self._relay.active,
                queued=len(queued),
                queued_tokens=sum(generation.uncached for generation in queued),
                pools={role: _pool(workers) for role, workers in by_role.items()},
            )
        )

    def since(self, time: float) -> list[LoadSample]:
        """Returns the samples after that time."""
        return [sample for sample in self._samples if sample.time > time]


def _pool(workers: Sequence[Worker]) -> PoolSample:
    loads = [(w.hello, w.load) for w in workers if w.ready and w.hello is not None and w.load is not None]
    return PoolSample(
        ready=sum(1 for w in workers if w.ready and not w.draining),
        queue_tokens=sum(load.queue_tokens for _, load in loads),
        running=sum(load.running for _, load in loads),
        used_blocks=sum(load.used_blocks for _, load in loads),
        total_blocks=sum(hello.num_blocks for hello, _ in loads),
    )


REQUESTS = 64  # on the page, the most recent ones


class UIState:
    """Reports the state of the gateway `gateway`. `state` returns the data of `/state`, `wall` Unix seconds."""

    def __init__(
        self,
        gateway: str,
        state: Callable[[], dict[str, Any]],
        relay: RequestRelay,
        samples: LoadSampler,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._state = state
        self._relay = relay
        self._samples = samples
        self._wall = wall

    def report(self, since: float) -> dict[str, Any]:
        """Returns the state with the samples after `since`, in Unix seconds. Only `legato ui` fills in `service`."""
        state = self._state()
        gateway = {
            "gateway": self._gateway,
            "time": self._wall(),
            "model": {"name": state["model"]["name"], "context": state["model"]["max_length"]},
            "active": self._relay.active,
            "queue": state["queue"],
            "problem": state["discovery"]["problem"],
            "workers": state["workers"],
            "requests": state["requests"][-REQUESTS:],
            "samples": [asdict(sample) for sample in self._samples.since(since)],
        }
        return {"gateways": [gateway], "service": None}
