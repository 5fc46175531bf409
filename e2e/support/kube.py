"""The cluster under test, by the programs that people use: kubectl and helm. What is looked at again and again is read
from the API, as each kubectl takes a good part of a second of the processor that the cluster needs."""

import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import pytest
from kubernetes import client, config

T = TypeVar("T")
Object = dict[str, Any]  # as the API gives it
PATIENCE = 180.0  # seconds; only a hang reaches it
Resource = Literal[
    "events",
    "horizontalpodautoscalers",
    "inferenceservices",
    "networkpolicies",
    "poddisruptionbudgets",
    "pods",
    "secrets",
]
GROUPS: dict[Resource, str] = {
    "events": "/apis/events.k8s.io/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "inferenceservices": "/apis/serving.legato.dev/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
}


def run(*command: str, stdin: str = "", patience: float = PATIENCE) -> str:
    """What a program prints. Fails with what it says when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=patience, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def until(condition: Callable[[], T | None], what: str, pause: float = 0.2, patience: float = PATIENCE) -> T:
    """What `condition` gives once that is true. Fails loudly instead of waiting for ever."""
    give_up = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > give_up:
            pytest.fail(f"waited in vain until {what}")
        time.sleep(pause)
    return found


class Namespace:
    """Objects of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, stdin: str = "", patience: float = PATIENCE) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin, patience=patience)

    def apply(self, manifest: str) -> None:
        """A manifest's text."""
        self.kubectl("apply", "--filename", "-", stdin=manifest)

    def get(self, resource: Resource, name: str) -> Object:
        """The object; empty when there is none."""
        return self._read(resource, f"/{name}") or {}

    def list(self, resource: Resource, selector: str = "") -> list[Object]:
        """All of them, without their kinds."""
        listing = self._read(resource, f"?labelSelector={quote(selector)}")
        assert listing is not None, f"the cluster does not know {resource}"
        found: list[Object] = listing["items"]
        return found

    def _read(self, resource: Resource, rest: str) -> Object | None:
        """An object, or a list of them; nothing if the cluster has none."""
        path = f"{GROUPS[resource]}/namespaces/{self.name}/{resource}{rest}"
        answer = _api().call_api(
            *_api().param_serialize("GET", path, auth_settings=["BearerToken"]), _request_timeout=PATIENCE
        )
        text = answer.read()
        assert answer.status in (200, 404), f"{path}: {text.decode()}"
        found: Object = json.loads(text)
        return found if answer.status == 200 else None


@functools.cache
def _api() -> client.ApiClient:
    return config.new_client_from_config()


@contextlib.contextmanager
def namespace(name: str) -> Iterator[Namespace]:
    """A new one, where only restricted pods may run. Afterwards it must go, with all that is in it."""
    run("kubectl", "create", "namespace", name)
    run("kubectl", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield Namespace(name)
    run("kubectl", "delete", "namespace", name, "--timeout=120s")


def told() -> str:
    """What the cluster says of its pods and what happened to them, for whoever reads of a failed test."""
    commands = (
        ("kubectl", "get", "pods", "--all-namespaces", "--output=wide"),
        ("kubectl", "get", "inferenceservices", "--all-namespaces", "--output=yaml"),
        ("kubectl", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
        ("kubectl", "logs", "--namespace=legato-system", "--selector=app.kubernetes.io/name=legato-operator"),
    )
    answers = (subprocess.run(command, capture_output=True, text=True, check=False) for command in commands)
    return "\n\n".join(f"$ {' '.join(answer.args)}\n{(answer.stdout or answer.stderr)[-8000:]}" for answer in answers)
