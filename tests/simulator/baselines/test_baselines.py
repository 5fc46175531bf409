"""Baselines: sizes computed by hand from their descriptions, and what holds for every baseline."""

import dataclasses
from functools import partial

import pytest

from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.autoscaler.signals import Blocks, Signals, WorkerSignals
from legato_simulator.baselines.aibrix import Aibrix
from legato_simulator.baselines.baseline import Settings
from legato_simulator.baselines.clairvoyant import Clairvoyant, plan
from legato_simulator.baselines.concurrency import Concurrency
from legato_simulator.baselines.dynamo import Dynamo
from legato_simulator.baselines.fixed import Fixed
from legato_simulator.baselines.hpa import HorizontalPodAutoscaler, HpaBehavior, HpaPolicy
from legato_simulator.baselines.llm_d import GRADUAL, LlmD
from legato_simulator.baselines.request_rate import RequestRate
from legato_simulator.baselines.schedule import Schedule
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Observation
from legato_simulator.workload.workload import Arrival, Workload

STEP = StepTimes(per_step=0.01, per_row=0.001, per_context=0.0, per_token=0.001, per_pair=0.0)


def _pools(prefill, decode):
    return {pool: size for pool, size in (("prefill", prefill), ("decode", decode)) if size is not None}


def _signals(queues, used):
    """Workers with these queues in tokens, and with these numbers of 100 blocks used."""
    prefill = [WorkerSignals(f"p{i}", "prefill", True, queue_tokens=tokens) for i, tokens in enumerate(queues)]
    decode = [WorkerSignals(f"d{i}", "decode", True, blocks=Blocks(100 - n, 0, n)) for i, n in enumerate(used)]
    return Signals((*prefill, *decode))


def _ground(*arrivals, step=STEP, kv_tokens=10_000, tpot=0.05):
    profile = Profile("test", step, kv_tokens, 60.0)
    return SearchContext(Workload("w", arrivals, 512), profile, 1.0, tpot, {"prefill": 4, "decode": 4}, 256)


def _at(now, *sizes, seconds=0, present=(2, 4), ready=None, flight=(0, 0), queues=(), used=(), **given):
    """An observation that is made every 2 s for `seconds`, and the sizes in the end, while each is granted immediately.

    Unless given, there are 2 prefill and 4 decode workers that serve, with nothing to do."""
    idle = {"requests": 0.0, "queue_tokens": 0, "kv_usage": 0.0, **given}
    ready = ready and _pools(*ready)
    seen = Observation(now, _signals(queues, used), _pools(*present), ready, in_flight=_pools(*flight), **idle)
    return seen, seconds, _pools(*sizes)


AIBRIX, CONCURRENCY, DYNAMO, RATE = (
    Settings(*each) for each in ((2, 0.5, Aibrix), (2, 15, Concurrency), (1000, 0.5, Dynamo), (3, 2, RequestRate))
)


def _llm_d(behavior):
    return Settings(1.5, 0.6, partial(LlmD, peak_prefill=10_000, behavior=behavior))


def _schedule(*expected_rates, ahead=60):
    return Settings(3, 2, partial(Schedule, expected=expected_rates, ahead=ahead))


