"""What the fleet can take on at once, counted down as requests are given to it. Pure: part of `admission`."""

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView


class Capacity:
    """Room for sequences on decoding workers, and for prompt tokens in the queues of those that prefill."""

    def __init__(self, snapshot: FleetSnapshot, backlog_seconds: float, min_backlog_tokens: int) -> None:
        self._snapshot = snapshot
        present = [worker for worker in snapshot.workers if worker.ready and not worker.draining]
        usable = [worker for worker in present if not worker.broken] or present
        self._decoders = [worker for worker in snapshot.workers if worker.decodes]
        self._taken: dict[str, list[int]] = {}  # blocks and sequences, by worker
        prefillers = [w for w in usable if w.prefills] or usable
        usual = scorers.usual_rate(snapshot)
        self._measured = any(worker.prefill_rate > 0 for worker in prefillers)
        self._rate = sum(worker.prefill_rate or usual for worker in prefillers)
        self._backlog = sum(worker.backlog for worker in prefillers)
        self._max_backlog = max(min_backlog_tokens, int(self._rate * backlog_seconds))

    def take(self, need: Need, uncached: int, matches: Matches) -> bool:
        """Takes what `need` wants and says True, or leaves everything as it was."""
        if self._backlog and self._backlog + uncached > self._max_backlog:
            return False
        fitting = self._fitting(self._snapshot, need, matches)
        if not fitting and any(worker.broken for worker in self._decoders):
            fitting = self._fitting(filters.forgiven(self._snapshot, need), need, matches)
        if not fitting:
            return False
        worker = max(fitting, key=self._room)
        taken = self._taken.setdefault(worker.name, [0, 0])
        taken[0] += filters.wanted(worker, need, filters.matched(worker, need, matches))
        taken[1] += 1
        self._backlog += uncached
        return True

    def never_fits(self, need: Need) -> str | None:
        """Why no known worker could hold this sequence even when empty, or None. With no workers, nobody knows."""
        reasons = [filters.too_small(worker, need) for worker in self._decoders]
        if not reasons or not all(reasons):
            return None
        return "; ".join(f"{w.name} {reason}" for w, reason in zip(self._decoders, reasons, strict=True))

    def seconds(self, tokens: int) -> float:
        """About how long the fleet needs until `tokens` more are computed; 0 where no rate was measured yet."""
        return (self._backlog + tokens) / self._rate if self._measured else 0.0

    def _room(self, worker: WorkerView) -> int:
        return worker.room - self._taken.get(worker.name, (0, 0))[0]

    def _fitting(self, snapshot: FleetSnapshot, need: Need, matches: Matches) -> list[WorkerView]:
        return [worker for worker in snapshot.workers if worker.decodes and self._fits(worker, need, matches)]

    def _fits(self, worker: WorkerView, need: Need, matches: Matches) -> bool:
        matched = filters.matched(worker, need, matches)
        if filters.why_not(worker, need, matched) is not None:
            return False
        blocks, sequences = self._taken.get(worker.name, (0, 0))
        if worker.credits is not None and worker.credits <= worker.pending_sequences + sequences:
            return False
        return filters.wanted(worker, need, matched) <= worker.room - blocks
