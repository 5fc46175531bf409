"""Running sequences that go on at other workers: all those of workers that drain, and now and then one of a hot one.

What may move, where to and when is decided as the gateway does; the hand-offs are those of `kv_handoffs`.
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
from legato_simulator.engine.scheduler.scheduled_request import ScheduledRequest
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker


class Migrations:
    """Of one gateway. `workers` are those it knows, by name, as they change."""

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
        self._hot = HotWorkers(rebalancing, random.Random(0).random)  # the same in every run
        self._leaving: dict[ScheduledRequest, None] = {}  # on a worker that drains

    @property
    def waits(self) -> bool:
        """Whether a sequence that is to leave has not found a target yet."""
        return bool(self._leaving)

    def leaves(self, request: ScheduledRequest) -> None:
        """Its worker drains: it goes to another one as soon as one can take it."""
        if request not in self._leaving:
            self._leaving[request] = None
            request.tried = -1

    def forget(self, request: ScheduledRequest) -> None:
        """It has ended, or is on no worker."""
        self._leaving.pop(request, None)

    def moved(self, request: ScheduledRequest, source: str) -> None:
        """A worker that it has left."""
        self._hot.moved(request, source, self._time.now)

    def turn(self) -> None:
        """The fleet has changed: those that are to leave a worker come first, then those that had better."""
        for request in list(self._leaving):
            if request.tried != self._fleet.openings:
                self._leave(request)
        for hot in self._hot.due(self._fleet.snapshot(), self._time.now):
            self._hand_on(hot)

    # ── inside ──

    def _leave(self, request: ScheduledRequest) -> None:
        assert request.decoder is not None
        stays = request.decoder.draining_since is None
        if stays or (_may_migrate(request) and self._migrate(request)):
            del self._leaving[request]
        else:
            request.tried = self._fleet.openings

    def _hand_on(self, hot: HotWorker) -> None:
        """One of its sequences, if another worker relieves it, as `relay.movable` has it: the shortest first, and
        none while one is on its way."""
        source = self._workers[hot.worker.name]
        there = [request for request in source.decoding.values() if request.decoder is source]
        if any(_migrates(request) for request in there):
            return
        able = (request for request in there if self._may_be_handed_on(request))
        for request in heapq.nsmallest(TRIES, able, key=ScheduledRequest.known):
            if self._migrate(request, hot):
                return

    def _may_be_handed_on(self, request: ScheduledRequest) -> bool:
        """A gateway judges by when the last token came; here it is known whether the next step makes one."""
        if not _may_migrate(request) or not _decodes(request) or self._time.now < request.settled_until:
            return False
        return request.need().growth >= self._hot.least_left

    def _migrate(self, request: ScheduledRequest, hot: HotWorker | None = None) -> bool:
        """Whether its hand-off to another worker has begun. From one that is merely `hot`, to one that relieves it."""
        source, running = request.decoder, request.running
        assert source is not None
        assert running is not None
        target = self._target(request, source, hot)
        if target is None:
            return False
        request.attempt += 1
        here = request.sub_request(self._handoffs.room(), request.known())
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
        """It goes on where it is, and leaves that worker only if it drains."""
        request.leave(target)
        request.settled_until = math.inf
        self._hot.failed(source.name, self._time.now)


def _may_migrate(request: ScheduledRequest) -> bool:
    """Whether a core would hand it over: it runs, and is not on its way already."""
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
