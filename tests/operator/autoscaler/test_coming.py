"""Decode workers that a step of the load needs, before the present ones have filled up."""

import pytest
from known_signals import decoder, prefiller, prompts, spec

from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.decision import COMING_SEQUENCES
from legato_operator.autoscaler.signals import Blocks, DecodeCost, OutputLengths, PrefillCost, Signals, Traffic
from legato_operator.autoscaler.window import KeptSize, Window

FULL = 14_400 / 464  # sequences of 64 + 400 tokens in 0.9 x 1,000 blocks


def _traffic(requests=64, before=500, seconds=60.0, **given):
    """So many in the last 4 s and `before` them in the minute, of 64 tokens each, where answers have 400."""
    newest, known = prompts(requests, 64), prompts(requests + before, 64)
    lately = {"recent_seconds": 10.0, "recent": newest, "newest_seconds": 4.0, "newest": newest}
    return Traffic(**{"seconds": seconds, "arrivals": known, "output": OutputLengths(400, 0), **lately, **given})


def _coming(traffic, *workers, sampled=(), **parts):
    """The term, or None. `sampled` are the prefill pool's earlier sizes for sampled needs."""
    windows = {"prefill": Window((KeptSize(0.0, 0),), 0.0, sampled=sampled), "decode": Window((KeptSize(0.0, 0),), 0.0)}
    known = Signals(workers or (decoder(),), traffic)
    terms = decide(known, windows, spec(**parts), {"prefill": 1, "decode": 1}, 1.0).pools["decode"].terms
    return next((term for term in terms if term.reason == COMING_SEQUENCES), None)


@pytest.mark.parametrize(
    ("traffic", "arriving"),
    [
        (_traffic(before=500), (64 - 1.5 * 8) / 4),
        (_traffic(before=0), (64 - 1.5 * 8) / 4),
        (_traffic(4, before=0), (4 - 1.5 * 4**0.5) / 4),
        # After a silence of gateways all windows begin before it, so no time before it is known.
        (_traffic(before=0, seconds=70.0, recent_seconds=70.0, newest_seconds=70.0), (64 - 1.5 * 8) / 70),
        # What came some seconds ago counts when nothing follows, or the newest are not known.
        (_traffic(newest_seconds=4.0, newest=()), (64 - 1.5 * 8) / 10),
        (_traffic(newest_seconds=0.0, newest=()), (64 - 1.5 * 8) / 10),
    ],
)
def test_requests_that_arrive_in_a_second_less_what_may_be_chance(traffic, arriving):
    assert _coming(traffic).numbers["arriving"] == pytest.approx(arriving)


def test_decode_counts_what_will_have_come_when_a_worker_started_now_would_serve():
    """64 less 1.5 deviations of 8 are 52 in 4 s. A worker has 31.03 sequences, and a step of 41.03 ms: 13 x 400 x
    0.04103 are 213 sequences at once."""
    term = _coming(_traffic())
    assert (term.numbers["arriving"], term.numbers["rows"]) == (13.0, pytest.approx(FULL))
    assert term.workers == pytest.approx(13 * 400 * (0.01 + 0.001 * FULL) / FULL)


def test_no_more_than_can_have_come_by_then():
    """13 a second for 5 s, beside the 7 that there are."""
    term = _coming(_traffic(), decoder(start_seconds=5.0, running=7))
    assert term.workers == pytest.approx((7 + 65) / FULL)


@pytest.mark.parametrize(
    ("sampled", "arriving"), [((KeptSize(30.0, 9),), 3.0), ((KeptSize(30.0, 1),), 1.0)], ids=["now", "not yet"]
)
def test_no_more_than_prefill_lets_through(sampled, arriving):
    """64 prompts of 1 s each in 10 s: one worker does 1 a second, and 6.7 of these are desired, 3 allowed."""
    slow = prefiller(prefill_cost=PrefillCost(1 / 64))
    given = {"scaling": {"prefill": {"max": 3}}, "slo": {"ttft": "2s"}, "sampled": sampled}
    assert _coming(_traffic(before=0), slow, decoder(), **given).numbers["arriving"] == pytest.approx(arriving)


def test_prefill_lets_through_what_ready_workers_compute_also_where_fewer_are_to_stay():
    """Three that serve do 3 a second. A fourth one starts, and they are to be one."""
    slow = [prefiller(f"prefill-{i}", prefill_cost=PrefillCost(1 / 64), ready=i < 3) for i in range(4)]
    term = _coming(_traffic(before=0), *slow, decoder(), scaling={"prefill": {"max": 1}}, slo={"ttft": "2s"})
    assert term.numbers["arriving"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"blocks": Blocks(10_000, 0, 0)}, 0.9 * 64),
        ({"blocks": Blocks(500, 0, 400, quarantined=100)}, 0.9 * FULL),
        ({"decode_cost": DecodeCost(0.01, 0.004)}, (0.09 - 0.01) / 0.004),
        ({"decode_cost": DecodeCost(0.01, 0.001, 1e-5)}, (0.09 - 0.01) / (0.001 + 264e-5)),
        ({"decode_cost": DecodeCost(0.01, 0.5)}, 1.0),  # one is always served
        ({"decode_cost": DecodeCost(0.2, 0.01)}, FULL),
        ({"decode_cost": DecodeCost(0.095, 0.001)}, FULL),
    ],
)
def test_a_full_worker_is_full_by_its_slots_blocks_or_the_time_of_a_step(given, rows):
    worker = decoder(**{"blocks": Blocks(1000, 0, 0), **given})
    assert _coming(_traffic(), worker).numbers["rows"] == pytest.approx(rows)


def test_of_workers_that_differ_the_median_counts_by_what_they_decode_in_a_second():
    """31 at 41 ms, 31 at 81 ms, and 15.5 at 25 ms: 756, 383 and 609 a second."""
    slow = decoder("decode-1", decode_cost=DecodeCost(0.05, 0.001))
    small = decoder("decode-2", blocks=Blocks(500, 0, 0))
    assert _coming(_traffic(), decoder(), slow, small).numbers["rows"] == pytest.approx(FULL / 2)


@pytest.mark.parametrize("missing", [{"output": None}, {"recent": (), "newest": ()}])
def test_nothing_is_said_while_nothing_has_ended_or_arrives(missing):
    assert _coming(_traffic(**missing)) is None
