"""Prompts that decode workers compute: whose demand they are, by example."""

import pytest
from known_signals import NO_TRAFFIC, ONE, QUIET, arriving, decoder, prefiller, spec

from legato_operator.autoscaler import decision
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Blocks, PrefillCost, Signals


def _decide(known, current=ONE, **parts):
    return decide(known, QUIET, spec(**parts), current, 1.0).pools


def _term(made, reason):
    return next(term for term in made.terms if term.reason == reason)


@pytest.mark.parametrize(("largest", "sequences"), [(4, 70), (0, 100)], ids=["beside a prefill pool", "unified"])
def test_prompts_that_decode_workers_help_with_need_no_slot_yet(largest, sequences):
    """30 of 40 that wait are prompts: 70 sequences of 90, unless the same workers compute all prompts."""
    prefill = {"min": min(1, largest), "max": largest}
    worker = decoder(running=60, waiting=40, prompts=30, slots=100)
    workers = (prefiller(), worker) if largest else (worker,)
    sizes = {"prefill": 1, "decode": 1} if largest else {"decode": 1}
    made = _decide(Signals(workers, NO_TRAFFIC), sizes, scaling={"prefill": prefill})["decode"]
    assert _term(made, decision.SLOTS).workers == pytest.approx(sequences / 90)


@pytest.mark.parametrize(
    ("prompts_there", "numbers"),
    [
        # Of 300 blocks that wait and 500 that are used, 6,400 tokens of prompts are to fill 400.
        ({"prompts": 9, "prompt_tokens": 6400}, {"pending": 0, "used": 400}),
        # The blocks of preempted sequences count.
        ({}, {"pending": 300, "used": 500}),
        # Also with prompts at the same worker: of 6,400 tokens, 320 are of the one prompt, 20 blocks.
        ({"prompts": 1, "prompt_tokens": 320}, {"pending": 280, "used": 500, "sequences": 8}),
    ],
)
def test_blocks_of_what_is_not_computed_are_not_needed_yet(prompts_there, numbers):
    blocks = Blocks(400, 0, 500, pending=300)
    worker = decoder(blocks=blocks, queue_tokens=6400, waiting=9, slots=1000, **prompts_there)
    made = _decide(Signals((prefiller(), worker), NO_TRAFFIC))["decode"]
    assert _term(made, decision.KV_BLOCKS).numbers.items() >= numbers.items()


QUEUED = {"queue_tokens": 1_700_000, "waiting": 800, "prompts": 799, "prompt_tokens": 1_600_000}


@pytest.mark.parametrize(
    ("decoders", "backlog"),
    [
        # A worker that starts would serve in 60 s; 1,600,000 tokens are 200 s of work at 8,000 a second.
        ([decoder(**QUEUED)], 1_600_000),
        ([decoder(draining=True, **QUEUED), decoder()], None),
        ([decoder(**QUEUED | {"prompts": 0, "prompt_tokens": 0})], None),  # computed again for preempted sequences
        ([decoder(), decoder("decode-1", sample_age=11.0, **QUEUED)], None),  # reported long ago
    ],
)
def test_prompts_that_decode_workers_help_with_are_the_prefill_pools_backlog(decoders, backlog):
    made = _decide(Signals((prefiller(), *decoders), arriving(60, 2000)))["prefill"]
    terms = [term for term in made.terms if term.reason == decision.BACKLOG]
    assert [term.numbers["backlogTokens"] for term in terms] == ([] if backlog is None else [backlog])


def test_unified_workers_compute_preempted_sequences_beside_prompts():
    told = {"queue_tokens": 1_600_000, "waiting": 800, "prompts": 300, "prompt_tokens": 600_000}
    worker = decoder(prefill_cost=prefiller().prefill_cost, **told)
    made = _decide(Signals((worker,), arriving(60, 2000)), {"decode": 1}, scaling={"prefill": {"max": 0}})["decode"]
    assert _term(made, decision.BACKLOG).numbers["backlogTokens"] == 1_600_000


@pytest.mark.parametrize("ready", [True, False])
def test_where_all_prompts_are_short_decode_workers_tell_what_they_cost(ready):
    """Prefill workers get none of them, so theirs stays unknown: 60 a second of 20 tokens, at 8,000 a second."""
    prefill = prefiller(prefill_cost=None, ready=ready)
    known = Signals((prefill, decoder(prefill_cost=PrefillCost(1 / 8000))), arriving(60 * 60, 20))
    made = _decide(known)["prefill"]
    assert not made.missing
    assert _term(made, decision.ARRIVALS).numbers["fittingWork"] == pytest.approx(9.0)


def test_what_prefill_workers_were_measured_to_cost_comes_first():
    known = Signals((prefiller(), decoder(prefill_cost=PrefillCost(1 / 100))), arriving(60 * 60, 20))
    assert _term(_decide(known)["prefill"], decision.ARRIVALS).numbers["fittingWork"] == pytest.approx(9.0)
