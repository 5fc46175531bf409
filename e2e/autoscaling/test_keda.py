"""KEDA scales both pools by the recipe of the docs. Nobody else writes their sizes, least of all the operator."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import keda
import kube
import prometheus
import pytest
from burst import Burst
from samples import ROLES, Sample
from service import Service

MOST = 3  # workers of a pool
STABILIZATION = 15  # seconds
# Decoding is quick and KV is scarce, so that answers fill it without taking minutes.
QUICK_DECODE = {"perStep": 0.02, "perRow": 0.001, "perContext": 0, "perToken": 0.008, "perPair": 0}
SCARCE_KV = 10_000  # tokens
PROMPTS = {"rate": 3.0, "requests": 150, "prompt": 100, "output": 2}
ANSWERS = {"rate": 3.0, "requests": 30, "prompt": 8, "output": 800}
SCALER = "kube-controller-manager"  # where the HorizontalPodAutoscalers that KEDA makes are carried out
Watch = Callable[[Service], Any]
Note = Callable[[str, float | str], None]

pytestmark = pytest.mark.skipif(not keda.FOLDER, reason="no LEGATO_E2E_KEDA: scripts/keda builds KEDA")


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Iterator[Service]:
    """One that nobody scales yet, with a Prometheus and KEDA beside it."""
    made = serve("keda", step=QUICK_DECODE, kv_tokens=SCARCE_KV, mode="External")
    made.until_settled()
    with keda.installed(), prometheus.scraping(made):
        yield made
        made.namespace.kubectl("delete", "scaledobjects", "--all", "--timeout=60s")


def test_a_value_that_is_not_known_keeps_the_size(service: Service, watch: Watch) -> None:
    """No worker has measured its rate yet: that is not 0, by which the pool would shrink."""
    with watch(service) as samples:
        service.scale("prefill", 2)
        samples.until(lambda sample: sample.serving("prefill") == 2, "two prefill workers serve")
        for role in ROLES:
            service.namespace.apply(json.dumps(keda.scaled_object(service, role, MOST, STABILIZATION)))
        kube.until(lambda: keda.is_scaling(service, "decode") == ("True", "ValidMetricFound"), "decode is scaled")
        kube.until(lambda: keda.is_scaling(service, "prefill") == ("False", "FailedGetExternalMetric"), "it fails")
        assert samples.last.desired == {"prefill": 2, "decode": 1}


@pytest.mark.parametrize(
    ("load", "grows", "stays"), [(PROMPTS, "prefill", "decode"), (ANSWERS, "decode", "prefill")], ids=ROLES
)
def test_keda_scales_the_pool_that_a_burst_needs_and_nobody_else_does(
    service: Service, watch: Watch, load: dict[str, Any], grows: str, stays: str, figure: Note
) -> None:
    with watch(service) as samples:
        least = samples.last.desired[grows]
        began = time.monotonic()
        with Burst(service, **load) as burst:
            pass
        assert burst.failures() == []
        figure("first desired after, s", samples.first(grows, least, began))
        figure("desired at most", f"{grows} {samples.largest(grows, began)}, {stays} {samples.largest(stays, began)}")
        figure("TTFT p50, s", burst.ttft()[len(burst.ttft()) // 2])
        assert samples.largest(grows, began) > least
        assert samples.largest(stays, began) <= 2
        samples.until(lambda sample: sample.settled and sample.desired == dict.fromkeys(ROLES, 1), "it has returned")
        figure("returned after, s", samples.last.at - began)
    for role in ROLES:
        written = list(_writers(samples.taken, role))
        figure(f"{role}: sizes in turn", ", ".join(f"{size} by {'+'.join(owners)}" for size, owners in written))
        assert {owners for _, owners in written} <= {(SCALER,)}
    assert len(list(_writers(samples.taken, grows))) >= 2


def _writers(samples: list[Sample], role: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each new size of a pool, and whose it is by managedFields; also when only that has changed."""
    states = [(sample.desired[role], sample.owners[role]) for sample in samples]
    return (after for before, after in pairwise(states) if after != before)