WORK = {"queue_tokens": 60_000, "kv_usage": 0.9}
SCALERS = {
    "fixed: nothing changes it": (Settings(3, 7, Fixed), _at(0, 3, 7, requests=1e6, queue_tokens=10**9)),
    "fixed: unified workers are the decode pool": (Settings(0, 7, Fixed), _at(0, None, 7, present=(None, 1))),
    **{  # target 0.5, the tolerance 10 %
        f"aibrix: {usage} of the KV": (AIBRIX, _at(0, 2, size, flight=(4, 0), kv_usage=usage))
        for usage, size in ((0.46, 4), (0.5, 4), (0.54, 4), (0.56, 5), (0.75, 6), (1.0, 8))
    },
    # 9 in flight at 2 workers is 4.5 times the target.
    "aibrix: at most doubles, at most halves": (Settings(1, 0.5, Aibrix), _at(0, 4, 2, flight=(9, 0))),
    "aibrix: down after 300 s and by half": (
        AIBRIX,
        _at(0, 1, 4, kv_usage=0.5),
        _at(2, 1, 4, seconds=296),
        _at(300, 1, 2, seconds=10),
    ),
    # Twice the target, though another worker starts.
    "aibrix: per worker that serves": (AIBRIX, _at(0, 4, 4, flight=(4, 0), ready=(1, 4), kv_usage=0.5)),
    # 6 ÷ 2 and 90 ÷ 15; neither is twice what serves, so it does not panic.
    "concurrency: the mean of a minute by target": (CONCURRENCY, _at(0, 3, 6, seconds=60, flight=(6, 90))),
    # After a minute of nothing, means over 6 s are 2.7, 5.3 and 8, that of the minute is 0.8.
    "concurrency: panic follows the last seconds": (
        CONCURRENCY,
        _at(0, 0, 0, seconds=58),
        *(_at(now, size, 2, flight=(8, 0)) for now, size in ((60, 1), (62, 1), (64, 4))),
    ),
    "concurrency: panic never shrinks and ends after a minute": (
        CONCURRENCY,
        *(_at(now, 4, 2, present=(4, 4), ready=(2, 4), flight=(8, 0)) for now in (0, 2, 4)),
        _at(6, 4, 0, seconds=56, present=(4, 4)),
        _at(64, 2, 1, seconds=2, present=(4, 4)),
    ),
    # What serves counts, not what is desired.
    "concurrency: one decision at most halves": (CONCURRENCY, _at(0, None, 4, present=(None, 9))),
    "dynamo: one more if any worker is above": (DYNAMO, _at(0, 3, 5, queues=(0, 1000), used=(30, 30, 30, 51))),
    # Below 100 tokens and 30 of 100 blocks.
    "dynamo: one less if all are below": (DYNAMO, _at(0, 1, 3, queues=(99, 0), used=(29, 0, 0, 0))),
    "dynamo: no change between thresholds": (DYNAMO, _at(0, 2, 4, queues=(100, 0), used=(30, 0, 0, 0))),
    "dynamo: only watches while a worker starts": (DYNAMO, _at(0, 2, 3, queues=(5000, 0), used=(0,) * 4, ready=(1, 4))),
    "dynamo: decides every five seconds": (
        DYNAMO,
        *(_at(now, size, 4, queues=(2000, 0), used=(40,) * 4) for now, size in ((0, 3), (2, 2), (4, 2), (6, 3))),
    ),
    "dynamo: the last worker stays": (DYNAMO, _at(0, 1, 1, present=(1, 1), queues=(0,), used=(0,))),
    # 60,000 tokens at 10,000 a second are 6 s, for 1.5 s each: 4. 4 workers 0.9 full are 3.6, for 0.6 each: 6.
    "llm-d: tokens become seconds and usage adds up": (_llm_d(HpaBehavior()), _at(0, 4, 6, **WORK)),
    "llm-d: the guide adds one worker in 180 s": (
        _llm_d(GRADUAL),
        _at(0, 3, 5, **WORK),
        _at(15, 3, 5, present=(3, 5), **WORK),
    ),
    "llm-d: usage by workers that serve": (_llm_d(HpaBehavior()), _at(0, 2, 4, kv_usage=0.9, ready=(2, 2))),
    "request-rate: each pool has its own target": (RATE, _at(0, 4, 6, seconds=60, requests=12.0)),
    # At 64 s, 18 of the last 30 samples saw 12: a rate of 7.2.
    "request-rate: the mean of a minute": (
        RATE,
        _at(0, 1, 1, seconds=28, present=(1, 1)),
        _at(30, 3, 4, seconds=34, present=(1, 1), requests=12.0),
    ),
    "request-rate: the length of requests is not seen": (
        RATE,
        _at(0, 2, 4, seconds=60, requests=6.0, queue_tokens=10**9, kv_usage=1.0),
    ),
    # 3 requests a second are expected, and 12 from 600 s on.
    "schedule: ahead of its time and after nothing": (
        _schedule(3.0, 12.0, 0.0),
        _at(0, 2, 4),
        *(_at(now, *sizes) for now, sizes in ((538, (1, 2)), (540, (4, 6)), (1150, (4, 6)), (1199, (4, 6)))),
    ),
    "schedule: the larger of schedule and rate": (_schedule(3.0), _at(0, 4, 6, seconds=60, requests=12.0)),
    "schedule: only the rate after its end": (_schedule(300.0, ahead=0), _at(600, 2, 4)),
    # A worker takes 40 s to start, so at 20 s the slot of 60 s counts.
    "clairvoyant: workers are desired before they are needed": (
        Settings(0.5, 1.0, partial(Clairvoyant, plan=((0.4, 0.1), (0.4, 0.1), (1.0, 2.5), (0.0, 0.0)), ahead=40)),
        *(_at(now, *sizes) for now, sizes in ((0, (1, 1)), (20, (2, 3)), (60, (2, 3)), (90, (0, 0)), (500, (0, 0)))),
    ),
}


