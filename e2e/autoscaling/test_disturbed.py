"""Bursts during a rollout, while the operator is killed, and while it cannot ask the gateways."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import helm
import kube
import probe
import pytest
from burst import Burst
from kube import Namespace, Object
from service import Service

PROMPTS = {"rate": 3.0, "requests": 60, "prompt": 100, "output": 2}
ANSWERS = {"rate": 8.0, "requests": 48, "prompt": 8, "output": 60}
STABILIZATION = 20.0  # seconds
SILENCE = 60.0  # seconds
Watch = Callable[[Service], Any]
Note = Callable[[str, float | str], None]


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Service:
    made = serve("disturbed", scaleDownStabilization=f"{STABILIZATION:.0f}s")
    made.until_settled()
    return made


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
    service: Service, release: Namespace, watch: Watch, figure: Note
) -> None:
    with watch(service) as samples:
        samples.until(lambda sample: sample.settled and sample.wishes["decode"] == 1, "decode rests")
        began = time.monotonic()
        with Burst(service, **ANSWERS) as burst:
            samples.until(lambda sample: sample.wishes["decode"] > 1, "the pool grows")
            _kill_operator(release)
        assert burst.failures() == []
        wishes = [sample.wishes["decode"] for sample in samples.since(began)]
        assert wishes == sorted(wishes)
        killed = time.monotonic()  # within the window: what was needed just now is not needed any more
        _kill_operator(release)
        fewer = samples.until(lambda sample: sample.wishes["decode"] < wishes[-1], "the pool shrinks")
        figure("down-step after the second kill, s", fewer.at - killed)
        assert fewer.at - killed >= STABILIZATION
        samples.until(lambda sample: sample.settled, "it settles")


def test_while_gateways_are_silent_no_pool_shrinks(
    service: Service, release: Namespace, watch: Watch, figure: Note
) -> None:
    if not probe.policies_are_enforced():
        pytest.skip("this cluster does not enforce NetworkPolicies")
    with watch(service) as samples:
        service.scale("decode", 2)
        samples.until(lambda sample: sample.serving("decode") == 2, "two decode workers serve")
        with _blind(release):
            (gateway,) = service.found("gateway")
            service.namespace.kubectl("delete", "pod", gateway["metadata"]["name"], "--wait=false")
            service.until_gone(gateway)
            began = time.monotonic()
            kube.until(lambda: _told(service) == "MetricsStale", "the condition says so")
            figure("MetricsStale after, s", time.monotonic() - began)
            samples.until(lambda sample: sample.at > began + SILENCE, "a minute has passed")
            assert {sample.wishes["decode"] for sample in samples.since(began)} == {2}
            assert service.object()["status"]["scaling"]["pools"]["decode"]["reason"] == "MetricsMissing"
        kube.until(lambda: _told(service) == "Autoscaling", "it knows again")
        samples.until(lambda sample: sample.serving("decode") == 1 and sample.settled, "the pool shrinks")


@contextmanager
def _blind(system: Namespace) -> Iterator[None]:
    """The operator may connect to none of its pods any more. What is connected already stays so."""
    policy = system.get("networkpolicies", helm.RELEASE)
    allowed = [rule for rule in policy["spec"]["egress"] if "to" not in rule]
    _allow(system, allowed)
    yield
    _allow(system, policy["spec"]["egress"])


def _allow(system: Namespace, egress: list[Object]) -> None:
    text = json.dumps({"spec": {"egress": egress}})
    system.kubectl("patch", "networkpolicy", helm.RELEASE, "--type=merge", "--patch", text)


def _kill_operator(system: Namespace) -> None:
    """Without a word of its own, so that its Lease has to end before another takes over."""
    system.kubectl("delete", "pod", *helm.operators(system), "--grace-period=0", "--force")


def _told(service: Service) -> str:
    return str(service.condition("ScalingActive").get("reason"))
