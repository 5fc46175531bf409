"""The cluster under test: by kubectl and helm, as people use it, and by its API where something is read or changed
often, since each kubectl takes a good part of a second of the processor that the cluster needs."""

import contextlib
import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import quote

import pytest
from kubernetes import client, config

T = TypeVar("T")
Object = dict[str, Any]  # as the API gives it
PATIENCE = 300.0  # seconds; only a hang reaches it
MERGE = "application/merge-patch+json"
Resource = Literal[
    "events",
    "horizontalpodautoscalers",
    "inferenceservices",
    "networkpolicies",
    "nodes",
    "poddisruptionbudgets",
    "pods",
    "secrets",
    "workerpools",
]
GROUPS: dict[Resource, str] = {
    "events": "/apis/events.k8s.io/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "inferenceservices": "/apis/serving.legato.dev/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "nodes": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "workerpools": "/apis/serving.legato.dev/v1alpha1",
}


def run(*command: str, stdin: str = "", patience: float = PATIENCE) -> str:
    """Returns what a program prints. Fails with its output when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=patience, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def until(condition: Callable[[], T | None], what: str, pause: float = 0.3, patience: float = PATIENCE) -> T:
    """Returns the first true value of `condition`. Fails loudly instead of waiting for ever."""
    give_up = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > give_up:
            pytest.fail(f"waited in vain until {what}")
        time.sleep(pause)
    return value


def lacks(what: str) -> NoReturn:
    """Skips the test where the cluster lacks what it needs. In CI it must have all: there, the test fails."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)


def call(method: str, path: str, body: Object | None = None, content: str = "application/json") -> tuple[int, Object]:
    """Calls the API. Returns status and answer, of a missing object, too; fails on other errors."""
    parameters = _api().param_serialize(
        method, path, header_params={"Content-Type": content}, body=body, auth_settings=["BearerToken"]
    )
    answer = _api().call_api(*parameters, _request_timeout=PATIENCE)
    text = answer.read()
    assert answer.status < 300 or answer.status == 404, f"{method} {path}: {text.decode()}"
    return answer.status, json.loads(text)


def path(resource: Resource, namespace: str = "", name: str = "") -> str:
    """The path of an object, or of all objects if there is no name."""
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUPS[resource]}{place}/{resource}" + (f"/{name}" if name else "")


def items(resource: Resource, namespace: str = "", selector: str = "") -> list[Object]:
    status, listing = call("GET", f"{path(resource, namespace)}?labelSelector={quote(selector)}")
    assert status == 200, f"the cluster does not know {resource}"
    found: list[Object] = listing["items"]
    return found


def patch(path: str, change: Mapping[str, Any]) -> None:
    """Changes an object; null removes a field."""
    status, answer = call("PATCH", path, dict(change), MERGE)
    assert status == 200, answer


class Namespace:
    """The objects of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, stdin: str = "", patience: float = PATIENCE) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin, patience=patience)

    def apply(self, manifest: str) -> None:
        self.kubectl("apply", "--filename", "-", stdin=manifest)

    def get(self, resource: Resource, name: str) -> Object:
        """Returns the object; empty if it does not exist."""
        status, found = call("GET", path(resource, self.name, name))
        return found if status == 200 else {}

    def list(self, resource: Resource, selector: str = "") -> list[Object]:
        return items(resource, self.name, selector)

    def patch(self, resource: Resource, name: str, change: Mapping[str, Any]) -> None:
        """Changes an object; null removes a field."""
        patch(path(resource, self.name, name), change)

    def delete(self, resource: Resource, name: str, grace: int | None = None) -> None:
        """Deletes an object, without waiting for its end. `grace`: seconds that a pod has for it; 0 kills it."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        call("DELETE", path(resource, self.name, name), body)

    def delete_services(self) -> None:
        """Deletes all InferenceServices and waits for their end, which takes an operator."""
        self.kubectl("delete", "inferenceservices", "--all", "--timeout=120s")


@functools.cache
def _api() -> client.ApiClient:
    return config.new_client_from_config()


@contextlib.contextmanager
def namespace(name: str) -> Iterator[Namespace]:
    """A new namespace, where only restricted pods may run. Afterwards it goes, with all that is in it."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
    status, answer = call("POST", "/api/v1/namespaces", made)
    assert status == 201, answer
    try:
        yield Namespace(name)
    finally:
        call("DELETE", f"/api/v1/namespaces/{name}")


def report() -> str:
    """The state of the cluster's pods and recent events, for readers of a failed test."""
    commands = (
        ("kubectl", "get", "pods", "--all-namespaces", "--output=wide"),
        ("kubectl", "get", "inferenceservices", "--all-namespaces", "--output=yaml"),
        ("kubectl", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
        ("kubectl", "logs", "--namespace=legato-system", "--selector=app.kubernetes.io/name=legato-operator"),
    )
    answers = (subprocess.run(command, capture_output=True, text=True, check=False) for command in commands)
    return "\n\n".join(f"$ {' '.join(answer.args)}\n{(answer.stdout or answer.stderr)[-8000:]}" for answer in answers)
