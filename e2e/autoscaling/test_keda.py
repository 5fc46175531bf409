"""KEDA scales both pools by the recipe of the docs. Nobody else writes their sizes, least of all the operator."""

import json
from itertools import pairwise

import burst
import keda
import kube
import prometheus
import pytest
from samples import ROLES

MOST = 3  # workers of a pool
STABILIZATION = 15  # seconds
# Decoding is quick and KV is scarce, so that answers fill it without taking minutes.
QUICK_DECODE = {"perStep": 0.02, "perRow": 0.001, "perContext": 0, "perToken": 0.008, "perPair": 0}
SCARCE_KV = 10_000  # tokens
PROMPTS = {"rate": 3.0, "requests": 150, "prompt": 100, "output": 2}
ANSWERS = {"rate": 3.0, "requests": 30, "prompt": 8, "output": 800}
SCALER = "kube-controller-manager"  # where the HorizontalPodAutoscalers that KEDA makes are carried out

pytestmark = pytest.mark.skipif(not keda.FOLDER, reason="no LEGATO_E2E_KEDA: scripts/keda builds KEDA")


@pytest.fixture(scope="module")
def service(serve):
    """A service that nobody scales yet, and a Prometheus and KEDA."""
    made = serve("keda", step=QUICK_DECODE, kv_tokens=SCARCE_KV, mode="External")
    made.until_settled()
    with keda.installed(), prometheus.scraping(made):
        yield made
        made.namespace.kubectl("delete", "scaledobjects", "--all", "--timeout=60s")


def test_a_value_that_is_not_known_keeps_the_size(service, watch):
    """No worker has measured its rate yet: that is not 0, by which the pool would shrink."""
    with watch(service) as samples:
        service.scale("prefill", 2)
        samples.until(lambda sample: sample.serving("prefill") == 2, "two prefill workers serve")
        for role in ROLES:
            service.namespace.apply(json.dumps(keda.scaled_object(service, role, MOST, STABILIZATION)))
        kube.until(lambda: keda.is_scaling(service, "decode") == ("True", "ValidMetricFound"), "decode is scaled")
        kube.until(lambda: keda.is_scaling(service, "prefill") == ("False", "FailedGetExternalMetric"), "it fails")
        assert samples.last.desired == {"prefill": 2, "decode": 1}


@pytest.mark.parametrize(("load", "grows"), [(PROMPTS, "prefill"), (ANSWERS, "decode")])
def test_keda_scales_the_pool_that_a_burst_needs_and_nobody_else_does(service, watch, load, grows, figure):
    with watch(service) as samples:
        burst.grow(service, samples, load, grows, figure)
    for role in ROLES:
        written = list(_writers(samples.taken, role))
        figure(f"{role}: sizes in turn", ", ".join(f"{size} by {'+'.join(owners)}" for size, owners in written))
        assert {owners for _, owners in written} <= {(SCALER,)}
    assert len(list(_writers(samples.taken, grows))) >= 2


def _writers(samples, role):
    """Each new size of a pool, and its owners by managedFields; also when only these have changed."""
    states = [(sample.desired[role], sample.owners[role]) for sample in samples]
    return (after for before, after in pairwise(states) if after != before)
