"""What a core tells of the time that traced requests took."""

from itertools import pairwise

import msgspec
import pytest

from legato_protocol.stream import Cancel, Generate, Sequence

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _traced(sequence: Sequence) -> Sequence:
    return msgspec.structs.replace(sequence, trace=TRACE)


def _follow_one_another(phases) -> None:
    for before, after in pairwise(phases):
        assert before.began <= before.ended == after.began
    assert {phase.trace for phase in phases} == {TRACE}


def test_a_sequence_that_stays_waits_is_prefilled_and_decodes(world):
    worker = world.worker("w")
    worker.tell(Generate("r", 1, _traced(world.sequence())))
    world.run()
    assert [phase.name for phase in worker.phases] == ["queue", "prefill", "decode"]
    _follow_one_another(worker.phases)
    assert worker.phases[1].details == {"input_tokens": 20, "cached_tokens": 0}
    assert worker.phases[2].details == {"choice": 0, "output_tokens": 12, "finish": "length"}
    assert all(phase.ended > phase.began for phase in worker.phases[1:])


def test_a_hand_off_is_told_by_both_workers(world):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, _traced(world.sequence()), turns=60)
    assert [phase.name for phase in prefill.phases] == ["queue", "prefill"]
    assert [phase.name for phase in decode.phases] == ["queue", "handoff", "decode"]
    _follow_one_another(prefill.phases)
    _follow_one_another(decode.phases)
    assert decode.phases[1].details["source"] == "p"
    assert decode.phases[1].details["blocks"] == 5
    assert decode.phases[2].details["output_tokens"] == 12


def test_each_choice_has_a_decode_of_its_own(world):
    worker = world.worker("w")
    worker.tell(Generate("r", 1, _traced(world.sequence(choices=(0, 1)))))
    world.run()
    assert sorted(phase.name for phase in worker.phases) == ["decode", "decode", "prefill", "queue"]
    decodes = [phase.details for phase in worker.phases if phase.name == "decode"]
    assert sorted(details["choice"] for details in decodes) == [0, 1]


@pytest.mark.parametrize("turns", [1, 2, 5, 8])
def test_what_is_cancelled_ends_its_phase_on_both_sides(world, turns):
    prefill, decode = world.worker("p", chunk=4), world.worker("d")
    world.hand_off(prefill, decode, _traced(world.sequence()))
    world.run(turns)
    for worker in (prefill, decode):
        worker.tell(Cancel("r", 1))
    world.run()
    for worker in (prefill, decode):
        assert worker.phases
        assert worker.core._outbox.phases._open == {}
        assert not [phase for phase in worker.phases if phase.error]


def test_an_attempt_that_fails_names_its_code(world):
    worker = world.worker("w", chunk=4)
    worker.tell(Generate("r", 1, msgspec.structs.replace(_traced(world.sequence()), deadline=4.0)))
    world.run(20)
    assert [failed.code for failed in worker.failures()] == ["deadline"]
    assert [phase.error for phase in worker.phases] == ["", "deadline"]
    assert worker.core._outbox.phases._open == {}


def test_nothing_is_told_of_requests_without_a_trace(world):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, world.sequence(), turns=60)
    assert decode.finished()
    assert prefill.phases == decode.phases == []
