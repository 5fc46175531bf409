"""Workers with devices that a kubelet allocates, by a device plugin. The devices are numbers; a file breaks one."""

import json
from collections.abc import Iterator

import helm
import kube
import nodes
import paced
import pytest
from helm import Release
from kube import Namespace, Object
from service import Service

COUNT = 2  # on each node
PLUGIN = Namespace("kube-system")  # only restricted pods may run in the namespaces of tests
SOCKETS = "/var/lib/kubelet/device-plugins"
NAME = "e2e-device-plugin"


@pytest.fixture(scope="module")
def node(release: Release) -> Iterator[str]:
    """A node with devices: all have them but those that other tests drain and stop."""
    PLUGIN.apply(json.dumps(_plugin()))
    try:
        PLUGIN.kubectl("rollout", "status", f"daemonset/{NAME}", "--timeout=180s")
        name = next(iter(nodes.free()), "") or kube.lacks("no node without taints")
        _until_allocatable(name, COUNT)
        yield name
    finally:
        PLUGIN.kubectl("delete", "daemonset", NAME, "--wait")


@pytest.fixture(scope="module")
def service(namespace: Namespace, node: str) -> Service:
    """A service whose workers need a device each, on one node."""
    scaling = {**paced.PAIR, "prefill": {"min": 1, "max": 1}, "gpuBudget": COUNT}
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}}
    namespace.apply(paced.manifest("devices", pod=pod, requests={nodes.DEVICE: 1}, scaling=scaling))
    service = Service(namespace, "devices")
    service.until_settled()
    return service


def test_each_worker_has_a_device_of_its_own(service: Service) -> None:
    assert sorted(_device(service, role) for role in ("prefill", "decode")) == ["0", "1"]


def test_the_budget_and_the_node_limit_the_number_of_workers(service: Service) -> None:
    service.scale("decode", 2)
    kube.until(lambda: service.condition("Progressing").get("reason") == "Capped", "the budget limits decode")
    assert len(service.found("decode")) == 1
    service.patch({"scaling": {"gpuBudget": COUNT + 1}})
    kube.until(lambda: service.condition("Progressing").get("reason") == "CapacityUnavailable", "no device is left")
    assert nodes.DEVICE in service.condition("Progressing")["message"]
    service.until_ready()
    service.scale("decode", 1)
    service.until_settled()


def test_a_worker_waits_for_a_device_that_was_lost(service: Service, node: str) -> None:
    number = _device(service, "decode")
    (plugin,) = [pod["metadata"]["name"] for pod in PLUGIN.list("pods", f"app={NAME}") if nodes.of(pod) == node]
    PLUGIN.kubectl("exec", plugin, "--", "touch", f"/unhealthy/{number}")
    _until_allocatable(node, COUNT - 1)
    service.until_ready()  # its worker still runs
    service.lose("decode")
    kube.until(lambda: service.condition("DecodeReady").get("reason") == "Unschedulable", "no device is left")
    PLUGIN.kubectl("exec", plugin, "--", "rm", f"/unhealthy/{number}")
    service.until_settled()
    assert _device(service, "decode") == number


def _device(service: Service, role: str) -> str:
    """Returns the number of the device that the plugin gave to the pool's only worker."""
    (pod,) = service.pods(role)
    return service.namespace.kubectl("exec", pod, "--", "printenv", "E2E_DEVICES").strip()


def _until_allocatable(node: str, count: int) -> None:
    def holds() -> bool:
        _, observed = kube.call("GET", kube.path("nodes", name=node))
        return bool(observed["status"]["allocatable"].get(nodes.DEVICE) == str(count))

    kube.until(holds, f"{node} has {count} devices")


def _plugin() -> Object:
    labels = {"app": NAME}
    container = {
        "name": "plugin",
        "image": helm.image("device-plugin"),
        "args": [nodes.DEVICE, str(COUNT)],
        "volumeMounts": [{"name": "sockets", "mountPath": SOCKETS}],
    }
    pod = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "sockets", "hostPath": {"path": SOCKETS}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME}, "spec": spec}
