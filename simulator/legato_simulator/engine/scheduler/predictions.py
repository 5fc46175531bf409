"""Prefixes that simulated workers are about to hold: what `relay.dispatcher` does with the gateway's predictions."""

from legato_gateway.policy import PREDICTED_SECONDS, SETTLING_SECONDS, Matches, PredictedPrefixes, Route
from legato_simulator.engine.scheduler.scheduled_request import ScheduledRequest
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker


class Predictions:
    """Of one gateway. A worker never restarts, so its name is its epoch, too."""

    def __init__(self) -> None:
        self._prefixes = PredictedPrefixes()

    def soon(self, request: ScheduledRequest, now: float) -> Matches:
        """Leading blocks of its prompt that each worker will hold soon."""
        found = self._prefixes.match(request.hashes, now)
        return {worker: blocks for (worker, _), blocks in found.items()}

    def sent(self, request: ScheduledRequest, route: Route, worker: ScheduledWorker, now: float) -> None:
        """`worker` computes its prompt, and will hold it."""
        if route.to_compute >= worker.kind.block_size:
            self._prefixes.add(request.id, worker.name, worker.name, request.hashes, now + PREDICTED_SECONDS)

    def computed(self, request: ScheduledRequest, now: float) -> None:
        """The worker's events are on their way."""
        self._prefixes.shorten(request.id, now + SETTLING_SECONDS)

    def given_up(self, request: ScheduledRequest) -> None:
        """It will not be computed there."""
        self._prefixes.remove(request.id)
