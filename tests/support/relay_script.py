"""A relay among workers that do what a test says, in virtual time."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from relay_simulation import METRICS, SimulatedWorker, Simulation

from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing.fleet_snapshot import WorkerView
from legato_protocol import block_hash, kv_events
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer

PROMPT = tuple(range(100))  # of a request, unless it has another one


class Scripted(Simulation):
    """Nothing happens by itself. `sent` are all frames to workers, in order."""

    def __init__(self, lab: Any, *roles: str, **retry: Any) -> None:
        drawn = {"on_transfer_failure": "Retry", "when_busy": "Wait", "rebalancing": None}
        super().__init__(0, lab.vocabulary, lab.request, roles, 1000, **drawn | retry)
        self.chaos = 0.0
        self.sent: list[tuple[str, Any]] = []
        for worker in self.workers.values():
            worker.take = self._noted(worker, worker.take)

    def _noted(self, worker: SimulatedWorker, take: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def noted(frame: Any) -> bool:
            self.sent.append((worker.name, frame))
            return take(frame)

        return noted

    def start(self, **overrides: Any) -> RunningGeneration:
        generation = self.relay.submit(self._make_request(**{"max_tokens": 1000, "deadline": 1e6} | overrides))
        self.generations.append(generation)
        return generation

    def sub(self, generation: RunningGeneration) -> SubRequest:
        (sub,) = self.relay.sub_requests(generation)
        return sub

    def told(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, frame) for name, frame in self.sent if isinstance(frame, kind)]

    def run(self, steps: int = 1, seconds: float = 0.01) -> None:
        for _ in range(steps):
            for worker in self.workers.values():
                self._work(worker)
                worker.outgoing.append(worker.load())
                while worker.outgoing and worker.connected:
                    self._deliver(worker)
            for generation in self.generations:
                self._read(generation)
            self.time.advance(seconds)
            self.check()

    def load(self, worker: SimulatedWorker) -> None:
        """A worker tells how busy it is, and the turn after it comes."""
        self.relay.workers.received(worker.name, worker.load())
        self.time.advance(0.01)

    def draining(self, generation: RunningGeneration) -> SimulatedWorker:
        """The worker that decodes it, which is told to drain and has been looked at since."""
        source = self.decoding(generation)
        self.drain(source)
        self.load(source)
        return source

    def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(200):
            if condition():
                return
            self.run()
        raise AssertionError("it never came to that")

    def decoding(self, generation: RunningGeneration) -> SimulatedWorker:
        self.until(lambda: self.sub(generation).stage is Stage.DECODING)
        return self.workers[self.sub(generation).place.decode]

    def others(self, worker: SimulatedWorker) -> list[SimulatedWorker]:
        return [other for other in self.workers.values() if other is not worker]

    def hold(self, name: str, adapter: str = "") -> None:
        """The cache of that worker holds the prompt, computed with the adapter of this digest: six full blocks."""
        worker = self.workers[name]
        worker._events += 1
        hashes = block_hash.chain(pack_tokens(PROMPT), 16, block_hash.root("r", adapter))
        event = kv_events.Stored(worker.engine.epoch, worker._events, block_hash.join(hashes))
        assert not self.relay.workers.kv_event(name, event)

    def greet(self, name: str, **changes: Any) -> None:
        """That worker says hello once more, with these changes."""
        self.relay.workers.greeted(name, replace(self.workers[name].hello(), **changes))

    def peer(self, name: str) -> Peer:
        """That worker, as the other one of a hand-off is told of it."""
        return Peer(name, self.workers[name].engine.epoch, name.encode())

    def view(self, name: str) -> WorkerView:
        """What routing knows of that worker."""
        (view,) = [view for view in self.fleet.snapshot().workers if view.name == name]
        return view


def error_of(generation: RunningGeneration) -> BaseException | None:
    """What ended a request."""
    assert generation.ended
    generation.ready()
    try:
        generation.__anext__().send(None)
    except StopAsyncIteration:
        return None
    except Exception as error:
        return error
    raise AssertionError("a delta was not read")


def count(name: str, **labels: str) -> float:
    """A metric of all scripted relays together: compare it before and after."""
    return METRICS.registry.get_sample_value(f"legato_gateway_{name}", labels) or 0.0
