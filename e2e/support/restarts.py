"""Samples the workers of several services again and again, while these are rolled out."""

import threading
from collections import defaultdict
from types import TracebackType

import kube
from kube import Namespace
from service import ready_ones, stays

ROLE, SERVICE = "serving.legato.dev/role", "serving.legato.dev/service"


class Restarts:
    """Extremes by pool: the fewest workers that were ready and stayed, and the most that were starting at a time. Also
    the most services that were upgraded at a time.

    A worker that was ready once counts as ready, since a busy machine misses a probe now and then."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._were_ready: set[str] = set()
        self.fewest_ready: dict[tuple[str, str], int] = {}
        self.most_starting: dict[tuple[str, str], int] = defaultdict(int)
        self.most_turns = 0

    def __enter__(self) -> "Restarts":
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(kube.PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._sample()

    def _sample(self) -> None:
        ready: dict[tuple[str, str], int] = defaultdict(int)
        starting: dict[tuple[str, str], int] = defaultdict(int)
        pods = self._namespace.list("pods", SERVICE)
        self._were_ready |= ready_ones(pods)
        for pod in pods:
            labels = pod["metadata"]["labels"]
            if labels[ROLE] in ("prefill", "decode") and stays(pod["metadata"]):
                pool = labels[SERVICE], labels[ROLE]
                is_ready = pod["metadata"]["uid"] in self._were_ready
                ready[pool] += is_ready
                starting[pool] += not is_ready
        for pool in {*ready, *self.fewest_ready}:
            self.fewest_ready[pool] = min(self.fewest_ready.get(pool, ready[pool]), ready[pool])
            self.most_starting[pool] = max(self.most_starting[pool], starting[pool])
        services = self._namespace.list("inferenceservices")
        self.most_turns = max(self.most_turns, sum("upgradeTurn" in each.get("status", {}) for each in services))
