"""A relay among workers that do what a test says, in virtual time."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from relay_simulation import METRICS, SimulatedWorker, Simulation

from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing.fleet_snapshot import WorkerView
from legato_gateway.testing.fake_engine import token_at
from legato_protocol.wire.demand import DemandReport
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Failed, Peer, TokenItem, Tokens

PROMPT = tuple(range(100))  # of a request, unless it has another one


class Scripted(Simulation):
    """Nothing happens by itself. `sent` are all frames to workers, in order."""

    def __init__(self, lab: Any, *roles: str, **retry: Any) -> None:
        drawn = {"on_transfer_failure": "Retry", "when_busy": "Wait", "rebalancing": None}
        super().__init__(0, lab.vocabulary, lab.request, roles, 1000, **drawn | retry)
        self.chaos = 0.0
        self.sent: list[tuple[str, Any]] = []

    def send(self, worker: str, frame: Any) -> bool:
        self.sent.append((worker, frame))
        return super().send(worker, frame)

    def start(self, **overrides: Any) -> RunningGeneration:
        generation = self.relay.submit(self._make_request(**{"max_tokens": 1000, "deadline": 1e6} | overrides))
        self.generations.append(generation)
        return generation

    def sub(self, generation: RunningGeneration) -> SubRequest:
        (sub,) = self.relay.sub_requests(generation)
        return sub

    def frames(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, frame) for name, frame in self.sent if isinstance(frame, kind)]

    def demand(self) -> DemandReport:
        return DemandReporter("gateway-1", self.relay, self.fleet, self.time.time).report()

    def load(self, worker: SimulatedWorker) -> None:
        """Delivers the worker's Load, and lets the turn after it come."""
        self.relay.workers.received(worker.name, worker.load())
        self.time.advance(0.01)

    def drain(self, worker: SimulatedWorker) -> None:
        super().drain(worker)
        self.load(worker)

    def stay(self, worker: SimulatedWorker) -> None:
        super().stay(worker)
        self.load(worker)

    def fail(
        self, sub: SubRequest, code: Any = "internal", at: str = "", part: Any = "decode", retry: bool = True
    ) -> None:
        """Reports that the current attempt failed at its decode worker or `at` another one."""
        failed = Failed(sub.id, sub.attempt, code, "scripted", part, retry)
        self.relay.workers.received(at or sub.place.decode, failed)

    def token(self, sub: SubRequest, worker: str = "", choice: int = 0, index: int = 0, **fields: Any) -> None:
        """Delivers the right token of that index, by default from its decode worker under the current attempt."""
        values = {"id": sub.id, "attempt": sub.attempt, "token_ids": (token_at(7, choice, index),)} | fields
        item = TokenItem(choice=choice, index=index, **values)
        self.relay.workers.received(worker or sub.place.decode, Tokens((item,)))

    def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(200):
            if condition():
                return
            self.run()
        raise AssertionError("it never came to that")

    def end(self, generation: RunningGeneration) -> BaseException | None:
        """Lets it end, and returns its error."""
        self.until(lambda: generation.ended)
        return error_of(generation)

    def decoding(self, generation: RunningGeneration) -> SimulatedWorker:
        self.until(lambda: self.sub(generation).stage is Stage.DECODING)
        return self.workers[self.sub(generation).place.decode]

    def others(self, worker: SimulatedWorker) -> list[SimulatedWorker]:
        return [other for other in self.workers.values() if other is not worker]

    def hold(self, name: str, adapter: str = "") -> None:
        """The cache of that worker holds the prompt, computed with the adapter of this digest: six full blocks."""
        event = self.workers[name].stored(pack_tokens(PROMPT), adapter)
        assert not self.relay.workers.kv_event(name, event)

    def greet(self, name: str, **changes: Any) -> None:
        """Has that worker say hello once more, with these changes."""
        self.relay.workers.greeted(name, replace(self.workers[name].hello(), **changes))

    def peer(self, name: str) -> Peer:
        """Describes that worker to the other one of a hand-off."""
        return Peer(name, self.workers[name].engine.epoch, name.encode())

    def view(self, name: str) -> WorkerView:
        (view,) = [view for view in self.fleet.snapshot().workers if view.name == name]
        return view


def started(
    lab: Any, *roles: str, request: Any = None, **policy: Any
) -> tuple[Scripted, RunningGeneration, SubRequest]:
    """A relay among workers of these roles with one request."""
    run = Scripted(lab, *roles, **policy)
    generation = run.start(**request or {})
    return run, generation, run.sub(generation)


def error_of(generation: RunningGeneration) -> BaseException | None:
    """The error that ended a request."""
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
