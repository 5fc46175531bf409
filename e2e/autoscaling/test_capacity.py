"""A worker for which no node has a GPU: the condition says so, no more are desired, and the other pool shrinks."""

import time
from collections.abc import Callable
from typing import Any

import kube
import nodes
import pytest
from burst import Burst
from nodes import SCARCE_GPU
from service import Service

# 0.84 workers' worth: one does it, and two are desired.
PROMPTS = {"rate": 1.0, "requests": 45, "prompt": 100, "output": 2}


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Service:
    service = serve("short", gpu=SCARCE_GPU)
    service.until_settled()
    return service


def test_a_worker_without_a_gpu_is_reported_and_created_once(
    service: Service, watch: Callable[[Service], Any], figure: Callable[[str, float | str], None]
) -> None:
    workers = [nodes.name_of(node) for node in kube.items("nodes") if SCARCE_GPU in node["status"]["capacity"]]
    with watch(service) as samples:
        service.patch({"scaling": {"decode": {"min": 2}}})  # however long the second worker takes to start
        samples.until(lambda sample: sample.serving("decode") == 2, "two decode workers serve")
        began = time.monotonic()
        for node in workers:
            nodes.set_gpus(node, SCARCE_GPU, 0)  # pods that have one keep it
        with Burst(service, **PROMPTS) as burst:
            kube.until(lambda: _shortage(service), "the condition names the missing resource")
            figure("reported after, s", time.monotonic() - began)
            service.patch({"scaling": {"decode": {"min": 1}}})
            samples.until(lambda sample: len(sample.of("decode")) == 1, "the other pool shrinks")
            kube.until(lambda: f"Insufficient {SCARCE_GPU}" in _shortage(service), "it is still missing")
        assert burst.failures() == []
        assert samples.largest("prefill", began) == 2
        assert len(samples.created("prefill", began)) == 1
        assert samples.last.serving("prefill") == 1
        for node in workers:
            nodes.set_gpus(node, SCARCE_GPU, nodes.GPUS)
        samples.until(lambda sample: sample.settled, "it settles when there is a GPU")


def _shortage(service: Service) -> str:
    condition = service.condition("Progressing")
    return str(condition["message"]) if condition.get("reason") == "CapacityUnavailable" else ""