@pytest.mark.parametrize("case", SCALERS)
def test_sizes_are_those_computed_by_hand(case):
    settings, *looks = SCALERS[case]
    scaler = settings.scaler()
    for seen, seconds, expected_sizes in looks:
        sizes = seen.sizes
        for now in range(seen.now, seen.now + seconds + 1, 2):
            sizes = scaler.sizes(dataclasses.replace(seen, now=now, sizes=sizes, ready=seen.ready or sizes))
        assert sizes == expected_sizes, seen.now


HPA = {  # defaults of Kubernetes unless given; then time, workers and the metric, whose target is 10, and the size
    **{f"tolerance of 10 %: {metric}": ({}, (0, 5, metric, size)) for metric, size in
       ((50, 5), (54, 5), (46, 5), (56, 6), (75, 8), (1, 5))},
    "down only to the highest recommendation of 300 s": (
        {}, (0, 5, 80, 8), (15, 8, 30, 8), (150, 8, 30, 8), (300, 8, 30, 8), (315, 8, 30, 3)),
    "down stops at what was recommended within the window": ({}, (0, 8, 60, 8), (200, 8, 60, 8), (301, 8, 10, 6)),
    "up by four within 15 s": ({}, (0, 2, 1000, 6)),
    "up by double within 15 s": ({}, (0, 10, 1000, 20)),
    "a period counts what it has added already": (
        {"up": (HpaPolicy(180, workers=1),)}, (0, 2, 1000, 3), (15, 3, 1000, 3), (180, 3, 1000, 3), (195, 3, 1000, 4)),
    # The first recommendation is the present size.
    "a period counts what it has removed already": (
        {"down": (HpaPolicy(300, workers=1),), "down_window": 0.0},
        (0, 5, 0, 5), (15, 5, 0, 4), (30, 4, 0, 4), (330, 4, 0, 3)),
    # 10 is the double of the 5 that were there when the period began.
    "between syncs the desired size stays": ({}, (0, 5, 80, 8), (2, 8, 200, 8), (15, 8, 200, 10)),
}  # fmt: skip


@pytest.mark.parametrize("case", HPA)
def test_sizes_of_a_horizontal_pod_autoscaler(case):
    behavior, *steps = HPA[case]
    hpa = HorizontalPodAutoscaler(HpaBehavior(**behavior))
    assert [hpa.size(now, workers, metric, 10) for now, workers, metric, _ in steps] == [size for *_, size in steps]


def test_a_plan_is_the_work_of_each_half_minute():
    """A prompt takes 6 s of a prefill worker's 30; then 300 tokens of 0.1 s each, with 10 rows in a worker."""
    step = StepTimes(per_step=0.0001, per_row=0.00999, per_context=0, per_token=0.06, per_pair=0)
    made = plan(_ground(Arrival(15, 100, 300), Arrival(60, 100, 1), step=step, kv_tokens=10**9, tpot=0.1))
    assert [slot[0] for slot in made] == pytest.approx([0.2, 0, 0.2], abs=1e-3)
    assert [slot[1] for slot in made] == pytest.approx([0.05, 0.05, 0.1 * 0.1 / 30], abs=1e-4)


def test_rows_are_bounded_by_time_and_by_room():
    """40 rows make a step of 0.05 s; sequences of 100 + 10/2 tokens fit 95 times into 10,000."""
    short, long = (_ground(Arrival(0, 100, 10), tpot=tpot) for tpot in (0.05, 1.0))
    assert (short.rows, short.full) == pytest.approx((40, 40 * 105 / 10_000))
    assert (long.rows, long.full) == pytest.approx((10_000 / 105, 1))
    assert short.decode_rate == pytest.approx(40 / (10 * 0.05))
