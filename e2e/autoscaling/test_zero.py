"""At zero a gateway is lost, too. Another one comes, which holds a request until a worker is there."""

import time
from collections.abc import Callable

import kube
from burst import Burst
from samples import ROLES
from service import Service


def test_a_new_gateway_at_zero_answers(
    serve: Callable[..., Service], figure: Callable[[str, float | str], None]
) -> None:
    bounds = {"min": 0, "max": 2}
    service = serve("zero", prefill=bounds, decode=bounds, idleAfter="5s")
    kube.until(lambda: service.object().get("status"), "it was observed")
    for role in ROLES:
        service.until_pods(role, 0)
    kube.until(lambda: service.condition("Ready").get("reason") == "ScaledToZero", "it is at zero")
    service.lose("gateway")
    service.until_pods("gateway", 1)
    service.until_ready()
    assert service.condition("Ready")["reason"] == "ScaledToZero"
    assert service.workers() == set()
    began = time.monotonic()
    with Burst(service, rate=20.0, requests=10, prompt=100, output=4) as burst:
        service.until_pods("decode", 1)
        figure("a worker was ready after, s", time.monotonic() - began)
    assert burst.failures() == []
    figure("first token after, s", burst.ttft()[0])
