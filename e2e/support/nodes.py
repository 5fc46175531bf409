"""Nodes: the ones that tests of node faults have to themselves, and GPUs that are only numbers."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kube
from kube import Object

PATIENCE = 300.0  # a node counts as lost after a while, its pods go after another
RESERVED = "e2e.legato.dev/reserved"  # label and taint of nodes that are drained and lost
RESERVED_NODES = 2
GPU = "e2e.legato.dev/gpu"  # a resource like those of a device plugin
GPUS = 32  # on each node: more than tests ever use
DEVICE = "e2e.legato.dev/device"  # of the device plugin in support/devices


def of(pod: Object) -> str:
    """Returns the name of the node that a pod runs on."""
    return str(pod["spec"].get("nodeName", ""))


def on_reserved() -> Object:
    """Returns the part of a pod's `spec` by which it runs on reserved nodes."""
    return {"nodeSelector": {RESERVED: "yes"}, "tolerations": [{"key": RESERVED, "operator": "Exists"}]}


def _set_gpus(node: str, count: int | None) -> None:
    """Sets how many GPUs a node advertises; None removes the resource."""
    counts = {GPU: None if count is None else str(count)}
    kube.patch(f"{kube.path('nodes', name=node)}/status", {"status": {"capacity": counts, "allocatable": counts}})


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Reserves nodes where there are enough, and gives the others GPUs; afterwards they are as before."""
    workers = [str(node["metadata"]["name"]) for node in kube.items("nodes") if _takes_workers(node)]
    enough = len(workers) > RESERVED_NODES and "LEGATO_E2E_CUDA" not in os.environ
    reserved = workers[-RESERVED_NODES:] if enough else []
    for node in reserved:
        kube.run("kubectl", "label", "node", node, f"{RESERVED}=yes", "--overwrite")
        kube.run("kubectl", "taint", "node", node, f"{RESERVED}=yes:NoSchedule", "--overwrite")
    for node in workers:
        _set_gpus(node, GPUS)
    try:
        yield
    finally:
        for node in workers:
            _set_gpus(node, None)
        for node in reserved:
            kube.run("kubectl", "label", "node", node, f"{RESERVED}-")
            kube.run("kubectl", "taint", "node", node, f"{RESERVED}-")


@contextlib.contextmanager
def draining(node: str) -> Iterator[None]:
    """Empties the node meanwhile; in the end it is empty, and takes pods again."""
    command = ("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE:.0f}s")
    try:
        with ThreadPoolExecutor(1) as pool:
            drain = pool.submit(kube.run, *command, patience=PATIENCE + 30)
            yield
            drain.result()
    finally:
        kube.run("kubectl", "uncordon", node)


def cordon(node: str, yes: bool) -> None:
    kube.patch(kube.path("nodes", name=node), {"spec": {"unschedulable": yes or None}})


def free() -> list[str]:
    """Names of the nodes that are not reserved."""
    found = [node for node in kube.items("nodes") if _takes_workers(node) and not node["spec"].get("taints")]
    return [str(node["metadata"]["name"]) for node in found]


def _takes_workers(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return taints <= {RESERVED} and not node["spec"].get("unschedulable")
