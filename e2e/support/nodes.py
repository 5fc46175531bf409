"""Nodes, and what is done to them."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kube
from kube import Object

PATIENCE = 300.0  # a node counts as lost after a while, its pods go after another


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


@contextlib.contextmanager
def draining(node: str) -> Iterator[None]:
    """The node is being emptied meanwhile; in the end it is empty, and takes pods again."""
    command = ("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE:.0f}s")
    try:
        with ThreadPoolExecutor(1) as pool:
            drain = pool.submit(kube.run, *command, patience=PATIENCE + 30)
            yield
            drain.result()
    finally:
        kube.run("kubectl", "uncordon", node)
