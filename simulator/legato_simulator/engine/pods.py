"""The workers of a simulated service: started, drained, recalled and deleted by the rules of the plan."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from legato_operator.policy import Count, Pool, Spec, Step, configured, limits, next_step, roles, starting_order
from legato_simulator.engine.simulated_pod import SimulatedPod, WorkerKind

POOLS: Mapping[str, Pool] = {roles.PREFILL: "prefill", roles.DECODE: "decode"}

P = TypeVar("P", bound=SimulatedPod)
Make = Callable[[str, Pool, WorkerKind, float], P]  # by name, pool, kind and time of creation


class Pods(Generic[P]):
    """`all` are the existing workers in order of creation. Times in seconds."""

    def __init__(self, spec: Spec, kinds: Mapping[str, WorkerKind], make: Make[P]) -> None:
        """`kinds` are by pool."""
        self._spec, self._kinds, self._make = spec, kinds, make
        self._gpus = {pool: roles.gpus(spec, pool) for pool in roles.with_pool(spec)}
        self._numbers = itertools.count()
        self.all: list[P] = []
        self.desired = {pool: roles.initial_replicas(spec, pool) for pool in roles.with_pool(spec)}
        for pool, target in limits.targets(spec, self.desired).items():
            for _ in range(target.replicas):
                self._create(pool, -kinds[pool].start)

    def of_pool(self, pool: str) -> list[P]:
        """Returns the workers of a pool, including draining ones."""
        return [worker for worker in self.all if worker.pool == pool]

    def ready(self, now: float) -> dict[str, int]:
        """Returns the number of ready, not draining workers by pool."""
        return {pool: sum(worker.takes(now) for worker in self.of_pool(pool)) for pool in self.desired}

    @property
    def gpus(self) -> int:
        """GPUs of all existing workers."""
        return sum(self._gpus[worker.pool] for worker in self.all)

    @property
    def billed(self) -> int:
        """GPUs of all existing workers; a worker without GPUs counts as one."""
        return sum(self._gpus[worker.pool] or 1 for worker in self.all)

    def set_desired(self, sizes: Mapping[str, int]) -> None:
        """Sets the desired sizes within the bounds of each pool; `reconcile` applies the other limits."""
        for pool in self.desired:
            bounds = roles.bounds(self._spec, pool)
            self.desired[pool] = min(max(sizes.get(pool, self.desired[pool]), bounds.min), bounds.max)

    def reconcile(self, now: float) -> list[P]:
        """Runs one pass of the plan and returns the deleted workers, which may still have requests."""
        targets = limits.targets(self._spec, self.desired)
        for pool, target in targets.items():
            self._recall(pool, target.replicas)
        gone = [worker for worker in self.all if self._ends(worker, now)]
        steps = {pool: self._step(pool, target.replicas, now) for pool, target in targets.items()}
        for pool in self._order(targets, steps):
            self._create(pool, now)
        for pool, step in steps.items():
            gone += self._leave(pool, step, now)
        self.all[:] = [worker for worker in self.all if worker not in gone]
        return gone

    def _create(self, pool: str, now: float) -> None:
        self.all.append(self._make(f"{POOLS[pool]}-{next(self._numbers)}", POOLS[pool], self._kinds[pool], now))

    def _ends(self, worker: P, now: float) -> bool:
        since = worker.draining_since
        return since is not None and since < now and (worker.idle or now - since >= self._spec.drain.deadline)

    def _recall(self, pool: str, target: int) -> None:
        """Lets draining workers serve again before others start, the busiest first: it keeps the most sequences."""
        workers = self.of_pool(pool)
        draining = [worker for worker in workers if worker.draining_since is not None]
        draining.sort(key=lambda worker: worker.in_flight + worker.prompts, reverse=True)
        for worker in draining[: max(0, target - len(workers) + len(draining))]:
            worker.draining_since = None

    def _step(self, pool: str, target: int, now: float) -> Step:
        staying = [worker for worker in self.of_pool(pool) if worker.draining_since is None]
        ready = sum(worker.serves(now) for worker in staying)
        leaving = len(self.of_pool(pool)) - len(staying)
        bounds = configured(self._spec.rollout, target)
        return next_step(Count(0, 0), Count(ready, len(staying) - ready), leaving, target, bounds)

    def _order(self, targets: limits.Targets, steps: Mapping[str, Step]) -> Sequence[str]:
        """Returns the pool of each worker to start now."""
        budget = self._spec.scaling.gpu_budget
        room = math.inf if budget is None else budget - self.gpus
        staying = {p: sum(worker.draining_since is None for worker in self.of_pool(p)) for p in targets}
        needs = {pool: [self._gpus[pool]] * step.create for pool, step in steps.items()}
        sizes = {pool: target.replicas for pool, target in targets.items()}
        return starting_order(self._spec, needs, staying, sizes, room)

    def _leave(self, pool: str, step: Step, now: float) -> list[P]:
        """Drains ready workers, the idlest first, and returns starting ones to delete, the newest first."""
        staying = [worker for worker in self.of_pool(pool) if worker.draining_since is None]
        starting = [worker for worker in staying if not worker.serves(now)]
        ready = [worker for worker in reversed(staying) if worker.serves(now)]
        ready.sort(key=lambda worker: worker.in_flight + worker.prompts)
        for worker in ready[: step.remove_new_ready]:
            worker.draining_since = now
        return starting[len(starting) - step.remove_new_starting :]
