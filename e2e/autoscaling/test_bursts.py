"""A burst makes the pool grow that it needs, and no other; afterwards the pool returns. Two gateways change nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from burst import Burst
from samples import ROLES, Samples
from service import Service

PROMPTS = {"rate": 3.0, "requests": 75, "prompt": 100, "output": 2}
ANSWERS = {"rate": 8.0, "requests": 48, "prompt": 8, "output": 60}
Note = Callable[[str, float | str], None]


@pytest.fixture(scope="module")
def services(serve: Callable[..., Service]) -> list[Service]:
    """One with a gateway, one with two."""
    made = [serve("one"), serve("two", gateways=2)]
    for service in made:
        service.until_settled()
    return made


@pytest.fixture
def samples(services: list[Service], watch: Callable[[Service], Any]) -> Iterator[list[Samples]]:
    with ExitStack() as stack:
        yield [stack.enter_context(watch(service)) for service in services]


@pytest.mark.parametrize(
    ("load", "grows", "stays"), [(PROMPTS, "prefill", "decode"), (ANSWERS, "decode", "prefill")], ids=ROLES
)
def test_only_the_pool_grows_that_a_burst_needs(
    services: list[Service], samples: list[Samples], load: dict[str, Any], grows: str, stays: str, figure: Note
) -> None:
    for taken in samples:
        taken.until(lambda sample: sample.settled and sample.wishes == dict.fromkeys(ROLES, 1), "it rests")
    began = time.monotonic()
    with ExitStack() as stack:
        bursts = [stack.enter_context(Burst(service, **load)) for service in services]
    for burst in bursts:
        assert burst.failures() == []
    highest = [taken.largest(grows, began) for taken in samples]
    for service, taken, burst, most in zip(services, samples, bursts, highest, strict=True):
        figure(f"{service.name}: first wish after, s", taken.first(grows, 1, began))
        figure(f"{service.name}: wishes at most", f"{grows} {most}, {stays} {taken.largest(stays, began)}")
        figure(f"{service.name}: TTFT p50, s", burst.ttft()[len(burst.ttft()) // 2])
        assert most > 1
        assert taken.largest(stays, began) <= 2
    assert abs(highest[0] - highest[1]) <= 1
    for service, taken in zip(services, samples, strict=True):
        taken.until(lambda sample: sample.settled and sample.wishes == dict.fromkeys(ROLES, 1), "it has returned")
        figure(f"{service.name}: returned after, s", taken.last.at - began)
