"""Builders of what an autoscaler knows, and hypothesis' strategies for it."""

import dataclasses
import math
from typing import Any

from hypothesis import strategies as st

from legato_operator.api import parsing
from legato_operator.api.resources import Spec
from legato_operator.autoscaler.signals import (
    Blocks,
    DecodeCost,
    OutputLengths,
    PrefillCost,
    PromptLengths,
    Signals,
    Traffic,
    WorkerSignals,
)
from legato_operator.autoscaler.window import KeptSize, Window

BUCKETS = tuple(1 << power for power in range(4, 18))
NO_TRAFFIC = Traffic(60.0, (), 10.0, ())
ONE = {"prefill": 1, "decode": 1}
# Nothing was desired lately, and any need of a sample has lasted.
QUIET = {pool: Window((KeptSize(0.0, 0),), 0.0, sampled=(KeptSize(math.inf, 10_000),)) for pool in ONE}


def spec(largest: int = 10_000, **parts: Any) -> Spec:
    """A service whose pools have no bounds to speak of, and whose workers compute chunks of 512 tokens."""
    bounds = {"min": 0, "max": largest}
    scaling = {"prefill": bounds, "decode": {**bounds, "min": min(1, largest)}, **parts.pop("scaling", {})}
    model = {"source": {"builtin": "smollm2-135m-instruct"}}
    return parsing.read_service(
        {
            "apiVersion": "serving.legato.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat"},
            "spec": {"model": model, "scaling": scaling, "engine": {"chunkTokens": 512}, **parts},
        }
    ).spec


SERVING = {
    "ready": True, "age": 900.0, "start_seconds": 60.0, "queue_tokens": 0, "parked_tokens": 0, "sample_age": 0.5
}  # fmt: skip


def prefiller(name: str = "prefill-0", **given: Any) -> WorkerSignals:
    """Ready, idle, with 8,000 tokens per second."""
    return WorkerSignals(name, "prefill", **{**SERVING, "prefill_cost": PrefillCost(1 / 8000), **given})


def decoder(name: str = "decode-0", **given: Any) -> WorkerSignals:
    """Ready, idle, with 1,000 blocks."""
    idle = {"blocks": Blocks(1000, 0, 0), "running": 0, "waiting": 0, "slots": 64, "context_tokens": 0}
    return WorkerSignals(name, "decode", **{**SERVING, "decode_cost": DecodeCost(0.01, 0.001), **idle, **given})


def prompts(requests: int, tokens: int) -> tuple[PromptLengths, ...]:
    """A number of requests of a number of uncached tokens each."""
    return (PromptLengths(1 << tokens.bit_length() - 1, requests, requests * tokens),)


def arriving(requests: int, tokens: int, **given: Any) -> Traffic:
    """Requests in the last minute, evenly."""
    return Traffic(60.0, prompts(requests, tokens), 10.0, prompts(requests // 6, tokens), **given)


@st.composite
def lengths(draw: st.DrawFn) -> tuple[PromptLengths, ...]:
    """Buckets whose means lie in them."""
    found = []
    for least in sorted(draw(st.sets(st.sampled_from(BUCKETS), max_size=4))):
        requests = draw(st.integers(1, 3000))
        found.append(PromptLengths(least, requests, requests * draw(st.integers(least, 2 * least - 1))))
    return tuple(found)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    held = draw(st.integers(0, 200))
    causes = st.sampled_from(("prefill", "decode_room", "credits", "no_worker"))
    return Traffic(
        seconds=60.0,
        arrivals=draw(lengths()),
        recent_seconds=10.0,
        recent=draw(lengths()),
        newest_seconds=4.0,
        newest=draw(lengths()),
        waiting=draw(lengths()),
        queued=held,
        queued_tokens=held * draw(st.integers(1, 4000)),
        queued_prompt_tokens=held * draw(st.integers(1, 8000)),
        output=draw(st.none() | st.builds(OutputLengths, st.floats(1, 2000), st.floats(0, 2000))),
        head_wait=draw(st.dictionaries(causes, st.floats(0, 60))),
    )


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    """Signals of pools of 1 to 5 workers that all answered."""
    cost = st.builds(PrefillCost, st.floats(1e-6, 1e-2), st.floats(0, 1e-8))
    step = st.builds(DecodeCost, st.floats(0, 0.05), st.floats(1e-5, 1e-2), st.floats(0, 1e-6))
    count = st.integers(0, 2000)
    loads = st.builds(Blocks, count, count, count, pending=count, growth=count)
    prefillers = [
        prefiller(f"p{i}", queue_tokens=draw(st.integers(0, 100_000)), prefill_cost=draw(cost))
        for i in range(draw(st.integers(1, 5)))
    ]
    decoders = [
        decoder(f"d{i}", running=draw(count), waiting=draw(count), blocks=draw(loads), decode_cost=draw(step))
        for i in range(draw(st.integers(1, 5)))
    ]
    return Signals((*prefillers, *decoders), draw(traffics()))


def changed(known: Signals, pool: str, **given: Any) -> Signals:
    """With these fields in every worker of a pool."""
    workers = (dataclasses.replace(each, **given) if each.pool == pool else each for each in known.workers)
    return dataclasses.replace(known, workers=tuple(workers))
