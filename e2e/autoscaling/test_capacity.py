"""A worker for which no node has a GPU: it is told, nothing more is wished for its sake, and the other pool shrinks."""

import time
from collections.abc import Callable
from typing import Any

import gpus
import kube
import pytest
from burst import Burst
from service import Service

GPUS = 8
# 0.84 workers' worth: one does it, and two are wished for.
PROMPTS = {"rate": 1.0, "requests": 50, "prompt": 100, "output": 2}


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Service:
    made = serve("short")
    made.until_settled()
    return made


def test_a_worker_without_a_gpu_is_told_and_asked_for_once(
    service: Service, nodes: list[str], watch: Callable[[Service], Any], figure: Callable[[str, float | str], None]
) -> None:
    with watch(service) as samples:
        service.scale("decode", 2)
        samples.until(lambda sample: sample.serving("decode") == 2, "two decode workers serve")
        began = time.monotonic()
        for node in nodes:
            gpus.set_count(node, "0")  # who has one keeps it
        with Burst(service, **PROMPTS) as burst:
            kube.until(lambda: _told(service), "the condition names what is missing")
            figure("told after, s", time.monotonic() - began)
            samples.until(lambda sample: len(sample.of("decode")) == 1, "the other pool shrinks")
            assert "Insufficient" in _told(service)
        assert burst.failures() == []
        assert samples.largest("prefill", began) == 2
        assert len(samples.created("prefill", began)) == 1
        assert samples.last.serving("prefill") == 1
        for node in nodes:
            gpus.set_count(node, str(GPUS))
        samples.until(lambda sample: sample.settled, "it settles when there is a GPU")


def _told(service: Service) -> str:
    found = service.condition("Progressing")
    return str(found["message"]) if found.get("reason") == "CapacityUnavailable" else ""
