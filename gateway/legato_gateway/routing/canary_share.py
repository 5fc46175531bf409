"""Chooses between the old and the new revision for a request while a canary runs. Pure.

A request keeps its revision: it follows from a hash of its id, so that retries and other choices go to the same one.
"""

from dataclasses import dataclass
from zlib import crc32

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.wire.canary import Canary

MOST_BACKLOG = 2.0  # seconds of prompts queued on every new worker, beyond which the old revision gets the request
LEAST_BACKLOG = 8192  # prompt tokens that may always be queued on a new worker


@dataclass(frozen=True, slots=True)
class RevisionChoice:
    """The preferred revision of a request: the new one, the old one, or None for any. `compared`: both could serve."""

    new: bool | None = None
    compared: bool = False


def choose_revision(canary: Canary | None, snapshot: FleetSnapshot, request: str) -> RevisionChoice:
    """Returns the revision for the request with this id. While one revision cannot serve, the other one does."""
    if canary is None:
        return RevisionChoice()
    new, old = (why_unable(canary, snapshot, revision) is None for revision in (True, False))
    if not (new and old):
        return RevisionChoice(new if new or old else None)
    chance = crc32(request.encode()) % 10_000 / 10_000
    return RevisionChoice(chance < _share(canary, snapshot), compared=True)


def why_unable(canary: Canary, snapshot: FleetSnapshot, new: bool) -> str | None:
    """Returns the reason why the new, or old, revision cannot serve a request now, or None."""
    for pool in canary.revisions:
        own = _workers(snapshot, pool, new)
        usable = [worker for worker in own if worker.usable]
        if not usable:
            return f"no usable {pool} worker ({', '.join(worker.name for worker in own) or 'none is connected'})"
        if new and all(map(_is_behind, usable)):
            return f"every {pool} worker has too many prompts queued"
    return None


def _share(canary: Canary, snapshot: FleetSnapshot) -> float:
    """Returns the new revision's share of requests, from 0 to 1: at most the canary's weight.

    No new worker gets more load than an old one: with another load, workers of the same speed would look different.
    """
    share = canary.weight / 100
    for pool in canary.revisions:
        new, old = (sum(worker.usable for worker in _workers(snapshot, pool, each)) for each in (True, False))
        share = min(share, new / (new + old))
    return share


def _workers(snapshot: FleetSnapshot, pool: str, new: bool) -> list[WorkerView]:
    prefills = pool == "prefill"
    return [worker for worker in snapshot.workers if worker.new_revision is new and worker.prefills is prefills]


def _is_behind(worker: WorkerView) -> bool:
    return worker.backlog > max(LEAST_BACKLOG, worker.prefill_rate * MOST_BACKLOG)
