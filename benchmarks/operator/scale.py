"""Measures the cost of the operator with many services and pods, and the time of a service from apply to Ready.

    PYTHONPATH=tests/support .venv/bin/python benchmarks/operator/scale.py [--services 100] [--workers 20]

A real etcd, kube-apiserver and kube-controller-manager (from KUBEBUILDER_ASSETS), and `legato operator` as a process of
its own. Pods are the objects that the operator and the Deployments make; no kubelet runs them: the recipe binds each,
gives it a loopback address at which a worker's `/state` answers, and patches its status to Running and Ready as soon
as a watch reports it. Image pull, model load and scheduling thus take no time. `--qps` is what Kubernetes' own
controllers may call a second: their default of 20 would be most of the time that a hundred Deployments take.

Calls are those that the operator counts itself, but for its Lease; its watches are not among them: one for each kind,
opened every 48 s.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import re
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import control_plane
import httpx
import psutil

GROUP = "/apis/serving.legato.dev/v1alpha1"
CONTROL_PORT = 8082  # fixed on Kubernetes; every pod has a loopback address of its own
STATE = json.dumps({"draining": False, "running": 0, "idle": True, "transport": "tcp"}).encode()
READY = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")]
APPLY = "application/apply-patch+yaml"
CALLS = re.compile(r'^legato_operator_api_calls_total\{kind="(\w+)",outcome="(\w+)",verb="(\w+)"\} ([\d.e+]+)', re.M)


class Api:
    """The API server, to a user and to a kubelet."""

    def __init__(self, server: control_plane.ApiServer) -> None:
        headers = {"authorization": f"Bearer {server.token}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._turns = asyncio.Semaphore(16)
        self._client = httpx.AsyncClient(
            base_url=server.url, headers=headers, verify=False, limits=limits, timeout=60, trust_env=False
        )

    async def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        async with self._turns:
            answer = await self._client.request(method, path, content=json.dumps(body), headers={"content-type": kind})
        return answer.raise_for_status().json()

    async def watch(self, path: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Lists the objects and watches every change after that."""
        version = (await self.call("GET", path))["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version}
        async with self._client.stream("GET", path, params=query, timeout=None) as answer:
            async for line in answer.aiter_lines():
                news = json.loads(line)
                yield news["type"], news["object"]


@dataclass
class Kubelets:
    """Makes every pod Ready and deletes it, both without delay."""

    api: Api
    _pods: dict[str, asyncio.Server] = field(default_factory=dict)
    _started: int = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            await self._watch()

    async def _watch(self) -> None:
        try:
            async for _, pod in self.api.watch("/api/v1/pods"):
                metadata = pod["metadata"]
                if "deletionTimestamp" in metadata and metadata["uid"] in self._pods:
                    self._tasks.create_task(self._end(pod, self._pods.pop(metadata["uid"])))
                elif metadata["uid"] not in self._pods and "podIP" not in pod.get("status", {}):
                    self._started += 1
                    number = self._started
                    address = f"127.{64 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"
                    self._pods[metadata["uid"]] = await asyncio.start_server(_answer, address, CONTROL_PORT)
                    self._tasks.create_task(self._begin(pod, address))
        finally:
            for server in self._pods.values():
                server.close()

    async def _begin(self, pod: dict[str, Any], address: str) -> None:
        path = _path(pod)
        target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
        bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}, "target": target}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": READY}
        with contextlib.suppress(httpx.HTTPStatusError):  # it is gone already
            await self.api.call("POST", f"{path}/binding", bound)
            await self.api.call("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    async def _end(self, pod: dict[str, Any], server: asyncio.Server) -> None:
        server.close()
        with contextlib.suppress(httpx.HTTPStatusError):
            await self.api.call("DELETE", _path(pod), {"gracePeriodSeconds": 0})


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a worker that does nothing."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(STATE), STATE))
    writer.close()


@dataclass
class Services:
    """Services by (namespace, name), and when each was applied, Ready and settled."""

    api: Api
    applied: dict[tuple[str, str], float] = field(default_factory=dict)
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    settled: dict[tuple[str, str], float] = field(default_factory=dict)
    gone: set[tuple[str, str]] = field(default_factory=set)

    async def run(self) -> None:
        async for kind, item in self.api.watch(f"{GROUP}/inferenceservices"):
            key = item["metadata"]["namespace"], item["metadata"]["name"]
            now = time.monotonic()
            status = item.get("status", {})
            conditions = {entry["type"]: (entry["status"], entry["reason"]) for entry in status.get("conditions", ())}
            if kind == "DELETED":
                self.gone.add(key)
            if conditions.get("Ready", ("",))[0] == "True":
                self.ready.setdefault(key, now)
            pools = status.get("pools", {}).values()
            if conditions.get("Progressing") == ("False", "UpToDate") and all(
                p["ready"] == p["desired"] for p in pools
            ):
                self.settled.setdefault(key, now)

    async def apply(self, namespace: str, name: str, workers: int) -> None:
        spec = {
            "model": {"source": {"builtin": "smollm2-135m-instruct"}},
            "scaling": {"mode": "Fixed"},
            "prefill": {"replicas": workers // 2},
            "decode": {"replicas": workers - workers // 2},
        }
        item = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "spec": spec}
        path = f"{GROUP}/namespaces/{namespace}/inferenceservices/{name}"
        self.applied[namespace, name] = time.monotonic()
        body = item | {"metadata": {"name": name, "namespace": namespace}}
        await self.api.call("PATCH", f"{path}?fieldManager=user", body, APPLY)

    async def delete(self, namespace: str, name: str) -> None:
        await self.api.call("DELETE", f"{GROUP}/namespaces/{namespace}/inferenceservices/{name}")
        await _until(lambda: (namespace, name) in self.gone)


@dataclass
class Operator:
    process: psutil.Process
    port: int

    async def calls(self) -> collections.Counter[str]:
        """By verb and kind, without those for its Lease."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30)).text
        counts: collections.Counter[str] = collections.Counter()
        for kind, outcome, verb, count in CALLS.findall(text):
            if kind != "Lease":
                counts[f"{verb} {kind}" if outcome == "OK" else f"{verb} {kind}: {outcome}"] += int(float(count))
        return counts

    def seconds(self) -> float:
        """Seconds of CPU since the start of the process."""
        times = self.process.cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Resident, in MiB."""
        return self.process.memory_info().rss >> 20


@contextlib.asynccontextmanager
async def operator(server: control_plane.ApiServer, folder: Path) -> AsyncIterator[Operator]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "legato_cli.main", "operator", "--engine-image", "engine:1"]
    command += ["--gateway-image", "gateway:1", "--lease-namespace", "default", "--http-port", str(port)]
    with (folder / "operator.log").open("wb") as log:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        started = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        process = Operator(psutil.Process(started.pid), port)
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == httpx.codes.OK:
                        break
                if started.returncode is not None:
                    raise SystemExit((folder / "operator.log").read_text())
                await asyncio.sleep(0.1)
        yield process
    finally:
        started.terminate()
        await started.wait()


async def _until(condition: Callable[[], bool], seconds: float = 900) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a watch's task changes it
            await asyncio.sleep(0.02)


def _quantiles(times: Iterable[float]) -> str:
    ordered = sorted(times)
    return f"p50 {statistics.median(ordered):.1f} s, p99 {ordered[int(0.99 * (len(ordered) - 1))]:.1f} s"


def _load() -> str:
    return ", ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5, 15 minutes)"


def _row(name: str, *values: object) -> None:
    print(f"| {name} | {' | '.join(str(value) for value in values)} |", flush=True)


def _per_service(calls: collections.Counter[str], share: float) -> str:
    """All together, by verb, and by verb and kind."""
    verbs: collections.Counter[str] = collections.Counter()
    for what, count in calls.items():
        verbs[what.split()[0]] += count
    parts = [", ".join(f"{what} {count / share:.1f}" for what, count in each.most_common()) for each in (verbs, calls)]
    return f"**{calls.total() / share:.1f}**: {parts[0]} ({parts[1]})"


async def measure(args: argparse.Namespace, server: control_plane.ApiServer, folder: Path) -> None:
    api = Api(server)
    services = Services(api)
    namespaces = [f"scale-{number}" for number in range(args.namespaces)]
    for name in ("single", *namespaces):
        await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    async with asyncio.TaskGroup() as watching, operator(server, folder) as process:
        tasks = [watching.create_task(services.run()), watching.create_task(Kubelets(api).run())]
        try:
            print("| | |\n| --- | --- |")
            _row("RSS without a service", f"{process.memory()} MiB")
            await asyncio.sleep(args.warm)
            await _singles(args, services, process)
            await _hundred(args, services, process, namespaces)
            await _rest(args, process)
        finally:
            for task in tasks:
                task.cancel()


async def _singles(args: argparse.Namespace, services: Services, process: Operator) -> None:
    """One service after the other, with a worker in each pool."""
    names = [("single", f"one-{number}") for number in range(args.singles)]
    before = await process.calls()
    for namespace, name in names:
        await services.apply(namespace, name, 2)
        await _until(lambda name=name: ("single", name) in services.settled)  # type: ignore[misc]
    calls = await process.calls() - before
    _row(f"apply to Ready, {len(names)} one by one", _quantiles(services.ready[k] - services.applied[k] for k in names))
    _row("its calls until settled", _per_service(calls, len(names)))
    for namespace, name in names:
        await services.delete(namespace, name)


async def _hundred(args: argparse.Namespace, services: Services, process: Operator, namespaces: list[str]) -> None:
    """Applies all services together."""
    names = [(namespaces[number % len(namespaces)], f"many-{number}") for number in range(args.services)]
    before, cpu, began = await process.calls(), process.seconds(), time.monotonic()
    around = _around(process)
    await asyncio.gather(*(services.apply(namespace, name, args.workers) for namespace, name in names))
    await _until(lambda: all(key in services.settled for key in names))
    took = time.monotonic() - began
    calls = await process.calls() - before
    what = f"{len(names)} together, {args.workers} workers each"
    _row(f"apply to Ready, {what}", _quantiles(services.ready[k] - services.applied[k] for k in names))
    _row("apply to all workers ready and settled", _quantiles(services.settled[k] - services.applied[k] for k in names))
    _row("calls per service until settled", _per_service(calls, len(names)))
    used = process.seconds() - cpu
    _row("CPU of the operator meanwhile", f"{used / len(names):.2f} s a service, {used / took:.2f} cores")
    what = "CPU meanwhile of API server, etcd, Kubernetes' controllers and this recipe"
    _row(what, f"{(_around(process) - around) / len(names):.2f} s a service")
    _row("load of the machine", _load())


def _around(process: Operator) -> float:
    """Seconds of processors that everything but the operator has used."""
    own = psutil.Process()
    others = (each for each in own.children(recursive=True) if each.pid != process.process.pid)
    return sum(sum(each.cpu_times()[:2]) for each in (own, *others))


async def _rest(args: argparse.Namespace, process: Operator) -> None:
    await asyncio.sleep(args.settle)
    before, cpu, began = await process.calls(), process.seconds(), time.monotonic()
    await asyncio.sleep(args.rest)
    minutes = (time.monotonic() - began) / 60
    calls = await process.calls() - before
    _row("at rest: calls per service and minute", _per_service(calls, minutes * args.services))
    _row("at rest: calls a second, all services", f"{calls.total() / minutes / 60:.1f}")
    _row("at rest: share of a core", f"{(process.seconds() - cpu) / minutes / 60:.3f}")
    _row("at rest: RSS", f"{process.memory()} MiB")
    _row("load of the machine", _load())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--workers", type=int, default=20, help="of each service")
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--singles", type=int, default=5, help="services applied one by one first")
    parser.add_argument("--warm", type=float, default=70.0, help="seconds after which the operator trusts its watches")
    parser.add_argument("--settle", type=float, default=60.0, help="seconds before the rest is measured")
    parser.add_argument("--rest", type=float, default=180.0, help="seconds that the rest is measured for")
    parser.add_argument("--qps", type=int, default=200, help="calls a second of Kubernetes' own controllers")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)  # a socket a pod
    programs = control_plane.programs()
    if programs is None:
        raise SystemExit("no etcd and kube-apiserver: set KUBEBUILDER_ASSETS")
    limits = (f"--kube-api-qps={args.qps}", f"--kube-api-burst={2 * args.qps}")
    with (
        control_plane.controlled(programs, flags=limits) as server,
        tempfile.TemporaryDirectory(prefix="legato-scale-") as folder,
    ):
        asyncio.run(measure(args, server, Path(folder)))


if __name__ == "__main__":
    main()
