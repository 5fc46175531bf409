"""A burst makes only the pool grow that it needs; afterwards the pool returns. Its gateways share the requests."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from burst import Burst
from samples import ROLES, Sample
from service import Service

PROMPTS = {"rate": 2.0, "requests": 30, "prompt": 150, "output": 2}
ANSWERS = {"rate": 4.0, "requests": 32, "prompt": 8, "output": 8}


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Service:
    service = serve("burst", gateways=2)
    service.until_settled()
    return service


@pytest.mark.parametrize(
    ("load", "grows", "stays"), [(PROMPTS, "prefill", "decode"), (ANSWERS, "decode", "prefill")], ids=ROLES
)
def test_only_the_pool_grows_that_a_burst_needs(
    service: Service,
    watch: Callable[[Service], Any],
    load: dict[str, Any],
    grows: str,
    stays: str,
    figure: Callable[[str, float | str], None],
) -> None:
    with watch(service) as samples:
        samples.until(_rests, "it rests")
        began = time.monotonic()
        with Burst(service, **load) as burst:
            pass
        assert burst.failures() == []
        figure("first desired after, s", samples.first(grows, 1, began))
        figure("desired at most", f"{grows} {samples.largest(grows, began)}, {stays} {samples.largest(stays, began)}")
        figure("TTFT p50, s", burst.ttft()[len(burst.ttft()) // 2])
        assert samples.largest(grows, began) > 1
        why = service.object()["status"]["scaling"]["records"]
        assert samples.largest(stays, began) <= 2, json.dumps(why, indent=1)
        samples.until(_rests, "it has returned")
        figure("returned after, s", samples.last.at - began)


def _rests(sample: Sample) -> bool:
    return sample.settled and sample.desired == dict.fromkeys(ROLES, 1)
