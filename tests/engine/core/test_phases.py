"""Phases of traced requests, as a core reports them."""

from itertools import pairwise

import msgspec
import pytest

from legato_protocol.wire.stream import Cancel, Generate

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(world):
    return lambda **params: msgspec.structs.replace(world.sequence(**params), trace=TRACE)


def _follow_one_another(phases):
    for before, after in pairwise(phases):
        assert before.began <= before.ended == after.began
    assert {phase.trace for phase in phases} == {TRACE}


def test_a_hand_off_is_reported_by_both_workers(world, traced):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, traced(), turns=60)
    assert [phase.name for phase in prefill.phases] == ["queue", "prefill"]
    assert [phase.name for phase in decode.phases] == ["queue", "handoff", "decode"]
    _follow_one_another(prefill.phases)
    _follow_one_another(decode.phases)
    assert (decode.phases[1].details["source"], decode.phases[1].details["blocks"]) == ("p", 5)
    assert decode.phases[2].details["output_tokens"] == 12


@pytest.mark.parametrize("turns", [1, 2, 5, 8])
def test_what_is_cancelled_ends_its_phase_on_both_sides(world, traced, turns):
    prefill, decode = world.worker("p", chunk=4), world.worker("d")
    world.hand_off(prefill, decode, traced(), turns=turns)
    for worker in (prefill, decode):
        worker.send(Cancel("r", 1))
    world.run()
    for worker in (prefill, decode):
        assert worker.phases
        assert worker.core._outbox.phases._open == {}
        assert not [phase for phase in worker.phases if phase.error]


def test_an_attempt_that_fails_names_its_code(world, traced):
    worker = world.worker("w", chunk=4)
    worker.send(Generate("r", 1, traced(deadline=4.0)))
    world.run(20)
    assert [failed.code for failed in worker.failures()] == ["deadline"]
    assert [phase.error for phase in worker.phases] == ["", "deadline"]
    assert worker.core._outbox.phases._open == {}
