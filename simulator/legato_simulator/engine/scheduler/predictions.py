"""Predicted prefixes of simulated workers, kept as the gateway's dispatcher keeps them."""

from legato_gateway.policy import PREDICTED_SECONDS, SETTLING_SECONDS, Matches, PredictedPrefixes, Route
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledRequest, ScheduledWorker


class Predictions:
    """The predictions of one gateway. Workers never restart, so a worker's name is also its epoch."""

    def __init__(self) -> None:
        self._prefixes = PredictedPrefixes()

    def match(self, request: ScheduledRequest, now: float) -> Matches:
        """Returns the number of leading blocks of its prompt that each worker will have soon."""
        matches = self._prefixes.match(request.hashes, now)
        return {worker: blocks for (worker, _), blocks in matches.items()}

    def add(self, request: ScheduledRequest, route: Route, worker: ScheduledWorker, now: float) -> None:
        """Predicts the prompt's blocks on the worker that computes it."""
        if route.to_compute >= worker.kind.block_size:
            self._prefixes.add(request.id, worker.name, worker.name, request.hashes, now + PREDICTED_SECONDS)

    def computed(self, request: ScheduledRequest, now: float) -> None:
        """Shortens a prediction: the prompt is computed, so the worker's events follow."""
        self._prefixes.shorten(request.id, now + SETTLING_SECONDS)

    def cancel(self, request: ScheduledRequest) -> None:
        """Removes a prediction: the prompt will not be computed there."""
        self._prefixes.remove(request.id)
