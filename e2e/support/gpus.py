"""GPUs that are numbers alone: nodes say that they have some, as a device plugin would have it told."""

import contextlib
import json
from collections.abc import Iterator

import kube
from kube import Object

GPU = "nvidia.com/gpu"


def nodes() -> list[Object]:
    """Those that take workers: without a taint, or with that of nodes with GPUs alone."""
    found = json.loads(kube.run("kubectl", "get", "nodes", "--output=json"))["items"]
    return [node for node in found if _takes_workers(node)]


def set_count(node: str, count: str | None) -> None:
    """Null takes the resource away."""
    text = json.dumps({"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}})
    kube.run("kubectl", "patch", "node", node, "--subresource=status", "--type=merge", "--patch", text)


@contextlib.contextmanager
def on(node: Object, count: int) -> Iterator[str]:
    """The name of a node that has so many; afterwards it has as many as before."""
    name = node["metadata"]["name"]
    set_count(name, str(count))
    yield name
    set_count(name, node["status"]["capacity"].get(GPU))


def _takes_workers(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return taints <= {GPU} and not node["spec"].get("unschedulable")
