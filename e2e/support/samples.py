"""What a service's pools look like five times a second, and where that broke a promise of its manifest."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import gpus
import httpx
import kube
import service
from kube import Object
from service import Service

EVERY = 0.2  # seconds
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Seen:
    """One worker."""

    uid: str
    role: str
    revision: str
    ready: bool
    stays: bool  # neither on its way out nor chosen to go
    gpus: int  # 0 of one that has ended


@dataclass(frozen=True)
class Sample:
    """All of one moment, in seconds of `time.monotonic`."""

    at: float
    workers: tuple[Seen, ...]
    wishes: Mapping[str, int]  # replicas of the WorkerPools, which whoever scales writes
    owners: Mapping[str, tuple[str, ...]]  # who that is, as `metadata.managedFields` tells

    def of(self, role: str) -> list[Seen]:
        return [worker for worker in self.workers if worker.role == role]

    def staying(self, role: str) -> list[Seen]:
        return [worker for worker in self.of(role) if worker.stays]

    def serving(self, role: str) -> int:
        return sum(worker.ready for worker in self.staying(role))

    @property
    def settled(self) -> bool:
        """Whether each pool has as many ready workers as it is to have, and no others."""
        return all(self.serving(role) == len(self.of(role)) == self.wishes[role] for role in ROLES)


class Samples:
    """Taken from entering to leaving."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._proxy = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._stop = threading.Event()
        self.taken: list[Sample] = []

    def __enter__(self) -> "Samples":
        assert self._proxy.stdout is not None
        line = self._proxy.stdout.readline()  # Starting to serve on 127.0.0.1:40123
        found = re.search(r"127\.0\.0\.1:\d+", line)
        assert found, line
        self._url = f"http://{found[0]}"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        looking = self._thread.is_alive()
        self._stop.set()
        self._thread.join(10)
        self._proxy.kill()
        self._proxy.wait()
        assert looking or error, "samples ended before the test: what broke a promise after that was not seen"

    @property
    def last(self) -> Sample:
        return self.taken[-1]

    def until(self, condition: Callable[[Sample], bool], what: str) -> Sample:
        """The first sample from now on for which that holds."""
        looked = len(self.taken)

        def found() -> Sample | None:
            nonlocal looked
            new = self.taken[looked:]
            looked += len(new)
            return next((sample for sample in new if condition(sample)), None)

        return kube.until(found, f"{self._service.name}: {what}")

    def since(self, began: float) -> list[Sample]:
        return [sample for sample in self.taken if sample.at >= began]

    def largest(self, role: str, began: float) -> int:
        """The highest wish since then."""
        return max(sample.wishes[role] for sample in self.since(began))

    def first(self, role: str, above: int, began: float) -> float:
        """Seconds from `began` to the first wish above that; infinite where there was none."""
        return next((s.at - began for s in self.since(began) if s.wishes[role] > above), float("inf"))

    def created(self, role: str, began: float) -> set[str]:
        """UIDs of workers that were not there before."""
        before = {worker.uid for sample in self.taken if sample.at < began for worker in sample.of(role)}
        return {worker.uid for sample in self.since(began) for worker in sample.of(role)} - before

    def _look(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as session:
            while not self._stop.wait(EVERY):
                self.taken.append(self._sample(session))

    def _sample(self, session: httpx.Client) -> Sample:
        namespace, mine = self._service.namespace.name, f"serving.legato.dev/service={self._service.name}"
        workers = _items(session, f"/api/v1/namespaces/{namespace}/pods", mine)
        pools = _items(session, f"/apis/serving.legato.dev/v1alpha1/namespaces/{namespace}/workerpools", mine)
        return Sample(
            time.monotonic(),
            tuple(_seen(item) for item in workers if item["metadata"]["labels"]["serving.legato.dev/role"] in ROLES),
            {item["spec"]["role"]: item["spec"]["replicas"] for item in pools},
            {item["spec"]["role"]: tuple(_owners(item)) for item in pools},
        )


def violations(samples: list[Sample], spec: Mapping[str, Any]) -> Iterator[str]:
    """Moments at which budget, a minimum or the ratio of the pools did not hold. `spec` is the service's."""
    for sample in samples:
        scaling, held = spec["scaling"], sum(worker.gpus for worker in sample.workers)
        if held > scaling["gpuBudget"]:
            yield f"{held} GPUs: {sample}"
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


def _items(session: httpx.Client, path: str, selector: str) -> list[Object]:
    found: list[Object] = session.get(path, params={"labelSelector": selector}).raise_for_status().json()["items"]
    return found


def _owners(pool: Object) -> Iterator[str]:
    for entry in pool["metadata"]["managedFields"]:
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {}):
            yield entry["manager"]


def _seen(pod: Object) -> Seen:
    metadata = pod["metadata"]
    ended = pod["status"].get("phase") in ("Failed", "Succeeded")
    (worker,) = (c for c in pod["spec"]["containers"] if c["name"] == "worker")
    return Seen(
        metadata["uid"],
        metadata["labels"]["serving.legato.dev/role"],
        metadata["labels"]["serving.legato.dev/pod-revision"],
        service.is_ready(pod),
        service.stays(metadata),
        0 if ended else int(worker["resources"].get("requests", {}).get(gpus.GPU, 0)),
    )
