"""A burst while two workers drain: both serve again, and no other is started."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from burst import Burst
from samples import Sample
from service import Service

LONG = {"rate": 5.0, "requests": 3, "prompt": 4200, "output": 1}  # 35 s for each of three workers
PROMPTS = {"rate": 3.0, "requests": 45, "prompt": 100, "output": 2}  # needs more than three


@pytest.fixture(scope="module")
def service(serve: Callable[..., Service]) -> Service:
    made = serve("drains", prefill={"min": 1, "max": 3}, scaleDownStabilization="20s")
    made.until_settled()
    return made


def test_draining_workers_are_recalled_by_a_burst(
    service: Service, watch: Callable[[Service], Any], figure: Callable[[str, float | str], None]
) -> None:
    with watch(service) as samples:
        service.scale("prefill", 3)
        samples.until(lambda sample: sample.serving("prefill") == 3, "three prefill workers serve")
        with Burst(service, **LONG) as busy:
            samples.until(_two_drain, "two workers drain")
            began = time.monotonic()
            with Burst(service, **PROMPTS) as burst:
                again = samples.until(lambda sample: sample.serving("prefill") == 3, "both serve again")
            assert burst.failures() == []
            assert busy.failures() == []
        all_wished = samples.first("prefill", 2, began)
        figure("first wish after, s", samples.first("prefill", 1, began))
        figure("wish for three after, s", all_wished)
        figure("both serve again after that wish, s", again.at - began - all_wished)
        assert samples.created("prefill", began) == set()
        assert samples.created("decode", began) == set()


def _two_drain(sample: Sample) -> bool:
    return len(sample.staying("prefill")) == 1 and len(sample.of("prefill")) == 3
