"""Samples the workers of several services again and again, while these are rolled out."""

from collections import defaultdict
from typing import Self

from kube import Namespace
from meanwhile import Meanwhile
from service import is_ready, stays

ROLE, SERVICE = "serving.legato.dev/role", "serving.legato.dev/service"


class Restarts(Meanwhile):
    """By pool: the fewest workers that were ready and stayed, and the most that were starting at a time. And the most
    services that had their turn at a time."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__()
        self._namespace = namespace
        self.fewest_ready: dict[tuple[str, str], int] = {}
        self.most_starting: dict[tuple[str, str], int] = defaultdict(int)
        self.most_turns = 0

    def __enter__(self) -> Self:
        self._sample()
        return super().__enter__()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        assert not self._running

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._sample()

    def _sample(self) -> None:
        ready: dict[tuple[str, str], int] = defaultdict(int)
        starting: dict[tuple[str, str], int] = defaultdict(int)
        for pod in self._namespace.list("pods", SERVICE):
            labels = pod["metadata"]["labels"]
            if labels[ROLE] in ("prefill", "decode") and stays(pod["metadata"]):
                pool = labels[SERVICE], labels[ROLE]
                ready[pool] += is_ready(pod)
                starting[pool] += not is_ready(pod)
        for pool in {*ready, *self.fewest_ready}:
            self.fewest_ready[pool] = min(self.fewest_ready.get(pool, ready[pool]), ready[pool])
            self.most_starting[pool] = max(self.most_starting[pool], starting[pool])
        services = self._namespace.list("inferenceservices")
        self.most_turns = max(self.most_turns, sum("upgradeTurn" in each.get("status", {}) for each in services))
