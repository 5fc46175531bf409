"""An InferenceService in a cluster, as its users see it."""

import atexit
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import kube
from kube import Namespace, Object
from openai import OpenAI

PATIENCE = kube.PATIENCE
ROTATION = 420.0  # seconds: three times what a kubelet takes to write a Secret anew


class Forward:
    """A port of this machine that leads to one pod behind a Service, for as long as this process lives."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        command = ["kubectl", "--namespace", namespace.name, "port-forward", f"service/{name}", ":80"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        atexit.register(self._process.kill)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # Forwarding from 127.0.0.1:40123 -> 8080
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found, f"{' '.join(command)}: {line}"
        self.url = f"http://127.0.0.1:{found[1]}"


class Service:
    """A service by its name."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.name = name

    @cached_property
    def url(self) -> str:
        """Its Service's own name where that is known, else a forwarded port of a gateway, once there is one."""
        if network_is_the_clusters():
            return f"http://{self.name}.{self.namespace.name}.svc"
        self.until_ready()
        return Forward(self.namespace, self.name).url

    @cached_property
    def client(self) -> OpenAI:
        return client(self.url)

    def client_of(self, gateway: Object) -> OpenAI:
        """Returns a client of one gateway's own address."""
        return client(f"http://{gateway['status']['podIP']}:8080")

    def object(self) -> Object:
        return self.namespace.get("inferenceservices", self.name)

    def condition(self, kind: str) -> Object:
        """Returns a condition of the newest generation; empty before that was observed."""
        found = self.object()
        generation = found.get("metadata", {}).get("generation")
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind and c.get("observedGeneration") == generation), {})

    def until_ready(self) -> None:
        kube.until(lambda: self.condition("Ready").get("status") == "True", f"{self.name} is ready")

    def until_settled(self) -> None:
        """Ready, up to date, and nothing in progress."""
        kube.until(
            lambda: (
                self.condition("Ready").get("status") == "True"
                and self.condition("Progressing").get("reason") == "UpToDate"
            ),
            f"{self.name} has settled",
        )

    def until_gateways_ready(self) -> None:
        """Waits until gateways know the service's workers."""
        kube.until(lambda: self.condition("GatewayReady").get("status") == "True", f"{self.name}'s gateways are ready")

    def events(self) -> list[Object]:
        return [each for each in self.namespace.list("events") if each["regarding"].get("name") == self.name]

    def until_event(self, reason: str, patience: float = PATIENCE) -> None:
        """Waits for an Event of this reason."""
        kube.until(lambda: self.has_event(reason), f"{self.name} has an Event {reason}", patience=patience)

    def found(self, role: str) -> list[Object]:
        """Returns the pods of a role that stay: neither on their way out nor chosen to go."""
        selector = f"serving.legato.dev/service={self.name},serving.legato.dev/role={role}"
        return [pod for pod in self.namespace.list("pods", selector) if stays(pod["metadata"])]

    def pods(self, role: str) -> list[str]:
        """Returns the names of the pods of a role that stay."""
        return sorted(pod["metadata"]["name"] for pod in self.found(role))

    def workers(self, ready: bool = False) -> set[str]:
        """Returns the UIDs of workers that stay, since names are given again; only of ready ones if `ready`."""
        found = (pod for role in ("prefill", "decode") for pod in self.found(role))
        return {pod["metadata"]["uid"] for pod in found if is_ready(pod) or not ready}

    def lose(self, role: str, grace: int | None = None) -> Object:
        """Deletes a pod of a role, and waits until it is on its way out. With a grace of 0 seconds, it is killed."""
        victim, *_ = self.found(role)
        self.namespace.delete("pods", victim["metadata"]["name"], grace)
        self.until_gone(victim)
        return victim

    def until_gone(self, pod: Object) -> None:
        """Waits until a pod is at least on its way out."""
        role, uid = pod["metadata"]["labels"]["serving.legato.dev/role"], pod["metadata"]["uid"]
        kube.until(
            lambda: uid not in {left["metadata"]["uid"] for left in self.found(role)},
            f"{pod['metadata']['name']} is gone",
        )

    def until_pods(self, role: str, count: int, patience: float = PATIENCE) -> None:
        """Waits until that many pods of a role stay, all of them ready."""
        kube.until(
            lambda: [is_ready(pod) for pod in self.found(role)] == [True] * count,
            f"{self.name} has {count} {role} pods, all ready",
            patience=patience,
        )

    def refresh_secrets(self) -> None:
        """Makes kubelets write changed Secrets into its pods now. They do so when a pod changes, else once a minute."""
        change = {"metadata": {"annotations": {"e2e.legato.dev/refreshed": str(time.monotonic_ns())}}}
        for pod in self.namespace.list("pods", f"serving.legato.dev/service={self.name}"):
            kube.call("PATCH", kube.path("pods", self.namespace.name, pod["metadata"]["name"]), change, kube.MERGE)

    def until_refreshed(self, condition: Callable[[], Any], what: str) -> None:
        """Waits until what follows from changed Secrets holds, some of which may be changed meanwhile."""

        def holds() -> bool:
            self.refresh_secrets()
            return bool(condition())

        kube.until(holds, what, pause=1.0, patience=ROTATION)

    def has_event(self, reason: str) -> bool:
        """True if an Event of this reason was written."""
        return reason in {each["reason"] for each in self.events()}

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Changes the manifest; null removes a field."""
        self.namespace.patch("inferenceservices", self.name, {"spec": spec})

    def scale(self, role: str, replicas: int) -> None:
        scale = kube.path("workerpools", self.namespace.name, f"{self.name}-{role}") + "/scale"
        kube.patch(scale, {"spec": {"replicas": replicas}})

    def state(self) -> dict[str, Any]:
        """Returns the state of one of its gateways, as `legato state` shows it."""
        where = ("--namespace", self.namespace.name, "--service", self.name)
        found: dict[str, Any]
        found, _ = json.JSONDecoder().raw_decode(kube.run(sys.executable, "-m", "legato_cli.main", "state", *where))
        return found

    def ask(self, question: str, max_tokens: int = 32) -> tuple[str, dict[str, Any]]:
        """Returns the answer, and the route that the request took."""
        answer = self.client.chat.completions.with_raw_response.create(
            model=self.name,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=max_tokens,
            extra_headers={"x-legato-explain": "true"},
        )
        return answer.parse().choices[0].message.content or "", json.loads(answer.headers["x-legato-route"])


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=PATIENCE, max_retries=0)


def stays(metadata: Object) -> bool:
    return "deletionTimestamp" not in metadata and metadata["labels"].get("serving.legato.dev/serving") != "false"


def is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def ready_ones(pods: Iterable[Object]) -> set[str]:
    """Returns the UIDs of the pods that are ready."""
    return {str(pod["metadata"]["uid"]) for pod in pods if is_ready(pod)}


def network_is_the_clusters() -> bool:
    """True if names of Services resolve on this machine."""
    try:
        socket.getaddrinfo("kubernetes.default.svc", 443)
    except OSError:
        return False
    return True
