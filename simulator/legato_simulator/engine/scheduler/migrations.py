"""Moves running sequences to other workers: all sequences of draining workers, and some of hot workers.

The gateway's own code decides on sequences, targets and times; `kv_handoffs` hands them over.
"""

import heapq
import math
import random
from collections.abc import Mapping
from functools import partial

from legato_engine.policy import RequestRejected, RequestState, VirtualTime, outgoing_of
from legato_gateway import policy
from legato_gateway.policy import TRIES, Fleet, HotWorker, HotWorkers, Policy, RebalancingPolicy
from legato_simulator.engine.scheduler.kv_handoffs import KVHandoffs
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledRequest, ScheduledWorker


class Migrations:
    """The migrations of one gateway. `workers` is the live mapping of its known workers by name."""

    def __init__(
        self,
        time: VirtualTime,
        fleet: Fleet,
        workers: Mapping[str, ScheduledWorker],
        handoffs: KVHandoffs,
        policy: Policy,
        rebalancing: RebalancingPolicy,
    ) -> None:
        self._time, self._fleet, self._workers, self._handoffs = time, fleet, workers, handoffs
        self._policy = policy
        self._hot = HotWorkers(rebalancing, random.Random(0).random)  # deterministic
        self._leaving: dict[ScheduledRequest, None] = {}  # sequences on draining workers

    @property
    def waiting(self) -> bool:
        """True if a sequence that must leave has no target yet."""
        return bool(self._leaving)

    def move_away(self, request: ScheduledRequest) -> None:
        """Moves a sequence from its draining worker to another one, as soon as one can take it."""
        if request not in self._leaving:
            self._leaving[request] = None
            request.tried = -1

    def forget(self, request: ScheduledRequest) -> None:
        """Forgets a request that has ended, or has no worker."""
        self._leaving.pop(request, None)

    def record_move(self, request: ScheduledRequest, source: str) -> None:
        """Records that a request has left `source`."""
        self._hot.moved(request, source, self._time.now)

    def on_fleet_change(self) -> None:
        """Starts migrations: first from draining workers, then from hot ones."""
        for request in list(self._leaving):
            if request.tried != self._fleet.openings:
                self._leave(request)
        for hot in self._hot.due(self._fleet.snapshot(), self._time.now):
            self._relieve(hot)

    # ── inside ──

    def _leave(self, request: ScheduledRequest) -> None:
        assert request.decoder is not None
        stays = request.decoder.draining_since is None
        if stays or (_may_migrate(request) and self._migrate(request)):
            del self._leaving[request]
        else:
            request.tried = self._fleet.openings

    def _relieve(self, hot: HotWorker) -> None:
        """Migrates one of its sequences if another worker relieves it: the shortest, and only one at a time."""
        source = self._workers[hot.worker.name]
        there = [request for request in source.decoding.values() if request.decoder is source]
        if any(_migrates(request) for request in there):
            return
        able = (request for request in there if self._may_relieve(request))
        for request in heapq.nsmallest(TRIES, able, key=ScheduledRequest.known):
            if self._migrate(request, hot):
                return

    def _may_relieve(self, request: ScheduledRequest) -> bool:
        """Returns True if it may leave a hot worker.

        The gateway judges by the time of the last token; here it is known if the next step makes one.
        """
        if not _may_migrate(request) or not _decodes(request) or self._time.now < request.settled_until:
            return False
        return request.need().growth >= self._hot.least_left

    def _migrate(self, request: ScheduledRequest, hot: HotWorker | None = None) -> bool:
        """Begins its hand-off to another worker, which must relieve a `hot` source. Returns False if it cannot."""
        source, running = request.decoder, request.running
        assert source is not None
        assert running is not None
        target = self._target(request, source, hot)
        if target is None:
            return False
        request.attempt += 1
        here = request.sub_request(self._handoffs.new_room(), request.known())
        try:
            self._handoffs.migrate(source, running, target, here, partial(self._failed, request, source, target))
        except RequestRejected:
            return False
        target.decoding[request.id] = request
        request.places[target] = None
        self._fleet.sent(target.name, queued=0, held=len(here.tokens))
        return True

    def _target(
        self, request: ScheduledRequest, source: ScheduledWorker, hot: HotWorker | None
    ) -> ScheduledWorker | None:
        workers = self._fleet.snapshot().workers
        target = policy.migration_target(request.need(), source.name, workers, self._policy, hot)
        return None if target is None else self._workers[target]

    def _failed(self, request: ScheduledRequest, source: ScheduledWorker, target: ScheduledWorker) -> None:
        """Lets a sequence stay after a failed migration: from now on it only leaves if its worker drains."""
        request.leave(target)
        request.settled_until = math.inf
        self._hot.failed(source.name, self._time.now)


def _may_migrate(request: ScheduledRequest) -> bool:
    """Returns True if a core would hand it over: it runs and does not migrate."""
    running = request.running
    return (
        running is not None
        and running.state is RequestState.RUNNING
        and running.room is None
        and not _migrates(request)
    )


def _migrates(request: ScheduledRequest) -> bool:
    outgoing = None if request.running is None else outgoing_of(request.running)
    return outgoing is not None and outgoing.migration and not outgoing.over


def _decodes(request: ScheduledRequest) -> bool:
    return request.simulated.first is not None and request.running is not None and request.running.remaining == 1
