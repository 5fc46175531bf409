"""What follows when an attempt fails or a worker is lost: `redispatch` decides, `legs` starts over."""

from collections.abc import Callable

from legato_gateway.errors import GatewayError, SuspectedPoison
from legato_gateway.metrics import Metrics
from legato_gateway.relay import redispatch
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.leg import Leg
from legato_gateway.relay.legs import Legs
from legato_gateway.relay.moves import Moves
from legato_gateway.relay.redispatch import End, RetryPolicy
from legato_gateway.workers.fleet import Fleet
from legato_protocol.stream import Failed

Finish = Callable[[RunningGeneration, GatewayError], None]


class Recovery:
    """`finish` ends a request with an error."""

    def __init__(
        self, legs: Legs, moves: Moves, fleet: Fleet, metrics: Metrics, policy: RetryPolicy, finish: Finish
    ) -> None:
        self._legs = legs
        self._moves = moves
        self._fleet = fleet
        self._metrics = metrics
        self._policy = policy
        self._finish = finish

    def failed(self, worker: str, failed: Failed) -> None:
        """A worker says that an attempt ended; news of attempts that are over changes nothing."""
        for leg in self._legs.meant_by(failed.id):
            if leg.move is not None and failed.attempt == leg.move.attempt:
                self._moves.failed(leg)
            elif leg.placement is not None and failed.attempt == leg.placement.attempt and leg.touched_by(worker):
                self._attempt_failed(leg, worker, failed)

    def fault(self, leg: Leg, worker: str, text: str) -> None:
        """A worker's tokens cannot be right."""
        assert leg.placement is not None
        self._attempt_failed(leg, worker, Failed(leg.id, leg.placement.attempt, "internal", text, "decode", True))

    def lost(self, worker: str, text: str, died: bool) -> None:
        """Everything at `worker` is gone, or cannot be reached: it goes on elsewhere at once."""
        for leg in self._legs.at(worker):
            if leg.move is not None and leg.move.decode == worker:
                self._moves.clear(leg)
            if leg.touched_by(worker):
                self._leave(leg, worker, text, died)

    def _attempt_failed(self, leg: Leg, worker: str, failed: Failed) -> None:
        leg.failures += 1
        leg.last_failure = failed
        answer = redispatch.after_failure(failed, leg.failures, self._policy)
        if isinstance(answer, End):
            self._finish(leg.generation, answer.error)
            return
        self._blame(leg, worker, failed)
        self._metrics.redispatched(failed.code)
        leg.recompute = answer.recompute
        self._legs.again(leg, answer.delay)

    def _blame(self, leg: Leg, worker: str, failed: Failed) -> None:
        """Which worker the next attempt stays away from, if it can."""
        assert leg.placement is not None
        others = leg.placement.workers - {worker}
        culprit = next(iter(others)) if failed.code == "peer_lost" and others else worker
        leg.avoid.add(culprit)
        if failed.code in ("internal", "transfer"):
            self._fleet.failed(culprit, leg.generation.id)

    def _leave(self, leg: Leg, worker: str, text: str, died: bool) -> None:
        assert leg.placement is not None
        generation = leg.generation
        if died and leg.ran_at(worker):
            generation.deaths.add((worker, leg.placement.epochs[worker]))
        if self._poisonous(generation):
            error = SuspectedPoison("two workers died while they ran this request", part=leg.part)
            self._finish(generation, error)
            return
        leg.last_failure = Failed(leg.id, leg.attempt, "peer_lost", text, leg.part, True)
        self._metrics.redispatched("worker_lost")
        self._legs.again(leg, 0.0)

    def _poisonous(self, generation: RunningGeneration) -> bool:
        """A broken connection looks like a death until the same epoch is back."""
        dead = [death for death in generation.deaths if not self._fleet.lives(*death)]
        return len(dead) >= self._policy.poison_deaths
