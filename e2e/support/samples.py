"""Samples of a service's pools over time, and the moments at which they broke a promise of its manifest."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import kube
import service
from kube import Object
from nodes import GPU
from service import Service

EVERY = 0.25  # seconds
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Seen:
    """One worker."""

    uid: str
    role: str
    revision: str
    ready: bool  # now or before: a busy machine may miss a probe
    stays: bool  # neither on its way out nor chosen to go
    gpus: int  # 0 of one that has ended


@dataclass(frozen=True)
class Sample:
    """All of one moment, in seconds of `time.monotonic`."""

    at: float
    workers: tuple[Seen, ...]
    desired: Mapping[str, int]  # replicas of the WorkerPools, which whoever scales writes
    owners: Mapping[str, tuple[str, ...]]  # who that is, by `metadata.managedFields`

    def of(self, role: str) -> list[Seen]:
        return [worker for worker in self.workers if worker.role == role]

    def staying(self, role: str) -> list[Seen]:
        return [worker for worker in self.of(role) if worker.stays]

    def serving(self, role: str) -> int:
        return sum(worker.ready for worker in self.staying(role))

    @property
    def settled(self) -> bool:
        """True if each pool has its desired number of ready workers, and no others."""
        return all(self.serving(role) == len(self.of(role)) == self.desired[role] for role in ROLES)


class Samples:
    """Taken from entering to leaving, with pauses of `every` seconds."""

    def __init__(self, service: Service, every: float = EVERY) -> None:
        self._service, self._every = service, every
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()
        self._were_ready: set[str] = set()
        self.taken: list[Sample] = []

    def __enter__(self) -> "Samples":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = self._thread.is_alive()
        self._stop.set()
        self._thread.join(10)
        assert running or error, "samples ended before the test: what broke a promise after that was not seen"

    @property
    def last(self) -> Sample:
        return self.taken[-1]

    def until(self, condition: Callable[[Sample], bool], what: str) -> Sample:
        """Returns the first sample from now on for which the condition holds."""
        seen = len(self.taken)

        def found() -> Sample | None:
            nonlocal seen
            new = self.taken[seen:]
            seen += len(new)
            return next((sample for sample in new if condition(sample)), None)

        return kube.until(found, f"{self._service.name}: {what}")

    def since(self, began: float) -> list[Sample]:
        return [sample for sample in self.taken if sample.at >= began]

    def largest(self, role: str, began: float) -> int:
        """Returns the largest desired size of a pool since then."""
        return max(sample.desired[role] for sample in self.since(began))

    def first(self, role: str, above: int, began: float) -> float:
        """Returns the seconds from `began` to the first desired size above that; infinite where there was none."""
        return next((s.at - began for s in self.since(began) if s.desired[role] > above), float("inf"))

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.taken.append(self._sample())

    def _sample(self) -> Sample:
        mine = f"serving.legato.dev/service={self._service.name}"
        pods = self._service.namespace.list("pods", mine)
        self._were_ready |= service.ready_ones(pods)
        pools = self._service.namespace.list("workerpools", mine)
        return Sample(
            time.monotonic(),
            tuple(self._seen(pod) for pod in pods if pod["metadata"]["labels"]["serving.legato.dev/role"] in ROLES),
            {item["spec"]["role"]: item["spec"]["replicas"] for item in pools},
            {item["spec"]["role"]: tuple(_owners(item)) for item in pools},
        )

    def _seen(self, pod: Object) -> Seen:
        metadata = pod["metadata"]
        ended = pod["status"].get("phase") in ("Failed", "Succeeded")
        (worker,) = (c for c in pod["spec"]["containers"] if c["name"] == "worker")
        requests = worker["resources"].get("requests", {})
        return Seen(
            metadata["uid"],
            metadata["labels"]["serving.legato.dev/role"],
            metadata["labels"]["serving.legato.dev/pod-revision"],
            metadata["uid"] in self._were_ready,
            service.stays(metadata),
            0 if ended else int(requests.get(GPU, 0)),
        )


def violations(samples: list[Sample], spec: Mapping[str, Any]) -> Iterator[str]:
    """Yields moments at which budget, a minimum or the ratio of the pools did not hold. `spec` is the service's."""
    for sample in samples:
        scaling, used = spec["scaling"], sum(worker.gpus for worker in sample.workers)
        if used > scaling["gpuBudget"]:
            yield f"{used} GPUs: {sample}"
        for role in ROLES:
            if sample.serving(role) < scaling[role]["min"]:
                yield f"{sample.serving(role)} {role} workers serve: {sample}"
        for role, other, most in (
            ("prefill", "decode", scaling["maxPrefillPerDecode"]),
            ("decode", "prefill", scaling["maxDecodePerPrefill"]),
        ):
            # One that surges takes another's place and makes no pool larger.
            surging = len({worker.revision for worker in sample.of(role)}) > 1
            if len(sample.staying(role)) - surging > most * len(sample.staying(other)):
                yield f"more than {most} {role} workers for each of the other pool: {sample}"


def _owners(pool: Object) -> Iterator[str]:
    for entry in pool["metadata"]["managedFields"]:
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {}):
            yield entry["manager"]
