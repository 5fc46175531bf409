"""Bursts during a rollout, while the operator is killed, and while it cannot ask the gateways."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kube
import probe
import pytest
from burst import Burst
from helm import Release
from kube import Object
from service import Service

PROMPTS = {"rate": 3.0, "requests": 40, "prompt": 100, "output": 2}
ANSWERS = {"rate": 8.0, "requests": 48, "prompt": 8, "output": 60}
STABILIZATION = 30.0  # seconds: a busy machine needs half as much for a burst's last answers and a new operator
SILENCE = 45.0  # seconds: more than STABILIZATION
Watch = Callable[[Service], Any]
Note = Callable[[str, float | str], None]


@pytest.fixture(scope="module")
def service(operator: Release, serve: Callable[..., Service]) -> Service:
    service = serve("disturbed", scaleDownStabilization=f"{STABILIZATION:.0f}s")
    service.until_settled()
    return service


def test_a_burst_during_a_rollout_keeps_every_limit(service: Service, watch: Watch, figure: Note) -> None:
    before = service.workers()
    with watch(service) as samples:
        began = time.monotonic()
        service.patch({"engine": {"chunkTokens": 128}})
        samples.until(lambda sample: {w.uid for w in sample.workers} - before, "the rollout has begun")
        with Burst(service, **PROMPTS) as burst:
            kube.until(lambda: not before & service.workers(), "every worker is a new one")
        assert burst.failures() == []
        assert samples.largest("prefill", began) > 1
        figure("samples", str(len(samples.taken)))
        figure("GPUs at most, of 6", str(max(sum(w.gpus for w in sample.workers) for sample in samples.taken)))


def test_an_operator_that_is_killed_takes_no_worker_early(
    service: Service, operator: Release, watch: Watch, figure: Note
) -> None:
    with watch(service) as samples:
        samples.until(lambda sample: sample.settled and sample.desired["decode"] == 1, "decode rests")
        began = time.monotonic()
        with Burst(service, **ANSWERS) as burst:
            samples.until(lambda sample: sample.desired["decode"] > 1, "the pool grows")
            operator.restart_operator(grace=0)
        assert burst.failures() == []
        sizes = [sample.desired["decode"] for sample in samples.since(began)]
        assert sizes == sorted(sizes)
        killed = time.monotonic()  # within the window, when the latest size is not needed any more
        operator.restart_operator(grace=0)
        fewer = samples.until(lambda sample: sample.desired["decode"] < sizes[-1], "the pool shrinks")
        figure("down-step after the second kill, s", fewer.at - killed)
        assert fewer.at - killed >= STABILIZATION


def test_while_gateways_are_silent_no_pool_shrinks(
    service: Service, operator: Release, watch: Watch, figure: Note
) -> None:
    probe.needs_policies(service.namespace)
    with watch(service) as samples:
        service.patch({"scaling": {"decode": {"min": 2}}})  # however long the second worker takes to start
        samples.until(lambda sample: sample.serving("decode") == 2, "two decode workers serve")
        with _blind(operator):
            service.lose("gateway")
            began = time.monotonic()
            kube.until(lambda: _scaling(service) == "MetricsStale", "the condition says so")
            stale = time.monotonic()
            figure("MetricsStale after, s", stale - began)
            service.patch({"scaling": {"decode": {"min": 1}}})
            samples.until(lambda sample: sample.at > stale + SILENCE, "time has passed")
            assert {sample.desired["decode"] for sample in samples.since(began)} == {2}
            assert service.object()["status"]["scaling"]["pools"]["decode"]["reason"] == "MetricsMissing"
        kube.until(lambda: _scaling(service) == "Autoscaling", "there are metrics again")
        samples.until(lambda sample: sample.serving("decode") == 1 and sample.settled, "the pool shrinks")


@contextmanager
def _blind(operator: Release) -> Iterator[None]:
    """Keeps the operator from connecting to pods. Connections from before go on."""
    policy = operator.namespace.get("networkpolicies", operator.name)
    _allow(operator, [rule for rule in policy["spec"]["egress"] if "to" not in rule])
    yield
    _allow(operator, policy["spec"]["egress"])


def _allow(operator: Release, egress: list[Object]) -> None:
    operator.namespace.patch("networkpolicies", operator.name, {"spec": {"egress": egress}})


def _scaling(service: Service) -> str:
    return str(service.condition("ScalingActive").get("reason"))
