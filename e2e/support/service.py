"""An InferenceService in a cluster, as its users see it."""

import atexit
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
        """Its Service's own name where that is known, else a way to one of its gateways, once there is one."""
        if network_is_the_clusters():
            return f"http://{self.name}.{self.namespace.name}.svc"
        self.until_ready()
        return Forward(self.namespace, self.name).url

    @cached_property
    def client(self) -> OpenAI:
        return client(self.url)

    def client_of(self, gateway: str) -> OpenAI:
        """By one gateway's own address."""
        return client(f"http://{self.namespace.get('pods', gateway)['status']['podIP']}:8080")

    def object(self) -> Object:
        return self.namespace.get("inferenceservices", self.name)

    def condition(self, kind: str) -> Object:
        """A condition of the newest generation; empty before that was looked at."""
        found = self.object()
        generation = found.get("metadata", {}).get("generation")
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind and c.get("observedGeneration") == generation), {})

    def until_ready(self) -> None:
        kube.until(lambda: self.condition("Ready").get("status") == "True", f"{self.name} is ready: {self.told()}")

    def until_settled(self) -> None:
        """Ready, up to date, and nothing in progress."""
        kube.until(
            lambda: (
                self.condition("Ready").get("status") == "True"
                and self.condition("Progressing").get("reason") == "UpToDate"
            ),
            f"{self.name} has settled",
        )

    def told(self) -> str:
        """What its status says."""
        return json.dumps(self.object().get("status", {}))

    def events(self) -> list[Object]:
        """All that Events say of it."""
        found = self.namespace.list("events")
        return [each for each in found if each["regarding"].get("name") == self.name]

    def until_event(self, reason: str, what: str, patience: float = PATIENCE) -> None:
        """Until one of this reason was written."""
        kube.until(lambda: self.has_event(reason), what, patience=patience)

    def found(self, role: str) -> list[Object]:
        """The pods of a role that stay: neither on their way out nor chosen to go."""
        selector = f"serving.legato.dev/service={self.name},serving.legato.dev/role={role}"
        return [pod for pod in self.namespace.list("pods", selector) if stays(pod["metadata"])]

    def pods(self, role: str) -> list[str]:
        """Their names."""
        return sorted(pod["metadata"]["name"] for pod in self.found(role))

    def workers(self, ready: bool = False) -> set[str]:
        """UIDs of those that stay, since a name is given again; only of ready ones if `ready`."""
        found = (pod for role in ("prefill", "decode") for pod in self.found(role))
        return {pod["metadata"]["uid"] for pod in found if is_ready(pod) or not ready}

    def until_gone(self, pod: Object) -> None:
        """Until it is at least on its way out."""
        role, uid = pod["metadata"]["labels"]["serving.legato.dev/role"], pod["metadata"]["uid"]
        kube.until(
            lambda: uid not in {left["metadata"]["uid"] for left in self.found(role)},
            f"{pod['metadata']['name']} is gone",
        )

    def until_pods(self, role: str, count: int, patience: float = PATIENCE) -> None:
        """Until so many stay, all of them ready."""
        kube.until(
            lambda: [is_ready(pod) for pod in self.found(role)] == [True] * count,
            f"{self.name} has {count} {role} pods, all ready",
            patience=patience,
        )

    def refresh_secrets(self) -> None:
        """Has kubelets write Secrets that have changed into its pods now: they look at a pod when that changes, else
        once in a minute or so. A pod may be gone before it is changed."""
        selector = f"serving.legato.dev/service={self.name}"
        change = f"e2e.legato.dev/refreshed={time.monotonic_ns()}"
        command = ["kubectl", "--namespace", self.namespace.name, "annotate", "pods", "--overwrite"]
        subprocess.run([*command, f"--selector={selector}", change], capture_output=True, timeout=PATIENCE, check=False)

    def until_refreshed(self, condition: Callable[[], Any], what: str) -> None:
        """Until what follows from changed Secrets holds, some of which may be changed meanwhile."""

        def holds() -> bool:
            self.refresh_secrets()
            return bool(condition())

        kube.until(holds, what, pause=1.0, patience=ROTATION)

    def has_event(self, reason: str) -> bool:
        """Whether one of this reason was written."""
        return reason in {each["reason"] for each in self.events()}

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Change the manifest; null takes a field away."""
        text = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "inferenceservice", self.name, "--type=merge", "--patch", text)

    def scale(self, role: str, replicas: int) -> None:
        self.namespace.kubectl("scale", f"workerpool/{self.name}-{role}", f"--replicas={replicas}")

    def state(self) -> dict[str, Any]:
        """What one of its gateways knows, as `legato state` shows it."""
        where = ("--namespace", self.namespace.name, "--service", self.name)
        found: dict[str, Any]
        found, _ = json.JSONDecoder().raw_decode(kube.run(sys.executable, "-m", "legato_cli.main", "state", *where))
        return found

    def ask(self, question: str, max_tokens: int = 32) -> tuple[str, dict[str, Any]]:
        """The answer, and the route that it took."""
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


def network_is_the_clusters() -> bool:
    """Whether names of Services are known here."""
    try:
        socket.getaddrinfo("kubernetes.default.svc", 443)
    except OSError:
        return False
    return True
